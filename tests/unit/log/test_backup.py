"""A copy of a log beside its writer, and the log made from it again: nothing missing, torn or unchecked."""

import errno
import json
import os
import shutil
import threading
from pathlib import Path

import msgspec
import pytest

from mainstem.core.checksum import crc32c
from mainstem.core.errors import BackupUnusable, FolderLocked, FolderUnusable, LedgerDamaged, UnknownStream
from mainstem.log import backup as backup_module
from mainstem.log.backup import BackupReport, back_up
from mainstem.log.backup_folder import BackupFolder, Manifest
from mainstem.log.batcher import Submission
from mainstem.log.blocks.local import LocalBlocks
from mainstem.log.disk import LocalDisk
from mainstem.log.doctor import examine
from mainstem.log.flush import Appended, DropEntries, Rejected, ReplaceEntries, Replacement, TrimShard
from mainstem.log.folder import Folder
from mainstem.log.ledger.rules.epochs import EPOCH_STREAM_BITS
from mainstem.log.ledger.rules.replacement import fingerprint
from mainstem.log.ledger.sqlite import LedgerCopy, SqliteLedger, copy_ledger, read_copy
from mainstem.log.log import Log, LogOptions, Waiter
from mainstem.log.restore import restore
from tests.faults.reading import read_all
from tests.faults.script import TINY, Script, State, play
from tests.unit.log.parts import append, append_values, make_batch, make_stream

SMALL = LogOptions(block_bytes=64 << 10)


def value(number: int) -> bytes:
    return b"%06d" % number * 200


def fill(log: Log, stream: int, count: int, shard: int = 0) -> None:
    for number in range(count):
        append_values(log, stream, value(number), shard=shard)


@pytest.fixture
def log(tmp_path):
    """An open log: one stream of two shards, in several blocks."""
    log = Log(tmp_path / "data", SMALL)
    make_stream(log, shards=2)
    fill(log, 1, 150)
    fill(log, 1, 10, shard=1)
    yield log
    log.close()


def contents(path: Path) -> dict[str, list]:
    log = Log(path, SMALL)
    try:
        found = read_all(log)
        assert found.losses == {}
        return found.batches
    finally:
        log.close()


