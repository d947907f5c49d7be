"""The doctor: silent about a healthy folder, exact about every fault, and it leaves no trace."""

import dataclasses
import hashlib
import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.core.clock import SystemClock
from mainstem.core.errors import FolderUnusable
from mainstem.log.disk import LocalFile
from mainstem.log.doctor import Report, examine
from mainstem.log.finding import Finding, Severity
from mainstem.log.flush import DeleteStream, TrimShard
from mainstem.log.frame import BLOCK_HEADER_BYTES, BlockHeader, FrameHeader, FrameKind, parse_header
from mainstem.log.ledger.sqlite import SqliteLedger
from mainstem.log.log import Log, LogOptions, Waiter
from mainstem.log.rebuild import rebuild
from mainstem.log.surroundings import Surroundings
from tests.faults.folders import FolderImage
from tests.faults.script import TINY
from tests.unit.log.parts import append_values, make_batch, make_stream

ROOMY = Surroundings(500 << 30, 1000 << 30, "ext4", is_temporary=False, writer=None)
NAMES = [f"{number:016d}.block" for number in range(10)]


class Hasty(SystemClock):
    """Does not wait before it looks again."""

    def sleep(self, seconds: float) -> None:
        pass


def look(path: Path, *, deep: bool = True, surroundings: Surroundings = ROOMY) -> Report:
    return examine(path, deep=deep, clock=Hasty(), surroundings=surroundings)


def told(path: Path, *, deep: bool = True, surroundings: Surroundings = ROOMY) -> list[Finding]:
    """Everything but the note about space, which is always there."""
    return [finding for finding in look(path, deep=deep, surroundings=surroundings).findings if finding.code != "space"]


def codes(path: Path, **options) -> set[str]:
    return {finding.code for finding in told(path, **options)}


def only(path: Path, code: str, **options) -> Finding:
    found = told(path, **options)
    assert [finding.code for finding in found] == [code], found
    assert found[0].command
    return found[0]


