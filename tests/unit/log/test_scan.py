"""Reading the flushes of a block back: all that are whole, and where they stop being."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from mainstem.core.batch import Batch
from mainstem.log.blocks.local import LocalBlocks
from mainstem.log.disk import LocalDisk
from mainstem.log.flush import (
    Command,
    CreateStream,
    OpenBlock,
    StagedBatch,
    TrimShard,
    WrittenBatch,
    WrittenStaged,
    encode_command,
)
from mainstem.log.frame import BLOCK_HEADER_BYTES, FRAME_BYTES, BlockHeader, FrameDamaged
from mainstem.log.scan import BlockScanner, ReadFlush
from mainstem.log.writer import FlushFile, WriterIdentity
from mainstem.testing.clock import SimulatedClock
from tests.unit.log.parts import LOG_UUID, NOW_US, make_batch, make_blocks

CREATE = CreateStream("a" * 32, "orders", 2, "crc32", 1_000_000, NOW_US)


class Written:
    """A block with flushes in it, as the product writes it; `path` is its file."""

    def __init__(self, path: Path, flushes: Sequence[Sequence[Batch | Command]], *, sealed: bool = False) -> None:
        self.blocks = make_blocks(path)
        self.path = path / "blocks" / "0000000000000001.block"
        file = FlushFile(self.blocks, WriterIdentity(LOG_UUID, 1, 1), SimulatedClock(), 1 << 20, 0)
        file.roll(1, 0)
        self.flushes = [file.write(number, number - 1, items, 0, 0) for number, items in enumerate(flushes, 1)]
        if sealed:
            file.seal(len(flushes) + 1, len(flushes))
        file.close()
        self.blocks.close()

    def scanner(self) -> BlockScanner:
        """A scanner of the file as it is now; the one before is done with."""
        self.blocks.close()
        self.blocks = LocalBlocks(self.path.parent, LocalDisk())
        return BlockScanner(self.blocks, 1)

    def numbers(self) -> list[int]:
        """The flushes that can be read before the first damage."""
        found: list[int] = []
        try:
            found.extend(read.flush.number for read in self.scanner().flushes())
        except FrameDamaged:
            return found
        return found

    def flip(self, position: int) -> None:
        data = bytearray(self.path.read_bytes())
        data[position] ^= 0x08
        self.path.write_bytes(data)

    def end_of(self, number: int) -> int:
        """Where the flush after `number` begins."""
        return self.flushes[number - 1].commit_position + FRAME_BYTES + 32


@pytest.fixture
def write() -> Iterator[Callable[..., Written]]:
    """Writes blocks, and closes their files after the test."""
    made: list[Written] = []

    def write_block(path: Path, flushes: Sequence[Sequence[Batch | Command]], *, sealed: bool = False) -> Written:
        made.append(Written(path, flushes, sealed=sealed))
        return made[-1]

    yield write_block
    for written in made:
        written.blocks.close()


def some_flushes(count: int = 4) -> list[list[Batch | Command]]:
    return [[CREATE, make_batch([b"%d" % n] * 3), make_batch([b"w" * 500], shard=1)] for n in range(count)]


def test_what_was_written_is_read_back(tmp_path, write):
    items: list[list[Batch | Command]] = [
        [CREATE],
        [make_batch([b"a", b"b"], producer=3, sequence=7), make_batch([b"c" * 5_000])],
        [TrimShard(1, 0, 1), make_batch([b"d"])],
        [],
    ]
    written = write(tmp_path, items)
    found = list(written.scanner().flushes())
    assert [read.flush for read in found] == written.flushes
    assert [read.applied for read in found] == [0, 1, 2, 3]
    assert [read.damaged for read in found] == [None] * 4
    assert isinstance(found[0].flush.items[0], OpenBlock)
    assert found[2].flush.items[0] == TrimShard(1, 0, 1)
    assert all(
        isinstance(item, WrittenBatch) and item.header == batch.header
        for item, batch in zip(found[1].flush.items, items[1], strict=True)
        if isinstance(batch, Batch)
    )


def test_the_header_of_the_block(tmp_path, write):
    written = write(tmp_path, some_flushes(1))
    header = written.scanner().header()
    assert (header.block, header.log_uuid.hex(), header.first_flush) == (1, LOG_UUID, 1)


def test_a_block_under_another_number_is_recognised(tmp_path, write):
    written = write(tmp_path, some_flushes(1))
    written.path.rename(written.path.with_name("0000000000000002.block"))
    blocks = make_blocks(tmp_path)
    scanner = BlockScanner(blocks, 2)
    with pytest.raises(FrameDamaged, match="this is block 1"):
        scanner.header()
    with pytest.raises(FrameDamaged, match="belongs to block 1"):
        list(scanner.flushes())
    blocks.close()


def test_reading_may_begin_at_any_flush(tmp_path, write):
    written = write(tmp_path, some_flushes())
    for number in range(1, 5):
        begin = written.end_of(number)
        assert [read.flush.number for read in written.scanner().flushes(begin)] == list(range(number + 1, 5))


def test_a_sealed_block_ends_at_its_footer(tmp_path, write):
    written = write(tmp_path, some_flushes(3), sealed=True)
    assert written.numbers() == [1, 2, 3]
    assert written.path.stat().st_size > written.end_of(3)


def test_a_block_with_a_header_only_has_no_flushes(tmp_path, write):
    written = write(tmp_path, [])
    assert written.path.stat().st_size == BLOCK_HEADER_BYTES
    assert list(written.scanner().flushes()) == []


def test_every_torn_tail_leaves_the_flushes_before_it(tmp_path, write):
    written = write(tmp_path, some_flushes(3))
    data = written.path.read_bytes()
    ends = [written.end_of(number) for number in (1, 2, 3)]
    for length in range(BLOCK_HEADER_BYTES, len(data), 41):
        written.path.write_bytes(data[:length])
        assert written.numbers() == [number for number, end in enumerate(ends, 1) if end <= length]


def test_zeros_after_the_last_flush_are_a_torn_tail(tmp_path, write):
    """What a file system leaves when it had grown the file and not written to it."""
    written = write(tmp_path, some_flushes(2))
    with written.path.open("ab") as file:
        file.write(bytes(4_096))
    scanner = written.scanner()
    with pytest.raises(FrameDamaged) as caught:
        list(scanner.flushes())
    assert caught.value.position == written.end_of(2)
    assert scanner.flush_beyond(caught.value.position, 2) is None


def test_every_flip_in_a_flush_is_noticed(tmp_path, write):
    """In a header or a commit frame the flush is no flush; in a payload it is one that names its damage."""
    written = write(tmp_path, some_flushes(3))
    data = written.path.read_bytes()
    begin, end = written.end_of(1), written.end_of(2)
    for position in range(begin, end):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        written.path.write_bytes(damaged)
        found: list[ReadFlush] = []
        try:
            found.extend(written.scanner().flushes())
        except FrameDamaged as error:
            assert begin <= error.position < end  # noqa: PT017  # either way of noticing is right
            assert [read.flush.number for read in found] == [1]
            continue
        same = [read.flush for read in found] == written.flushes
        # Padding after a payload belongs to nobody.
        assert same
        assert found[1].damaged is not None or is_padding(written, position)


def is_padding(written: Written, position: int) -> bool:
    for item in written.flushes[1].items:
        if isinstance(item, WrittenBatch):
            payload_end = item.position + FRAME_BYTES + item.header.stored_len
            if payload_end <= position < item.position + item.length:
                return True
    # The frames of commands are padded too.
    return any(position - at in range(8) for at in command_ends(written))


def command_ends(written: Written) -> list[int]:
    position = written.end_of(1)
    return [position + FRAME_BYTES + len(encode_command(CREATE))]


def test_a_damaged_payload_is_named_and_the_flush_still_read(tmp_path, write):
    written = write(tmp_path, some_flushes(3))
    batch = written.flushes[1].items[1]
    assert isinstance(batch, WrittenBatch)
    written.flip(batch.position + FRAME_BYTES + 10)
    found = list(written.scanner().flushes())
    assert [read.flush for read in found] == written.flushes
    damaged = found[1].damaged
    assert damaged is not None
    assert damaged.position == batch.position


def test_a_flush_beyond_damage_proves_that_more_was_there(tmp_path, write):
    written = write(tmp_path, some_flushes(4))
    written.flip(written.end_of(1) + 20)
    scanner = written.scanner()
    with pytest.raises(FrameDamaged) as caught:
        list(scanner.flushes())
    beyond = scanner.flush_beyond(caught.value.position, 2)
    assert beyond is not None
    assert (beyond.flush, beyond.position) == (3, written.end_of(2))
    last = scanner.flush_beyond(caught.value.position, 3)
    assert last is not None
    assert last.flush == 4
    assert scanner.flush_beyond(caught.value.position, 4) is None


def test_a_frame_inside_a_payload_is_not_taken_for_a_flush(tmp_path, write):
    """Somebody stores a copy of a block file as a record: its frames name another place."""
    inner = write(tmp_path / "inner", some_flushes(4)).path.read_bytes()
    written = write(tmp_path / "outer", [[make_batch([b"x"])], [make_batch([inner])]])
    data = written.path.read_bytes()
    written.path.write_bytes(data[:-40])
    scanner = written.scanner()
    with pytest.raises(FrameDamaged) as caught:
        list(scanner.flushes())
    assert scanner.flush_beyond(caught.value.position, 2) is None


def test_the_commit_of_another_flush_does_not_fit(tmp_path, write):
    """Frames of two flushes that lie one after the other, the first without its commit frame."""
    written = write(tmp_path, some_flushes(2))
    data = bytearray(written.path.read_bytes())
    commit = written.flushes[0].commit_position
    del data[commit : written.end_of(1)]
    written.path.write_bytes(data)
    with pytest.raises(FrameDamaged):
        list(written.scanner().flushes())


def test_commit_at_knows_a_commit_frame(tmp_path, write):
    written = write(tmp_path, some_flushes(2))
    scanner = written.scanner()
    header, commit, after = scanner.commit_at(written.flushes[0].commit_position)
    assert (header.flush, after) == (1, written.end_of(1))
    assert commit.first_position == BLOCK_HEADER_BYTES
    with pytest.raises(FrameDamaged, match="no commit frame"):
        scanner.commit_at(BLOCK_HEADER_BYTES)


def test_a_block_larger_than_the_window_is_read_through(tmp_path, write):
    written = write(tmp_path, [[make_batch([bytes([n]) * 3_000_000])] for n in range(4)])
    found = list(written.scanner().flushes())
    assert [read.flush for read in found] == written.flushes
    assert all(read.damaged is None for read in found)


def test_the_block_header_is_what_the_writer_says(tmp_path, write):
    written = write(tmp_path, [])
    data = written.path.read_bytes()
    assert BlockHeader.parse(data).writer_epoch == 1


def test_staged_batches_come_back_as_such(tmp_path, write):
    first, second = make_batch([b"a"]), make_batch([b"b", b"c"], shard=1)
    staged = [StagedBatch(batch.header, batch.payload) for batch in (second, first)]
    written = write(tmp_path, [[first, staged[0]], staged[1:]])
    flushes = [read.flush for read in written.scanner().flushes()]
    assert flushes[0].items == written.flushes[0].items
    assert isinstance(flushes[0].items[1], WrittenBatch)
    assert isinstance(flushes[0].items[2], WrittenStaged)
    assert flushes[0].items[2].batch.header == second.header
