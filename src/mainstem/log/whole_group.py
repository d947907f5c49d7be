"""Groups whose members read whole shards: a shard has one owner at a time.

`mainstem.cluster.group` decides who owns what, the ledger has the truth. Here is what stands between them: requests of
members and news of streams become events of the machine; what it says becomes changes of owners in the ledger and
answers to members that wait. All of it happens in the coordinator's thread.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from mainstem.cluster.assignment import Unit
from mainstem.cluster.beginning import Wish, is_read_from_beginning
from mainstem.cluster.events import (
    Action,
    Beat,
    ChangeOwners,
    Committed,
    End,
    Event,
    Forget,
    Join,
    JoinAnew,
    Leave,
    MayRead,
    OwnersChanged,
    OwnersRefused,
    RefuseMember,
    SharedStream,
    StreamsChanged,
    Subscription,
    Tick,
)
from mainstem.cluster.events import Answer as MemberAnswer
from mainstem.cluster.group import Group
from mainstem.cluster.options import GroupOptions
from mainstem.core.errors import Busy, Fenced, MainstemError
from mainstem.core.events import Event as LogEvent
from mainstem.core.limits import CLIENT_NAME_CHARS_MAX, GROUP_MEMBERS_MAX
from mainstem.log.batcher import Outcomes
from mainstem.log.flush import Assigned, Position, only_outcome
from mainstem.log.group_report import Owners
from mainstem.log.group_thread import GroupThread
from mainstem.log.groups import KnownGroup, group_is_full
from mainstem.log.log import Log
from mainstem.log.shared_streams import SharedStreams
from mainstem.transport.port import Answer, Answered
from mainstem.transport.sharing import BeatGroupCall, JoinGroupCall, Membership

logger = logging.getLogger("mainstem.log")


@dataclass(frozen=True, slots=True)
class _Member:
    """What a member said of itself when it joined."""

    wish: Wish
    client: str


class WholeGroup:
    """One group that has members, or whose owners are being voided. The coordinator's thread, but for `note_committed`.

    `known` is what the ledger says of it. `ended` is told when this coordination of the group is over, whatever comes
    next; `wake_log` lets whoever commits for the log know that something was submitted.
    """

    def __init__(
        self,
        name: str,
        log: Log,
        options: GroupOptions,
        known: KnownGroup | None,
        streams: SharedStreams,
        thread: GroupThread,
        *,
        wake_log: Callable[[], None],
        ended: Callable[["WholeGroup"], None],
    ) -> None:
        self.name = name
        self._log = log
        self._clock = log.clock
        self._options = options
        self._shared = streams
        self._thread = thread
        self._wake_log = wake_log
        self._ended = ended
        rows = known.shards if known is not None else {}
        self._machine = Group(
            options,
            0 if known is None else known.row.generation,
            [Unit(*key) for key, row in rows.items() if row.owner],
            {Unit(*key): row.offset for key, row in rows.items()},
            self._clock.monotonic(),
        )
        # By stream, where the group begins in shards that it has never read; one that is not named, at its beginning.
        self._begun: dict[int, tuple[int, ...]] = {stream: () for stream, _ in rows}
        # By member: who waits for an answer, and what is known of those that joined.
        self._waiting: dict[int, Answered] = {}
        self._joined: dict[int, _Member] = {}
        # The streams that the machine knows, and whether barriers of theirs may be ahead of it.
        self._streams: tuple[SharedStream, ...] = ()
        self._is_growing = False

    @property
    def members(self) -> tuple[int, ...]:
        return self._machine.members

    @property
    def owners(self) -> Owners:
        clients = {id_: member.client for id_, member in self._joined.items()}
        return Owners(self.members, clients, dict(self._machine.targets))

    @property
    def is_changing(self) -> bool:
        """Whether the ledger is being told of other owners."""
        return not self._machine.is_settled

    @property
    def is_done(self) -> bool:
        """Whether nobody is left, and the ledger knows."""
        machine = self._machine
        return not machine.members and not machine.owners and machine.is_settled

    def start(self) -> None:
        """What is done before anything else."""
        self._perform(self._machine.start())

    # Members.

    def ask(self, call: JoinGroupCall | BeatGroupCall, answered: Answered, may_read: MayRead) -> None:
        """A member's request."""
        before = self._waiting.pop(call.member, None)
        if before is not None:
            before(Busy("the same member has asked again since"))
        self._waiting[call.member] = answered
        if isinstance(call, BeatGroupCall):
            self._tell(_beat(call))
        else:
            self._join(call, may_read)

    def _join(self, call: JoinGroupCall, may_read: MayRead) -> None:
        if len(self.members) >= GROUP_MEMBERS_MAX and call.member not in self.members:
            self._answer(call.member, group_is_full(self.name))
            return
        wish = Wish(Subscription(frozenset(call.streams), call.pattern, may_read), dict(call.starts))
        self._joined[call.member] = _Member(wish, call.client[:CLIENT_NAME_CHARS_MAX])
        self.look_at_streams()
        self._thread.hurry()
        self._tell(Join(call.member, wish.subscription, _units(call.held), call.generation))

    def leave(self, member: int) -> None:
        self._tell(Leave(member))

    def tick(self) -> None:
        """Time has passed."""
        self._tell(Tick())

    def refuse(self, error: MainstemError) -> None:
        """Answer everybody who waits with an error."""
        for member in tuple(self._waiting):
            self._answer(member, error)

    def note_committed(self, offsets: Iterable[Position]) -> None:
        """Cursors of this group have moved. Any thread."""
        if self._is_growing:
            cursors = {Unit(stream, shard): offset for stream, shard, offset in offsets}
            self._thread.post_quietly(partial(self._tell, Committed(cursors)))

    # Streams.

    def look_at_streams(self, *, are_same: bool = True) -> None:
        """Tell the machine what there is to read, unless that is what it knows, and `are_same` readers may read it."""
        before = {stream.id for stream in self._streams}
        subscriptions = {member.wish.subscription for member in self._joined.values()}
        streams = tuple(
            stream
            for stream in self._shared
            if stream.id in before or any(wanted.wants(stream.name) for wanted in subscriptions)
        )
        if streams != self._streams or not are_same:
            self._streams = streams
            self._is_growing = any(stream.changes for stream in streams)
            self._thread.hurry()
            self._tell(StreamsChanged(streams))
            if self._is_growing:
                self._tell_cursors()

    def look_at_rights(self) -> None:
        """What members may read may have changed, which only patterns ask."""
        if any(member.wish.subscription.pattern is not None for member in self._joined.values()):
            self.look_at_streams(are_same=False)

    def _tell_cursors(self) -> None:
        """Commits are told while barriers may be ahead. Those from before are in the ledger by now, and may be all that
        there will be."""
        known = self._log.groups.find(self.name)
        if known is not None:
            self._tell(Committed({Unit(*key): row.offset for key, row in known.shards.items()}))

    # What the machine says.

    def _tell(self, event: Event) -> None:
        try:
            actions = self._machine.handle(event, self._clock.monotonic())
        except Exception:
            # Our bug. Members join anew, and it starts over from what the ledger says.
            logger.exception(LogEvent("the coordination of a group failed", group=self.name))
            actions = [End()]
        self._perform(actions)

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case ChangeOwners():
                    self._change_owners(action)
                case MemberAnswer():
                    self._answer(action.member, Answer(membership=self._membership(action)))
                case JoinAnew():
                    self._answer(action.member, join_anew())
                case RefuseMember():
                    self._answer(action.member, group_is_full(self.name))
                case Forget():
                    self._answer(action.member, join_anew())
                    self._joined.pop(action.member, None)
                    self._thread.hurry()
                case End():
                    self.refuse(join_anew())
                    self._ended(self)

    def _answer(self, member: int, answer: Answer | MainstemError) -> None:
        answered = self._waiting.pop(member, None)
        if answered is not None:
            answered(answer)

    def _membership(self, answer: MemberAnswer) -> Membership:
        return Membership(
            answer.generation,
            answer.version,
            answer.hold,
            tuple((unit.stream, unit.shard, offset) for unit, offset in answer.cursors),
            answer.let_go,
            answer.passed,
            self._options.heartbeat,
            self._options.session_timeout,
        )

    # Owners, in the ledger.

    def _change_owners(self, change: ChangeOwners) -> None:
        assigned = [(unit.stream, unit.shard, owner) for unit, owner in change.assigned]
        starts = [place for unit, owner in change.assigned if (place := self._start_of(unit, owner)) is not None]

        def done(result: Outcomes | MainstemError) -> None:
            self._thread.post_quietly(partial(self._on_changed, result))

        try:
            self._log.groups.assign(self.name, change.generation, assigned, done, starts=starts)
        except MainstemError as error:
            self._on_changed(error)
        else:
            self._wake_log()

    def _on_changed(self, result: Outcomes | MainstemError) -> None:
        outcome = only_outcome(result)
        if isinstance(outcome, MainstemError):
            if not isinstance(outcome, Fenced):
                logger.warning(LogEvent("owners of a group could not be noted", group=self.name, reason=outcome))
                if not outcome.retriable:
                    self.refuse(outcome)  # it would be the same if they joined anew
            self._tell(OwnersRefused())
            return
        assert isinstance(outcome, Assigned)
        cursors = {Unit(stream, shard): offset for stream, shard, offset in outcome.cursors}
        self._thread.hurry()
        self._tell(OwnersChanged(outcome.generation, cursors))

    def _start_of(self, unit: Unit, owner: int) -> Position | None:
        """Where the group begins in a shard that it has never read, as the first owner wants it of any shard of the
        stream. A shard that came later is read from its beginning."""
        if not owner:
            return None
        if unit.stream not in self._begun:
            self._begun[unit.stream] = self._first_offsets(unit.stream, owner)
        offsets = self._begun[unit.stream]
        return (*unit, offsets[unit.shard]) if unit.shard < len(offsets) else None

    def _first_offsets(self, id_: int, owner: int) -> tuple[int, ...]:
        stream, member = self._shared.get(id_), self._joined.get(owner)
        if stream is None or member is None:
            return ()
        wishes = [each.wish for each in self._joined.values() if each.wish.subscription.wants(stream.name)]
        row = self._log.ledger.group_named(self.name)
        is_from_beginning = is_read_from_beginning(stream, wishes, None if row is None else row.created_us)
        return () if is_from_beginning else member.wish.starts.get(id_, ())


def join_anew() -> Fenced:
    """What a member hears whose id means nothing any more."""
    return Fenced("this id is not that of a member of the group any more; draw another and join anew")


def _beat(call: BeatGroupCall) -> Beat:
    rates = {Unit(stream, shard): rate for stream, shard, rate in call.rates}
    return Beat(call.member, call.generation, call.version, _units(call.held), rates)


def _units(held: Iterable[tuple[int, int]]) -> frozenset[Unit]:
    return frozenset(Unit(stream, shard) for stream, shard in held)
