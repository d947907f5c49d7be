"""Transactions: staged batches that get their offsets together with cursors that move, all of it or nothing.

A staged batch is nobody's until then, and its bytes are counted as dead: if its transaction is never committed, they
are, and no further word about it is needed.
"""

from typing import Final

import msgspec

from mainstem.core.errors import Fenced, InvalidRequest, Refused, StaleGeneration, UnknownTransaction, WriterForgotten
from mainstem.core.limits import WRITERS_MAX
from mainstem.log.flush import (
    CommitTransaction,
    Done,
    ForgetTransactions,
    OpenWriter,
    Outcome,
    Staged,
    StagedFrame,
    TransactionCommitted,
    WriterOpened,
    WrittenStaged,
    WrittenTransaction,
)
from mainstem.log.ledger.base import (
    Entry,
    GroupShardKey,
    GroupShardRow,
    ShardKey,
    ShardRow,
    StreamRow,
    TransactionRow,
    WriterRow,
)
from mainstem.log.ledger.pending import PendingRows
from mainstem.log.ledger.rules.deliveries import with_delivery
from mainstem.log.ledger.rules.groups import moved_cursors
from mainstem.log.ledger.rules.schemas import require_schema

# Later than any time.
_EVER_US: Final = 1 << 62


def stage(rows: PendingRows, item: WrittenStaged) -> Outcome:
    rows.waste((item.batch,))
    return Staged(rows.flush.block, item.batch.position, item.batch.length)


def commit_whole(rows: PendingRows, item: WrittenTransaction) -> Outcome:
    """Batches that stand behind the command that commits them."""
    rows.waste(item.frames)
    staged = tuple(StagedFrame.of(each.header, rows.flush.block, each.position, each.length) for each in item.frames)
    return commit(rows, msgspec.structs.replace(item.command, staged=staged))


def commit(rows: PendingRows, command: CommitTransaction) -> Outcome:
    known = rows.shared.transactions.get(command.id) or rows.current.ledger.load_transaction(command.id)
    if known is not None:
        return TransactionCommitted(known.offsets, duplicate=True)
    writer = _writer(rows, command)
    delivered = None if command.delivery is None else with_delivery(rows, command.delivery, command.time_us)
    if command.delivery is not None and delivered is None:
        return TransactionCommitted((), duplicate=True)
    if len(command.staged) != command.batches:
        raise UnknownTransaction(
            f"transaction {command.id:x} has {len(command.staged)} of the {command.batches} batches that were staged: "
            "the log was started again since. Nothing of it was kept; do its work again in a new transaction"
        )
    # Before anything is changed: what is refused leaves everything as it is.
    made = _Numbering(rows)
    for frame in command.staged:
        made.add(frame)
    moved: dict[GroupShardKey, GroupShardRow] = {}
    for cursors in command.cursors:
        moved |= moved_cursors(rows, cursors, command.time_us)
    made.close()
    rows.shared.group_shards.update(moved)
    if writer is not None:
        rows.shared.writers[command.writer] = writer
    if command.delivery is not None and delivered is not None:
        rows.shared.deliveries[command.delivery.stream, command.delivery.job] = delivered
    row = rows.shared.transactions[command.id] = TransactionRow(command.time_us, made.offsets())
    return TransactionCommitted(row.offsets)


def _writer(rows: PendingRows, command: CommitTransaction) -> WriterRow | None:
    """The row of the transaction's writer, who was seen now; Fenced if there is a newer one, WriterForgotten if there
    is none."""
    if not command.writer:
        return None
    known = _known_writer(rows, command.writer)
    if known is None:
        raise WriterForgotten(
            f"writer {command.writer!r} was not seen for so long that it was forgotten. Nothing of its transaction was "
            "kept; do its work again in a new one"
        )
    if known.epoch != command.epoch:
        raise Fenced(
            f"writer {command.writer!r} is at epoch {known.epoch}, this transaction is of epoch {command.epoch}: "
            "another hub writes under this name. Nothing of it was kept"
        )
    return known._replace(seen_us=command.time_us)


