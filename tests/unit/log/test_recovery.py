"""Opening a folder again: after a clean end, after a kill, and when something was taken away."""

import json
import shutil
from pathlib import Path

import pytest

from mainstem.core.errors import DataLoss, FolderLocked, FolderUnusable
from mainstem.log.flush import Appended, DeleteStream, TrimShard
from mainstem.log.folder import _identity_check
from mainstem.log.frame import BLOCK_HEADER_BYTES, FrameKind, parse_header
from mainstem.log.log import Log, LogOptions
from tests.unit.log.parts import append, append_values, make_batch, make_stream, values_of

SMALL_BLOCKS = LogOptions(block_bytes=64 << 10)


def killed(log: Log, path: Path, target: Path) -> Path:
    """What the disk holds now, as a kill -9 would leave it: the log is not closed."""
    shutil.copytree(path, target)
    log.close()
    return target


def records(log: Log, stream: int, shard: int = 0) -> list[bytes | None]:
    row = log.reader.require_stream(stream)
    found: list[bytes | None] = []
    while batches := log.reader.read(row, shard, len(found)):
        for batch in batches:
            assert batch.base == len(found)
            found += values_of(batch)
    return found


def blocks_of(path: Path) -> list[Path]:
    return sorted((path / "blocks").iterdir())


@pytest.fixture
def filled(tmp_path):
    """A folder whose log was killed after twenty records in a stream with id 1."""
    path = tmp_path / "running"
    log = Log(path)
    stream = make_stream(log)
    for number in range(20):
        append_values(log, stream, b"%d" % number)
    return killed(log, path, tmp_path / "killed")


TWENTY = [b"%d" % number for number in range(20)]


def test_a_new_folder_is_made(tmp_path):
    log = Log(tmp_path / "a" / "b")
    assert log.counters()["flushes_applied"] == 0
    log.close()
    assert {child.name for child in (tmp_path / "a" / "b").iterdir()} >= {"mainstem.json", "blocks", "ledger.db"}


def test_everything_is_there_after_a_clean_end(tmp_path):
    log = Log(tmp_path)
    stream = make_stream(log, shards=2)
    append(log, make_batch([b"a"], stream=stream), make_batch([b"b"], stream=stream, shard=1))
    uuid, applied = log.uuid, log.counters()["flushes_applied"]
    log.close()
    again = Log(tmp_path)
    assert (again.uuid, again.counters()["flushes_applied"]) == (uuid, applied)
    assert [records(again, stream, shard) for shard in range(2)] == [[b"a"], [b"b"]]
    assert append_values(again, stream, b"c") == 1
    again.close()


def test_everything_acknowledged_is_there_after_a_kill(filled):
    log = Log(filled)
    assert records(log, 1) == TWENTY
    assert append_values(log, 1, b"next") == 20
    log.close()


def test_many_lives_in_a_row(tmp_path):
    path = tmp_path / "0"
    log = Log(path)
    stream = make_stream(log)
    for life in range(5):
        for number in range(3):
            append_values(log, stream, b"%d.%d" % (life, number))
        path = killed(log, path, tmp_path / f"{life + 1}")
        log = Log(path)
    assert records(log, stream) == [b"%d.%d" % (life, number) for life in range(5) for number in range(3)]
    assert len(blocks_of(path)) == 5
    log.close()


@pytest.mark.parametrize("what", ["ledger.db-wal", "ledger.db"])
def test_a_lost_ledger_is_made_again_from_the_blocks(filled, what):
    """Without the WAL the database file is older than what was applied; without the file there is nothing at all."""
    for name in ("ledger.db-wal", "ledger.db-shm", "ledger.db"):
        if name.startswith(what):
            (filled / name).unlink(missing_ok=True)
    log = Log(filled)
    assert records(log, 1) == TWENTY
    assert append_values(log, 1, b"next") == 20
    log.close()


def test_a_damaged_ledger_is_put_aside_and_made_again(filled):
    path = filled / "ledger.db"
    data = bytearray(path.read_bytes())
    for place in range(4_096 + 100, len(data), 1_000):
        data[place] ^= 0xFF
    path.write_bytes(data)
    log = Log(filled)
    assert records(log, 1) == TWENTY
    log.close()
    assert (filled / "damaged-1" / "ledger.db").exists()


def test_sequences_are_remembered_across_a_kill(tmp_path):
    """The answer to a send was lost with the process: repeating it gets the original offset, not another record."""
    path = tmp_path / "running"
    log = Log(path)
    stream = make_stream(log)
    batches = [make_batch([b"%d" % n], stream=stream, producer=9, sequence=n) for n in range(3)]
    for batch in batches:
        append(log, batch)
    again = Log(killed(log, path, tmp_path / "killed"))
    (repeated,) = append(again, make_batch([b"2"], stream=stream, producer=9, sequence=2))
    (following,) = append(again, make_batch([b"3"], stream=stream, producer=9, sequence=3))
    assert (repeated, following) == (Appended(2, duplicate=True), Appended(3))
    again.close()