def files(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def manifest_of(path: Path) -> Manifest:
    return BackupFolder(path, LocalDisk()).require_manifest()


# ----------------------------------------------------------------------------------------------------- there and back


def test_a_stopped_log_comes_back_and_goes_on(tmp_path, log):
    log.close()
    report = back_up(tmp_path / "data", tmp_path / "backup")
    restored = restore(tmp_path / "backup", tmp_path / "back")
    assert (restored.log, restored.flush, restored.epoch) == (log.uuid, report.flush, 2)
    assert contents(tmp_path / "back") == contents(tmp_path / "data")
    again = Log(tmp_path / "back", SMALL)
    assert again.epoch == 2
    assert append_values(again, 1, b"next") == 150
    again.close()


def test_an_open_log_is_copied_up_to_its_last_flush(tmp_path, log):
    before = read_all(log).batches
    back_up(tmp_path / "data", tmp_path / "backup")
    append_values(log, 1, b"later")
    restore(tmp_path / "backup", tmp_path / "back")
    assert contents(tmp_path / "back") == before
    assert not (tmp_path / "back" / "restoring").exists()
    assert not (tmp_path / "back.restoring").exists()


def test_an_empty_log(tmp_path):
    Log(tmp_path / "data").close()
    back_up(tmp_path / "data", tmp_path / "backup")
    assert restore(tmp_path / "backup", tmp_path / "back").epoch == 2
    log = Log(tmp_path / "back")
    assert make_stream(log) > 1 << EPOCH_STREAM_BITS
    log.close()


def test_whatever_a_log_has_been_through(tmp_path):
    """A scripted life with several lives of the writer, snapshots, checkpoints, deleted and trimmed streams."""
    script, state = Script(12, 90), State()
    for part in (script.steps[:45], script.steps[45:]):
        log = Log(tmp_path / "data", TINY)
        play(log, part, state)
        log.close()
        back_up(tmp_path / "data", tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(tmp_path / "data")


def test_under_load_every_backup_has_what_was_acknowledged_before_it(tmp_path, log):
    stopping = threading.Event()
    acknowledged = [150]

    def write() -> None:
        while not stopping.is_set():
            acknowledged[0] = append_values(log, 1, value(acknowledged[0])) + 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for turn in range(6):
            before = acknowledged[0]
            back_up(tmp_path / "data", tmp_path / "backup")
            restore(tmp_path / "backup", tmp_path / f"back-{turn}")
            again = Log(tmp_path / f"back-{turn}", SMALL)
            assert again.reader.shard(1, 0).next >= before
            assert read_all(again).losses == {}
            again.close()
    finally:
        stopping.set()
        writer.join()
    everything = read_all(log).batches["orders"][0]
    for turn in range(6):
        (first, _) = contents(tmp_path / f"back-{turn}")["orders"]
        assert first == everything[: len(first)]


def test_trimmed_records_and_compacted_gaps_stay_as_they_are(tmp_path, log):
    entry, following = log.ledger.entries_from(1, 0, 20, 2)
    command = ReplaceEntries(1, 0, entry.base, following.end, 2, fingerprint([entry, following]), ((2, 0),))
    waiter = Waiter()
    log.batcher.submit(Submission((Replacement(command, ()),), waiter.set))
    waiter.wait(log.batcher)
    log.execute(TrimShard(1, 0, 7))
    log.execute(DropEntries(1, 0, 100, 0))
    log.close()
    before = contents(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "back")
    again = Log(tmp_path / "back", SMALL)
    assert read_all(again).batches == before
    assert again.reader.shard(1, 0).start == 7
    assert (20, 0) in [(base, count) for base, count, _ in before["orders"][0]]
    again.close()


def test_dead_blocks_are_left_out_and_forgotten(tmp_path, log):
    log.execute(TrimShard(1, 0, 150))
    log.execute(DropEntries(1, 0, 1000, 0))
    dead = {row.id for row in log.ledger.list_blocks() if row.dead_us}
    assert dead
    back_up(tmp_path / "data", tmp_path / "backup")
    assert dead.isdisjoint(block.number for block in manifest_of(tmp_path / "backup").blocks)
    restore(tmp_path / "backup", tmp_path / "back")
    again = Log(tmp_path / "back", SMALL)
    known = {row.id for row in again.ledger.list_blocks()}
    again.close()
    assert known.isdisjoint(dead)
    assert {f"{block:016d}.block" for block in known} <= set(os.listdir(tmp_path / "back" / "blocks"))


# -------------------------------------------------------------------------------------------------------- incremental


def test_a_second_backup_copies_only_what_is_new(tmp_path, log):
    first = back_up(tmp_path / "data", tmp_path / "backup")
    assert (first.copied_files, first.copied_bytes) == (first.files, first.bytes)
    again = back_up(tmp_path / "data", tmp_path / "backup")
    assert (again.copied_files, again.copied_bytes, again.bytes) == (0, 0, first.bytes)
    append_values(log, 1, b"new")
    third = back_up(tmp_path / "data", tmp_path / "backup")
    # The open block and the ledger.
    assert third.copied_files == third.removed_files == 2
    assert third.copied_bytes < third.bytes / 2
    assert third.flush == first.flush + 1


def test_files_that_the_newest_backup_does_not_need_go(tmp_path, log):
    back_up(tmp_path / "data", tmp_path / "backup")
    log.execute(TrimShard(1, 0, 150))
    log.execute(DropEntries(1, 0, 1000, 0))
    assert back_up(tmp_path / "data", tmp_path / "backup").removed_files > 2
    named = {name for name, _ in manifest_of(tmp_path / "backup").files()} | {"manifest.json"}
    assert set(files(tmp_path / "backup")) == named


def test_a_file_that_was_cut_in_the_backup_is_copied_again(tmp_path, log):
    back_up(tmp_path / "data", tmp_path / "backup")
    block = manifest_of(tmp_path / "backup").blocks[0]
    os.truncate(tmp_path / "backup" / block.name, 100)
    assert back_up(tmp_path / "data", tmp_path / "backup").copied_files == 1
    restore(tmp_path / "backup", tmp_path / "back")


def test_rot_in_the_backup_is_found_by_reading_it(tmp_path, log):
    back_up(tmp_path / "data", tmp_path / "backup")
    manifest = manifest_of(tmp_path / "backup")
    for name in (manifest.ledger_name, manifest.blocks[0].name, manifest.blocks[-1].name):
        path = tmp_path / "backup" / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    assert back_up(tmp_path / "data", tmp_path / "backup").copied_files == 0
    assert back_up(tmp_path / "data", tmp_path / "backup", verify=True).copied_files == 3
    restore(tmp_path / "backup", tmp_path / "back")


def test_a_block_that_only_the_backup_still_has_is_not_missed(tmp_path, log):
    back_up(tmp_path / "data", tmp_path / "backup")
    log.close()
    (tmp_path / "data" / "blocks" / f"{1:016d}.block").unlink()
    back_up(tmp_path / "data", tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "back")
    assert len(contents(tmp_path / "back")["orders"][0]) == 150


class Cut(Exception):
    """The process ends here."""


class CutDisk(LocalDisk):
    """Ends at the n-th file that gets its name."""

    def __init__(self, names: int) -> None:
        self.left = names

    def replace(self, source: Path, target: Path) -> None:
        self.left -= 1
        if self.left < 0:
            raise Cut
        super().replace(source, target)


def test_a_backup_that_was_cut_short_leaves_the_one_before_and_is_gone_on_with(tmp_path, log):
    back_up(tmp_path / "data", tmp_path / "backup")
    before = read_all(log).batches
    fill(log, 1, 200)
    names = 0
    while True:
        shutil.copytree(tmp_path / "backup", tmp_path / "cut")
        try:
            back_up(tmp_path / "data", tmp_path / "cut", disk=CutDisk(names))
        except Cut:
            restore(tmp_path / "cut", tmp_path / "back")
            assert contents(tmp_path / "back") == before
            report = back_up(tmp_path / "data", tmp_path / "cut")
            # What had its name already is not copied again, but for the newest block and the ledger.
            assert report.copied_files <= max(2, _needed_files(tmp_path) - names)
            names += 1
            for name in ("cut", "back"):
                shutil.rmtree(tmp_path / name)
        else:
            break
    assert names > 4


def _needed_files(path: Path) -> int:
    old, new = manifest_of(path / "backup"), manifest_of(path / "cut")
    return len(set(new.files()) - set(old.files()))


def test_a_first_backup_that_was_cut_short(tmp_path, log):
    with pytest.raises(Cut):
        back_up(tmp_path / "data", tmp_path / "backup", disk=CutDisk(2))
    with pytest.raises(BackupUnusable, match=r"manifest\.json"):
        restore(tmp_path / "backup", tmp_path / "back")
    report = back_up(tmp_path / "data", tmp_path / "backup")
    assert report.copied_files == report.files - 2
    restore(tmp_path / "backup", tmp_path / "back")


def test_what_was_left_over_is_used_only_if_it_is_what_its_name_says(tmp_path, log):
    with pytest.raises(Cut):
        back_up(tmp_path / "data", tmp_path / "backup", disk=CutDisk(2))
    first, _ = sorted((tmp_path / "backup" / "blocks").glob("*.block"))
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    report = back_up(tmp_path / "data", tmp_path / "backup")
    assert report.copied_files == report.files - 1
    restore(tmp_path / "backup", tmp_path / "back")


def test_a_block_that_goes_away_under_the_copy(tmp_path, log, monkeypatch):
    """It is dead by then: the next look at the ledger does not ask for it."""
    gone: list[int] = []

    def slow(source: Path, target: Path) -> LedgerCopy:
        made = copy_ledger(source, target)
        if not gone:
            log.execute(TrimShard(1, 0, 150))
            log.execute(DropEntries(1, 0, 1000, 0))
            gone.extend(row.id for row in log.ledger.list_blocks() if row.dead_us)
            for block in gone:
                (tmp_path / "data" / "blocks" / f"{block:016d}.block").unlink()
        return made

    monkeypatch.setattr(backup_module, "copy_ledger", slow)
    # Nothing is there yet when the ledger is copied.
    monkeypatch.setattr(backup_module._Backup, "_copy_sealed", lambda self, rows: None)
    back_up(tmp_path / "data", tmp_path / "backup")
    assert set(gone).isdisjoint(block.number for block in manifest_of(tmp_path / "backup").blocks)
    restore(tmp_path / "backup", tmp_path / "back")


def test_a_folder_that_is_exchanged_under_the_copy(tmp_path, log, monkeypatch):
    back_up(tmp_path / "data", tmp_path / "backup")
    log.close()

    def exchange(self: object, rows: object) -> None:
        shutil.rmtree(tmp_path / "data")
        restore(tmp_path / "backup", tmp_path / "data")

    monkeypatch.setattr(backup_module._Backup, "_copy_sealed", exchange)
    with pytest.raises(FolderUnusable, match="exchanged under the backup"):
        back_up(tmp_path / "data", tmp_path / "other")
    assert not (tmp_path / "other" / "manifest.json").exists()


# ------------------------------------------------------------------------------------------------- what is not copied


def test_a_log_that_lacks_a_block_is_refused_by_its_name(tmp_path, log):
    log.close()
    (tmp_path / "data" / "blocks" / f"{2:016d}.block").unlink()
    with pytest.raises(FolderUnusable, match=f"blocks/{2:016d}.block is missing"):
        back_up(tmp_path / "data", tmp_path / "backup")
    assert not (tmp_path / "backup" / "manifest.json").exists()


def test_a_log_with_a_short_block_is_refused_by_its_name(tmp_path, log):
    log.close()
    os.truncate(tmp_path / "data" / "blocks" / f"{1:016d}.block", 1000)
    with pytest.raises(FolderUnusable, match=f"blocks/{1:016d}.block ends at byte 1000"):
        back_up(tmp_path / "data", tmp_path / "backup")


def test_a_ledger_that_lags_behind_the_blocks_is_refused(tmp_path, log, monkeypatch):
    """The machine lost power: SQLite lost commits that the blocks still hold, and nobody has replayed them yet."""
    monkeypatch.setattr(backup_module, "_APPLY_SECONDS_MAX", 0.05)
    back_up(tmp_path / "data", tmp_path / "backup")
    old = read_copy(next((tmp_path / "backup").glob("ledger-*.db")))
    append_values(log, 1, b"after")
    log.close()
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (tmp_path / "data" / name).unlink()
    shutil.copy(next((tmp_path / "backup").glob("ledger-*.db")), tmp_path / "data" / "ledger.db")
    with pytest.raises(FolderUnusable, match=f"hold flush {old.applied.number + 1}.*mainstem serve"):
        back_up(tmp_path / "data", tmp_path / "other")
    Log(tmp_path / "data", SMALL).close()
    back_up(tmp_path / "data", tmp_path / "other")


@pytest.mark.parametrize("running", [True, False])
def test_a_bit_flipped_in_the_wal_does_not_get_into_a_backup(tmp_path, log, monkeypatch, running):
    """SQLite itself would not notice under a running log, and takes it for the end of the WAL under a stopped one."""
    monkeypatch.setattr(backup_module, "_APPLY_SECONDS_MAX", 0.05)
    if not running:
        log.close()
    path = tmp_path / "data" / "ledger.db-wal"
    data = bytearray(path.read_bytes())
    data[5_000] ^= 1
    path.write_bytes(data)
    with pytest.raises(FolderUnusable, match=r"ledger\.db-wal is damaged" if running else "ledger ends before it"):
        back_up(tmp_path / "data", tmp_path / "backup")


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("part", ["payload", "header of a frame", "header of the block", "footer"])
def test_a_damaged_block_is_not_copied_and_the_backup_before_stays(tmp_path, log, part):
    back_up(tmp_path / "data", tmp_path / "backup")
    fill(log, 1, 150)
    before = files(tmp_path / "backup")
    have = {block.number for block in manifest_of(tmp_path / "backup").blocks}
    new = next(row for row in log.ledger.list_blocks() if row.state == "sealed" and row.id not in have)
    entry = next(each for each in log.ledger.entries_from(1, 0, 150, 1_000) if each.block == new.id)
    at = {
        "payload": entry.position + entry.length - 20,
        "header of a frame": entry.position + 30,
        "header of the block": 20,
        "footer": new.bytes - 30,
    }[part]
    damaged = tmp_path / "data" / "blocks" / f"{new.id:016d}.block"
    flip(damaged, at)
    with pytest.raises(
        FolderUnusable, match=rf"{damaged.name} is damaged at byte \d+ .*mainstem doctor --deep"
    ) as error:
        back_up(tmp_path / "data", tmp_path / "backup")
    assert at - 4096 <= int(str(error.value).split("at byte ")[1].split()[0]) <= at
    # What was copied before the damage was met is left for the next run; nothing that the backup has is touched.
    assert {name: files(tmp_path / "backup")[name] for name in before} == before
    assert not list((tmp_path / "backup" / "blocks").glob("*.part"))
    restore(tmp_path / "backup", tmp_path / "back")
    report = back_up(tmp_path / "data", tmp_path / "backup", even_damaged=True)
    assert report.damaged == (f"blocks/{damaged.name}",)
    assert restore(tmp_path / "backup", tmp_path / "again").flush == report.flush


def test_a_block_that_was_damaged_after_its_backup_is_still_good_there(tmp_path, log):
    back_up(tmp_path / "data", tmp_path / "backup")
    entry = log.ledger.entries_from(1, 0, 0, 1)[0]
    flip(tmp_path / "data" / "blocks" / f"{entry.block:016d}.block", entry.position + entry.length - 20)
    fill(log, 1, 150)
    assert back_up(tmp_path / "data", tmp_path / "backup").damaged == ()
    log.close()
    restore(tmp_path / "backup", tmp_path / "back")
    assert len(contents(tmp_path / "back")["orders"][0]) == 300


def test_a_damaged_page_of_the_ledger_does_not_get_into_a_backup(tmp_path, log):
    log.close()
    ledger = SqliteLedger(tmp_path / "data" / "ledger.db")
    ledger.checkpoint()
    ledger.close()
    for suffix in ("-wal", "-shm"):
        (tmp_path / "data" / f"ledger.db{suffix}").unlink()
    path = tmp_path / "data" / "ledger.db"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(LedgerDamaged):
        back_up(tmp_path / "data", tmp_path / "backup")


@pytest.mark.parametrize("missing", ["mainstem.json", "ledger.db"])
def test_what_is_no_data_folder_is_refused(tmp_path, log, missing):
    log.close()
    (tmp_path / "data" / missing).unlink()
    with pytest.raises(FolderUnusable, match=missing.replace(".", r"\.")):
        back_up(tmp_path / "data", tmp_path / "backup")


def test_places_that_cannot_be_a_backup(tmp_path, log):
    for place in (tmp_path / "data", tmp_path / "data" / "blocks", tmp_path / "data" / "new", tmp_path):
        with pytest.raises(BackupUnusable, match="lie in each other"):
            back_up(tmp_path / "data", place)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(BackupUnusable, match=r"thesis\.txt"):
        back_up(tmp_path / "data", tmp_path / "mine")
    (tmp_path / "odd" / "blocks").mkdir(parents=True)
    (tmp_path / "odd" / "blocks" / "photo.jpg").write_text("x")
    with pytest.raises(BackupUnusable, match="blocks"):
        back_up(tmp_path / "data", tmp_path / "odd")


def test_a_full_disk_is_noticed_before_anything_is_copied(tmp_path, log, monkeypatch):
    monkeypatch.setattr(LocalDisk, "free_bytes", lambda self, path: 1_000)
    with pytest.raises(BackupUnusable, match=r"1\.0 kB free"):
        back_up(tmp_path / "data", tmp_path / "backup")
    assert list((tmp_path / "backup" / "blocks").iterdir()) == []
    monkeypatch.undo()
    back_up(tmp_path / "data", tmp_path / "backup")
    monkeypatch.setattr(LocalDisk, "free_bytes", lambda self, path: 1_000)
    with pytest.raises(BackupUnusable, match=r"1\.0 kB free"):
        restore(tmp_path / "backup", tmp_path / "back")
    assert not (tmp_path / "back.restoring").exists()


def test_the_backup_of_another_log_is_kept(tmp_path, log):
    other = Log(tmp_path / "other")
    make_stream(other)
    other.close()
    back_up(tmp_path / "other", tmp_path / "backup")
    before = files(tmp_path / "backup")
    with pytest.raises(BackupUnusable, match="another folder"):
        back_up(tmp_path / "data", tmp_path / "backup")
    assert files(tmp_path / "backup") == before


def test_an_older_copy_of_the_log_does_not_replace_a_newer_backup(tmp_path, log):
    back_up(tmp_path / "data", tmp_path / "early")
    restore(tmp_path / "early", tmp_path / "back")
    back_up(tmp_path / "back", tmp_path / "backup")
    with pytest.raises(BackupUnusable, match=r"epoch 2.*older copy"):
        back_up(tmp_path / "data", tmp_path / "backup")
    fill(log, 1, 3)
    back_up(tmp_path / "data", tmp_path / "latest")
    restore(tmp_path / "latest", tmp_path / "newer")
    back_up(tmp_path / "newer", tmp_path / "latest")
    with pytest.raises(BackupUnusable, match="older copy"):
        back_up(tmp_path / "back", tmp_path / "latest")


def test_blocks_of_another_life_are_not_taken_for_ours(tmp_path, log):
    """After a restore, numbers of blocks are given again: a backup folder that has them of before gets the new ones."""
    back_up(tmp_path / "data", tmp_path / "early")
    fill(log, 1, 120)
    back_up(tmp_path / "data", tmp_path / "backup")
    restore(tmp_path / "early", tmp_path / "back")
    again = Log(tmp_path / "back", SMALL)
    for number in range(120):
        append_values(again, 1, value(number + 1_000))
    again.close()
    back_up(tmp_path / "back", tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "third")
    assert contents(tmp_path / "third") == contents(tmp_path / "back")


def test_two_backups_into_one_folder_at_a_time_are_refused(tmp_path, log):
    back_up(tmp_path / "data", tmp_path / "backup")
    store = BackupFolder(tmp_path / "backup", LocalDisk())
    with store.locked(writes=True), pytest.raises(BackupUnusable, match="in use"):
        back_up(tmp_path / "data", tmp_path / "backup")
    with store.locked(writes=False):
        with pytest.raises(BackupUnusable, match="in use"):
            back_up(tmp_path / "data", tmp_path / "backup")
        restore(tmp_path / "backup", tmp_path / "back")


def test_a_backup_is_not_served_and_not_touched(tmp_path, log):
    back_up(tmp_path / "data", tmp_path / "backup")
    before = files(tmp_path / "backup")
    for use in (Log, examine, lambda path: Folder(path, LocalDisk()).require()):
        with pytest.raises(FolderUnusable, match=r"is a backup, not a data folder; .* mainstem restore"):
            use(tmp_path / "backup")
    assert files(tmp_path / "backup") == before


def test_a_data_folder_is_no_backup(tmp_path, log):
    """It is locked by the process that writes it, which is neither a backup nor a restore."""
    with pytest.raises(BackupUnusable, match=r"is a data folder, not a backup.*mainstem backup DIR --data"):
        restore(tmp_path / "data", tmp_path / "back")


# -------------------------------------------------------------------------------------------------- damage of a backup


@pytest.fixture
def backup(tmp_path, log) -> Path:
    back_up(tmp_path / "data", tmp_path / "backup")
    return tmp_path / "backup"


def damages(backup: Path) -> list[str]:
    return sorted(files(backup))


@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "removed", "link", "pipe", "folder"])
def test_a_damaged_file_is_named_and_nothing_is_restored(backup, tmp_path, damage):
    for name in damages(backup):
        path = backup / name
        whole = path.read_bytes()
        path.unlink()
        if damage == "flipped":
            path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 4]))
        elif damage == "cut":
            path.write_bytes(whole[:-1])
        elif damage == "longer":
            path.write_bytes(whole + b" ")
        elif damage == "link":
            (tmp_path / "elsewhere").write_bytes(whole)
            path.symlink_to(tmp_path / "elsewhere")
        elif damage == "pipe":
            os.mkfifo(path)
        elif damage == "folder":
            path.mkdir()
        with pytest.raises(BackupUnusable, match=path.name.replace(".", r"\.")):
            restore(backup, tmp_path / "back")
        assert not (tmp_path / "back").exists()
        path.rmdir() if damage == "folder" else path.unlink(missing_ok=True)
        path.write_bytes(whole)
    restore(backup, tmp_path / "back")


