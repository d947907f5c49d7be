"""What a hub asked of its server and was not answered yet. A request keeps what it needs to be sent again."""

import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from mainstem.core.batch import Batch, Buffer
from mainstem.core.errors import (
    DeadlineExceeded,
    DiskFull,
    MainstemError,
    OutOfSequence,
    ProtocolError,
    ServerStopping,
    UnknownProducer,
)
from mainstem.core.limits import APPEND_BATCHES_MAX, KIB
from mainstem.transport.port import Answer, AppendDone, AppendResult, Call
from mainstem.transport.sharing import CommitTransactionCall, Staging
from mainstem.transport.wire import (
    VERSION_OF_SHARING,
    Append,
    Appended,
    Kind,
    Stage,
    error_from,
    pack,
    version_needed,
)

# More bytes than this are a request of their own; fewer wait for company while another append is under way.
GATHER_BYTES: Final = 64 * KIB
_TIMEOUT_MS_MAX: Final = 1 << 31
# What the server says of a batch whose predecessor it has refused.
_PREMATURE: Final = frozenset((OutOfSequence.code, UnknownProducer.code))


class CallRequest:
    """An administrative call. `on_answer` gets an Answer, or (error, times sent). `version` is what a server must speak
    to understand it."""

    is_append = False

    def __init__(self, call: Call, deadline: float, on_answer: Callable[[Any], None]) -> None:
        self._call = call
        self._deadline = deadline
        self._on_answer = on_answer
        self.version = version_needed(call)
        self.sent = 0

    @property
    def name(self) -> str:
        return _words(type(self._call).__name__)

    def pack(self, id_: int, now: float) -> list[Buffer]:
        self.sent += 1
        return pack(Kind.CALL, id_, self._call)

    def answer(self, answer: Any, *, is_stalled: bool = False) -> bool:
        self._on_answer(answer)
        return True

    def fail(self, error: MainstemError) -> None:
        self._on_answer((error, self.sent))

    def expire(self, now: float, where: str, refusal: DiskFull | None = None) -> bool:
        if now < self._deadline:
            return False
        self.fail(_late(where, self.name, self.sent))
        return True


class PendingAppend:
    """What one producer handed over at once."""

    __slots__ = ("batches", "deadline", "done", "is_finished", "size")

    def __init__(self, batches: Sequence[Batch], deadline: float, done: AppendDone) -> None:
        self.batches = batches
        self.deadline = deadline
        self.done = done
        # Uncompressed: a megabyte of records does not wait for company, however well it compresses.
        self.size = sum([batch.header.raw_len for batch in batches])
        self.is_finished = False

    def finish(self, results: Sequence[AppendResult]) -> None:
        if not self.is_finished:
            self.is_finished = True
            self.done(results)

    def fail(self, error: MainstemError) -> None:
        self.finish([error] * len(self.batches))


class AppendRequest:
    """Appends of one or several producers in one message. Each has its own deadline and its own answer.

    `is_under_way`: it was sent, and an answer is to come. `is_outcome_known`: whether it is certain that what is not
    finished was not written. `refusal`: the server's last answer, if it was that its disk is full. `is_written`:
    whether that answer was that something is in the log.
    """

    is_append = True
    version = 1
    name = "append"

    def __init__(self, parts: list[PendingAppend]) -> None:
        self._parts = parts
        self.sent = 0
        self.is_under_way = False
        self.is_outcome_known = True
        self.refusal: DiskFull | None = None
        self.is_written = False

    def pack(self, id_: int, now: float) -> list[Buffer]:
        """What is still wanted: an append that is past its deadline is not sent again."""
        self.sent += 1
        self.is_under_way, self.is_outcome_known = True, False
        self._parts = [part for part in self._parts if not part.is_finished]
        left = max(part.deadline for part in self._parts) - now
        batches = [batch for part in self._parts for batch in part.batches]
        header = Append([batch.header for batch in batches], True, max(1, min(int(left * 1000), _TIMEOUT_MS_MAX)))
        return pack(Kind.APPEND, id_, header, [batch.payload for batch in batches])

    def answer(self, answer: Any, *, is_stalled: bool = False) -> bool:
        """Tell each producer; False if it must be sent again: the server wrote nothing because it stops or its disk is
        full, or, where that made the hub stall, what this builds on was refused before it. What was written is known
        by its number, and the same answer comes again."""
        self.is_under_way = False
        self.refusal = None
        if not isinstance(answer, Appended) or len(answer.bases) != sum(len(part.batches) for part in self._parts):
            self.fail(ProtocolError("the server answered an append with something else"))
            return True
        self.is_written = len(answer.errors) < len(answer.bases)
        results: list[AppendResult] = list(answer.bases)
        again: set[int] = set()
        for index, error in answer.errors.items():
            if error.code == DiskFull.code:
                self.refusal = DiskFull(error.message)
            if error.code in (DiskFull.code, ServerStopping.code) or (is_stalled and error.code in _PREMATURE):
                again.add(index)
            else:
                results[index] = error_from(error)
        # What was not written is known; what was is told at once, whatever became of others in the same message.
        self.is_outcome_known = True
        at = 0
        for part in self._parts:
            if again.isdisjoint(range(at, at + len(part.batches))):
                part.finish(results[at : at + len(part.batches)])
            at += len(part.batches)
        return not again

    def fail(self, error: MainstemError) -> None:
        for part in self._parts:
            part.fail(error)

    def expire(self, now: float, where: str, refusal: DiskFull | None = None) -> bool:
        """Fail what is past its deadline; whether that was all. `refusal`: why the server takes nothing, if it said."""
        for part in self._parts:
            if now >= part.deadline and not part.is_finished:
                late = _late(where, self.name, self.sent)
                part.fail(late if refusal is None else _still_full(where, refusal, is_known=self.is_outcome_known))
        return all(part.is_finished for part in self._parts)


