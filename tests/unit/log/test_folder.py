"""The data folder: whose it is when its identity file is damaged, and what is left of a log that failed."""

import contextlib
import errno
import json
import os
import shutil

import pytest

from mainstem.core.errors import FolderLocked, FolderUnusable
from mainstem.log.disk import LocalDisk
from mainstem.log.folder import Folder
from mainstem.log.log import Log
from mainstem.testing.disk import FailingDisk
from tests.faults.reading import judge
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


def take_away(folder, *names):
    for name in names:
        for path in folder.glob(name):
            path.unlink()


@pytest.mark.parametrize("kept", ["snapshots", "mainstem.json", "both"])
def test_a_log_without_its_blocks_is_refused(tmp_path, kept):
    """The ledger is gone too: what is left of an earlier life says that this is no new folder."""
    log = Log(tmp_path / "data", TINY)
    play(log, Script(1, 120).steps, State())
    log.close()
    folder = tmp_path / "data"
    take_away(folder, "blocks/*", "ledger.db*")
    take_away(folder, *{"snapshots": ["mainstem.json"], "mainstem.json": ["snapshots/*"], "both": []}[kept])
    before = sorted(folder.rglob("*"))
    with pytest.raises(FolderUnusable, match=r"0000000000000001\.block .*flush(es)? 1"):
        Log(folder, TINY)
    assert sorted(folder.rglob("*")) == before


def test_the_first_block_is_noted_before_anything_in_it_is_acknowledged(tmp_path):
    """Killed in its first life, then robbed of everything but its identity."""
    log = Log(tmp_path / "data", TINY)
    play(log, Script(1, 4).steps[:1], State())
    (tmp_path / "robbed").mkdir()
    shutil.copy(tmp_path / "data" / "mainstem.json", tmp_path / "robbed")
    log.close()
    with pytest.raises(FolderUnusable, match="flush 1"):
        Log(tmp_path / "robbed", TINY)


def test_a_first_start_that_was_cut_short_is_gone_on_with(tmp_path):
    """At every operation of it, whatever became of the ledger's files: nothing was promised yet."""
    script = Script(1, 4)
    states = [script.state_after(0), script.state_after(1)]
    for at in range(1, 9):
        for leaves in ("nothing", "all"):
            for without_ledger in (False, True):
                folder = tmp_path / f"{at}-{leaves}-{without_ledger}"
                with contextlib.suppress(OSError, FolderUnusable):
                    log = Log(folder, TINY, disk=FailingDisk(at=at, leaves=leaves))
                    try:
                        play(log, script.steps[:1], State())
                    finally:
                        log.close()
                if without_ledger:
                    take_away(folder, "ledger.db*")
                assert judge(folder, states, go_on=True).wrong == []


@pytest.mark.parametrize("kept", ["ledger.db", "blocks"])
def test_a_log_of_which_nothing_says_which_it_is_is_still_one(tmp_path, kept):
    (tmp_path / kept).mkdir()
    with pytest.raises(FolderUnusable, match=r"there is a log in .* no block says which log this is; mainstem doctor"):
        Folder(tmp_path, LocalDisk()).require()


def test_a_folder_from_before_blocks_were_noted_is_noted_at_its_next_block(folder):
    identity = json.loads((folder / "mainstem.json").read_text())
    assert identity.pop("blocks") is True
    (folder / "mainstem.json").write_text(json.dumps(identity))
    log = Log(folder, TINY)
    play(log, Script(1, 11).steps[10:], Script(1, 11).state_after(10))
    log.close()
    assert json.loads((folder / "mainstem.json").read_text()) == {**identity, "blocks": True}


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


def test_a_writer_keeps_its_folder_though_the_note_of_who_it_is_is_deleted(folder):
    log = Log(folder, TINY)
    (folder / "lock").unlink()
    with pytest.raises(FolderLocked):
        Log(folder, TINY)
    log.close()
    Log(folder, TINY).close()


def test_who_has_the_folder_in_this_process_is_told_so(folder):
    log = Log(folder, TINY)
    with pytest.raises(FolderLocked, match="in this process already"):
        Log(folder, TINY)
    log.close()
