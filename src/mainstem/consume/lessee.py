"""A member of a group that spreads its streams, as its client sees it: it has leases, says what is done, gets more."""

import threading
import time
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Final

from mainstem.consume.member import Member, Reader, Wishes
from mainstem.core.errors import Closed, DeadlineExceeded, InternalError, MainstemError
from mainstem.core.identity import program_name
from mainstem.transport.port import Answer, Port
from mainstem.transport.sharing import Lease, LeaseGroupCall

# How soon who is not patient asks again.
_IMPATIENT_SECONDS: Final = 0.1


class Lessee(Member):
    """Any thread. As any member it always has a request under way; each says all that the coordinator must know.

    Requests are made also while the reader hangs in what the user does with a record. Such a reader keeps nothing from
    others for ever: what it has is given back, and it gets more when it comes for it. `place`, a method of the reader,
    says something that is another when it has asked for the next record since.
    """

    # How long a reader may stand still.
    still_seconds = 30.0

    def __init__(
        self,
        port: Port,
        wishes: Wishes,
        reader: Reader,
        *,
        wanted: int,
        patient: bool,
        place: Callable[[], Hashable],
    ) -> None:
        super().__init__(port, wishes, reader)
        self._wanted = wanted
        self._patient = patient
        # By number: what the reader has to read, how far it has, and how far the coordinator has acknowledged that.
        self._leases: dict[int, Lease] = {}
        self._done: dict[int, int] = {}
        self._told: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        self._lost: set[int] = set()
        # Where the reader was seen, and since when.
        self._ask_place = weakref.WeakMethod(place)
        self._place: Hashable = None
        self._there_since = time.monotonic()
        # Whether other members have something to read; None until the newest request is answered.
        self.others: bool | None = None
        # Set when all that is done was acknowledged.
        self.settled = threading.Event()

    def leases(self) -> dict[int, Lease]:
        """What the reader has to read now; raises why it cannot be a member."""
        with self._lock:
            if self._error is not None:
                raise self._error
            return dict(self._leases)

    def taken_lost(self) -> set[int]:
        """Leases of which something was done that did not count, since this was last asked."""
        with self._lock:
            lost, self._lost = self._lost, set()
        if lost:
            self._send()  # now more is wanted
        return lost

    def progress(self, done: Mapping[int, int]) -> None:
        """The reader has done leases up to these offsets; the coordinator is told with the next request, at once if
        that lets the reader have more."""
        with self._lock:
            self._done.update((number, at) for number, at in done.items() if number in self._leases)
            over = [number for number, at in self._done.items() if at >= self._leases[number].end]
        if over:
            self._send()

    def want(self, count: int) -> None:
        """So many leases are wanted, with those that the reader has."""
        with self._lock:
            if count == self._wanted:
                return
            self._wanted = count
        self._send()

    def settle(self, timeout: float) -> None:
        """Wait until the coordinator has heard of all that is done; raises what it says, or that it said nothing."""
        with self._lock:
            self.settled.clear()
            if not self._unsettled():
                return
            is_over = self._is_over
        if not is_over:
            self._send()
            self._port.wait(self.settled, timeout)
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._unsettled():
                raise _unanswered(timeout) if not self._is_over else _ended()

    def _unsettled(self) -> dict[int, int]:
        return {number: at for number, at in self._done.items() if at > self._told[number]}

    # With the lock.

    def _next_call(self) -> LeaseGroupCall:
        group, streams, pattern, starts = self._wishes
        self.others = None
        held = tuple(number for number, lease in self._leases.items() if self._done.get(number, 0) < lease.end)
        wanted = max(self._wanted - len(held), 0)
        if self._stands_still():
            held, wanted = (), 0
        self._asked = self._unsettled()
        return LeaseGroupCall(
            group,
            self.id,
            streams,
            pattern,
            starts,
            held,
            tuple(self._asked.items()),
            wanted,
            self._patient,
            program_name(),
        )

    def _stands_still(self) -> bool:
        ask, now = self._ask_place(), time.monotonic()
        place = None if ask is None else ask()
        if place != self._place:
            self._place, self._there_since = place, now
        return now - self._there_since > self.still_seconds

    def _take_in(self, answer: Answer | MainstemError) -> float | None:
        if isinstance(answer, MainstemError):
            pause = self._take_in_error(answer)
            if pause is None:
                self.settled.set()
            return pause
        found = answer.leases
        if found is None:
            self._error = InternalError("the coordinator answered a member with something else")
            self.settled.set()
            return None
        self._failures = 0
        self.heartbeat, self.session_timeout, self.others = found.heartbeat, found.session_timeout, found.others
        leases = {lease.number: lease for lease in found.leases}
        over = {number for number, at in self._asked.items() if at >= self._leases[number].end}
        self._lost |= set(found.lost) | (self._leases.keys() - leases.keys() - over)
        # Leases stay as they were given, also when a part of them is done.
        self._leases = leases | {number: lease for number, lease in self._leases.items() if number in leases}
        told = {**self._told, **self._asked}
        self._told = {number: told.get(number, lease.first) for number, lease in self._leases.items()}
        self._done = {number: at for number, at in self._done.items() if number in leases}
        self._asked = {}
        if not self._unsettled():
            self.settled.set()
        reader = self._reader()
        if reader is not None:
            reader.on_news()
        # Who is not patient is answered at once, and asks again when something is done, or to show that it lives.
        return 0.0 if self._patient or self._unsettled() else min(self.heartbeat / 2, _IMPATIENT_SECONDS)


def _unanswered(timeout: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the group's coordinator did not say within {timeout:g} s that what was read is committed; it is told again, "
        "and the outcome is not known yet"
    )


def _ended() -> Closed:
    return Closed("the log was closed before what was read could be committed; it is read again")
