"""Readers who do not want everything: one row in a hundred, two columns of twenty, one id of ten million."""

from __future__ import annotations

import functools
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import check, run_child
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

if TYPE_CHECKING:
    import pyarrow as pa

    from mainstem import Hub

ROWS = 10_000_000
WIDE_ROWS = 2_000_000
TABLE_ROWS = 20_000
WIDE_COLUMNS = 20
LOOKUPS = 20
IDS, WIDE = "ids", "wide"


def run_ordered(settings: Settings) -> Metrics:
    count = settings.count(ROWS)
    return _compare(settings, stream=IDS, where=f"number >= {count // 2} AND number < {count // 2 + count // 100}")


def run_scattered(settings: Settings) -> Metrics:
    return _compare(settings, stream=IDS, where="percent = 7")


def run_columns(settings: Settings) -> Metrics:
    return _compare(settings, stream=WIDE, columns=["c3", "c4"])


def run_find(settings: Settings) -> Metrics:
    count = settings.count(ROWS)
    with product.Server(_folder(settings.data, count, settings.count(WIDE_ROWS))) as server:
        return _numbers(run_child("benchmarks.scenarios.rows:look_up", url=server.url, count=count))


def _compare(settings: Settings, **asked: Any) -> Metrics:
    """The same question answered next to the data, and by a reader who gets everything."""
    with product.Server(_folder(settings.data, settings.count(ROWS), settings.count(WIDE_ROWS))) as server:
        return _numbers(run_child("benchmarks.scenarios.rows:compare", url=server.url, **asked))


def _numbers(found: dict[str, Any]) -> Metrics:
    return {name: float(value) for name, value in found.items() if name != "event"}


def compare(
    talk: Talk, url: str, stream: str, where: str | None = None, columns: list[str] | None = None
) -> dict[str, float]:
    import mainstem

    with mainstem.connect(url) as hub:
        # Both once before: files are in memory, modules are loaded.
        for _ in range(2):
            settle()
            near, near_s, opened = _read(hub, stream, where, columns)
            far, far_s = _read_all(hub, stream, where, columns)
    check(near == far, f"{near} was found next to the data, {far} by who got everything")
    return {"near_s": near_s, "far_s": far_s, "times_sooner": far_s / near_s, "opened": opened}


def _read(hub: Hub, stream: str, where: str | None, columns: list[str] | None) -> tuple[tuple[int, int], float, float]:
    began = time.perf_counter()
    with hub.consumer(stream, start="earliest", follow=False, where=where, columns=columns) as consumer:
        found = [batch.to_arrow() for batch in consumer.batches()]
        opened = consumer.opened
    return _account(found, columns), time.perf_counter() - began, opened


def _read_all(hub: Hub, stream: str, where: str | None, columns: list[str] | None) -> tuple[tuple[int, int], float]:
    from mainstem.core.predicate import Predicate

    began = time.perf_counter()
    found = []
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        predicate = None if where is None else Predicate.parse(where).bind(consumer.columns)
        for batch in consumer.batches():
            table = batch.to_arrow()
            found.append(table if predicate is None else table.filter(predicate.mask(table)))
    return _account(found, columns), time.perf_counter() - began


def _account(found: list[pa.RecordBatch], columns: list[str] | None) -> tuple[int, int]:
    """How many rows, and the sum of one column, so that something is done with them."""
    name = columns[0] if columns else "number"
    return sum(table.num_rows for table in found), sum(int(np.sum(table.column(name).to_numpy())) for table in found)


