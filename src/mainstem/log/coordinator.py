"""The coordinator of the groups of one log: hears members, has their state machines decide, and does what they say.

It lives in the process that writes the log. `mainstem.cluster` decides, the ledger has the truth; here is what stands
between them: one thread, which begins with the first member, tells the machines what happened and what time it is,
hands changes of owners to the ledger and answers members that wait. A member's request is answered by that thread when
there is something to say, so that no thread waits for each.

Nothing of this outlives the process. A start knows no members: whoever asks under an old id is told to join anew, and a
group begins with a generation in which nobody owns anything.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from mainstem.cluster.assignment import Unit
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
    StreamChange,
    StreamsChanged,
    Subscription,
    Tick,
    everything,
)
from mainstem.cluster.events import Answer as MemberAnswer
from mainstem.cluster.group import Group, GroupOptions
from mainstem.core.batch import Batch
from mainstem.core.errors import Busy, Closed, Fenced, GroupBusy, InvalidRequest, MainstemError, UnknownGroup
from mainstem.core.events import Event as LogEvent
from mainstem.core.limits import CLIENT_NAME_CHARS_MAX, GROUP_MEMBERS_MAX
from mainstem.core.names import check_group_name
from mainstem.log.batcher import FlushNotice, Outcomes
from mainstem.log.flush import Assigned, GroupCursors, Outcome, Position, Rejected, TransactionCommitted
from mainstem.log.group_report import GroupReports, Owners
from mainstem.log.groups import KnownGroup
from mainstem.log.ledger.base import ShardKey, StreamRow
from mainstem.log.log import Log
from mainstem.log.spreading import SpreadGroup, starts_of
from mainstem.log.transactions import Writer
from mainstem.transport.port import Answer, Answered, CommitCall, MembershipCall
from mainstem.transport.sharing import (
    BeatGroupCall,
    CommitCursorsCall,
    CommitPartsCall,
    CommitTransactionCall,
    DeleteGroupCall,
    GetGroupCall,
    HoldGroupCall,
    JoinGroupCall,
    LeaseGroupCall,
    LeaveGroupCall,
    ListGroupsCall,
    Membership,
    ResetGroupCall,
)
from mainstem.transport.sharing import Committed as CommittedRecords

logger = logging.getLogger("mainstem.log")

T = TypeVar("T")

# How often machines are told the time: a while after something happened, and when all is quiet.
_TICK_SECONDS: Final = 0.05
# How long who asks for a group waits that is about to begin; one that finds no stream does not.
_BEGIN_SECONDS: Final = 1.0
_BUSY_SECONDS: Final = 1.0
# After a look at all groups, for their trends and advice, a rest of this many times as long.
_LOOK_REST: Final = 20
# How long who describes or resets a group waits for the thread.
_ASK_SECONDS: Final = 30.0

_NEVER: Final = threading.Event()

GroupCall = ListGroupsCall | GetGroupCall | ResetGroupCall | DeleteGroupCall | HoldGroupCall


@dataclass(slots=True, eq=False)
class _Coordinated:
    """One group that has members, or whose owners are being voided. The thread's own."""

    name: str
    machine: Group
    # By stream, where the group begins in shards that it has never read; one that is not named, at its beginning.
    begun: dict[int, tuple[int, ...]]
    # By member: who waits for an answer, where it would begin, which streams it reads, what it calls itself.
    waiting: dict[int, Answered] = field(default_factory=dict)
    starts: dict[int, Mapping[int, tuple[int, ...]]] = field(default_factory=dict)
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    clients: dict[int, str] = field(default_factory=dict)
    # The streams that the machine knows, and whether barriers of theirs may be ahead of it.
    streams: tuple[SharedStream, ...] = ()
    is_changing: bool = False

    def forget(self, member: int) -> None:
        for known in (self.starts, self.subscriptions, self.clients):
            known.pop(member, None)


