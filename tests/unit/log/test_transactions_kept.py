"""Transactions of a log that is kept meanwhile: what was committed is there, whatever upkeep moves and frees."""

import random
from typing import Any

import pytest

from mainstem.core.errors import TransactionAborted
from mainstem.log.flush import DeleteStream, TransactionCommitted
from mainstem.log.ledger.inspector import LedgerInspector
from mainstem.log.log import Log, Waiter
from tests.unit.log.keeping import Keeping
from tests.unit.log.parts import append_values, make_batch, make_stream, values_of

SHARDS = ((1, 0), (1, 1), (2, 0))


class Played:
    """A log and what must be in it. Time passes between the steps, for some transactions too much."""

    def __init__(self, keeping: Keeping, seed: int) -> None:
        self.keeping = keeping
        self._draw = random.Random(f"kept {seed}")
        self.records: dict[tuple[int, int], list[bytes | None]] = {key: [] for key in SHARDS}
        # What is staged in each, how often, and until when it may be committed.
        self._open: dict[int, tuple[list[tuple[int, int, list[bytes]]], int, float]] = {}
        self._next = 1
        self._gone = 0
        self.counts = dict.fromkeys(("committed", "late"), 0)
        make_stream(keeping.log, "orders", shards=2)
        make_stream(keeping.log, "totals")

    def step(self) -> None:
        draw = self._draw
        chance = draw.random()
        if chance < 0.15:
            key = draw.choice(SHARDS)
            values = self._values()
            append_values(self.keeping.log, key[0], *values, shard=key[1])
            self.records[key] += values
        elif chance < 0.5:
            self._stage()
        elif chance < 0.75 and self._open:
            self._commit(draw.choice(list(self._open)))
        elif chance < 0.8 and self._open:
            transaction = draw.choice(list(self._open))
            self.keeping.log.abort_transaction(transaction)
            del self._open[transaction]
        elif chance < 0.88:
            self.keeping.roll()
        elif chance < 0.97:
            self.keeping.keep(draw.choice((31.0, 200.0, 700.0)))
        elif chance < 0.99:
            self.keeping.reopen(without_ledger=draw.random() < 0.3)
            self._open.clear()
        else:
            self._delete_another()

    def _values(self) -> list[bytes]:
        return [self._draw.randbytes(self._draw.randint(1, 3_000)) for _ in range(self._draw.randint(1, 3))]

    def _stage(self) -> None:
        draw, log = self._draw, self.keeping.log
        now = self.keeping.clock.monotonic()
        alive = [number for number, (_, _, deadline) in self._open.items() if deadline > now]
        transaction = draw.choice([*alive, self._next])
        timeout = draw.choice((60.0, 900.0))
        staged, index, deadline = self._open.get(transaction, ([], 0, now + timeout))
        self._next = max(self._next, transaction + 1)
        batches = [(*draw.choice(SHARDS), self._values()) for _ in range(draw.randint(1, 4))]
        waiter = Waiter()
        made = [make_batch(values, stream=stream, shard=shard) for stream, shard, values in batches]
        log.stage(transaction, index, made, waiter.set, timeout=timeout)
        waiter.wait(log.batcher)
        self._open[transaction] = ([*staged, *batches], index + 1, deadline)

    def _commit(self, transaction: int) -> None:
        staged, _, deadline = self._open.pop(transaction)
        outcome = committed(self.keeping.log, transaction, len(staged))
        if deadline <= self.keeping.clock.monotonic():
            assert isinstance(outcome, TransactionAborted), outcome
            self.counts["late"] += 1
            return
        assert isinstance(outcome, TransactionCommitted), outcome
        self.counts["committed"] += 1
        for stream, shard, values in staged:
            self.records[stream, shard] += values

    def _delete_another(self) -> None:
        """A stream that goes, with something staged for it."""
        log = self.keeping.log
        self._gone += 1
        stream = make_stream(log, f"gone {self._gone}".replace(" ", "-"))
        waiter = Waiter()
        log.stage(self._next, 0, [make_batch([b"gone" * 500], stream=stream)], waiter.set)
        waiter.wait(log.batcher)
        self._next += 1
        log.execute(DeleteStream(stream, self.keeping.clock.now_us()))


def committed(log: Log, transaction: int, batches: int) -> Any:
    """The outcome, or the error."""
    waiter = Waiter()
    log.commit_transaction(transaction, batches, (), waiter.set)
    (outcome,) = waiter.wait(log.batcher)
    return outcome if isinstance(outcome, TransactionCommitted) else outcome.error  # type: ignore[union-attr]


def read(log: Log) -> dict[tuple[int, int], list[bytes | None]]:
    found: dict[tuple[int, int], list[bytes | None]] = {}
    for key in SHARDS:
        values: list[bytes | None] = []
        row = log.reader.require_stream(key[0])
        while batches := log.reader.read(row, key[1], len(values)):
            for batch in batches:
                assert batch.base == len(values)
                values += values_of(batch)
        found[key] = values
    return found


@pytest.mark.slow("many steps of upkeep")
@pytest.mark.parametrize("seed", range(4))
def test_what_was_committed_is_there_and_nothing_else(tmp_path, seed):
    keeping = Keeping(tmp_path / "data")
    played = Played(keeping, seed)
    for _ in range(120):
        played.step()
    assert read(keeping.log) == played.records
    assert played.counts["committed"] > 5
    # Twice: what was merged the first time is then off the disk too.
    for _ in range(2):
        keeping.collect()
        assert read(keeping.log) == played.records
    # What is not alive any more is not on the disk: of no block more than half, but for the newest.
    for block in list(keeping.blocks().values())[:-2]:
        assert 2 * block.live_bytes >= block.bytes
    keeping.reopen(without_ledger=True)
    assert read(keeping.log) == played.records
    keeping.log.close()
    ledger = LedgerInspector(tmp_path / "data" / "ledger.db")
    assert ledger.look().flaws == ()
    ledger.close()
