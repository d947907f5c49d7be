"""A member of a group, as its client sees it: it joins, beats in the background, and knows what it shall hold.

No thread of its own: every answer of the coordinator leads to the next request, in whichever thread brings the answer.
The consumer's thread takes what is new when it comes to it, and says when it has acted on it.
"""

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from mainstem.core.errors import Closed, Fenced, InternalError, MainstemError
from mainstem.core.identity import RANDOMNESS, new_producer_id, program_name
from mainstem.transport.port import Answer, MembershipCall, Port
from mainstem.transport.sharing import BeatGroupCall, JoinGroupCall, LeaveGroupCall, Membership

Unit = tuple[int, int]


class Reader(Protocol):
    """Whose member it is."""

    def on_news(self) -> None:
        """There is something to act on. Any thread; it must not block."""
        ...

    def read_bytes(self) -> Mapping[Unit, int]:
        """How many bytes were read of each unit so far. Any thread."""
        ...


# A request that nobody answers for so long, beside the time that the coordinator may take, is made again.
_ANSWER_SECONDS: Final = 10.0
_HEARTBEAT_SECONDS: Final = 3.0
# Pauses after errors, and between joins of one that is always told to join anew.
_PAUSE_SECONDS: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 2.0
# How long a goodbye is waited for.
_LEAVE_SECONDS: Final = 5.0


class Wishes(NamedTuple):
    """What a member reads: see JoinGroupCall."""

    group: str
    streams: tuple[str, ...]
    pattern: str | None
    starts: tuple[tuple[int, tuple[int, ...]], ...]


class News(NamedTuple):
    """What a member shall hold, and under which id it was told."""

    member: int
    membership: Membership


