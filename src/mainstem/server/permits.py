"""What every call and every message of the native protocol demands of who sends it: one table.

A call that is not in it cannot be carried out, and a test made from the protocol says so before anybody tries.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from mainstem.access.action import Action
from mainstem.transport.counting import NoteCountsCall, NoteVerifiedCall
from mainstem.transport.guarding import (
    CreateTokenCall,
    DeleteQuotaCall,
    DeleteRuleCall,
    ExplainAccessCall,
    ListAccessCall,
    RevokeTokenCall,
    SetQuotaCall,
    SetRuleCall,
)
from mainstem.transport.port import (
    AlterStreamCall,
    Call,
    ConnectionsCall,
    CoolCall,
    CreateStreamCall,
    DeleteStreamCall,
    EraseKeyCall,
    GetStreamCall,
    ListStreamsCall,
    MomentCall,
    OffsetsAtTimeCall,
    PlanColdCall,
    RunsCall,
    SchemaCall,
    SchemasCall,
    SetSchemaCall,
    StatisticsCall,
    TrimStreamCall,
)
from mainstem.transport.sharing import (
    AbortDeliveryCall,
    AbortTransactionCall,
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
    OpenWriterCall,
    ResetGroupCall,
)
from mainstem.transport.wire import Kind, Stage

# From here on the numbers of transactions stand for keys of requests over HTTP. Clients draw smaller ones: else one
# could use up the keys of another.
KEY_TRANSACTION_MIN: Final = (1 << 62) + 1


class Demand(NamedTuple):
    """An action that must be allowed, and to which stream, by its name or its id: the log as a whole has no name. For
    `group` it is the name of a group, or of a writer. `is_for_any`: it is about all streams, and the answer leaves out
    what the principal may not see. `if_missing`: what must be allowed instead if there is no such stream."""

    action: Action
    stream: str | int = ""
    is_for_any: bool = False
    if_missing: Action | None = None


Demands = tuple[Demand, ...]


def _of_stream(action: Action) -> Callable[[Any], Demands]:
    return lambda call: (Demand(action, call.name),)


def _of_log(action: Action) -> Callable[[Any], Demands]:
    return lambda call: (Demand(action),)


def _of_any(action: Action) -> Callable[[Any], Demands]:
    return lambda call: (Demand(action, is_for_any=True),)


def _of_lookup(call: GetStreamCall) -> Demands:
    return (Demand(Action.DESCRIBE, call.name, if_missing=Action.CREATE if call.auto_create else None),)


def _of_member(call: BeatGroupCall | LeaveGroupCall) -> Demands:
    return (Demand(Action.GROUP, call.group),)


def _of_joining(call: JoinGroupCall | LeaseGroupCall) -> Demands:
    """What a pattern finds is only what may be read."""
    return (Demand(Action.GROUP, call.group), *(Demand(Action.READ, stream) for stream in call.streams))


def _of_cursors(call: CommitCursorsCall) -> Demands:
    return (Demand(Action.GROUP, call.group), *_of_reading(call.offsets))


def _of_reset(call: ResetGroupCall) -> Demands:
    return (Demand(Action.GROUP, call.name), *_of_reading(call.offsets))


def _of_reading(offsets: Iterable[tuple[int, int, int]]) -> Iterator[Demand]:
    return (Demand(Action.READ, stream) for stream in sorted({stream for stream, _, _ in offsets}))


def _of_commit(call: CommitTransactionCall) -> Demands:
    """Beside what its batches demand, which the call does not name."""
    cursors = (demand for each in call.cursors for demand in _of_cursors(each))
    return (Demand(Action.WRITE, is_for_any=True), *_of_writer(call.writer), *cursors)


def _of_counts(call: NoteCountsCall) -> Demands:
    """Who may write to a stream may say how much that was."""
    streams = sorted({count.stream for count in call.counts})
    return tuple(Demand(Action.WRITE, stream) for stream in streams) or (Demand(Action.WRITE, is_for_any=True),)


def _of_parts(call: CommitPartsCall) -> Demands:
    """Beside what its batches demand, which the call does not name."""
    stream = () if call.delivery is None else (Demand(Action.WRITE, call.delivery.stream),)
    return (Demand(Action.WRITE, is_for_any=True), *stream)


def _of_writer(name: str) -> Demands:
    """A transaction may be that of a writer, which has its name for itself."""
    return (Demand(Action.GROUP, name),) if name else ()


CALLS: Final[Mapping[type, Callable[[Any], Demands]]] = {
    CreateStreamCall: _of_stream(Action.CREATE),
    GetStreamCall: _of_lookup,
    ListStreamsCall: _of_any(Action.DESCRIBE),
    AlterStreamCall: _of_stream(Action.ALTER),
    SetSchemaCall: _of_stream(Action.ALTER),
    SchemasCall: _of_stream(Action.DESCRIBE),
    SchemaCall: _of_any(Action.DESCRIBE),
    DeleteStreamCall: _of_stream(Action.DELETE),
    TrimStreamCall: _of_stream(Action.DELETE),
    EraseKeyCall: _of_stream(Action.DELETE),
    # Who may has the folder before him: only the server's own people.
    PlanColdCall: _of_log(Action.ADMIN),
    CoolCall: _of_log(Action.ADMIN),
    OffsetsAtTimeCall: _of_stream(Action.DESCRIBE),
    MomentCall: _of_stream(Action.DESCRIBE),
    RunsCall: _of_stream(Action.READ),
    JoinGroupCall: _of_joining,
    BeatGroupCall: _of_member,
    LeaseGroupCall: _of_joining,
    LeaveGroupCall: _of_member,
    CommitCursorsCall: _of_cursors,
    ListGroupsCall: _of_any(Action.GROUP),
    GetGroupCall: _of_stream(Action.GROUP),
    ResetGroupCall: _of_reset,
    DeleteGroupCall: _of_stream(Action.GROUP),
    HoldGroupCall: _of_stream(Action.GROUP),
    CommitTransactionCall: _of_commit,
    CommitPartsCall: _of_parts,
    AbortTransactionCall: _of_any(Action.WRITE),
    AbortDeliveryCall: _of_stream(Action.WRITE),
    OpenWriterCall: _of_stream(Action.GROUP),
    StatisticsCall: _of_log(Action.DESCRIBE),
    ConnectionsCall: _of_log(Action.ADMIN),
    CreateTokenCall: _of_log(Action.ADMIN),
    RevokeTokenCall: _of_log(Action.ADMIN),
    SetRuleCall: _of_log(Action.ADMIN),
    DeleteRuleCall: _of_log(Action.ADMIN),
    SetQuotaCall: _of_log(Action.ADMIN),
    DeleteQuotaCall: _of_log(Action.ADMIN),
    ListAccessCall: _of_log(Action.ADMIN),
    ExplainAccessCall: _of_log(Action.ADMIN),
    NoteCountsCall: _of_counts,
    NoteVerifiedCall: _of_stream(Action.ALTER),
}

# Messages of a client that is known. What is None is about something of its own that was allowed before.
MESSAGES: Final[Mapping[Kind, Action | str | None]] = {
    Kind.CALL: "see CALLS",
    Kind.APPEND: Action.WRITE,
    Kind.STAGE: Action.WRITE,
    Kind.SUBSCRIBE: Action.READ,
    Kind.CREDIT: None,
    Kind.UNSUBSCRIBE: None,
    Kind.SHARE: None,
}


def demands_of_stage(stage: Stage) -> Demands:
    """What a part of a transaction demands, beside what its batches do, and its commit if it has that."""
    return _of_writer(stage.staging.writer)


def demands_of(call: Call) -> Demands:
    """What the call demands: all of it."""
    return CALLS[type(call)](call)
