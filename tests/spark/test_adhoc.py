"""Questions put to a stream as it is: answered in seconds, the same by every tool, and nobody's cursor moves."""

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

import mainstem

pytestmark = pytest.mark.xdist_group("spark")

MESSAGES = 1_000_000
OLDER = 1_000
SECONDS_MAX = 20
QUESTION = "page = '/cart' AND visitor < 500 AND ms = 7"
# The script tool is given a time as part of the question, Spark as an option.
OF_THE_LAST_HOUR = " AND _timestamp > now() - INTERVAL '1' HOUR"


@pytest.mark.mechanism("K26", "P14")
@pytest.mark.slow("a million messages, asked by Spark and by the command")
def test_a_question_about_the_last_hour_moves_no_group(spark, server):
    with mainstem.connect(server.url) as hub:
        hub.streams.create("clicks", shards=4, schema={"visitor": "int64", "page": "string", "ms": "int64"})
        users = np.arange(MESSAGES, dtype=np.int64)
        table = pa.table(
            {"visitor": users % 1_000, "page": np.where(users % 3 == 0, "/cart", "/home"), "ms": users % 100}
        )
        two_hours_ago = pa.scalar(datetime.now(UTC) - timedelta(hours=2), pa.timestamp("us", "UTC"))
        older = pa.table({"visitor": [1] * OLDER, "page": ["/cart"] * OLDER, "ms": [7] * OLDER})
        with hub.producer() as producer:
            # Each would be an answer, were it not for its time.
            producer.send_batch("clicks", older.append_column("_timestamp", pa.repeat(two_hours_ago, OLDER)))
            for at in range(0, MESSAGES, 50_000):
                producer.send_batch("clicks", table.slice(at, 50_000))
        with hub.consumer("clicks", group="live", start="earliest", follow=False, commit="manual") as live:
            next(live.batches())
            live.commit()
        before = _cursors(hub)
        groups = [group.name for group in hub.groups.list()]

        hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
        rows = spark.read.format("mainstem").options(hub=server.url, startingTimestamp=hour_ago).load("clicks")
        # Asked twice: the start of Spark and of its Python processes is not part of a question.
        rows.where(QUESTION).count()
        began = time.monotonic()
        by_spark = rows.where(QUESTION).count()
        assert time.monotonic() - began <= SECONDS_MAX
        assert by_spark == int(((users % 3 == 0) & (users % 1_000 < 500) & (users % 100 == 7)).sum())

        # The same question in the script tool.
        command = [
            sys.executable,
            "-m",
            "mainstem",
            "find",
            "clicks",
            QUESTION + OF_THE_LAST_HOUR,
            "--url",
            server.url,
            "--output",
            "json",
        ]
        found = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=True)
        assert len(found.stdout.splitlines()) == by_spark
        assert (_cursors(hub), [group.name for group in hub.groups.list()]) == (before, groups)

        # The control: who reads as a group moves it.
        with hub.consumer("clicks", group="live", follow=False) as live:
            next(live.batches())
        assert _cursors(hub) != before


def _cursors(hub: mainstem.Hub) -> list[tuple[int, int]]:
    return [(shard.shard, shard.offset) for shard in hub.groups.get("live").shards]
