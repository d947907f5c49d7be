"""Groups that spread their streams: members get ranges of offsets of any shard, not shards.

`mainstem.cluster.spread` decides who reads which range. Here is what it needs to know, entries of the ledger, and what
comes of it: the group's cursors. In the ledger the coordinator itself owns the shards, under an id that it draws when
the first member comes, so that the commits of an older coordinator are refused like those of an older member. All of it
happens in the coordinator's thread.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from mainstem.cluster.assignment import Unit
from mainstem.cluster.beginning import Wish, is_read_from_beginning
from mainstem.cluster.events import MayRead, Subscription
from mainstem.cluster.options import GroupOptions
from mainstem.cluster.spread import Spread
from mainstem.core.errors import Busy, Closed, Fenced, InvalidRequest, MainstemError
from mainstem.core.events import Event
from mainstem.core.identity import new_producer_id
from mainstem.core.limits import GROUP_CHANGE_UNITS_MAX, SPREAD_LEASES_MAX
from mainstem.log.batcher import Outcomes
from mainstem.log.flush import Assigned, Position, only_outcome
from mainstem.log.group_report import Owners
from mainstem.log.groups import KnownGroup
from mainstem.log.ledger.base import Entry
from mainstem.log.log import Log
from mainstem.log.shared_streams import SharedStreams
from mainstem.transport.port import Answer, Answered
from mainstem.transport.sharing import Lease, LeaseGroupCall, Leases

logger = logging.getLogger("mainstem.log")

# Rows of the ledger that are looked at for one shard at a time.
_ENTRIES: Final = 64
# Leases of a member that are remembered as done, for a call that is repeated because its answer was lost.
_FINISHED: Final = 4 * SPREAD_LEASES_MAX


@dataclass(slots=True)
class SpreadMember:
    """What is known of a member, and its request that waits for an answer."""

    call: LeaseGroupCall
    wish: Wish
    heard_at: float
    answered: Answered | None = None
    asked_at: float = 0.0
    # Requests are counted; what this one had done is not in the ledger yet.
    request: int = 0
    is_committing: bool = False
    lost: tuple[int, ...] = ()
    # Whether it has other leases than it was told, and the bytes of all that it was given.
    has_news: bool = False
    given_bytes: int = 0
    finished: deque[int] = field(default_factory=lambda: deque(maxlen=_FINISHED))


class SpreadGroup:
    """One group, of which the ledger says what is `known`. The coordinator's thread; `post` has something done in it,
    from any thread."""

    def __init__(
        self,
        name: str,
        log: Log,
        options: GroupOptions,
        known: KnownGroup | None,
        streams: SharedStreams,
        post: Callable[[Callable[[], None]], None],
        *,
        wake_log: Callable[[], None],
    ) -> None:
        self.name = name
        self.id = new_producer_id()
        self.members: dict[int, SpreadMember] = {}
        self._log = log
        self._clock = log.clock
        self._options = options
        self._shared = streams
        self._post = post
        self._wake_log = wake_log
        self._generation = 0 if known is None else known.row.generation
        # Streams in which the group has cursors.
        self._begun = set() if known is None else {stream for stream, _ in known.shards}
        # Numbers of leases are those of the generation that begins now.
        self._spread = Spread(self._generation + 1)
        self._owned: set[Unit] = set()
        # Those in which there may be something that is not planned.
        self._grown: set[Unit] = set()
        # Streams that members want and cannot have here; it was said.
        self._left_out: set[int] = set()
        # Whether the ledger is being told of other owners.
        self.is_changing = False
        # Cursors that the ledger is being told, and those that it is to be told next, with who waits for them.
        self._committing = False
        self._moved: dict[Unit, int] = {}
        self._waiting: list[tuple[SpreadMember, int]] = []
        self.is_over = False

    @property
    def owners(self) -> Owners:
        clients = {id_: member.call.client for id_, member in self.members.items()}
        return Owners(tuple(self.members), clients, spread_by=self.id)

    @property
    def is_done(self) -> bool:
        """Whether nobody is left, and the ledger knows."""
        return not self.members and not self._owned and not self.is_changing and not self._committing

    # Members.

    def ask(self, call: LeaseGroupCall, answered: Answered, may_read: MayRead) -> None:
        """A member's request."""
        now = self._clock.monotonic()
        member = self.members.get(call.member)
        if member is None:
            wish = Wish(Subscription(frozenset(call.streams), call.pattern, may_read), dict(call.starts))
            member = SpreadMember(call, wish, now, given_bytes=self._least_given())
            self.members[call.member] = member
            self._take_shards()
        if member.answered is not None:
            member.answered(Busy("the same member has asked again since"))
        member.call, member.answered, member.asked_at, member.heard_at = call, answered, now, now
        member.lost = tuple(number for number, at in call.done if not self._advance(member, number, at))
        member.request += 1
        member.is_committing = bool(call.done)
        if member.is_committing:
            self._waiting.append((member, member.request))
        held = set(call.held)
        for lease in tuple(self._spread.held_by(call.member).values()):
            if lease.number not in held:
                self._spread.give_back(lease)
                member.has_news = True
        self._commit()
        self.serve()

    def _advance(self, member: SpreadMember, number: int, at: int) -> bool:
        moved = self._spread.advance(member.call.member, number, at)
        if moved is None:
            return number in member.finished
        unit, low = moved
        self._moved[unit] = low
        if number not in self._spread.held_by(member.call.member):
            member.finished.append(number)
        return True

    def leave(self, member: int) -> None:
        """What it had is for others."""
        found = self.members.pop(member, None)
        if found is None:
            return
        self._spread.drop(member)
        if found.answered is not None:
            found.answered(Fenced("this member has left the group"))
        if not self.members:
            self._let_go()
        self.serve()

    def tick(self) -> None:
        """Time has passed: who was silent for too long is gone, who waited for a heartbeat is answered."""
        silent = self._clock.monotonic() - self._options.session_timeout
        for id_ in [id_ for id_, member in self.members.items() if member.heard_at <= silent]:
            self.leave(id_)
        self.serve()

    def grow(self, units: Iterable[tuple[int, int]]) -> None:
        """Something was written or trimmed, here and elsewhere."""
        found = self._owned.intersection(Unit(*unit) for unit in units)
        if found:
            self._grown |= found
            self.serve()

    def refuse(self, error: MainstemError) -> None:
        """Answer everybody with an error."""
        for member in self.members.values():
            if member.answered is not None:
                answered, member.answered = member.answered, None
                answered(error)

    # Leases.

    def serve(self) -> None:
        """Give out what can be, and answer who waits for it, or has waited long enough."""
        now = self._clock.monotonic()
        if not self.is_over:
            self._give()
        for id_, member in list(self.members.items()):
            call = member.call
            is_due = (
                call.done or not call.patient or member.has_news or now >= member.asked_at + self._options.heartbeat
            )
            if member.answered is not None and is_due and not member.is_committing and not self.is_changing:
                self._answer(id_, member)

    def _least_given(self) -> int:
        return min((member.given_bytes for member in self.members.values()), default=0)

    def _give(self) -> None:
        """One lease each to those who want some, then the next, until nobody does or nothing is left. Who was given
        least comes first: taking turns would be unfair where what is written to the shards takes turns, too."""
        is_planned = False
        while True:
            wanting = [id_ for id_, member in self.members.items() if self._is_wanting(id_, member)]
            for id_ in sorted(wanting, key=lambda id_: self.members[id_].given_bytes):
                lease = self._spread.lease(id_)
                if lease is None and not is_planned:
                    is_planned = True
                    self._plan()
                    lease = self._spread.lease(id_)
                if lease is None:
                    return
                self.members[id_].has_news = True
                self.members[id_].given_bytes += lease.bytes
            if not wanting:
                return

    def _is_wanting(self, id_: int, member: SpreadMember) -> bool:
        wanted = min(member.call.wanted + len(member.call.held), SPREAD_LEASES_MAX)
        return member.answered is not None and len(self._spread.held_by(id_)) < wanted

    def _answer(self, id_: int, member: SpreadMember) -> None:
        held = self._spread.held_by(id_).values()
        leases = tuple(Lease(lease.number, *lease.unit, lease.first, lease.end) for lease in held)
        others = any(self._spread.held_by(other) for other in self.members if other != id_)
        options = self._options
        found = Leases(leases, member.lost, others, options.heartbeat, options.session_timeout)
        answered, member.answered, member.has_news = member.answered, None, False
        assert answered is not None
        answered(Answer(leases=found))

    def _plan(self) -> None:
        """Have the ranges that follow what is planned cut up, as far as there is room."""
        for unit in tuple(self._grown):
            while self._spread.room(unit) > 0:
                at = self._spread.next_offset(unit)
                shard = self._log.ledger.load_shard(*unit)
                end = shard.stable
                found = self._log.ledger.entries_from(*unit, at, _ENTRIES) if at < end else ()
                entries = [entry for entry in found if entry.base + entry.span <= end]
                if not entries:
                    if at < shard.start:  # nothing is left of it
                        self._spread.extend(unit, [(at, shard.start, 0)])
                    self._grown.discard(unit)
                    break
                self._spread.extend(unit, _ranges(entries, at))

    # Streams and the ledger.

    def look_at_streams(self) -> None:
        """There are other streams than before, or members may read others."""
        there = {Unit(stream.id, shard) for stream in self._shared for shard in range(stream.shards)}
        for unit in self._owned - there:
            self._close(unit)
            self._moved.pop(unit, None)
        self._owned &= there
        self._take_shards()

    def _wanted(self) -> list[Unit]:
        subscriptions = {member.wish.subscription for member in self.members.values()}
        streams = [stream for stream in self._shared if any(wanted.wants(stream.name) for wanted in subscriptions)]
        for stream in streams:
            if stream.has_order and stream.id not in self._left_out:
                self._left_out.add(stream.id)
                text = "a stream with a key is left out of a group that spreads: it is read whole, or not at all"
                logger.warning(Event(text, group=self.name, stream=stream.name))
        return [Unit(stream.id, shard) for stream in streams if not stream.has_order for shard in range(stream.shards)]

    def _take_shards(self) -> None:
        """Be the owner of all that members want."""
        if self.is_changing or self.is_over:
            return
        units = [unit for unit in self._wanted() if unit not in self._owned][:GROUP_CHANGE_UNITS_MAX]
        if units:
            starts = [start for unit in units if (start := self._start_of(unit)) is not None]
            self._change([(*unit, self.id) for unit in units], starts)

    def _start_of(self, unit: Unit) -> Position | None:
        """Where the group begins in a shard of a stream that it has never read, as the first member wants it."""
        stream = self._shared.get(unit.stream)
        if unit.stream in self._begun or stream is None:
            return None
        wishes = [each.wish for each in self.members.values() if each.wish.subscription.wants(stream.name)]
        row = self._log.ledger.group_named(self.name)
        if not wishes or is_read_from_beginning(stream, wishes, None if row is None else row.created_us):
            return None
        offsets = wishes[0].starts[stream.id]
        return (*unit, offsets[unit.shard]) if unit.shard < len(offsets) else None

    def _let_go(self) -> None:
        if self._owned and not self.is_changing:
            self._change([(*unit, 0) for unit in sorted(self._owned)][:GROUP_CHANGE_UNITS_MAX], [])

    def _change(self, assigned: list[tuple[int, int, int]], starts: list[Position]) -> None:
        self.is_changing = True

        def done(result: Outcomes | MainstemError) -> None:
            self._post(partial(self._on_changed, assigned, result))

        try:
            self._log.groups.assign(self.name, self._generation + 1, assigned, done, starts=starts)
        except MainstemError as error:
            self._on_changed(assigned, error)
        else:
            self._wake_log()

    def _on_changed(self, assigned: list[tuple[int, int, int]], result: Outcomes | MainstemError) -> None:
        self.is_changing = False
        outcome = only_outcome(result)
        if isinstance(outcome, MainstemError):
            self._end(outcome)
            return
        assert isinstance(outcome, Assigned)
        self._generation = outcome.generation
        for stream, shard, owner in assigned:
            unit = Unit(stream, shard)
            if owner:
                self._owned.add(unit)
            else:
                self._owned.discard(unit)
                self._close(unit)
        for stream, shard, offset in outcome.cursors:
            self._spread.open(Unit(stream, shard), offset)
            self._grown.add(Unit(stream, shard))
        if self.members:
            self._take_shards()
        else:
            self._let_go()
        self.serve()

    def _close(self, unit: Unit) -> None:
        self._spread.close(unit)
        self._grown.discard(unit)

    def _commit(self) -> None:
        """Have the ledger note the group's cursors. One commit at a time: what moves meanwhile is gathered."""
        if self._committing or self.is_over:
            return
        if not self._moved:
            self._end_waiting(self._taken_waiting())
            return
        moved, self._moved = self._moved, {}
        waiting = self._taken_waiting()
        self._committing = True

        def done(result: Outcomes | MainstemError) -> None:
            self._post(partial(self._on_committed, waiting, result))

        offsets = [(*unit, offset) for unit, offset in moved.items()]
        try:
            self._log.groups.commit(self.name, self.id, offsets, done)
        except MainstemError as error:
            self._on_committed(waiting, error)
        else:
            self._wake_log()

    def _on_committed(self, waiting: list[tuple[SpreadMember, int]], result: Outcomes | MainstemError) -> None:
        self._committing = False
        outcome = only_outcome(result)
        if isinstance(outcome, MainstemError):
            self._end(outcome)
            return
        self._end_waiting(waiting)
        self._commit()
        self.serve()

    def _taken_waiting(self) -> list[tuple[SpreadMember, int]]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def _end_waiting(self, waiting: list[tuple[SpreadMember, int]]) -> None:
        for member, request in waiting:
            if member.request == request:
                member.is_committing = False

    def _end(self, error: MainstemError) -> None:
        """The group was reset or deleted, or is somebody else's: members ask anew, and it begins anew for them."""
        self.is_over = True
        # What is wrong with the group as such would be wrong each time: then that is what they hear.
        is_final = type(error) in (Closed, InvalidRequest)
        self.refuse(error if is_final else Busy(f"group {self.name!r} begins anew: {error}"))


def _ranges(entries: Iterable[Entry], at: int) -> Iterator[tuple[int, int, int]]:
    """What entries cover, from here on. Records that were trimmed in front of one belong to it: who reads it is told
    that they are gone."""
    for entry in entries:
        end = entry.base + entry.span
        yield at, end, entry.length
        at = end
