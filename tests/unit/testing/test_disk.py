"""The fault layers of the disk: each strikes where it is told to, and nowhere else."""

import errno
import subprocess
import sys

import pytest

from mainstem.log.disk import LocalDisk
from mainstem.testing.disk import BudgetDisk, DiskLayer, FailingDisk, KillingDisk


def operations(disk, folder):
    """Four operations: create, write, sync, replace."""
    file = disk.create(folder / "file")
    file.write_durably([b"abc", b"def"], 0)
    file.sync()
    file.close()
    (folder / "part").write_bytes(b"part")
    disk.replace(folder / "part", folder / "whole")


def test_a_plain_layer_changes_nothing(tmp_path):
    disk = DiskLayer()
    operations(disk, tmp_path)
    assert disk.list(tmp_path) == ["file", "whole"]
    file = disk.open(tmp_path / "file")
    assert (file.read(1, 100), file.size()) == (b"bcdef", 6)
    file.close()
    disk.make_dirs(tmp_path / "a" / "b")
    assert disk.free_bytes(tmp_path / "a" / "b") > 0


@pytest.mark.parametrize(("at", "left"), [(1, []), (2, ["file"]), (3, ["file"]), (4, ["file", "part"])])
def test_the_given_operation_fails(tmp_path, at, left):
    disk = FailingDisk(LocalDisk(), at=at, error=errno.ENOSPC)
    with pytest.raises(OSError, match="injected") as caught:
        operations(disk, tmp_path)
    assert caught.value.errno == errno.ENOSPC
    assert disk.has_struck
    assert disk.list(tmp_path) == left


@pytest.mark.parametrize(("leaves", "content"), [("nothing", b""), ("part", b"abc"), ("all", b"abcdef")])
def test_a_failed_write_leaves_what_it_is_told_to(tmp_path, leaves, content):
    with pytest.raises(OSError, match="injected"):
        operations(FailingDisk(at=2, leaves=leaves), tmp_path)
    assert (tmp_path / "file").read_bytes() == content


def test_only_the_given_kinds_count(tmp_path):
    disk = FailingDisk(at=1, kinds=("replace",))
    with pytest.raises(OSError, match="whole"):
        operations(disk, tmp_path)
    assert [call.kind for call in disk.calls] == ["replace"]


def test_after_the_failure_the_disk_works(tmp_path):
    disk = FailingDisk(at=2)
    with pytest.raises(OSError, match="injected"):
        operations(disk, tmp_path)
    disk.create(tmp_path / "other").close()


def test_never_only_counts(tmp_path):
    disk = FailingDisk(at=0)
    operations(disk, tmp_path)
    assert [call.kind for call in disk.calls] == ["create", "write", "sync", "replace"]
    assert not disk.has_struck


def test_a_process_dies_in_the_middle_of_a_write(tmp_path):
    assert KillingDisk(at=2).has_struck is False
    program = (
        "from pathlib import Path; from mainstem.testing.disk import KillingDisk\n"
        f"disk = KillingDisk(at=2, leaves='part'); file = disk.create(Path({str(tmp_path)!r}) / 'file')\n"
        "file.write_durably([b'abcdef'], 0); print('alive')"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (child.returncode, child.stdout) == (-9, b"")
    assert (tmp_path / "file").read_bytes() == b"abc"


def test_a_counted_disk_is_full_at_the_byte(tmp_path):
    disk = BudgetDisk(free=10, total=100)
    file = disk.create(tmp_path / "file")
    file.write_durably([b"abc"], 0)
    assert (disk.free_bytes(tmp_path), disk.total_bytes(tmp_path)) == (7, 100)
    with pytest.raises(OSError, match="No space left") as caught:
        file.write_durably([b"defg", b"hijkl"], 3)
    assert caught.value.errno == errno.ENOSPC
    assert (tmp_path / "file").read_bytes() == b"abcdefghij"
    assert (disk.free, disk.refused) == (0, 1)
    file.truncate(3)
    assert disk.free == 7
    file.close()
    disk.remove(tmp_path / "file")
    assert disk.free == 10


def test_a_counted_disk_counts_files_that_replace_others(tmp_path):
    disk = BudgetDisk(free=10)
    disk.write_new(tmp_path / "new", [b"1234"])
    disk.write_new(tmp_path / "new", [b"12345"])
    assert disk.free == 5
    disk.replace(tmp_path / "new", tmp_path / "old")
    disk.write_new(tmp_path / "new", [b"123"])
    disk.replace(tmp_path / "new", tmp_path / "old")
    assert disk.free == 7
    disk.allocate(tmp_path / "room", 7)
    with pytest.raises(OSError, match="No space left"):
        disk.allocate(tmp_path / "more", 1)
    with pytest.raises(OSError, match="No space left"):
        disk.write_new(tmp_path / "more", [b"1"])