def test_commands_are_replayed_too(tmp_path):
    path = tmp_path / "running"
    log = Log(path)
    kept, gone = make_stream(log, "kept"), make_stream(log, "gone")
    append_values(log, kept, b"0", b"1", b"2")
    log.execute(TrimShard(kept, 0, 2))
    log.execute(DeleteStream(gone, 77))
    killed_path = killed(log, path, tmp_path / "killed")
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (killed_path / name).unlink(missing_ok=True)
    again = Log(killed_path)
    assert again.reader.shard(kept, 0).start == 2
    assert again.ledger.stream_named("gone") is None
    found = again.ledger.load_stream(gone)
    assert found is not None
    assert found.deleted_us == 77
    again.close()


def test_a_torn_flush_at_the_end_is_dropped_and_its_offsets_are_given_again(filled):
    """It was never acknowledged: cut the last flush short and lose the ledger, which had it."""
    (block,) = blocks_of(filled)
    data = block.read_bytes()
    block.write_bytes(data[:-20])
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (filled / name).unlink(missing_ok=True)
    log = Log(filled)
    assert records(log, 1) == TWENTY[:-1]
    assert append_values(log, 1, b"another") == 19
    log.close()
    assert block.read_bytes() == data[:-20]


def lose_ledger(folder: Path) -> None:
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (folder / name).unlink(missing_ok=True)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def last_flush(path: Path) -> tuple[int, int]:
    """Where the payload of the last data frame of a block lies, and where its commit frame does."""
    data = path.read_bytes()
    number, at, payload, commit = int(path.stem), BLOCK_HEADER_BYTES, 0, 0
    while at < len(data):
        header = parse_header(data, at, at, number)
        if header.kind == FrameKind.DATA:
            payload = at + header.header_len
        elif header.kind == FrameKind.COMMIT:
            commit = at
        at += header.total_len
    return payload, commit


def check_last_record_is_told(folder: Path) -> None:
    """Twenty records were acknowledged, and the last of them is damaged: its offset is not given to another."""
    log = Log(folder)
    row = log.reader.require_stream(1)
    assert [value for batch in log.reader.read(row, 0, 0) for value in values_of(batch)] == TWENTY[:-1]
    with pytest.raises(DataLoss) as loss:
        log.reader.read(row, 0, 19)
    assert (loss.value.first, loss.value.last) == (19, 19)
    assert append_values(log, 1, b"next") == 20
    log.close()


@pytest.fixture
def closed(tmp_path):
    """The same twenty records after a clean end: the block has a footer."""
    log = Log(tmp_path / "closed")
    stream = make_stream(log)
    for value in TWENTY:
        append_values(log, stream, value)
    log.close()
    return tmp_path / "closed"


def test_a_damaged_last_flush_before_a_footer_is_told_not_dropped(closed):
    """The footer proves that it was acknowledged, also when the ledger is gone."""
    (block,) = blocks_of(closed)
    flip(block, last_flush(block)[0])
    lose_ledger(closed)
    check_last_record_is_told(closed)


def test_a_last_flush_before_a_footer_that_cannot_be_followed_is_refused(closed):
    (block,) = blocks_of(closed)
    flip(block, last_flush(block)[1])
    lose_ledger(closed)
    with pytest.raises(FolderUnusable, match=f"flushes 21 to 21 .*{block.name}"):
        Log(closed)


def test_a_damaged_last_flush_before_the_header_of_a_later_block_is_told_not_dropped(filled):
    """A life that began after it, and left no flush of its own, counted it as there."""
    (block,) = blocks_of(filled)
    log = Log(filled)
    append_values(log, 1, b"of the second life")
    log.close()
    _, later = blocks_of(filled)
    later.write_bytes(later.read_bytes()[:BLOCK_HEADER_BYTES])
    flip(block, last_flush(block)[0])
    lose_ledger(filled)
    check_last_record_is_told(filled)


def test_a_flush_that_was_dropped_does_not_stand_in_for_the_one_that_took_its_number(filled):
    """A torn flush was dropped; the block of the life that used its number again is there, but cannot be placed."""
    (block,) = blocks_of(filled)
    flip(block, last_flush(block)[0])
    lose_ledger(filled)
    for life in (2, 3):
        log = Log(filled)
        assert append_values(log, 1, b"of life %d" % life) == 17 + life
        log.close()
    flip(blocks_of(filled)[1], 20)
    lose_ledger(filled)
    shutil.rmtree(filled / "snapshots")
    with pytest.raises(FolderUnusable, match=f"flushes 21 .*{blocks_of(filled)[1].name}"):
        Log(filled)


