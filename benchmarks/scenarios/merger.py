"""A stream that is written one message at a time, 1,000 a second: what it costs the ledger, and how fast it is read.

The log runs in one process on a simulated clock, and its disk does not wait for the platter: 20 minutes take a few.
Every 2 seconds of that time its upkeep has its turn, as in a server. The same without the merger is the comparison; it
is shorter, because it is slow.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import check, run_child, scratch
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

if TYPE_CHECKING:
    from benchmarks.child import Talk
    from mainstem.log.log import Log

RATE = 1_000
SECONDS = 1_200
UNMERGED_SECONDS = 100
ROUND_SECONDS = 2
SIZE = 100
STREAM = "ticks"


def run(settings: Settings) -> Metrics:
    here = "benchmarks.scenarios.merger"
    with scratch(settings.data, "merged") as merged, scratch(settings.data, "unmerged") as unmerged:
        seconds = settings.count(SECONDS)
        kept = run_child(f"{here}:write", timeout_s=1_800, folder=str(merged), seconds=seconds, merges=True)
        count = UNMERGED_SECONDS if not settings.quick else UNMERGED_SECONDS // 5
        run_child(f"{here}:write", timeout_s=1_800, folder=str(unmerged), seconds=count, merges=False)
        fast = run_child(f"{here}:read", folder=str(merged), count=seconds * RATE)["msg_per_s"]
        slow = run_child(f"{here}:read", folder=str(unmerged), count=count * RATE)["msg_per_s"]
    return {
        "ledger_mb": kept["ledger_bytes"] / 1e6,
        "times_faster": fast / slow,
        "msg_per_s": fast,
        "rows": kept["rows"],
    }


def write(talk: Talk, folder: str, seconds: int, merges: bool) -> dict[str, int]:
    from mainstem.core.identity import new_stream_uuid
    from mainstem.log.flush import CreateStream
    from mainstem.log.log import Log
    from mainstem.testing.clock import SimulatedClock
    from mainstem.testing.disk import UnsyncedDisk

    clock = SimulatedClock()
    log = Log(Path(folder), clock=clock, disk=UnsyncedDisk())
    log.execute(CreateStream(new_stream_uuid(), STREAM, 1, "crc32", 10**15, clock.now_us()))
    for second in range(seconds):
        for _ in range(RATE):
            _append_one(log, clock.now_us())
            clock.advance(1 / RATE)
        if merges and second % ROUND_SECONDS == 0:
            log.upkeep.run_until_idle()
    rows = log.ledger.oldest_entries(1, 0, seconds * RATE, -1).rows
    log.close()
    size = sum((Path(folder) / name).stat().st_size for name in ("ledger.db", "ledger.db-wal"))
    return {"ledger_bytes": size, "rows": rows}


def _append_one(log: Log, now_us: int) -> None:
    """One message, as a producer without a number sends it, in a flush of its own."""
    from mainstem.core import payload
    from mainstem.core.batch import Batch, BatchHeader
    from mainstem.core.checksum import crc32c
    from mainstem.log.log import Waiter

    encoded = payload.encode_few([bytes(SIZE)], None, None)
    assert encoded is not None
    data = encoded.payload
    sizes = (encoded.raw_len, len(data), crc32c(data))
    header = BatchHeader(1, 0, 1, encoded.encoding, encoded.layout, 0, *sizes, 0, 0, 0, 0, now_us, now_us)
    waiter = Waiter()
    log.append((Batch(header, data),), waiter.set)
    waiter.wait(log.batcher)


def read(talk: Talk, folder: str, count: int) -> dict[str, float]:
    import mainstem

    got = 0
    with mainstem.open(folder, read_only=True) as hub:
        start = time.perf_counter()
        with hub.consumer(STREAM, start="earliest", follow=False) as consumer:
            for record in consumer:
                got += len(record.value or b"") == SIZE
        took = time.perf_counter() - start
    check(got == count, f"{got:,} of {count:,} messages came back")
    return {"msg_per_s": got / took}


SCENARIO = Scenario(
    name="merger",
    title="20 minutes of 1,000 messages a second, written one at a time and then read",
    cases=(ours("one at a time", run, f"compared with {UNMERGED_SECONDS} s of the same without the merger"),),
    shown=("ledger_mb", "times_faster", "msg_per_s", "rows"),
    targets=(
        Target("one at a time", "ledger_mb", 7, at_most=True),
        Target("one at a time", "times_faster", 5),
    ),
    rounds_max=1,
)
