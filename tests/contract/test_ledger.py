"""What every ledger keeps, and what the one function that fills it does.

The second half compares `apply.py` with a model that is written from the rules alone: offsets are dense; a batch is
appended if its sequence is the last + 1; one of the last eight gets its original offset; anything else of a known
producer is refused; an unknown one must begin at 0; a newer epoch begins again at 0 and fences the older; a deleted
stream refuses. Then: every backend has the same rows, a restart in between changes nothing, and so does a replay.
"""

import itertools
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.core.batch import BatchHeader
from mainstem.core.errors import (
    InvalidRequest,
    LedgerDamaged,
    OutOfSequence,
    ProducerFenced,
    StaleGeneration,
    StreamDeleted,
    StreamExists,
    UnknownProducer,
    UnknownStream,
)
from mainstem.core.statistics import collect, summary
from mainstem.log.flush import (
    AlterStream,
    Appended,
    CreateStream,
    DeleteStream,
    Done,
    Flush,
    ForgetProducers,
    OpenBlock,
    Rejected,
    SealBlock,
    TrimShard,
    WrittenBatch,
)
from mainstem.log.ledger.apply import Applier
from mainstem.log.ledger.base import (
    AppliedPlace,
    BlockRow,
    BlockTotals,
    Changes,
    Entry,
    GroupRow,
    GroupShardRow,
    Ledger,
    ProducerRow,
    ShardRow,
    SharedChanges,
    StreamRow,
    TransactionRow,
    WriterRow,
)
from mainstem.log.ledger.memory import MemoryLedger
from mainstem.log.ledger.sqlite import SqliteLedger, SqliteLedgerReader
from tests.unit.log.parts import LOG_UUID, NOW_US

FACTORIES: dict[str, Callable[[Path], Ledger]] = {
    "memory": lambda folder: MemoryLedger(epoch=1),
    "sqlite": lambda folder: SqliteLedger.create(folder / "ledger.db", log_uuid=LOG_UUID, epoch=1),
}


@pytest.fixture(params=FACTORIES)
def ledger(request, tmp_path):
    ledger = FACTORIES[request.param](tmp_path)
    yield ledger
    ledger.close()


def stream_row(id_: int, name: str, **other: Any) -> StreamRow:
    return StreamRow(id_, f"{id_:032x}", name, 1, "crc32", 0, 0, 1_000_000, NOW_US, 0)._replace(**other)


def entry(base: int, span: int, *, stream: int = 1, shard: int = 0, time: int = NOW_US, **other: Any) -> Entry:
    made = Entry(stream, shard, base, span, span, 1, 64 + 200 * base, 200 * span, time, 0, 0, b"")
    return made._replace(**other)


def changes(number: int, **rows: Any) -> Changes:
    return Changes(AppliedPlace(number, 1, 64 * number), **rows)


# Rows.


def test_a_new_ledger_is_empty(ledger):
    assert ledger.applied() == AppliedPlace(0, 0, 0)
    assert ledger.epoch() == 1
    assert list(ledger.list_streams()) == []
    assert ledger.stream_id_max() == 0
    assert ledger.stream_named("orders") is ledger.load_stream(1) is None
    assert ledger.load_shard(1, 0) == ShardRow()
    assert ledger.load_producer((1, 1, 0)) is None
    assert ledger.load_block(1) is None
    assert list(ledger.entries_from(1, 0, 0, 10)) == []
    assert ledger.entry_at_time(1, 0, 0) is None


def test_every_kind_of_row_comes_back(ledger):
    largest = 2**63 - 1
    streams = [
        stream_row(1, "orders"),
        stream_row(2, "x" * 249, shards=4096, hash="murmur2", generation=3, schema_id=9),
    ]
    shards = {(1, 0): ShardRow(1, 2, 2, NOW_US, 300), (2, 4095): ShardRow(0, largest, largest, -5, largest)}
    producers = {
        (largest, 1, 0): ProducerRow(2**32 - 1, tuple((n, n * 10) for n in range(8)), NOW_US),
        (5, 2, 4095): ProducerRow(0, ((0, largest),), 0),
    }
    blocks = {1: BlockRow(1, 1, "open", 0, 600, NOW_US), 2: BlockRow(2, 1, "sealed", 4096, 0, NOW_US)}
    entries = [entry(0, 2, statistics=b"\0stat"), entry(5, 1, stream=2, shard=4095, transaction=8, schema_id=2)]
    ledger.store(
        changes(
            7,
            streams={row.id: row for row in streams},
            shards=shards,
            producers=producers,
            blocks=blocks,
            entries=entries,
        )
    )
    assert ledger.applied() == AppliedPlace(7, 1, 448)
    assert list(ledger.list_streams()) == streams
    assert [ledger.load_stream(row.id) for row in streams] == streams
    assert [ledger.stream_named(row.name) for row in streams] == streams
    assert ledger.stream_id_max() == 2
    assert {key: ledger.load_shard(*key) for key in shards} == shards
    assert {key: ledger.load_producer(key) for key in producers} == producers
    assert {key: ledger.load_block(key) for key in blocks} == blocks
    assert [*ledger.entries_from(1, 0, 0, 9), *ledger.entries_from(2, 4095, 5, 9)] == entries


