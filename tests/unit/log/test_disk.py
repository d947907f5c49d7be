"""The local disk: what `write_durably` promises, however many buffers it gets and however few bytes fit at once."""

import errno

import pytest

from mainstem.log import disk
from mainstem.log.disk import LocalDisk, is_out_of_space
from mainstem.testing.disk import FailingDisk, short_writes

MANY = [bytes([65 + number % 26]) * (1 + number % 7) for number in range(2 * disk._IOV_MAX + 5)]


@pytest.mark.parametrize("buffers", [[b"one"], [b"", b"two", b"three"], MANY], ids=["one", "few", "many"])
@pytest.mark.parametrize("bytes_max", [None, 1_000, 7])
def test_what_is_written_is_read_back(tmp_path, buffers, bytes_max):
    file = LocalDisk().create(tmp_path / "file")
    if bytes_max is None:
        file.write_durably(buffers, 0)
    else:
        with short_writes(bytes_max):
            file.write_durably(buffers, 0)
    whole = b"".join(buffers)
    assert file.size() == len(whole)
    assert file.read(0, len(whole) + 10) == whole
    file.close()


def test_every_byte_is_synced_before_it_returns(tmp_path, monkeypatch):
    """A durable write covers its own bytes only, so a list that takes several calls needs a sync of the whole file."""
    unsynced: list[tuple[int, int]] = []
    pwritev, sync = disk._pwritev, disk._sync

    def noting_pwritev(fd, buffers, position, *, durably):
        written = pwritev(fd, buffers, position, durably=durably)
        if not durably:
            unsynced.append((position, written))
        return written

    def noting_sync(fd):
        sync(fd)
        unsynced.clear()

    monkeypatch.setattr(disk, "_pwritev", noting_pwritev)
    monkeypatch.setattr(disk, "_sync", noting_sync)
    file = LocalDisk().create(tmp_path / "file")
    for buffers in ([b"one"], MANY):
        file.write_durably(buffers, file.size())
        assert unsynced == []
    with short_writes(100):
        file.write_durably(MANY, file.size())
    assert unsynced == []
    file.close()


def test_a_new_file_must_not_exist(tmp_path):
    LocalDisk().create(tmp_path / "file").close()
    with pytest.raises(FileExistsError):
        LocalDisk().create(tmp_path / "file")


def test_a_file_written_anew_has_the_new_content_only(tmp_path):
    """What an earlier try left behind is in nobody's way."""
    (tmp_path / "part").write_bytes(b"longer than what comes")
    LocalDisk().write_new(tmp_path / "part", iter([b"one", b"", b"two"]))
    assert (tmp_path / "part").read_bytes() == b"onetwo"
    with short_writes(2):
        LocalDisk().write_new(tmp_path / "part", [b"three", b"four"])
    assert (tmp_path / "part").read_bytes() == b"threefour"


@pytest.mark.parametrize(("leaves", "left"), [("nothing", None), ("part", b"on"), ("all", b"onet")])
def test_a_disk_that_fails_leaves_what_it_was_told_to(tmp_path, leaves, left):
    failing = FailingDisk(at=1, kinds=("write",), leaves=leaves)
    with pytest.raises(OSError, match="injected"):
        failing.write_new(tmp_path / "part", iter([b"one", b"t"]))
    assert ((tmp_path / "part").read_bytes() if left else None) == left
    failing.write_new(tmp_path / "part", [b"again"])
    assert (tmp_path / "part").read_bytes() == b"again"


def test_replace_puts_the_content_under_the_new_name(tmp_path):
    (tmp_path / "part").write_bytes(b"new")
    (tmp_path / "whole").write_bytes(b"old")
    LocalDisk().replace(tmp_path / "part", tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == b"new"
    assert LocalDisk().list(tmp_path) == ["whole"]


def test_folders_are_made_with_their_parents(tmp_path):
    LocalDisk().make_dirs(tmp_path / "a" / "b" / "c")
    LocalDisk().make_dirs(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert LocalDisk().free_bytes(tmp_path) > 0


def test_what_is_allocated_takes_its_room_and_gives_it_back(tmp_path):
    disk = LocalDisk()
    disk.allocate(tmp_path / "room", 1 << 20)
    assert (tmp_path / "room").stat().st_blocks * 512 >= 1 << 20
    disk.remove(tmp_path / "room")
    disk.remove(tmp_path / "room")
    assert disk.list(tmp_path) == []
    assert 0 < disk.free_bytes(tmp_path) <= disk.total_bytes(tmp_path)


def test_a_file_is_cut(tmp_path):
    file = LocalDisk().create(tmp_path / "file")
    file.write_durably([b"abc", b"def"], 0)
    file.truncate(4)
    assert (file.size(), file.read(0, 10)) == (4, b"abcd")
    file.close()


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (OSError(errno.ENOSPC, ""), True),
        (OSError(errno.EDQUOT, ""), True),
        (OSError(errno.EIO, ""), False),
        (ValueError(), False),
    ],
)
def test_which_errors_say_that_there_is_no_room(error, is_so):
    assert is_out_of_space(error) is is_so
