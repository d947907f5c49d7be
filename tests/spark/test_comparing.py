"""Two versions of a table beside each other."""

from datetime import UTC, datetime, timedelta

import pytest

import mainstem
from mainstem.spark.jobs.comparing import Compared
from mainstem.spark.jobs.replay import replay
from tests.spark.lakes import table_of

pytestmark = pytest.mark.xdist_group("spark")
START = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.slow("two replays")
def test_a_folder_whose_name_is_a_pattern_to_spark_is_a_folder(tmp_path, spark):
    """And one beside it, which the pattern would match too, is not read."""
    with mainstem.open(tmp_path / "log") as hub, hub.producer() as producer:
        hub.streams.create("orders", schema={"id": "int64", "country": "string"}, retention="3650d")
        for number in range(10):
            producer.send("orders", {"id": number, "country": "a b"}, timestamp=START)
    given = {"since": START, "until": START + timedelta(hours=1), "replace": True, "key": ["id"], "spark": spark}
    for name, sql in (
        ("orders {a,b} *?", "SELECT id, country FROM orders"),
        ("orders a xy", "SELECT id + 100 AS id, country FROM orders"),
        ("orders {a,b} *?", "SELECT id, if(id = 3, 'c', country) AS country FROM orders WHERE id > 0"),
    ):
        told = replay(tmp_path / "log", "orders", tmp_path / name, sql=sql, **given).compared
    assert told is not None
    assert told == Compared(told.before, added=0, removed=1, changed=1, same=8)
    assert sorted(table_of(tmp_path / "orders {a,b} *?")["id"].to_pylist()) == list(range(1, 10))