def test_a_linked_folder_of_blocks_is_refused(backup, tmp_path):
    (backup / "blocks").rename(tmp_path / "elsewhere")
    (backup / "blocks").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BackupUnusable, match="no links"):
        restore(backup, tmp_path / "back")
    with pytest.raises(BackupUnusable, match="no links"):
        back_up(tmp_path / "data", backup)


def rewritten(backup: Path, **changes) -> None:
    """A manifest that somebody made to deceive: other values under a checksum that fits."""
    content = json.loads((backup / "manifest.json").read_bytes())["manifest"] | changes
    inner = msgspec.json.format(msgspec.json.encode(content), indent=1)
    sealed = b'{"crc32c":"%08x","manifest":%s}\n' % (crc32c(inner), inner)
    (backup / "manifest.json").write_bytes(sealed)


@pytest.mark.parametrize(
    "changes",
    [
        {"files": ["../../etc/passwd"]},
        {"log": "../" * 10 + "ab"},
        {"log": "g" * 32},
        {"epoch": 0},
        {"epoch": 1 << 40},
        {"flush": -1},
        {"flush": 10**17},
        {"ledger": {"bytes": 1, "crc32c": 1 << 32}},
        {"ledger": {"bytes": -1, "crc32c": 1}},
        {"ledger": {"bytes": 1, "crc32c": 1, "name": "/etc/passwd"}},
        {"blocks": [{"number": "../x", "bytes": 1, "crc32c": 1, "created_us": 1, "writer_epoch": 1}]},
        {"blocks": [{"number": -1, "bytes": 1, "crc32c": 1, "created_us": 1, "writer_epoch": 1}]},
        {"blocks": [{"number": 1, "bytes": 1, "crc32c": 1, "created_us": 1, "writer_epoch": 1}] * 2},
        {"format": 2},
        {"format": "1"},
        {"program": "x" * 1000},
    ],
)
def test_a_hostile_manifest_is_refused(backup, tmp_path, changes):
    rewritten(backup, **changes)
    with pytest.raises(BackupUnusable, match=r"manifest\.json"):
        restore(backup, tmp_path / "back")
    with pytest.raises(BackupUnusable, match=r"manifest\.json"):
        back_up(tmp_path / "data", backup)


