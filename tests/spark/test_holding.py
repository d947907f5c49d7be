"""A query that holds retention: what it has not read is there when it comes back."""

import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import mainstem
from mainstem.core.errors import InvalidSetting
from mainstem.core.limits import GROUP_HOLD_US_DEFAULT
from mainstem.spark.options import read_options
from mainstem.testing.server import ServerProcess
from tests.spark.parts import SCHEMA, rows
from tests.spark.queries import Query

pytestmark = pytest.mark.xdist_group("spark")

DAY_US = 86_400_000_000
OLD = datetime.now(UTC) - timedelta(days=2)


def append_old(hub, stream: str, first: int, count: int) -> None:
    """Rows of the day before yesterday."""
    times = pa.array([OLD] * count, pa.timestamp("us", "UTC"))
    with hub.producer() as producer:
        producer.send_batch(stream, rows(first, count).append_column("_timestamp", times))


def wait_for_retention(hub, stream: str) -> None:
    deadline = time.monotonic() + 30
    while (info := hub.streams.get(stream)).starts != info.ends:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow("four streaming queries, seconds each, and a server that is killed")
def test_trimmed_without_and_held_with_the_option(spark, tmp_path):
    with ServerProcess(tmp_path / "data", "--upkeep-interval", "100ms") as server:
        query = Query(spark, server.url, tmp_path, startingOffsets="earliest", group="lake")
        with mainstem.connect(server.url) as hub:
            for stream in ("orders", "others"):
                hub.streams.create(stream, schema=SCHEMA, retention="30d")
                append_old(hub, stream, 0, 100)
            assert query.run(holdRetention="3d") == list(range(100))
            assert hub.groups.get("lake").hold_seconds == 3 * 86_400
            append_old(hub, "orders", 100, 100)
        server.kill()
        server.start()
        with mainstem.connect(server.url) as hub:
            # Everything is too old now; only what the query has not read stays.
            for stream in ("orders", "others"):
                hub.streams.alter(stream, retention="1d")
            wait_for_retention(hub, "others")
            assert hub.groups.get("lake").held_records == 100
            assert query.run() == list(range(200)), "the group has it also if the query does not say it again"
            assert hub.groups.get("lake").hold_seconds == 3 * 86_400
            query.run(holdRetention="false")
            assert hub.groups.get("lake").hold_seconds == 0
            append_old(hub, "orders", 200, 100)
            wait_for_retention(hub, "orders")
            with pytest.raises(PySparkException, match="records 200 to 299 are gone"):
                query.run()


def test_the_option_in_words():
    def held(**given: str) -> int | None:
        return read_options({"hub": "mainstem://h:1", "stream": "s", **given}, streaming=True).hold_us

    assert held(group="g") is None
    assert held(group="g", holdRetention="TRUE") == GROUP_HOLD_US_DEFAULT
    assert held(group="g", holdretention="36h") == 1.5 * DAY_US
    assert held(holdRetention="false") == 0
    with pytest.raises(InvalidSetting, match="name that of the query"):
        held(holdRetention="true")
    for wrong in ("yes", "0s", "31d", ""):
        with pytest.raises(InvalidSetting, match="holdRetention is true, false or a time such as 3d, up to 30d"):
            held(group="g", holdRetention=wrong)
    with pytest.raises(InvalidSetting, match=r"holdRetention is for spark\.readStream"):
        read_options({"hub": "mainstem://h:1", "stream": "s", "holdRetention": "true"}, streaming=False)
