"""What the commands of upkeep do to the rows: the same in every ledger and in every replay, and nothing if refused."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mainstem.core.batch import BatchHeader
from mainstem.core.errors import MainstemError, Refused, StreamDeleted, UnknownStream
from mainstem.log.flush import (
    AlterStream,
    BeginEpoch,
    CreateStream,
    DeleteStream,
    Done,
    DropEntries,
    Flush,
    ForgetBlock,
    ForgetStream,
    HurryBlocks,
    NoteUpkeep,
    OpenBlock,
    Outcome,
    Rejected,
    ReplaceEntries,
    SealBlock,
    TrimShard,
    WrittenBatch,
    WrittenItem,
    WrittenReplacement,
)
from mainstem.log.ledger.apply import Applier
from mainstem.log.ledger.base import BlockRow, Entry, Ledger
from mainstem.log.ledger.memory import MemoryLedger
from mainstem.log.ledger.rules.replacement import fingerprint
from mainstem.log.ledger.sqlite import SqliteLedger
from tests.unit.log.parts import LOG_UUID, NOW_US

LENGTH = 200
# What tests call their transactions and their writers.
TRANSACTIONS = 40
WRITERS = ("a", "b", "c")
JOBS = ("loader", "other")
SOON, LATER = NOW_US + 1_000, NOW_US + 9_000


class Ledgers:
    """Every backend, given the same flushes; each flush is compared, and the replay of all at the end."""

    def __init__(self, folder: Path) -> None:
        self.memory = MemoryLedger(epoch=1)
        self._sqlite = SqliteLedger.create(folder / "ledger.db", log_uuid=LOG_UUID, epoch=1)
        self._folder = folder
        self._appliers = [Applier(self.memory), Applier(self._sqlite)]
        self._flushes: list[Flush] = []
        self.block = 1
        self._position = 64
        self.flush(OpenBlock(1, 1, NOW_US), CreateStream("a" * 32, "a", 2, "crc32", 1_000_000, NOW_US))

    def flush(self, *items: WrittenItem) -> list[Outcome]:
        self._position += 1_000
        flush = Flush(len(self._flushes) + 1, self.block, self._position, NOW_US + len(self._flushes), items)
        self._flushes.append(flush)
        mine, theirs = (applier.apply(flush)[1] for applier in self._appliers)
        assert [_told(outcome) for outcome in mine] == [_told(outcome) for outcome in theirs]
        assert _rows(self.memory) == _rows(self._sqlite)
        _check_books(self.memory)
        return mine

    def do(self, item: WrittenItem) -> Done:
        (outcome,) = self.flush(item)
        assert isinstance(outcome, Done), outcome
        return outcome

    def refused(self, item: WrittenItem) -> MainstemError:
        """The error, and that nothing has changed but what is wasted."""
        before = _rows(self.memory)
        (outcome,) = self.flush(item)
        assert isinstance(outcome, Rejected), outcome
        after = _rows(self.memory)
        for name in ("streams", "shards", "entries"):
            assert after[name] == before[name]
        return outcome.error

    def write(self, count: int = 1, *, stream: int = 1, shard: int = 0, flushes: int = 1) -> None:
        for _ in range(flushes):
            self.flush(self.frame(count, stream=stream, shard=shard))

    def frame(self, count: int = 1, *, stream: int = 1, shard: int = 0, span: int = 0, **other: int) -> WrittenBatch:
        """A batch, as it lies in the block after the one before."""
        values: dict[str, int] = {"producer": 0, "sequence": 0, "generation": 0} | other
        header = BatchHeader(
            stream,
            shard,
            count,
            1,
            0,
            0,
            8,
            8,
            0,
            values["producer"],
            0,
            values["sequence"],
            values["generation"],
            NOW_US + len(self._flushes),
            NOW_US + len(self._flushes),
            span=span,
        )
        self._position += LENGTH
        return WrittenBatch(header, self._position - LENGTH, LENGTH)

    def roll(self) -> None:
        self.block += 1
        self.flush(SealBlock(self.block - 1, self._position), OpenBlock(self.block, 1, NOW_US))
        self._position = 64

    def entries(self, stream: int = 1, shard: int = 0) -> list[Entry]:
        return self.memory.entries_from(stream, shard, 0, 1_000)

    def blocks(self) -> dict[int, BlockRow]:
        return {row.id: row for row in self.memory.list_blocks()}

    def replacing(self, old: list[Entry], *new: tuple[int, int], **other: Any) -> WrittenReplacement:
        """(span, count) of the batches that come instead; a span without a record has no frame."""
        frames = tuple(
            self.frame(count, stream=old[0].stream, shard=old[0].shard, span=0 if span == count else span)
            for span, count in new
            if count
        )
        command = ReplaceEntries(
            stream=old[0].stream,
            shard=old[0].shard,
            base=old[0].base,
            end=old[-1].end,
            rows=len(old),
            fingerprint=fingerprint(old),
            entries=tuple((span, int(bool(count))) for span, count in new),
            rewrite_us=LATER,
        )
        return WrittenReplacement(_with(command, other), frames)

    def close(self) -> None:
        again = MemoryLedger(epoch=1)
        applier = Applier(again)
        for number, flush in enumerate(self._flushes):
            # A restart in between changes nothing.
            applier = Applier(again) if number % 3 == 0 else applier
            applier.apply(flush)
        assert _rows(again) == _rows(self.memory)
        self._sqlite.close()
        opened = SqliteLedger(self._folder / "ledger.db")
        assert _rows(opened) == _rows(self.memory)
        opened.close()


def _with(command: ReplaceEntries, other: dict[str, Any]) -> ReplaceEntries:
    fields = {name: getattr(command, name) for name in command.__struct_fields__}
    return ReplaceEntries(**fields | other)


def _told(outcome: Outcome) -> object:
    return (type(outcome.error), str(outcome.error)) if isinstance(outcome, Rejected) else outcome


def _rows(ledger: Ledger) -> dict[str, Any]:
    streams = sorted(ledger.list_streams())
    shards = dict(ledger.list_shards())
    return {
        "applied": ledger.applied(),
        "streams": streams,
        "shards": shards,
        "entries": {key: list(ledger.entries_from(*key, 0, 10_000)) for key in shards},
        "missing": {key: ledger.missing_records(*key) for key in shards},
        "blocks": list(ledger.list_blocks()),
        "dead": {row.id: ledger.dead_bytes(row.id) for row in streams},
        "stream_id_max": ledger.stream_id_max(),
        "epoch": ledger.epoch(),
        "restored": {epoch: dict(ends) for epoch, ends in ledger.restored().items()},
        "groups": {row: list(ledger.list_group_shards(row.id)) for row in ledger.list_groups()},
        "group_id_max": ledger.group_id_max(),
        "transactions": [ledger.load_transaction(number) for number in range(TRANSACTIONS)],
        "writers": [ledger.load_writer(name) for name in WRITERS],
        "deliveries": [ledger.load_deliveries((stream, job)) for stream in range(3) for job in JOBS],
    }


def _check_books(ledger: MemoryLedger) -> None:
    live: dict[int, int] = {}
    for key, row in ledger.list_shards():
        entries = ledger.entries_from(*key, 0, 10_000)
        assert row.bytes == sum(entry.length for entry in entries)
        assert all(first.end == second.base for first, second in pairwise(entries))
        for entry in entries:
            live[entry.block] = live.get(entry.block, 0) + entry.length
    for block in ledger.list_blocks():
        assert block.live_bytes == live.get(block.id, 0)
        assert bool(block.dead_us) == (block.state == "sealed" and not block.live_bytes)


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[Ledgers]:
    found = Ledgers(tmp_path)
    yield found
    found.close()


# Dropping.


def test_rows_below_the_start_are_dropped(ledgers):
    ledgers.write(2, flushes=5)
    ledgers.do(TrimShard(1, 0, 7))
    assert ledgers.do(DropEntries(1, 0, 2, LATER)) == Done(1, 2)
    assert [entry.base for entry in ledgers.entries()] == [4, 6, 8]
    # The one in which the shard starts stays.
    assert ledgers.do(DropEntries(1, 0, 99, SOON)) == Done(1, 1)
    assert ledgers.do(DropEntries(1, 0, 99, SOON)) == Done(1, 0)
    assert [entry.base for entry in ledgers.entries()] == [6, 8]
    assert ledgers.memory.dead_bytes(1) == {1: 3 * LENGTH}
    assert ledgers.blocks()[1].rewrite_us == SOON
    assert ledgers.do(DropEntries(9, 0, 99, SOON)) == Done()


def test_of_a_deleted_stream_every_row_is_dropped_and_then_it_is_forgotten(ledgers):
    ledgers.write(flushes=3)
    ledgers.do(CreateStream("b" * 32, "b", 1, "crc32", 1_000_000, NOW_US))
    assert type(ledgers.refused(ForgetStream(1))) is Refused
    ledgers.do(DeleteStream(1, NOW_US))
    assert type(ledgers.refused(ForgetStream(1))) is Refused
    assert ledgers.do(DropEntries(1, 0, 99, LATER)).rows == 3
    assert ledgers.do(ForgetStream(1)) == Done(1)
    assert ledgers.do(ForgetStream(1)) == Done()
    assert [row.id for row in ledgers.memory.list_streams()] == [2]
    ledgers.do(DeleteStream(2, NOW_US))
    ledgers.do(ForgetStream(2))
    assert ledgers.do(CreateStream("c" * 32, "a", 1, "crc32", 1_000_000, NOW_US)) == Done(3)
    assert type(ledgers.refused(TrimShard(1, 0, 1))) is UnknownStream
    assert type(ledgers.refused(AlterStream(2, 5))) is UnknownStream


# Replacing.


def test_entries_are_replaced(ledgers):
    ledgers.write(2, flushes=6)
    old = ledgers.entries()
    item = ledgers.replacing(old[1:5], (3, 3), (1, 0), (4, 2), merged=10, compacted=4)
    assert ledgers.do(item) == Done(1, 4)
    made = ledgers.entries()[1:4]
    assert [(entry.base, entry.span, entry.count, entry.length) for entry in made] == [
        (2, 3, 3, LENGTH),
        (5, 1, 0, 0),
        (6, 4, 2, LENGTH),
    ]
    assert [entry.block for entry in made] == [1, 0, 1]
    # The highest time up to each is that of the row in which it ends.
    assert [entry.time_high for entry in made] == [old[2].time_high, old[2].time_high, old[4].time_high]
    row = ledgers.memory.load_shard(1, 0)
    assert (row.merged, row.compacted, row.bytes) == (10, 4, 4 * LENGTH)
    assert ledgers.memory.dead_bytes(1) == {1: 4 * LENGTH}
    assert ledgers.blocks()[1].rewrite_us == LATER
    # What comes after goes on as if nothing had been.
    ledgers.write(1)
    assert ledgers.entries()[-1].base == 12


def test_a_block_is_dead_when_the_last_entry_leaves_it_and_then_it_can_be_forgotten(ledgers):
    ledgers.write(flushes=2)
    ledgers.roll()
    assert type(ledgers.refused(ForgetBlock(1))) is Refused
    ledgers.do(ledgers.replacing(ledgers.entries(), (2, 2)))
    assert ledgers.blocks()[1].dead_us
    assert ledgers.memory.dead_bytes(1) == {1: 2 * LENGTH}
    assert type(ledgers.refused(ForgetBlock(2))) is Refused
    ledgers.do(ForgetBlock(1))
    assert list(ledgers.blocks()) == [2]
    assert ledgers.memory.dead_bytes(1) == {}
    assert ledgers.do(ForgetBlock(1)) == Done()
    assert ledgers.do(ForgetBlock(77)) == Done()


def test_nothing_is_left(ledgers):
    ledgers.write(3, flushes=2)
    ledgers.roll()
    ledgers.do(ledgers.replacing(ledgers.entries(), (6, 0)))
    (entry,) = ledgers.entries()
    assert (entry.span, entry.count, entry.block, entry.length) == (6, 0, 0, 0)
    assert ledgers.memory.load_shard(1, 0).bytes == 0
    # And what is not there can be replaced and dropped as the rest.
    ledgers.write(2)
    ledgers.do(ledgers.replacing(ledgers.entries(), (8, 2)))
    ledgers.do(TrimShard(1, 0, 8))
    assert ledgers.do(DropEntries(1, 0, 9, LATER)).rows == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"fingerprint": 1},
        {"rows": 2},
        {"rows": 4},
        {"end": 5},
        {"base": 1},
        {"entries": ((3, 1), (4, 0))},
        {"entries": ((2, 1), (4, 0))},
        {"entries": ((1, 0), (5, 1))},
    ],
    ids=str,
)
def test_a_replacement_that_does_not_fit_changes_nothing(ledgers, wrong):
    ledgers.write(2, flushes=4)
    item = ledgers.replacing(ledgers.entries()[:3], (3, 3), (3, 0), **wrong)
    assert type(ledgers.refused(item)) is Refused
    # Its bytes are in the block, and must not stay there.
    assert ledgers.memory.dead_bytes(1) == {1: LENGTH}
    assert 0 < ledgers.blocks()[1].rewrite_us < SOON


def test_frames_that_do_not_lie_together_are_refused(ledgers):
    ledgers.write(1, flushes=2)
    old = ledgers.entries()
    good = ledgers.replacing(old, (1, 1), (1, 1))
    apart = (good.frames[0], WrittenBatch(good.frames[1].header, good.frames[1].position + 64, LENGTH))
    command = _with(good.command, {"entries": ((2, 2),)})
    assert type(ledgers.refused(WrittenReplacement(command, apart))) is Refused


def test_entries_that_were_replaced_before_are_not_replaced_again(ledgers):
    ledgers.write(2, flushes=4)
    old = ledgers.entries()
    first, second = ledgers.replacing(old[:3], (6, 6)), ledgers.replacing(old[1:], (6, 6))
    ledgers.do(first)
    assert type(ledgers.refused(second)) is Refused
    assert ledgers.memory.dead_bytes(1) == {1: 4 * LENGTH}


@pytest.mark.parametrize("together", ["replacements", "drop first", "drop last"])
def test_what_overlaps_in_one_flush_is_refused_and_the_rest_of_it_is_done(ledgers, together):
    ledgers.write(2, flushes=6)
    ledgers.do(TrimShard(1, 0, 4))
    old = ledgers.entries()
    drop = DropEntries(1, 0, 99, LATER)
    one, other = ledgers.replacing(old[1:3], (4, 4)), ledgers.replacing(old[2:5], (6, 6))
    apart = ledgers.replacing(old[5:], (2, 2))
    items: dict[str, list[WrittenItem]] = {
        "replacements": [one, other, apart],
        "drop first": [drop, one, apart],
        "drop last": [one, drop, apart],
    }
    outcomes = ledgers.flush(*items[together])
    assert [type(outcome) for outcome in outcomes] == [Done, Rejected, Done]
    assert [entry.base for entry in ledgers.entries()][-1] == 10


def test_appends_and_replacements_in_one_flush(ledgers):
    ledgers.write(2, flushes=3)
    old = ledgers.entries()
    first = ledgers.frame(1)
    item = ledgers.replacing(old, (6, 6))
    last = ledgers.frame(1)
    ledgers.flush(first, item, last)
    assert [(entry.base, entry.span) for entry in ledgers.entries()] == [(0, 6), (6, 1), (7, 1)]


def test_a_stream_that_was_deleted_meanwhile_is_left_alone(ledgers):
    ledgers.write(2, flushes=3)
    item = ledgers.replacing(ledgers.entries(), (6, 6))
    outcomes = ledgers.flush(DeleteStream(1, NOW_US), item)
    assert isinstance(outcomes[1], Rejected)
    assert type(outcomes[1].error) is StreamDeleted
    assert type(ledgers.refused(ledgers.replacing(ledgers.entries(), (6, 6)))) is StreamDeleted
    assert type(ledgers.refused(NoteUpkeep(1, 0, merged=3))) is StreamDeleted


# What is wasted, and hurry.


def test_what_was_sent_twice_is_dead_from_the_beginning(ledgers):
    ledgers.flush(ledgers.frame(producer=7))
    ledgers.flush(ledgers.frame(producer=7), ledgers.frame(producer=7, sequence=9))
    assert ledgers.memory.dead_bytes(1) == {1: 2 * LENGTH}
    assert ledgers.blocks()[1].rewrite_us == 0
    # It is in no hurry until what it is a copy of goes.
    ledgers.roll()
    ledgers.flush(ledgers.frame(producer=7, sequence=1))
    ledgers.do(TrimShard(1, 0, 1))
    ledgers.do(DropEntries(1, 0, 9, LATER))
    assert ledgers.blocks()[1].rewrite_us == LATER


def test_blocks_are_hurried_and_never_slowed(ledgers):
    ledgers.write(flushes=3)
    ledgers.roll()
    ledgers.do(HurryBlocks(1, SOON))
    assert [row.rewrite_us for row in ledgers.blocks().values()] == [0, 0]
    ledgers.do(ledgers.replacing(ledgers.entries()[:1], (1, 1)))
    ledgers.do(HurryBlocks(1, SOON))
    ledgers.do(HurryBlocks(1, LATER))
    assert [row.rewrite_us for row in ledgers.blocks().values()] == [SOON, 0]


def test_notes_only_rise(ledgers):
    ledgers.write(5)
    ledgers.do(NoteUpkeep(1, 0, merged=4, compacted=2))
    ledgers.do(NoteUpkeep(1, 0, merged=1, compacted=3))
    row = ledgers.memory.load_shard(1, 0)
    assert (row.merged, row.compacted) == (4, 3)


def test_a_block_that_no_flush_opened_can_be_sealed_and_forgotten(ledgers):
    ledgers.do(SealBlock(40, 64))
    assert (ledgers.blocks()[40].state, ledgers.blocks()[40].bytes) == ("sealed", 64)
    assert ledgers.blocks()[40].dead_us
    ledgers.do(ForgetBlock(40))
    assert list(ledgers.blocks()) == [1]


# Epochs.


def test_an_epoch_remembers_where_the_one_before_ended(ledgers):
    ledgers.write(3)
    ledgers.write(2, shard=1)
    assert type(ledgers.refused(BeginEpoch(3, NOW_US))) is Refused
    assert type(ledgers.refused(BeginEpoch(1, NOW_US))) is Refused
    ledgers.do(BeginEpoch(2, NOW_US))
    assert ledgers.memory.epoch() == 2
    assert ledgers.memory.restored() == {1: {(1, 0): 3, (1, 1): 2}}
    ledgers.write(1)
    ledgers.do(BeginEpoch(3, NOW_US))
    assert ledgers.memory.restored()[2] == {(1, 0): 4, (1, 1): 2}
    ledgers.do(DeleteStream(1, NOW_US))
    ledgers.do(DropEntries(1, 0, 9, LATER))
    ledgers.do(DropEntries(1, 1, 9, LATER))
    ledgers.do(ForgetStream(1))


def test_a_new_batch_must_not_reach_over_a_barrier(ledgers):
    """Readers would wait with what it has from before the barrier."""
    ledgers.write(3)
    ledgers.do(AlterStream(1, shards=3))
    ledgers.flush(ledgers.frame(2, generation=1))
    old = ledgers.entries()
    for new in [((5, 5),), ((4, 2), (1, 1)), ((2, 2), (3, 2))]:
        error = ledgers.refused(ledgers.replacing(old, *new))
        assert isinstance(error, Refused)
        assert "over a barrier" in str(error)
    # What has no records may.
    ledgers.do(ledgers.replacing(old, (2, 1), (2, 0), (1, 1)))
    assert [(entry.base, entry.span, entry.count) for entry in ledgers.entries()] == [(0, 2, 1), (2, 2, 0), (4, 1, 1)]
