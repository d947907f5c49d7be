"""Checkpoints that go wrong: two drivers on one, damaged ones, and none. Every row is in the sink once, or it is said
why not."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import mainstem
from mainstem.hub.hub import Hub
from tests.spark.parts import SCHEMA, append, fill

pytestmark = pytest.mark.xdist_group("spark")

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 300
# A second driver, as `Files.start` is the first: it follows the files until it is told to stop, and says how it ended.
DRIVER = """
import sys, time
from pathlib import Path
import mainstem.spark
from tests.spark.test_checkpoints import Files
hub, folder = sys.argv[1], Path(sys.argv[2])
config = {"spark.ui.enabled": False, "spark.driver.memory": "1g", "spark.local.dir": str(folder)}
spark = mainstem.spark.session("second", "local[1]", config)
(folder / "ready").touch()
while not (folder / "go").exists():
    time.sleep(0.02)
query = Files(spark, hub, folder).start("second")
while query.isActive and not (folder / "stop").exists():
    time.sleep(0.05)
error = query.exception()
query.stop()
(folder / "ended.part").write_text("" if error is None else str(error))
(folder / "ended.part").rename(folder / "ended")
spark.stop()
"""


class Files:
    """A query of a folder of files, one file in a batch, into `orders`; several drivers may have it."""

    def __init__(self, spark: SparkSession, hub: str, folder: Path) -> None:
        self._spark = spark
        self._hub = hub
        self._folder = folder

    def add(self, number: int) -> None:
        part = self._folder / "part.json"
        part.write_text("\n".join(json.dumps({"id": each}) for each in range(number * 10, number * 10 + 10)))
        part.rename(self._folder / "files" / f"{number}.json")

    def start(self, name: str, **trigger: Any) -> StreamingQuery:
        """With a name, its batches wait until other drivers are in one, too."""
        rows = self._spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1)
        frame = rows.json(str(self._folder / "files"))
        if name:
            frame = frame.mapInArrow(meeting(self._folder, name), "id bigint")
        writing = frame.writeStream.format("mainstem").trigger(**trigger or {"processingTime": "100 milliseconds"})
        return writing.options(
            hub=self._hub, stream="orders", checkpointLocation=str(self._folder / "checkpoint")
        ).start()


def meeting(folder: Path, name: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Lets batches pass when two drivers are here. Sent to workers as it stands, without this module."""

    def met(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        (folder / f"met-{name}").touch()
        deadline = time.monotonic() + 120
        while len(list(folder.glob("met-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        yield from batches

    return met


@contextmanager
def second_driver(folder: Path, hub: str) -> Iterator[None]:
    """A process with a Spark session of its own, which is ready to begin."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, hub, str(folder)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
            stdout=log,
            stderr=log,
        )
    try:
        come_to(lambda: (folder / "ready").exists() or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()[-3_000:]
        yield
    finally:
        (folder / "stop").touch()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


def come_to(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ids(hub: Hub, stream: str) -> list[int]:
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        return sorted(row for batch in consumer.batches() for row in batch.to_arrow()["id"].to_pylist())


@pytest.mark.slow("one more session of Spark, in a process of its own")
def test_of_two_drivers_on_one_checkpoint_one_goes_on_and_nothing_is_doubled(spark, server, tmp_path):
    """Both take up a batch that was planned and not noted as done, and both write it."""
    (tmp_path / "files").mkdir()
    files = Files(spark, server.url, tmp_path)
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders", schema={"id": "int64"})
        files.add(0)
        files.add(1)
        assert files.start("", availableNow=True).awaitTermination(SECONDS_MAX)
        for name in ("1", ".1.crc"):
            (tmp_path / "checkpoint" / "commits" / name).unlink()
        with second_driver(tmp_path, server.url):
            (tmp_path / "go").touch()
            first = files.start("first")
            try:
                for number in range(2, 5):
                    files.add(number)
                come_to(lambda: not first.isActive or (tmp_path / "ended").exists())
                come_to(lambda: len(ids(hub, "orders")) >= 50)
                # Also if both fail, it is said by then.
                errors = [str(first.exception() or "")]
            finally:
                first.stop()
        errors.append((tmp_path / "ended").read_text())
        assert len(list(tmp_path.glob("met-*"))) == 2, "both were in a batch"
        assert sum(not error for error in errors) == 1, errors
        assert "Multiple streaming" in "".join(errors)
        assert ids(hub, "orders") == list(range(50))


class Copy:
    """A query of `orders` into `copies`, which is the group `copier`."""

    def __init__(self, spark, hub: str, folder: Path) -> None:
        self._spark = spark
        self._hub = hub
        self.checkpoint = folder / "checkpoint"

    def run(self, **options: str) -> None:
        """All that there is now."""
        rows = self._spark.readStream.format("mainstem").options(hub=self._hub, group="copier", **options)
        writing = rows.load("orders").writeStream.format("mainstem").trigger(availableNow=True)
        query = writing.options(hub=self._hub, checkpointLocation=str(self.checkpoint)).start("copies")
        assert query.awaitTermination(SECONDS_MAX)

    def damage(self, change: Callable[[str], str]) -> Path:
        """Change what the checkpoint says of its last batch, which it has not noted as done; the file as it was."""
        path = max((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        kept = self.checkpoint.parent / "kept"
        shutil.copyfile(path, kept)
        path.write_text(change(path.read_text()))
        for name in (f"offsets/.{path.name}.crc", f"commits/{path.name}", f"commits/.{path.name}.crc"):
            (self.checkpoint / name).unlink(missing_ok=True)
        return kept


def without_offset(text: str) -> str:
    return text.rsplit("\n", 1)[0]


def of_another_source(text: str) -> str:
    return without_offset(text) + '\n{"topic": {"0": 5}}'


@pytest.mark.slow("several streaming queries, seconds each")
def test_damaged_and_deleted_checkpoints(spark, server, tmp_path):
    copy = Copy(spark, server.url, tmp_path)
    with mainstem.connect(server.url) as hub:
        fill(hub, count=100)
        hub.streams.create("copies", schema=SCHEMA)
        copy.run(startingOffsets="earliest")
        append(hub, "orders", 100, 50)
        copy.run()
        assert ids(hub, "copies") == list(range(150))
        for change, says in (
            (lambda text: "", "Incomplete log file|incomplete|empty|malformed"),
            (of_another_source, "the checkpoint has no offset of a stream.*use another checkpointLocation"),
        ):
            kept = copy.damage(change)
            with pytest.raises(PySparkException, match=f"(?is){says}"):
                copy.run()
            assert ids(hub, "copies") == list(range(150))
            # Brought back as it was, the batch runs again and is known.
            newest = max((copy.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
            shutil.copyfile(kept, newest)
            copy.run()
            assert ids(hub, "copies") == list(range(150))
        # Without a checkpoint it goes on where its group stands.
        shutil.rmtree(copy.checkpoint)
        append(hub, "orders", 150, 50)
        copy.run()
        assert ids(hub, "copies") == list(range(200))
