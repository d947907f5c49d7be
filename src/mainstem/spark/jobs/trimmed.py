"""What was trimmed from a stream, as far as what is left tells: the times of trimmed records are written nowhere.

The first entry that is left of a shard knows the highest time of all records up to it; where none is left, the shard
knows its own. So of what was trimmed nothing is later than that. Moments say what was written before a time.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from mainstem.spark.slices import runs_of
from mainstem.transport.port import MomentCall, Port, RunsCall, StreamInfo

# No record is from before.
BEGINNING_US: Final = -(1 << 60)


class Left(NamedTuple):
    """Of a shard: no record that was trimmed is later than `latest_us`. The first entry that is left ends at `end`,
    which is where the shard starts if nothing is."""

    latest_us: int
    end: int


def left_of(port: Port, info: StreamInfo, shard: int) -> Left:
    """What is left of a shard. DataLoss if it was trimmed since it was looked up."""
    start, end = info.starts[shard], info.ends[shard]
    if not start:
        return Left(BEGINNING_US, start)
    left = next(runs_of(port, RunsCall(info.name, shard, start, end, run_bytes=1)), None)
    if left is not None:
        return Left(left[0].time_high_us, left[0].end)
    told = port.call(RunsCall(info.name, shard, end, end)).runs
    return Left(told[0].time_high_us if told else BEGINNING_US, start)


def trimmed_since(port: Port, info: StreamInfo, found: Sequence[int], time_us: int) -> list[int | None]:
    """By shard, from where on trimmed records may be of a time or later, whose first record that is left is `found`;
    None where none can be. A shard whose first record that is left is older reaches back to that time: what was trimmed
    before it, but for late records, is older still."""
    suspect: list[int] = []
    # Shards that came since the stream was looked up have lost nothing of what there was.
    for shard, (start, at) in enumerate(zip(info.starts, found, strict=False)):
        if start:
            left = left_of(port, info, shard)
            # All that is left of the first entry is older: the time that it knows is of what was trimmed.
            if left.latest_us >= time_us and (at <= start or at >= left.end):
                suspect.append(shard)
    # What was written before that time has no later one, unless its writer's clock was ahead.
    stood = port.call(MomentCall(info.name, time_us)).offsets if suspect and time_us >= 0 else ()
    firsts: list[int | None] = [None] * info.shards
    for shard in suspect:
        first = stood[shard] if shard < len(stood) else 0
        firsts[shard] = first if first < info.starts[shard] else None
    return firsts