def test_a_manifest_that_promises_too_much_is_not_believed(backup, tmp_path):
    """Sizes are compared with the files before anything is read or allocated."""
    blocks = msgspec.to_builtins(manifest_of(backup).blocks)
    rewritten(backup, blocks=[{**blocks[0], "bytes": (1 << 63) - 1}, *blocks[1:]])
    with pytest.raises(BackupUnusable, match=f"{1:016d}-"):
        restore(backup, tmp_path / "back")


def test_a_manifest_and_a_ledger_that_do_not_fit_are_refused(backup, tmp_path):
    manifest = manifest_of(backup)
    rewritten(backup, epoch=manifest.epoch + 3)
    with pytest.raises(BackupUnusable, match="ledger of another backup"):
        restore(backup, tmp_path / "back")
    rewritten(backup, epoch=manifest.epoch, blocks=msgspec.to_builtins(manifest.blocks[1:]))
    with pytest.raises(BackupUnusable, match="lacks block 1"):
        restore(backup, tmp_path / "back")


def test_a_huge_manifest_is_not_read(backup, tmp_path):
    os.truncate(backup / "manifest.json", 1 << 40)
    with pytest.raises(BackupUnusable, match=r"manifest\.json"):
        restore(backup, tmp_path / "back")


# ----------------------------------------------------------------------------------------------------------- restoring


