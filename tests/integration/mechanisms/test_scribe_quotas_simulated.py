"""The experiments with Scribe's quotas once more, with a clock that is set: no machine is too slow for these bounds."""

import heapq
import random
from collections import deque
from typing import NamedTuple

import pytest

from mainstem.access import store
from mainstem.access.bucket import Turnstile
from mainstem.access.policy import Policy
from mainstem.access.principal import Principal
from mainstem.access.quotas import Quotas
from mainstem.core.errors import QuotaExceeded
from mainstem.core.sampling import is_kept, kept
from mainstem.testing.clock import SimulatedClock
from mainstem.transport.guarding import Mode, Quota

ALICE, BOB = Principal("alice"), Principal("bob")

# S67: a token bucket in front of all who connect.

CLIENTS = 300
RATE, BURST = 50, 100


def stampede(rate: float, burst: float) -> list[float]:
    """When each of many clients, which all come at once, is let in. Who is sent away comes back when it was told to,
    and a little later."""
    clock, jitter = SimulatedClock(), random.Random(67)
    turnstile = Turnstile(rate, clock, burst)
    coming = [(jitter.uniform(0.0, 0.05), client) for client in range(CLIENTS)]
    heapq.heapify(coming)
    times: list[float] = []
    while coming:
        at, client = heapq.heappop(coming)
        clock.advance(at - clock.monotonic())
        if wait := turnstile.enter():
            heapq.heappush(coming, (at + wait + jitter.uniform(0.0, 0.1), client))
        else:
            times.append(at)
    return [at - times[0] for at in times]


def most_too_many(times: list[float]) -> float:
    return max(count - (BURST + RATE * at) * 1.05 for count, at in enumerate(times, 1))


@pytest.mark.mechanism("S67")
def test_s67_the_bucket_lets_in_as_many_as_it_may_and_all_within_6_seconds():
    times = stampede(RATE, BURST)
    assert len(times) == CLIENTS
    assert most_too_many(times) <= 0
    assert times[-1] <= 6.0
    assert most_too_many(stampede(100_000, 200_000)) > 50


# S68: what is over a quota of writing.

QUOTA = 500_000
DEMAND = 1_000_000
RECORD = 1_000
RECORDS = 20
WRITERS = 3
SECONDS = 60
# How long it takes until what was decided is known at the other side; and how much of a change is worth a word.
LATENCY = 0.01
SHARE_STEP = 0.02


class Written(NamedTuple):
    """When how many bytes were taken; records by their fates; the longest that a batch has waited; for how many records
    those that were taken stand."""

    taken: list[tuple[float, int]]
    sent: int
    stored: int
    refused: int
    left_out: int
    waiting: int
    delay: float
    estimated: float

    def rate(self, begin: float) -> float:
        return sum(size for at, size in self.taken if at >= begin) / (SECONDS - begin)


