"""One flush being applied: the rows that it changes, in front of those that the last one left.

What the rules share is here: to find a row as the items before have left it, and to count the bytes of blocks.
"""

from collections.abc import Sequence
from typing import Final

from mainstem.core.errors import Refused, StreamDeleted, UnknownStream
from mainstem.log.flush import Flush, WrittenBatch
from mainstem.log.ledger.base import (
    AppliedPlace,
    BlockRow,
    Changes,
    GroupRow,
    GroupShardKey,
    GroupShardRow,
    ShardKey,
    ShardRow,
    SharedChanges,
    StreamRow,
)
from mainstem.log.ledger.current import CurrentRows

# A record may be from the future, by what its writer says. For retention, and for readers that start at a time, it is
# so much ahead at most: times never fall along a shard, and one of the year 2999 would keep all that come after it.
TIME_AHEAD_US_MAX: Final = 3_600_000_000


class PendingRows:
    """Reads through to the current rows, gathers changes. Nothing of it is stored before `finish`."""

    __slots__ = ("_rearranged", "changes", "current", "flush", "live", "names", "time_max_us")

    def __init__(self, current: CurrentRows, flush: Flush) -> None:
        self.current = current
        self.flush = flush
        # The latest time that a record of this flush can have for the ledger.
        self.time_max_us = flush.time_us + TIME_AHEAD_US_MAX
        self.changes = Changes(AppliedPlace(flush.number, flush.block, flush.commit_position))
        # Names that this flush gave to a stream, or took away.
        self.names: dict[str, int | None] = {}
        # By how much the live bytes of blocks change.
        self.live: dict[int, int] = {}
        # Offsets whose rows in the ledger are not what they will be after this flush: (first, stop) for each shard.
        self._rearranged: dict[ShardKey, list[tuple[int, int]]] = {}

    def finish(self) -> Changes:
        """All changes, with those of the blocks' bytes."""
        blocks = self.changes.blocks
        for block, delta in self.live.items():
            row = self.block(block)
            blocks[block] = row._replace(live_bytes=row.live_bytes + delta)
        for block, row in blocks.items():
            # What was staged in a block in which all else is dead brings it back to life when it is committed.
            if row.state == "sealed" and bool(row.live_bytes) == bool(row.dead_us):
                blocks[block] = row._replace(dead_us=0 if row.live_bytes else self.flush.time_us)
        return self.changes

    def open_stream(self, stream: int) -> StreamRow:
        """A stream that may be changed: it exists and was not deleted."""
        row = self.changes.streams.get(stream) or self.current.stream(stream)
        if row is None:
            raise UnknownStream(f"no stream has id {stream}; look it up by name again")
        if row.deleted_us:
            raise StreamDeleted(f"stream {row.name!r} was deleted")
        return row

    def named(self, name: str) -> int | None:
        if name in self.names:
            return self.names[name]
        row = self.current.stream_named(name)
        return None if row is None else row.id

    def shard(self, key: ShardKey) -> ShardRow:
        return self.changes.shards.get(key) or self.current.shard(key)

    def block(self, block: int) -> BlockRow:
        row = self.changes.blocks.get(block) or self.current.block(block)
        assert row is not None, f"block {block} was never opened"
        return row

    @property
    def shared(self) -> SharedChanges:
        """What is changed of groups and transactions."""
        if self.changes.shared is None:
            self.changes.shared = SharedChanges()
        return self.changes.shared

    def group(self, name: str) -> GroupRow | None:
        """The group of this name, as the items before have left it."""
        row = next((row for row in self.shared.groups.values() if row.name == name), None)
        if row is None:
            row = self.current.group_named(name)
        return None if row is None or row.id in self.shared.deleted_groups else row

    def group_shard(self, key: GroupShardKey) -> GroupShardRow | None:
        found = self.shared.group_shards.get(key)
        if found is None and key[1] not in self.shared.ungrouped_streams:
            found = self.current.group_shard(key)
        return found

    def group_shards(self, group: int) -> dict[ShardKey, GroupShardRow]:
        """Every shard of a group."""
        gone = self.shared.ungrouped_streams
        found = {key: row for key, row in self.current.ledger.list_group_shards(group) if key[0] not in gone}
        changed = self.shared.group_shards.items()
        return found | {(stream, shard): row for (of, stream, shard), row in changed if of == group}

    def rearrange(self, key: ShardKey, first: int, stop: int) -> None:
        """The entries of these offsets change, which they can do once in a flush."""
        changed = self._rearranged.setdefault(key, [])
        if any(first < other_stop and other_first < stop for other_first, other_stop in changed):
            raise Refused("these rows change already in this flush; try again")
        changed.append((first, stop))

    def bury(self, stream: int, block: int, size: int, rewrite_us: int) -> None:
        """Nothing points to these bytes any more."""
        if not size:
            return
        self.live[block] = self.live.get(block, 0) - size
        dead = self.changes.dead
        dead[stream, block] = dead.get((stream, block), 0) + size
        if rewrite_us:
            self.hurry_block(block, rewrite_us)

    def revive(self, stream: int, block: int, size: int) -> None:
        """An entry points to these bytes, which were wasted before."""
        self.live[block] = self.live.get(block, 0) + size
        dead = self.changes.dead
        left = dead.pop((stream, block), 0) - size
        if left:
            dead[stream, block] = left

    def waste(self, frames: Sequence[WrittenBatch]) -> None:
        """These are in the block, and nothing will ever point to them."""
        dead = self.changes.dead
        for frame in frames:
            grave = (frame.header.stream, self.flush.block)
            dead[grave] = dead.get(grave, 0) + frame.length

    def hurry_block(self, block: int, rewrite_us: int) -> None:
        """What is dead in the block should be off the disk by then."""
        row = self.block(block)
        if not row.rewrite_us or rewrite_us < row.rewrite_us:
            self.changes.blocks[block] = row._replace(rewrite_us=rewrite_us)
