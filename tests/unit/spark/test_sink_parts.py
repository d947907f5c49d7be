"""What the sink is made of, without Spark: its options, whose batch an abort ends, drivers that deliver at once."""

import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pytest
from pyspark import TaskContext

import mainstem
from mainstem.core.errors import (
    DeliveryRefused,
    InternalError,
    InvalidRecord,
    InvalidSetting,
    MainstemError,
    SchemaMismatch,
    TransactionAborted,
    UnknownStream,
)
from mainstem.core.limits import TRANSACTION_SECONDS_MAX
from mainstem.hub.embedded import LogPort
from mainstem.log import transactions
from mainstem.spark.destination import Destination
from mainstem.spark.origin import Access
from mainstem.spark.sink import BatchSink, StreamSink, Written, batch_sink, query_of, stream_sink
from mainstem.spark.staged_rows import deliver, stage
from mainstem.spark.types import to_spark
from mainstem.spark.write_options import write_options
from mainstem.testing.clock import SimulatedClock
from mainstem.testing.server import ServerProcess
from mainstem.transport.port import DeleteStreamCall

DRIVERS = 4
QUERY = "6f1c6f0e-3f5f-4b0e-9f57-0d6a3d1f8b11"


def test_a_version_is_of_a_transaction():
    given = {"hub": "mainstem://host:7070", "stream": "orders", "transactionId": "my-query"}
    assert write_options(given).version == 0
    assert write_options({**given, "transactionVersion": "12"}).version == 12
    for value in ("-1", "x", "", "1.5", str(1 << 63)):
        with pytest.raises(InvalidSetting, match="whole number from 0 on"):
            write_options({**given, "transactionVersion": value})
    del given["transactionId"]
    with pytest.raises(InvalidSetting, match="transactionId"):
        write_options({**given, "transactionVersion": "1"})


def test_a_replay_is_of_a_transaction(tmp_path):
    """Without one nothing is known again, and nothing accepted."""
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("orders", schema={"id": "int64"})
    given, schema = (
        {"hub": str(tmp_path), "stream": "orders", "onReplay": "accept"},
        to_spark(pa.schema({"id": "int64"})),
    )
    with pytest.raises(InvalidSetting, match=r"onReplay says what a transactionId does.*give that, too"):
        batch_sink(write_options(given), schema, overwrite=False)
    batch_sink(write_options({**given, "transactionId": "monday"}), schema, overwrite=False)
    batch_sink(write_options({**given, "onReplay": "fail"}), schema, overwrite=False)
    stream_sink(write_options(given), schema, overwrite=False)


def test_a_checkpoint_says_whose_it_is(tmp_path):
    checkpoint = tmp_path / "a checkpoint"
    checkpoint.mkdir()
    assert query_of(str(checkpoint)) == ""
    (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
    assert query_of(str(checkpoint)) == QUERY
    assert query_of(checkpoint.as_uri()) == QUERY
    for other in ("", "hdfs://host/checkpoint", str(tmp_path / "none")):
        assert query_of(other) == ""
    (checkpoint / "metadata").write_text("[]")
    assert query_of(str(checkpoint)) == ""


class Task:
    """What Spark tells a task of a query."""

    def __init__(self, partition: int, batch: int) -> None:
        self._partition = partition
        self._properties = {"sql.streaming.queryId": QUERY, "streaming.sql.batchId": str(batch)}

    def getLocalProperty(self, name):
        return self._properties[name]

    def partitionId(self):
        return self._partition


def staged_by_tasks(driver: StreamSink, tasks: list[list[pa.RecordBatch]], batch: int = 0) -> list[Written]:
    """What tasks of a batch of the query have staged, and told their driver."""
    told = []
    for partition, batches in enumerate(tasks):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TaskContext, "get", partial(Task, partition, batch))
            told.append(driver.write(iter(batches)))
    return told


class Micro:
    """Micro-batches into a log of this process, by parts as through a server."""

    def __init__(self, port: LogPort, clock: SimulatedClock) -> None:
        self.sink = StreamSink(Destination(Access.to("mainstem://host:7070"), "orders"), accepts=False)
        self.port, self.clock = port, clock

    def run(self, *tasks: list[pa.RecordBatch], seconds: float = 0.0, batch: int = 0) -> None:
        told = staged_by_tasks(self.sink, list(tasks), batch)
        self.clock.advance(seconds)
        self.sink.commit(told, batch)


