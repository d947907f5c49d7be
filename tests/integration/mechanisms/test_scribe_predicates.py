"""One evaluation for all: a filter gives the same answer in the server, in the embedded log and at the client."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import mainstem
from mainstem.core.predicate import BoundPredicate, Predicate
from mainstem.core.predicate import bound as nodes
from mainstem.core.statistics import Range
from mainstem.hub.hub import Hub
from mainstem.testing.server import ServerProcess
from tests.fuzz.predicate_texts import Texts, rows
from tests.integration.mechanisms.rig import changed_servers
from tests.unit.core.predicate.plain_texts import PLAIN_COLUMNS, PlainTexts, select_with_sqlite, without_nan

# S93: the same pairs of a row and an expression through everything that filters.

BATCHES, ROWS = 3, 1_100
EXPRESSIONS = 100
PLAIN_EXPRESSIONS = 20

# For each expression, the offsets of the rows for which it is true.
Answers = list[list[int]]

TAKE_NULL_FOR_FALSE = """
import pyarrow.compute as pc
from mainstem.core.predicate import bound
careful = bound.Compared.evaluate
bound.Compared.evaluate = lambda self, rows: pc.fill_null(careful(self, rows), False)
"""


@dataclass(frozen=True)
class Callers:
    """A stream behind a server, and the ways to its rows. Rows are sorted, so that whole batches can be passed over."""

    remote: Hub
    embedded: Hub

    def by_server(self, texts: list[str]) -> Answers:
        """What a server sends of a stream to who asks it with `where`."""
        found = []
        for text in texts:
            with self.remote.consumer("rows", start="earliest", follow=False, where=text, columns=["_offset"]) as asked:
                found.append([record.offset for record in asked])
        return found

    def by_find(self, texts: list[str]) -> Answers:
        """What is found in the folder by this process, which looks at statistics first."""
        return [[record.offset for record in self.embedded.find("rows", text, columns=["_offset"])] for text in texts]

    def by_client(self, texts: list[str]) -> Answers:
        """What is left at a client who gets everything and filters for himself."""
        with self.remote.consumer("rows", start="earliest", follow=False) as consumer:
            everything = pa.Table.from_batches([batch.to_arrow() for batch in consumer.batches()])
        bound = [Predicate.parse(text).bind(everything.schema) for text in texts]
        return [pc.indices_nonzero(predicate.mask(everything).fill_null(False)).to_pylist() for predicate in bound]


@contextmanager
def callers_of(path: Path, data: pa.RecordBatch) -> Iterator[Callers]:
    with ServerProcess(path) as server, mainstem.connect(server.url) as remote:
        remote.streams.create("rows", schema=data.schema)
        with remote.producer() as producer:
            for first in range(0, data.num_rows, ROWS):
                producer.send_batch("rows", pa.Table.from_batches([data.slice(first, ROWS)])).result(10)
        with mainstem.open(path, read_only=True) as embedded:
            yield Callers(remote, embedded)


def sorted_rows(chance: random.Random) -> pa.RecordBatch:
    (batch,) = pa.Table.from_batches([rows(chance, BATCHES * ROWS)]).sort_by("small").combine_chunks().to_batches()
    return batch


def select_with_duckdb(batch: pa.RecordBatch, texts: list[str]) -> Answers:
    with duckdb.connect() as database:
        database.execute("SET ieee_floating_point_ops = false; SET error_on_division_by_zero = false")
        database.register("arrow", pa.Table.from_batches([batch]))
        database.execute("CREATE TABLE records AS SELECT * FROM arrow")
        found = [database.execute(f"SELECT ({text}) FROM records").fetchall() for text in texts]
    return [[row for row, (answer,) in enumerate(each) if answer] for each in found]


def take_null_for_false(patch: pytest.MonkeyPatch) -> None:
    careful = nodes.Compared.evaluate
    patch.setattr(nodes.Compared, "evaluate", lambda self, rows: pc.fill_null(careful(self, rows), False))


def expect_only_nulls(patch: pytest.MonkeyPatch) -> None:
    """Whoever passes batches over takes one that may hold a null for one that holds nothing else."""
    ask = BoundPredicate.may_match

    def hasty(predicate: BoundPredicate, ranges: Mapping[str, Range]) -> bool:
        return ask(predicate, ranges) and not any(known.has_null for known in ranges.values())

    patch.setattr(BoundPredicate, "may_match", hasty)


@pytest.mark.mechanism("S93")
@pytest.mark.slow("a hundred expressions, asked of two servers, of a folder and at a client")
def test_s93(tmp_path, monkeypatch):
    """330,000 pairs of a row and an expression: the same from a server's `where`, from `find` in the folder, from a
    client who filters for himself, and from DuckDB. Whichever of the three takes NULL for false, as a filter written by
    hand does, or passes over a batch too many, gives other rows than the other two."""
    chance = random.Random(93)
    data, made = sorted_rows(chance), Texts(chance)
    texts = [made.predicate(2) for _ in range(EXPRESSIONS)]
    expected = select_with_duckdb(data, texts)
    assert sum(0 < len(found) < data.num_rows for found in expected) > EXPRESSIONS / 2  # they say something
    with callers_of(tmp_path / "data", data) as callers:
        assert callers.by_server(texts) == expected
        assert callers.by_find(texts) == expected
        assert callers.by_client(texts) == expected
        assert callers.embedded.find("rows", "small = 8").skipped > 0  # statistics do say something

        for caller, plant in (
            (callers.by_find, take_null_for_false),
            (callers.by_client, take_null_for_false),
            (callers.by_find, expect_only_nulls),
        ):
            with monkeypatch.context() as patch:
                plant(patch)
                assert caller(texts) != expected
    with changed_servers(TAKE_NULL_FOR_FALSE), callers_of(tmp_path / "careless", data) as callers:
        assert callers.by_server(texts) != expected
        assert callers.by_find(texts) == callers.by_client(texts) == expected


@pytest.mark.mechanism("S93")
def test_s93_sqlite(tmp_path, monkeypatch):
    """The part of the language that SQLite shares: the rows that it selects, from all three."""
    chance = random.Random(7)
    data = without_nan(sorted_rows(chance).select(PLAIN_COLUMNS))
    texts = [PlainTexts(chance).predicate(3) for _ in range(PLAIN_EXPRESSIONS)]
    expected = select_with_sqlite(data, texts)
    with callers_of(tmp_path / "data", data) as callers:
        for caller in (callers.by_server, callers.by_find, callers.by_client):
            assert caller(texts) == expected
        take_null_for_false(monkeypatch)
        assert callers.by_find(texts) != expected
        assert callers.by_server(texts) == expected