def test_where_something_is_nothing_is_restored(backup, tmp_path):
    (tmp_path / "back").mkdir()
    restore(backup, tmp_path / "back")
    with pytest.raises(BackupUnusable, match="not empty"):
        restore(backup, tmp_path / "back")
    (tmp_path / "file").write_text("x")
    with pytest.raises(BackupUnusable, match="not empty"):
        restore(backup, tmp_path / "file")
    for place in (backup, backup / "back", tmp_path):
        with pytest.raises(BackupUnusable):
            restore(backup, place)
    with pytest.raises(BackupUnusable, match="no backup"):
        restore(tmp_path / "nowhere", tmp_path / "new")


def test_a_restore_that_was_cut_short_leaves_nothing_under_the_name(backup, tmp_path):
    names = 0
    while True:
        try:
            restore(backup, tmp_path / "back", disk=CutDisk(names))
        except Cut:
            assert not (tmp_path / "back").exists()
            names += 1
        else:
            break
    assert names > 4
    assert not (tmp_path / "back.restoring").exists()


def test_what_a_failed_restore_cannot_remove_is_named(backup, tmp_path, monkeypatch):
    block = manifest_of(backup).blocks[0]
    (backup / block.name).write_bytes(bytes(block.bytes))
    with pytest.raises(BackupUnusable, match="not what was written"):
        restore(backup, tmp_path / "back")
    assert not (tmp_path / "back.restoring").exists()
    monkeypatch.setattr(shutil, "rmtree", lambda path, ignore_errors: None)
    with pytest.raises(BackupUnusable, match="not what was written") as error:
        restore(backup, tmp_path / "back")
    assert "back.restoring could not be removed" in error.value.__notes__[0]