@pytest.fixture
def micro(tmp_path, monkeypatch) -> Iterator[Micro]:
    clock = SimulatedClock()
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("orders", schema={"id": "int64"}, shards=2)
    port = LogPort(tmp_path / "log", clock=clock)
    monkeypatch.setattr(Destination, "_port", lambda self: port)
    yield Micro(port, clock)
    port.close()


def of_shard(shard: int, rows: int = 10) -> list[pa.RecordBatch]:
    return pa.table({"id": range(rows), "_shard": [shard] * rows}).to_batches()


@pytest.mark.parametrize(
    ("limit", "value", "seconds", "says"),
    [
        ("TRANSACTION_BATCHES_MAX", 1, 0, "has up to 1 batches"),
        ("TRANSACTION_BATCHES_MAX", 2, 0, "3 batches were written, and 2 can become visible"),
        ("TRANSACTION_BYTES_MAX", 100, 0, "has up to 0 GiB"),
        (None, 0, TRANSACTION_SECONDS_MAX + 1, "its time was over"),
    ],
)
def test_a_batch_that_meets_a_limit_says_how_batches_become_smaller(micro, monkeypatch, limit, value, seconds, says):
    tasks = [of_shard(0) + of_shard(1), of_shard(0)]
    if limit is not None:
        monkeypatch.setattr(transactions, limit, value)
    with pytest.raises(MainstemError, match=says) as caught:
        micro.run(*tasks, seconds=seconds)
    told = "".join(caught.value.__notes__)
    assert "8 GiB and 8,192 batches, within 15 minutes" in told
    assert "maxBytesPerTrigger" in told


def test_what_is_not_of_a_limit_says_nothing_of_smaller_batches(micro):
    """Who begins a new checkpoint then has rows twice."""

    def refused(kind, says, *tasks, batch=0):
        with pytest.raises(kind, match=says) as caught:
            micro.run(*tasks, batch=batch)
        assert not hasattr(caught.value, "__notes__")

    micro.run(of_shard(0))
    refused(SchemaMismatch, "id", pa.table({"id": ["no number"]}).to_batches(), batch=1)
    refused(InvalidRecord, "shards, 0 to 1", of_shard(7), batch=1)
    refused(DeliveryRefused, "comes with 10 others", of_shard(1))
    # Somebody else has aborted the batch meanwhile.
    told = staged_by_tasks(micro.sink, [of_shard(0)], 1)
    micro.sink.abort(staged_by_tasks(micro.sink, [of_shard(0)], 1), 1)
    with pytest.raises(TransactionAborted, match="its delivery was aborted") as caught:
        micro.sink.commit(told, 1)
    assert not hasattr(caught.value, "__notes__")
    micro.port.call(DeleteStreamCall("orders"))
    refused(UnknownStream, "orders", of_shard(0), batch=1)


def test_of_drivers_that_deliver_one_batch_to_a_folder_at_once_one_writes(tmp_path):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("orders", schema={"id": "int64"}, shards=2)
    destination = Destination(Access.to(str(tmp_path)), "orders")
    rows = pa.table({"id": range(1_000)}).to_batches(max_chunksize=250)
    together = threading.Barrier(DRIVERS)

    def drive(first: int) -> None:
        batches = [rows[first:], rows[:first]]
        staged = [stage(destination, destination.look_up(), QUERY, 0, part) for part in batches]
        together.wait(60)
        deliver(destination, staged, QUERY, 0)

    with ThreadPoolExecutor(DRIVERS) as drivers:
        list(drivers.map(drive, range(DRIVERS)))
    destination.discard_up_to(QUERY, 0)
    with mainstem.open(tmp_path) as hub, hub.consumer("orders", start="earliest", follow=False) as consumer:
        found = [number for batch in consumer.batches() for number in batch.to_arrow()["id"].to_pylist()]
    assert sorted(found) == list(range(1_000))
    assert not list((tmp_path / "staging").rglob("*"))


