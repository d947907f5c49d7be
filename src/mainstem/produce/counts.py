"""Counts: what a producer has sent, by stream and window, told to the log as monitoring events of its own.

An audit compares them with what is stored and with what was made of it (docs/audit.md). They are gathered per chunk,
once its fate is known, and told when a window ends and when the producer is closed. One event is on its way at a time,
with a number: it is said again, as it is, until it was taken, and whoever reads counts it once. What comes meanwhile
gathers.
"""

import logging
import platform
import threading
from functools import partial
from typing import Final

from mainstem.core import windows
from mainstem.core.clock import Clock
from mainstem.core.errors import DeadlineExceeded, MainstemError
from mainstem.core.events import Event
from mainstem.core.identity import program_name
from mainstem.core.windows import Tally
from mainstem.transport.counting import COUNTS_PER_CALL_MAX, SOURCE_CHARS_MAX, Count, NoteCountsCall
from mainstem.transport.port import Answer, Port

logger = logging.getLogger("mainstem.produce")

# Streams and windows of which counts are held while nobody takes them.
_GATHERED_MAX: Final = 100_000
# How long one event waits for its answer, and how soon it is said again if there was none.
_ASK_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 1.0
# How long `close` tries.
_CLOSE_SECONDS: Final = 5.0


class Gathered:
    """Counts by stream and window, until somebody takes them. One thread at a time."""

    def __init__(self, gathered_max: int = _GATHERED_MAX) -> None:
        self._gathered_max = gathered_max
        # Sent, and acknowledged where that was asked for.
        self._counts: dict[tuple[str, str, int], tuple[int, int | None]] = {}
        # Records that could not be counted any more: then an audit finds more than was sent, and says so.
        self.uncounted = 0

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, stream: str, uuid: str, sent: Tally, acknowledged: Tally | None) -> None:
        for start, count in sent.items():
            known = self._counts.get((stream, uuid, start))
            if known is None and len(self._counts) >= self._gathered_max:
                self.uncounted += count
                continue
            were, had = known or (0, None if acknowledged is None else 0)
            got = None if acknowledged is None else acknowledged.get(start, 0) + (had or 0)
            self._counts[stream, uuid, start] = (were + count, got)

    def take(self) -> tuple[Count, ...]:
        """As many as fit one call, the oldest windows first."""
        chosen = sorted(self._counts, key=lambda key: key[2])[:COUNTS_PER_CALL_MAX]
        return tuple(Count(key[0], key[2], *self._counts.pop(key), uuid=key[1]) for key in chosen)


class Counts:
    """The counts of one producer. Any thread."""

    def __init__(self, port: Port, producer: int, window_us: int, clock: Clock) -> None:
        self.window_us = window_us
        self._port = port
        self._producer = producer
        self._clock = clock
        self._lock = threading.Lock()
        self._gathered = Gathered()
        # The event that was said and not taken yet.
        self._untold: NoteCountsCall | None = None
        self._number = 0
        self._is_scheduled = False
        self._is_warned = False

    def note(self, stream: str, uuid: str, sent: Tally, acknowledged: Tally | None) -> None:
        """The fate of some records is known. `uuid` is that of the stream they were for: it may be gone, and its name
        another's. `acknowledged` is None if nobody was asked."""
        with self._lock:
            self._gathered.add(stream, uuid, sent, acknowledged)
            now_us = self._clock.now_us()
            self._schedule((windows.start_of(now_us, self.window_us) + self.window_us - now_us) / 1_000_000)

    def close(self) -> None:
        """Say the rest, and wait for that. Counts that nobody takes are given up: the records are not affected."""
        deadline = self._clock.monotonic() + _CLOSE_SECONDS
        try:
            while (event := self._next_event()) is not None:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    raise DeadlineExceeded(f"the log did not take them within {_CLOSE_SECONDS:g} s")
                self._port.call(event, left)
                self._on_taken(event)
        except MainstemError as error:
            self._warn(error)

    def _schedule(self, delay: float) -> None:
        """With the lock held."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._port.schedule(self._tell, delay)

    def _next_event(self) -> NoteCountsCall | None:
        with self._lock:
            if self._untold is None and self._gathered:
                counts = self._gathered.take()
                self._untold = NoteCountsCall(self._producer, self._number, source_name(), self.window_us, counts)
                self._number += 1
            return self._untold

    def _tell(self) -> None:
        """In the hub's thread: a window has ended, or an event was not taken."""
        with self._lock:
            self._is_scheduled = False
        event = self._next_event()
        if event is None:
            return
        try:
            self._port.ask(event, _ASK_SECONDS, partial(self._on_answer, event))
        except MainstemError as error:
            self._on_answer(event, error)

    def _on_answer(self, event: NoteCountsCall, answer: Answer | MainstemError) -> None:
        if not isinstance(answer, MainstemError):
            self._on_taken(event)
        elif not answer.retriable:
            # It will not be taken another time either.
            self._warn(answer)
            self._on_taken(event)
        with self._lock:
            if self._untold is not None or self._gathered:
                self._schedule(_AGAIN_SECONDS)

    def _on_taken(self, event: NoteCountsCall) -> None:
        with self._lock:
            if self._untold is event:
                self._untold = None

    def _warn(self, error: MainstemError) -> None:
        if not self._is_warned:
            self._is_warned = True
            logger.warning(Event("what was sent could not be counted; an audit will say so", reason=error))


def source_name() -> str:
    """What a producer of this process calls itself."""
    return f"{program_name()}@{platform.node()}"[:SOURCE_CHARS_MAX]
