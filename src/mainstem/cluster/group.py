"""One group: who its members are, and how units get from one to another. Events in, actions out.

The ledger is the truth: a member may commit in a unit while the ledger says that it owns it. So a unit is given in two
steps: the ledger notes the owner, in the next *generation* of the group, then the member is told. A unit that moves is
first asked back. Its holder goes on until it has committed and lets go, which it says in a beat; all that stays is
never interrupted. A holder that is not heard of, or does not let go in time, loses the unit: the ledger notes that
nobody has it, and from then on refuses the commits of whoever had it; then it is given to another.

                asked back             let go
    held  ──────────────▶  asked  ──────────────▶  released ──┐ the ledger: the next owner
      │                      │ revocation_timeout             ▼
      └──────────────────────┴───────────────────▶  taken ──▶ nobody ──▶ held by the next
        session_timeout, or it left                   the ledger: 0

A coordinator that starts knows no member. It first has the ledger note that nobody owns anything, which fences whoever
was a member before. They are told to join anew and say what they stand in; units that had an owner are kept for them
for one heartbeat. Generations are given one after another, so of two coordinators the older is refused, and ends.

What a member has heard is known by a *version*, which rises with every change of what it shall hold: a beat that was
under way while the coordinator decided says nothing about what it does not know of yet.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from mainstem.cluster.assignment import Unit, assign
from mainstem.cluster.average import MovingAverage
from mainstem.cluster.events import (
    Action,
    Answer,
    Beat,
    ChangeOwners,
    Committed,
    End,
    Event,
    Forget,
    Join,
    JoinAnew,
    Leave,
    OwnersChanged,
    OwnersRefused,
    RefuseMember,
    StreamsChanged,
    Subscription,
    Tick,
)
from mainstem.cluster.options import GroupOptions
from mainstem.cluster.streams import GroupStreams
from mainstem.core.limits import GROUP_CHANGE_UNITS_MAX, GROUP_MEMBERS_MAX

NOBODY: Final = 0
# A plan is made at most this often, so that many who join at once cost few plans.
_PLAN_SECONDS: Final = 0.05


@dataclass(slots=True)
class _Member:
    """What is known of one member."""

    id: int
    subscription: Subscription
    heard_at: float
    # When the request came that waits for an answer.
    asked_at: float | None
    streams: frozenset[int] = frozenset()
    # Rises with every change of what is told to the member; what its last beat had acted on.
    version: int = 1
    acted: int = 0
    # Units it shall hold, and those it was asked for and has not let go. The ledger says of both that it owns them.
    holds: set[Unit] = field(default_factory=set)
    let_go: set[Unit] = field(default_factory=set)
    # Units it may not have heard of yet, and the version that says so.
    given: dict[Unit, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Recall:
    """A unit on its way from its owner: asked for until `deadline`, then, if it is not released, taken."""

    version: int
    deadline: float
    is_over: bool = False
    is_taken: bool = False


class Group:
    """The state machine of one group. One thread; tell it the time at least every half heartbeat.

    `generation`, `owned` and `cursors` are what the ledger says of the group when its coordination starts.
    """

    def __init__(
        self, options: GroupOptions, generation: int, owned: Iterable[Unit], cursors: Mapping[Unit, int], now: float
    ) -> None:
        self._options = options
        self.generation = generation
        # The first generation that is ours: who speaks of an older one was told by another coordinator.
        self._first_generation = generation + 1
        self._members: dict[int, _Member] = {}
        self._streams = GroupStreams()
        self._cursors = dict(cursors)
        self._rates: defaultdict[Unit, MovingAverage] = defaultdict(lambda: MovingAverage(options.rebalance_interval))
        # Units whose owner the ledger knows from before; nothing is given before it has forgotten them.
        self._void = sorted(owned)
        self._kept_back = set(self._void)
        self._kept_until = now + options.heartbeat
        self._is_started = False
        # What the ledger says now, without units that nobody owns.
        self._owners: dict[Unit, int] = {}
        # Who shall have each unit.
        self._target: dict[Unit, int] = {}
        # Who says that it stood in a unit before, and as of which generation.
        self._claims: dict[Unit, tuple[int, int]] = {}
        self._recalls: dict[Unit, _Recall] = {}
        # Units whose owner can be changed at once.
        self._ready: set[Unit] = set()
        self._in_flight: ChangeOwners | None = None
        self._is_stale = False
        self._plan_at = now
        self._compare_at = now + options.rebalance_interval
        self._now = now
        self._actions: list[Action] = []
        self.is_over = False

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(self._members)

    @property
    def owners(self) -> Mapping[Unit, int]:
        """Who owns which unit, as the ledger noted last."""
        return self._owners

    @property
    def targets(self) -> Mapping[Unit, int]:
        """Who shall have which unit."""
        return self._target

    @property
    def is_settled(self) -> bool:
        """Whether the ledger has noted all that is decided."""
        return self._in_flight is None and not self._void and not self._ready

    def start(self) -> list[Action]:
        """What a coordinator does first."""
        self._proceed()
        return self._taken_actions()

    def handle(self, event: Event, now: float) -> list[Action]:
        """What is to be done now that this has happened."""
        if self.is_over:
            return [JoinAnew(event.member)] if isinstance(event, Join | Beat) else []
        self._pass_time(now)
        match event:
            case Join():
                self._on_join(event)
            case Beat():
                self._on_beat(event)
            case Leave():
                self._on_leave(event)
            case Tick():
                self._on_tick()
            case StreamsChanged():
                self._on_streams_changed(event)
            case Committed():
                self._on_committed(event)
            case OwnersChanged():
                self._on_owners_changed(event)
            case OwnersRefused():
                self._on_owners_refused()
        if not self.is_over:
            self._proceed()
            self._answer_waiting()
        return self._taken_actions()

    # -------------------------------------------------------------------------------------------------------- members

    def _on_join(self, event: Join) -> None:
        known = self._members.get(event.member)
        if known is not None and known.acted:  # it has forgotten what it was told: its id must not live on
            self._actions.append(JoinAnew(event.member))
            return
        if known is None and len(self._members) >= GROUP_MEMBERS_MAX:
            self._actions.append(RefuseMember(event.member))
            return
        if known is not None:  # it asks again
            known.heard_at = known.asked_at = self._now
            return
        member = _Member(event.member, event.subscription, self._now, self._now)
        member.streams = self._streams.wanted_by(event.subscription)
        self._members[event.member] = member
        for unit in event.held:
            if unit in self._streams and self._claims.get(unit, (-1, 0))[0] < event.generation:
                self._claims[unit] = event.generation, event.member
                self._kept_back.discard(unit)
        self._is_stale = True

    def _on_beat(self, event: Beat) -> None:
        member = self._members.get(event.member)
        if member is None or event.generation < self._first_generation:
            self._actions.append(JoinAnew(event.member))
            return
        member.heard_at = member.asked_at = self._now
        member.acted = max(member.acted, event.version)
        released = member.let_go.difference(event.held)
        for unit in [unit for unit in released if self._recalls[unit].version <= event.version]:
            self._release(member, unit)
        member.given = {unit: version for unit, version in member.given.items() if version > member.acted}
        for unit, rate in event.rates.items():
            if self._owners.get(unit) == member.id:
                self._rates[unit].add(max(rate, 0.0), self._now)

    def _on_leave(self, event: Leave) -> None:
        if event.member in self._members:
            self._remove(self._members[event.member], is_taken=False)

    def _on_tick(self) -> None:
        silent = self._now - self._options.session_timeout
        for member in [member for member in self._members.values() if member.heard_at <= silent]:
            self._remove(member, is_taken=True)
        for unit, recall in self._recalls.items():
            if not recall.is_over and recall.deadline <= self._now:
                recall.is_over = recall.is_taken = True
                self._ready.add(unit)
                owner = self._members[self._owners[unit]]
                owner.let_go.discard(unit)
                owner.version += 1
        if self._kept_back and self._now >= self._kept_until:
            self._kept_back.clear()
            self._is_stale = True
        if self._now >= self._compare_at:
            self._is_stale = True

    def _remove(self, member: _Member, *, is_taken: bool) -> None:
        del self._members[member.id]
        for unit in member.holds | member.let_go:
            self._recalls[unit] = _Recall(0, self._now, is_over=True, is_taken=is_taken)
            self._ready.add(unit)
        self._actions.append(Forget(member.id))
        self._is_stale = True

    def _release(self, member: _Member, unit: Unit) -> None:
        member.let_go.discard(unit)
        self._recalls[unit].is_over = True
        self._ready.add(unit)

    def _pass_time(self, now: float) -> None:
        """Time goes on. If nobody told us for so long, we slept: what members sent meanwhile is still to come."""
        slept = now - self._now
        self._now = max(now, self._now)
        if slept > self._options.heartbeat:
            self._kept_until += slept
            for member in self._members.values():
                member.heard_at += slept
            for recall in self._recalls.values():
                recall.deadline += slept

    # -------------------------------------------------------------------------------------------------------- streams

    def _on_streams_changed(self, event: StreamsChanged) -> None:
        self._streams.replace(event.streams)
        self._streams.pass_barriers(self._cursors, self._streams.ids())
        for unit in [unit for unit in self._owners if unit not in self._streams]:
            owner = self._members.get(self._owners.pop(unit))
            self._recalls.pop(unit, None)
            if owner is not None:
                owner.holds.discard(unit)
                owner.let_go.discard(unit)
                owner.given.pop(unit, None)
        for known in (self._target, self._claims, self._cursors, self._rates):
            for unit in [unit for unit in known if unit not in self._streams]:
                del known[unit]
        self._ready = {unit for unit in self._ready if unit in self._streams}
        self._kept_back = {unit for unit in self._kept_back if unit in self._streams}
        for member in self._members.values():
            member.streams = self._streams.wanted_by(member.subscription)
            member.version += 1
        self._is_stale = True

    def _on_committed(self, event: Committed) -> None:
        for unit, offset in event.offsets.items():
            if unit in self._streams:
                self._cursors[unit] = max(offset, self._cursors.get(unit, 0))
        self._pass_barriers({unit.stream for unit in event.offsets})

    def _pass_barriers(self, streams: Iterable[int]) -> None:
        passed = self._streams.pass_barriers(self._cursors, streams)
        if passed:
            self._is_stale = True
            for member in self._members.values():
                member.version += not passed.isdisjoint(member.streams)

    # --------------------------------------------------------------------------------------------------------- ledger

    def _on_owners_changed(self, event: OwnersChanged) -> None:
        change = self._in_flight
        assert change is not None, "the ledger answered a change that nobody asked for"
        assert change.generation == event.generation, "the ledger answered another change"
        self._in_flight = None
        self.generation = event.generation
        for unit, owner in change.assigned:
            if unit in self._streams:
                self._note_owner(unit, owner, event.cursors)
        self._pass_barriers({unit.stream for unit, _ in change.assigned})

    def _note_owner(self, unit: Unit, owner: int, cursors: Mapping[Unit, int]) -> None:
        self._owners.pop(unit, None)
        self._recalls.pop(unit, None)
        if owner == NOBODY:
            if self._target.get(unit) in self._members:
                self._ready.add(unit)
            return
        self._owners[unit] = owner
        self._cursors[unit] = cursors[unit]
        member = self._members.get(owner)
        if member is None:  # it went meanwhile
            self._recalls[unit] = _Recall(0, self._now, is_over=True, is_taken=True)
            self._ready.add(unit)
            return
        member.version += 1
        member.holds.add(unit)
        member.given[unit] = member.version

    def _on_owners_refused(self) -> None:
        self.is_over = True
        self._actions += [JoinAnew(member) for member in self._members]
        self._actions.append(End())

    def _proceed(self) -> None:
        """Ask the ledger for the next generation, if there is something to change. One at a time: what happens
        meanwhile is gathered."""
        if self._in_flight is not None:
            return
        if self._void or not self._is_started:
            self._is_started = True
            first, self._void = self._void[:GROUP_CHANGE_UNITS_MAX], self._void[GROUP_CHANGE_UNITS_MAX:]
            self._change([(unit, NOBODY) for unit in first])
            return
        if self._is_stale and self._now >= self._plan_at:
            self._plan()
        if self._ready:
            changes = [(unit, self._next_owner(unit)) for unit in sorted(self._ready)]
            changes = [(unit, owner) for unit, owner in changes if owner != self._owners.get(unit, NOBODY)]
            self._ready = {unit for unit, _ in changes[GROUP_CHANGE_UNITS_MAX:]}
            if changes:
                self._change(changes[:GROUP_CHANGE_UNITS_MAX])

    def _change(self, changes: list[tuple[Unit, int]]) -> None:
        self._in_flight = ChangeOwners(self.generation + 1, tuple(changes))
        self._actions.append(self._in_flight)

    def _next_owner(self, unit: Unit) -> int:
        """Who is noted next as the owner of a unit that can be changed. One that was taken is nobody's first; so is one
        that goes back to whoever let it go, because it must hear of it anew."""
        owner = self._target.get(unit, NOBODY)
        if owner not in self._members:
            return NOBODY
        recall = self._recalls.get(unit)
        return NOBODY if recall is not None and (recall.is_taken or owner == self._owners.get(unit)) else owner

    def _plan(self) -> None:
        """Decide anew who shall have what, and ask for what has to move."""
        self._is_stale = False
        if self._members:  # the first one does not wait
            self._plan_at = self._now + _PLAN_SECONDS
        self._compare_at = self._now + self._options.rebalance_interval
        weights = {
            unit: self._rates[unit].value if unit in self._rates else 0.0
            for unit in self._streams.readable()
            if unit not in self._kept_back
        }
        held = {unit: member for unit, (_, member) in self._claims.items()} | self._target
        wishes = {member.id: member.streams for member in self._members.values()}
        self._target = assign(weights, wishes, held)
        self._claims.clear()
        for unit, member_id in self._target.items():
            owner = self._owners.get(unit, NOBODY)
            if owner == NOBODY:
                self._ready.add(unit)
            elif owner != member_id and unit not in self._recalls:
                self._ask_back(self._members[owner], unit)

    def _ask_back(self, member: _Member, unit: Unit) -> None:
        member.version += 1
        member.holds.discard(unit)
        member.let_go.add(unit)
        self._recalls[unit] = _Recall(member.version, self._now + self._options.revocation_timeout)

    # -------------------------------------------------------------------------------------------------------- answers

    def _answer_waiting(self) -> None:
        if self.generation < self._first_generation:
            return
        quiet = self._now - self._options.heartbeat
        for member in self._members.values():
            is_news = member.version > member.acted and (member.acted or member.holds)
            if member.asked_at is not None and (is_news or member.asked_at <= quiet):
                member.asked_at = None
                self._actions.append(self._answer(member))

    def _answer(self, member: _Member) -> Answer:
        return Answer(
            member.id,
            self.generation,
            member.version,
            tuple(sorted(member.holds)),
            tuple((unit, self._cursors[unit]) for unit in sorted(member.given) if unit in member.holds),
            tuple(sorted(member.let_go)),
            self._streams.passed(member.streams),
        )

    def _taken_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions
