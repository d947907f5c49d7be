"""A scripted session with a log, the same for the same seed, and what the log must hold after each of its steps.

A step is what goes into one flush: it happens wholly or not at all. So a folder that was left while step n was under
way holds exactly the state after n or after n + 1 steps; there is no third possibility to argue about.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import msgspec

from mainstem.core.batch import Batch, BatchHeader
from mainstem.core.checksum import crc32c
from mainstem.core.errors import MainstemError
from mainstem.core.limits import PRODUCER_RECENT_MAX
from mainstem.log.batcher import Outcomes, Submission
from mainstem.log.flush import (
    AlterStream,
    Appended,
    Assigned,
    AssignShards,
    ChangeAccess,
    Command,
    CommitCursors,
    CommitTransaction,
    CreateStream,
    DeleteGroup,
    DeleteStream,
    Done,
    DropEntries,
    ForgetProducers,
    ForgetTransactions,
    GroupCursors,
    HoldGroup,
    HurryBlocks,
    NoteMoment,
    NoteUpkeep,
    OpenWriter,
    Replacement,
    ResetGroup,
    StagedBatch,
    TransactionCommitted,
    TrimShard,
    WholeTransaction,
    WriterOpened,
)
from mainstem.log.flush import Item as LogItem
from mainstem.log.log import Log, LogOptions
from mainstem.log.replacement import Upshot, moved

# Small enough that one session rolls blocks, checkpoints the ledger and takes snapshots several times.
TINY = LogOptions(block_bytes=64 << 10, checkpoint_bytes=96 << 10, snapshot_bytes=160 << 10)

_PRODUCERS = (101, 202)
_RETENTION_US = 10**15
_TIME_US = 1_000
_MEMBER = 77
# Every so many steps there is one of a kind of command that the others do not have.
_OTHERS_EVERY = 4
_MOVED_ENTRIES_MAX = 3


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch of the script: the stream by its number in the log, the records as one piece of bytes."""

    stream: int
    shard: int
    producer: int
    sequence: int
    count: int
    payload: bytes

    def to_batch(self) -> Batch:
        size = len(self.payload)
        header = BatchHeader(
            self.stream,
            self.shard,
            self.count,
            0,
            0,
            0,
            size,
            size,
            crc32c(self.payload),
            self.producer,
            0,
            self.sequence,
            0,
            1_000,
            1_000,
        )
        return Batch(header, self.payload)


@dataclass(frozen=True, slots=True)
class SentTransaction:
    """All batches of a transaction, in the order of their shards, and how far it moves cursors of a group."""

    id: int
    batches: tuple[SentBatch, ...]
    cursors: tuple[GroupCursors, ...]

    def to_item(self) -> WholeTransaction:
        count = len(self.batches)
        command = CommitTransaction(self.id, count, (), self.cursors, _TIME_US, frames=count)
        return WholeTransaction(command, tuple(self._staged(sent.to_batch()) for sent in self.batches))

    def _staged(self, batch: Batch) -> StagedBatch:
        return StagedBatch(msgspec.structs.replace(batch.header, transaction=self.id), batch.payload)


@dataclass(frozen=True, slots=True)
class Move:
    """What upkeep does when it frees a block: the first entries of a shard are stored anew. Readers notice nothing."""

    stream: int
    shard: int

    def to_item(self, log: Log) -> Replacement:
        row = log.ledger.load_stream(self.stream)
        assert row is not None
        start = log.reader.shard(self.stream, self.shard).start
        found = log.ledger.entries_from(self.stream, self.shard, start, _MOVED_ENTRIES_MAX + 1)
        entries = [entry for entry in found if entry.base >= start][:_MOVED_ENTRIES_MAX]
        return moved(entries, list(log.reader.load(row, entries)), Upshot(_TIME_US))


Item = SentBatch | SentTransaction | Move | Command
Step = tuple[Item, ...]
# (base, count, digest of the payload)
Placed = tuple[int, int, bytes]


@dataclass(slots=True)
class ShardState:
    """The batches of a shard from offset 0, and where readers may begin."""

    batches: list[Placed] = field(default_factory=list)
    start: int = 0
    next: int = 0

    def visible(self) -> tuple[Placed, ...]:
        return tuple(batch for batch in self.batches if batch[0] + batch[1] > self.start)


@dataclass(slots=True)
class GroupState:
    """Of each shard that a group reads, where it stands and who owns it."""

    generation: int = 0
    hold_us: int = 0
    shards: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def copy(self) -> "GroupState":
        return GroupState(self.generation, self.hold_us, dict(self.shards))


