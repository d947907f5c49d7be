"""A scripted session with a log, the same for the same seed, and what the log must hold after each of its steps.

A step is what goes into one flush: it happens wholly or not at all. So a folder that was left while step n was under
way holds exactly the state after n or after n + 1 steps; there is no third possibility to argue about.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mainstem.core.batch import Batch, BatchHeader
from mainstem.core.checksum import crc32c
from mainstem.core.errors import MainstemError
from mainstem.core.limits import PRODUCER_RECENT_MAX
from mainstem.log.batcher import Outcomes, Submission
from mainstem.log.flush import Appended, Command, CreateStream, DeleteStream, Done, TrimShard
from mainstem.log.log import Log, LogOptions

# Small enough that one session rolls blocks, checkpoints the ledger and takes snapshots several times.
TINY = LogOptions(block_bytes=64 << 10, checkpoint_bytes=96 << 10, snapshot_bytes=160 << 10)

_PRODUCERS = (101, 202)
_RETENTION_US = 10**15


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


Item = SentBatch | Command
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
class State:
    """What a log must hold: streams by number, and what it remembers of producers."""

    names: dict[int, str] = field(default_factory=dict)
    shards: dict[int, list[ShardState]] = field(default_factory=dict)
    # (producer, stream, shard) -> its last batches with their bases, oldest first
    recent: dict[tuple[int, int, int], list[tuple[SentBatch, int]]] = field(default_factory=dict)
    acknowledged: int = 0

    def apply(self, step: Step) -> list[int]:
        """Do the step; the expected base of each batch, -1 for commands."""
        return [self._batch(item) if isinstance(item, SentBatch) else self._command(item) for item in step]

    def _command(self, command: Command) -> int:
        match command:
            case CreateStream():
                stream = max(self.shards, default=0) + 1
                self.names[stream] = command.name
                self.shards[stream] = [ShardState() for _ in range(command.shards)]
            case DeleteStream():
                del self.names[command.stream]
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
        shard = self.shards[sent.stream][sent.shard]
        base = shard.next
        shard.batches.append((base, sent.count, digest(sent.payload)))
        shard.next += sent.count
        recent.append((sent, base))
        del recent[:-PRODUCER_RECENT_MAX]
        self.acknowledged += sent.count
        return base

    def copy(self) -> "State":
        return State(
            dict(self.names),
            {
                stream: [ShardState(list(shard.batches), shard.start, shard.next) for shard in shards]
                for stream, shards in self.shards.items()
            },
            {key: list(recent) for key, recent in self.recent.items()},
            self.acknowledged,
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


class Script:
    """The steps of one seed. `floods` adds steps of very many small batches."""

    def __init__(self, seed: int, steps: int = 120, *, floods: bool = False) -> None:
        self._random = random.Random(f"script {seed}")
        self._floods = floods
        self.steps: list[Step] = []
        self._state = State()
        self._sequences: dict[tuple[int, int, int], int] = {}
        for name, shards in (("a", 2), ("b", 1), ("c", 3), ("d", 1)):
            self._add((self._create(name, shards),))
        while len(self.steps) < steps:
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
        stream = self._random.choice(list(self._state.names))
        shard = self._random.randrange(len(self._state.shards[stream]))
        producer = self._random.choice(_PRODUCERS)
        key = (producer, stream, shard)
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + 1
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

    items = [item.to_batch() if isinstance(item, SentBatch) else item for item in step]
    result: list[Outcomes | MainstemError] = []
    log.batcher.submit(Submission(items, answer))
    while not result:
        log.batcher.drive()
    # The copy of the ledger is made by a thread of its own; waiting for it keeps a session the same every time.
    log._maintenance.close()
    if isinstance(result[0], MainstemError):
        raise result[0]
    return [_base(outcome) for outcome in result[0]]


def _base(outcome: object) -> int:
    if isinstance(outcome, Appended):
        return outcome.base
    assert isinstance(outcome, Done), f"the log refused a step: {outcome}"
    return -1
