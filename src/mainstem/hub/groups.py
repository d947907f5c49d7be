"""Groups of readers, for whoever looks after them: where they stand, how far behind, and setting them elsewhere."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from mainstem.core.cursor import Cursor
from mainstem.core.errors import InvalidCursor, InvalidSetting
from mainstem.core.names import check_group_name
from mainstem.core.times import to_us
from mainstem.transport.port import GetStreamCall, OffsetsAtTimeCall, Port, StreamInfo
from mainstem.transport.sharing import (
    DeleteGroupCall,
    GetGroupCall,
    GroupInfo,
    GroupShard,
    ListGroupsCall,
    ResetGroupCall,
)

# Where a group is to go on: "earliest", "latest", a time, a cursor, or offsets by stream and shard.
To = str | datetime | Cursor | Mapping[tuple[str, int], int]
# Cursors that are set in one step.
_RESET_SHARDS_MAX: Final = 10_000


class ShardReset(msgspec.Struct, frozen=True):
    """A group's cursor in one shard: before a reset, and after it. `records` are read again, or passed over if that is
    below 0."""

    stream: str
    shard: int
    before: int
    after: int

    @property
    def records(self) -> int:
        return self.before - self.after


class Groups:
    """Lists, shows, resets and deletes groups. Any thread."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def list(self) -> list[GroupInfo]:
        """All groups by name, without their members and shards."""
        found: list[GroupInfo] = []
        while True:
            answer = self._port.call(ListGroupsCall(found[-1].name if found else ""))
            found += answer.groups
            if not answer.more:
                return found

    def get(self, name: str) -> GroupInfo:
        """One group with its members and shards; UnknownGroup if there is none."""
        check_group_name(name)
        shards: list[GroupShard] = []
        while True:
            answer = self._port.call(GetGroupCall(name, len(shards)))
            info = answer.groups[0]
            shards += info.shards
            if not answer.more:
                return msgspec.structs.replace(info, shards=tuple(shards))

    def reset(
        self, name: str, to: To, *, streams: Sequence[str] | None = None, dry_run: bool = True
    ) -> Sequence[ShardReset]:
        """Let a group go on from somewhere else; by default only say what that would do.

        `to` is "earliest", "latest", an aware datetime, a cursor of one of its streams, or offsets by stream and shard.
        `streams`: only these of its streams. The group must have no members: GroupBusy if it has.
        """
        info = self.get(name)
        names = self._streams_of(info, to, streams)
        standing = {(shard.stream, shard.shard): shard.offset for shard in info.shards}
        changes: list[ShardReset] = []
        places: list[tuple[int, int, int]] = []
        for stream in (self._port.call(GetStreamCall(name)).streams[0] for name in names):
            for shard, offset in self._offsets(stream, to).items():
                changes.append(ShardReset(stream.name, shard, standing.get((stream.name, shard), 0), offset))
                places.append((stream.id, shard, offset))
        if not dry_run and places:
            if len(places) > _RESET_SHARDS_MAX:
                raise InvalidSetting(f"{len(places)} shards at once; name fewer streams (up to {_RESET_SHARDS_MAX})")
            self._port.call(ResetGroupCall(name, tuple(places)))
        return changes

    def delete(self, name: str) -> None:
        """Forget a group and its cursors. GroupBusy if it has members."""
        self._port.call(DeleteGroupCall(check_group_name(name)))

    def _streams_of(self, info: GroupInfo, to: To, streams: Sequence[str] | None) -> Sequence[str]:
        if isinstance(streams, str):
            streams = (streams,)
        if streams is None:
            streams = tuple(dict.fromkeys(name for name, _ in to)) if isinstance(to, Mapping) else info.streams
        unknown = [name for name in streams if name not in info.streams]
        if unknown:
            raise InvalidSetting(
                f"group {info.name!r} does not read {unknown[0]!r}; it reads {', '.join(info.streams) or 'nothing yet'}"
            )
        if isinstance(to, Cursor):
            streams = [name for name in streams if self._port.call(GetStreamCall(name)).streams[0].uuid == to.stream]
            if not streams:
                raise InvalidCursor(f"the cursor is of none of the streams that group {info.name!r} reads")
        return streams

    def _offsets(self, stream: StreamInfo, to: To) -> dict[int, int]:
        """By shard, in the bounds of what is there."""
        if isinstance(to, Mapping):
            wanted = {shard: offset for (name, shard), offset in to.items() if name == stream.name}
        elif isinstance(to, Cursor):
            wanted = dict(enumerate(to.offsets))
        elif isinstance(to, datetime):
            if to.tzinfo is None:
                raise InvalidSetting("to: a time needs a time zone, for example datetime.now(UTC)")
            wanted = dict(enumerate(self._port.call(OffsetsAtTimeCall(stream.name, to_us(to))).offsets))
        elif to in ("earliest", "latest"):
            wanted = dict(enumerate(stream.starts if to == "earliest" else stream.ends))
        else:
            raise InvalidSetting(f'to must be "earliest", "latest", a datetime, a Cursor or offsets, not {to!r}')
        for shard, offset in wanted.items():
            if not 0 <= shard < stream.shards or not stream.starts[shard] <= offset <= stream.ends[shard]:
                raise InvalidCursor(
                    f"offset {offset} of shard {shard} of {stream.name!r}: there is "
                    + (
                        f"{stream.starts[shard]} to {stream.ends[shard]}"
                        if 0 <= shard < stream.shards
                        else f"no such shard (0 to {stream.shards - 1})"
                    )
                )
        return wanted