def open_writer(rows: PendingRows, command: OpenWriter) -> Outcome:
    known = _known_writer(rows, command.name)
    if known is None and rows.current.ledger.writers_before(_EVER_US) + len(rows.shared.writers) >= WRITERS_MAX:
        raise InvalidRequest(f"{WRITERS_MAX} names of writers are in use, which is the limit; use names again")
    # Never lower than one that was forgotten.
    epoch = max(command.time_us, known.epoch + 1 if known is not None else 1)
    rows.shared.writers[command.name] = WriterRow(epoch, command.time_us)
    return WriterOpened(epoch)


def _known_writer(rows: PendingRows, name: str) -> WriterRow | None:
    return rows.shared.writers.get(name) or rows.current.ledger.load_writer(name)


def forget(rows: PendingRows, command: ForgetTransactions) -> Outcome:
    ended = rows.current.ledger.transactions_before(command.before_us, command.limit)
    rows.shared.forget_transactions_before_us = command.before_us
    rows.shared.forget_transactions_limit = command.limit
    rows.shared.forget_writers_before_us = command.writers_before_us
    rows.shared.forget_jobs_before_us = command.jobs_before_us
    return Done(rows=ended)


class _Shard:
    """A shard to which batches of the transaction come: its row in the making, and the entry that grows."""

    __slots__ = ("base", "end", "entries", "row", "stream")

    def __init__(self, stream: StreamRow, row: ShardRow) -> None:
        self.stream = stream
        self.row = row
        self.base = row.next
        self.entries: list[Entry] = []
        # Where the bytes of the last entry end, if more may be added to it.
        self.end: tuple[int, int] | None = None

    def add(self, frame: StagedFrame, time_max_us: int) -> None:
        row = self.row
        base, high = row.next, max(row.time_high, min(frame.time_high, time_max_us))
        self.row = row._replace(
            next=base + frame.count, stable=base + frame.count, time_high=high, bytes=row.bytes + frame.length
        )
        last = self.entries[-1] if self.entries else None
        if (
            last is not None
            and self.end == (frame.block, frame.position)
            and last.schema_id == frame.schema_id
            and not (last.statistics or frame.summary)
        ):
            count = last.count + frame.count
            self.entries[-1] = last._replace(span=count, count=count, length=last.length + frame.length, time_high=high)
        else:
            self.entries.append(
                Entry(
                    frame.stream,
                    frame.shard,
                    base,
                    frame.count,
                    frame.count,
                    frame.block,
                    frame.position,
                    frame.length,
                    high,
                    frame.schema_id,
                    0,
                    frame.summary,
                )
            )
        self.end = (frame.block, frame.position + frame.length)


class _Numbering:
    """Gives offsets to staged batches. Nothing is among the pending rows before `close`."""

    def __init__(self, rows: PendingRows) -> None:
        self._rows = rows
        self._shards: dict[ShardKey, _Shard] = {}

    def add(self, frame: StagedFrame) -> None:
        key = (frame.stream, frame.shard)
        shard = self._shards.get(key)
        if shard is None:
            shard = self._shards[key] = self._open(key)
        stream = shard.stream
        if frame.generation != stream.generation:
            raise StaleGeneration(
                f"stream {stream.name!r} got more shards: it is at generation {stream.generation}, the transaction was "
                f"written for {frame.generation}. Nothing of it was kept; do its work again in a new one",
                generation=stream.generation,
                shards=stream.shards,
            )
        if frame.schema_id and frame.schema_id != stream.schema_id:
            require_schema(self._rows, stream, frame.schema_id)
        block = self._rows.changes.blocks.get(frame.block) or self._rows.current.block(frame.block)
        if block is None or frame.count < 1 or frame.length < 1:
            raise Refused(f"nothing can be staged at byte {frame.position} of block {frame.block}")
        shard.add(frame, self._rows.time_max_us)

    def _open(self, key: ShardKey) -> _Shard:
        stream = self._rows.open_stream(key[0])
        if not 0 <= key[1] < stream.shards:
            raise InvalidRequest(f"stream {stream.name!r} has {stream.shards} shards; there is no shard {key[1]}")
        return _Shard(stream, self._rows.shard(key))

    def close(self) -> None:
        rows = self._rows
        for key, shard in self._shards.items():
            rows.changes.shards[key] = shard.row
            rows.changes.entries += shard.entries
            for entry in shard.entries:
                rows.revive(entry.stream, entry.block, entry.length)

    def offsets(self) -> tuple[tuple[int, int, int, int], ...]:
        return tuple((*key, shard.base, shard.row.next - shard.base) for key, shard in sorted(self._shards.items()))
