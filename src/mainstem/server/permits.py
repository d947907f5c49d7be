"""What every call and every message of the native protocol demands of who sends it: one table.

A call that is not in it cannot be carried out, and a test made from the protocol says so before anybody tries.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from mainstem.access.action import Action
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
    CreateStreamCall,
    DeleteStreamCall,
    EraseKeyCall,
    GetStreamCall,
    ListStreamsCall,
    OffsetsAtTimeCall,
    SchemaCall,
    SchemasCall,
    SetSchemaCall,
    StatisticsCall,
    TrimStreamCall,
)
from mainstem.transport.wire import Kind


class Demand(NamedTuple):
    """The action that must be allowed, and to which stream: the log as a whole has no name. `is_for_any`: it is about
    all streams, and the answer leaves out what the principal may not see. `if_missing`: what must be allowed as well if
    there is no such stream."""

    action: Action
    stream: str = ""
    is_for_any: bool = False
    if_missing: Action | None = None


def _of_stream(action: Action) -> Callable[[Any], Demand]:
    return lambda call: Demand(action, call.name)


def _of_log(action: Action) -> Callable[[Any], Demand]:
    return lambda call: Demand(action)


def _of_any(action: Action) -> Callable[[Any], Demand]:
    return lambda call: Demand(action, is_for_any=True)


def _of_lookup(call: GetStreamCall) -> Demand:
    return Demand(Action.DESCRIBE, call.name, if_missing=Action.CREATE if call.auto_create else None)


CALLS: Final[Mapping[type, Callable[[Any], Demand]]] = {
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
    OffsetsAtTimeCall: _of_stream(Action.DESCRIBE),
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
}

# Messages of a client that is known. What is None is about something of its own that was allowed before.
MESSAGES: Final[Mapping[Kind, Action | str | None]] = {
    Kind.CALL: "see CALLS",
    Kind.APPEND: Action.WRITE,
    Kind.SUBSCRIBE: Action.READ,
    Kind.CREDIT: None,
    Kind.UNSUBSCRIBE: None,
}


def demand_of(call: Call) -> Demand:
    """What the call demands."""
    return CALLS[type(call)](call)
