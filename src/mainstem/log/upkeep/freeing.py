"""Freeing: what is alive in blocks that are mostly dead moves elsewhere, and files in which nothing is alive go."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from mainstem.core.errors import DataLoss, Refused, StreamDeleted, UnknownStream
from mainstem.core.events import Event
from mainstem.core.limits import KIB, MIB
from mainstem.log.blocks.base import BlockMissing, BlockStore
from mainstem.log.flush import ForgetBlock
from mainstem.log.frame import is_cold
from mainstem.log.ledger.base import BlockRow, Entry, StreamRow
from mainstem.log.replacement import barriers_in, moved, remade
from mainstem.log.snapshots import Snapshots
from mainstem.log.upkeep.pace import NEVER_US
from mainstem.log.upkeep.work import Work, one_step

logger = logging.getLogger("mainstem.log")

# A block that grows is ended early if most of it is dead and it has so many bytes, fewer on a full disk.
_ROLLED_BYTES: Final = 16 * MIB
_ROLLED_BYTES_URGENT: Final = 256 * KIB
# Blocks whose entries are looked up in one go, and how many entries of them are in memory at a time.
_REWRITTEN_AT_ONCE: Final = 16
_PAGE_ROWS: Final = 4_096


class Freeing:
    """Gives space back. One thread; any may say that it is `due`."""

    def __init__(self, work: Work, blocks: BlockStore, snapshots: Snapshots) -> None:
        self._work = work
        self._blocks = blocks
        self._snapshots = snapshots
        # When the blocks are looked at next.
        self.due = 0.0
        # Blocks that cannot be rewritten because they are damaged.
        self._stuck: set[int] = set()

    def keep_blocks(self) -> Iterator[None]:
        now_us = self._work.clock.now_us()
        rows = self._work.ledger.list_blocks()
        # On a full disk nobody is waited for: who finds a file gone looks the entry up again.
        is_urgent = self._work.commits.is_disk_full()
        dead = [row for row in rows if row.dead_us and (is_urgent or self._work.pace.is_freeable(row, now_us))]
        if dead:
            yield from self._free(dead)
        if any(row.state == "open" and self._is_to_roll(row, now_us, is_urgent=is_urgent) for row in rows):
            self._work.commits.request_roll()
            self._work.commits.commit_nothing()
            # Sealed, it can be rewritten or freed.
            self.due = 0.0
            yield
        mostly_dead = [row for row in rows if _is_to_rewrite(row, now_us) and row.id not in self._stuck]
        # What is committed to them soon would have to be moved after the rest.
        pinned = self._work.commits.pinned(row.id for row in mostly_dead)
        mostly_dead = [row for row in mostly_dead if row.id not in pinned]
        if len(mostly_dead) > _REWRITTEN_AT_ONCE:
            self.due = 0.0
        if mostly_dead:
            # Those that are overdue first, then those that give back most for least.
            mostly_dead.sort(key=lambda row: (row.rewrite_us or NEVER_US, row.live_bytes))
            yield from self._rewrite({row.id for row in mostly_dead[:_REWRITTEN_AT_ONCE]})

    def _is_to_roll(self, row: BlockRow, now_us: int, *, is_urgent: bool) -> bool:
        """Whether the block that grows should end, because what is dead in it is overdue, or most of it."""
        if row.rewrite_us and row.rewrite_us <= now_us:
            return True
        try:
            size = self._blocks.size(row.id)
        except BlockMissing:
            return False
        return 2 * row.live_bytes < size and size >= (_ROLLED_BYTES_URGENT if is_urgent else _ROLLED_BYTES)

    def _free(self, dead: Sequence[BlockRow]) -> Iterator[None]:
        """Take the files away of blocks in which nothing was alive for a while."""
        dead = self._unpinned(dead)
        needed_from = self._snapshots.needed_from()
        if any(row.id >= needed_from and not is_cold(row.id) for row in dead):
            self._work.commits.request_snapshot()
            self._work.commits.commit_nothing()
        # What a row says is not taken on trust where bytes would be lost for good.
        alive = self._work.ledger.blocks_in_use([row.id for row in dead])
        freed: list[int] = []
        for row in dead:
            if row.id in alive:
                logger.error(
                    Event("a block is said to hold nothing, yet entries point into it; it is kept", block=row.id)
                )
                self._work.counts["upkeep_errors"] += 1
            elif row.id < needed_from or is_cold(row.id):
                # A rebuild reads the journal, of which cold blocks are no part.
                self._blocks.remove(row.id)
                self._work.execute(ForgetBlock(row.id))
                self._work.counts["blocks_freed"] += 1
                self._work.counts["bytes_freed"] += row.bytes
                freed.append(row.bytes)
                yield
        if freed:
            logger.info(Event("blocks freed", blocks=len(freed), bytes=sum(freed)))

    def _unpinned(self, dead: Sequence[BlockRow]) -> Sequence[BlockRow]:
        """Those of them in which nothing is staged that may be committed. What was committed until now has brought its
        block back to life, which is looked at after that."""
        pinned = self._work.commits.pinned(row.id for row in dead)
        now = {row.id: row for row in self._work.ledger.list_blocks()}
        return [row for row in dead if row.id not in pinned and row.id in now and now[row.id].dead_us]

    def _rewrite(self, blocks: set[int]) -> Iterator[None]:
        """Move what is alive in these blocks elsewhere."""
        for stream in self._work.commits.streams():
            if stream.deleted_us:
                continue
            for entries in self._pages_in(stream, sorted(blocks)):
                for _, shard in groupby(entries, lambda entry: entry.shard):
                    for run in _runs(list(shard)):
                        with contextlib.suppress(StreamDeleted, UnknownStream, Refused):
                            self._move(stream, run)
                            yield

    def _pages_in(self, stream: StreamRow, blocks: Sequence[int]) -> Iterator[Sequence[Entry]]:
        """The entries of a stream that point into these blocks, so many at a time: there may be millions of tiny
        ones."""
        after = (-1, 0)
        while entries := self._work.ledger.entries_in(stream.id, blocks, after, _PAGE_ROWS):
            yield entries
            after = (entries[-1].shard, entries[-1].base)

    def _move(self, stream: StreamRow, entries: Sequence[Entry]) -> None:
        try:
            batches = list(self._work.reader.load(stream, entries))
        except DataLoss as loss:
            self._stuck.add(entries[0].block)
            self._work.counts["upkeep_errors"] += 1
            logger.error(Event("a block cannot be freed: what is alive in it cannot be read", error=loss))
            return
        barriers, upshot = self._work.barriers(stream, entries[0].shard), self._work.upshot()
        if any(barriers_in(batch, barriers) for batch in batches):
            # As it is it would be refused, each time. In pieces it may stand there.
            contents = self._work.contents(stream)
            records = (self._work.records(group, contents) for group in self._work.groups(stream, entries))
            self._work.execute(remade(entries, records, upshot))
        else:
            self._work.execute(moved(entries, batches, upshot))
        self._work.counts["bytes_rewritten"] += sum(entry.length for entry in entries)


def _is_to_rewrite(row: BlockRow, now_us: int) -> bool:
    # In a cold block all is alive or nothing is.
    if row.state != "sealed" or not row.live_bytes or is_cold(row.id):
        return False
    return 2 * row.live_bytes < row.bytes or bool(row.rewrite_us and row.rewrite_us <= now_us)


def _runs(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Entries of one shard grouped so that those of a group follow each other and make one step."""
    begin = 0
    for index in range(1, len(entries) + 1):
        is_last = index == len(entries)
        if is_last or entries[index].base != entries[index - 1].end or entries[index].block != entries[begin].block:
            rest = entries[begin:index]
            while rest:
                step = one_step(rest)
                yield step
                rest = rest[len(step) :]
            begin = index