@dataclass(slots=True)
class State:
    """What a log must hold: streams by number, groups, who may do what, and what it remembers of producers."""

    names: dict[int, str] = field(default_factory=dict)
    shards: dict[int, list[ShardState]] = field(default_factory=dict)
    # (producer, stream, shard) -> its last batches with their bases, oldest first
    recent: dict[tuple[int, int, int], list[tuple[SentBatch, int]]] = field(default_factory=dict)
    acknowledged: int = 0
    groups: dict[str, GroupState] = field(default_factory=dict)
    access: dict[tuple[str, str], bytes] = field(default_factory=dict)

    def apply(self, step: Step) -> list[int]:
        """Do the step; the expected base of each batch, and of the first of a transaction, -1 for commands."""
        return [self._item(item) for item in step]

    def _item(self, item: Item) -> int:
        if isinstance(item, SentBatch):
            return self._batch(item)
        if isinstance(item, Move):
            return -1
        return self._transaction(item) if isinstance(item, SentTransaction) else self._command(item)

    def _transaction(self, sent: SentTransaction) -> int:
        bases = [self._place(batch) for batch in sent.batches]
        for cursors in sent.cursors:
            self._move(cursors)
        return bases[0]

    def _move(self, cursors: CommitCursors | GroupCursors) -> None:
        shards = self.groups[cursors.group].shards
        shards.update({(stream, shard): (at, shards[stream, shard][1]) for stream, shard, at in cursors.offsets})

    def _command(self, command: Command) -> int:
        match command:
            case CreateStream():
                stream = max(self.shards, default=0) + 1
                self.names[stream] = command.name
                self.shards[stream] = [ShardState() for _ in range(command.shards)]
            case DeleteStream():
                del self.names[command.stream]
                for group in self.groups.values():
                    group.shards = {key: at for key, at in group.shards.items() if key[0] != command.stream}
            case AssignShards():
                self._assign(command)
            case CommitCursors():
                self._move(command)
            case ResetGroup():
                group = self.groups[command.group]
                group.generation += 1
                group.shards.update({(stream, shard): (at, 0) for stream, shard, at in command.offsets})
            case HoldGroup():
                self.groups[command.group].hold_us = command.hold_us
            case DeleteGroup():
                del self.groups[command.group]
            case ChangeAccess():
                for kind, name, value in command.rows:
                    self.access.pop((kind, name), None)
                    if value:
                        self.access[kind, name] = value
            case AlterStream() | OpenWriter() | NoteMoment() | NoteUpkeep() | HurryBlocks() | DropEntries():
                pass  # nothing that a reader could see
            case ForgetProducers() | ForgetTransactions():
                pass  # nobody is that old
            case TrimShard():
                shard = self.shards[command.stream][command.shard]
                shard.start = max(shard.start, min(command.before, shard.next))
            case _:
                raise AssertionError(command)
        return -1

    def _batch(self, sent: SentBatch) -> int:
        key = (sent.producer, sent.stream, sent.shard)
        recent = self.recent.setdefault(key, [])
        for earlier, base in recent:
            if earlier.sequence == sent.sequence:
                return base
        base = self._place(sent)
        recent.append((sent, base))
        del recent[:-PRODUCER_RECENT_MAX]
        return base

    def _place(self, sent: SentBatch) -> int:
        shard = self.shards[sent.stream][sent.shard]
        base = shard.next
        shard.batches.append((base, sent.count, digest(sent.payload)))
        shard.next += sent.count
        self.acknowledged += sent.count
        return base

    def _assign(self, command: AssignShards) -> None:
        group = self.groups.setdefault(command.group, GroupState())
        group.generation = command.generation
        for stream, shard, owner in command.assigned:
            at, _ = group.shards.get((stream, shard), (self.shards[stream][shard].start, 0))
            group.shards[stream, shard] = at, owner

    def copy(self) -> "State":
        return State(
            dict(self.names),
            {
                stream: [ShardState(list(shard.batches), shard.start, shard.next) for shard in shards]
                for stream, shards in self.shards.items()
            },
            {key: list(recent) for key, recent in self.recent.items()},
            self.acknowledged,
            {name: group.copy() for name, group in self.groups.items()},
            dict(self.access),
        )

    def open_recent(self) -> Iterator[tuple[SentBatch, int]]:
        """Every batch the log must still recognise when it is sent again, with its base."""
        for (_, stream, _), sent in self.recent.items():
            if stream in self.names:
                yield from sent

    def content(self) -> dict[str, list[tuple[Placed, ...]]]:
        """What readers can see."""
        return {name: [shard.visible() for shard in self.shards[stream]] for stream, name in self.names.items()}


