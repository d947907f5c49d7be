"""Calls: administration that waits for a flush or for the disk, carried out away from the loop."""

import asyncio
import logging
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from mainstem.core.errors import InternalError, MainstemError
from mainstem.core.events import Event
from mainstem.server.line import Line
from mainstem.transport.port import (
    Answer,
    Call,
    CoolCall,
    EraseKeyCall,
    GetStreamCall,
    ListStreamsCall,
    OffsetsAtTimeCall,
    PlanColdCall,
    RunsCall,
    TrimStreamCall,
)
from mainstem.transport.sharing import (
    DeleteGroupCall,
    GetGroupCall,
    HoldGroupCall,
    ListGroupsCall,
    ResetGroupCall,
)

logger = logging.getLogger("mainstem.server")
T = TypeVar("T")

Answered = Callable[[Answer | MainstemError], None]

# Each has a thread: what is done in a moment, what may wait for members of a group to be gone, what looks into every
# shard of a stream, and what goes through all of it.
_SHORT: Final = "mainstem-call"
_GROUP: Final = "mainstem-group-call"
_LONG: Final = "mainstem-long-call"
_ERASURE: Final = "mainstem-erase"


def _lane_of(call: Call) -> str:
    match call:
        case EraseKeyCall():
            return _ERASURE
        case ListGroupsCall() | GetGroupCall() | ResetGroupCall() | DeleteGroupCall() | HoldGroupCall():
            return _GROUP
        case OffsetsAtTimeCall() | TrimStreamCall() | RunsCall():
            return _LONG
        case GetStreamCall(details=True) | ListStreamsCall(oldest=True):
            return _LONG
        case PlanColdCall() | CoolCall():
            return _LONG
        case _:
            return _SHORT


class CallQueue:
    """Carries out the calls of each client in their order, one at a time, and those of many in turn: who asks much, or
    for what takes long, waits for its own. The loop's thread only. How much one client may ask is its session's
    business.

    What takes long has lanes of its own: a call waits for one call at most of each other client in its lane.
    """

    def __init__(self, carry_out: Callable[[Call], Answer]) -> None:
        self._carry_out = carry_out
        self._lanes = {lane: ThreadPoolExecutor(1, lane) for lane in (_SHORT, _GROUP, _LONG, _ERASURE)}
        self._lines: dict[Hashable, Line] = {}
        self._unanswered: dict[Future[Answer], Answered] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._unanswered)

    def add(
        self, client: Hashable, call: Call, answered: Answered, then: Callable[[Answer], Answer] | None = None
    ) -> None:
        """`then` is what becomes of the answer, in the same thread, before it is given."""
        lane = self._lanes[_lane_of(call)]
        line = self._lines.get(client) or self._lines.setdefault(client, Line(lane, 1))
        carry_out = self._carry_out
        future = line.submit_to(lane, (lambda: then(carry_out(call))) if then else partial(carry_out, call))
        self._unanswered[future] = answered
        asyncio.wrap_future(future).add_done_callback(lambda done: self._finish(future, call, done))

    def run(self, client: Hashable, work: Callable[[], T], *, is_long: bool) -> Future[T]:
        """Have work that is like a call done in the client's turn. What it raises is in the future."""
        lane = self._lanes[_LONG if is_long else _SHORT]
        line = self._lines.get(client) or self._lines.setdefault(client, Line(lane, 1))
        return line.submit_to(lane, work)

    def forget(self, client: Hashable) -> None:
        """The client is gone: what has not begun is not carried out."""
        if client in self._lines:
            self._lines.pop(client).cancel()

    def refuse(self, error: MainstemError) -> None:
        """Answer everything that has not begun with an error."""
        # The last first: else the next of a client might begin when the one before it is gone.
        for future, answered in reversed(tuple(self._unanswered.items())):
            if future.cancel():
                answered(error)

    def close(self) -> None:
        """Begin nothing more; what has begun is not waited for."""
        for line in self._lines.values():
            line.cancel()
        for lane in self._lanes.values():
            lane.shutdown(wait=False, cancel_futures=True)

    def _finish(self, future: Future[Answer], call: Call, done: "asyncio.Future[Answer]") -> None:
        answered = self._unanswered.pop(future)
        if future.cancelled() or done.cancelled():
            return
        done.exception()  # it is told below, and asyncio need not say that nobody was
        error = future.exception()
        if error is None:
            answered(future.result())
        elif isinstance(error, MainstemError):
            answered(error)
        else:
            logger.error(Event("a call failed", call=type(call).__name__), exc_info=error)
            answered(InternalError(f"the server failed to carry this out: {type(error).__name__}: {error}"))