class Coordinator:
    """The groups of one log, as their members and their operators meet them. Any thread.

    `wake` lets whoever commits for the log know that something was submitted, where no thread does nothing else.
    """

    def __init__(self, log: Log, options: GroupOptions | None = None, wake: Callable[[], None] = lambda: None) -> None:
        self._log = log
        self._options = options or GroupOptions()
        self._wake_log = wake
        self._clock = log.clock
        self._started_at = self._clock.monotonic()
        self._reports = GroupReports(log.ledger, log.clock, self._options.rebalance_interval)
        self._changed = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False
        # The thread's own from here on.
        self._groups: dict[str, _Coordinated] = {}
        self._spreads: dict[str, SpreadGroup] = {}
        self._rows: list[tuple[int, int, bool]] = []
        self._shared: dict[int, SharedStream] = {}
        self._busy_until = 0.0
        # Members that spread are about to be served, because of these shards.
        self._is_serving = False
        self._grown: deque[ShardKey] = deque()
        self._look_at = 0.0
        log.batcher.add_listener(self._on_flush)

    # From members.

    def ask(self, call: MembershipCall, answered: Answered, may_read: MayRead = everything) -> None:
        """Answer a member's request, now or when there is something to say. A pattern finds what `may_read` says,
        which is asked, in any thread, when the member joins and when there are other streams than before."""
        check_group_name(call.group)
        self._post(partial(self._on_request, call, answered, may_read))

    def commit(self, call: CommitCall, answered: Answered) -> None:
        """Move cursors of groups, and end a transaction if it is one; answered when that is durable."""
        moved = _cursors_of(call)

        def done(result: Outcomes | MainstemError) -> None:
            error = _error(result)
            if error is not None:
                answered(error)
                return
            for cursors in moved:
                self._note_committed(cursors.group, cursors.offsets)
            assert not isinstance(result, MainstemError)
            answered(committed_answer(result[0]))

        if isinstance(call, CommitTransactionCall):
            writer = Writer(call.writer, call.epoch)
            self._log.commit_transaction(call.transaction, call.batches, _group_cursors(call), done, writer=writer)
        elif isinstance(call, CommitPartsCall):
            self._log.commit_parts(call.transaction, call.parts, done, delivery=call.delivery)
        else:
            self._log.groups.commit(call.group, call.member, call.offsets, done, generation=call.generation)
        self._wake_log()

    def commit_whole(
        self,
        call: CommitTransactionCall,
        batches: Sequence[Batch],
        done: Callable[[Outcomes | MainstemError], None],
        *,
        patience: float = 0.0,
    ) -> None:
        """The same for all of a transaction at once. The caller wakes the log."""

        def committed(result: Outcomes | MainstemError) -> None:
            if _error(result) is None:
                for moved in call.cursors:
                    self._note_committed(moved.group, moved.offsets)
            done(result)

        cursors, writer = _group_cursors(call), Writer(call.writer, call.epoch)
        self._log.commit_whole(call.transaction, batches, cursors, committed, writer=writer, patience=patience)

    def _note_committed(self, group: str, offsets: Iterable[Position]) -> None:
        """Cursors of this group have moved. Any thread."""
        coordinated = self._groups.get(group)
        if coordinated is not None and coordinated.is_changing:
            cursors = {Unit(stream, shard): offset for stream, shard, offset in offsets}
            self._post_quietly(partial(self._tell, coordinated, Committed(cursors)))

    # From operators.

    def call(self, call: GroupCall) -> Answer:
        """What operators ask, and wait for."""
        match call:
            case ListGroupsCall():
                return self._reports.list(call.after, self._known_owners())
            case GetGroupCall():
                owners = self._known_owners().get(call.name)
                if owners is not None and owners.members:
                    self._await_row(call.name)
                return self._reports.get(call.name, call.after, owners)
            case ResetGroupCall():
                self._void(call.name)
                self._log.groups.reset(call.name, call.offsets)
                return self._reports.get(call.name)
            case DeleteGroupCall():
                self._void(call.name)
                self._log.groups.delete(call.name)
                self._reports.forget(call.name)
                return Answer()
            case HoldGroupCall():
                owners = self._known_owners().get(call.name)
                if owners is not None and owners.members:
                    self._await_row(call.name)
                self._log.groups.hold(call.name, call.hold_us)
                return self._reports.get(call.name, 0, owners)

    def counters(self) -> dict[str, int]:
        """What an operator may want to see. Any thread."""
        groups, spreads = tuple(self._groups.values()), tuple(self._spreads.values())
        return {
            "groups_coordinated": len(groups) + len(spreads),
            "group_members": sum(len(group.machine.members) for group in groups)
            + sum(len(group.members) for group in spreads),
        }

    def close(self) -> None:
        """Decide nothing more; members that wait are told."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def look_at_rights(self) -> None:
        """What members may read may have changed: a pattern finds more, or less. Any thread."""
        if self._thread is not None:
            self._post_quietly(self._on_rights_changed)

    def refuse(self, error: MainstemError) -> None:
        """Answer every member that waits with an error: the server is about to stop."""
        if self._thread is not None:
            self._post(partial(self._refuse, error))

    def _known_owners(self) -> Mapping[str, Owners]:
        return {} if self._thread is None else self._ask(self._owners)

    def _owners(self) -> dict[str, Owners]:
        return {
            name: Owners(tuple(group.machine.members), dict(group.clients), dict(group.machine.targets))
            for name, group in self._groups.items()
        } | {
            name: Owners(tuple(group.members), group.clients, spread_by=group.id)
            for name, group in self._spreads.items()
        }

    def _await_row(self, name: str) -> None:
        """A group whose first member has joined this moment is about to be in the ledger."""
        deadline = self._clock.monotonic() + _BEGIN_SECONDS
        while self._log.ledger.group_named(name) is None and self._clock.monotonic() < deadline:
            _NEVER.wait(_TICK_SECONDS / 5)

    def _void(self, name: str) -> None:
        """If the ledger says that members own shards of a group, and none of them was heard of since the start, nobody
        does any more."""
        known = self._log.groups.get(name)
        if not any(row.owner for row in known.shards.values()):
            owners = self._known_owners().get(name)
            if owners is not None and owners.members:
                # They have only just joined, or there is nothing for them.
                raise _busy(name)
            return
        if self._ask(partial(self._may_have_members, name, known)):
            raise _busy(name)
        deadline = self._clock.monotonic() + _ASK_SECONDS
        while self._ask(lambda: name in self._groups or name in self._spreads) and self._clock.monotonic() < deadline:
            _NEVER.wait(_TICK_SECONDS)

    def _may_have_members(self, name: str, known: KnownGroup) -> bool:
        """If not, its owners are being voided."""
        spread = self._spreads.get(name)
        if spread is not None:
            return bool(spread.members)
        group = self._groups.get(name)
        if group is not None:
            return bool(group.machine.members)
        if self._clock.monotonic() < self._started_at + self._options.session_timeout:
            return True  # they may be about to join anew
        self._begin(name, known)
        return False

    # The thread.

    def _post(self, action: Callable[[], None]) -> None:
        with self._changed:
            if self._closed:
                raise Closed("the log is closed")
            self._inbox.append(action)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mainstem-groups", daemon=True)
                self._thread.start()

    def _ask(self, question: Callable[[], T]) -> T:
        """What the thread says."""
        answer: Future[T] = Future()

        def find_out() -> None:
            try:
                answer.set_result(question())
            except Exception as error:  # noqa: BLE001  # it belongs to who asked
                answer.set_exception(error)

        self._post(find_out)
        try:
            return answer.result(_ASK_SECONDS)
        except FutureTimeout:
            raise Busy(f"the coordinator of the groups did not answer within {_ASK_SECONDS:g} s; try again") from None

    def _run(self) -> None:
        tick_at = 0.0
        while True:
            with self._changed:
                if not self._inbox and not self._closed:
                    self._changed.wait(
                        max(tick_at - self._clock.monotonic(), 0.0) if self._groups or self._spreads else None
                    )
                is_closed = self._closed
                actions = tuple(self._inbox)
                self._inbox.clear()
            for action in actions:
                self._guard(action)
            if is_closed:
                break
            if (self._groups or self._spreads) and self._clock.monotonic() >= tick_at:
                self._guard(self._tick)
                now = self._clock.monotonic()
                tick_at = now + (_TICK_SECONDS if now < self._busy_until else self._options.heartbeat / 4)
            if self._clock.monotonic() < self._busy_until:
                tick_at = min(tick_at, self._clock.monotonic() + _TICK_SECONDS)
        self._refuse(Closed("the log is closed"))

    def _guard(self, action: Callable[[], None]) -> None:
        """What fails for one group must not end what is done for all."""
        try:
            action()
        except Exception:
            logger.exception(LogEvent("the coordinator of the groups failed at something"))

    def _refuse(self, error: MainstemError) -> None:
        for spread in self._spreads.values():
            spread.refuse(error)
        for group in self._groups.values():
            waiting, group.waiting = group.waiting, {}
            for answered in waiting.values():
                answered(error)

    def _tick(self) -> None:
        self._look_at_streams()
        for group in tuple(self._groups.values()):
            self._tell(group, Tick())
            machine = group.machine
            if not machine.members and not machine.owners and machine.is_settled:
                self._groups.pop(group.name, None)
        for spread in tuple(self._spreads.values()):
            spread.tick()
            if spread.is_over or spread.is_done:
                del self._spreads[spread.name]
        now = self._clock.monotonic()
        if now >= self._look_at:
            for name, owners in self._owners().items():
                self._reports.look(name, owners)
            # However many there are, members do not wait for it.
            took = self._clock.monotonic() - now
            self._look_at = now + max(self._reports.period, _LOOK_REST * took)

    def _on_request(self, call: MembershipCall, answered: Answered, may_read: MayRead) -> None:
        if self._closed:
            answered(Closed("the log is closed"))
            return
        group = self._groups.get(call.group)
        spread = self._spreads.get(call.group)
        if isinstance(call, LeaseGroupCall):
            self._on_lease(call, answered, may_read)
            return
        if isinstance(call, LeaveGroupCall):
            if group is not None:
                self._tell(group, Leave(call.member))
            if spread is not None:
                spread.leave(call.member)
            answered(Answer())
            return
        if spread is not None and isinstance(call, JoinGroupCall):
            answered(_other_kind(call.group, "batch by batch, with spread=True") if spread.members else _changing())
            return
        if group is None and isinstance(call, BeatGroupCall):
            answered(_join_anew())
            return
        if group is None:
            group = self._begin(call.group, self._known(call.group))
        before = group.waiting.pop(call.member, None)
        if before is not None:
            before(Busy("the same member has asked again since"))
        group.waiting[call.member] = answered
        if isinstance(call, BeatGroupCall):
            self._tell(group, _beat(call))
        else:
            self._join(group, call, may_read)

    def _on_lease(self, call: LeaseGroupCall, answered: Answered, may_read: MayRead) -> None:
        whole, spread = self._groups.get(call.group), self._spreads.get(call.group)
        if whole is not None:
            answered(_other_kind(call.group, "whole shards") if whole.machine.members else _changing())
            return
        if spread is None or spread.is_over:
            spread = self._begin_spread(call.group)
        if len(spread.members) >= GROUP_MEMBERS_MAX and call.member not in spread.members:
            answered(_full(call.group))
            return
        self._look_at_streams()
        spread.ask(call, answered, may_read)

    def _begin_spread(self, name: str) -> SpreadGroup:
        known = self._known(name)
        generation = 0 if known is None else known.row.generation
        rows = known.shards if known is not None else {}
        begun = {stream for stream, _ in rows}

        def start_of(group: SpreadGroup, unit: Unit) -> Position | None:
            stream = self._shared.get(unit.stream)
            if unit.stream in begun or stream is None:
                return None
            members = {id_: member for id_, member in group.members.items() if member.subscription.wants(stream.name)}
            starts = [dict(member.call.starts) for member in members.values()]
            wanted = [member.subscription for member in members.values()]
            is_awaited = self._is_awaited(stream, wanted, self._known(name)) or not _is_known(stream.id, starts)
            offsets = () if is_awaited else starts_of(members, unit)
            return (*unit, offsets[unit.shard]) if unit.shard < len(offsets) else None

        spread = SpreadGroup(name, self._log, self._options, generation, start_of, self._post_quietly, self._wake_log)
        self._spreads[name] = spread
        spread.set_streams(self._shared.values())
        return spread

    def _on_flush(self, notice: FlushNotice) -> None:
        """In the thread that commits: members may wait for what was written."""
        if self._spreads and notice.ends:
            self._grown.extend(notice.ends)
            if not self._is_serving:
                self._is_serving = True
                self._post_quietly(self._serve)

    def _serve(self) -> None:
        self._is_serving = False
        grown = set()
        while self._grown:
            grown.add(self._grown.popleft())
        for spread in self._spreads.values():
            spread.grow(grown)

    def _join(self, group: _Coordinated, call: JoinGroupCall, may_read: MayRead) -> None:
        if len(group.machine.members) >= GROUP_MEMBERS_MAX and call.member not in group.machine.members:
            group.waiting.pop(call.member)(_full(group.name))
            return
        subscription = Subscription(frozenset(call.streams), call.pattern, may_read)
        group.subscriptions[call.member] = subscription
        group.starts[call.member] = dict(call.starts)
        group.clients[call.member] = call.client[:CLIENT_NAME_CHARS_MAX]
        self._look_at_streams()
        self._tell_streams(group)
        held = frozenset(Unit(stream, shard) for stream, shard in call.held)
        self._busy_until = self._clock.monotonic() + _BUSY_SECONDS
        self._tell(group, Join(call.member, subscription, held, call.generation))

    def _known(self, name: str) -> KnownGroup | None:
        try:
            return self._log.groups.get(name)
        except UnknownGroup:
            return None

    def _begin(self, name: str, known: KnownGroup | None) -> _Coordinated:
        rows = known.shards if known is not None else {}
        machine = Group(
            self._options,
            0 if known is None else known.row.generation,
            [Unit(*key) for key, row in rows.items() if row.owner],
            {Unit(*key): row.offset for key, row in rows.items()},
            self._clock.monotonic(),
        )
        group = _Coordinated(name, machine, {stream: () for stream, _ in rows})
        self._groups[name] = group
        self._look_at_streams()
        self._tell_streams(group)
        self._perform(group, machine.start())
        return group

    # Streams.

    def _look_at_streams(self) -> None:
        """Tell the machines if there are other streams than before, or more shards."""
        rows = [row for row in self._log.ledger.list_streams() if not row.deleted_us]
        now = [(row.id, row.shards, _has_order(row)) for row in rows]
        if now == self._rows:
            return
        self._rows = now
        known = self._shared
        self._shared = {
            row.id: shared
            if (shared := known.get(row.id)) is not None
            and (shared.shards, shared.has_order) == (row.shards, _has_order(row))
            else self._as_shared(row)
            for row in rows
        }
        for group in tuple(self._groups.values()):
            self._tell_streams(group)
        for spread in self._spreads.values():
            spread.set_streams(self._shared.values())

    def _on_rights_changed(self) -> None:
        for group in tuple(self._groups.values()):
            if any(wanted.pattern is not None for wanted in group.subscriptions.values()):
                self._tell_streams(group, are_same=False)
        for spread in self._spreads.values():
            spread.set_streams(self._shared.values())

    def _as_shared(self, row: StreamRow) -> SharedStream:
        generations = self._log.ledger.load_generations(row.id)[: row.generation] if row.generation else ()
        changes = [
            StreamChange(number, generation.shards, tuple(generation.barriers))
            for number, generation in enumerate(generations, 1)
        ]
        return SharedStream(row.id, row.name, row.shards, tuple(changes), _has_order(row))

    def _tell_streams(self, group: _Coordinated, *, are_same: bool = True) -> None:
        """Tell the machine of a group what there is to read, unless that is what it knows, and `are_same` readers may
        read it."""
        before = {stream.id for stream in group.streams}
        subscriptions = set(group.subscriptions.values())
        streams = tuple(
            stream
            for stream in self._shared.values()
            if stream.id in before or any(wanted.wants(stream.name) for wanted in subscriptions)
        )
        if streams != group.streams or not are_same:
            group.streams = streams
            group.is_changing = any(stream.changes for stream in streams)
            self._busy_until = self._clock.monotonic() + _BUSY_SECONDS
            self._tell(group, StreamsChanged(streams))
            if group.is_changing:
                self._tell_cursors(group)

    def _tell_cursors(self, group: _Coordinated) -> None:
        """Commits are told while barriers may be ahead. Those from before are in the ledger by now, and may be all that
        there will be."""
        known = self._known(group.name)
        if known is not None:
            self._tell(group, Committed({Unit(*key): row.offset for key, row in known.shards.items()}))

    # What machines say.

    def _tell(self, group: _Coordinated, event: Event) -> None:
        try:
            actions = group.machine.handle(event, self._clock.monotonic())
        except Exception:
            # Our bug. Members join anew, and it starts over from what the ledger says.
            logger.exception(LogEvent("the coordination of a group failed", group=group.name))
            actions = [End()]
        self._perform(group, actions)

    def _perform(self, group: _Coordinated, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case ChangeOwners():
                    self._change_owners(group, action)
                case MemberAnswer():
                    self._answer(group, action.member, Answer(membership=self._membership(action)))
                case JoinAnew():
                    self._answer(group, action.member, _join_anew())
                case RefuseMember():
                    self._answer(group, action.member, _full(group.name))
                case Forget():
                    self._answer(group, action.member, _join_anew())
                    group.forget(action.member)
                    self._busy_until = self._clock.monotonic() + _BUSY_SECONDS
                case End():
                    for member in tuple(group.waiting):
                        self._answer(group, member, _join_anew())
                    if self._groups.get(group.name) is group:
                        del self._groups[group.name]

    def _answer(self, group: _Coordinated, member: int, answer: Answer | MainstemError) -> None:
        answered = group.waiting.pop(member, None)
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

    def _change_owners(self, group: _Coordinated, change: ChangeOwners) -> None:
        assigned = [(unit.stream, unit.shard, owner) for unit, owner in change.assigned]
        starts = [place for unit, owner in change.assigned if (place := self._start(group, unit, owner)) is not None]

        def done(result: Outcomes | MainstemError) -> None:
            self._post_quietly(partial(self._on_changed, group, change, result))

        try:
            self._log.groups.assign(group.name, change.generation, assigned, done, starts=starts)
        except MainstemError as error:
            self._on_changed(group, change, error)
        else:
            self._wake_log()

    def _post_quietly(self, action: Callable[[], None]) -> None:
        try:
            self._post(action)
        except Closed:
            return  # nobody is left to tell

    def _start(self, group: _Coordinated, unit: Unit, owner: int) -> Position | None:
        """Where a group begins in a shard that it has never read, as the first member wants it that reads of the
        stream. A shard that came later, a stream that a member did not know when it joined, or one that a pattern
        finds and that is younger than the group, is read from its beginning: nothing of it is missed."""
        if not owner:
            return None
        if unit.stream not in group.begun:
            stream = self._shared.get(unit.stream)
            name = "" if stream is None else stream.name
            members = {id_: wanted for id_, wanted in group.subscriptions.items() if wanted.wants(name)}
            is_awaited = self._is_awaited(stream, members.values(), self._known(group.name))
            is_awaited = is_awaited or not _is_known(unit.stream, [group.starts[id_] for id_ in members])
            group.begun[unit.stream] = () if is_awaited else group.starts.get(owner, {}).get(unit.stream, ())
        offsets = group.begun[unit.stream]
        return (*unit, offsets[unit.shard]) if unit.shard < len(offsets) else None

    def _is_awaited(
        self, stream: SharedStream | None, wanted: Iterable[Subscription], known: KnownGroup | None
    ) -> bool:
        """Whether a group is older than a stream that its pattern finds: it asked for whatever may come."""
        if stream is None or known is None or any(stream.name in each.names for each in wanted):
            return False
        row = self._log.ledger.load_stream(stream.id)
        return row is not None and row.created_us > known.row.created_us

    def _on_changed(self, group: _Coordinated, change: ChangeOwners, result: Outcomes | MainstemError) -> None:
        error = _error(result)
        if error is not None:
            if not isinstance(error, Fenced):
                logger.warning(LogEvent("owners of a group could not be noted", group=group.name, reason=error))
                if not error.retriable:
                    # It would be the same if they joined anew.
                    for member in tuple(group.waiting):
                        self._answer(group, member, error)
            self._tell(group, OwnersRefused())
            return
        assert not isinstance(result, MainstemError)
        assigned = result[0]
        assert isinstance(assigned, Assigned)
        cursors = {Unit(stream, shard): offset for stream, shard, offset in assigned.cursors}
        self._busy_until = self._clock.monotonic() + _BUSY_SECONDS
        self._tell(group, OwnersChanged(assigned.generation, cursors))


def _is_known(stream: int, starts: Iterable[Mapping[int, tuple[int, ...]]]) -> bool:
    """Whether all who want a stream knew it when they joined."""
    return all(stream in known for known in starts)


def _has_order(row: StreamRow) -> bool:
    return bool(row.key) or row.cleanup != "delete"


def _busy(name: str) -> GroupBusy:
    return GroupBusy(f"group {name!r} has members, or had a moment ago; stop them first")


def _error(result: Outcomes | MainstemError) -> MainstemError | None:
    if isinstance(result, MainstemError):
        return result
    outcome = result[0]
    return outcome.error if isinstance(outcome, Rejected) else None


def _cursors_of(call: CommitCall) -> tuple[CommitCursorsCall, ...]:
    match call:
        case CommitCursorsCall():
            return (call,)
        case CommitTransactionCall():
            return call.cursors
        case CommitPartsCall():
            return ()


def _group_cursors(call: CommitTransactionCall) -> list[GroupCursors]:
    return [GroupCursors(each.group, each.member, each.offsets, each.generation) for each in call.cursors]


def committed_answer(outcome: Outcome) -> Answer:
    """What a client hears of its commit."""
    if not isinstance(outcome, TransactionCommitted):
        return Answer()
    return Answer(committed=tuple(CommittedRecords(*place) for place in outcome.offsets), repeated=outcome.duplicate)


def _beat(call: BeatGroupCall) -> Beat:
    held = frozenset(Unit(stream, shard) for stream, shard in call.held)
    rates = {Unit(stream, shard): rate for stream, shard, rate in call.rates}
    return Beat(call.member, call.generation, call.version, held, rates)


def _join_anew() -> Fenced:
    return Fenced("this id is not that of a member of the group any more; draw another and join anew")


def _other_kind(name: str, how: str) -> InvalidRequest:
    return InvalidRequest(f"the members of group {name!r} read {how}: all of a group's members read in one way")


def _changing() -> Busy:
    return Busy("the group's last members are leaving; in a moment it can be read in another way")


def _full(name: str) -> InvalidRequest:
    return InvalidRequest(f"group {name!r} has {GROUP_MEMBERS_MAX} members, which is the limit")