class _Writer:
    """Sends its part of the demand in batches; it keeps the share that it was told, and waits while nothing is read."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.made = 0
        self.looked_at = 0
        self.share = 1.0
        self.told = 1.0
        self.paused_until = 0.0
        self.waiting: deque[float] = deque()


def write_over(mode: Mode | None) -> Written:
    """Writers of one principal send twice as much as it may."""
    clock = SimulatedClock()
    rows = [] if mode is None else [Quota("alice", "write_bytes", QUOTA, mode)]
    policy = Policy({store.quota_key(row.principal, row.measure): store.encode_row(row) for row in rows})
    quotas = Quotas(lambda: policy, clock)
    writers = [_Writer(number) for number in range(WRITERS)]
    taken: list[tuple[float, int]] = []
    stored = refused = left_out = 0
    delay = estimated = 0.0
    while (now := clock.monotonic()) < SECONDS:
        for writer in writers:
            while writer.made * RECORDS * RECORD < now * DEMAND / WRITERS:
                writer.waiting.append(now)
                writer.made += 1
            while writer.waiting and writer.paused_until <= now:
                began = writer.waiting.popleft()
                share = writer.share
                count = int(kept(RECORDS, share, 7919 * writer.number, writer.looked_at).sum())
                writer.looked_at += RECORDS
                left_out += RECORDS - count
                if not count:
                    continue
                size = count * RECORD
                try:
                    grant = quotas.charge(ALICE, "write", size, size / share)
                except QuotaExceeded:
                    refused += count
                    continue
                stored += count
                estimated += count / share
                taken.append((now, size))
                delay = max(delay, now - began)
                writer.paused_until = now + grant.pause
                if abs(grant.share - writer.told) > SHARE_STEP * writer.told or grant.share >= 1.0 > writer.told:
                    writer.told = grant.share
                # A neighbour never waits.
                assert quotas.charge(BOB, "write", size).pause == 0.0
        clock.advance(LATENCY)
        for writer in writers:
            writer.share = writer.told
    sent = sum(writer.made for writer in writers) * RECORDS
    waiting = sum(len(writer.waiting) for writer in writers) * RECORDS
    return Written(taken, sent, stored, refused, left_out, waiting, delay, estimated)


@pytest.mark.mechanism("S68")
def test_s68_without_a_quota_all_is_taken():
    free = write_over(None)
    assert free.stored == free.sent
    assert free.rate(5) == pytest.approx(DEMAND, rel=0.05)
    assert free.delay == 0.0


@pytest.mark.mechanism("S68")
def test_s68_limit_keeps_to_the_quota_and_loses_nothing():
    limited = write_over("limit")
    assert 475_000 <= limited.rate(10) <= 525_000
    assert limited.stored + limited.waiting == limited.sent
    assert limited.delay > 1.0


@pytest.mark.mechanism("S68")
def test_s68_block_takes_nothing_after_5_seconds():
    blocked = write_over("block")
    assert blocked.rate(5) == 0
    assert blocked.stored + blocked.refused == blocked.sent


@pytest.mark.mechanism("S68")
def test_s68_sample_keeps_to_the_quota_and_the_total_can_be_told():
    sampled = write_over("sample")
    assert 475_000 <= sampled.rate(10) <= 525_000
    assert sampled.stored + sampled.left_out + sampled.waiting == sampled.sent
    assert sampled.estimated == pytest.approx(sampled.sent, rel=0.05)


# S69: what is over a quota of reading.


class Read(NamedTuple):
    rate: float
    lag: float
    skipped: int


def read_over(mode: Mode, batch: int) -> Read:
    """A reader follows a stream that gets twice as much as it may read, in batches of this size."""
    clock = SimulatedClock()
    row = Quota("alice", "read_bytes", QUOTA, mode)
    policy = Policy({store.quota_key(row.principal, row.measure): store.encode_row(row)})
    quotas = Quotas(lambda: policy, clock)
    waiting: deque[float] = deque()
    made = offset = pushed = skipped = 0
    share, paused_until, lag = 1.0, 0.0, 0.0
    while (now := clock.monotonic()) < SECONDS:
        while made * batch < now * DEMAND:
            waiting.append(now)
            made += 1
        while waiting and paused_until <= now:
            began = waiting.popleft()
            is_sent = is_kept(share, 1, 0, offset)
            offset += batch // RECORD
            skipped += not is_sent
            grant = quotas.charge(ALICE, "read", batch if is_sent else 0, batch)
            share, paused_until = grant.share, now + grant.pause
            if now >= 10:
                pushed += batch * is_sent
                lag = max(lag, now - began)
        clock.advance(0.002)
    return Read(pushed / (SECONDS - 10), lag, skipped)


@pytest.mark.mechanism("S69")
@pytest.mark.parametrize("batch", [5_000, 10_000, 50_000])
def test_s69_a_sample_keeps_to_the_quota_and_close_to_the_end(batch):
    sampled = read_over("sample", batch)
    assert 475_000 <= sampled.rate <= 525_000
    assert sampled.lag < 2.0
    assert sampled.skipped > 0
    limited = read_over("limit", batch)
    assert limited.skipped == 0
    assert limited.lag > 10 * 2.0
