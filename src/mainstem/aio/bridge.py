"""Between an event loop and the threads of a hub: how a task waits for them, and how it lets them work.

What consumers and producers do is written once, without waiting (`mainstem.consume`, `mainstem.produce`). Here it runs
in the event loop, as steps. A step that finds that it would have to wait says for what (WouldWait): a worker does that,
and the step is taken again. So positions move only in the loop, where nothing interrupts them, and a task that is
cancelled while it waits has taken nothing.
"""

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import msgspec

from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import Closed, InvalidRequest, MainstemError
from mainstem.core.schema import Schema
from mainstem.transport.port import (
    Answer,
    Call,
    CreateStreamCall,
    Port,
    Query,
    StreamInfo,
    Subscription,
    WouldWait,
)

T = TypeVar("T")

# Threads of one hub for what has to wait: calls, and reads from disk.
WORKERS_MAX: Final = 4


class Bridge:
    """The event loop that a hub belongs to, and the threads that work for it. The loop's thread only; `ring` any."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._workers = Workers()
        # Threads of a hub that was not closed end with it.
        weakref.finalize(self, self._workers.close)
        self.is_closed = False
        # What workers do that must not be begun twice.
        self._under_way: dict[Callable[[], object], asyncio.Future[Any]] = {}
        # What other threads want done in the loop, and whether it knows.
        self._rings: deque[Callable[[], None]] = deque()
        self._is_rung = False
        # What the step that is being taken was answered.
        self.answers: dict[Call, Answer | MainstemError] = {}

    def check_loop(self) -> None:
        """Raise if another loop is running than the one that the hub belongs to."""
        if asyncio.get_running_loop() is not self.loop:
            raise InvalidRequest("this hub belongs to the event loop that it was opened in; open another one here")

    @property
    def is_running(self) -> bool:
        """Whether the thread that asks runs the loop now, and so must not wait. Any thread."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    # From threads to the loop.

    def ring(self, call: Callable[[], None]) -> None:
        """Have it called soon in the loop, in the order of the rings. Any thread. Many rings wake the loop once."""
        self._rings.append(call)
        if not self._is_rung:
            self._is_rung = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self.loop.call_soon_threadsafe(self._answer_rings)

    def _answer_rings(self) -> None:
        self._is_rung = False
        try:
            # Whoever rings meanwhile must not keep the loop from everything else.
            for _ in range(len(self._rings)):
                self._rings.popleft()()
        finally:
            if self._rings and not self._is_rung:
                self._is_rung = True
                self.loop.call_soon(self._answer_rings)

    async def called(self, register: Callable[[Callable[[], None]], None], timeout: float | None = None) -> bool:
        """Wait until what is registered is called, from any thread; False if that takes more than `timeout` seconds."""
        self.check_loop()
        waiter = self.loop.create_future()
        register(partial(self.ring, partial(_resolve, waiter, True)))
        return await self.resolved(waiter, timeout)

    async def resolved(self, waiter: "asyncio.Future[bool]", timeout: float | None) -> bool:
        """Wait for a future; False if that takes more than `timeout` seconds."""
        if timeout is None:
            return await waiter
        timer = self.loop.call_later(timeout, _resolve, waiter, False)
        try:
            return await waiter
        finally:
            timer.cancel()

    # From the loop to threads.

    async def work(self, work: Callable[[], T]) -> T:
        """Have it done by a worker. If the task is cancelled once it was begun, it is done all the same."""
        return await self.begin(work)

    def begin(self, work: Callable[[], T], *, alone: bool = False) -> "asyncio.Future[T]":
        """The same; what comes of it is awaited later. `alone`: it waits for no other work."""
        self.check_loop()
        if self.is_closed:
            raise Closed("this hub is closed; open another")
        done = self.loop.create_future()
        job = Job(work, done, self.ring)
        if alone:
            threading.Thread(target=job.do, name="mainstem-worker", daemon=True).start()
        else:
            self._workers.begin(job)
        return done

    async def take(self, step: Callable[[], T]) -> T:
        """Take a step in the loop, as often as it takes until it need not wait.

        Each time it begins anew, with what it was answered before: it must ask before it changes anything, or go on
        where it was.
        """
        answers: dict[Call, Answer | MainstemError] = {}
        while True:
            self.answers = answers
            try:
                return step()
            except WouldWait as wait:
                work = wait.work
            finally:
                self.answers = {}
            under_way = self._under_way.get(work)
            if under_way is None:
                under_way = self._under_way[work] = self.begin(work)
                under_way.add_done_callback(partial(self._end, work))
            await asyncio.shield(under_way)

    def _end(self, work: Callable[[], object], done: "asyncio.Future[Any]") -> None:
        del self._under_way[work]
        if not done.cancelled():
            # If nobody waits for it any more, nobody is to be told that it failed.
            done.exception()

    def close(self) -> None:
        """Let no more be begun; what was is done."""
        self.is_closed = True
        self._workers.close()


