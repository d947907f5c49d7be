"""Checkpoints that go wrong: two drivers on one, damaged ones, and none. Every row is in the sink once, or it is said
why not."""

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
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

    def run(self, *, group: str | None = "copier", **options: str) -> None:
        """All that there is now."""
        given = {"hub": self._hub, **({"group": group} if group else {}), **options}
        rows = self._spark.readStream.format("mainstem").options(**given)
        writing = rows.load("orders").writeStream.format("mainstem").trigger(availableNow=True)
        query = writing.options(hub=self._hub, checkpointLocation=str(self.checkpoint)).start("copies")
        assert query.awaitTermination(SECONDS_MAX)

    def change(self, file: str, text: str | None) -> None:
        """Give a file of the checkpoint this text, or none."""
        path = self.checkpoint / file
        for each in (path, path.with_name(f".{path.name}.crc")):
            each.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)

    def keep(self) -> Callable[[], None]:
        """What brings the checkpoint back as it is now."""
        kept = self.checkpoint.with_name("kept")
        shutil.copytree(self.checkpoint, kept)

        def bring_back() -> None:
            shutil.rmtree(self.checkpoint)
            shutil.copytree(kept, self.checkpoint)

        return bring_back


@pytest.fixture
def copy(spark, server, tmp_path) -> Iterator[tuple[Copy, Hub]]:
    """A query that has copied 150 rows in two batches, of which it has not noted the second as done."""
    made = Copy(spark, server.url, tmp_path)
    with mainstem.connect(server.url) as hub:
        fill(hub, count=100)
        hub.streams.create("copies", schema=SCHEMA)
        made.run(startingOffsets="earliest")
        append(hub, "orders", 100, 50)
        made.run()
        assert ids(hub, "copies") == list(range(150))
        made.change("commits/1", None)
        yield made, hub


@pytest.mark.slow("many streaming queries, seconds each")
def test_a_damaged_checkpoint_is_named_and_goes_on_when_it_is_brought_back(copy):
    query, hub = copy
    bring_back = query.keep()
    rest, _, _ = (query.checkpoint / "offsets" / "1").read_text().rpartition("\n")
    unread = r"Failed to read log file file:\S+/{}\. {} SQLSTATE"
    malformed = r"\[MALFORMED_LOG_FILE\] .* from garbage\."
    for file, text, says in (
        ("offsets/1", "", unread.format("offsets/1", "Incomplete log file")),
        (
            "offsets/1",
            "garbage",
            unread.format("offsets/1", malformed),
        ),
        ("offsets/1", rest, r"There are \[0\] sources in the checkpoint offsets and now there are \[1\]"),
        (
            "offsets/1",
            f'{rest}\n{{"topic": {{"0": 5}}}}',
            r"InvalidCursor: the checkpoint has no offset of a stream: \{'topic': .* use another checkpointLocation",
        ),
        ("commits/1", "", unread.format("commits/1", "Incomplete log file in the offset commit log")),
        ("metadata", None, r"\[STREAMING_CHECKPOINT_MISSING_METADATA_FILE\] .* restore the metadata file"),
        ("metadata", "", r"StreamMetadata\$\.read"),
    ):
        query.change(file, text)
        # Of metadata that is no JSON there is only the error of the JVM.
        with pytest.raises((PySparkException, Py4JJavaError), match=says):
            query.run()
        assert ids(hub, "copies") == list(range(150))
        bring_back()
    # The second batch runs again, and is known.
    query.run()
    assert ids(hub, "copies") == list(range(150))


@pytest.mark.slow("several streaming queries, seconds each")
def test_with_the_id_of_another_query_a_checkpoint_is_of_another_job(copy):
    """The log knows its batches by that id: one that is not noted as done is written again, and no other."""
    query, hub = copy
    append(hub, "orders", 150, 50)
    query.change("metadata", json.dumps({"id": str(uuid.uuid4())}))
    query.run()
    assert ids(hub, "copies") == sorted([*range(200), *range(100, 150)])
    query.change("metadata", json.dumps({"id": str(uuid.uuid4())}))
    append(hub, "orders", 200, 50)
    query.run()
    assert ids(hub, "copies") == sorted([*range(250), *range(100, 150)])


@pytest.mark.slow("several streaming queries, seconds each")
def test_without_its_checkpoint_a_query_goes_on_where_its_group_stands(copy):
    query, hub = copy
    query.run()
    for count, options in ((150, {}), (200, {"startingOffsets": "earliest"})):
        shutil.rmtree(query.checkpoint)
        append(hub, "orders", count, 50)
        query.run(**options)
        assert ids(hub, "copies") == list(range(count + 50))


@pytest.mark.slow("several streaming queries, seconds each")
def test_without_its_checkpoint_and_a_group_a_query_is_not_begun_where_it_may_lose_records(copy):
    query, hub = copy
    query.run()
    bring_back = query.keep()
    shutil.rmtree(query.checkpoint)
    append(hub, "orders", 150, 50)
    # Each time it is started, though now there is a checkpoint without a batch.
    for _ in range(2):
        with pytest.raises(
            PySparkException, match=r"nothing says where in stream 'orders' the query begins.*200 records"
        ):
            query.run(group=None)
    assert ids(hub, "copies") == list(range(150))
    bring_back()
    query.run(group=None)
    assert ids(hub, "copies") == list(range(200))