def test_what_a_task_has_not_told_is_not_left_out(tmp_path):
    """A commit without it would lack its rows."""
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("orders", schema={"id": "int64"})
    destination = Destination(Access.to(str(tmp_path)), "orders")
    batch, stream = BatchSink(destination, None, accepts=False), StreamSink(destination, accepts=False)
    rows = pa.table({"id": range(10)}).to_batches()
    told = Written(QUERY, 0, stage(destination, destination.look_up(), QUERY, 0, rows))
    refused = pytest.raises(InternalError, match="1 of 2 tasks did not say what they wrote")
    with refused:
        batch.commit([told, None])
    with refused:
        stream.commit([told, None], 0)
    with mainstem.open(tmp_path) as hub:
        assert hub.streams.get("orders").records == 0
    batch.commit([told])
    with mainstem.open(tmp_path) as hub:
        assert hub.streams.get("orders").records == 10


def test_a_batch_whose_files_went_is_refused_whole(tmp_path):
    """As when another driver on the checkpoint has aborted it."""
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("orders", schema={"id": "int64"})
    destination = Destination(Access.to(str(tmp_path)), "orders")
    rows = pa.table({"id": range(10)}).to_batches()
    staged = [stage(destination, destination.look_up(), QUERY, 0, rows) for _ in range(2)]
    destination.discard_up_to(QUERY, 0)
    with pytest.raises(MainstemError, match=r"cannot be read.*nothing was written"):
        deliver(destination, staged, QUERY, 0)
    with mainstem.open(tmp_path) as hub:
        assert hub.streams.get("orders").records == 0


@pytest.mark.parametrize("through", ["server", "folder"])
def test_a_driver_whose_batch_another_has_aborted_goes_on_when_it_is_started_again(tmp_path, through):
    folder, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
    with mainstem.open(folder) as hub:
        hub.streams.create("orders", schema={"id": "int64"}, shards=2)
    batches = [pa.table({"id": range(first, first + 10)}).to_batches() for first in range(0, 40, 10)]
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(ServerProcess(folder)).url if through == "server" else str(folder)

        def started() -> StreamSink:
            return StreamSink(Destination(Access.to(url), "orders"), accepts=False, checkpoint=str(checkpoint))

        # Both are in the first batch. One fails in it: with the word of none of its tasks, and of what another staged.
        first, second = started(), started()
        told = staged_by_tasks(second, batches[:2])
        first.abort([None, None], 0)
        with pytest.raises(TransactionAborted):
            second.commit(told, 0)
        second.abort(told, 0)
        # Started again they run the batch that is not noted as done, and go on.
        for driver in (started(), started()):
            driver.commit(staged_by_tasks(driver, batches[:2]), 0)
        driver.commit(staged_by_tasks(driver, batches[2:], 1), 1)
        hub = stack.enter_context(mainstem.connect(url) if through == "server" else mainstem.open(folder))
        consumer = stack.enter_context(hub.consumer("orders", start="earliest", follow=False))
        found = [number for batch in consumer.batches() for number in batch.to_arrow()["id"].to_pylist()]
        assert sorted(found) == list(range(40))
        assert hub.statistics()["transactions_open"] == 0
    assert not [path for path in (folder / "staging").rglob("*") if path.is_file()]


def test_on_a_server_an_aborted_delivery_takes_along_what_nobody_can_name(tmp_path):
    """A part that a killed task has left; its driver knows the delivery, and neither the part nor the task."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("orders", schema={"id": "int64"})
        destination = Destination(Access.to(server.url), "orders")
        stream, rows = destination.look_up(), pa.table({"id": range(1_000)}).to_batches()

        def open_parts() -> int:
            return hub.statistics()["transactions_open"]

        lost = stage(destination, stream, QUERY, 3, rows)
        stage(destination, stream, "another", 3, rows)
        assert open_parts() == 2
        destination.discard_up_to(QUERY, 2)
        assert open_parts() == 2
        destination.discard_up_to(QUERY, 3)
        assert open_parts() == 1
        with pytest.raises(TransactionAborted, match="its delivery was aborted"):
            deliver(destination, [lost], QUERY, 3)
        # A query runs its batch again; a frame that was aborted is over.
        again = stage(destination, stream, QUERY, 3, rows)
        deliver(destination, [again], QUERY, 3)
        destination.discard_up_to("another", 3, for_good=True)
        with pytest.raises(TransactionAborted, match="is late, and was not kept"):
            stage(destination, stream, "another", 3, rows)
        assert open_parts() == 0
        assert hub.streams.get("orders").records == 1_000
