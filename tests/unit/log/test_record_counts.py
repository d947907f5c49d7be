"""How many records a stream has where offsets have none: after compaction, erasure and trims, live and in a folder."""

import pytest

from mainstem.log.administration import Administration, Lookup
from mainstem.log.flush import TrimShard
from mainstem.log.ledger.sqlite import SqliteLedgerReader
from mainstem.registry import compatibility
from mainstem.transport.port import GetStreamCall, ListStreamsCall
from tests.unit.log.keeping import DAY, Keeping


@pytest.fixture
def keeping(tmp_path):
    kept = Keeping(tmp_path / "data")
    yield kept
    kept.log.close()


def counts(keeping: Keeping, stream: int) -> tuple[int, ...]:
    """The records of each shard, by every way to ask, which must agree with what can be read."""
    administration = Administration(keeping.log, check_schema=compatibility.check)
    name = keeping.row(stream).name
    detailed = administration.handle(GetStreamCall(name, details=True)).streams[0]
    listed = next(info for info in administration.handle(ListStreamsCall()).streams if info.name == name)
    folder = SqliteLedgerReader(keeping.path / "ledger.db")
    beside = (
        Lookup(folder, keeping.log.reader, keeping.log.schemas).handle(GetStreamCall(name, details=True)).streams[0]
    )
    folder.close()
    assert detailed.shard_records == listed.shard_records == beside.shard_records
    assert detailed.records == sum(detailed.shard_records)
    return detailed.shard_records


def read_counts(keeping: Keeping, stream: int) -> tuple[int, ...]:
    return tuple(len(keeping.read(stream, shard=shard)) for shard in range(keeping.row(stream).shards))


def test_records_are_counted_after_a_compaction(keeping):
    stream = keeping.create(cleanup="compact", shards=2)
    for number in range(30):
        keeping.write(stream, (b"a", b"%d" % number), (b"b%d" % number, b"x"))
    keeping.write(stream, (b"c", b"1"), shard=1)
    assert counts(keeping, stream) == (60, 1)
    keeping.keep(DAY)
    keeping.keep(DAY)
    assert counts(keeping, stream) == read_counts(keeping, stream) == (31, 1)
    keeping.reopen()
    assert counts(keeping, stream) == (31, 1)
    keeping.reopen(without_ledger=True)
    assert counts(keeping, stream) == (31, 1)


def test_records_are_counted_after_erasures_and_appends(keeping):
    stream = keeping.create()
    for number in range(10):
        keeping.write(stream, (b"ann", b"%d" % number), (b"bob", b"x"))
    assert counts(keeping, stream) == (20,)
    keeping.log.upkeep.erase(keeping.row(stream), b"ann")
    assert counts(keeping, stream) == read_counts(keeping, stream) == (10,)
    keeping.write(stream, (b"ann", b"again"))
    assert counts(keeping, stream) == (11,)
    keeping.log.upkeep.erase(keeping.row(stream), b"bob")
    assert counts(keeping, stream) == read_counts(keeping, stream) == (1,)


def test_a_trim_counts_at_once_and_when_its_rows_are_dropped(keeping):
    stream = keeping.create()
    for number in range(10):
        keeping.write(stream, (b"ann", b"%d" % number), (b"bob", b"x"))
    keeping.log.upkeep.erase(keeping.row(stream), b"ann")
    for number in range(5):
        keeping.write(stream, (b"cid", b"%d" % number))
    assert counts(keeping, stream) == (15,)
    # Erasing has put the first twenty offsets into one entry: behind it nothing is missing.
    keeping.log.execute(_trim(stream, 22))
    keeping.log.upkeep.look_at((stream, 0))
    assert counts(keeping, stream) == (3,)
    keeping.keep()
    assert counts(keeping, stream) == read_counts(keeping, stream) == (3,)
    keeping.log.execute(_trim(stream, 25))
    assert counts(keeping, stream) == (0,)


def test_a_trim_into_an_entry_with_gaps_is_estimated(keeping):
    """Which of the offsets below the new start had a record only the batch knows."""
    stream = keeping.create()
    keeping.write(stream, *[(b"ann" if number % 2 else b"bob", b"%d" % number) for number in range(20)])
    keeping.log.upkeep.erase(keeping.row(stream), b"ann")
    keeping.log.execute(_trim(stream, 14))
    assert counts(keeping, stream) == read_counts(keeping, stream) == (3,)


def test_counting_looks_at_rows_only_when_records_went(keeping, monkeypatch):
    stream = keeping.create()
    keeping.write_singly(stream, 50)
    assert counts(keeping, stream) == (50,)
    asked: list[tuple[int, int]] = []
    found = keeping.log.ledger._entries.missing_records

    def noted(stream: int, shard: int) -> int:
        asked.append((stream, shard))
        return found(stream, shard)

    monkeypatch.setattr(keeping.log.ledger._entries, "missing_records", noted)
    keeping.write_singly(stream, 5, first=50)
    keeping.log.execute(_trim(stream, 3))
    assert counts(keeping, stream) == (52,)
    assert asked == []
    keeping.log.upkeep.erase(keeping.row(stream), b"k30")
    assert counts(keeping, stream) == (51,)
    assert asked == [(stream, 0)]


def _trim(stream: int, before: int) -> TrimShard:
    return TrimShard(stream, 0, before)
