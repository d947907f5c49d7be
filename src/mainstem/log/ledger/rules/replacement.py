"""Replacement: rows of a shard make room for others, which have the same records elsewhere, or fewer of them."""

import struct
from collections.abc import Sequence
from itertools import islice, pairwise

from mainstem.core.checksum import crc32c
from mainstem.core.errors import Refused
from mainstem.core.statistics import summary
from mainstem.log.flush import CoolEntries, Done, Outcome, ReplaceEntries, WrittenBatch, WrittenReplacement
from mainstem.log.ledger.base import Entry, barriers_of
from mainstem.log.ledger.pending import PendingRows
from mainstem.log.ledger.rules.shards import note_progress

_ROW_PLACE = struct.Struct("<qqq")
_OVERTAKEN = "these entries were replaced by others meanwhile"


def replace(rows: PendingRows, item: WrittenReplacement) -> Outcome:
    command, frames = item.command, item.frames
    rows.open_stream(command.stream)
    key = (command.stream, command.shard)
    rows.rearrange(key, command.base, command.end)
    found = rows_to_replace(rows, command)
    if sum(span for span, _ in command.entries) != command.end - command.base:
        raise Refused(_OVERTAKEN)
    # Before anything is changed: what is refused leaves everything as it is.
    made = _replacing(command, found, frames, rows.flush.block)
    _check_barriers(rows, command, frames)
    rows.changes.dropped.append((*key, command.base, command.end))
    for old in found:
        rows.bury(command.stream, old.block, old.length, command.rewrite_us)
    rows.changes.entries += made
    if sum(entry.count for entry in made) != sum(old.count for old in found):
        rows.changes.thinned.add(key)
    added = sum(entry.length for entry in made)
    if added:
        rows.live[rows.flush.block] = rows.live.get(rows.flush.block, 0) + added
    row = rows.shard(key)
    rows.changes.shards[key] = row._replace(bytes=row.bytes + added - sum(old.length for old in found))
    note_progress(rows, *key, command.merged, command.compacted)
    return Done(command.stream, len(found))


def rows_to_replace(rows: PendingRows, command: ReplaceEntries | CoolEntries) -> Sequence[Entry]:
    """The rows that a command means, if they are still what they were."""
    found = rows.current.ledger.entries_from(command.stream, command.shard, command.base, command.rows)
    if (
        not found
        or fingerprint(found) != command.fingerprint
        or (found[0].base, found[-1].end) != (command.base, command.end)
    ):
        raise Refused(_OVERTAKEN)
    return found


def fingerprint(entries: Sequence[Entry]) -> int:
    """Which rows these are: where they begin and where their bytes are."""
    return crc32c(b"".join(_ROW_PLACE.pack(entry.base, entry.block, entry.position) for entry in entries))


def _check_barriers(rows: PendingRows, command: ReplaceEntries, frames: Sequence[WrittenBatch]) -> None:
    """Readers wait with a batch that reaches over a barrier: what it had from before that would come too late."""
    # One of this flush stands behind everything that can be replaced.
    barriers = barriers_of(rows.current.generations(command.stream), command.shard)
    if not barriers:
        return
    base, rest = command.base, iter(frames)
    for span, count in command.entries:
        begin = base
        for frame in islice(rest, count):
            end = begin + (frame.header.span or frame.header.count)
            if any(begin < barrier < end for barrier in barriers):
                raise Refused(f"a new batch reaches from {begin} to {end - 1}, over a barrier")
            begin = end
        base += span


def _replacing(
    command: ReplaceEntries, found: Sequence[Entry], frames: Sequence[WrittenBatch], block: int
) -> list[Entry]:
    """The new rows. The highest time up to each is that of the old row in which it ends."""
    made: list[Entry] = []
    base, taken, old = command.base, 0, 0
    for span, count in command.entries:
        while found[old].end < base + span:
            old += 1
        own = frames[taken : taken + count]
        taken += count
        covered = sum(frame.header.span or frame.header.count for frame in own)
        if own and (covered != span or any(a.position + a.length != b.position for a, b in pairwise(own))):
            raise Refused("the new entries do not cover the old ones")
        made.append(
            Entry(
                command.stream,
                command.shard,
                base,
                span,
                sum(frame.header.count for frame in own),
                block if own else 0,
                own[0].position if own else 0,
                sum(frame.length for frame in own),
                found[old].time_high,
                own[0].header.schema_id if own else 0,
                own[0].header.transaction if own else 0,
                summary(own[0].header.statistics) if len(own) == 1 else b"",
            )
        )
        base += span
    return made
