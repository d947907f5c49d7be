"""The coordinator of the groups of one log: hears members and operators, and has the right group answer.

It lives in the process that writes the log. `mainstem.cluster` decides and the ledger has the truth; groups whose
members read whole shards (`whole_group.py`) and groups that spread them (`spread_group.py`) stand between the two. Here
is what concerns all of them: one thread, in which they live, that tells them of the time and of streams, and which of
them is asked. A member's request is answered by that thread when there is something to say: no thread waits for each.

Nothing of this outlives the process. A start knows no members: whoever asks under an old id is told to join anew, and a
group begins with a generation in which nobody owns anything.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from mainstem.cluster.events import MayRead, everything
from mainstem.cluster.options import GroupOptions
from mainstem.core.batch import Batch
from mainstem.core.errors import Busy, Closed, GroupBusy, InvalidRequest, MainstemError
from mainstem.core.limits import GROUP_MEMBERS_MAX
from mainstem.core.names import check_group_name
from mainstem.log.batcher import FlushNotice, Outcomes
from mainstem.log.flush import GroupCursors, Outcome, Position, TransactionCommitted, only_outcome
from mainstem.log.group_report import GroupReports, Owners
from mainstem.log.group_thread import HURRIED_TICK_SECONDS, GroupThread
from mainstem.log.groups import KnownGroup, group_is_full
from mainstem.log.ledger.base import ShardKey
from mainstem.log.log import Log
from mainstem.log.shared_streams import SharedStreams
from mainstem.log.spread_group import SpreadGroup
from mainstem.log.transactions import Writer
from mainstem.log.whole_group import WholeGroup, join_anew
from mainstem.transport.port import Answer, Answered, CommitCall, MembershipCall
from mainstem.transport.sharing import (
    BeatGroupCall,
    CommitCursorsCall,
    CommitPartsCall,
    Committed,
    CommitTransactionCall,
    DeleteGroupCall,
    GetGroupCall,
    HoldGroupCall,
    JoinGroupCall,
    LeaseGroupCall,
    LeaveGroupCall,
    ListGroupsCall,
    ResetGroupCall,
)

# How long an operator waits at most for the ledger to know what has become of a group's owners: a few flushes.
_LEDGER_SECONDS: Final = 5.0
# After a look at all groups, for their trends and advice, a rest of this many times as long.
_LOOK_REST: Final = 20

_NEVER: Final = threading.Event()

GroupCall = ListGroupsCall | GetGroupCall | ResetGroupCall | DeleteGroupCall | HoldGroupCall


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
        self._thread = GroupThread(self._clock, self._options.heartbeat / 4, self._tick, self._has_groups, self._end)
        # The thread's own from here on.
        self._groups: dict[str, WholeGroup] = {}
        self._spreads: dict[str, SpreadGroup] = {}
        self._streams = SharedStreams(log.ledger)
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
        self._thread.post(partial(self._on_request, call, answered, may_read))

    def commit(self, call: CommitCall, answered: Answered) -> None:
        """Move cursors of groups, and end a transaction if it is one; answered when that is durable."""
        moved = _cursors_of(call)

        def done(result: Outcomes | MainstemError) -> None:
            outcome = only_outcome(result)
            if isinstance(outcome, MainstemError):
                answered(outcome)
                return
            for cursors in moved:
                self._note_committed(cursors.group, cursors.offsets)
            answered(committed_answer(outcome))

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
            if not isinstance(only_outcome(result), MainstemError):
                for moved in call.cursors:
                    self._note_committed(moved.group, moved.offsets)
            done(result)

        cursors, writer = _group_cursors(call), Writer(call.writer, call.epoch)
        self._log.commit_whole(call.transaction, batches, cursors, committed, writer=writer, patience=patience)

    def _note_committed(self, group: str, offsets: Iterable[Position]) -> None:
        """Cursors of this group have moved. Any thread."""
        whole = self._groups.get(group)
        if whole is not None:
            whole.note_committed(offsets)

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
        groups = self._all_groups()
        return {
            "groups_coordinated": len(groups),
            "group_members": sum(len(group.members) for group in groups),
        }

    def close(self) -> None:
        """Decide nothing more; members that wait are told."""
        self._thread.close()

    def look_at_rights(self) -> None:
        """What members may read may have changed: a pattern finds more, or less. Any thread."""
        if self._thread.has_begun:
            self._thread.post_quietly(self._on_rights_changed)

    def refuse(self, error: MainstemError) -> None:
        """Answer every member that waits with an error: the server is about to stop."""
        if self._thread.has_begun:
            self._thread.post(partial(self._refuse, error))

    def _known_owners(self) -> Mapping[str, Owners]:
        return self._thread.ask(self._owners) if self._thread.has_begun else {}

    def _owners(self) -> dict[str, Owners]:
        return {group.name: group.owners for group in self._all_groups()}

    def _all_groups(self) -> tuple[WholeGroup | SpreadGroup, ...]:
        return *self._groups.values(), *self._spreads.values()

    def _await_row(self, name: str) -> None:
        """A group whose first member has joined this moment is about to be in the ledger."""
        deadline = self._clock.monotonic() + _LEDGER_SECONDS
        while self._log.ledger.group_named(name) is None and self._clock.monotonic() < deadline:
            if not self._thread.ask(partial(self._is_changing, name)):
                return  # there is nothing for its members to read, and it begins when there is
            _NEVER.wait(HURRIED_TICK_SECONDS / 5)

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
        if self._thread.ask(partial(self._may_have_members, name, known)):
            raise _busy(name)
        deadline = self._clock.monotonic() + _LEDGER_SECONDS
        # None as soon as the group is gone.
        while (count := self._thread.ask(partial(self._count_members, name))) is not None:
            if count:  # somebody came while the owners before were being voided
                raise _busy(name)
            if self._clock.monotonic() >= deadline:
                return
            _NEVER.wait(HURRIED_TICK_SECONDS)

    def _may_have_members(self, name: str, known: KnownGroup) -> bool:
        """If not, its owners are being voided."""
        group = self._find(name)
        if group is not None:
            return bool(group.members)
        if self._clock.monotonic() < self._started_at + self._options.session_timeout:
            return True  # they may be about to join anew
        self._begin(name, known)
        return False

    def _is_changing(self, name: str) -> bool:
        group = self._find(name)
        return group is not None and group.is_changing

    def _count_members(self, name: str) -> int | None:
        group = self._find(name)
        return None if group is None else len(group.members)

    def _find(self, name: str) -> WholeGroup | SpreadGroup | None:
        """The group, if it has members or its owners are being voided."""
        return self._spreads.get(name) or self._groups.get(name)

    # In the thread.

    def _has_groups(self) -> bool:
        return bool(self._groups or self._spreads)

    def _end(self) -> None:
        self._refuse(Closed("the log is closed"))

    def _refuse(self, error: MainstemError) -> None:
        for group in self._all_groups():
            group.refuse(error)

    def _tick(self) -> None:
        self._look_at_streams()
        for group in tuple(self._groups.values()):
            group.tick()
            if group.is_done:
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
        if self._thread.is_closed:
            answered(Closed("the log is closed"))
            return
        whole, spread = self._groups.get(call.group), self._spreads.get(call.group)
        match call:
            case LeaseGroupCall():
                self._on_lease(call, answered, may_read)
            case LeaveGroupCall():
                if whole is not None:
                    whole.leave(call.member)
                if spread is not None:
                    spread.leave(call.member)
                answered(Answer())
            case BeatGroupCall() if whole is None:
                answered(join_anew())
            case JoinGroupCall() if spread is not None:
                answered(_other_kind(call.group, "batch by batch, with spread=True") if spread.members else _changing())
            case _:
                if whole is None:
                    whole = self._begin(call.group, self._log.groups.find(call.group))
                if isinstance(call, JoinGroupCall):
                    self._look_at_streams()
                whole.ask(call, answered, may_read)

    def _on_lease(self, call: LeaseGroupCall, answered: Answered, may_read: MayRead) -> None:
        whole, spread = self._groups.get(call.group), self._spreads.get(call.group)
        if whole is not None:
            answered(_other_kind(call.group, "whole shards") if whole.members else _changing())
            return
        if spread is None or spread.is_over:
            spread = self._begin_spread(call.group)
        if len(spread.members) >= GROUP_MEMBERS_MAX and call.member not in spread.members:
            answered(group_is_full(call.group))
            return
        self._look_at_streams()
        spread.ask(call, answered, may_read)

    def _begin_spread(self, name: str) -> SpreadGroup:
        known, post = self._log.groups.find(name), self._thread.post_quietly
        spread = SpreadGroup(name, self._log, self._options, known, self._streams, post, wake_log=self._wake_log)
        self._spreads[name] = spread
        return spread

    def _begin(self, name: str, known: KnownGroup | None) -> WholeGroup:
        whole = WholeGroup(
            name,
            self._log,
            self._options,
            known,
            self._streams,
            self._thread,
            wake_log=self._wake_log,
            ended=self._on_ended,
        )
        self._groups[name] = whole
        whole.start()
        return whole

    def _on_ended(self, whole: WholeGroup) -> None:
        if self._groups.get(whole.name) is whole:
            del self._groups[whole.name]

    def _look_at_streams(self) -> None:
        """Tell the groups if there are other streams than before, or more shards."""
        if self._streams.look():
            for group in self._all_groups():
                group.look_at_streams()

    def _on_rights_changed(self) -> None:
        for whole in tuple(self._groups.values()):
            whole.look_at_rights()
        for spread in self._spreads.values():
            spread.look_at_streams()

    def _on_flush(self, notice: FlushNotice) -> None:
        """In the thread that commits: members may wait for what was written."""
        if self._spreads and notice.ends:
            self._grown.extend(notice.ends)
            if not self._is_serving:
                self._is_serving = True
                self._thread.post_quietly(self._serve)

    def _serve(self) -> None:
        self._is_serving = False
        grown = set()
        while self._grown:
            grown.add(self._grown.popleft())
        for spread in self._spreads.values():
            spread.grow(grown)


def _busy(name: str) -> GroupBusy:
    return GroupBusy(f"group {name!r} has members, or had a moment ago; stop them first")


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
    return Answer(committed=tuple(Committed(*place) for place in outcome.offsets), repeated=outcome.duplicate)


def _other_kind(name: str, how: str) -> InvalidRequest:
    return InvalidRequest(f"the members of group {name!r} read {how}: all of a group's members read in one way")


def _changing() -> Busy:
    return Busy("the group's last members are leaving; in a moment it can be read in another way")
