"""The account of an intake: what was sent, what is durable, and the first failure."""

import pyarrow as pa
import pytest

import mainstem
from mainstem.produce.chunk import Ack, Chunk, Parcel
from mainstem.produce.intake import Intake
from mainstem.produce.rows import Row
from mainstem.transport.port import StreamInfo


def test_rows_and_tables_are_counted_and_placed(tmp_path):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("s", shards=2)
        with hub.producer(batch_bytes=1024, buffer_bytes=4096) as producer:
            intake = Intake(producer, "s")
            intake.take(Row(b"v" * 50, b"%d" % (number % 7)) for number in range(500))
            intake.take([pa.table({"value": [b"a", b"b"]})])
            intake.finish()
        info = hub.streams.get("s")
    assert (intake.sent, intake.acknowledged, info.records) == (502, 502, 502)
    assert intake.newest == {shard: end - 1 for shard, end in enumerate(info.ends)}


def test_a_chunk_that_fails_ends_the_intake(tmp_path):
    def rows(hub):
        yield Row(b"kept")
        intake.finish()
        hub.streams.delete("s")
        for _ in range(100_000):
            yield Row(b"refused" * 100)

    with mainstem.open(tmp_path) as hub:
        hub.streams.create("s")
        producer = hub.producer(batch_bytes=1024, buffer_bytes=4096)
        intake = Intake(producer, "s")
        with pytest.raises(mainstem.StreamDeleted):
            intake.take(rows(hub))
        with pytest.raises(mainstem.StreamDeleted):
            producer.close()
    assert intake.acknowledged == 1
    assert intake.sent < 100_000


def test_after_a_bad_row_everything_before_it_is_counted(tmp_path):
    def rows():
        yield from [Row(b"v")] * 3
        yield pa.table({"value": [b"a", b"b"]})
        raise mainstem.InvalidRecord("bad")

    with mainstem.open(tmp_path) as hub:
        hub.streams.create("s")
        with hub.producer() as producer:
            intake = Intake(producer, "s")
            with pytest.raises(mainstem.InvalidRecord):
                intake.take(rows())
            assert intake.settle()
        assert (intake.acknowledged, intake.is_exact) == (5, True)
        assert hub.streams.get("s").records == 5


def test_what_failed_is_not_counted(tmp_path):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("s")
        producer = hub.producer()
        intake = Intake(producer, "s")
        intake.take([Row(b"kept")])
        intake.finish()
        hub.streams.delete("s")
        intake.take([Row(b"lost")])
        assert intake.settle()
        assert (intake.sent, intake.acknowledged, intake.is_exact) == (2, 1, True)


def test_records_without_an_answer_make_the_account_uncertain():
    chunk = Chunk(StreamInfo(1, "", "s", 1, "crc32", 0, 0, 0, (0,), (0,), 0, 1), 0, Parcel(lambda *_: True, 0.0), 0)
    chunk.error = mainstem.DeadlineExceeded("no answer")
    intake = Intake(SilentProducer(chunk), "s")  # type: ignore[arg-type]
    intake.take([Row(b"v")])
    assert not intake.settle(0)
    chunk.parcel.finish()
    assert intake.settle(0)
    assert (intake.acknowledged, intake.is_exact) == (0, False)


class SilentProducer:
    """Takes records and never gets an answer."""

    def __init__(self, chunk):
        self._chunk = chunk

    def send(self, *record):
        return Ack(self._chunk, 0)

    def flush(self, timeout):
        raise mainstem.DeadlineExceeded("not everything was acknowledged")
