"""Opens a folder that something happened to, reads all of it, and says how it differs from what it must hold."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from mainstem.core.errors import DataLoss, FolderUnusable
from mainstem.log.flush import Appended
from mainstem.log.ledger.base import StreamRow
from mainstem.log.log import Log, LogOptions
from tests.faults.script import TINY, GroupState, Placed, SentBatch, ShardState, State, commit, digest, further


@dataclass(slots=True)
class Found:
    """All that a log gives its readers, by stream name and shard."""

    batches: dict[str, list[tuple[Placed, ...]]] = field(default_factory=dict)
    losses: dict[tuple[str, int], list[DataLoss]] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=dict)
    access: dict[tuple[str, str], bytes] = field(default_factory=dict)


def read_all(log: Log) -> Found:
    found = Found()
    for row in log.ledger.list_streams():
        if not row.deleted_us:
            found.batches[row.name] = [tuple(_read_shard(log, row, shard, found)) for shard in range(row.shards)]
    for group in log.ledger.list_groups():
        shards = {key: (at.offset, at.owner) for key, at in log.ledger.list_group_shards(group.id)}
        found.groups[group.name] = GroupState(group.generation, group.hold_us, shards)
    found.access = dict(log.ledger.load_access())
    return found


def _read_shard(log: Log, row: StreamRow, shard: int, found: Found) -> list[Placed]:
    place = log.reader.shard(row.id, shard)
    offset, batches = place.start, []
    while offset < place.stable:
        try:
            read = log.reader.read(row, shard, offset)
        except DataLoss as loss:
            if loss.last < offset:
                raise AssertionError(f"a loss that ends at {loss.last} does not help a reader at {offset}") from loss
            found.losses.setdefault((row.name, shard), []).append(loss)
            offset = loss.last + 1
            continue
        assert read, f"stream {row.name} shard {shard}: nothing at {offset}, though it ends at {place.stable}"
        batches += [(batch.base, batch.header.count, digest(batch.payload)) for batch in read]
        offset = read[-1].end
    return batches


def differences(expected: State, found: Found, *, losses_allowed: bool = False) -> list[str]:
    """Every way in which what was found is not what must be there; [] if it is, apart from losses that were told."""
    content = expected.content()
    wrong = []
    if expected.groups != found.groups:
        wrong.append(f"groups are {found.groups}, and must be {expected.groups}")
    if expected.access != found.access:
        wrong.append(f"rights are {found.access}, and must be {expected.access}")
    if content == found.batches and not found.losses:
        return wrong
    wrong += [f"stream {name!r} is missing" for name in content if name not in found.batches]
    wrong += [f"stream {name!r} should not be there" for name in found.batches if name not in content]
    for stream, name in expected.names.items():
        if name not in found.batches:
            continue
        for shard, must in enumerate(expected.shards[stream]):
            told = found.losses.get((name, shard), [])
            if told and not losses_allowed:
                wrong.append(f"readers are told of a loss: {told[0]}")
            where = f"stream {name!r} shard {shard}"
            wrong += [f"{where}: {text}" for text in _shard_differences(must, found.batches[name][shard], told)]
    return wrong


def _shard_differences(must: ShardState, got: Sequence[Placed], told: Sequence[DataLoss]) -> list[str]:
    wrong = []
    seen = {batch[0]: batch for batch in got}
    if len(seen) != len(got):
        wrong.append("an offset was given twice")
    for batch in must.visible():
        base, count, _ = batch
        # A batch that was trimmed in the middle is missed from there on only.
        first, last = max(base, must.start), base + count - 1
        other = seen.pop(base, None)
        if other is None and not any(loss.first <= first and last <= loss.last for loss in told):
            wrong.append(f"records {first} to {last} are missing and nobody said so")
        if other is not None and other != batch:
            wrong.append(f"other records at offset {base} than those acknowledged")
    wrong += [f"records at {base} that were never sent" for base in seen]
    return wrong


@dataclass(slots=True)
class Verdict:
    """What became of a folder. `refusal` is the log's reason not to open it."""

    wrong: list[str] = field(default_factory=list)
    refusal: str = ""
    losses: int = 0
    seconds: float = 0.0


def judge(
    folder: Path,
    states: Sequence[State],
    *,
    refusal_allowed: bool = False,
    losses_allowed: bool = False,
    go_on: bool = False,
    options: LogOptions = TINY,
) -> Verdict:
    """Open the folder, which must hold one of the states, and read it.

    `go_on` also uses it: everything that may be sent again is, and must get its original offsets; then new records
    are written, and after another open all of it must be there.
    """
    verdict = Verdict()
    started = time.perf_counter()
    try:
        log = Log(folder, options)
    except FolderUnusable as refusal:
        verdict.refusal = str(refusal)
        if not refusal_allowed:
            verdict.wrong.append(f"refused: {refusal}")
        return verdict
    except Exception as error:
        verdict.wrong.append(f"open ended with {type(error).__name__}: {error}")
        return verdict
    verdict.seconds = time.perf_counter() - started
    try:
        state = _match(log, states, verdict, losses_allowed=losses_allowed)
        if go_on and not verdict.wrong:
            state = state.copy()
            _use(log, state, verdict)
    except Exception as error:
        verdict.wrong.append(f"reading ended with {type(error).__name__}: {error}")
    finally:
        log.close()
    if go_on and not verdict.wrong:
        again = judge(folder, [state], losses_allowed=losses_allowed, options=options)
        verdict.wrong += [f"after going on: {text}" for text in again.wrong]
    return verdict


def _match(log: Log, states: Sequence[State], verdict: Verdict, *, losses_allowed: bool) -> State:
    found = read_all(log)
    verdict.losses = sum(len(losses) for losses in found.losses.values())
    for state in states:
        wrong = differences(state, found, losses_allowed=losses_allowed)
        if not wrong:
            return state
    verdict.wrong += wrong
    return state


def _use(log: Log, state: State, verdict: Verdict) -> None:
    """Send everything again that the log must recognise, then something new from each producer it knows."""
    for sent, base in state.open_recent():
        result: list = []
        log.append([sent.to_batch()], result.append)
        while not result:
            log.batcher.drive()
        if result[0] != [Appended(base, duplicate=True)]:
            verdict.wrong.append(f"{_name(sent)} stands at {base}; sent again it got {result[0]}")
    for step in islice(further(state), len(state.recent)):
        expected = state.apply(step)
        bases = commit(log, step)
        if bases != expected:
            verdict.wrong.append(f"{step} got {bases}, expected {expected}")


def _name(sent: SentBatch) -> str:
    return f"batch {sent.sequence} of producer {sent.producer} in stream {sent.stream} shard {sent.shard}"
