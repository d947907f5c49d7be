"""The reconciliation: what was sent, beside what is there, window by window and tier by tier. Pure: counts in, findings
out.

A tier is a place where the records of a stream should be: the acknowledgements of their producers, the log as it is
read, a table. A window counts once it is settled: its end is long enough ago that whoever had something to say about it
has.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from mainstem.core.checksum import crc32c
from mainstem.core.errors import InvalidSetting
from mainstem.core.kinds import render_duration
from mainstem.core.windows import Tally, start_of
from mainstem.hub.counted import SentCount
from mainstem.spark.jobs.manifest import TierCount

ACKNOWLEDGED = "acknowledged"
READ = "read"


@dataclass(frozen=True, slots=True)
class Line:
    """One window in one tier."""

    stream: str
    start_us: int
    tier: str
    expected: int
    seen: int

    @property
    def difference(self) -> int:
        return self.seen - self.expected

    @property
    def verdict(self) -> Literal["ok", "missing", "extra"]:
        if self.seen == self.expected:
            return "ok"
        return "missing" if self.seen < self.expected else "extra"

    def __str__(self) -> str:
        return f"{self.stream} {self.tier}: {self.seen:,} of {self.expected:,} ({self.difference:+,})"


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What came of it. Every settled window has a line in each tier; `verified_through_us` is where the first window
    begins that differs, or the end of the last one."""

    stream: str
    window_us: int
    lines: tuple[Line, ...]
    verified_through_us: int

    @property
    def differing(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.difference)

    @property
    def windows(self) -> int:
        return len({line.start_us for line in self.lines})

    @property
    def windows_differing(self) -> int:
        return len({line.start_us for line in self.differing})


@dataclass(frozen=True, slots=True)
class Sent:
    """What producers counted: all they sent, what of it they wanted to have acknowledged, and what was."""

    sent: Tally
    asked: Tally
    acknowledged: Tally


def window_of(counts: Iterable[SentCount], window_us: int | None) -> int:
    """The length of the windows to compare: the longest that a producer counts in, unless one is given. InvalidSetting
    if those of another do not fit into it."""
    found = {count.window_us: count.source for count in counts}
    chosen = window_us or max(found, default=60_000_000)
    for length, source in sorted(found.items()):
        if chosen % length:
            raise InvalidSetting(
                f"{source} counts in windows of {render_duration(length / 1_000_000)}, which do not fit into those of "
                f"{render_duration(chosen / 1_000_000)}; choose a window that is a multiple of both"
            )
    return chosen


def summed(counts: Iterable[SentCount], window_us: int) -> Sent:
    """The counts of all producers, in windows of this length."""
    found = Sent({}, {}, {})
    for count in counts:
        start = start_of(count.start_us, window_us)
        found.sent[start] = found.sent.get(start, 0) + count.sent
        if count.acknowledged is not None:
            found.asked[start] = found.asked.get(start, 0) + count.sent
            found.acknowledged[start] = found.acknowledged.get(start, 0) + count.acknowledged
    return found


def reconcile(
    stream: str, sent: Sent, tiers: Mapping[str, Tally], *, window_us: int, first_us: int, settled_us: int
) -> Reconciliation:
    """Compare the windows from `first_us` on that end by `settled_us`; both are where windows begin."""
    assert first_us % window_us == settled_us % window_us == 0
    compared = {ACKNOWLEDGED: (sent.asked, sent.acknowledged)}
    compared |= {tier: (sent.sent, seen) for tier, seen in tiers.items()}
    starts = {start for both in compared.values() for tally in both for start in tally}
    lines = tuple(
        Line(stream, start, tier, expected.get(start, 0), seen.get(start, 0))
        for start in sorted(starts)
        if first_us <= start < settled_us
        for tier, (expected, seen) in compared.items()
    )
    through = next((line.start_us for line in lines if line.difference), settled_us)
    return Reconciliation(stream, window_us, lines, max(through, first_us))


def tier_counts(found: Reconciliation, versions: Mapping[str, int]) -> tuple[TierCount, ...]:
    """The findings of each tier in few numbers, for a manifest. `versions` has those of tables."""
    by_tier: dict[str, list[Line]] = {}
    for line in found.lines:
        by_tier.setdefault(line.tier, []).append(line)
    return tuple(
        TierCount(
            tier,
            sum(line.expected for line in lines),
            sum(line.seen for line in lines),
            sum(line.difference != 0 for line in lines),
            crc32c("\n".join(f"{line.start_us} {line.seen}" for line in lines).encode()),
            versions.get(tier, -1),
        )
        for tier, lines in by_tier.items()
    )
