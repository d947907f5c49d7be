"""Cooling: rows of a shard make room for one that points into a cold block."""

from mainstem.core.errors import Refused
from mainstem.log.flush import CoolEntries, Done, Outcome
from mainstem.log.frame import is_cold
from mainstem.log.ledger.base import BlockRow, Entry, barriers_of
from mainstem.log.ledger.pending import PendingRows
from mainstem.log.ledger.rules.replacement import rows_to_replace


def cool(rows: PendingRows, command: CoolEntries) -> Outcome:
    rows.open_stream(command.stream)
    key, block = (command.stream, command.shard), command.block
    rows.rearrange(key, command.base, command.end)
    found = rows_to_replace(rows, command)
    # Before anything is changed: what is refused leaves everything as it is.
    if not is_cold(block) or block in rows.changes.blocks or rows.current.block(block) is not None:
        raise Refused(f"block {block} is no cold block, or is there already")
    if command.count != sum(old.count for old in found):
        raise Refused(f"{command.count} records cannot take the place of {sum(old.count for old in found)}")
    barriers = barriers_of(rows.current.generations(command.stream), command.shard)
    if any(command.base < barrier < command.end for barrier in barriers):
        raise Refused(f"a cold file reaches from {command.base} to {command.end - 1}, over a barrier")
    rows.changes.dropped.append((*key, command.base, command.end))
    for old in found:
        rows.bury(command.stream, old.block, old.length, command.rewrite_us)
    rows.changes.entries.append(_entry(command, found[-1].time_high))
    rows.changes.blocks[block] = BlockRow(
        block, command.writer_epoch, "sealed", command.file_bytes, 0, command.created_us
    )
    rows.live[block] = command.length
    row = rows.shard(key)
    size = row.bytes + command.length - sum(old.length for old in found)
    rows.changes.shards[key] = row._replace(bytes=size)
    return Done(command.stream, len(found))


def _entry(command: CoolEntries, time_high: int) -> Entry:
    return Entry(
        command.stream,
        command.shard,
        command.base,
        command.end - command.base,
        command.count,
        command.block,
        command.position,
        command.length,
        time_high,
        command.schema_id,
        0,
        command.summary,
    )
