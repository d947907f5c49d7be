"""Groups of readers: who owns which shard, and how far each was read.

Commits and changes of owners stand in one order, that of the flushes. So whether a member may still commit is decided
here, when its commit is applied, and not by anybody's memory of who is alive.
"""

from datetime import timedelta

from mainstem.core.errors import Fenced, GroupBusy, InvalidCursor, InvalidRequest, UnknownGroup
from mainstem.core.limits import GROUP_HOLD_US_MAX, GROUPS_MAX
from mainstem.log.flush import (
    PRODUCER_ID_MAX,
    Assigned,
    AssignShards,
    CommitCursors,
    DeleteGroup,
    Done,
    GroupCursors,
    HoldGroup,
    Outcome,
    Position,
    ResetGroup,
)
from mainstem.log.ledger.base import GroupRow, GroupShardKey, GroupShardRow, ShardRow, StreamRow
from mainstem.log.ledger.pending import PendingRows

NOBODY = 0


def assign(rows: PendingRows, command: AssignShards) -> Outcome:
    group = rows.group(command.group) or _new(rows, command)
    if command.generation != group.generation + 1:
        raise Fenced(
            f"group {command.group!r} is at generation {group.generation}, the next is not {command.generation}: "
            "another coordinator was at work; begin anew with what the ledger says"
        )
    starts = {(stream, shard): offset for stream, shard, offset in command.starts}
    changed: dict[GroupShardKey, GroupShardRow] = {}
    cursors: list[Position] = []
    for stream, shard, owner in command.assigned:
        if not 0 <= owner <= PRODUCER_ID_MAX:
            raise InvalidRequest(f"{owner} cannot be the id of a member")
        start = starts.get((stream, shard))
        row = _assigned(rows, group.id, (stream, shard), start, owner, command.generation)
        if row is not None:
            changed[group.id, stream, shard] = row
        if owner != NOBODY:
            # Of a stream that was deleted meanwhile the coordinator will hear; until then it wants an answer.
            cursors.append((stream, shard, 0 if row is None else row.offset))
    rows.shared.group_shards.update(changed)
    rows.shared.groups[group.id] = group._replace(generation=command.generation, changed_us=command.time_us)
    return Assigned(command.generation, tuple(cursors))


def _new(rows: PendingRows, command: AssignShards) -> GroupRow:
    if rows.current.group_count + len(rows.shared.groups) >= GROUPS_MAX:
        raise InvalidRequest(f"the log has {GROUPS_MAX} groups, which is the limit; delete some first")
    number = _id_max(rows) + 1
    return GroupRow(number, command.group, 0, command.time_us, command.time_us)


def _assigned(
    rows: PendingRows, group: int, key: tuple[int, int], start: int | None, owner: int, generation: int
) -> GroupShardRow | None:
    """The row of a shard that has this owner now; None if there is nothing to note."""
    stream, shard = key
    found = rows.group_shard((group, stream, shard))
    if found is not None:
        return found if found.owner == owner else found._replace(owner=owner, since=generation)
    known = _stream(rows, stream)
    if owner == NOBODY or known is None or known.deleted_us:
        return None
    _check_shard(known, shard)
    row = rows.shard(key)
    first = row.start if start is None else min(max(start, row.start), row.next)
    return GroupShardRow(first, 0, owner, generation)


def commit(rows: PendingRows, command: CommitCursors) -> Outcome:
    moved = moved_cursors(rows, command, command.time_us)
    rows.shared.group_shards.update(moved)
    return Done(rows=len(moved))


def moved_cursors(
    rows: PendingRows, cursors: CommitCursors | GroupCursors, time_us: int
) -> dict[GroupShardKey, GroupShardRow]:
    """The rows of a group whose member has read so far; an error if it may not say so of one of them."""
    name = cursors.group
    group = _existing(rows, name)
    moved: dict[GroupShardKey, GroupShardRow] = {}
    for stream, shard, offset in cursors.offsets:
        known = rows.open_stream(stream)
        _check_shard(known, shard)
        found = rows.group_shard((group.id, stream, shard)) or GroupShardRow(0, 0, NOBODY, group.generation)
        # Where nobody owns a shard, one who says which generation it knew does not undo a reset that came since.
        since = found.since if cursors.member != NOBODY else group.generation
        is_later = cursors.generation is not None and since > cursors.generation
        if found.owner != cursors.member or is_later:
            whose = "another" if found.owner else "nobody"
            anew = "it was lost, and given to it anew" if cursors.member else "the group was reset, or had members"
            now = f"it belongs to {whose}" if found.owner != cursors.member else anew
            raise Fenced(
                f"shard {shard} of stream {known.name!r} is not this member's any more in group {name!r}: {now}. "
                "Nothing was committed; what was read since the last commit is read again by whoever has the shard next"
            )
        _check_end(known, shard, offset, rows.shard((stream, shard)))
        if offset < found.offset:
            raise InvalidCursor(
                f"shard {shard} of stream {known.name!r}: group {name!r} has committed {found.offset} and does not go "
                f"back to {offset}; stop its members and reset it"
            )
        moved[group.id, stream, shard] = found._replace(offset=offset, committed_us=time_us)
    return moved


