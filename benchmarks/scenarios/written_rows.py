"""What rows cost their writers: checking them against a schema, knowing them unread, and reading them from JSON."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import check, run_child, scratch
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 10_000
TABLE_COUNT = 400
POOL_COUNT = 20
# Both servers get so many tables in turn, so that what disturbs one disturbs the other.
TURN_COUNT = 20
JSON_ROWS = 1_000_000
STREAM = "orders"
# How a server is started that leaves out what is to be measured.
UNCHECKED = """
import mainstem.produce.gateway as gateway
gateway.check_row_batch = lambda *given: None
gateway.converter_of = lambda schema: type("Trusting", (), {"verify": lambda self, batch: None})()
"""
UNDESCRIBED = """
import mainstem.produce.gateway as gateway
gateway.is_worth_statistics = lambda header: False
"""


def run_checks(settings: Settings) -> Metrics:
    return _share(settings, UNCHECKED, key=None)


def run_statistics(settings: Settings) -> Metrics:
    return _share(settings, UNDESCRIBED, key=None)


def run_keyed_statistics(settings: Settings) -> Metrics:
    return _share(settings, UNDESCRIBED, key="id")


def _share(settings: Settings, left_out: str, key: str | None) -> Metrics:
    """The rate of a server as it is, as a share of that of one that leaves something out."""
    count = settings.count(TABLE_COUNT)
    with ExitStack() as stack:
        urls = []
        for name, change in (("as it is", ""), ("without", left_out)):
            folder = stack.enter_context(scratch(settings.data, f"rows-{name.replace(' ', '-')}"))
            urls.append(stack.enter_context(product.Server(folder, change)).url)
        took = run_child("benchmarks.scenarios.written_rows:produce", urls=urls, count=count, key=key)
    return {name: float(value) for name, value in took.items() if name != "event"}


def produce(talk: Talk, urls: list[str], count: int, key: str | None) -> dict[str, float]:
    import mainstem

    tables = list(islice(cycle(_pool()), TURN_COUNT))
    seconds = [0.0, 0.0]
    with ExitStack() as stack:
        hubs = [stack.enter_context(mainstem.connect(url)) for url in urls]
        producers = [stack.enter_context(hub.producer()) for hub in hubs]
        for hub in hubs:
            hub.streams.create(STREAM, schema=tables[0].schema, key=key, shards=4 if key else 1)
        settle()
        for turn in range(1 + count // TURN_COUNT):
            for place in (0, 1) if turn % 2 else (1, 0):
                began = time.perf_counter()
                for table in tables:
                    producers[place].send_batch(STREAM, table)
                producers[place].flush()
                # The first turn is for everybody to get warm.
                seconds[place] += time.perf_counter() - began if turn else 0.0
        sent = (1 + count // TURN_COUNT) * TURN_COUNT * ROWS
        for hub in hubs:
            records = hub.streams.get(STREAM).records
            check(records == sent, f"{records:,} rows are there, {sent:,} were sent")
    timed = count // TURN_COUNT * TURN_COUNT
    return {
        "share_of_idle": seconds[1] / seconds[0],
        "rows_per_s": timed * ROWS / seconds[0],
        "mb_per_s": timed * tables[0].nbytes / 1e6 / seconds[0],
    }


def run_json(settings: Settings) -> Metrics:
    took = run_child("benchmarks.scenarios.written_rows:read_json", count=settings.count(JSON_ROWS))
    return {"rows_per_s": float(took["rows_per_s"])}


def read_json(talk: Talk, count: int) -> dict[str, float]:
    """Batches of JSON values, as a reader of a stream with a schema gets them, to columns. One thread."""
    import pyarrow as pa

    from mainstem.registry.forms import as_schema
    from mainstem.registry.rows import converter_of

    table = _pool()[0]
    texts = [json.dumps(row, default=str).encode() for row in table.to_pylist()]
    values = pa.array(texts, pa.binary())
    converter = converter_of(as_schema(table.schema))
    found, bad = converter.from_json(values)
    check(not bad and pa.Table.from_batches([found]).equals(table), "JSON became other rows")
    settle()
    began = time.perf_counter()
    for _ in range(count // ROWS):
        converter.from_json(values)
    return {"rows_per_s": count / (time.perf_counter() - began)}


def _pool() -> list[pa.Table]:
    """Tables of orders, about 100 bytes a row."""
    import pyarrow as pa

    random = np.random.default_rng(11)
    schema = pa.schema(
        [("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("amount", pa.float64()), ("note", pa.string())]
    )
    tables = []
    for number in range(POOL_COUNT):
        ids: Any = np.arange(number * ROWS, (number + 1) * ROWS)
        notes = [
            f"{word:016x} left with the neighbour, who signed for it" for word in random.integers(1 << 60, size=ROWS)
        ]
        at = pa.array(1_700_000_000_000_000 + ids, pa.timestamp("us", "UTC"))
        tables.append(pa.table([ids, at, np.round(random.random(ROWS) * 100, 2), notes], schema=schema))
    return tables


SCENARIO = Scenario(
    name="written_rows",
    title="What rows cost their writers",
    cases=(
        ours("schema checks", run_checks, "tables of 10,000 rows and 4 columns, against a server that does not look"),
        ours("statistics", run_statistics, "the same, against a server that makes none"),
        ours("statistics, keyed", run_keyed_statistics, "the same with a key over 4 shards"),
        ours("JSON to columns", run_json, "rows of 4 columns, one thread"),
    ),
    shown=("share_of_idle", "rows_per_s", "mb_per_s"),
    targets=(
        Target("schema checks", "share_of_idle", 0.9),
        Target("statistics", "share_of_idle", 0.95),
        Target("statistics, keyed", "share_of_idle", 0.95),
        Target("JSON to columns", "rows_per_s", 1_000_000),
    ),
)