def fill(path: Path, *, values: int = 60, options: LogOptions = TINY) -> Log:
    """A log of several blocks with two streams, one of them trimmed, and a third that was deleted."""
    log = Log(path, options)
    first, second, third = make_stream(log, "orders", 2), make_stream(log, "clicks"), make_stream(log, "gone")
    for number in range(values):
        append_values(log, first, b"%d " % number * 500, b"more", shard=number % 2)
        append_values(log, second, b"%d" % number)
        append_values(log, third, b"%d" % number)
    log.execute(TrimShard(second, 0, values // 2))
    log.execute(DeleteStream(third, 1))
    log._maintenance.close()
    return log


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> FolderImage:
    path = tmp_path_factory.mktemp("doctor") / "data"
    fill(path).close()
    return FolderImage.take(path)


@pytest.fixture
def data(tmp_path, image) -> Path:
    image.put(tmp_path / "data")
    return tmp_path / "data"


def traces(path: Path) -> dict[str, tuple[str, int, int]]:
    return {
        str(found): (
            hashlib.sha256(found.read_bytes()).hexdigest() if found.is_file() else "",
            found.stat().st_mtime_ns,
            found.stat().st_ino,
        )
        for found in (path, *path.rglob("*"))
    }


def block(path: Path, number: int) -> Path:
    return path / "blocks" / NAMES[number]


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def frames(path: Path, number: int) -> Iterator[FrameHeader]:
    content = block(path, number).read_bytes()
    at = BLOCK_HEADER_BYTES
    while at < len(content):
        header = parse_header(content, at, at, number)
        yield header
        at += header.total_len


def frame_of(path: Path, number: int, kind: FrameKind, stream: int = 0) -> FrameHeader:
    return next(found for found in frames(path, number) if found.kind == kind and found.stream in (stream, 0))


def change_ledger(path: Path, sql: str) -> None:
    """Rows that no flush made, on pages with valid checksums."""
    ledger = SqliteLedger(path / "ledger.db")
    ledger._db.execute(sql)
    assert ledger.checkpoint()
    ledger.close()


# Healthy folders.


@pytest.mark.parametrize("deep", [False, True])
def test_a_healthy_folder_has_no_finding_and_is_left_as_it_is(data, deep):
    before = traces(data)
    assert told(data, deep=deep) == []
    assert traces(data) == before


def test_what_is_counted(data):
    report = look(data)
    assert (report.streams, report.worst) == (2, Severity.NOTE)
    assert report.blocks == len(list((data / "blocks").iterdir())) > 2
    assert report.checked_bytes == report.block_bytes == sum(p.stat().st_size for p in (data / "blocks").iterdir())
    assert 0 < report.live_bytes < report.block_bytes
    assert look(data, deep=False).checked_bytes < report.checked_bytes


def test_a_log_that_was_just_begun(tmp_path):
    log = Log(tmp_path / "data")
    assert codes(tmp_path / "data") == set()
    log.close()
    assert codes(tmp_path / "data") == set()


def test_beside_the_writer_in_this_process(tmp_path):
    log = fill(tmp_path / "data")
    writer = dataclasses.replace(ROOMY, writer=os.getpid())
    assert only(tmp_path / "data", "writer", surroundings=writer).severity == Severity.NOTE
    log.close()


def test_who_writes_is_found(tmp_path):
    log = Log(tmp_path / "data")
    assert Surroundings.of(tmp_path / "data").writer == os.getpid()
    log.close()
    assert Surroundings.of(tmp_path / "data").writer is None


@pytest.mark.parametrize("names", [["ledger.db-shm"], ["ledger.db-wal"], ["ledger.db-wal", "ledger.db-shm"]])
def test_files_that_sqlite_would_make_anew_stay_missing(data, names):
    for name in names:
        (data / name).unlink()
    before = traces(data)
    found = codes(data)
    assert traces(data) == before
    # Without its WAL the ledger lacks what was not checkpointed: the next start knows what to do.
    assert found <= {"flushes-to-apply", "ledger-outdated"}


def test_no_folder_is_refused(tmp_path):
    with pytest.raises(FolderUnusable, match="no log in"):
        look(tmp_path)


def test_a_killed_writer_leaves_a_healthy_folder(tmp_path):
    log = fill(tmp_path / "data")
    shutil.copytree(tmp_path / "data", tmp_path / "clone")
    log.close()
    assert codes(tmp_path / "clone") <= {"flushes-to-apply"}


def test_an_unfinished_flush_at_the_end_is_no_damage(tmp_path):
    log = fill(tmp_path / "data")
    shutil.copytree(tmp_path / "data", tmp_path / "clone")
    log.close()
    newest = max((tmp_path / "clone" / "blocks").iterdir())
    newest.write_bytes(newest.read_bytes() + newest.read_bytes()[-300:-100])
    assert codes(tmp_path / "clone") <= {"flushes-to-apply"}
    # Not in the middle of the log either, when another life went on.
    log = Log(tmp_path / "clone", TINY)
    make_stream(log, "later")
    log.close()
    assert codes(tmp_path / "clone") == set()


# The folder.


def test_identity_damaged_and_missing(data):
    flip(data / "mainstem.json", 20)
    assert only(data, "identity-damaged").severity == Severity.WARNING
    (data / "mainstem.json").unlink()
    assert only(data, "identity-missing").severity == Severity.WARNING
    shutil.rmtree(data / "blocks")
    (data / "blocks").mkdir()
    assert "identity-missing" in codes(data)
    assert look(data).worst == Severity.DAMAGE


def test_a_newer_format(data):
    from mainstem.log.folder import _identity_check

    (data / "mainstem.json").write_text(
        '{{"format": 9, "uuid": "{}", "check": "{}"}}'.format("ab" * 16, _identity_check(9, "ab" * 16))
    )
    assert "format-newer" in codes(data)


def test_files_that_do_not_belong_there(data):
    (data / "damaged-1").mkdir()
    (data / "ledger-rebuilt.db").touch()
    (data / "snapshots" / "ledger-0000000000000009.part").touch()
    (data / "blocks" / "notes.txt").touch()
    found = {finding.file: finding for finding in told(data)}
    assert {file: finding.code for file, finding in found.items()} == {
        "damaged-1": "left-over",
        "ledger-rebuilt.db": "left-over",
        "snapshots/ledger-0000000000000009.part": "left-over",
        "blocks/notes.txt": "stray-file",
    }
    assert look(data).worst == Severity.NOTE
    # A writer may be about to rename what it has just begun.
    writer = dataclasses.replace(ROOMY, writer=1)
    assert {finding.code for finding in told(data, surroundings=writer)} == {"writer", "stray-file"}


# The ledger.


def test_ledger_missing(data):
    (data / "ledger.db").unlink()
    assert "ledger-missing" in codes(data)
    assert look(data).worst == Severity.DAMAGE


def test_a_flip_in_the_ledger(data):
    # Pages that are also in the WAL are read from there.
    change_ledger(data, "SELECT 1")
    (data / "ledger.db-wal").unlink()
    flip(data / "ledger.db", 4096 + 2000)
    assert only(data, "ledger-damaged").command == f"mainstem doctor --rebuild --data {data}"


def test_a_ledger_without_page_checksums(data):
    flip(data / "ledger.db", 20)
    assert "ledger-damaged" in codes(data)


def test_no_ledger_at_all_in_the_file(data):
    (data / "ledger.db").write_bytes(b"not a database" * 1000)
    assert "ledger-damaged" in codes(data)


def test_a_flip_in_the_wal(data):
    flip(data / "ledger.db-wal", 32 + 24 + 100)
    found = {finding.code: finding for finding in told(data)}
    assert found["wal-damaged"].position == 32
    assert found["wal-damaged"].severity == Severity.DAMAGE


def test_an_older_ledger(tmp_path):
    log = fill(tmp_path / "data", values=10)
    log.close()
    older = (tmp_path / "data" / "ledger.db").read_bytes()
    log = Log(tmp_path / "data", TINY)
    for number in range(200):
        append_values(log, 1, b"%d" % number * 100)
    log.close()
    assert codes(tmp_path / "data") == set()
    (tmp_path / "data" / "ledger.db").write_bytes(older)
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (tmp_path / "data" / name).unlink()
    found = {finding.code: finding for finding in told(tmp_path / "data")}
    assert found["ledger-outdated"].severity == Severity.WARNING


def test_the_ledger_of_another_log(data, tmp_path):
    fill(tmp_path / "other", values=3).close()
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        shutil.copy(tmp_path / "other" / name, data / name)
    assert "ledger-foreign" in codes(data)


def test_a_ledger_of_a_newer_format(data):
    change_ledger(data, "UPDATE meta SET v = 9 WHERE k = 'format'")
    assert "ledger-newer" in codes(data)


CHANGES = {
    "UPDATE blocks SET live_bytes = live_bytes + 8 WHERE id = 1": "block 1: entries have",
    "UPDATE shards SET bytes = bytes - 8 WHERE stream = 1 AND shard = 1": "stream 1 shard 1: its entries have",
    "UPDATE shards SET next = next + 1 WHERE stream = 2": "stream 2 shard 0: its entries end at 60, its row says 61",
    "UPDATE shards SET start = next + 1 WHERE stream = 2": "stream 2 shard 0: it starts at 61",
    "UPDATE shards SET start = -1 WHERE stream = 2": "it starts at -1",
    "DELETE FROM shards WHERE stream = 2": "stream 2 shard 0: it has entries and no row",
    "DELETE FROM entries WHERE stream = 2 AND base = 40": "entry at offset 41 of stream 2 shard 0 does not begin",
    "DELETE FROM entries WHERE stream = 2 AND base <= 40": "stream 2 shard 0: offsets 30 to 40 have no entry",
    "UPDATE entries SET span = 2 WHERE stream = 2 AND base = 40": "does not begin where the one before it ends",
    "UPDATE entries SET count = 7 WHERE stream = 2 AND base = 40": "cannot be: span 1, 7 records",
    "UPDATE entries SET block = 77 WHERE stream = 2 AND base = 40": "entries point into block 77, which has no row",
    "DELETE FROM streams WHERE id = 2": "stream 2 shard 0: there is a row for it and no such shard",
    "UPDATE entries SET position = 8 WHERE stream = 2 AND base = 40": "points to byte 8 of blocks",
}


@pytest.mark.parametrize("sql", CHANGES)
def test_rows_that_contradict_each_other(data, sql):
    change_ledger(data, sql)
    found = [finding for finding in told(data) if finding.code == "ledger-rows"]
    assert any(CHANGES[sql] in finding.what for finding in found), found
    assert {finding.command for finding in found} == {f"mainstem doctor --rebuild --data {data}"}


def test_a_ledger_of_format_1_is_looked_at(data):
    change_ledger(
        data,
        "DROP TABLE dead; DROP TABLE restored; ALTER TABLE streams DROP COLUMN retention_bytes;"
        "ALTER TABLE streams DROP COLUMN cleanup; ALTER TABLE streams DROP COLUMN tombstone_us;"
        "ALTER TABLE shards DROP COLUMN merged; ALTER TABLE shards DROP COLUMN compacted;"
        "ALTER TABLE blocks DROP COLUMN dead_us; ALTER TABLE blocks DROP COLUMN rewrite_us;"
        "UPDATE meta SET v = 1 WHERE k = 'format'",
    )
    assert only(data, "ledger-older").severity == Severity.NOTE


# The blocks.


def test_a_block_that_is_missing(data):
    block(data, 2).unlink()
    found = {finding.code: finding for finding in told(data)}["block-missing"]
    assert found.file == f"blocks/{NAMES[2]}"
    assert "records of stream 'orders' shard 0 (within" in found.what


def test_a_dead_block_may_be_gone(data):
    change_ledger(
        data,
        "DELETE FROM entries; UPDATE blocks SET live_bytes = 0, dead_us = 5; UPDATE shards SET bytes = 0, start = next",
    )
    frame = frame_of(data, 1, FrameKind.COMMAND)
    flip(block(data, 1), frame.position)
    assert only(data, "bytes-damaged").severity == Severity.WARNING
    block(data, 1).unlink()
    assert codes(data) <= {"snapshot-lacking"}


def test_a_block_that_was_cut(data):
    size = block(data, 2).stat().st_size
    os.truncate(block(data, 2), size // 2)
    found = [finding for finding in told(data) if finding.code == "block-short"]
    assert len(found) == 1
    assert found[0].position == size // 2
    assert "of stream 'orders' shard" in found[0].what
    assert found[0].command == f"mainstem doctor --salvage {block(data, 2)} --output {NAMES[2][:-6]}.parquet"


def test_a_flip_in_the_header_of_a_block(data):
    flip(block(data, 2), 30)
    assert "block-header" in codes(data)


def test_a_block_of_another_log(data, tmp_path):
    fill(tmp_path / "other").close()
    shutil.copy(block(tmp_path / "other", 2), block(data, 2))
    assert "block-foreign" in codes(data)
    shutil.copy(block(tmp_path / "other", 2), block(data, 9))
    found = {finding.file: finding for finding in told(data)}[f"blocks/{NAMES[9]}"]
    assert (found.severity, found.code) == (Severity.WARNING, "block-unknown")
    assert "this is block 2" in found.what
    foreign = BlockHeader.parse(block(tmp_path / "other", 2).read_bytes())
    block(data, 9).write_bytes(dataclasses.replace(foreign, block=9).pack())
    found = {finding.file: finding for finding in told(data)}[f"blocks/{NAMES[9]}"]
    assert (found.severity, found.code) == (Severity.DAMAGE, "block-foreign")


@pytest.mark.parametrize("place", ["payload", "header"])
def test_damaged_records_are_named(data, place):
    frame = frame_of(data, 2, FrameKind.DATA, stream=1)
    flip(block(data, 2), frame.position + (frame.header_len + 3 if place == "payload" else 60))
    found = only(data, "records-damaged")
    assert found.severity == Severity.DAMAGE
    assert found.position == frame.position
    assert f"of stream 'orders' shard {frame.shard} cannot be read" in found.what


def test_batches_of_transactions_are_told_apart(tmp_path):
    """One that was committed is damaged like any other; one that never was is no loss."""
    path = tmp_path / "data"
    log = Log(path)
    stream = make_stream(log, "orders")
    for transaction in (5, 6):
        waiter = Waiter()
        log.stage(transaction, 0, [make_batch([b"%d" % transaction] * 9, stream=stream)], waiter.set)
        waiter.wait(log.batcher)
    waiter = Waiter()
    log.commit_transaction(6, 1, (), waiter.set)
    waiter.wait(log.batcher)
    log.close()
    assert told(path) == []
    never, committed = (found for found in frames(path, 1) if found.kind == FrameKind.STAGED)
    flip(block(path, 1), never.position + never.header_len + 3)
    found = only(path, "bytes-damaged")
    assert found.severity == Severity.WARNING
    assert "a batch that was staged in a transaction and not committed" in found.what
    flip(block(path, 1), committed.position + committed.header_len + 3)
    assert codes(path) == {"bytes-damaged", "records-damaged"}


def test_the_first_and_last_records_of_every_block_are_looked_at_without_being_asked(data):
    frame = frame_of(data, 1, FrameKind.DATA, stream=1)
    flip(block(data, 1), frame.position + frame.header_len + 3)
    assert only(data, "records-damaged", deep=False).position == frame.position


def test_the_newest_block_is_read_without_being_asked(data):
    newest = len(list((data / "blocks").iterdir()))
    frame = [found for found in frames(data, newest) if found.kind == FrameKind.COMMIT][1]
    flip(block(data, newest), frame.position + 100)
    assert only(data, "bytes-damaged", deep=False).position == frame.position


@pytest.mark.parametrize("kind", [FrameKind.COMMAND, FrameKind.COMMIT, FrameKind.FOOTER])
@pytest.mark.parametrize("at", [0, 9, 60, 140])
def test_bytes_that_no_reader_needs(data, kind, at):
    frame = [found for found in frames(data, 2) if found.kind == kind][-1]
    flip(block(data, 2), frame.position + at)
    found = only(data, "bytes-damaged")
    assert (found.severity, found.position) == (Severity.WARNING, frame.position)
    assert "no record that can be read is affected" in found.what


def test_records_that_nobody_can_read_are_no_loss(data):
    """Of a deleted stream, or trimmed."""
    for stream in (2, 3):
        frame = frame_of(data, 1, FrameKind.DATA, stream=stream)
        flip(block(data, 1), frame.position + frame.header_len + 3)
    assert [finding.severity for finding in told(data)] == [Severity.WARNING] * 2


def test_damage_without_end_is_told_in_few_words(data):
    content = bytearray(block(data, 2).read_bytes())
    for frame in frames(data, 2):
        content[frame.position + frame.header_len] ^= 1
    block(data, 2).write_bytes(content)
    found = told(data)
    assert 20 <= len(found) <= 25
    assert any(finding.what == "and more from here on" for finding in found)


def test_the_last_flush_in_the_ledger_cannot_be_read_back(data):
    newest = len(list((data / "blocks").iterdir()))
    frame = [found for found in frames(data, newest) if found.kind == FrameKind.COMMIT][-1]
    flip(block(data, newest), frame.position + 20)
    assert only(data, "commit-damaged", deep=False).position == frame.position


def test_blocks_that_end_before_the_ledger_does(data):
    newest = len(list((data / "blocks").iterdir()))
    block(data, newest).unlink()
    assert {"block-missing", "start-refused"} <= codes(data)


def test_a_block_that_nothing_knows(data):
    """One that was freed, and brought back by somebody."""
    change_ledger(
        data,
        "DELETE FROM blocks WHERE id = 1; DELETE FROM entries; UPDATE shards SET bytes = 0, start = next;"
        "UPDATE blocks SET live_bytes = 0",
    )
    found = [finding for finding in told(data) if finding.code == "block-unknown"]
    assert [(finding.severity, finding.file) for finding in found] == [(Severity.WARNING, f"blocks/{NAMES[1]}")]


def test_a_block_that_was_begun_and_not_used(data):
    header = BlockHeader.parse(block(data, 1).read_bytes())
    newest = len(list((data / "blocks").iterdir()))
    flush = max(found.flush for found in frames(data, newest)) + 1
    block(data, 9).write_bytes(dataclasses.replace(header, block=9, first_flush=flush).pack())
    # It might be one that a process is just beginning, until there is a newer one.
    assert told(data) == []
    log = Log(data, TINY)
    make_stream(log, "later")
    log.close()
    # From then on the ledger knows it, and it is freed like any other.
    assert told(data) == []
    block(data, 8).write_bytes(dataclasses.replace(header, block=8, first_flush=flush).pack())
    found = only(data, "block-unfinished")
    assert (found.severity, found.command) == (Severity.NOTE, f"rm {block(data, 8)}")


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("first", [0, 64])
@pytest.mark.parametrize("number", [2, -1])
def test_a_block_that_cannot_be_read(data, monkeypatch, number, first, deep):
    """The disk gives nothing of it from some byte on; -1 is the newest."""
    failing = sorted((data / "blocks").iterdir())[number - 1 if number > 0 else number]

    def read(self, position, length):
        if self.path == failing and position >= first:
            raise OSError(5, "Input/output error")
        return reading(self, position, length)

    reading = LocalFile.read
    monkeypatch.setattr(LocalFile, "read", read)
    found = told(data, deep=deep)
    assert {finding.file for finding in found if finding.severity == Severity.DAMAGE} == {f"blocks/{failing.name}"}
    assert any("Input/output error" in finding.what or finding.code == "records-damaged" for finding in found)


# Snapshots.


def test_a_damaged_snapshot(data):
    newest = max((data / "snapshots").iterdir())
    flip(newest, newest.stat().st_size // 2)
    found = only(data, "snapshot-damaged")
    assert (found.severity, found.file) == (Severity.WARNING, f"snapshots/{newest.name}")


def test_a_snapshot_under_another_name(data):
    newest = max((data / "snapshots").iterdir())
    newest.rename(newest.with_name("ledger-0000000000999999.db"))
    assert "it is of flush" in only(data, "snapshot-damaged").what


def test_blocks_that_only_a_snapshot_replaces(data):
    change_ledger(
        data,
        "DELETE FROM blocks WHERE id = 1; DELETE FROM entries; UPDATE shards SET bytes = 0, start = next;"
        "UPDATE blocks SET live_bytes = 0",
    )
    block(data, 1).unlink()
    assert codes(data) == set()
    for path in (data / "snapshots").iterdir():
        path.unlink()
    assert "flushes 1 to" in only(data, "snapshot-lacking").what


# The disk.


def near(**changes) -> Surroundings:
    return dataclasses.replace(ROOMY, **changes)


def test_space_is_told_in_the_unit_that_fits(data):
    free = {"free_bytes": 48_000_000, "total_bytes": 64_000_000}
    assert only(data, "space-low", surroundings=near(**free)).what.startswith("48.0 MB of 64.0 MB are free; ")


def test_little_space(data):
    assert only(data, "space-low", surroundings=near(free_bytes=100 << 20)).severity == Severity.WARNING
    report = examine(data, block_bytes=1 << 30, clock=Hasty(), surroundings=near(free_bytes=1 << 30))
    assert [finding.code for finding in report.findings if finding.severity] == ["block-bytes"]


def test_what_deleted_streams_have_waits_to_be_freed(tmp_path):
    """Also as long as upkeep has not come to them, as here: the folder was closed right after."""
    path = tmp_path / "data"
    log = Log(path, TINY)
    log._maintenance.close()
    large, small = make_stream(log, "large"), make_stream(log, "small")
    for number in range(20):
        append_values(log, large, random.Random(number).randbytes(1_000))
    append_values(log, small, b"x")
    live = look(path).live_bytes
    log.execute(DeleteStream(large, 1))
    log.close()
    report = look(path)
    assert (report.live_bytes < 1_000 < report.dead_bytes, report.live_bytes + report.dead_bytes) == (True, live)
    (space,) = (finding for finding in report.findings if finding.code == "space")
    assert re.search(r"; \d+\.\d kB wait to be freed, until 20\S+Z at the latest if the log is open$", space.what)
    low = only(path, "space-low", surroundings=near(free_bytes=100 << 20))
    assert low.command == f"mainstem serve --data {path}"  # not to shorten another stream
    beside = told(path, surroundings=near(free_bytes=100 << 20, writer=1))
    assert {finding.code: finding.command for finding in beside}["space-low"] == f"mainstem doctor --data {path}"


class Later(Hasty):
    """A day or so after the folder was written."""

    def __init__(self, hours: float) -> None:
        self._hours = hours

    def now_us(self) -> int:
        return super().now_us() + int(self._hours * 3_600_000_000)


def test_the_time_until_full(data):
    def until(hours, free):
        return examine(data, clock=Later(hours), surroundings=near(free_bytes=free))

    size = sum(path.stat().st_size for path in (data / "blocks").iterdir())
    within_the_day = until(12, 1 << 40)
    assert within_the_day.seconds_until_full == pytest.approx((1 << 40) / (size / (12 * 3600)), rel=0.2)
    assert until(30, 1 << 40).seconds_until_full is None
    assert any("not growing" in finding.what for finding in until(30, 1 << 40).findings)
    found = {finding.code for finding in until(12, 300 << 20).findings}
    # 300 MB last for years at this rate, which is less than the streams keep their records.
    assert "retention-long" in found


def test_a_disk_that_is_full_tomorrow(data):
    ledger = SqliteLedger(data / "ledger.db")
    hour_us = 3_600_000_000
    ledger._db.execute(f"UPDATE blocks SET bytes = 100000000000, created_us = created_us - {2 * hour_us} WHERE id = 1")
    ledger._db.execute("UPDATE blocks SET bytes = 100000000000 WHERE id = 2")
    ledger.close()
    found = [finding.code for finding in examine(data, clock=Hasty(), surroundings=ROOMY).findings]
    assert "space-short" in found


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("tmpfs", "folder-in-memory"),
        ("overlay", "folder-in-container"),
        ("nfs4", "folder-remote"),
        ("fuse.glusterfs", "folder-remote"),
    ],
)
def test_a_bad_place(data, kind, code):
    assert only(data, code, surroundings=near(file_system=kind)).severity == Severity.WARNING
    expected = Severity.WARNING if code == "folder-remote" else Severity.NOTE
    assert only(data, code, surroundings=near(file_system=kind, is_temporary=True)).severity == expected


def test_what_surrounds_a_real_folder(tmp_path):
    found = Surroundings.of(tmp_path)
    assert 0 < found.free_bytes <= found.total_bytes
    assert found.writer is None
    assert found.file_system or not Path("/proc/self/mountinfo").exists()


# Rebuilding.


def test_a_rebuilt_ledger_has_the_same_rows(data):
    def rows() -> dict[str, list]:
        ledger = SqliteLedger(data / "ledger.db")
        tables = ("streams", "shards", "blocks", "entries", "producers", "applied", "dead")
        found = {table: sorted(ledger._db.execute(f"SELECT * FROM {table}")) for table in tables}
        ledger.close()
        return found

    before = rows()
    done = rebuild(data)
    assert rows() == before
    assert (data / done.kept_in / "ledger.db").exists()
    assert 0 < done.flushes < done.applied
    assert only(data, "left-over").file == done.kept_in
    shutil.rmtree(data / "snapshots")
    again = rebuild(data)
    assert again.flushes == again.applied == done.applied
    assert rows() == before


def test_a_rebuild_without_a_block_changes_nothing(data):
    block(data, 2).unlink()
    for path in (data / "snapshots").iterdir():
        path.unlink()
    ledger = (data / "ledger.db").read_bytes()
    with pytest.raises(FolderUnusable, match="missing"):
        rebuild(data)
    assert (data / "ledger.db").read_bytes() == ledger
    with pytest.raises(FolderUnusable, match="no blocks"):
        rebuild(data / "snapshots")


def test_every_code_is_on_the_page_of_the_commands():
    root = Path(__file__).parents[3]
    sources = [root / "src/mainstem/log" / f"{name}.py" for name in ("doctor", "block_check", "space_check")]
    code = re.compile(r'"((?:[a-z]+-)+[a-z]+|space|writer)"')
    used = {found for path in sources for found in code.findall(path.read_text())}
    table = (root / "docs/cli.md").read_text().split("## What the doctor finds")[1].split("`doctor --salvage")[0]
    listed = {
        found for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for found in re.findall(r"`(.*?)`", row)
    }
    assert used == listed
