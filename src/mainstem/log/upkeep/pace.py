"""The pace of upkeep: how soon things happen, and how much of the time is theirs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mainstem.log.ledger.base import BlockRow

# Later than any time.
NEVER_US: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Pace:
    """How soon things happen.

    Every `interval` seconds retention is looked after, and what can be freed. A file goes `free_after` seconds after
    the last entry that pointed to it, for readers that had looked the entry up just before. What nobody can read any
    more is off the disk after `rewrite_after` seconds and these, at the latest: the rest of its block moves elsewhere.
    Work is done for the part `share` of the time.
    """

    interval: float = 30.0
    free_after: float = 600.0
    rewrite_after: float = 86_400.0
    share: float = 0.2

    def rewrite_us(self, now_us: int) -> int:
        return now_us + round(self.rewrite_after * 1_000_000)

    def is_freeable(self, row: BlockRow, now_us: int) -> bool:
        return bool(row.dead_us) and row.dead_us + self.free_after * 1_000_000 <= now_us

    def gone_by_us(self, rows: Sequence[BlockRow], now_us: int) -> int:
        """When what is dead in these blocks is off the disk, if the log stays open; 0 if there are none."""
        if not rows:
            return 0
        latest = max(now_us, *(row.dead_us or row.rewrite_us or self.rewrite_us(now_us) for row in rows))
        # Between being due and being done lie a few rounds: one to rewrite a block, one to free it, two for snapshots.
        return latest + round((self.free_after + 4 * self.interval) * 1_000_000)