def digest(payload: bytes | bytearray | memoryview) -> bytes:
    return hashlib.blake2b(payload, digest_size=16).digest()


# In this order: what builds on another comes after it.
_OTHERS = (
    *("assign readers", "transaction", "access", "commit", "assign resting", "leave resting", "reset", "delete"),
    *("move", "hold", "writer", "drop", "move", "alter", "upkeep", "moment", "hurry", "forget", "forget transactions"),
)


class Script:
    """The steps of one seed. `floods` adds steps of very many small batches; `others` adds transactions, groups, rights
    and what else there is beside streams and batches, each kind in its turn."""

    def __init__(self, seed: int, steps: int = 120, *, floods: bool = False, others: bool = False) -> None:
        self._random = random.Random(f"script {seed}")
        self._floods = floods
        self._others = cycle(_OTHERS) if others else None
        self.steps: list[Step] = []
        self._state = State()
        self._sequences: dict[tuple[int, int, int], int] = {}
        for name, shards in (("a", 2), ("b", 1), ("c", 3), ("d", 1)):
            self._add((self._create(name, shards),))
        while len(self.steps) < steps:
            if self._others is not None and len(self.steps) % _OTHERS_EVERY == 0:
                self._add((self._other(next(self._others)),))
            else:
                self._add(self._next(len(self.steps) / steps))

    def state_after(self, steps: int) -> State:
        state = State()
        for step in self.steps[:steps]:
            state.apply(step)
        return state

    def _add(self, step: Step) -> None:
        self._state.apply(step)
        self.steps.append(step)

    def _next(self, progress: float) -> Step:
        if self._floods and self._random.random() < 0.05:
            return tuple(self._batch(self._random.randint(20, 300)) for _ in range(self._random.randint(300, 900)))
        chance = self._random.random()
        if chance < 0.06 and progress > 0.2:
            return (self._trim(),)
        if chance < 0.09 and progress > 0.3 and "d" in self._state.names.values():
            stream = next(stream for stream, name in self._state.names.items() if name == "d")
            return (DeleteStream(stream, 1_000),)
        if chance < 0.15 and "d" not in self._state.names.values():
            return (self._create("d", 2),)
        if chance < 0.25 and self._state.recent:
            return (self._resend(),)
        if chance < 0.32:
            return (self._batch(self._random.randint(9, 12) * 4_096),)
        if chance < 0.55:
            return tuple(self._batch(self._random.randint(20, 3_000)) for _ in range(self._random.randint(2, 6)))
        return (self._batch(self._random.randint(20, 6_000)),)

    def _other(self, kind: str) -> Item:
        groups = self._state.groups
        stream = self._random.choice(list(self._state.names))
        units = [(stream, shard) for shard in range(len(self._state.shards[stream]))]
        match kind:
            case "transaction":
                places = sorted(self._place() for _ in range(self._random.randint(1, 4)))
                batches = [self._filled(*place, 0, 0, self._random.randint(20, 3_000)) for place in places]
                return SentTransaction(self._random.getrandbits(60) + 1, tuple(batches), self._cursors("readers"))
            case "move":
                return Move(*self._random.choice(self._movable()))
            case "access":
                return ChangeAccess((("rule", "a", self._random.randbytes(20)), ("rule", "b", b"")))
            case "assign readers":
                return self._assign("readers", units, _MEMBER)
            case "commit":
                (moved,) = self._cursors("readers")
                return CommitCursors("readers", _MEMBER, moved.offsets, _TIME_US)
            case "hold":
                return HoldGroup("readers", self._random.randrange(10**9))
            case "assign resting":
                return self._assign("resting", units, _MEMBER)
            case "leave resting":
                return self._assign("resting", list(groups["resting"].shards), 0)
            case "reset":
                return ResetGroup("resting", self._places("resting", earliest=True), _TIME_US)
            case "delete":
                return DeleteGroup("resting")
            case "alter":
                return AlterStream(stream, _RETENTION_US + self._random.randrange(100))
            case "writer":
                return OpenWriter("billing", _TIME_US)
            case "drop":
                return DropEntries(stream, self._random.choice(units)[1], 100, 0)
            case "upkeep":
                return NoteUpkeep(*self._random.choice(units))
            case "moment":
                return NoteMoment(stream)
            case "hurry":
                return HurryBlocks(stream, _TIME_US)
            case "forget":
                return ForgetProducers(0)
            case _:
                return ForgetTransactions(0, 100, 0)

    def _assign(self, group: str, units: Sequence[tuple[int, int]], owner: int) -> AssignShards:
        known = self._state.groups.get(group, GroupState())
        return AssignShards(group, known.generation + 1, tuple((*unit, owner) for unit in units), _TIME_US)

    def _movable(self) -> list[tuple[int, int]]:
        """Shards with a batch of which nothing was trimmed."""
        shards = self._state.shards
        units = [(stream, shard) for stream in self._state.names for shard in range(len(shards[stream]))]
        return [
            unit
            for unit in units
            if any(at[0] >= shards[unit[0]][unit[1]].start for at in shards[unit[0]][unit[1]].batches)
        ]

    def _cursors(self, group: str) -> tuple[GroupCursors, ...]:
        return (GroupCursors(group, _MEMBER, self._places(group)),) if group in self._state.groups else ()

    def _places(self, group: str, *, earliest: bool = False) -> tuple[tuple[int, int, int], ...]:
        """Further on in every shard of a group, or anywhere."""
        shards = self._state.groups[group].shards
        ends = {unit: self._state.shards[unit[0]][unit[1]].next for unit in shards}
        firsts = {unit: 0 if earliest else at for unit, (at, _) in shards.items()}
        return tuple((*unit, self._random.randint(min(firsts[unit], end), end)) for unit, end in ends.items())

    def _create(self, name: str, shards: int) -> CreateStream:
        identity = f"{self._random.getrandbits(128):032x}"
        return CreateStream(identity, name, shards, "crc32", _RETENTION_US, 1_000)

    def _trim(self) -> TrimShard:
        stream = self._random.choice(list(self._state.names))
        shard = self._random.randrange(len(self._state.shards[stream]))
        return TrimShard(stream, shard, self._random.randint(0, self._state.shards[stream][shard].next))

    def _resend(self) -> SentBatch:
        known = list(self._state.open_recent())
        return self._random.choice(known)[0] if known else self._batch(100)

    def _batch(self, size: int) -> SentBatch:
        stream, shard = self._place()
        producer = self._random.choice(_PRODUCERS)
        key = (producer, stream, shard)
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + 1
        return self._filled(stream, shard, producer, sequence, size)

    def _place(self) -> tuple[int, int]:
        stream = self._random.choice(list(self._state.names))
        return stream, self._random.randrange(len(self._state.shards[stream]))

    def _filled(self, stream: int, shard: int, producer: int, sequence: int, size: int) -> SentBatch:
        count = self._random.randint(1, 20)
        return SentBatch(stream, shard, producer, sequence, count, self._random.randbytes(size))


