"""Batches of a flush: which are new, which offsets they get, and the entries that they become.

What one flush does to one shard becomes one entry, as long as the accepted frames lie next to each other; a refused
or repeated frame in between splits it, because an entry covers a single run of bytes. A batch with statistics is an
entry of its own, which has their summary.
"""

from mainstem.core.batch import BatchHeader
from mainstem.core.errors import InvalidRequest, StaleGeneration
from mainstem.core.statistics import summary
from mainstem.log.flush import Appended, WrittenBatch
from mainstem.log.ledger.base import Entry, ProducerRow, ShardKey, ShardRow, StreamRow
from mainstem.log.ledger.pending import PendingRows
from mainstem.log.ledger.rules.producers import original_base, remembering
from mainstem.log.ledger.rules.schemas import require_schema


class _Run:
    """Batches of one shard that lie next to each other in the flush: one entry and one row of the shard in the making.

    Kept as plain numbers, because most flushes are runs of tiny batches.
    """

    __slots__ = ("base", "bytes", "entry", "key", "length", "next", "position", "row", "stream", "time_high")

    def __init__(self, key: ShardKey, stream: StreamRow, row: ShardRow) -> None:
        self.key = key
        self.stream = stream
        self.row = row
        self.next = row.next
        self.time_high = row.time_high
        self.bytes = row.bytes
        # Of the entry that grows: the header of its first batch, its first offset, and its bytes so far.
        self.entry: BatchHeader | None = None
        self.base = self.position = self.length = 0

    def shard_row(self) -> ShardRow:
        row = self.row
        return ShardRow(row.start, self.next, self.next, self.time_high, self.bytes, row.merged, row.compacted)


class Appends:
    """The batches of one flush. What they change of a shard is among the pending rows after `close`."""

    __slots__ = ("_rows", "_run")

    def __init__(self, rows: PendingRows) -> None:
        self._rows = rows
        self._run: _Run | None = None

    def append(self, batch: WrittenBatch) -> Appended:
        header = batch.header
        key = (header.stream, header.shard)
        run = self._run
        if run is None or run.key != key:
            run = self._begin_run(key)
        rows = self._rows
        producer: ProducerRow | None = None
        if header.producer:
            identity = (header.producer, header.stream, header.shard)
            producer = rows.changes.producers.get(identity) or rows.current.producer(identity)
            original = original_base(header, producer)
            if original is not None:
                return Appended(original, duplicate=True)
        if header.generation != run.stream.generation:
            raise StaleGeneration(
                f"stream {run.stream.name!r} is at generation {run.stream.generation}, the batch was made for "
                f"{header.generation}; look the stream up again and resend",
                generation=run.stream.generation,
                shards=run.stream.shards,
            )
        if header.schema_id and header.schema_id != run.stream.schema_id:
            require_schema(rows, run.stream, header.schema_id)
        base = run.next
        if header.producer:
            rows.changes.producers[identity] = remembering(producer, header, base, rows.flush.time_us)
        entry = run.entry
        if (
            entry is None
            or run.position + run.length != batch.position
            or entry.schema_id != header.schema_id
            or entry.transaction != header.transaction
            or entry.statistics
            or header.statistics
        ):
            if entry is not None:
                self._close_entry(run, entry)
            run.entry, run.base, run.position, run.length = header, base, batch.position, 0
        run.length += batch.length
        run.bytes += batch.length
        run.next = base + header.count
        if header.time_high > run.time_high:
            run.time_high = max(run.time_high, min(header.time_high, rows.time_max_us))
        return Appended(base)

    def _begin_run(self, key: ShardKey) -> _Run:
        if self._run is not None:
            self.close()
        stream = self._rows.open_stream(key[0])
        if key[1] >= stream.shards:
            raise InvalidRequest(f"stream {stream.name!r} has {stream.shards} shards; there is no shard {key[1]}")
        self._run = run = _Run(key, stream, self._rows.shard(key))
        return run

    def close(self) -> None:
        """End the run of batches under way."""
        run = self._run
        if run is None:
            return
        if run.entry is not None:
            self._close_entry(run, run.entry)
        if run.next > run.row.next:
            self._rows.changes.shards[run.key] = run.shard_row()
        self._run = None

    def _close_entry(self, run: _Run, first: BatchHeader) -> None:
        rows = self._rows
        block = rows.flush.block
        rows.live[block] = rows.live.get(block, 0) + run.length
        span = run.next - run.base
        rows.changes.entries.append(
            Entry(
                first.stream,
                first.shard,
                run.base,
                span,
                span,
                block,
                run.position,
                run.length,
                run.time_high,
                first.schema_id,
                first.transaction,
                summary(first.statistics),
            )
        )
