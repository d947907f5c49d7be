"""A streaming query that tests run again and again."""

import json
import time
from pathlib import Path

from pyspark.errors import PySparkException


class Query:
    """A query of `orders` into Parquet files, which run after run goes on where it was."""

    def __init__(self, spark, hub: str, folder: Path, **options) -> None:
        self._spark = spark
        self._hub = hub
        self._folder = folder
        self._options = options

    def start(self, **options):
        rows = (
            self._spark.readStream.format("mainstem").option("hub", self._hub).options(**{**self._options, **options})
        )
        written = rows.load("orders").select("id").writeStream.format("parquet")
        return written.option("checkpointLocation", str(self._folder / "checkpoint")).option(
            "path", str(self._folder / "out")
        )

    def run(self, **options) -> list[int]:
        """Everything that there is now; the ids that were read since the first run."""
        query = self.start(**options).trigger(availableNow=True).start()
        assert query.awaitTermination(100)
        self.progress = [json.loads(each.json) for each in query.recentProgress]
        return self.ids()

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self._spark.read.parquet(str(self._folder / "out")).collect())

    def count(self) -> int:
        """How many rows it has written so far."""
        try:
            return len(self.ids())
        except PySparkException:
            return 0

    def come_to(self, rows: int, seconds: float = 180.0) -> None:
        """Wait until it has written so many."""
        deadline = time.monotonic() + seconds
        while self.count() < rows:
            assert time.monotonic() < deadline, self.count()
            time.sleep(0.1)
