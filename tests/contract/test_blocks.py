"""What every block store keeps: bytes where they were put, whole; and a clear no for what is not there."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mainstem.log.blocks.base import BlockMissing, BlockStore
from mainstem.log.blocks.local import _OPEN_FILES_MAX, LocalBlocks
from mainstem.log.disk import LocalDisk
from mainstem.log.frame import BLOCK_HEADER_BYTES, BlockHeader


def local(path: Path) -> BlockStore:
    folder = path / "blocks"
    folder.mkdir()
    return LocalBlocks(folder, LocalDisk())


def reopened_local(path: Path) -> BlockStore:
    return LocalBlocks(path / "blocks", LocalDisk())


FACTORIES: dict[str, tuple[Callable[[Path], BlockStore], Callable[[Path], BlockStore]]] = {
    "local": (local, reopened_local),
}


@pytest.fixture(params=FACTORIES)
def factory(request):
    return FACTORIES[request.param]


@pytest.fixture
def store(factory, tmp_path):
    store = factory[0](tmp_path)
    yield store
    store.close()


def header(block: int) -> BlockHeader:
    return BlockHeader(block, bytes(16), 1, 1, 1, 0)


def filled(store: BlockStore, block: int, *pieces: bytes) -> None:
    writer = store.create(header(block))
    for piece in pieces:
        writer.append([piece])
    writer.close()


def test_a_new_block_begins_with_its_header(store):
    writer = store.create(header(3))
    assert (writer.block, writer.position) == (3, BLOCK_HEADER_BYTES)
    assert BlockHeader.parse(store.read(3, 0, BLOCK_HEADER_BYTES)) == header(3)
    writer.close()


def test_bytes_stand_where_they_were_appended(store):
    writer = store.create(header(1))
    places = []
    for buffers in ([b"abc"], [b"", b"de", bytearray(b"fg")], [memoryview(b"xhix")[1:3]], [b"z" * 100_000]):
        places.append((writer.position, b"".join(bytes(buffer) for buffer in buffers)))
        writer.append(buffers)
        assert writer.position == places[-1][0] + len(places[-1][1])
    for position, data in places:
        assert store.read(1, position, len(data)) == data
    assert store.size(1) == writer.position
    writer.close()
    assert store.size(1) == writer.position


def test_more_buffers_than_one_system_call_takes(store):
    writer = store.create(header(1))
    pieces = [b"%06d" % number for number in range(5_000)]
    writer.append(pieces)
    writer.close()
    assert store.read(1, BLOCK_HEADER_BYTES, 30_000) == b"".join(pieces)


def test_a_read_ends_at_the_end(store):
    filled(store, 1, b"0123456789")
    end = BLOCK_HEADER_BYTES + 10
    assert store.read(1, end - 4, 100) == b"6789"
    assert store.read(1, end, 1) == b""
    assert store.read(1, end + 1_000, 8) == b""
    assert store.read(1, 0, 0) == b""


def test_a_block_can_be_read_while_it_grows(store):
    writer = store.create(header(1))
    assert store.read(1, BLOCK_HEADER_BYTES, 10) == b""
    writer.append([b"more"])
    assert store.read(1, BLOCK_HEADER_BYTES, 10) == b"more"
    writer.close()


def test_a_missing_block_is_said_to_be_missing(store):
    for ask in (lambda: store.read(9, 0, 1), lambda: store.size(9), lambda: store.sync(9)):
        with pytest.raises(BlockMissing):
            ask()


def test_a_block_is_never_created_twice(store):
    filled(store, 1, b"first")
    with pytest.raises(FileExistsError):
        store.create(header(1))
    assert store.read(1, BLOCK_HEADER_BYTES, 10) == b"first"


def test_the_list_is_ascending_and_only_of_blocks(store):
    for block in (10, 2, 300):
        filled(store, block)
    assert list(store.list()) == [2, 10, 300]


def test_a_message_can_name_a_block(store):
    assert "17" in store.where(17)


def test_sync_of_a_block_that_is_there(store):
    filled(store, 1, b"data")
    store.sync(1)


def test_everything_is_there_after_reopening(factory, tmp_path):
    store = factory[0](tmp_path)
    filled(store, 1, b"one")
    filled(store, 2, b"two")
    store.close()
    again = factory[1](tmp_path)
    assert list(again.list()) == [1, 2]
    assert again.read(2, BLOCK_HEADER_BYTES, 3) == b"two"
    again.close()


def test_any_thread_may_read(store):
    """More blocks than files are kept open, so that files are closed under the readers' feet all the time."""
    count = _OPEN_FILES_MAX + 20
    for block in range(1, count + 1):
        filled(store, block, b"%08d" % block * 100)
    wrong: list[str] = []

    def read_all(first: int) -> None:
        for step in range(3 * count):
            block = 1 + (first + step * 7) % count
            if store.read(block, BLOCK_HEADER_BYTES + 80, 8) != b"%08d" % block:
                wrong.append(f"block {block}")

    threads = [threading.Thread(target=read_all, args=(first,)) for first in range(0, 80, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Of local files only.


def test_foreign_files_in_the_folder_are_left_alone(tmp_path):
    store = local(tmp_path)
    filled(store, 1)
    for name in (
        "1.block",
        "notes.txt",
        "0000000000000002.block.part",
        "x0000000000000003.block",
        ".0000000000000004.block",
    ):
        (tmp_path / "blocks" / name).write_bytes(b"?")
    assert store.list() == [1]
    store.close()


def test_a_file_that_vanished_is_missing_once_it_is_no_longer_open(tmp_path):
    filled(local(tmp_path), 1, b"data")
    store = reopened_local(tmp_path)
    (tmp_path / "blocks" / "0000000000000001.block").unlink()
    with pytest.raises(BlockMissing, match="0000000000000001"):
        store.read(1, 0, 1)
    store.close()


def test_a_block_that_is_abandoned_ends_where_it_was(store):
    writer = store.create(header(1))
    writer.append([b"kept"])
    writer.abandon()
    assert store.size(1) == BLOCK_HEADER_BYTES + 4
    assert store.read(1, BLOCK_HEADER_BYTES, 100) == b"kept"


def test_a_block_that_is_removed_is_gone_also_for_who_has_read_it(store):
    filled(store, 1, b"one")
    filled(store, 2, b"two")
    assert store.read(1, BLOCK_HEADER_BYTES, 3) == b"one"
    store.remove(1)
    store.remove(1)
    with pytest.raises(BlockMissing):
        store.read(1, 0, 1)
    assert list(store.list()) == [2]
