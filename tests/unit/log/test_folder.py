"""The data folder: whose it is when its identity file is damaged, and what is left of a log that failed."""

import errno
import json
import os

import pytest

from mainstem.core.errors import FolderUnusable
from mainstem.log.log import Log
from mainstem.testing.disk import FailingDisk
from tests.faults.script import TINY, Script, State, play


@pytest.fixture
def folder(tmp_path):
    """A data folder with some records, closed."""
    log = Log(tmp_path / "data", TINY)
    play(log, Script(1, 10).steps, State())
    log.close()
    return tmp_path / "data"


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_the_identity_is_made_good_from_the_blocks(folder, bit):
    whole = (folder / "mainstem.json").read_bytes()
    uuid = json.loads(whole)["uuid"]
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << bit
        (folder / "mainstem.json").write_bytes(flipped)
        log = Log(folder, TINY)
        assert log.uuid == uuid
        log.close()


def test_an_identity_of_another_log_is_refused(folder, tmp_path):
    Log(tmp_path / "other", TINY).close()
    (tmp_path / "other" / "mainstem.json").replace(folder / "mainstem.json")
    with pytest.raises(FolderUnusable, match="log"):
        Log(folder, TINY)


def test_a_footer_that_cannot_be_written_does_not_keep_the_log_open(folder):
    """Everything acknowledged is durable without it; the folder must be free for the next start."""
    for kinds in (("create",), ("write",)):
        log = Log(folder, TINY, disk=FailingDisk(at=2, error=errno.ENOSPC, kinds=kinds))
        log.close()
    script = Script(1, 11)
    disk = FailingDisk(at=3, kinds=("write",))  # the new block's header, the flush, the footer
    log = Log(folder, TINY, disk=disk)
    play(log, script.steps[10:], script.state_after(10))
    log.close()
    assert disk.has_struck
    Log(folder, TINY).close()


def test_an_open_that_fails_leaves_no_file_open(folder):
    block = max((folder / "blocks").iterdir())
    block.write_bytes(block.read_bytes()[:100])
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    for _ in range(3):
        with pytest.raises(FolderUnusable, match=block.name):
            Log(folder, TINY)
    if before:
        assert len(os.listdir("/proc/self/fd")) == before
