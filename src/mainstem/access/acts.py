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
    Call,
    CreateStreamCall,
    DeleteStreamCall,
    EraseKeyCall,
    SetSchemaCall,
    TrimStreamCall,
)
from mainstem.transport.sharing import DeleteGroupCall, ResetGroupCall

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
)


def is_act(call: Call, *, is_guarded: bool) -> bool:
    """Whether the call is an act of which the audit tells: always what changes who may do what; what changes streams
    and groups once there are principals, so that a log on a developer's machine has no audit before anybody asked for
    one."""
    return isinstance(call, _OF_ACCESS) or (is_guarded and isinstance(call, _OF_STREAMS))


def name_of(call: Call) -> str:
    """As the protocol calls it."""
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
