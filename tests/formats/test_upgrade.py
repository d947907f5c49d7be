"""From an older format to the present one: kept as it was, upgraded, the same records whatever happens in between."""

import errno
import json
import logging
import os
import shutil

import pytest

from mainstem.core.errors import FolderUnusable
from mainstem.log.disk import LocalDisk
from mainstem.log.folder import FORMAT
from mainstem.log.ledger.sqlite import SqliteLedgerReader
from mainstem.log.log import Log
from mainstem.testing.disk import DiskLayer, FailingDisk, StrikingDisk
from tests.formats import golden

BACKUP = golden.BACKUP


@pytest.fixture
def folder(tmp_path):
    return golden.unpack(1, tmp_path / "data")


def opened(folder, disk=None):
    return Log(folder, golden.OPTIONS, clock=golden.clock(1), disk=disk)


def require_upgraded(folder, before):
    """Opened now it has all records; beside it is what was there before."""
    log = opened(folder)
    assert golden.content(log) == golden.streams(1)
    log.close()
    assert json.loads((folder / "mainstem.json").read_text())["format"] == FORMAT
    assert golden.files_of(folder / BACKUP) == before
    assert not (folder / f"{BACKUP}.part").exists()


def test_the_folder_is_kept_as_it_was(folder):
    before = golden.files_of(folder)
    require_upgraded(folder, before)
    block = "blocks/0000000000000001.block"
    assert os.path.samefile(folder / block, folder / BACKUP / block)
    # A backup is a data folder like any other: it can be moved away and opened, here by a program that upgrades it.
    shutil.move(folder / BACKUP, folder.with_name("kept"))
    require_upgraded(folder.with_name("kept"), before)


def test_writing_after_the_upgrade_does_not_touch_what_was_kept(folder):
    before = golden.files_of(folder)
    log = opened(folder)
    for sequence in range(200):
        golden.append(log, golden.numbered(1, 0, 55, sequence, 40))
    log.close()
    assert golden.files_of(folder / BACKUP) == before


def test_one_line_says_what_was_done_and_how_to_delete_the_backup(folder, caplog):
    caplog.set_level(logging.WARNING, "mainstem")
    opened(folder).close()
    (line,) = caplog.messages
    assert f"upgraded from format 1 to {FORMAT}" in line
    assert f"folder={folder}" in line
    assert line.endswith(f'command="rm -r {folder / BACKUP}"')
    caplog.clear()
    opened(folder).close()
    assert caplog.messages == []


def test_nothing_of_format_1_is_left_in_the_ledger(folder):
    """An upgraded ledger and one that was made anew from the blocks have the same rows, but for bytes that no row ever
    pointed to: format 1 did not count what was sent twice."""
    log = opened(folder)
    upgraded = rows_of(folder)
    log.close()
    for path in (*folder.glob("ledger.db*"), *folder.glob("snapshots/*")):
        path.unlink()
    log = opened(folder)
    assert {**rows_of(folder), "dead": []} == upgraded
    log.close()