def test_rows_of_groups_and_transactions_come_back(ledger):
    largest = 2**63 - 1
    groups = {1: GroupRow(1, "b", 1, NOW_US, NOW_US + 1), largest: GroupRow(largest, "a" * 249, largest, 0, largest)}
    shards = {
        (1, 1, 0): GroupShardRow(0, 0, 0, 1),
        (1, 1, 4095): GroupShardRow(largest, largest, largest, largest),
        (largest, 1, 0): GroupShardRow(3, NOW_US, 7, 2),
    }
    transactions = {
        1: TransactionRow(NOW_US, ()),
        largest: TransactionRow(largest, ((1, 0, 0, 1), (largest, 4095, largest, 1 << 20))),
    }
    writers = {"w": WriterRow(largest, NOW_US), "v" * 249: WriterRow(1, largest)}
    rows = SharedChanges(groups=groups, group_shards=shards, transactions=transactions, writers=writers)
    ledger.store(changes(1, shared=rows))
    assert list(ledger.list_groups()) == [groups[largest], groups[1]]
    assert [ledger.group_named(row.name) for row in groups.values()] == list(groups.values())
    assert ledger.group_named("c") is None
    assert ledger.group_id_max() == largest
    assert list(ledger.list_group_shards(1)) == [((1, 0), shards[1, 1, 0]), ((1, 4095), shards[1, 1, 4095])]
    assert {key: ledger.load_group_shard(key) for key in shards} == shards
    assert ledger.load_group_shard((2, 1, 0)) is None
    assert {number: ledger.load_transaction(number) for number in transactions} == transactions
    assert {name: ledger.load_writer(name) for name in writers} == writers
    assert (ledger.load_transaction(2), ledger.load_writer("x")) == (None, None)
    assert [ledger.transactions_before(NOW_US + more, 9) for more in (0, 1)] == [0, 1]
    assert [ledger.writers_before(NOW_US + more) for more in (0, 1)] == [0, 1]
    ledger.store(changes(2, shared=SharedChanges(ungrouped_streams=[1], deleted_groups=[1], group_id_max=largest)))
    assert list(ledger.list_groups()) == [groups[largest]]
    assert list(ledger.list_group_shards(1)) == list(ledger.list_group_shards(largest)) == []


def test_totals(ledger):
    assert ledger.block_totals() == BlockTotals(0, 0, 0)
    assert ledger.dead_totals() == {}
    # The first grows and has no size of its own yet.
    blocks = {1: BlockRow(1, 1, "open", 0, 600, NOW_US), 2: BlockRow(2, 1, "sealed", 2**62, 400, NOW_US)}
    ledger.store(changes(1, blocks=blocks, dead={(7, 1): 10, (7, 2): 20, (8, 2): 5}))
    assert ledger.block_totals() == BlockTotals(2, 2**62, 1000, growing=(1,))
    assert ledger.dead_totals() == {7: 30, 8: 5}


def test_what_deleted_streams_still_have_is_not_alive(ledger):
    kept, gone = stream_row(1, "kept"), stream_row(2, "gone")._replace(deleted_us=NOW_US)
    blocks = {1: BlockRow(1, 1, "sealed", 2_000, 1_000, NOW_US)}
    shards = {(1, 0): ShardRow(bytes=400), (2, 0): ShardRow(bytes=500), (2, 1): ShardRow(bytes=100)}
    ledger.store(changes(1, streams={1: kept, 2: gone}, shards=shards, blocks=blocks))
    assert ledger.block_totals() == BlockTotals(1, 2_000, 400)


def test_the_bytes_of_statistics_are_what_the_summaries_say(ledger):
    known = collect(None, key=pa.array([b"key"]), times=(1, 2))
    entries = [entry(0, 2, statistics=summary(known)), entry(2, 2), entry(4, 1, shard=1, statistics=summary(known))]
    ledger.store(changes(1, entries=[*entries, entry(0, 1, stream=2, statistics=summary(known))]))
    assert ledger.statistics_bytes(1) == 2 * len(known)
    assert ledger.statistics_bytes(2) == len(known) > len(summary(known))
    assert ledger.statistics_bytes(3) == 0