def test_a_folder_that_no_restore_made_is_left_alone(backup, tmp_path):
    (tmp_path / "back.restoring").mkdir()
    (tmp_path / "back.restoring" / "mine").write_text("x")
    with pytest.raises(BackupUnusable, match="in the way"):
        restore(backup, tmp_path / "back")
    assert (tmp_path / "back.restoring" / "mine").exists()


def test_two_restores_to_one_place_at_a_time_are_refused(backup, tmp_path):
    def begin_another(done: int, total: int) -> None:
        with pytest.raises(BackupUnusable, match="another restore is at work"):
            restore(backup, tmp_path / "back")

    restore(backup, tmp_path / "back", begin_another)
    assert len(contents(tmp_path / "back")["orders"][0]) == 150


def test_what_cannot_be_read_is_named(backup, tmp_path, monkeypatch):
    """A bad sector: under a file of the backup, and under a block of the log."""
    read = os.read

    def bad(descriptor: int, size: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".block"):
            raise OSError(errno.EIO, "Input/output error")
        return read(descriptor, size)

    monkeypatch.setattr(os, "read", bad)
    with pytest.raises(BackupUnusable, match=f"{1:016d}-.*block cannot be read: Input/output error"):
        restore(backup, tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert not (tmp_path / "back.restoring").exists()
    monkeypatch.undo()

    def bad_block(self: LocalBlocks, block: int, position: int, length: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(LocalBlocks, "read", bad_block)
    with pytest.raises(FolderUnusable, match=f"blocks/{1:016d}.block cannot be read at byte 0"):
        back_up(tmp_path / "data", tmp_path / "other")


def test_epochs_and_where_the_shards_ended(backup, tmp_path):
    restore(backup, tmp_path / "second")
    log = Log(tmp_path / "second", SMALL)
    append_values(log, 1, b"of epoch 2")
    append_values(log, 1, b"of epoch 2", shard=1)
    back_up(tmp_path / "second", backup)
    log.close()
    restore(backup, tmp_path / "third")
    log = Log(tmp_path / "third", SMALL)
    assert log.epoch == 3
    assert log.ledger.restored() == {1: {(1, 0): 150, (1, 1): 10}, 2: {(1, 0): 151, (1, 1): 11}}
    log.close()


@pytest.mark.parametrize("keep_snapshot", [True, False])
def test_a_ledger_that_is_lost_after_a_restore_comes_to_the_same_epoch(backup, tmp_path, keep_snapshot):
    restore(backup, tmp_path / "back")
    log = Log(tmp_path / "back", SMALL)
    append_values(log, 1, b"of epoch 2")
    before, restored = read_all(log).batches, log.ledger.restored()
    log.close()
    for path in (tmp_path / "back").glob("ledger.db*"):
        path.unlink()
    if not keep_snapshot:
        for path in (tmp_path / "back" / "snapshots").iterdir():
            path.unlink()
    again = Log(tmp_path / "back", SMALL)
    assert again.epoch == 2
    assert again.ledger.restored() == restored
    assert read_all(again).batches == before
    again.close()


def test_ids_of_streams_that_were_created_after_the_backup_are_not_given_again(backup, tmp_path, log):
    lost = make_stream(log, "lost")
    restore(backup, tmp_path / "back")
    again = Log(tmp_path / "back", SMALL)
    assert make_stream(again, "new") > lost
    (refused,) = append(again, make_batch([b"x"], stream=lost))
    assert isinstance(refused, Rejected)
    assert isinstance(refused.error, UnknownStream)
    again.close()
    again = Log(tmp_path / "back", SMALL)
    assert make_stream(again, "newer") > lost + 1
    again.close()


def test_repeated_sends_are_recognised_after_a_restore(tmp_path):
    log = Log(tmp_path / "data")
    batch = make_batch([b"1"], stream=make_stream(log), producer=9, sequence=0)
    append(log, batch)
    back_up(tmp_path / "data", tmp_path / "backup")
    log.close()
    restore(tmp_path / "backup", tmp_path / "back")
    again = Log(tmp_path / "back")
    assert append(again, batch) == [Appended(0, duplicate=True)]
    again.close()


def test_progress_and_reports(tmp_path, log):
    told: list[tuple[int, int]] = []
    report = back_up(tmp_path / "data", tmp_path / "backup", lambda done, total: told.append((done, total)))
    assert isinstance(report, BackupReport)
    assert told[-1][0] == report.copied_bytes
    assert all(done <= total for done, total in told)
    told.clear()
    restore(tmp_path / "backup", tmp_path / "back", lambda done, total: told.append((done, total)))
    assert told[-1] == (report.bytes, report.bytes)


def test_a_log_that_is_open_stays_locked_after_a_backup(tmp_path, log):
    """To close a file takes away the locks that a process has on it: a backup leaves SQLite's files to SQLite."""
    back_up(tmp_path / "data", tmp_path / "backup")
    with pytest.raises(FolderLocked):
        Log(tmp_path / "data")
    append_values(log, 1, b"still")
