"""What the sink is made of, without Spark: its options, whose batch an abort ends, drivers that deliver at once."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import mainstem
from mainstem.core.errors import InternalError, InvalidRequest, InvalidSetting, MainstemError, TransactionAborted
from mainstem.spark.destination import Destination
from mainstem.spark.origin import Access
from mainstem.spark.sink import (
    BatchSink,
    StreamSink,
    Written,
    batch_sink,
    query_of,
    saying_what_limits_it,
    stream_sink,
)
from mainstem.spark.staged_rows import deliver, stage
from mainstem.spark.types import to_spark
from mainstem.spark.write_options import write_options
from mainstem.testing.server import ServerProcess

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


def test_a_batch_that_is_too_large_says_how_batches_become_smaller():
    with pytest.raises(InvalidRequest) as caught, saying_what_limits_it():
        raise InvalidRequest("a transaction has up to 8 GiB; commit more often")
    assert "8 GiB and 8,192 batches, within 15 minutes" in "".join(caught.value.__notes__)
    assert "maxBytesPerTrigger" in "".join(caught.value.__notes__)


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
