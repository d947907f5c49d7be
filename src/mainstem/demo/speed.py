"""A quick measurement of one log from one process: whether it is about as fast as it should be here.

Not a comparison with anything: `make bench` is that.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import DataLoss

# The clock is looked at once in so many records.
_STRIDE = 1_000


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured. Rates are records per second; one at a time means: send, wait until durable, send the next."""

    record_bytes: int
    records: int
    write_per_second: float
    read_batches_per_second: float
    read_records_per_second: float
    one_at_a_time_p50_ms: float
    one_at_a_time_p99_ms: float


def measure(
    hub: Any, *, seconds: float, record_bytes: int, on_step: Callable[[str], None], clock: Clock = SYSTEM_CLOCK
) -> Speed:
    """Write to a stream of its own for `seconds`, read it twice, and delete it."""
    stream = f"bench-{uuid.uuid4().hex[:12]}"
    hub.streams.create(stream)
    try:
        on_step("one at a time")
        waits = _one_at_a_time(hub, stream, seconds / 4, record_bytes, clock)
        on_step("writing")
        written, write_seconds = _write(hub, stream, seconds, record_bytes, clock)
        total = len(waits) + written
        on_step(f"reading {total:,} records as batches")
        batches_seconds = _read(
            hub, stream, total, clock, lambda consumer: (len(batch.to_arrow()) for batch in consumer.batches())
        )
        on_step(f"reading {total:,} records one by one")
        records_seconds = _read(hub, stream, total, clock, lambda consumer: (1 for _ in consumer))
    finally:
        hub.streams.delete(stream)
    p50, p99 = np.percentile(waits, [50, 99]) * 1_000
    return Speed(
        record_bytes=record_bytes,
        records=total,
        write_per_second=written / write_seconds,
        read_batches_per_second=total / batches_seconds,
        read_records_per_second=total / records_seconds,
        one_at_a_time_p50_ms=float(p50),
        one_at_a_time_p99_ms=float(p99),
    )


def _values(record_bytes: int) -> list[bytes]:
    """Values of which half is random, so that compression has something to do and cannot do everything."""
    noise = np.random.default_rng(1).bytes(_STRIDE * record_bytes)
    half = record_bytes // 2
    return [
        noise[at : at + half] + b"." * (record_bytes - half) for at in range(0, _STRIDE * record_bytes, record_bytes)
    ]


def _one_at_a_time(hub: Any, stream: str, seconds: float, record_bytes: int, clock: Clock) -> list[float]:
    value = _values(record_bytes)[0]
    waits: list[float] = []
    with hub.producer() as producer:
        until = clock.monotonic() + seconds
        while (begun := clock.monotonic()) < until or not waits:
            producer.send(stream, value).result(timeout=30)
            waits.append(clock.monotonic() - begun)
    return waits


def _write(hub: Any, stream: str, seconds: float, record_bytes: int, clock: Clock) -> tuple[int, float]:
    values = _values(record_bytes)
    count = 0
    with hub.producer() as producer:
        send = producer.send
        begun = clock.monotonic()
        while clock.monotonic() - begun < seconds:
            for value in values:
                send(stream, value)
            count += len(values)
        producer.flush()
        return count, clock.monotonic() - begun


def _read(hub: Any, stream: str, total: int, clock: Clock, counts: Callable[[Any], Any]) -> float:
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        begun = clock.monotonic()
        found = sum(counts(consumer))
        elapsed = clock.monotonic() - begun
    if found != total:
        raise DataLoss(f"stream {stream!r}: {total:,} records were acknowledged and {found:,} read back", stream=stream)
    return elapsed