def look_up(talk: Talk, url: str, count: int) -> dict[str, float]:
    import mainstem

    present, absent, opened = [], [], []
    with mainstem.connect(url) as hub:
        wanted = [str(uuid.UUID(bytes=bytes(_id_bytes(n, 1)[0]))) for n in range(7, count, count // LOOKUPS)][:LOOKUPS]
        hub.find(IDS, f"id = '{wanted[0]}'")
        for n, id_ in enumerate(wanted):
            found = hub.find(IDS, f"id = '{id_}'")
            check(len(found) == 1, f"{len(found)} rows have id {id_}")
            present.append(found.seconds * 1e3)
            opened.append(100 * found.opened / (found.opened + found.skipped))
            none = hub.find(IDS, f"id = '{uuid.UUID(int=n)}'")
            check(len(none) == 0, "an id that nobody has was found")
            absent.append(none.seconds * 1e3)
    return {
        "find_ms": statistics.median(present),
        "absent_ms": statistics.median(absent),
        "slowest_ms": max(*present, *absent),
        "opened_percent": statistics.mean(opened),
    }


@functools.cache
def _folder(data: Path, count: int, wide: int) -> Path:
    """Built once an invocation, because it takes long and is only read; removed when the interpreter ends."""
    folder = tempfile.TemporaryDirectory(prefix="bench-rows-", dir=data, ignore_cleanup_errors=True)
    _KEPT.append(folder)
    with product.Server(Path(folder.name)) as server:
        run_child("benchmarks.scenarios.rows:build", timeout_s=1_800, url=server.url, count=count, wide=wide)
    return Path(folder.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def build(talk: Talk, url: str, count: int, wide: int) -> None:
    import pyarrow as pa

    import mainstem

    fields = [("id", pa.string()), ("number", pa.int64()), ("percent", pa.int32()), ("amount", pa.float64())]
    schema = pa.schema(fields)
    with mainstem.connect(url) as hub, hub.producer() as producer:
        hub.streams.create(IDS, schema=schema, key="id", retention="300000d")
        random = np.random.default_rng(3)
        for first in range(0, count, TABLE_ROWS):
            rows = min(TABLE_ROWS, count - first)
            columns = {
                "id": _ids(first, rows),
                "number": np.arange(first, first + rows),
                "percent": random.integers(0, 100, rows, dtype=np.int32),
                "amount": random.random(rows),
            }
            producer.send_batch(IDS, pa.table(columns, schema=schema))
        kinds = [pa.int64() if n % 2 else pa.string() for n in range(WIDE_COLUMNS)]
        schema = pa.schema([(f"c{n}", kind) for n, kind in enumerate(kinds)])
        hub.streams.create(WIDE, schema=schema, retention="300000d")
        for first in range(0, wide, TABLE_ROWS):
            rows = min(TABLE_ROWS, wide - first)
            numbers = random.integers(0, 5_000, rows)
            texts = np.array([f"customer-{n:08}" for n in range(5_000)])[numbers]
            producer.send_batch(
                WIDE, pa.table([pa.array(numbers if n % 2 else texts) for n in range(WIDE_COLUMNS)], schema=schema)
            )
        producer.flush()


def _id_bytes(first: int, count: int) -> np.ndarray:
    """Ids that look random and can be made again: 16 bytes for each number."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    mixed = []
    for salt in (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93):
        value = (numbers + np.uint64(1)) * np.uint64(salt)
        value ^= value >> np.uint64(29)
        value *= np.uint64(0xBF58476D1CE4E5B9)
        mixed.append(value ^ (value >> np.uint64(32)))
    return np.stack(mixed, axis=1).view(np.uint8)


def _ids(first: int, count: int) -> pa.Array:
    """The same as text, as a UUID is written."""
    import pyarrow as pa

    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    found = _id_bytes(first, count)
    text = np.full((count, 36), ord("-"), np.uint8)
    places = [at for at in range(36) if at not in (8, 13, 18, 23)]
    text[:, places[0::2]] = digits[found >> 4]
    text[:, places[1::2]] = digits[found & 15]
    offsets = pa.py_buffer(np.arange(0, 36 * (count + 1), 36, dtype=np.int32))
    return pa.Array.from_buffers(pa.string(), count, [None, offsets, pa.py_buffer(text.tobytes())])


SCENARIO = Scenario(
    name="rows",
    title="Rows and columns found next to the data, against reading everything",
    cases=(
        ours("1 % of the rows, in order", run_ordered, f"of {ROWS:,}; the column follows time"),
        ours("1 % of the rows, scattered", run_scattered, f"of {ROWS:,}; every batch has some"),
        ours("2 of 20 columns", run_columns, f"of {WIDE_ROWS:,} rows"),
        ours("find an id", run_find, f"among {ROWS:,} random UUIDs; median of {LOOKUPS}, after one to warm up"),
    ),
    shown=("times_sooner", "near_s", "far_s", "find_ms", "absent_ms", "slowest_ms", "opened_percent"),
    targets=(
        Target("1 % of the rows, in order", "times_sooner", 10),
        Target("1 % of the rows, scattered", "times_sooner", 2),
        Target("2 of 20 columns", "times_sooner", 4),
        Target("find an id", "find_ms", 100, at_most=True),
        Target("find an id", "absent_ms", 100, at_most=True),
        Target("find an id", "opened_percent", 1, at_most=True),
    ),
)