def rows_of(folder):
    reader = SqliteLedgerReader(folder / "ledger.db")
    tables = [name for (name,) in reader._rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    found = {table: sorted(reader._rows(f"SELECT * FROM {table}")) for table in tables}
    found["columns"] = [(table, row[1]) for table in tables for row in reader._rows(f"PRAGMA table_info({table})")]
    found["meta"] = [row for row in found["meta"] if row[0] != "wal_base"]
    reader.close()
    return found


@pytest.mark.parametrize("lost", [["ledger.db*"], ["ledger.db-wal", "ledger.db-shm"], ["ledger.db*", "snapshots/*"]])
def test_the_ledger_is_rebuilt_after_an_upgrade(folder, lost):
    """From the snapshot, which is still of format 1."""
    opened(folder).close()
    for pattern in lost:
        for path in folder.glob(pattern):
            path.unlink()
    log = opened(folder)
    assert golden.content(log) == golden.streams(1)
    assert golden.misremembered(log, 1) == []
    log.close()


def test_a_ledger_that_is_lost_before_the_upgrade_is_made_from_a_snapshot_of_the_old_format(folder, caplog):
    for path in folder.glob("ledger.db*"):
        path.unlink()
    before = golden.files_of(folder)
    caplog.set_level(logging.INFO, "mainstem")
    require_upgraded(folder, before)
    assert "the ledger from a snapshot flush=29" in caplog.text


@pytest.mark.parametrize("change", ["damaged", "gone"])
def test_a_folder_that_does_not_say_its_format_is_upgraded_by_what_its_ledger_says(folder, change):
    identity = folder / "mainstem.json"
    identity.write_text("{}") if change == "damaged" else identity.unlink()
    require_upgraded(folder, golden.files_of(folder))


@pytest.mark.slow("upgrades a folder twice for each of its steps")
def test_a_stop_at_any_step_is_gone_on_from(folder, tmp_path):
    before = golden.files_of(folder)
    disk = StrikingDisk(None, at=0, strike=lambda operation: None)
    shutil.copytree(folder, tmp_path / "count")
    opened(tmp_path / "count", disk).close()
    steps = 1 + max(place for place, call in enumerate(disk.calls) if call.path.name == "mainstem.json")
    assert steps > 12
    for at, call in enumerate(disk.calls[:steps], 1):
        for leaves in ("nothing", "all") if call.kind == "replace" else ("part",):
            clone = tmp_path / f"{at}-{leaves}"
            shutil.copytree(folder, clone)
            with pytest.raises(Stop):
                opened(clone, StrikingDisk(None, at=at, strike=stop, leaves=leaves))
            require_upgraded(clone, before)
            shutil.rmtree(clone)


class Stop(BaseException):
    """As a kill: nobody cleans up after it."""


def stop(operation):
    raise Stop


class NoLinks(DiskLayer):
    """A file system that knows no second names, with so many bytes free."""

    def __init__(self, free=1 << 40):
        super().__init__(LocalDisk())
        self._free = free

    def link(self, source, target):
        return False

    def free_bytes(self, path):
        return self._free


def test_blocks_are_copied_where_they_cannot_be_linked(folder):
    before = golden.files_of(folder)
    opened(folder, NoLinks()).close()
    assert golden.files_of(folder / BACKUP) == before
    block = "blocks/0000000000000001.block"
    assert not os.path.samefile(folder / block, folder / BACKUP / block)


def test_a_file_system_says_that_it_cannot_link(tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert LocalDisk().link(tmp_path / "a", tmp_path / "b") is False


def test_without_room_for_the_backup_nothing_is_changed(folder):
    before = golden.files_of(folder)
    with pytest.raises(FolderUnusable, match=r"takes \d+ bytes, and 1000 are free: make room .* nothing was changed"):
        opened(folder, NoLinks(1_000))
    assert golden.files_of(folder) == before
    assert not list(folder.glob(f"{BACKUP}*"))


@pytest.mark.parametrize("kind", ["create", "write", "replace"])
def test_an_error_of_the_disk_during_the_backup_is_told_and_nothing_is_changed(folder, kind):
    before = golden.files_of(folder)
    with pytest.raises(FolderUnusable, match=rf"{BACKUP} cannot be written: No space left .*nothing was changed"):
        opened(folder, FailingDisk(at=1, error=errno.ENOSPC, kinds=(kind,)))
    assert golden.files_of(folder) == before
    assert not list(folder.glob(f"{BACKUP}*"))
    require_upgraded(folder, before)


@pytest.mark.parametrize(("kind", "at"), [("write", 4), ("replace", 2)])
def test_an_error_of_the_disk_after_the_backup_is_told_and_gone_on_from(folder, kind, at):
    before = golden.files_of(folder)
    disk = FailingDisk(at=at, error=errno.ENOSPC, kinds=(kind,))
    with pytest.raises(FolderUnusable, match=rf"from format 1 to {FORMAT}: No space left .*goes on from {BACKUP}"):
        opened(folder, disk)
    assert disk.calls[-1].path.name.startswith("mainstem.")
    require_upgraded(folder, before)


def test_a_ledger_that_lost_something_to_a_power_cut_after_the_backup_does_not_keep_it_from_going_on(folder):
    """SQLite's files are not synced at commits; the copies of them were."""
    shutil.copytree(folder, folder.with_name("copy"))
    shutil.move(folder.with_name("copy"), folder / BACKUP)
    before = golden.files_of(folder)
    (folder / "ledger.db-wal").write_bytes(b"")
    require_upgraded(folder, before)


def test_a_backup_of_another_state_is_not_taken_for_this_one(folder):
    """Somebody went back to the old program, and wrote; the earlier backup is still there."""
    older = golden.unpack(1, folder / BACKUP)
    (older / "blocks" / "0000000000000008.block").unlink()
    before = golden.files_of(folder)
    with pytest.raises(FolderUnusable, match=r"from an earlier upgrade: .*00000008\.block\..*rm -r"):
        opened(folder)
    assert golden.files_of(folder) == before
    shutil.rmtree(folder / BACKUP)
    require_upgraded(folder, before)
