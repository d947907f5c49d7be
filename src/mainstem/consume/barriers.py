"""Barriers: what a reader of a stream whose number of shards has changed must not get yet.

When a stream gets more shards, most keys belong to another one from then on. The end of each shard at that moment is
its barrier. A reader gets nothing from behind a barrier, of any shard, before it has everything that stands before the
barriers, of all shards: so it sees the records of a key in the order in which they were written.
"""

from collections import deque
from collections.abc import Callable, Sequence

from mainstem.core.batch import FetchedBatch
from mainstem.log.ledger.base import GenerationRow


class Barriers:
    """The changes of a stream's shards that one reader has not passed. One thread; `held` for any."""

    def __init__(self, generations: Sequence[GenerationRow] = ()) -> None:
        self._pending = deque(generations)
        # Shards that wait before the first of these.
        self.held: tuple[int, ...] = ()

    def add(self, generations: Sequence[GenerationRow]) -> None:
        """The stream has changed again."""
        self._pending.extend(generations)

    def holds(self, shard: int, offset: int) -> bool:
        """Whether what stands at this offset has to wait."""
        return bool(self._pending) and offset >= self._stop(shard)

    def allowed(self, shard: int, batches: list[FetchedBatch]) -> list[FetchedBatch]:
        """The first of these batches, which follow each other: those that need not wait. One without records never
        does."""
        if not self._pending:
            return batches
        stop = self._stop(shard)
        for index, batch in enumerate(batches):
            if batch.end > stop and batch.header.count:
                return batches[:index]
        return batches

    def hold(self, shard: int) -> None:
        """The shard has nothing but what must wait. That may also be a batch that begins before the barrier, where only
        offsets without records are."""
        self.held = (*self.held, shard)

    def passed(self, offsets: Sequence[int], is_done: Callable[[int], bool]) -> tuple[int, ...]:
        """Shards that need not wait any longer, now that the reader stands at these offsets. `is_done` says whether it
        wants nothing more of a shard."""
        free: tuple[int, ...] = ()
        while self._pending and all(
            offsets[shard] >= barrier or shard in self.held or is_done(shard)
            for shard, barrier in enumerate(self._pending[0].barriers)
        ):
            self._pending.popleft()
            free, self.held = (*free, *self.held), ()
        return free

    def _stop(self, shard: int) -> int:
        """Where the shard has to wait; one that the change brought, at its beginning."""
        barriers = self._pending[0].barriers
        return barriers[shard] if shard < len(barriers) else 0


def bounded(ends: Sequence[int], generations: Sequence[GenerationRow]) -> list[int]:
    """Ends that were looked up while the stream changed, as if that had been before it: else the records of a key from
    after the change could be read without all from before it."""
    for generation in generations:
        barriers = generation.barriers
        if any(end < barrier for end, barrier in zip(ends, barriers, strict=False)):
            return [min(end, barrier) for end, barrier in zip(ends, barriers, strict=False)] + [0] * (
                len(ends) - len(barriers)
            )
    return list(ends)
