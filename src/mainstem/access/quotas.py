"""Quotas: how much each principal may write and read, how many connections it has, how much memory they hold.

What is over a quota is, as its mode says,

    limit   taken, and the client is slowed down until the debt is paid, or told when to come back
    block   refused, all of it, for as long as the principal asks for more than it may: what is refused counts too. What
            is more than there can ever be at once is taken after a rest, and owed
    sample  taken in part: the share that fits, of bytes. Who writes is told the share, keeps it, and says so in what it
            sends; to who reads, whole batches are not sent, and it is told which. Whoever does not keep to it, because
            it does not know how, is slowed down as by `limit`
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from mainstem.access.bucket import BURST_SECONDS, Bucket
from mainstem.access.policy import Policy
from mainstem.access.principal import Principal
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import QuotaExceeded
from mainstem.core.sampling import SHARE_MIN
from mainstem.transport.guarding import Measure, Quota

Direction = Literal["write", "read"]

_MEASURES: Final[Mapping[Direction, tuple[Measure, Measure]]] = {
    "write": ("write_bytes", "write_requests"),
    "read": ("read_bytes", "read_requests"),
}

# Principals of which it is remembered what they used: others have used nothing for long.
_PRINCIPALS_MAX: Final = 20_000
# Over how long demand is measured to know which share of it fits.
_DEMAND_SECONDS: Final = 2.0
# How long somebody who asked for far too much is kept out after it stops.
_BLOCK_SECONDS: Final = 2.0
# How much more than fits is kept, at most, to make up for what was kept too little.
_MAKE_UP: Final = 0.25
# Before so much of that has passed, nothing is left out.
_KNOWN_SECONDS: Final = 0.1
# A client that is told to wait longer than this would think that nobody is there.
PAUSE_SECONDS_MAX: Final = 30.0


class Grant(NamedTuple):
    """What was decided: for how many seconds to take nothing more, and which share of it is kept. `wait` is in how many
    seconds it is its turn: until then others of the same principal, who came before it, still pay."""

    pause: float = 0.0
    share: float = 1.0
    wait: float = 0.0


FREELY: Final = Grant()


class _Gauge:
    """One quota of one principal, and how much of it is used."""

    def __init__(self, quota: Quota, clock: Clock) -> None:
        self.quota = quota
        self.bucket = Bucket(max(1, quota.limit), clock)
        self._clock = clock
        self._demand = 0.0
        self._began = self._since = clock.monotonic()

    def share(self, count: float) -> float:
        """Which part of what is asked for fits, going by the last seconds; `count` more is asked for now."""
        now = self._clock.monotonic()
        # A sum that fades, and which part of such a sum there can be so soon after the beginning.
        self._demand = self._demand * math.exp((self._since - now) / _DEMAND_SECONDS) + count
        self._since = now
        if now - self._began < _KNOWN_SECONDS:
            return 1.0
        seconds = _DEMAND_SECONDS * (1.0 - math.exp((self._began - now) / _DEMAND_SECONDS))
        # A sample is never exact: what was taken too little of is taken now.
        limit = self.quota.limit * (1.0 + _MAKE_UP * self.bucket.spare())
        return max(SHARE_MIN, min(1.0, limit * seconds / max(self._demand, 1.0)))


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

    def charge(
        self,
        principal: Principal,
        direction: Direction,
        size: int,
        offered: float | None = None,
        patience: float = math.inf,
    ) -> Grant:
        """A request of `size` bytes, which is taken: what it means for the client. QuotaExceeded where it is not: also
        if its turn would come only after the seconds of its `patience`. If it is what was kept of more, `offered` is
        how much that was."""
        policy = self._policy()
        if not policy.quotas:
            return FREELY
        bytes_, requests = _MEASURES[direction]
        with self._lock:
            keeps_share = offered is not None and offered > size
            wait = self._wait(policy, principal, direction, patience, keeps_share=keeps_share)
            # One that is refused as a request pays nothing for its bytes.
            is_refused = self._is_refused(policy, principal, requests, 1)
            of_bytes = FREELY if is_refused else self._charge(policy, principal, bytes_, size, offered)
            of_requests = self._charge(policy, principal, requests, 1)
        return Grant(max(of_bytes.pause, of_requests.pause), of_bytes.share, wait)

    def turn(self, principal: Principal, direction: Direction) -> float:
        """In how many seconds it is the turn of somebody who begins now: when everything is paid that the principal has
        had, by whichever way. QuotaExceeded if it is to be refused until then."""
        policy = self._policy()
        if not policy.quotas:
            return 0.0
        with self._lock:
            for measure in _MEASURES[direction]:
                gauge = self._gauge(policy, principal, measure)
                if gauge is not None and gauge.quota.mode == "block" and (wait := gauge.bucket.wait()):
                    # How much it will ask for is not known: then there is as much as there can be.
                    raise _exceeded(principal, gauge.quota, wait + BURST_SECONDS)
            return self._wait(policy, principal, direction)

    def _wait(
        self,
        policy: Policy,
        principal: Principal,
        direction: Direction,
        patience: float = math.inf,
        *,
        keeps_share: bool = False,
    ) -> float:
        """With the lock held: for how long it is still paid for what was taken before. Who keeps a share pays so."""
        waits = {"limit"} if keeps_share else {"limit", "sample"}
        longest = 0.0
        for measure in _MEASURES[direction]:
            gauge = self._gauge(policy, principal, measure)
            if gauge is not None and gauge.quota.mode in waits:
                longest = max(longest, gauge.bucket.wait())
                if longest > patience:
                    raise _exceeded(principal, gauge.quota, longest)
        return longest

    def share(self, principal: Principal, direction: Direction) -> float:
        """Which share would fit now, if nothing more came than in the last seconds."""
        policy = self._policy()
        if not policy.quotas:
            return 1.0
        with self._lock:
            gauge = self._gauge(policy, principal, _MEASURES[direction][0])
            if gauge is None or gauge.quota.mode != "sample":
                return 1.0
            return max(SHARE_MIN, gauge.share(0) / (1.0 + gauge.bucket.wait()))

    def begin(self, principal: Principal, direction: Direction) -> None:
        """Another request, of who can be told to come back later: QuotaExceeded as long as something is owed, unless
        that is paid by keeping a share. Its bytes are charged as they come."""
        policy = self._policy()
        if not policy.quotas:
            return
        bytes_, requests = _MEASURES[direction]
        with self._lock:
            for measure in (bytes_, requests):
                gauge = self._gauge(policy, principal, measure)
                if gauge is not None and gauge.quota.mode == "limit" and (wait := gauge.bucket.wait()):
                    raise _exceeded(principal, gauge.quota, wait)
            self._charge(policy, principal, requests, 1)

    def charge_bytes(
        self,
        principal: Principal,
        direction: Direction,
        size: int,
        offered: float | None = None,
        *,
        has_begun: bool = False,
    ) -> float:
        """Bytes of a request that was let in: for how many seconds to take, or give, nothing more. Where they are what
        was kept of more, which is `offered`, too much of them is paid by keeping less next time. `has_begun`: a part of
        the answer is out, so that it cannot be refused any more: the rest waits, whatever the mode."""
        policy = self._policy()
        if not policy.quotas:
            return 0.0
        with self._lock:
            grant = self._charge(policy, principal, _MEASURES[direction][0], size, offered, has_begun=has_begun)
        return 0.0 if offered is not None and grant.share < 1.0 else min(grant.pause, PAUSE_SECONDS_MAX)

    def _is_refused(self, policy: Policy, principal: Principal, measure: Measure, count: int) -> bool:
        """With the lock held: whether `_charge` would refuse it."""
        gauge = self._gauge(policy, principal, measure)
        return gauge is not None and gauge.quota.mode == "block" and gauge.bucket.lacks(count) > 0

    def _charge(
        self,
        policy: Policy,
        principal: Principal,
        measure: Measure,
        count: int,
        offered: float | None = None,
        *,
        has_begun: bool = False,
    ) -> Grant:
        """With the lock held."""
        gauge = self._gauge(policy, principal, measure)
        if gauge is None:
            return FREELY
        if gauge.quota.mode == "block" and not has_begun:
            if gauge.bucket.take(count):
                # What is refused counts: who keeps asking for too much stays out.
                if gauge.bucket.wait() < _BLOCK_SECONDS:
                    gauge.bucket.charge(count, _BLOCK_SECONDS)
                raise _exceeded(principal, gauge.quota, gauge.bucket.take(count))
            return FREELY
        pause = gauge.bucket.charge(count)
        if gauge.quota.mode != "sample":
            return Grant(pause)
        # What is owed is paid back by keeping less for a while.
        paid = 1.0 + min(pause, PAUSE_SECONDS_MAX)
        return Grant(pause, max(SHARE_MIN, gauge.share(count if offered is None else offered) / paid))

    def hold(self, principal: Principal, measure: Literal["connections", "memory_bytes"], count: int) -> None:
        """Have this much more until `let_go`; QuotaExceeded if that is too much."""
        quota = self._policy().quota(principal.name, measure)
        key = (principal.name, measure)
        with self._lock:
            held = self._held.get(key, 0) + count
            if quota is not None and held > quota.limit:
                raise _exceeded(principal, quota, limit=quota.limit)
            self._held[key] = held

    def add(self, principal: Principal, measure: Literal["connections", "memory_bytes"], count: int) -> None:
        """The same for what is there already; `is_over` says whether more should come."""
        key = (principal.name, measure)
        with self._lock:
            self._held[key] = self._held.get(key, 0) + count

    def held(self, principal: Principal, measure: Literal["connections", "memory_bytes"]) -> int:
        return self._held.get((principal.name, measure), 0)

    def is_over(self, principal: Principal, measure: Literal["connections", "memory_bytes"]) -> bool:
        quota = self._policy().quota(principal.name, measure)
        return quota is not None and self.held(principal, measure) > quota.limit

    def let_go(self, principal: Principal, measure: Literal["connections", "memory_bytes"], count: int) -> None:
        key = (principal.name, measure)
        with self._lock:
            left = self._held.get(key, 0) - count
            assert left >= 0, f"{principal} gave more {measure} back than it had"
            if left:
                self._held[key] = left
            else:
                self._held.pop(key, None)

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


def _exceeded(principal: Principal, quota: Quota, wait: float = 0.0, *, limit: int = 0) -> QuotaExceeded:
    """`wait` is 0 where nobody knows when there will be more."""
    per = "" if quota.measure in ("connections", "memory_bytes") else " a second"
    then = f"; come back in {wait:.3g} s" if wait else ""
    what = quota.measure.replace("_", " ")
    text = f"{principal} has its quota of {quota.limit} {what}{per}{then}"
    return QuotaExceeded(text, retry_after=round(wait, 3), limit=limit)
