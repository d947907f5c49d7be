"""The door: what a listener asks about who comes. Who is this, may they, and how much of it.

Whoever guards a server answers. Probes are for everybody: nobody is asked who it is.
"""

from typing import Final, Literal, Protocol

from mainstem.access.quotas import Direction
from mainstem.transport.port import Answer, Call

Held = Literal["connections", "memory_bytes"]


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

    def share(self, direction: Direction) -> float:
        """Which share of what it writes or reads is kept now: less than 1 if it is over a quota that says so."""
        ...

    def charge(
        self, direction: Direction, size: int, offered: float | None = None, *, has_begun: bool = False
    ) -> float:
        """It writes or reads so many bytes more: for how many seconds to take nothing more from it, or to give it
        nothing more. QuotaExceeded if it is to be refused all of it. `offered` is how much it would have been if all of
        it had been kept; None if nothing can be left out. What `has_begun` to be answered waits instead."""
        ...

    def hold(self, measure: Held, count: int) -> None:
        """It has so much more until `let_go`; QuotaExceeded if that is too much."""
        ...

    def let_go(self, measure: Held, count: int) -> None:
        """It has so much less."""
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

    def turn_away(self, address: str, reason: str) -> None:
        """Somebody from this address was refused before anybody asked who it is."""
        ...


class _Passer:
    """Whoever looks in from outside."""

    name = "anonymous"

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

    def share(self, direction: Direction) -> float:
        return 1.0

    def charge(
        self, direction: Direction, size: int, offered: float | None = None, *, has_begun: bool = False
    ) -> float:
        return 0.0

    def hold(self, measure: Held, count: int) -> None:
        return None

    def let_go(self, measure: Held, count: int) -> None:
        return None


PASSER: Final[Visitor] = _Passer()
