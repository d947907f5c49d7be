"""Several streams read by one consumer, in turn."""

import re
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Generic, NoReturn, TypeVar

from mainstem.cluster.events import Subscription as Wanted
from mainstem.consume.consumer import PREFETCH_BYTES, Consumer, OnBad
from mainstem.consume.places import Start
from mainstem.consume.reading import Reading
from mainstem.consume.record import RecordBatch
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.cursor import Cursor, Cursors
from mainstem.core.errors import Closed, InvalidSetting, StreamDeleted, UnknownStream
from mainstem.core.names import check_stream_name
from mainstem.transport.port import EndReached, ListStreamsCall, Port, StreamInfo

# How often it is looked for new streams that a pattern finds.
_LOOK_SECONDS: Final = 1.0

# What a pattern can be made of.
_PATTERN: Final = re.compile(r"(?:[A-Za-z0-9._*?-]|\[!?[A-Za-z0-9._-]+\])+", re.ASCII)

Lane = TypeVar("Lane", bound=Consumer)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How streams are read: see Consumer."""

    follow: bool = True
    prefetch_bytes: int = PREFETCH_BYTES
    where: str | None = None
    columns: Sequence[str] | None = None
    on_bad: OnBad = "raise"
    clock: Clock = SYSTEM_CLOCK


class Several(Reading, Generic[Lane]):
    """Several streams, each of which has its turn. One thread; `wake` any."""

    # What a consumer of one stream has, and what takes its place here.
    _elsewhere: ClassVar[Mapping[str, str]] = {}

    def __init__(self, port: Port, options: ReadOptions) -> None:
        super().__init__()
        port.check_usable()
        self._port = port
        self._options = options
        self._clock = options.clock
        self._lanes: dict[int, Lane] = {}
        # The order of turns.
        self._turns: deque[Lane] = deque()
        self._woken = threading.Event()
        # Whom to call then, if the reader does not wait itself.
        self._on_wake: Callable[[], None] | None = None
        self._closed = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            hint = f": {self._elsewhere[name]}" if name in self._elsewhere else ""
            raise AttributeError(f"a {type(self).__name__} has no {name!r}{hint}", name=name, obj=self)

    @abstractmethod
    def _look_after(self) -> None:
        """What is to be done before anything is read."""

    @abstractmethod
    def _is_finished(self) -> bool:
        """Whether nothing more will come, now that nothing is there."""

    def _pause_max(self) -> float | None:
        """After how long to look again though nobody has said that something came."""
        return None

    def _awaited(self) -> Iterable[Lane]:
        """What may have something to take. At its end a lane always has: that it has ended, which is known."""
        return [lane for lane in self._turns if not lane.is_at_end]

    def wake(self) -> None:
        """Something may have changed. Any thread."""
        self._woken.set()
        call, self._on_wake = self._on_wake, None
        if call is not None:
            call()

    def call_when_woken(self, call: Callable[[], None]) -> None:
        """Call when there may be something to take, from any thread; at once if something has changed since the last
        look. For who does not wait here."""
        for lane in self._awaited():
            lane.call_when_ready(call)
        self._on_wake = call
        if self._woken.is_set():
            call()

    def _add(self, lane: Lane) -> None:
        self._lanes[lane.stream.id] = lane
        self._turns.append(lane)

    def _remove(self, lane: Lane) -> None:
        del self._lanes[lane.stream.id]
        self._turns.remove(lane)
        lane.close()

    def _take(self, timeout: float | None) -> RecordBatch | None:
        self._check_open()
        if self._current is not None:
            rest = self._leave_current()
            if rest is not None:
                return rest
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            self._woken.clear()
            self._look_after()
            batch = self._next_in_turn()
            if batch is not None:
                return batch
            if self._is_finished():
                raise EndReached
            left = None if deadline is None else deadline - self._clock.monotonic()
            if left is not None and left <= 0:
                return None
            self._await_something(left)
            self._check_open()

    def _next_in_turn(self) -> RecordBatch | None:
        for _ in range(len(self._turns)):
            lane = self._turns[0]
            self._turns.rotate(-1)
            batch = lane.take_nowait()
            if batch is not None:
                return batch
        return None

    def _await_something(self, timeout: float | None) -> None:
        for lane in self._awaited():
            # Not `wake`: who waits must not keep a consumer alive that nobody has any more.
            lane.call_when_ready(self._woken.set)
        pause = self._pause_max()
        if pause is not None:
            timeout = pause if timeout is None else min(timeout, pause)
        self._woken.wait(timeout)

    def _check_open(self) -> None:
        self._port.check_usable()
        if self._closed:
            raise Closed("this consumer is closed; open another with hub.consumer(...)")

    def _end(self) -> None:
        self._closed = True
        for lane in self._turns:
            lane.close()
        self.wake()


class SeveralConsumer(Several[Consumer]):
    """Reads several streams, in turn, or all that a pattern finds, also if they come later. One thread; use it as a
    context manager, or call `close`. What is said of Consumer holds for each of the streams; a record's stream is that
    of its batch. `cursor` has the place in all of them, and is one text."""

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "seek": "open another with start=..., which takes a cursor of this one",
        "seek_shard": "open a consumer of one stream",
        "watermark": "it is of one stream; open a consumer of that one, with ordering_window=...",
    }

    def __init__(
        self, port: Port, streams: tuple[str, ...], pattern: str | None, start: "Start | Cursors", options: ReadOptions
    ) -> None:
        super().__init__(port, options)
        self._names = streams
        self._wanted = Wanted(frozenset(streams), pattern)
        self._looked_at = self._clock.monotonic()
        for name in streams or names_wanted(port, self._wanted):
            self._open(name, start)

    @property
    def cursor(self) -> Cursors:
        """Where reading would go on, in every stream: after the record or batch yielded last."""
        return Cursors(tuple(self._cursor_of(lane) for lane in self._lanes.values()))

    def _cursor_of(self, lane: Consumer) -> Cursor:
        cursor, current = lane.cursor, self._current
        if current is None or current.stream != lane.stream.name:
            return cursor
        offsets = list(cursor.offsets)
        offsets[current.shard] = self._current_offset()
        return Cursor(cursor.stream, cursor.epoch, tuple(offsets))

    def close(self) -> None:
        """Read no more. The cursor stays where it is."""
        self._end()

    def _open(self, name: str, start: "Start | Cursors") -> None:
        options = self._options
        lane = Consumer(
            self._port,
            name,
            "earliest" if isinstance(start, Cursors) else start,
            follow=options.follow,
            prefetch_bytes=options.prefetch_bytes,
            where=options.where,
            columns=options.columns,
            on_bad=options.on_bad,
            clock=options.clock,
        )
        if isinstance(start, Cursors) and (place := start.of(lane.stream.uuid)) is not None:
            lane.seek(place)
        self._add(lane)

    def _look_after(self) -> None:
        now = self._clock.monotonic()
        if self._names or not self._options.follow or now < self._looked_at + _LOOK_SECONDS:
            return
        self._looked_at = now
        known = {lane.stream.name for lane in self._turns}
        for name in names_wanted(self._port, self._wanted):
            if name not in known:
                try:
                    self._open(name, "earliest")
                except UnknownStream:
                    continue  # it is gone again

    def _next_in_turn(self) -> RecordBatch | None:
        try:
            return super()._next_in_turn()
        except StreamDeleted:
            if self._names:
                raise
            there = {info.id for info in list_streams(self._port)}
            for lane in [lane for lane in self._turns if lane.stream.id not in there]:
                self._remove(lane)
            return None

    def _is_finished(self) -> bool:
        return not self._options.follow and all(lane.is_at_end for lane in self._turns)

    def _pause_max(self) -> float | None:
        return None if self._names else _LOOK_SECONDS

    def __enter__(self) -> "SeveralConsumer":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<SeveralConsumer {', '.join(lane.stream.name for lane in self._lanes.values())}{state}>"


def checked_streams(streams: str | Sequence[str] | None, pattern: str | None) -> tuple[str, ...]:
    """The names of the streams that are to be read; none if a pattern is to find them."""
    if (streams is None) == (pattern is None):
        raise InvalidSetting("give the name of a stream, several names, or a pattern")
    if pattern is not None:
        if not pattern or type(pattern) is not str:
            raise InvalidSetting(f"a pattern is text such as 'orders-*', not {pattern!r}")
        if not _PATTERN.fullmatch(pattern):
            raise InvalidSetting(
                f"pattern {pattern!r} fits no name that a stream can have: use letters, digits, '.', '_', '-', and * ? "
                "[abc] [a-z] [!abc] for others"
            )
        return ()
    given: object = streams
    if isinstance(given, bytes | bytearray) or not isinstance(given, Iterable):
        check_stream_name(given)
    names = (streams,) if isinstance(streams, str) else tuple(streams or ())
    if not names or len(set(names)) != len(names):
        raise InvalidSetting(f"give at least one stream, and each once, not {streams!r}")
    return tuple(check_stream_name(name, reserved=True) for name in names)


def list_streams(port: Port) -> Iterator[StreamInfo]:
    """All streams that there are."""
    after = 0
    while True:
        answer = port.call(ListStreamsCall(after=after))
        yield from answer.streams
        if not answer.more:
            return
        after = answer.streams[-1].id


def names_wanted(port: Port, wanted: Wanted) -> list[str]:
    """The names of the streams that are wanted and there."""
    return [info.name for info in list_streams(port) if wanted.wants(info.name)]