def further(state: State) -> Iterator[Step]:
    """Steps that go on from a state, without an end: one batch of each producer in each shard in turn."""
    while True:
        for (producer, stream, shard), recent in list(state.recent.items()):
            if stream in state.names:
                sequence = recent[-1][0].sequence + 1
                yield (SentBatch(stream, shard, producer, sequence, 2, b"%d " % sequence * 200),)


def play(log: Log, steps: Sequence[Step], state: State, on_step: Callable[[], None] = lambda: None) -> None:
    """Carry out the steps one flush at a time; AssertionError if an answer is not the expected one."""
    for step in steps:
        expected = state.apply(step)
        bases = commit(log, step)
        assert bases == expected, f"the log answered {bases}, expected {expected}"
        on_step()


def commit(log: Log, step: Step, on_answer: Callable[[], None] = lambda: None) -> list[int]:
    """One step as one flush: the base of each batch, -1 for commands. Raises what the log raises."""

    def answer(outcomes: Outcomes | MainstemError) -> None:
        on_answer()
        result.append(outcomes)

    items = [_to_item(log, item) for item in step]
    result: list[Outcomes | MainstemError] = []
    log.batcher.submit(Submission(items, answer))
    while not result:
        log.batcher.drive()
    # The copy of the ledger is made by a thread of its own; waiting for it keeps a session the same every time.
    log._maintenance.close()
    if isinstance(result[0], MainstemError):
        raise result[0]
    return [_base(outcome) for outcome in result[0]]


def _to_item(log: Log, item: Item) -> LogItem:
    match item:
        case Move():
            return item.to_item(log)
        case SentBatch():
            return item.to_batch()
        case SentTransaction():
            return item.to_item()
    return item


def _base(outcome: object) -> int:
    if isinstance(outcome, Appended):
        return outcome.base
    if isinstance(outcome, TransactionCommitted):
        return outcome.offsets[0][2]
    assert isinstance(outcome, Done | Assigned | WriterOpened), f"the log refused a step: {outcome}"
    return -1
