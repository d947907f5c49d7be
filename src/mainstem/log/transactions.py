"""Open transactions: what of each is staged, until it is committed, aborted, or its time is over.

Problem. Batches of several streams, and cursors of several groups, are to become visible together or not at all, and a
transaction may be larger than memory.

Idea. Batches are *staged*: written as frames that mean nothing yet, in the flushes of everybody, durable before their
client is answered. What is remembered here of each is where it lies and what its entry will say. A commit is then one
command with all of that, and the ledger does the rest when it applies it: it gives the offsets, and refuses all if it
must refuse some of it.

What a crash leaves. This registry is memory only, so a start knows no open transaction: all are aborted. Their frames
are dead bytes of their blocks, as they were from the first moment. Whether one was committed is known by its id, which
the ledger remembers for a while: a client that has got no answer repeats its commit and gets the same offsets.

A transaction that its client hands over whole is never open: its frames and the command that commits them are one
flush.

Several clients can write one transaction: each stages a part, as a transaction of its own, and whoever commits names
the parts. They are joined into one, which is committed like any other. Parts say for which delivery of a job they are:
those whose writers were killed can be ended with it, and late ones refused.

A block that holds staged frames of an open transaction is *pinned*: its file stays, though nothing points into it yet.
What was staged twice, because an answer got lost, is in the transaction once: stagings are numbered by their client.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import msgspec

from mainstem.core.batch import Batch
from mainstem.core.clock import Clock
from mainstem.core.delivery import Delivery
from mainstem.core.errors import Busy, InvalidRequest, MainstemError, Refused, TransactionAborted, UnknownTransaction
from mainstem.core.limits import (
    COMMAND_BYTES_MAX,
    KIB,
    MIB,
    TRANSACTION_BATCHES_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_CURSORS_MAX,
    TRANSACTION_GROUPS_MAX,
    TRANSACTION_SECONDS_MAX,
    TRANSACTIONS_BATCHES_MAX,
    TRANSACTIONS_BYTES_MAX,
    TRANSACTIONS_OPEN_MAX,
)
from mainstem.core.names import check_group_name
from mainstem.log.batcher import Outcomes, Submission
from mainstem.log.flush import (
    CommitTransaction,
    GroupCursors,
    Rejected,
    Staged,
    StagedBatch,
    StagedFrame,
    TransactionCommitted,
    WholeTransaction,
)

TRANSACTION_ID_MAX: Final = (1 << 63) - 1
TRANSACTION_SECONDS_DEFAULT: Final = 60.0
_ADVICE: Final = "Nothing of it was kept; do its work again in a new one"
# What is said where a limit of one transaction was met, and nowhere else: see `met_limit`.
_UP_TO: Final = "a transaction has up to"
_TOGETHER: Final = "can become visible together"
_TIME_OVER: Final = "its time was over"
# Transactions that ended without a commit, and why, so that their clients can be told; and deliveries that are over.
_ENDED_MAX: Final = TRANSACTIONS_OPEN_MAX
# What each batch and each cursor take in a command at most, beside summaries, and all else.
_BATCH_BYTES: Final = 72
_CURSOR_BYTES: Final = 32
_REST_BYTES: Final = 64 * KIB
# What is staged of one transaction beyond this does not stay in the system's cache: nobody reads it before the commit,
# and until then it would only drive out what is read now.
_LARGE_BYTES: Final = 16 * MIB

Answer = Callable[[Outcomes | MainstemError], None]


class Writer(NamedTuple):
    """Under which name a transaction is written, and the epoch that the ledger gave it; a newer one fences it."""

    name: str = ""
    epoch: int = 0


NO_WRITER: Final = Writer()


class DeliveryNumber(NamedTuple):
    """For which delivery of a job something is staged."""

    job: str = ""
    number: int = 0


NO_DELIVERY: Final = DeliveryNumber()


class OpenTransaction(NamedTuple):
    """One that is open, as an operator sees it. `bytes` is what it holds on the disk."""

    id: int
    writer: str
    batches: int
    bytes: int
    seconds_left: float
    is_committing: bool


@dataclass(slots=True, eq=False)
class _Staging:
    """Batches that were staged together."""

    batches: int
    bytes: int
    # Where they lie, once they are durable.
    frames: tuple[StagedFrame, ...] | None = None
    # Who waits for them while they are under way, and the first block that they can come to.
    waiting: list[Answer] | None = None
    floor: int = 0


@dataclass(slots=True, eq=False)
class _Commit:
    """A commit that is under way, or waits for the last staging."""

    batches: int
    cursors: tuple[GroupCursors, ...]
    writer: Writer
    waiting: list[Answer]
    delivery: Delivery | None = None
    # Of what it was made, if of several.
    parts: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class _Transaction:
    """One that is open. What it holds counts from when it is submitted."""

    id: int
    deadline: float
    writer: Writer
    delivery: DeliveryNumber = NO_DELIVERY
    stagings: list[_Staging] = field(default_factory=list)
    # How many of them are under way.
    under_way: int = 0
    blocks: set[int] = field(default_factory=set)
    # The streams that it was tried to write to.
    streams: set[int] = field(default_factory=set)
    batches: int = 0
    bytes: int = 0
    commit: _Commit | None = None

    def frames(self) -> tuple[StagedFrame, ...]:
        return tuple(frame for staging in self.stagings for frame in staging.frames or ())


class Transactions:
    """The open transactions of one log. Any thread. Answers are given without a lock, perhaps before a call returns.

    `submit` hands over to the batcher; `newest_block` is the block that it writes to, or one before.
    """

    def __init__(self, submit: Callable[[Submission], None], newest_block: Callable[[], int], clock: Clock) -> None:
        self._submit = submit
        self._newest_block = newest_block
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[int, _Transaction] = {}
        self._under_way: set[_Staging] = set()
        self._ended: OrderedDict[int, str] = OrderedDict()
        # By stream and job, up to which number nothing may be staged any more.
        self._over: OrderedDict[tuple[int, str], int] = OrderedDict()
        # Of all that are open.
        self._batches = self._bytes = 0
        self._counts = dict.fromkeys(("committed", "aborted", "timed_out"), 0)

    # Staging.

    def stage(
        self,
        transaction: int,
        index: int,
        batches: Sequence[Batch],
        done: Answer,
        *,
        timeout: float = TRANSACTION_SECONDS_DEFAULT,
        writer: Writer = NO_WRITER,
        delivery: DeliveryNumber = NO_DELIVERY,
        patience: float = 0.0,
    ) -> None:
        """Stage batches; `done` gets a `Staged` for each when they are durable.

        Stagings count from 0; the first begins the transaction, which ends by itself after `timeout` seconds, counted
        from then. One that is repeated is not stored again; one that failed may be repeated. `patience` is that of
        a Submission.
        """
        staged = [_staged(batch, transaction) for batch in batches]
        with self._lock:
            self._require_not_over(delivery, staged)
            opened = self._opened(transaction, index, timeout, writer, delivery)
            staging = self._staging(opened, index, staged)
            if staging.waiting is not None:
                staging.waiting.append(done)
                return
            if staging.frames is None:
                self._reserve(opened, staging)
                if self._staged_for(opened) > _LARGE_BYTES:
                    staged = [StagedBatch(batch.header, batch.payload, read_late=True) for batch in staged]
                staging.waiting, staging.floor = [done], self._newest_block()
                self._under_way.add(staging)
                opened.under_way += 1
        if staging.frames is not None:
            done([Staged(frame.block, frame.position, frame.length) for frame in staging.frames])
            return
        try:
            self._submit(Submission(staged, partial(self._on_staged, opened, staging, staged), patience))
        except MainstemError as error:
            self._on_staged(opened, staging, staged, error, but=done)
            raise

    def _opened(
        self, transaction: int, index: int, timeout: float, writer: Writer, delivery: DeliveryNumber
    ) -> _Transaction:
        _check_id(transaction)
        self._require_not_ended(transaction)
        opened = self._open.get(transaction)
        if opened is None:
            if index:
                raise _unknown(transaction)
            if not 0 < timeout <= TRANSACTION_SECONDS_MAX:
                raise InvalidRequest(f"a transaction may last up to {TRANSACTION_SECONDS_MAX} seconds, not {timeout:g}")
            if len(self._open) >= TRANSACTIONS_OPEN_MAX:
                self._end_overdue()
            if len(self._open) >= TRANSACTIONS_OPEN_MAX:
                raise Busy(f"{TRANSACTIONS_OPEN_MAX} transactions are open, which is the limit; try again in a moment")
            opened = _Transaction(transaction, self._clock.monotonic() + timeout, writer, delivery)
            self._open[transaction] = opened
        elif opened.deadline <= self._clock.monotonic() and opened.commit is None:
            self._end_overdue()
            self._require_not_ended(transaction)
        if opened.commit is not None:
            raise InvalidRequest(f"transaction {transaction:x} is being committed; nothing more can be written in it")
        return opened

    def _staging(self, opened: _Transaction, index: int, staged: Sequence[StagedBatch]) -> _Staging:
        if not 0 <= index <= len(opened.stagings):
            raise InvalidRequest(
                f"staging {index} of transaction {opened.id:x} came, {len(opened.stagings)} is the next: one is missing"
            )
        if index == len(opened.stagings):
            size = sum(batch.header.stored_len + len(batch.header.statistics) for batch in staged)
            opened.stagings.append(_Staging(len(staged), size))
            opened.streams.update([batch.header.stream for batch in staged])
        staging = opened.stagings[index]
        if staging.batches != len(staged):
            raise InvalidRequest(f"staging {index} of transaction {opened.id:x} came again, with other batches")
        return staging

    def _reserve(self, opened: _Transaction, staging: _Staging) -> None:
        if opened.batches + staging.batches > TRANSACTION_BATCHES_MAX:
            raise InvalidRequest(
                f"{_UP_TO} {TRANSACTION_BATCHES_MAX} batches, one for each shard that is written to "
                "each time; write more records at a time, or commit more often"
            )
        if opened.bytes + staging.bytes > TRANSACTION_BYTES_MAX:
            raise InvalidRequest(f"{_UP_TO} {TRANSACTION_BYTES_MAX >> 30} GiB; commit more often")
        if self._batches + staging.batches > TRANSACTIONS_BATCHES_MAX:
            raise Busy(f"{self._batches} batches of transactions are not committed yet; try again in a moment")
        if self._bytes + staging.bytes > TRANSACTIONS_BYTES_MAX:
            raise Busy(f"{self._bytes >> 20} MiB of transactions are not committed yet; try again in a moment")
        self._count(opened, staging.batches, staging.bytes)

    def _staged_for(self, opened: _Transaction) -> int:
        """The bytes of a transaction, or of all parts of the delivery that it is for."""
        if not opened.delivery.job or opened.bytes > _LARGE_BYTES:
            return opened.bytes
        return sum(each.bytes for each in self._open.values() if each.delivery == opened.delivery)

    def _count(self, opened: _Transaction, batches: int, size: int) -> None:
        opened.batches, opened.bytes = opened.batches + batches, opened.bytes + size
        self._batches, self._bytes = self._batches + batches, self._bytes + size

    def _on_staged(
        self,
        opened: _Transaction,
        staging: _Staging,
        staged: Sequence[StagedBatch],
        result: Outcomes | MainstemError,
        but: Answer | None = None,
    ) -> None:
        """The batches are durable, or failed. `but` hears of it otherwise."""
        with self._lock:
            waiting, staging.waiting = staging.waiting or [], None
            self._under_way.discard(staging)
            opened.under_way -= 1
            commit: _Commit | None = None
            if self._open.get(opened.id) is not opened:
                result = self._aborted(opened.id)
            else:
                if isinstance(result, MainstemError):
                    self._count(opened, -staging.batches, -staging.bytes)
                    commit, opened.commit = opened.commit, None
                else:
                    staging.frames = tuple(map(_frame, staged, result))
                    opened.blocks.update(frame.block for frame in staging.frames)
                    commit = None if opened.under_way else opened.commit
        for done in waiting:
            if done is not but:
                done(result)
        if commit is None:
            return
        if isinstance(result, MainstemError):
            _answer(commit, result)
            return
        self._submit_commit(opened, commit)

    # Ending.

    def commit(
        self,
        transaction: int,
        batches: int,
        cursors: Sequence[GroupCursors],
        done: Answer,
        *,
        writer: Writer = NO_WRITER,
        delivery: Delivery | None = None,
        parts: Sequence[int] = (),
    ) -> None:
        """Commit; `done` gets one `TransactionCommitted`, or `Rejected`: then nothing of it has happened and it is
        over. With an error it is still open, and the commit can be repeated.

        `batches` is how many were staged in all. What is being staged is waited for. `delivery`: see
        CommitTransaction. `parts` are the transactions that were joined into this one.
        """
        _check_id(transaction)
        _check_commit(batches, cursors, writer)
        made = _Commit(batches, tuple(cursors), writer, [done], delivery, tuple(parts))
        with self._lock:
            opened = self._open.get(transaction)
            if opened is not None and opened.commit is None and opened.deadline <= self._clock.monotonic():
                self._end_overdue()
                opened = None
            if opened is None:
                # Nothing was staged, or it is over: whether it was committed is for the ledger to say. What was aborted
                # here may be no more than a staging that came again, long after the commit.
                opened = _Transaction(transaction, 0.0, writer)
            elif opened.commit is not None:
                opened.commit.waiting.append(done)
                return
            else:
                opened.commit = made
                if opened.under_way:
                    return
        self._submit_commit(opened, made, raises=True)

    def commit_parts(
        self,
        transaction: int,
        parts: Sequence[tuple[int, int]],
        done: Answer,
        *,
        delivery: Delivery | None = None,
    ) -> None:
        """Commit what was staged in several transactions, given with how many batches each has, as one; `done` as for
        `commit`. Repeated, it has the same answer."""
        _check_id(transaction)
        batches = sum(count for _, count in parts)
        if batches > TRANSACTION_BATCHES_MAX:
            raise InvalidRequest(
                f"{batches} batches were written, and {TRANSACTION_BATCHES_MAX} {_TOGETHER}: each part has "
                "at least one for each shard. Write fewer parts, or less at a time"
            )
        with self._lock:
            self._end_overdue()
            self._join(transaction, parts)
        self.commit(transaction, batches, (), done, delivery=delivery, parts=[part for part, _ in parts])

    def _join(self, transaction: int, parts: Sequence[tuple[int, int]]) -> None:
        """Make one transaction of parts that are open. What is missing the ledger will miss, unless it has it."""
        found = [self._open[part] for part, _ in parts if part in self._open and part != transaction]
        if any(part.under_way or part.commit is not None for part in found):
            raise InvalidRequest(
                f"transaction {transaction:x}: a part of it is still being written, or committed alone"
            )
        if not found:
            return
        joined = self._open.get(transaction)
        if joined is None:
            joined = _Transaction(transaction, 0.0, NO_WRITER, found[0].delivery)
        elif joined.commit is not None:
            raise InvalidRequest(f"transaction {transaction:x} is being committed; nothing more can be added to it")
        self._open[transaction] = joined
        for part in found:
            del self._open[part.id]
            joined.stagings += part.stagings
            joined.blocks |= part.blocks
            joined.streams |= part.streams
            joined.batches, joined.bytes = joined.batches + part.batches, joined.bytes + part.bytes
            joined.deadline = max(joined.deadline, part.deadline)

    def commit_whole(
        self,
        transaction: int,
        batches: Sequence[Batch],
        cursors: Sequence[GroupCursors],
        done: Answer,
        *,
        writer: Writer = NO_WRITER,
        patience: float = 0.0,
    ) -> None:
        """Stage all batches of a transaction and commit it, in one flush; `done` as for `commit`. Repeated, it has the
        same answer. `patience` is that of a Submission."""
        _check_id(transaction)
        _check_commit(len(batches), cursors, writer)
        # Stable: in each shard they keep their order, and those of a shard are one run of bytes.
        staged = sorted([_staged(batch, transaction) for batch in batches], key=_shard_of)
        with self._lock:
            self._require_not_ended(transaction)
            if transaction in self._open:
                raise InvalidRequest(f"transaction {transaction:x} was begun already; commit what is staged")
        command = CommitTransaction(
            transaction, len(staged), (), tuple(cursors), self._clock.now_us(), *writer, frames=len(staged)
        )
        opened, commit = _Transaction(transaction, 0.0, writer), _Commit(len(staged), (), writer, [done])
        whole = WholeTransaction(command, tuple(staged))
        self._submit(Submission((whole,), partial(self._on_committed, opened, commit), patience))

    def _submit_commit(self, opened: _Transaction, commit: _Commit, *, raises: bool = False) -> None:
        frames = _that_fit(opened.frames(), commit.cursors)
        command = CommitTransaction(
            opened.id,
            commit.batches,
            frames,
            commit.cursors,
            self._clock.now_us(),
            *commit.writer,
            delivery=commit.delivery,
        )
        try:
            self._submit(Submission((command,), partial(self._on_committed, opened, commit)))
        except MainstemError as error:
            with self._lock:
                opened.commit = None
                # The first is who has called.
                commit.waiting = commit.waiting[1:] if raises else commit.waiting
            _answer(commit, error)
            if raises:
                raise

    def _on_committed(self, opened: _Transaction, commit: _Commit, result: Outcomes | MainstemError) -> None:
        with self._lock:
            opened.commit = None
            if not isinstance(result, MainstemError):
                outcome = result[0]
                if isinstance(outcome, TransactionCommitted):
                    self._counts["committed"] += not outcome.duplicate
                    self._end(opened)
                else:
                    assert isinstance(outcome, Rejected)
                    ended = [each for each in (opened.id, *commit.parts) if each in self._ended]
                    if isinstance(outcome.error, UnknownTransaction) and ended:
                        result = [Rejected(self._aborted(ended[0]))]
                    self._end(opened, f"its commit was refused: {outcome.error}")
        _answer(commit, result)

    def abort(self, transaction: int) -> bool:
        """End a transaction without a trace; whether it was open. Refused while it is being committed."""
        with self._lock:
            opened = self._open.get(transaction)
            if opened is None:
                return False
            if opened.commit is not None:
                raise Refused(f"transaction {transaction:x} is being committed; it cannot be aborted any more")
            self._end(opened, "it was aborted")
            return True

    def abort_delivery(self, stream: int, delivery: DeliveryNumber, *, for_good: bool = False) -> None:
        """End what was staged in this stream alone for this delivery of a job and those before it, but for what is
        being committed. `for_good`: what comes late is refused."""
        with self._lock:
            for opened in list(self._open.values()):
                is_of_job = opened.delivery.job == delivery.job and opened.delivery.number <= delivery.number
                if is_of_job and opened.streams == {stream} and opened.commit is None:
                    self._end(opened, "its delivery was aborted, or has ended")
            if for_good:
                place = (stream, delivery.job)
                self._over[place] = max(delivery.number, self._over.pop(place, 0))
                while len(self._over) > _ENDED_MAX:
                    self._over.popitem(last=False)

    def tick(self) -> None:
        """End the transactions whose time is over; called now and then."""
        with self._lock:
            self._end_overdue()

    def fence(self, writer: Writer) -> None:
        """End what older hubs have begun under the name of this writer."""
        with self._lock:
            for opened in list(self._open.values()):
                is_older = opened.writer.name == writer.name and opened.writer.epoch < writer.epoch
                if is_older and opened.commit is None:
                    self._end(opened, f"another hub writes as {writer.name!r} now")

    def _end_overdue(self) -> None:
        now = self._clock.monotonic()
        for opened in [each for each in self._open.values() if each.deadline <= now and each.commit is None]:
            self._counts["timed_out"] += 1
            self._end(opened, _TIME_OVER)

    def _end(self, opened: _Transaction, why: str = "") -> None:
        if self._open.get(opened.id) is opened:
            del self._open[opened.id]
            self._count(opened, -opened.batches, -opened.bytes)
        if why and opened.id not in self._ended:
            self._counts["aborted"] += 1
            self._ended[opened.id] = why
            while len(self._ended) > _ENDED_MAX:
                self._ended.popitem(last=False)

    def _require_not_ended(self, transaction: int) -> None:
        if transaction in self._ended:
            raise self._aborted(transaction)

    def _require_not_over(self, delivery: DeliveryNumber, staged: Sequence[StagedBatch]) -> None:
        if not self._over or not delivery.job:
            return
        for stream in {batch.header.stream for batch in staged}:
            if delivery.number <= self._over.get((stream, delivery.job), -1):
                raise TransactionAborted(
                    f"delivery {delivery.number} of {delivery.job!r} was aborted, or has ended: what comes now is "
                    "late, and was not kept"
                )

    def _aborted(self, transaction: int) -> TransactionAborted:
        # Why may say so itself.
        why = self._ended.get(transaction, "it is over").removesuffix(f". {_ADVICE}")
        return TransactionAborted(f"transaction {transaction:x} was aborted: {why}. {_ADVICE}")

    # What others ask.

    def pinned(self, blocks: Iterable[int]) -> set[int]:
        """Those of these blocks that must stay because something in them may be committed."""
        with self._lock:
            floor = min((staging.floor for staging in self._under_way), default=None)
            held = {block for opened in self._open.values() for block in opened.blocks}
            return {block for block in blocks if block in held or (floor is not None and block >= floor)}

    def streams(self, *transactions: int) -> frozenset[int]:
        """The streams that open transactions write to."""
        with self._lock:
            opened = [self._open[each] for each in transactions if each in self._open]
            return frozenset(stream for each in opened for stream in each.streams)

    def listing(self) -> list[OpenTransaction]:
        """What is open, the oldest first."""
        now = self._clock.monotonic()
        with self._lock:
            return [
                OpenTransaction(
                    each.id, each.writer.name, each.batches, each.bytes, each.deadline - now, each.commit is not None
                )
                for each in self._open.values()
            ]

    def counters(self) -> dict[str, int]:
        """Since the log was opened; and what is open now."""
        with self._lock:
            return {
                **{f"transactions_{name}": count for name, count in self._counts.items()},
                "transactions_open": len(self._open),
                "transactions_staged_batches": self._batches,
                "transactions_staged_bytes": self._bytes,
            }


def met_limit(error: MainstemError) -> bool:
    """Whether a transaction was refused for its size, or ended for its time. That an error of a server is of this kind
    only its words say."""
    return any(words in str(error) for words in (_UP_TO, _TOGETHER, _TIME_OVER))


def _answer(commit: _Commit, result: Outcomes | MainstemError) -> None:
    for done in commit.waiting:
        done(result)


def _unknown(transaction: int) -> UnknownTransaction:
    return UnknownTransaction(
        f"transaction {transaction:x} is not open: the log was started again since, or it ended. Do its work again in "
        "a new one"
    )


def _check_id(transaction: int) -> None:
    if not 1 <= transaction <= TRANSACTION_ID_MAX:
        raise InvalidRequest(f"the id of a transaction is between 1 and 2^63 - 1, not {transaction}")


def _check_commit(batches: int, cursors: Sequence[GroupCursors], writer: Writer) -> None:
    """No number is too large for a command, and the command not too large for a frame."""
    if not 0 <= batches <= TRANSACTION_BATCHES_MAX:
        raise InvalidRequest(f"a transaction has 0 to {TRANSACTION_BATCHES_MAX} batches, not {batches}")
    if len(cursors) > TRANSACTION_GROUPS_MAX:
        raise InvalidRequest(f"a transaction moves cursors of up to {TRANSACTION_GROUPS_MAX} groups at a time")
    if sum(len(each.offsets) for each in cursors) > TRANSACTION_CURSORS_MAX:
        raise InvalidRequest(f"a transaction moves up to {TRANSACTION_CURSORS_MAX} cursors; commit more often")
    for each in cursors:
        check_group_name(each.group)
        numbers = (each.member, each.generation or 0, *(number for place in each.offsets for number in place))
        if not all(0 <= number <= TRANSACTION_ID_MAX for number in numbers):
            raise InvalidRequest(f"group {each.group!r}: ids and offsets are numbers from 0 to 2^63 - 1")
    if writer != NO_WRITER:
        check_group_name(writer.name, "writer")
        if not 0 <= writer.epoch <= TRANSACTION_ID_MAX:
            raise InvalidRequest(f"writer {writer.name!r} cannot have epoch {writer.epoch}")


def _staged(batch: Batch, transaction: int) -> StagedBatch:
    """The batch as it is stored: it is known by its transaction, not by its producer."""
    header = msgspec.structs.replace(
        batch.header, transaction=transaction, producer=0, producer_epoch=0, sequence=0, span=0
    )
    return StagedBatch(header, batch.payload)


def _frame(batch: StagedBatch, outcome: object) -> StagedFrame:
    assert isinstance(outcome, Staged), "nothing that is staged is refused"
    return StagedFrame.of(batch.header, outcome.block, outcome.position, outcome.length)


def _shard_of(batch: StagedBatch) -> tuple[int, int]:
    return batch.header.stream, batch.header.shard


def _that_fit(frames: tuple[StagedFrame, ...], cursors: Sequence[GroupCursors]) -> tuple[StagedFrame, ...]:
    """The frames, without summaries where they would make the command too large: readers do without."""
    used = _BATCH_BYTES * len(frames) + _CURSOR_BYTES * sum(len(each.offsets) for each in cursors) + _REST_BYTES
    if used + sum(len(frame.summary) for frame in frames) <= COMMAND_BYTES_MAX:
        return frames
    return tuple(msgspec.structs.replace(frame, summary=b"") for frame in frames)
