"""Token buckets, and what quotas make of them."""

import pytest

from mainstem.access import store
from mainstem.access.bucket import DEBT_SECONDS_MAX, Bucket, Turnstile
from mainstem.access.policy import Policy
from mainstem.access.principal import Principal
from mainstem.access.quotas import Quotas
from mainstem.core.errors import QuotaExceeded
from mainstem.core.sampling import is_kept
from mainstem.testing.clock import SimulatedClock
from mainstem.transport.guarding import Quota

ALICE, BOB = Principal("alice"), Principal("bob")


def quotas_of(clock: SimulatedClock, *rows: Quota) -> Quotas:
    policy = Policy({store.quota_key(row.principal, row.measure): store.encode_row(row) for row in rows})
    return Quotas(lambda: policy, clock)


def test_a_bucket_gives_its_rate_and_a_burst():
    clock = SimulatedClock()
    bucket = Bucket(10, clock)
    assert bucket.take(20) == 0.0
    assert bucket.take(5) == 0.5
    clock.advance(0.5)
    assert bucket.take(5) == 0.0
    clock.advance(1_000)
    assert bucket.take(20) == 0.0
    assert bucket.take(1) == 0.1


def test_what_is_larger_than_a_bucket_passes_and_leaves_a_debt():
    clock = SimulatedClock()
    bucket = Bucket(10, clock)
    assert bucket.take(100) == 0.0
    assert bucket.wait() == 8.0


def test_a_debt_is_forgotten_after_an_hour():
    clock = SimulatedClock()
    quotas = quotas_of(clock, Quota("alice", "write_bytes", 1_000))
    quotas.begin(ALICE, "write")
    for _ in range(2):
        quotas.charge_bytes(ALICE, "write", 32 << 20)
    with pytest.raises(QuotaExceeded) as found:
        quotas.begin(ALICE, "write")
    assert found.value.retry_after == DEBT_SECONDS_MAX
    clock.advance(DEBT_SECONDS_MAX)
    quotas.begin(ALICE, "write")


@pytest.mark.parametrize("size", [100, 1_000, 50_000])
def test_a_limit_slows_down_to_the_rate(size):
    clock = SimulatedClock()
    quotas = quotas_of(clock, Quota("alice", "write_bytes", 10_000))
    written = 0
    while clock.monotonic() < 100:
        pause = quotas.charge(ALICE, "write", size).pause
        written += size
        clock.advance(max(pause, 0.001))
    assert written == pytest.approx(10_000 * (clock.monotonic() + 2), rel=0.05)


def test_whoever_comes_while_something_is_owed_waits_for_its_turn():
    clock = SimulatedClock()
    quotas = quotas_of(clock, Quota("alice", "write_bytes", 10_000))
    assert quotas.charge(ALICE, "write", 50_000) == (3.0, 1.0, 0.0)
    # Each on a connection of its own: each after those before it.
    assert [quotas.charge(ALICE, "write", 10_000).wait for _ in range(3)] == [3.0, 4.0, 5.0]
    assert (quotas.turn(ALICE, "write"), quotas.turn(ALICE, "read"), quotas.turn(BOB, "write")) == (6.0, 0.0, 0.0)
    # Who has not the patience is refused, and owes nothing for it.
    with pytest.raises(QuotaExceeded) as refused:
        quotas.charge(ALICE, "write", 10_000, patience=5.0)
    assert refused.value.retry_after == 6.0
    clock.advance(6)
    assert quotas.charge(ALICE, "write", 1, patience=0.0).wait == 0.0


def test_what_is_larger_than_a_blocking_quota_passes_after_a_rest_and_is_paid():
    clock = SimulatedClock()
    quotas = quotas_of(clock, Quota("alice", "read_bytes", 10_000, "block"))
    read, asked_again = 0, 0.0
    while clock.monotonic() < 1_000:
        try:
            quotas.turn(ALICE, "read")
            quotas.charge(ALICE, "read", 100_000)
            read += 100_000
        except QuotaExceeded as error:
            asked_again = error.retry_after
            clock.advance(error.retry_after + 0.001)
    assert asked_again == pytest.approx(10.0)
    assert read == pytest.approx(10_000 * clock.monotonic(), rel=0.05)


def test_who_can_be_told_is_told_how_long_to_wait():
    clock = SimulatedClock()
    quotas = quotas_of(clock, Quota("alice", "write_requests", 2))
    for _ in range(5):
        quotas.begin(ALICE, "write")
    with pytest.raises(QuotaExceeded) as found:
        quotas.begin(ALICE, "write")
    assert found.value.retry_after == 0.5
    clock.advance(0.5)
    quotas.begin(ALICE, "write")


def test_block_takes_nothing_while_too_much_is_asked_for():
    clock = SimulatedClock()
    quotas = quotas_of(clock, Quota("alice", "write_bytes", 500, "block"))
    taken_at = []
    for _ in range(300):
        try:
            quotas.charge(ALICE, "write", 100)
            taken_at.append(clock.monotonic())
        except QuotaExceeded:
            pass
        clock.advance(0.1)
    # Twice the rate: the burst, then nothing.
    assert max(taken_at) < 5
    clock.advance(5)
    quotas.charge(ALICE, "write", 100)