def test_a_damaged_last_flush_with_nothing_after_it_is_dropped(filled):
    """It cannot be told from a write that a power cut tore, which nobody was told of."""
    (block,) = blocks_of(filled)
    flip(block, last_flush(block)[0])
    lose_ledger(filled)
    log = Log(filled)
    assert records(log, 1) == TWENTY[:-1]
    assert append_values(log, 1, b"another") == 19
    log.close()


def test_a_ledger_ahead_of_its_blocks_is_refused(filled):
    """Acknowledged records are gone: going on would give their offsets to others."""
    (block,) = blocks_of(filled)
    block.write_bytes(block.read_bytes()[:-2_000])
    before = {path: path.stat().st_size for path in filled.rglob("*") if path.is_file()}
    with pytest.raises(FolderUnusable, match="flush 21"):
        Log(filled)
    assert {path: path.stat().st_size for path in before} == before


def test_a_missing_block_in_the_middle_is_refused_when_it_is_needed(tmp_path):
    path = tmp_path / "running"
    log = Log(path, SMALL_BLOCKS)
    stream = make_stream(log)
    for number in range(8):
        append_values(log, stream, b"%d" % number * 20_000)
    killed_path = killed(log, path, tmp_path / "killed")
    assert len(blocks_of(killed_path)) >= 3
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (killed_path / name).unlink(missing_ok=True)
    gone = blocks_of(killed_path)[1]
    gone.unlink()
    with pytest.raises(FolderUnusable, match=r"are in no block, and blocks/\d+\.block is missing"):
        Log(killed_path)
    assert not list(killed_path.glob("ledger-rebuilt*"))


def test_flushes_that_are_missing_within_a_block_are_not_blamed_on_files_beside_it(tmp_path):
    path = tmp_path / "running"
    log = Log(path, SMALL_BLOCKS)
    stream = make_stream(log)
    for number in range(8):
        append_values(log, stream, b"%d" % number * 20_000)
    killed_path = killed(log, path, tmp_path / "killed")
    lose_ledger(killed_path)
    first, second, third, *_ = blocks_of(killed_path)
    content = first.read_bytes(), third.read_bytes()
    # The end of the first block is gone; that the second is too is another matter.
    first.write_bytes(content[0][: len(content[0]) // 2])
    with pytest.raises(FolderUnusable, match=f"are missing or damaged in blocks/{first.name}") as error:
        Log(killed_path)
    assert second.name not in str(error.value)
    first.write_bytes(content[0])
    second.unlink()
    with pytest.raises(FolderUnusable, match=f"are in no block, and blocks/{second.name} is missing"):
        Log(killed_path)


def test_a_missing_block_that_the_ledger_has_applied_costs_its_records_only(tmp_path):
    log = Log(tmp_path, SMALL_BLOCKS)
    stream = make_stream(log)
    for number in range(8):
        append_values(log, stream, b"%d" % number * 20_000)
    log.close()
    blocks_of(tmp_path)[1].unlink()
    again = Log(tmp_path)
    row = again.reader.require_stream(stream)
    offset, lost = 0, 0
    while offset < 8:
        try:
            offset = again.reader.read(row, 0, offset)[-1].end
        except DataLoss as loss:
            lost += loss.last - loss.first + 1
            offset = loss.last + 1
    assert 0 < lost < 8
    assert append_values(again, stream, b"next") == 8
    again.close()


def test_a_block_of_another_log_is_refused(tmp_path, filled):
    for life in range(2):
        other = Log(tmp_path / "other")
        make_stream(other, f"stream-{life}")
        other.close()
    shutil.copy(blocks_of(tmp_path / "other")[1], filled / "blocks")
    with pytest.raises(FolderUnusable, match="belongs to log"):
        Log(filled)


def test_a_folder_of_a_newer_format_is_refused(filled):
    identity = json.loads((filled / "mainstem.json").read_text())
    newer = {**identity, "format": 99, "check": _identity_check(99, identity["uuid"])}
    (filled / "mainstem.json").write_text(json.dumps(newer))
    with pytest.raises(FolderUnusable, match="format 99"):
        Log(filled)


def test_a_lost_identity_file_is_read_from_the_blocks(filled):
    (filled / "mainstem.json").write_text("not json")
    log = Log(filled)
    assert records(log, 1) == TWENTY
    log.close()


def test_one_process_writes(tmp_path):
    log = Log(tmp_path)
    with pytest.raises(FolderLocked, match="process"):
        Log(tmp_path)
    log.close()
    Log(tmp_path).close()


def test_a_log_that_could_not_open_lets_go_of_the_folder(filled):
    (block,) = blocks_of(filled)
    whole = block.read_bytes()
    block.write_bytes(whole[:-2_000])
    with pytest.raises(FolderUnusable):
        Log(filled)
    block.write_bytes(whole)
    log = Log(filled)
    assert records(log, 1) == TWENTY
    log.close()
