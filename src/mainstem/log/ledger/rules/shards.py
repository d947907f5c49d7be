"""Shards: where they start, which rows below that go, and how far upkeep has come."""

from mainstem.log.flush import Done, DropEntries, NoteUpkeep, Outcome, TrimShard
from mainstem.log.ledger.pending import PendingRows


def trim(rows: PendingRows, command: TrimShard) -> Outcome:
    rows.open_stream(command.stream)
    key = (command.stream, command.shard)
    row = rows.shard(key)
    start = max(row.start, min(command.before, row.stable))
    rows.changes.shards[key] = row._replace(start=start)
    return Done(command.stream)


def drop(rows: PendingRows, command: DropEntries) -> Outcome:
    stream = rows.changes.streams.get(command.stream) or rows.current.stream(command.stream)
    if stream is None:
        return Done()
    key = (command.stream, command.shard)
    row = rows.shard(key)
    before = row.next if stream.deleted_us else row.start
    oldest = rows.current.ledger.oldest_entries(*key, before, command.limit)
    if not oldest.rows:
        return Done(stream.id)
    # What was written twice has no rows; the second copy goes when the first does.
    for block in rows.current.ledger.dead_bytes(stream.id):
        if not rows.block(block).rewrite_us:
            rows.hurry_block(block, command.rewrite_us)
    rows.rearrange(key, 0, oldest.end)
    rows.changes.dropped.append((*key, 0, oldest.end))
    for block, size in oldest.blocks.items():
        rows.bury(stream.id, block, size, command.rewrite_us)
    rows.changes.shards[key] = row._replace(bytes=row.bytes - sum(oldest.blocks.values()))
    return Done(stream.id, oldest.rows)


def note(rows: PendingRows, command: NoteUpkeep) -> Outcome:
    rows.open_stream(command.stream)
    note_progress(rows, command.stream, command.shard, command.merged, command.compacted)
    return Done(command.stream)


def note_progress(rows: PendingRows, stream: int, shard: int, merged: int, compacted: int) -> None:
    row = rows.shard((stream, shard))
    merged, compacted = max(row.merged, merged), max(row.compacted, compacted)
    rows.changes.shards[stream, shard] = row._replace(merged=merged, compacted=compacted)