def test_a_row_stored_again_replaces_the_one_before(ledger):
    ledger.store(
        changes(
            1,
            streams={1: stream_row(1, "orders")},
            shards={(1, 0): ShardRow(0, 1, 1, 5, 10)},
            producers={(3, 1, 0): ProducerRow(0, ((0, 0),), 5)},
            blocks={1: BlockRow(1, 1, "open", 0, 10, 0)},
        )
    )
    ledger.store(
        changes(
            2,
            streams={1: stream_row(1, "orders", retention_us=77)},
            shards={(1, 0): ShardRow(0, 2, 2, 6, 20)},
            producers={(3, 1, 0): ProducerRow(1, ((0, 1),), 6)},
            blocks={1: BlockRow(1, 1, "sealed", 99, 20, 0)},
        )
    )
    assert ledger.applied().number == 2
    assert [row.retention_us for row in ledger.list_streams()] == [77]
    assert ledger.load_shard(1, 0) == ShardRow(0, 2, 2, 6, 20)
    assert ledger.load_producer((3, 1, 0)) == ProducerRow(1, ((0, 1),), 6)
    assert ledger.load_block(1) == BlockRow(1, 1, "sealed", 99, 20, 0)


def test_the_name_of_a_deleted_stream_is_free_and_its_row_stays(ledger):
    old = stream_row(1, "orders", deleted_us=NOW_US)
    ledger.store(changes(1, streams={1: stream_row(1, "orders")}))
    ledger.store(changes(2, streams={1: old}))
    assert ledger.stream_named("orders") is None
    ledger.store(changes(3, streams={2: stream_row(2, "orders")}))
    assert ledger.stream_named("orders").id == 2
    assert ledger.load_stream(1) == old
    assert ledger.stream_id_max() == 2


def test_producers_are_forgotten_by_the_time_they_were_last_seen(ledger):
    rows = {(pid, 1, 0): ProducerRow(0, ((0, 0),), pid * 100) for pid in range(1, 6)}
    ledger.store(changes(1, producers=rows))
    later = {(6, 1, 0): ProducerRow(0, ((0, 0),), 600)}
    ledger.store(changes(2, forget_producers_before_us=300, forget_producers_ids=(0, 99), producers=later))
    assert [pid for pid in range(1, 7) if ledger.load_producer((pid, 1, 0))] == [3, 4, 5, 6]
    ledger.store(changes(3, forget_producers_before_us=601, forget_producers_ids=(4, 5)))
    assert [pid for pid in range(1, 7) if ledger.load_producer((pid, 1, 0))] == [3, 6]
    ledger.store(changes(4))
    assert [pid for pid in range(1, 7) if ledger.load_producer((pid, 1, 0))] == [3, 6]


# Entries by offset and by time.


@pytest.fixture
def long_shard(ledger):
    """Offsets 0 to 29 in entries of 3, times rising by 100 an entry; another shard and another stream beside it."""
    entries = [entry(base, 3, time=base * 100) for base in range(0, 30, 3)]
    beside = [entry(0, 50, shard=1, time=5), entry(0, 50, stream=2, time=5)]
    ledger.store(
        changes(
            1,
            streams={1: stream_row(1, "orders", shards=2), 2: stream_row(2, "other")},
            shards={key: ShardRow(0, end, end, 2_700, 0) for key, end in {(1, 0): 30, (1, 1): 50, (2, 0): 50}.items()},
            entries=[*entries, *beside],
        )
    )
    return ledger