class StageRequest:
    """Batches of a transaction. Sent again as they are: they are known by their place in it."""

    is_append = False
    version = VERSION_OF_SHARING
    name = "transaction"

    def __init__(self, staging: Staging, batches: Sequence[Batch], deadline: float, done: AppendDone) -> None:
        self._staging = staging
        self._batches = batches
        self._deadline = deadline
        self._done = done
        self.sent = 0

    def pack(self, id_: int, now: float) -> list[Buffer]:
        self.sent += 1
        left = max(1, min(int((self._deadline - now) * 1000), _TIMEOUT_MS_MAX))
        header = Stage([batch.header for batch in self._batches], self._staging, left)
        return pack(Kind.STAGE, id_, header, [batch.payload for batch in self._batches])

    def answer(self, answer: Any, *, is_stalled: bool = False) -> bool:
        if not isinstance(answer, Appended) or len(answer.bases) != len(self._batches):
            self.fail(ProtocolError("the server answered a part of a transaction with something else"))
            return True
        results: list[AppendResult] = list(answer.bases)
        for index, error in answer.errors.items():
            results[index] = error_from(error)
        self._done(results)
        return True

    def fail(self, error: MainstemError) -> None:
        self._done([error] * len(self._batches))

    def expire(self, now: float, where: str, refusal: DiskFull | None = None) -> bool:
        if now < self._deadline:
            return False
        self.fail(_late(where, self.name, self.sent))
        return True


class WholeRequest:
    """All of a transaction with its commit. Sent again as it is: what was committed has the same answer. `on_answer` as
    in CallRequest."""

    is_append = False
    version = VERSION_OF_SHARING
    name = "transaction"

    def __init__(
        self,
        staging: Staging,
        batches: Sequence[Batch],
        call: CommitTransactionCall,
        deadline: float,
        on_answer: Callable[[Any], None],
    ) -> None:
        self._staging = staging
        self._batches = batches
        self._call = call
        self._deadline = deadline
        self._on_answer = on_answer
        self.sent = 0

    def pack(self, id_: int, now: float) -> list[Buffer]:
        self.sent += 1
        left = max(1, min(int((self._deadline - now) * 1000), _TIMEOUT_MS_MAX))
        header = Stage([batch.header for batch in self._batches], self._staging, left, self._call)
        return pack(Kind.STAGE, id_, header, [batch.payload for batch in self._batches])

    def answer(self, answer: Any, *, is_stalled: bool = False) -> bool:
        if isinstance(answer, Answer):
            self._on_answer(answer)
        else:
            self.fail(ProtocolError("the server answered a transaction with something else"))
        return True

    def fail(self, error: MainstemError) -> None:
        self._on_answer((error, self.sent))

    def expire(self, now: float, where: str, refusal: DiskFull | None = None) -> bool:
        if now < self._deadline:
            return False
        self.fail(_late(where, self.name, self.sent))
        return True


Request = CallRequest | AppendRequest | StageRequest | WholeRequest


def gather(waiting: deque[PendingAppend]) -> AppendRequest:
    """The next request: as many waiting appends as make a message of moderate size, in their order."""
    parts = [waiting.popleft()]
    size, count = parts[0].size, len(parts[0].batches)
    while waiting:
        size += waiting[0].size
        count += len(waiting[0].batches)
        if size > GATHER_BYTES or count > APPEND_BATCHES_MAX:
            break
        parts.append(waiting.popleft())
    return AppendRequest(parts)


class Awaited:
    """An answer that another thread brings."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.result: Any = None

    def set(self, result: Any) -> None:
        self.result = result
        self._event.set()

    def wait(self, timeout: float) -> bool:
        return self._event.wait(timeout)


class RequestIds:
    """Numbers for requests and subscriptions of a connection: 1 to 2^32 - 1, then again from 1. Any thread."""

    def __init__(self) -> None:
        self._next = 1
        self._lock = threading.Lock()

    def next(self) -> int:
        with self._lock:
            taken = self._next
            self._next = taken + 1 if taken < 0xFFFF_FFFF else 1
            return taken


def _words(name: str) -> str:
    """GetStreamCall as "get stream"."""
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", name.removesuffix("Call")).lower()


def _late(where: str, what: str, sent: int) -> MainstemError:
    state = "the outcome is not known" if sent else "it was never sent"
    return DeadlineExceeded(f"{where} did not answer {what} in time; {state}")


def _still_full(where: str, refusal: DiskFull, *, is_known: bool) -> MainstemError:
    state = "it was not written" if is_known else "the outcome of the last attempt is not known"
    return DiskFull(f"{where} had no room for an append in time; {state}. {refusal}")