class Job:
    """Work for another thread, and the future in which somebody waits for it."""

    def __init__(
        self, work: Callable[[], Any], done: "asyncio.Future[Any]", ring: Callable[[Callable[[], None]], None]
    ) -> None:
        self._work = work
        self._done = done
        self._ring = ring

    def do(self) -> None:
        """In the other thread. If nobody waits any more, it need not be done."""
        if self._done.cancelled():
            return
        try:
            result, error = self._work(), None
        except BaseException as failure:  # noqa: BLE001  # it belongs to who waits
            result, error = None, failure
        self._ring(partial(self._tell, result, error))

    def _tell(self, result: Any, error: BaseException | None) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(result)
        else:
            self._done.set_exception(error)


class Workers:
    """A few threads for what has to wait, begun when they are needed. They do not keep a process from ending."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        # Jobs that are not done, and the threads for them.
        self._busy = 0
        self._threads = 0

    def begin(self, job: Job) -> None:
        """Do it soon."""
        with self._lock:
            self._busy += 1
            is_short = self._busy > self._threads and self._threads < WORKERS_MAX
            self._threads += is_short
        self._queue.put(job)
        if is_short:
            threading.Thread(target=self._run, name="mainstem-worker", daemon=True).start()

    def close(self) -> None:
        """End the threads, once all jobs are done."""
        for _ in range(self._threads):
            self._queue.put(None)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            job.do()
            # While it waits for the next one, it keeps nothing of this one alive.
            del job
            with self._lock:
                self._busy -= 1


class LoopPort:
    """A port for what runs in an event loop: what would wait there is left to a worker, in a worker it waits."""

    def __init__(self, port: Port, bridge: Bridge) -> None:
        self._port = port
        self._bridge = bridge
        self.checks_values = port.checks_values
        self.ask = port.ask
        self.stage = port.stage
        self.commit_whole = port.commit_whole
        self.append = port.append
        self.can_take = port.can_take
        self.append_unacknowledged = port.append_unacknowledged
        self.schedule = port.schedule
        self.wait = port.wait
        self.schema_at_hand = port.schema_at_hand
        self.check_usable = port.check_usable
        self.check_writable = port.check_writable
        self.close = port.close

    @property
    def record_bytes_max(self) -> int:
        return self._port.record_bytes_max

    @property
    def write_share(self) -> float:
        return self._port.write_share

    def call(self, call: Call, timeout: float | None = None) -> Answer:
        if not self._bridge.is_running:
            return self._port.call(call, timeout)
        # Asked again, a call has another UUID for what it makes.
        key = msgspec.structs.replace(call, uuid="") if isinstance(call, CreateStreamCall) else call
        answers = self._bridge.answers
        answer = answers.pop(key, None)
        if answer is None:
            raise WouldWait(partial(self._ask, call, timeout, answers, key))
        if isinstance(answer, MainstemError):
            raise answer
        return answer

    def _ask(self, call: Call, timeout: float | None, answers: dict[Call, Answer | MainstemError], key: Call) -> None:
        try:
            answers[key] = self._port.call(call, timeout)
        except MainstemError as error:
            answers[key] = error

    def schema(self, schema: int) -> Schema:
        if not self._bridge.is_running:
            return self._port.schema(schema)
        found = self._port.schema_at_hand(schema)
        if found is None:
            raise WouldWait(partial(self._port.schema, schema))
        return found

    def subscribe(
        self,
        stream: StreamInfo,
        offsets: Sequence[int],
        ends: Sequence[int] | None,
        prefetch_bytes: int,
        query: Query | None = None,
        window_us: int | None = None,
    ) -> "LoopSubscription":
        return LoopSubscription(self._port.subscribe(stream, offsets, ends, prefetch_bytes, query, window_us))


class LoopSubscription:
    """A subscription whose reader never waits in it."""

    def __init__(self, subscription: Subscription) -> None:
        self.counts = subscription.counts
        self.next_nowait = subscription.next_nowait
        self.call_when_ready = subscription.call_when_ready
        self.watermark = subscription.watermark
        self.close = subscription.close

    def next(self, timeout: float | None) -> FetchedBatch | None:
        return self.next_nowait()


def _resolve(waiter: "asyncio.Future[bool]", result: bool) -> None:
    if not waiter.done():
        waiter.set_result(result)
