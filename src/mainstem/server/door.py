"""The door: what a listener asks about who comes. Who is this, may they, and how much of it.

Whoever guards a server answers; without a guard only this machine is let in, and may do everything.
"""

import ipaddress
from typing import Final, Literal, Protocol

from mainstem.core.errors import Forbidden
from mainstem.transport.port import Answer, Call

# What a visitor may be allowed to do to a stream, a group, or the log as a whole, whose name is empty.
ACTIONS: Final = ("read", "write", "create", "alter", "delete", "describe", "group", "admin")
Direction = Literal["read", "write"]


class Visitor(Protocol):
    """Somebody who was let in. Nothing here waits, but for `seen`. Any thread.

    What it may not, the checks refuse, and the refusal is noted where those are. They also refuse who would not be let
    in any more: whoever keeps a visitor for long asks again now and then.
    """

    @property
    def name(self) -> str:
        """Who it is; two of the same name are one."""
        ...

    def check(self, action: str, name: str) -> None:
        """Raise if it may not do this to what has this name."""
        ...

    def check_any(self, action: str) -> None:
        """The same for what is about all of them: raise if it may do it to none."""
        ...

    def check_call(self, call: Call) -> None:
        """Raise if it may not have this carried out."""
        ...

    def seen(self, call: Call, answer: Answer) -> Answer:
        """What it may see of the answer to a call that was carried out, which is noted if it changed something. Not in
        the loop's thread."""
        ...

    def begin(self, direction: Direction) -> None:
        """It asks once more. QuotaExceeded, with how long to wait, if it has had too much."""
        ...

    def charge(self, direction: Direction, size: int) -> float:
        """It writes or reads so many bytes more: for how many seconds to take nothing more from it, or to give it
        nothing more. QuotaExceeded if it is to be refused all of it."""
        ...


class Door(Protocol):
    """Lets visitors in. Nothing here waits. The loop's thread."""

    @property
    def is_guarded(self) -> bool:
        """Whether somebody has to be known to do anything."""
        ...

    def admit(self, token: str, certificate: str, address: str) -> Visitor:
        """Who shows this token, or has this name in a certificate that TLS has verified, and comes from this address;
        raises if that is nobody."""
        ...


class _Neighbour:
    """A program on this machine."""

    name = "loopback"

    def check(self, action: str, name: str) -> None:
        return None

    def check_any(self, action: str) -> None:
        return None

    def check_call(self, call: Call) -> None:
        return None

    def seen(self, call: Call, answer: Answer) -> Answer:
        return answer

    def begin(self, direction: Direction) -> None:
        return None

    def charge(self, direction: Direction, size: int) -> float:
        return 0.0


NEIGHBOUR: Final[Visitor] = _Neighbour()


class LoopbackDoor:
    """Whoever is on this machine may do everything, and nobody else anything."""

    is_guarded = False

    def admit(self, token: str, certificate: str, address: str) -> Visitor:
        if not _is_loopback(address):
            raise Forbidden("only programs on the server's own machine may use it")
        return NEIGHBOUR


def _is_loopback(text: str) -> bool:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)