class Member:
    """Any thread. `reader` is whose member it is, without keeping it alive: if it is gone, the member leaves."""

    def __init__(self, port: Port, wishes: Wishes, reader: Reader) -> None:
        self._port = port
        self._wishes = wishes
        self._reader = weakref.ref(reader)
        self._lock = threading.Lock()
        self.id = new_producer_id()
        self.generation = 0
        self.heartbeat = _HEARTBEAT_SECONDS
        self.session_timeout = 3 * _HEARTBEAT_SECONDS
        # What was told last under this id; the version that was acted on, and where the reader stands since.
        self._membership: Membership | None = None
        self._acted = 0
        self._held: tuple[Unit, ...] = ()
        self._error: MainstemError | None = None
        # Only the answer to the newest request counts, and the newest timer.
        self._request = 0
        self._failures = 0
        self._is_over = False
        self._measured_at = time.monotonic()
        self._measured: Mapping[Unit, int] = {}

    def start(self) -> None:
        """Join. Who joins is a member when the first news are there."""
        self._send()

    def news(self) -> News | None:
        """What the reader has not acted on yet, or None; raises why it cannot be a member."""
        with self._lock:
            if self._error is not None:
                raise self._error
            membership = self._membership
            if membership is None or membership.version <= self._acted:
                return None
            return News(self.id, membership)

    def act(self, news: News, held: Sequence[Unit]) -> None:
        """The reader has done what the news said, and stands in these units."""
        with self._lock:
            self._held = tuple(held)
            if news.member == self.id:
                self._acted = max(self._acted, news.membership.version)
                self.generation = news.membership.generation
                # What came meanwhile was said to one that had not acted: it names cursors again from which this one is
                # about to read on, and commit. Without them it is the answer to what is sent now.
                self._membership = news.membership
        self._send()

    def stand(self, held: Sequence[Unit]) -> None:
        """The reader stands in these units now: it has let others go."""
        with self._lock:
            self._held = tuple(held)
        self._send()

    def join_anew(self) -> None:
        """The reader holds nothing any more, and is to be told again what to hold, by what the log says now."""
        with self._lock:
            if self._is_over:
                return
            call = LeaveGroupCall(self._wishes.group, self.id)
            self._held = ()
            self._become_new()
        # What the old id had is given to others, or to the new one, without a wait until it is missed.
        with contextlib.suppress(MainstemError):
            self._port.ask(call, _LEAVE_SECONDS, lambda answer: None)
        self._send()

    def leave(self, *, wait: bool = True) -> None:
        """Be no member any more, so that others need not wait until this is noticed."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            call = LeaveGroupCall(self._wishes.group, self.id)
        gone = threading.Event()
        try:
            self._port.ask(call, _LEAVE_SECONDS, lambda answer: gone.set())
            if wait:
                self._port.wait(gone, _LEAVE_SECONDS)
        except MainstemError:
            return  # who cannot be told will notice

    # Requests.

    def _send(self) -> None:
        with self._lock:
            if self._is_over or self._error is not None:
                return
            self._request += 1
            call = self._next_call()
            answered = partial(self._on_answer, self._request)
        try:
            self._port.ask(call, self.heartbeat + _ANSWER_SECONDS, answered)
        except MainstemError as error:
            answered(error)

    def _next_call(self) -> MembershipCall:
        """With the lock."""
        return self._join_call() if self._acted == 0 else self._beat_call()

    def _join_call(self) -> JoinGroupCall:
        group, streams, pattern, starts = self._wishes
        return JoinGroupCall(
            group, self.id, streams, pattern, starts, self._held, self.generation, client=program_name()
        )

    def _beat_call(self) -> BeatGroupCall:
        rates = tuple((*unit, rate) for unit, rate in self._rates().items())
        return BeatGroupCall(self._wishes.group, self.id, self.generation, self._acted, self._held, rates)

    def _rates(self) -> dict[Unit, float]:
        reader = self._reader()
        now = time.monotonic()
        seconds = now - self._measured_at
        if reader is None or seconds < self.heartbeat / 2:
            return {}
        read = reader.read_bytes()
        rates = {unit: (read.get(unit, 0) - self._measured.get(unit, 0)) / seconds for unit in self._held}
        self._measured_at, self._measured = now, read
        return rates

    def _on_answer(self, request: int, answer: Answer | MainstemError) -> None:
        reader = self._reader()
        if reader is None:
            self.leave(wait=False)
            return
        with self._lock:
            if request != self._request or self._is_over:
                return
            pause = self._take_in(answer)
        if pause is None:
            reader.on_news()
        elif pause:
            self._send_later(request, pause)
        else:
            self._send()

    def _take_in(self, answer: Answer | MainstemError) -> float | None:
        """After how many seconds to ask again; None if there is nobody to ask any more, or the reader has to act
        first."""
        if isinstance(answer, MainstemError):
            return self._take_in_error(answer)
        membership = answer.membership
        if membership is None:
            self._error = InternalError("the coordinator answered a member with something else")
            return None
        self._failures = 0
        self.heartbeat, self.session_timeout = membership.heartbeat, membership.session_timeout
        if self._membership is None or membership.version >= self._membership.version:
            self._membership = membership
        if self._membership.version > self._acted:
            return self._await_reader()
        return 0.0

    def _await_reader(self) -> float | None:
        """The reader may be busy with what it has; meanwhile the coordinator is told that it lives."""
        request = self._request
        self._schedule(partial(self._send_if_newest, request), self.heartbeat / 2)
        return None

    def _take_in_error(self, error: MainstemError) -> float | None:
        self._failures += 1
        if isinstance(error, Fenced):
            self._become_new()
            return 0.0 if self._failures == 1 else self._pause()
        if error.retriable:
            return self._pause()
        if not isinstance(error, Closed):
            self._error = error
        else:
            self._is_over = True
        return None

    def _become_new(self) -> None:
        """Another id: what was told to the old one is void."""
        self.id = new_producer_id()
        self._membership, self._acted = None, 0

    def _pause(self) -> float:
        longest = min(_PAUSE_SECONDS * 2 ** min(self._failures, 10), _PAUSE_SECONDS_MAX)
        return RANDOMNESS.uniform(longest / 2, longest)

    def _send_later(self, request: int, pause: float) -> None:
        self._schedule(partial(self._send_if_newest, request), pause)

    def _send_if_newest(self, request: int) -> None:
        if request == self._request:
            self._send()

    def _schedule(self, action: Callable[[], None], delay: float) -> None:
        try:
            self._port.schedule(action, delay)
        except MainstemError:
            return  # the hub is closed
