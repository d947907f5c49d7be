"""Groups of readers, for whoever looks after them: where they stand, how far behind, and setting them elsewhere."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from mainstem.consume.places import Start, check_places, no_place, offsets_at
from mainstem.core.cursor import Cursor, Cursors
from mainstem.core.durations import microseconds
from mainstem.core.errors import GroupBusy, InvalidCursor, InvalidSetting
from mainstem.core.names import check_group_name
from mainstem.transport.port import GetStreamCall, Port, StreamInfo
from mainstem.transport.sharing import (
    DeleteGroupCall,
    GetGroupCall,
    GroupInfo,
    GroupShard,
    HoldGroupCall,
    ListGroupsCall,
    ResetGroupCall,
)

_Places = Mapping[tuple[str, int], int]
# Where a group is to go on: "earliest", "latest", a time, cursors, or offsets by stream and shard.
To = Start | Cursors | _Places
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
    """Lists, shows, resets, holds and deletes groups. Any thread."""

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

        `to` is "earliest", "latest", an aware datetime, the cursor of a consumer, of one of its streams or of several,
        or offsets by stream and shard, as a member's `positions`. InvalidCursor if that is no place in a stream as it
        is now: one that was created again, or whose log was restored from before it. `streams`: only these of its
        streams. The group must have no members: GroupBusy if it has.
        """
        if type(dry_run) is not bool:
            raise InvalidSetting(f"dry_run must be True or False, not {dry_run!r}")
        _check_to(to)
        info = self.get(name)
        if info.member_count and not dry_run:
            # Also if they have only just joined, and the group reads nothing yet that could be set.
            raise GroupBusy(f"group {name!r} has members; stop them first")
        standing = {(shard.stream, shard.shard): shard.offset for shard in info.shards}
        changes: list[ShardReset] = []
        places: list[tuple[int, int, int]] = []
        for stream, where in self._streams_of(info, Cursors((to,)) if isinstance(to, Cursor) else to, streams):
            for shard, offset in self._offsets(stream, where).items():
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

    def hold(self, name: str, longer: str | timedelta | None) -> GroupInfo:
        """Keep what the group has not read up to so much longer than retention says ("7d"); None: no longer.

        A record that is too old by retention goes when the group has read it, or when it is by that much older than
        that; one of those that make a stream too large (`retention_bytes`) at the latest when it is older than that.
        On a full disk nothing is kept for a group. InvalidRequest if it is more than 30 days.
        """
        hold_us = 0 if longer is None else microseconds(longer)
        if hold_us < 0 or (longer is not None and not hold_us):
            raise InvalidSetting(f"a group keeps records for a while, such as '7d', or None for no longer: {longer!r}")
        self._port.call(HoldGroupCall(check_group_name(name), hold_us))
        return self.get(name)

    def _streams_of(
        self, info: GroupInfo, to: To, streams: Sequence[str] | None
    ) -> Sequence[tuple[StreamInfo, Start | _Places]]:
        """The streams that are meant, each with where to go in it."""
        if isinstance(streams, str):
            streams = (streams,)
        if streams is None:
            streams = tuple(dict.fromkeys(name for name, _ in to)) if isinstance(to, Mapping) else info.streams
        unknown = [name for name in streams if name not in info.streams]
        if unknown:
            raise InvalidSetting(
                f"group {info.name!r} does not read {unknown[0]!r}; it reads {', '.join(info.streams) or 'nothing yet'}"
            )
        found = [self._port.call(GetStreamCall(name)).streams[0] for name in streams]
        if not isinstance(to, Cursors):
            return [(stream, to) for stream in found]
        strange = {part.stream for part in to.parts} - {stream.uuid for stream in found}
        if strange:
            raise InvalidCursor(
                f"the cursor is of none of these streams: {', '.join(streams)} (one that was deleted and created again "
                "is another)"
            )
        return [(stream, part) for stream in found if (part := to.of(stream.uuid)) is not None]

    def _offsets(self, stream: StreamInfo, to: Start | _Places) -> dict[int, int]:
        """By shard, up to the end of what is there. What was trimmed is told to whoever reads from there."""
        if not isinstance(to, Mapping):
            return dict(enumerate(offsets_at(self._port, to, stream, "to")))
        wanted = {shard: offset for (name, shard), offset in to.items() if name == stream.name}
        for shard, offset in wanted.items():
            if not 0 <= shard < stream.shards or not 0 <= offset <= stream.ends[shard]:
                there = f"no such shard (0 to {stream.shards - 1})"
                if 0 <= shard < stream.shards:
                    there = f"{stream.starts[shard]} to {stream.ends[shard]}"
                raise InvalidCursor(f"offset {offset} of shard {shard} of {stream.name!r}: there is {there}")
        return wanted


def _check_to(to: object) -> None:
    if isinstance(to, Mapping):
        check_places(to)
    elif not isinstance(to, Cursor | Cursors | datetime) and to not in ("earliest", "latest"):
        raise no_place(to, "to", 'a datetime, a cursor, or offsets such as {("orders", 0): 5}')
