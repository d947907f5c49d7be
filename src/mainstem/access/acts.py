"""Administrative acts: which calls change something, and what the audit says of them."""

from typing import Any, Final

import msgspec

from mainstem.transport.guarding import (
    CreateTokenCall,
    DeleteQuotaCall,
    DeleteRuleCall,
    RevokeTokenCall,
    SetQuotaCall,
    SetRuleCall,
)
from mainstem.transport.port import (
    AlterStreamCall,
    Answer,
    Call,
    CreateStreamCall,
    DeleteStreamCall,
    EraseKeyCall,
    GetStreamCall,
    SetSchemaCall,
    TrimStreamCall,
)
from mainstem.transport.sharing import DeleteGroupCall, HoldGroupCall, ResetGroupCall

_OF_ACCESS: Final = (CreateTokenCall, RevokeTokenCall, SetRuleCall, DeleteRuleCall, SetQuotaCall, DeleteQuotaCall)
_OF_STREAMS: Final = (
    CreateStreamCall,
    AlterStreamCall,
    DeleteStreamCall,
    TrimStreamCall,
    EraseKeyCall,
    SetSchemaCall,
    ResetGroupCall,
    DeleteGroupCall,
    HoldGroupCall,
)


def is_act(call: Call, answer: Answer, *, is_guarded: bool) -> bool:
    """Whether the call is an act of which the audit tells: always what changes who may do what; what changes streams
    and groups once there are principals, so that a log on a developer's machine has no audit before anybody asked for
    one. A stream that was only looked up for somebody to write to may have been made for that."""
    return isinstance(call, _OF_ACCESS) or (
        is_guarded and (isinstance(call, _OF_STREAMS) or (isinstance(call, GetStreamCall) and answer.created))
    )


def name_of(call: Call) -> str:
    """As the protocol calls it; what a lookup does that is an act is to create."""
    if isinstance(call, GetStreamCall):
        return str(CreateStreamCall.__struct_config__.tag)
    return str(call.__struct_config__.tag)


def details_of(call: Call) -> dict[str, Any]:
    """What was asked for, without bytes: neither schemas nor keys nor digests belong there."""
    found: dict[str, Any] = {}
    for name in call.__struct_fields__:
        value = getattr(call, name)
        if isinstance(value, msgspec.Struct):
            found[name] = getattr(value, "text", None) or msgspec.to_builtins(value)
        elif isinstance(value, tuple):
            if value:
                found[name] = ", ".join(str(getattr(each, "text", each)) for each in value)
        elif not isinstance(value, bytes) and value not in (None, "", 0, False):
            found[name] = value
    return found