def test_entries_from_begins_with_the_one_that_holds_the_offset(long_shard):
    for offset in range(30):
        found = long_shard.entries_from(1, 0, offset, 100)
        assert found[0].base <= offset < found[0].end
        assert [each.base for each in found] == list(range(offset // 3 * 3, 30, 3))


@pytest.mark.parametrize("limit", [1, 2, 9, 10, 11])
def test_entries_from_gives_no_more_than_asked_for(long_shard, limit):
    assert [each.base for each in long_shard.entries_from(1, 0, 4, limit)] == list(range(3, 30, 3))[:limit]


def test_entries_from_the_end_on_are_none(long_shard):
    assert [list(long_shard.entries_from(1, 0, offset, 5)) for offset in (30, 31, 2**62)] == [[], [], []]


def test_entry_at_time_is_the_first_that_reached_it(long_shard):
    for time in range(-50, 2_700, 37):
        found = long_shard.entry_at_time(1, 0, time)
        assert found.time_high >= time
        assert found.base == 0 or found.time_high - 300 < time


def test_entry_at_time_after_the_newest_is_none(long_shard):
    assert long_shard.entry_at_time(1, 0, 2_700).base == 27
    assert long_shard.entry_at_time(1, 0, 2_701) is None


def test_entry_at_time_of_equal_times_is_the_first(ledger):
    entries = [entry(base, 1, time=10) for base in range(5)]
    ledger.store(changes(1, shards={(1, 0): ShardRow(0, 5, 5, 10, 0)}, entries=entries))
    assert ledger.entry_at_time(1, 0, 10).base == 0
    assert ledger.entry_at_time(1, 0, 11) is None


def test_entry_at_time_does_not_look_below_the_start(long_shard):
    """What was trimmed is no answer; an entry that is trimmed in part still is."""
    long_shard.store(changes(2, shards={(1, 0): ShardRow(10, 30, 30, 2_700, 0)}))
    assert long_shard.entry_at_time(1, 0, 0).base == 9
    assert long_shard.entry_at_time(1, 0, 1_000).base == 12


# All or nothing.


def test_a_reader_never_sees_half_a_flush(ledger):
    """The end of a shard is stored with its entries: whoever sees the one finds the others, all the time."""
    flushes = 400
    wrong: list[tuple[int, int]] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            end = ledger.load_shard(1, 0).next
            entries = ledger.entries_from(1, 0, 0, 10 * flushes)
            covered = sum(each.span for each in entries)
            if covered < end or [each.base for each in entries] != list(range(0, covered, 2)):
                wrong.append((end, covered))

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(flushes):
        base = number * 4
        rows = [entry(base, 2), entry(base + 2, 2)]
        ledger.store(changes(number + 1, shards={(1, 0): ShardRow(0, base + 4, base + 4, 0, 0)}, entries=rows))
    done.set()
    thread.join()
    assert wrong == []


def test_sqlite_takes_back_everything_of_a_flush_that_fails(tmp_path):
    ledger = FACTORIES["sqlite"](tmp_path)
    ledger.store(changes(1, shards={(1, 0): ShardRow(0, 2, 2, 0, 0)}, entries=[entry(0, 2)]))
    for number, bad in enumerate(([entry(2, 1), entry(0, 2)], [entry(2, 1), entry(3, 1, count=object())])):
        with pytest.raises(BaseException):  # noqa: B017  # whatever SQLite says: nothing of it may be there
            ledger.store(
                changes(
                    2 + number,
                    shards={(1, 0): ShardRow(0, 9, 9, 0, 0)},
                    streams={5: stream_row(5, "new")},
                    entries=bad,
                )
            )
        assert ledger.applied().number == 1
        assert ledger.load_shard(1, 0).next == 2
        assert ledger.load_stream(5) is None
        assert len(ledger.entries_from(1, 0, 0, 10)) == 1
    ledger.store(changes(2, entries=[entry(2, 1)]))
    assert len(ledger.entries_from(1, 0, 0, 10)) == 2
    ledger.close()


# SQLite: after a restart, and through another connection.


def filled_sqlite(path: Path) -> SqliteLedger:
    ledger = SqliteLedger.create(path, log_uuid=LOG_UUID, epoch=3)
    ledger.store(
        changes(
            1,
            streams={1: stream_row(1, "orders")},
            shards={(1, 0): ShardRow(0, 3, 3, 5, 10)},
            entries=[entry(0, 3, statistics=b"12345678")],
            producers={(3, 1, 0): ProducerRow(1, ((4, 0),), 5)},
            blocks={1: BlockRow(1, 1, "open", 0, 10, 0)},
        )
    )
    return ledger


def assert_filled(ledger: SqliteLedgerReader) -> None:
    assert (ledger.epoch(), ledger.log_uuid(), ledger.applied().number) == (3, LOG_UUID, 1)
    assert ledger.list_streams() == [stream_row(1, "orders")]
    assert ledger.load_shard(1, 0) == ShardRow(0, 3, 3, 5, 10)
    assert ledger.entries_from(1, 0, 0, 9) == [entry(0, 3, statistics=b"12345678")]
    assert ledger.load_producer((3, 1, 0)) == ProducerRow(1, ((4, 0),), 5)
    assert ledger.list_blocks() == [BlockRow(1, 1, "open", 0, 10, 0)]


@pytest.mark.parametrize("checkpointed", [False, True])
def test_sqlite_has_everything_after_reopening(tmp_path, checkpointed):
    ledger = filled_sqlite(tmp_path / "ledger.db")
    if checkpointed:
        assert ledger.checkpoint()
        assert ledger.wal_bytes() == 0
    else:
        assert ledger.wal_bytes() > 0
    ledger.close()
    again = SqliteLedger(tmp_path / "ledger.db")
    again.check_pages()
    assert_filled(again)
    again.close()


def test_a_reader_beside_the_writer_sees_each_flush(tmp_path):
    writer = filled_sqlite(tmp_path / "ledger.db")
    reader = SqliteLedgerReader(tmp_path / "ledger.db")
    assert_filled(reader)
    version = reader.data_version()
    assert reader.data_version() == version
    writer.store(changes(2, shards={(1, 0): ShardRow(0, 4, 4, 5, 10)}, entries=[entry(3, 1)]))
    assert reader.data_version() != version
    assert reader.load_shard(1, 0).next == 4
    assert [each.base for each in reader.entries_from(1, 0, 3, 9)] == [3]
    reader.close()
    writer.close()


def test_a_read_only_connection_cannot_write(tmp_path):
    filled_sqlite(tmp_path / "ledger.db").close()
    reader = SqliteLedgerReader(tmp_path / "ledger.db")
    with pytest.raises(BaseException):  # noqa: B017  # of SQLite, not of ours: nobody of ours tries
        reader._db.execute("DELETE FROM entries")
    reader.close()


def test_a_flipped_bit_in_a_page_is_damage_and_never_a_wrong_row(tmp_path):
    path = tmp_path / "ledger.db"
    ledger = filled_sqlite(path)
    for number in range(2, 200):
        ledger.store(changes(number, entries=[entry(number + 1, 1)]))
    assert ledger.checkpoint()
    expected = ledger.entries_from(1, 0, 0, 1_000)
    ledger.close()
    # The WAL still has what was checkpointed, and would be read instead of the pages.
    path.with_name("ledger.db-wal").unlink()
    data = path.read_bytes()
    for place in range(200, len(data), 4_801):
        damaged = bytearray(data)
        damaged[place] ^= 0x40
        path.write_bytes(damaged)
        try:
            again = SqliteLedger(path)
            try:
                again.check_pages()
                assert again.entries_from(1, 0, 0, 1_000) == expected
            finally:
                again.close()
        except LedgerDamaged:
            continue
        pytest.fail(f"the flip at byte {place} was not noticed")


# The one function that applies a flush, against a model of the rules.

STREAMS = ("a", "b", "c")
PRODUCERS = (0, 11, 12)
SHARDS_MAX = 2


@dataclass
class ModelShard:
    """A list of records is the whole truth about a shard."""

    records: list[int] = field(default_factory=list)  # the number of the batch each record came with
    start: int = 0


@dataclass
class ModelProducer:
    epoch: int
    bases: dict[int, int]  # sequence -> offset of its first record, in the order they came
    seen_us: int


class Model:
    """The rules, as the design states them, over lists and dictionaries."""

    def __init__(self) -> None:
        self.streams: dict[int, dict[str, Any]] = {}
        self.shards: dict[tuple[int, int], ModelShard] = {}
        self.producers: dict[tuple[int, int, int], ModelProducer] = {}
        self.bytes_alive: dict[int, int] = {}
        self.forget: ForgetProducers | None = None

    def batch(self, header: BatchHeader, number: int, length: int, block: int, now: int) -> object:
        stream = self.streams.get(header.stream)
        if stream is None:
            return UnknownStream
        if stream["deleted"]:
            return StreamDeleted
        if header.shard >= stream["shards"]:
            return InvalidRequest
        key = (header.producer, header.stream, header.shard)
        verdict = self.sequence(key, header) if header.producer else None
        if verdict is not None:
            return verdict
        if header.generation != 0:
            return StaleGeneration
        shard = self.shards.setdefault((header.stream, header.shard), ModelShard())
        base = len(shard.records)
        shard.records += [number] * header.count
        if header.producer:
            known = self.producers.get(key)
            bases = known.bases if known and known.epoch == header.producer_epoch else {}
            self.producers[key] = ModelProducer(header.producer_epoch, {**bases, header.sequence: base}, now)
        self.bytes_alive[block] = self.bytes_alive.get(block, 0) + length
        return Appended(base)

    def sequence(self, key: tuple[int, int, int], header: BatchHeader) -> object | None:
        known = self.producers.get(key)
        if known is not None and header.producer_epoch < known.epoch:
            return ProducerFenced
        if known is None or header.producer_epoch > known.epoch:
            return None if header.sequence == 0 else UnknownProducer
        last = max(known.bases)
        if header.sequence == last + 1:
            return None
        if last - 8 < header.sequence <= last:
            return Appended(known.bases[header.sequence], duplicate=True)
        return OutOfSequence

    def create(self, command: CreateStream) -> object:
        if any(each["name"] == command.name and not each["deleted"] for each in self.streams.values()):
            return StreamExists
        if not 1 <= command.shards <= 4096:
            return InvalidRequest
        number = max(self.streams, default=0) + 1
        self.streams[number] = {
            "name": command.name,
            "uuid": command.uuid,
            "shards": command.shards,
            "retention": command.retention_us,
            "deleted": 0,
        }
        return Done(number)

    def change(self, stream: int, act: Callable[[dict[str, Any]], None]) -> object:
        found = self.streams.get(stream)
        if found is None:
            return UnknownStream
        if found["deleted"]:
            return StreamDeleted
        act(found)
        return Done(stream)

    def trim(self, command: TrimShard) -> object:
        def act(_: dict[str, Any]) -> None:
            shard = self.shards.setdefault((command.stream, command.shard), ModelShard())
            shard.start = max(shard.start, min(command.before, len(shard.records)))

        return self.change(command.stream, act)

    def end_flush(self) -> None:
        forget, self.forget = self.forget, None
        if forget is not None:
            idle = [
                key
                for key, row in self.producers.items()
                if forget.first <= key[0] <= forget.last and row.seen_us < forget.before_us
            ]
            for key in idle:
                del self.producers[key]

    def next_sequence(self, producer: int, stream: int, shard: int) -> int:
        known = self.producers.get((producer, stream, shard))
        return 0 if known is None else max(known.bases) + 1


# Mostly the same few places, so that sequences meet each other; now and then one that does not exist.
ids = st.sampled_from((1, 1, 1, 1, 1, 2, 2, 3, 4))
shards = st.sampled_from((0, 0, 0, 0, 1, SHARDS_MAX))
appends = st.tuples(
    st.just("append"),
    ids,
    shards,
    st.sampled_from((11, 11, 11, 12, 0)),
    st.sampled_from((0, 0, 0, 0, 0, 1)),  # epoch
    st.sampled_from((0, 0, 0, 0, 0, 0, -1, -1, -2, -7, -8, -9, 1, 5)),  # how far from the next sequence
    st.integers(1, 3),  # records
    st.sampled_from((0,) * 12 + (1,)),  # generation
)
OPERATIONS = {
    "append": (24, appends),
    "create": (2, st.tuples(st.just("create"), st.sampled_from(STREAMS), st.sampled_from((1, 1, 2, 0, 4097)))),
    "delete": (1, st.tuples(st.just("delete"), ids)),
    "alter": (1, st.tuples(st.just("alter"), ids, st.sampled_from((None, 5_000_000)))),
    "trim": (2, st.tuples(st.just("trim"), ids, shards, st.integers(0, 12))),
    "forget": (1, st.tuples(st.just("forget"), st.integers(0, 3), st.sampled_from(((), (), (0, 11), (12, 99))))),
}
operations = st.sampled_from([name for name, (weight, _) in OPERATIONS.items() for _ in range(weight)]).flatmap(
    lambda name: OPERATIONS[name][1]
)
flush_plans = st.lists(st.lists(operations, min_size=1, max_size=6), min_size=6, max_size=18)
# Streams are there from the start, or most plans would only ever meet unknown ones.
FIRST: list[tuple[Any, ...]] = [("create", "a", 2), ("create", "b", 1)]


class Story:
    """A plan made real: flushes with positions, and what the model says of each item."""

    def __init__(self, plan: Iterable[list[tuple[Any, ...]]]) -> None:
        self.model = Model()
        self.flushes: list[Flush] = []
        self.expected: list[list[object]] = []
        self.places: dict[int, tuple[Flush, WrittenBatch]] = {}
        self._numbers = itertools.count()
        self._position = 64
        for number, wanted in enumerate([FIRST, *plan], start=1):
            self._add(number, wanted)

    def _add(self, number: int, wanted: list[tuple[Any, ...]]) -> None:
        now = NOW_US + number * 1_000_000
        block = 1 + number // 8
        items: list[Any] = []
        said: list[object] = []
        if number == 1 or number % 8 == 0:
            items.append(OpenBlock(block, 1, now))
            said.append(Done())
            self.model.bytes_alive.setdefault(block, 0)
            self._position = 64
            if block > 1:
                items.append(SealBlock(block - 1, 9_999))
                said.append(Done())
        written: list[tuple[int, WrittenBatch]] = []
        for operation in wanted:
            item, outcome, batch = self._item(operation, now, block)
            items.append(item)
            said.append(outcome)
            if batch is not None:
                written.append((batch, item))
        self.model.end_flush()
        self._position += 168
        flush = Flush(number, block, self._position - 168, now, tuple(items))
        self.places.update({batch: (flush, item) for batch, item in written})
        self.flushes.append(flush)
        self.expected.append(said)

    def _item(self, operation: tuple[Any, ...], now: int, block: int) -> tuple[Any, object, int | None]:
        model = self.model
        kind, *rest = operation
        if kind == "append":
            stream, shard, producer, epoch, delta, count, generation = rest
            sequence = max(0, model.next_sequence(producer, stream, shard) + delta) if producer else 0
            header = BatchHeader(
                stream, shard, count, 1, 0, 0, 8, 8, 0, producer, epoch, sequence, generation, now - 5, now
            )
            length = 136 + 8 * count
            item = WrittenBatch(header, self._position, length)
            self._position += length
            number = next(self._numbers)
            return item, model.batch(header, number, length, block, now), number
        self._position += 200
        command: Any
        match kind:
            case "create":
                command = CreateStream(f"{next(self._numbers):032x}", rest[0], rest[1], "crc32", 1_000_000, now)
                return command, model.create(command), None
            case "delete":
                command = DeleteStream(rest[0], now)
                return command, model.change(rest[0], lambda row: row.update(deleted=now)), None
            case "alter":
                command = AlterStream(rest[0], rest[1])
                keep = {} if rest[1] is None else {"retention": rest[1]}
                return command, model.change(rest[0], lambda row: row.update(keep)), None
            case "trim":
                command = TrimShard(*rest)
                return command, model.trim(command), None
        command = ForgetProducers(now - rest[0] * 1_000_000, *rest[1])
        model.forget = command
        return command, Done(), None


def is_as_expected(outcome: object, expected: object) -> bool:
    if isinstance(expected, type):
        return isinstance(outcome, Rejected) and type(outcome.error) is expected
    return outcome == expected


def rows_of(ledger: Ledger) -> dict[str, Any]:
    """Everything a ledger can be asked."""
    keys = [(stream, shard) for stream in range(1, 8) for shard in range(SHARDS_MAX + 1)]
    producers = [(producer, *key) for producer in PRODUCERS for key in keys]
    return {
        "applied": ledger.applied(),
        "streams": list(ledger.list_streams()),
        "shards": {key: ledger.load_shard(*key) for key in keys},
        "entries": {key: list(ledger.entries_from(*key, 0, 10_000)) for key in keys},
        "producers": {key: row for key in producers if (row := ledger.load_producer(key)) is not None},
        "blocks": {number: block for number in range(1, 6) if (block := ledger.load_block(number)) is not None},
    }


def assert_model(story: Story, rows: dict[str, Any]) -> None:
    model = story.model
    assert {row.id: (row.name, row.uuid, row.shards, row.retention_us, row.deleted_us) for row in rows["streams"]} == {
        number: (row["name"], row["uuid"], row["shards"], row["retention"], row["deleted"])
        for number, row in model.streams.items()
    }
    for key, row in rows["shards"].items():
        shard = model.shards.get(key, ModelShard())
        assert (row.start, row.next, row.stable) == (shard.start, len(shard.records), len(shard.records)), key
        assert_entries(story, rows["entries"][key], shard)
    assert {key: (row.epoch, row.recent, row.seen_us) for key, row in rows["producers"].items()} == {
        key: (row.epoch, tuple(row.bases.items())[-8:], row.seen_us) for key, row in model.producers.items()
    }
    assert {block: row.live_bytes for block, row in rows["blocks"].items()} == model.bytes_alive


def assert_entries(story: Story, entries: list[Entry], shard: ModelShard) -> None:
    """Dense, and each record's bytes are where its batch was written."""
    ends = [0, *(each.end for each in entries)]
    assert [each.base for each in entries] == ends[:-1]
    assert ends[-1] == len(shard.records)
    highs = [each.time_high for each in entries]
    assert highs == sorted(highs)
    for each in entries:
        numbers = sorted(set(shard.records[each.base : each.end]))
        position = each.position
        for number in numbers:
            flush, batch = story.places[number]
            assert (flush.block, batch.position) == (each.block, position)
            position += batch.length
        assert position == each.position + each.length


@settings(max_examples=100)
@given(flush_plans)
def test_apply_follows_the_rules_on_every_backend_and_in_every_replay(plan):
    story = Story(plan)
    with tempfile.TemporaryDirectory() as folder:
        ledgers = {name: make(Path(folder)) for name, make in FACTORIES.items()}
        try:
            for ledger in ledgers.values():
                applier = Applier(ledger)
                for flush, expected in zip(story.flushes, story.expected, strict=True):
                    _, outcomes = applier.apply(flush)
                    wrong = [
                        (item, outcome, said)
                        for item, outcome, said in zip(flush.items, outcomes, expected, strict=True)
                        if not is_as_expected(outcome, said)
                    ]
                    assert wrong == []
            rows = rows_of(ledgers["memory"])
            assert_model(story, rows)
            assert rows_of(ledgers["sqlite"]) == rows
        finally:
            for ledger in ledgers.values():
                ledger.close()
    # A replay with a restart after every flush: nothing that only memory knew was needed.
    again = MemoryLedger()
    for flush in story.flushes:
        Applier(again).apply(flush)
    assert rows_of(again) == rows


def test_the_window_of_remembered_sequences_is_exactly_eight():
    """Twelve batches, then each of them again: the last eight get their offsets, the four before are refused."""
    plan = [[("append", 1, 0, 11, 0, 0, 1, 0)] for _ in range(12)]
    repeats = [[("append", 1, 0, 11, 0, delta, 1, 0)] for delta in range(-12, 0)]
    story = Story([*plan, *repeats])
    ledger = MemoryLedger()
    applier = Applier(ledger)
    outcomes = [applier.apply(flush)[1][-1] for flush in story.flushes][-12:]
    assert [type(each.error) for each in outcomes[:4] if isinstance(each, Rejected)] == [OutOfSequence] * 4
    assert outcomes[4:] == [Appended(base, duplicate=True) for base in range(4, 12)]
    assert ledger.load_shard(1, 0).next == 12


def test_a_gap_an_old_epoch_and_a_stranger_are_refused_and_change_nothing():
    fine = ("append", 1, 0, 11, 1, 0, 1, 0)
    plan = [
        [("append", 1, 0, 11, 1, 1, 1, 0)],  # a stranger with sequence 1
        [fine],
        [fine],
        [("append", 1, 0, 11, 1, 1, 1, 0)],  # one is missing in between
        [("append", 1, 0, 11, 0, 0, 1, 0)],  # of the epoch before
        [("append", 1, 0, 11, 2, 0, 1, 0)],  # a new epoch, but not from 0 on
        [fine],
    ]
    story = Story(plan)
    ledger = MemoryLedger()
    applier = Applier(ledger)
    last = [applier.apply(flush)[1][-1] for flush in story.flushes][1:]
    errors = [type(each.error) if isinstance(each, Rejected) else each for each in last]
    assert errors == [
        UnknownProducer,
        Appended(0),
        Appended(1),
        OutOfSequence,
        ProducerFenced,
        UnknownProducer,
        Appended(2),
    ]
    assert ledger.load_shard(1, 0).next == 3


@pytest.mark.parametrize("name", FACTORIES)
def test_a_forgotten_producer_is_a_stranger_even_to_what_is_kept_in_memory(name, tmp_path):
    ledger = FACTORIES[name](tmp_path)
    applier = Applier(ledger)
    header = BatchHeader(1, 0, 1, 1, 0, 0, 8, 8, 0, 11, 0, 0, 0, NOW_US, NOW_US)

    def flush(number: int, *items: Any) -> list[Any]:
        return applier.apply(Flush(number, 1, 64 + 1_000 * number, NOW_US + number, items))[1]

    create = CreateStream("0" * 32, "a", 1, "crc32", 1_000_000, NOW_US)
    flush(1, OpenBlock(1, 1, NOW_US), create, WrittenBatch(header, 64, 144))
    flush(2, ForgetProducers(NOW_US + 2))
    again = BatchHeader(1, 0, 1, 1, 0, 0, 8, 8, 0, 11, 0, 1, 0, NOW_US, NOW_US)
    (outcome,) = flush(3, WrittenBatch(again, 2_000, 144))
    assert isinstance(outcome, Rejected)
    assert type(outcome.error) is UnknownProducer
    (outcome,) = flush(4, WrittenBatch(header, 4_000, 144))
    assert outcome == Appended(1)
    ledger.close()


def test_a_name_is_free_as_soon_as_its_stream_is_deleted_within_one_flush():
    story = Story([[("create", "a", 1), ("delete", 1), ("create", "a", 1), ("append", 3, 0, 11, 0, 0, 1, 0)]])
    applier = Applier(MemoryLedger())
    outcomes = [applier.apply(flush)[1] for flush in story.flushes][-1]
    assert isinstance(outcomes[0], Rejected)
    assert outcomes[1:] == [Done(1), Done(3), Appended(0)]
    found = applier.stream_named("a")
    assert found is not None
    assert found.id == 3


def test_a_flush_out_of_turn_is_a_bug_and_stops():
    applier = Applier(MemoryLedger())
    with pytest.raises(AssertionError, match="flush 2 after 0"):
        applier.apply(Flush(2, 1, 64, NOW_US, ()))


def test_what_one_flush_does_to_one_shard_is_one_entry_unless_a_frame_in_between_is_not_part_of_it():
    one = ("append", 1, 0, 11, 0, 0, 1, 0)
    repeated = ("append", 1, 0, 11, 0, -1, 1, 0)
    other = ("append", 1, 1, 11, 0, 0, 1, 0)
    story = Story([[one, one, one], [one, repeated, one], [one, other, one]])
    ledger = MemoryLedger()
    applier = Applier(ledger)
    for flush in story.flushes:
        applier.apply(flush)
    assert [each.span for each in ledger.entries_from(1, 0, 0, 99)] == [3, 1, 1, 1, 1]