@pytest.mark.parametrize("demand", [6_000, 10_000, 100_000])
def test_sample_keeps_the_share_that_fits(demand):
    clock = SimulatedClock()
    quotas = quotas_of(clock, Quota("alice", "write_bytes", 5_000, "sample"))
    sent, estimated, slowed, share, size = 0, 0.0, 0, 1.0, demand // 600
    for number in range(36_000):
        # A client that keeps the share it was told.
        if is_kept(share, 7, number):
            sent += size
            estimated += size / share
            grant = quotas.charge(ALICE, "write", size, size / share)
            share, slowed = grant.share, slowed + (grant.pause > 0.2)
        clock.advance(size / demand)
    seconds = clock.monotonic()
    assert sent == pytest.approx(5_000 * (seconds + 1), rel=0.1)
    assert estimated == pytest.approx(demand * seconds, rel=0.05)
    assert slowed < 100


def test_who_keeps_more_than_its_share_is_slowed_down():
    clock = SimulatedClock()
    quotas = quotas_of(clock, Quota("alice", "write_bytes", 5_000, "sample"))
    sent = 0
    while clock.monotonic() < 100:
        sent += 100
        clock.advance(max(0.01, quotas.charge(ALICE, "write", 100).pause))
    assert sent == pytest.approx(5_000 * 102, rel=0.05)


def test_the_share_rises_again_when_less_is_written():
    clock = SimulatedClock()
    quotas = quotas_of(clock, Quota("alice", "write_bytes", 5_000, "sample"))
    share = 1.0
    for _ in range(1_000):
        clock.advance(0.01)
        share = quotas.charge(ALICE, "write", round(100 * share), 100).share
    assert share == pytest.approx(0.5, rel=0.1)
    for _ in range(1_000):
        clock.advance(0.1)
        share = quotas.charge(ALICE, "write", 100, 100).share
    assert share == 1.0


def test_the_share_comes_back_while_nothing_is_written():
    clock = SimulatedClock()
    quotas = quotas_of(clock, Quota("alice", "write_bytes", 5_000, "sample"))
    for _ in range(100):
        clock.advance(0.01)
        share = quotas.charge(ALICE, "write", 1_000, 10_000).share
    assert share < 0.01
    clock.advance(60)
    assert quotas.share(ALICE, "write") == 1.0
    assert quotas.share(BOB, "write") == quotas.share(ALICE, "read") == 1.0


def test_a_turnstile_tells_each_when_it_is_its_turn():
    clock = SimulatedClock()
    turnstile = Turnstile(50, clock, 100)
    waits = [turnstile.enter() for _ in range(300)]
    assert waits[:100] == [0.0] * 100
    assert waits[100:] == pytest.approx([number / 50 for number in range(1, 201)])
    # Who comes when it was told to is let in.
    inside = 0
    for wait in waits[100:]:
        clock.advance(max(0.0, wait - clock.monotonic()) + 0.0001)
        inside += not turnstile.enter()
    assert inside == 200


def test_the_same_thing_is_kept_or_not_whoever_asks():
    kept = {number for number in range(10_000) if is_kept(0.3, 1, number)}
    assert kept == {number for number in range(10_000) if is_kept(0.3, 1, number)}
    assert len(kept) == pytest.approx(3_000, rel=0.1)
    # A smaller share is a part of a larger one.
    assert kept <= {number for number in range(10_000) if is_kept(0.5, 1, number)}


def test_one_principal_does_not_use_the_quota_of_another():
    clock = SimulatedClock()
    quotas = quotas_of(clock, Quota("*", "write_bytes", 100))
    assert quotas.charge(ALICE, "write", 10_000).pause > 1
    assert quotas.charge(BOB, "write", 100).pause == 0.0
    assert quotas.charge(ALICE, "read", 10_000).pause == 0.0


def test_an_own_quota_takes_the_place_of_the_one_for_everybody():
    clock = SimulatedClock()
    quotas = quotas_of(clock, Quota("*", "write_bytes", 100), Quota("alice", "write_bytes", 1_000_000))
    assert quotas.charge(ALICE, "write", 10_000).pause == 0.0


def test_what_is_held_is_given_back():
    quotas = quotas_of(SimulatedClock(), Quota("alice", "connections", 2))
    quotas.hold(ALICE, "connections", 1)
    quotas.hold(ALICE, "connections", 1)
    quotas.hold(BOB, "connections", 1)
    with pytest.raises(QuotaExceeded, match="2 connections"):
        quotas.hold(ALICE, "connections", 1)
    quotas.let_go(ALICE, "connections", 1)
    quotas.hold(ALICE, "connections", 1)


def test_what_is_refused_as_a_request_costs_no_bytes():
    clock = SimulatedClock()
    quotas = quotas_of(clock, Quota("alice", "write_bytes", 1_000), Quota("alice", "write_requests", 1, "block"))
    for _ in range(2):
        quotas.charge(ALICE, "write", 100)
    with pytest.raises(QuotaExceeded, match="write requests"):
        quotas.charge(ALICE, "write", 50_000)
    clock.advance(10)
    assert quotas.charge(ALICE, "write", 100) == (0.0, 1.0, 0.0)
