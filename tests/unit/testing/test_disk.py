"""The fault layers of the disk: each strikes where it is told to, and nowhere else."""

import errno
import subprocess
import sys

import pytest

from mainstem.log.disk import LocalDisk
from mainstem.testing.disk import DiskLayer, FailingDisk, KillingDisk


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
