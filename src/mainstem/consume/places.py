"""Where to begin to read a stream: an end of it, a time, or a cursor from before."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from mainstem.core.cursor import Cursor
from mainstem.core.errors import InvalidCursor, InvalidSetting
from mainstem.core.times import to_us
from mainstem.transport.port import OffsetsAtTimeCall, Port, StreamInfo

Start = str | datetime | Cursor


def offsets_at(port: Port, start: Start, info: StreamInfo, name: str = "start") -> Sequence[int]:
    """By shard, where this is in a stream now. `name` is what the user knows it by."""
    if isinstance(start, Cursor):
        return offsets_of(start, info)
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidSetting(f"{name}: a time needs a time zone, for example datetime.now(UTC)")
        return port.call(OffsetsAtTimeCall(info.name, to_us(start))).offsets
    if start == "earliest":
        return info.starts
    if start == "latest":
        return info.ends
    raise no_place(start, name)


def no_place(start: object, name: str, forms: str = "a datetime or a Cursor") -> InvalidSetting:
    """What to say where a place was to be given, and something else was."""
    if isinstance(start, str) and start.startswith("ms1:"):
        kind = "Cursors" if ";" in start else "Cursor"
        return InvalidSetting(f"{name}: a cursor that was saved as text is read by mainstem.{kind}.parse(text)")
    return InvalidSetting(f'{name} must be "earliest", "latest", {forms}, not {start!r}')


def offsets_of(cursor: Cursor, info: StreamInfo, sought: int | None = None) -> Sequence[int]:
    """The offsets of a cursor, or InvalidCursor with the reason why it is no place in this stream. `sought` is a shard
    whose offset was chosen now, so that it is of today's epoch."""
    if cursor.stream != info.uuid:
        raise InvalidCursor(
            f"the cursor belongs to another stream than {info.name!r} (one that was deleted has another UUID)"
        )
    if len(cursor.offsets) > info.shards:
        raise InvalidCursor(f"the cursor has {len(cursor.offsets)} shards, {info.name!r} has {info.shards}")
    if cursor.epoch != info.epoch:
        _require_kept(cursor, info, sought)
    ahead = [shard for shard, offset in enumerate(cursor.offsets) if offset > info.ends[shard]]
    if ahead:
        raise InvalidCursor(
            f"the cursor stands at offset {cursor.offsets[ahead[0]]} of shard {ahead[0]}, which ends at "
            f"{info.ends[ahead[0]]}"
        )
    # Shards that came later begin at 0: what was trimmed of them since was there to be read.
    return [*cursor.offsets, *(0,) * (info.shards - len(cursor.offsets))]


def _require_kept(cursor: Cursor, info: StreamInfo, sought: int | None) -> None:
    """A cursor of an earlier epoch is a place if every backup that the log was restored from since holds what is before
    it."""
    if cursor.epoch > info.epoch:
        raise InvalidCursor(
            f"the cursor is of epoch {cursor.epoch} of the log, which is in epoch {info.epoch}: this is an older copy"
        )
    since = [ends for epoch, ends in info.restored if epoch >= cursor.epoch]
    if len(since) != info.epoch - cursor.epoch:
        raise InvalidCursor(
            f"the cursor is of epoch {cursor.epoch}, and the log was restored {info.epoch - cursor.epoch} times since: "
            'nobody knows any more what it had read; start at "earliest" or "latest"'
        )
    for shard, offset in enumerate(cursor.offsets):
        kept = min(ends[shard] for ends in since)
        if offset > kept and shard != sought:
            raise InvalidCursor(
                f"the cursor stands at offset {offset} of shard {shard} of {info.name!r}, and records {kept} to "
                f"{offset - 1} are not in this log any more: it was restored from a backup that ends before them. What "
                f"is there now at {kept} and after is other. Go on at {kept}, at the earliest or at the latest record"
            )


def check_places(places: object) -> None:
    """InvalidCursor if these are no offsets by stream and shard."""
    if not isinstance(places, Mapping):
        raise InvalidCursor(f"positions are offsets by stream and shard, such as {{('orders', 0): 5}}, not {places!r}")
    for place, offset in places.items():
        match place:
            case (str(), int(shard)) if shard >= 0 and type(offset) is int and 0 <= offset < 1 << 63:
                continue
        raise InvalidCursor(f"{place!r}: {offset!r} is no offset by stream and shard, such as ('orders', 0): 5")
