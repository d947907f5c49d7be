"""Moments: where the shards of a stream stood at a time, noted between two flushes.

A flush is one point of time for all shards, so its beginning cuts a stream in two: what stands before the cut was
stored earlier in every shard. Such cuts give the records of several shards an order. They are of offsets, and stay as
they are whatever becomes of the entries.
"""

from mainstem.core.limits import MOMENT_US_MAX, MOMENT_US_MIN
from mainstem.log.flush import Done, NoteMoment, Outcome
from mainstem.log.ledger.base import MomentRow, StreamRow
from mainstem.log.ledger.pending import PendingRows

# Moments that are looked at, when there is a new one, because nothing may be left of what stood before them.
_OLDEST = 8


def note_due(rows: PendingRows) -> None:
    """Note a moment of every stream of several shards that this flush adds to, if the last one is too long ago."""
    grown = {key[0] for key, row in rows.changes.shards.items() if row.next > rows.current.shard(key).next}
    for stream in sorted(grown):
        row = rows.changes.streams.get(stream) or rows.current.stream(stream)
        if row is not None and row.shards > 1 and not row.deleted_us and stream not in rows.changes.moments:
            newest = rows.current.newest_moment(stream)
            if newest is None or rows.flush.time_us - newest.time_us >= MOMENT_US_MAX:
                _add(rows, row, newest)


def note(rows: PendingRows, command: NoteMoment) -> Outcome:
    row = rows.open_stream(command.stream)
    newest = rows.current.newest_moment(row.id)
    if row.id in rows.changes.moments or (newest is not None and newest.ends == _ends(rows, row)):
        return Done(row.id)
    if newest is None or abs(rows.flush.time_us - newest.time_us) >= MOMENT_US_MIN:
        _add(rows, row, newest)
        # Readers may wait for it: they are told as if a shard had grown.
        rows.changes.shards.setdefault((row.id, 0), rows.shard((row.id, 0)))
    return Done(row.id)


def _add(rows: PendingRows, row: StreamRow, newest: MomentRow | None) -> None:
    # Also if the clock was put back.
    time_us = rows.flush.time_us if newest is None else max(rows.flush.time_us, newest.time_us + 1)
    rows.changes.moments[row.id] = MomentRow(row.id, time_us, _ends(rows, row))
    oldest = rows.current.ledger.load_moments(row.id, 0, _OLDEST)
    gone = [moment.time_us for moment in oldest if _is_trimmed(rows, moment)]
    if len(gone) > 1:
        rows.changes.forgotten_moments[row.id] = gone[-1]


def _ends(rows: PendingRows, row: StreamRow) -> tuple[int, ...]:
    """Where the shards ended before this flush."""
    return tuple(shard.next for shard in rows.current.shards_of(row))


def _is_trimmed(rows: PendingRows, moment: MomentRow) -> bool:
    """Whether everything that stood before it is gone. Of these the last is kept: what is left stands behind it."""
    return all(rows.shard((moment.stream, shard)).start >= end for shard, end in enumerate(moment.ends))