def reset(rows: PendingRows, command: ResetGroup) -> Outcome:
    group = _existing(rows, command.group)
    shards = _idle_shards(rows, group)
    generation = group.generation + 1
    changed: dict[GroupShardKey, GroupShardRow] = {}
    for stream, shard, offset in command.offsets:
        known = rows.open_stream(stream)
        _check_shard(known, shard)
        _check_end(known, shard, offset, rows.shard((stream, shard)))
        found = shards.get((stream, shard)) or GroupShardRow(0, 0, NOBODY, generation)
        changed[group.id, stream, shard] = found._replace(offset=offset, committed_us=command.time_us)
    rows.shared.group_shards.update(changed)
    rows.shared.groups[group.id] = group._replace(generation=generation, changed_us=command.time_us)
    return Done(rows=len(changed))


def delete(rows: PendingRows, command: DeleteGroup) -> Outcome:
    group = _existing(rows, command.group)
    _idle_shards(rows, group)
    changes = rows.shared
    changes.group_id_max = _id_max(rows)
    changes.groups.pop(group.id, None)
    changes.group_shards = {key: row for key, row in changes.group_shards.items() if key[0] != group.id}
    changes.deleted_groups.append(group.id)
    return Done()


def hold(rows: PendingRows, command: HoldGroup) -> Outcome:
    group = _existing(rows, command.group)
    if not 0 <= command.hold_us <= GROUP_HOLD_US_MAX:
        raise InvalidRequest(
            f"a group may keep what it has not read up to {timedelta(microseconds=GROUP_HOLD_US_MAX).days} days longer "
            "than retention does; for more, give its streams a longer retention"
        )
    rows.shared.groups[group.id] = group._replace(hold_us=command.hold_us)
    return Done()


def leave_stream(rows: PendingRows, stream: int) -> None:
    """No group has a shard of this stream any more: it was deleted."""
    changes = rows.shared
    changes.group_shards = {key: row for key, row in changes.group_shards.items() if key[1] != stream}
    changes.ungrouped_streams.append(stream)


def _id_max(rows: PendingRows) -> int:
    """The highest number that a group ever had."""
    return max(rows.current.group_id_max, rows.shared.group_id_max, *rows.shared.groups)


def _existing(rows: PendingRows, name: str) -> GroupRow:
    group = rows.group(name)
    if group is None:
        raise UnknownGroup(f"there is no group {name!r}; it comes into being when its first member reads")
    return group


def _idle_shards(rows: PendingRows, group: GroupRow) -> dict[tuple[int, int], GroupShardRow]:
    """The shards of a group, of which nobody owns one."""
    shards = rows.group_shards(group.id)
    owners = {row.owner for row in shards.values() if row.owner != NOBODY}
    if owners:
        raise GroupBusy(f"group {group.name!r} has members ({len(owners)} own shards of it); stop them first")
    return shards


def _stream(rows: PendingRows, stream: int) -> StreamRow | None:
    return rows.changes.streams.get(stream) or rows.current.stream(stream)


def _check_shard(stream: StreamRow, shard: int) -> None:
    if not 0 <= shard < stream.shards:
        raise InvalidRequest(f"stream {stream.name!r} has {stream.shards} shards; there is no shard {shard}")


def _check_end(stream: StreamRow, shard: int, offset: int, row: ShardRow) -> None:
    if not 0 <= offset <= row.next:
        raise InvalidCursor(
            f"shard {shard} of stream {stream.name!r} ends at offset {row.next}; a cursor cannot be at {offset}. If "
            "the log was restored from a backup, begin anew with what it has"
        )
