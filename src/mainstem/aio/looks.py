"""Looking for what comes next where that may have to wait: a worker looks, and never waits for records.

What a look has found is kept until somebody takes it, so a task that is cancelled meanwhile has taken nothing. Workers
cannot be cancelled: whoever comes next waits until one is done, because what they look at is for one thread at a time.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from mainstem.aio.bridge import Bridge
from mainstem.transport.port import EndReached

T = TypeVar("T")


class Looks(Generic[T]):
    """One look, or one piece of other work, at a time. One task at a time; a second may `work`, to end it.

    `look` returns what comes next, or None if there is nothing now; EndReached says that nothing will come.
    `call_when_woken` has somebody called when it may find something, `pause` says after how long it is worth another
    look even if nobody was.
    """

    def __init__(
        self,
        bridge: Bridge,
        look: Callable[[], T | None],
        call_when_woken: Callable[[Callable[[], None]], None],
        pause: Callable[[], float | None],
    ) -> None:
        self._bridge = bridge
        self._look = look
        self._call_when_woken = call_when_woken
        self._pause = pause
        # The look whose result nobody has taken, and other work that may not be done yet.
        self._under_way: asyncio.Future[T | None] | None = None
        self._working: asyncio.Future[None] | None = None

    async def take(self, timeout: float | None) -> T | None:
        """What comes next, waiting at most `timeout` seconds (None: without end); None if nothing came, or at the
        end."""
        loop = self._bridge.loop
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            await self._idle()
            look = self._under_way
            if look is None:
                look = self._under_way = self._bridge.begin(self._look)
                # Who is cancelled here leaves it to the next one.
                await asyncio.wait((look,))
            if self._under_way is not look:
                continue  # somebody else has come first, to end it
            self._under_way = None
            try:
                found = look.result()
            except EndReached:
                return None
            if found is not None:
                return found
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                return None
            await self._bridge.called(self._call_when_woken, self._shortest(left))

    async def work(self, work: Callable[[], None], put_back: Callable[[T], None]) -> None:
        """Do something else, between two looks. What the last one has found and nobody took was not given to anybody:
        it is put back first. If it met an error, the next `take` raises that."""
        await self._idle()
        look = self._under_way
        if look is not None and look.exception() is None:
            self._under_way = None
            found = look.result()
            if found is not None:
                put_back(found)
        self._working = self._bridge.begin(work)
        # If it was cancelled nobody is to be told that it failed.
        self._working.add_done_callback(asyncio.Future.exception)
        await asyncio.shield(self._working)

    @property
    def is_busy(self) -> bool:
        """Whether a worker is at it, for a task that was cancelled."""
        look, working = self._under_way, self._working
        return (look is not None and not look.done()) or (working is not None and not working.done())

    async def _idle(self) -> None:
        """Wait until no worker is at it."""
        while self.is_busy:
            await asyncio.wait([one for one in (self._under_way, self._working) if one is not None])

    def _shortest(self, left: float | None) -> float | None:
        pause = self._pause()
        return left if pause is None else pause if left is None else min(pause, left)
