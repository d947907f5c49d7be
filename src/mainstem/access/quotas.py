"""Quotas: how much each principal may write and read, how many connections it has, how much memory they hold.

What is over a quota is, as its mode says,

    limit   taken, and the client is slowed down until the debt is paid, or told when to come back
    block   refused, all of it, for as long as the principal asks for more than it may: what is refused counts too
    sample  taken in part: the share that fits, chosen by a hash, so that whoever asks again gets the same answer
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from mainstem.access.bucket import Bucket
from mainstem.access.policy import Policy
from mainstem.access.principal import Principal
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import QuotaExceeded
from mainstem.transport.guarding import Measure, Quota

Direction = Literal["write", "read"]

# Principals of which it is remembered what they used: others have used nothing for long.
_PRINCIPALS_MAX: Final = 20_000
# Over how long demand is measured to know which share of it fits.
_DEMAND_SECONDS: Final = 2.0
# How long somebody who asked for far too much is kept out after it stops.
_BLOCK_SECONDS: Final = 2.0
# A share that is kept is at least this: some of everything is seen.
_SHARE_MIN: Final = 0.001
# A client that is told to wait longer than this would think that nobody is there.
PAUSE_SECONDS_MAX: Final = 30.0


class Grant(NamedTuple):
    """What was decided: for how many seconds to take nothing more, and which share of it is kept."""

    pause: float = 0.0
    share: float = 1.0


_FREELY: Final = Grant()


class _Gauge:
    """One quota of one principal, and how much of it is used."""

    def __init__(self, quota: Quota, clock: Clock) -> None:
        self.quota = quota
        self.bucket = Bucket(max(1, quota.limit), clock)
        self._clock = clock
        self._demand = 0.0
        self._since = clock.monotonic()

    def share(self, count: float) -> float:
        """Which part of what is asked for fits, going by the last seconds; `count` more is asked for now."""
        now = self._clock.monotonic()
        passed = now - self._since
        # A sum that fades: after so many seconds of a steady demand it is that demand times the seconds.
        self._demand *= max(0.0, 1.0 - passed / _DEMAND_SECONDS)
        self._demand += count
        self._since = now
        allowed = max(1, self.quota.limit) * _DEMAND_SECONDS
        return max(_SHARE_MIN, min(1.0, allowed / self._demand))


class Quotas:
    """Counts what principals use, by what is in force. Any thread."""

    def __init__(self, policy: Callable[[], Policy], clock: Clock = SYSTEM_CLOCK) -> None:
        self._policy = policy
        self._clock = clock
        self._lock = threading.Lock()
        self._gauges: OrderedDict[tuple[str, Measure], _Gauge] = OrderedDict()
        # What is held at this moment, of things that are given back.
        self._held: dict[tuple[str, Measure], int] = {}

    @property
    def are_set(self) -> bool:
        """Whether there is any; while there is none, nothing need be counted."""
        return bool(self._policy().quotas)

    def charge(self, principal: Principal, direction: Direction, size: int) -> Grant:
        """A request of `size` bytes, which is taken: what it means for the client. QuotaExceeded where it is not."""
        policy = self._policy()
        if not policy.quotas:
            return _FREELY
        pause, share = 0.0, 1.0
        with self._lock:
            for measure, count in _measured(direction, size):
                gauge = self._gauge(policy, principal, measure)
                if gauge is None:
                    continue
                match gauge.quota.mode:
                    case "limit":
                        pause = max(pause, gauge.bucket.charge(count))
                    case "block":
                        self._block(principal, gauge, count)
                    case "sample":
                        share = min(share, gauge.share(count))
        return Grant(min(pause, PAUSE_SECONDS_MAX), share)

    def require(self, principal: Principal, direction: Direction, size: int) -> Grant:
        """The same for who can be told to come back later: over the limit it is QuotaExceeded, and nothing counts."""
        policy = self._policy()
        if not policy.quotas:
            return _FREELY
        with self._lock:
            for measure, _ in _measured(direction, size):
                gauge = self._gauge(policy, principal, measure)
                if gauge is not None and gauge.quota.mode == "limit" and (wait := gauge.bucket.wait()):
                    raise _exceeded(principal, gauge.quota, wait)
        return self.charge(principal, direction, size)._replace(pause=0.0)

    def hold(self, principal: Principal, measure: Literal["connections", "memory_bytes"], count: int) -> None:
        """Have this much more until `let_go`; QuotaExceeded if that is too much."""
        quota = self._policy().quota(principal.name, measure)
        key = (principal.name, measure)
        with self._lock:
            held = self._held.get(key, 0) + count
            if quota is not None and held > quota.limit:
                raise _exceeded(principal, quota, 1.0)
            self._held[key] = held

    def add(self, principal: Principal, measure: Literal["connections", "memory_bytes"], count: int) -> None:
        """The same for what is there already; `is_over` says whether more should come."""
        key = (principal.name, measure)
        with self._lock:
            self._held[key] = self._held.get(key, 0) + count

    def is_over(self, principal: Principal, measure: Literal["connections", "memory_bytes"]) -> bool:
        quota = self._policy().quota(principal.name, measure)
        return quota is not None and self._held.get((principal.name, measure), 0) > quota.limit

    def let_go(self, principal: Principal, measure: Literal["connections", "memory_bytes"], count: int) -> None:
        key = (principal.name, measure)
        with self._lock:
            left = self._held.get(key, 0) - count
            assert left >= 0, f"{principal} gave more {measure} back than it had"
            if left:
                self._held[key] = left
            else:
                self._held.pop(key, None)

    def _block(self, principal: Principal, gauge: _Gauge, count: float) -> None:
        # What is refused counts: who keeps asking for too much stays out.
        wait = gauge.bucket.charge(count, _BLOCK_SECONDS)
        if wait:
            raise _exceeded(principal, gauge.quota, wait)

    def _gauge(self, policy: Policy, principal: Principal, measure: Measure) -> _Gauge | None:
        quota = policy.quota(principal.name, measure)
        if quota is None:
            return None
        key = (principal.name, measure)
        gauge = self._gauges.get(key)
        if gauge is None or gauge.quota != quota:
            gauge = self._gauges[key] = _Gauge(quota, self._clock)
        self._gauges.move_to_end(key)
        while len(self._gauges) > _PRINCIPALS_MAX:
            self._gauges.popitem(last=False)
        return gauge


def is_kept(share: float, *identity: int) -> bool:
    """Whether what has this identity is within a share: the same answer for ever, whoever asks."""
    if share >= 1.0:
        return True
    mixed = 0
    for number in identity:
        mixed = ((mixed ^ number) * _MIX + 0x9E3779B97F4A7C15) & _MASK
        mixed ^= mixed >> 29
    return mixed / (1 << 64) < share


_MIX: Final = 0xBF58476D1CE4E5B9
_MASK: Final = (1 << 64) - 1


def _measured(direction: Direction, size: int) -> tuple[tuple[Measure, int], tuple[Measure, int]]:
    if direction == "write":
        return ("write_bytes", size), ("write_requests", 1)
    return ("read_bytes", size), ("read_requests", 1)


def _exceeded(principal: Principal, quota: Quota, wait: float) -> QuotaExceeded:
    per = "" if quota.measure in ("connections", "memory_bytes") else " a second"
    what = quota.measure.replace("_", " ")
    return QuotaExceeded(
        f"{principal} has its quota of {quota.limit} {what}{per}; come back in {wait:.3g} s", retry_after=round(wait, 3)
    )
