"""Streams: create, look up, list, alter, delete; and what a deletion does to those who write and read."""

import threading
from datetime import timedelta

import pytest

import mainstem
from tests.integration.api.conftest import values

DAY_US = 86_400_000_000


def test_create_and_get(hub):
    made = hub.streams.create("orders", shards=4, retention="3d", hash="murmur2")
    assert (made.name, made.shards, made.hash, made.retention_us) == ("orders", 4, "murmur2", 3 * DAY_US)
    assert made.starts == made.ends == (0, 0, 0, 0)
    assert (made.records, made.bytes, made.generation) == (0, 0, 0)
    assert len(made.uuid) == 32
    assert hub.streams.get("orders") == made


def test_the_defaults(hub):
    made = hub.streams.create("orders")
    assert (made.shards, made.hash, made.retention_us) == (1, "crc32", 7 * DAY_US)


def test_the_info_counts_records_and_bytes(hub):
    hub.streams.create("orders")
    with hub.producer() as producer:
        producer.send_many("orders", [b"x" * 1_000] * 20)
    info = hub.streams.get("orders")
    assert (info.starts, info.ends, info.records) == ((0,), (20,), 20)
    assert info.bytes > 0


def test_list_is_sorted_by_name(hub):
    for name in ("b", "a", "c.1", "B"):
        hub.streams.create(name)
    assert [stream.name for stream in hub.streams.list()] == ["B", "a", "b", "c.1"]


def test_a_log_without_streams_lists_none(hub):
    assert hub.streams.list() == []


def test_creating_an_existing_stream_is_refused(hub):
    made = hub.streams.create("orders", shards=2)
    with pytest.raises(mainstem.StreamExists, match="exist_ok"):
        hub.streams.create("orders")
    assert hub.streams.get("orders") == made


def test_exist_ok_takes_the_stream_as_it_is(hub):
    made = hub.streams.create("orders", shards=2, retention="1d")
    assert hub.streams.create("orders", exist_ok=True) == made
    with pytest.raises(
        mainstem.InvalidSetting, match=r"with other options: shards is .*, not 9; retention is .*, not 5d"
    ):
        hub.streams.create("orders", shards=9, retention="5d", exist_ok=True)


def test_of_many_who_create_at_once_one_wins(hub):
    barrier = threading.Barrier(8)
    outcomes: list[str] = []

    def create() -> None:
        barrier.wait()
        try:
            outcomes.append(hub.streams.create("orders").uuid)
        except mainstem.StreamExists:
            outcomes.append("exists")

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("exists") == 7
    assert hub.streams.get("orders").uuid in outcomes


def test_an_unknown_stream_is_refused_with_the_command_that_makes_it(hub):
    for ask in (
        lambda: hub.streams.get("orders"),
        lambda: hub.streams.alter("orders", retention="1d"),
        lambda: hub.streams.delete("orders"),
        lambda: hub.consumer("orders"),
    ):
        with pytest.raises(mainstem.UnknownStream, match="mainstem stream create orders"):
            ask()


def test_alter_changes_the_retention(hub):
    hub.streams.create("orders", retention="1d")
    assert hub.streams.alter("orders", retention="12h").retention_us == DAY_US // 2
    assert hub.streams.alter("orders", retention=timedelta(minutes=5)).retention_us == 300_000_000
    assert hub.streams.get("orders").retention_us == 300_000_000


@pytest.mark.parametrize("retention", ["", "soon", "-1d", "0s", "1", 7, "999999999d", timedelta(0), ["1d"]])
def test_a_retention_that_makes_no_sense_is_refused(hub, retention):
    with pytest.raises(mainstem.InvalidSetting):
        hub.streams.create("orders", retention=retention)
    hub.streams.create("orders", retention="1d")
    with pytest.raises(mainstem.InvalidSetting):
        hub.streams.alter("orders", retention=retention)
    assert hub.streams.get("orders").retention_us == DAY_US


@pytest.mark.parametrize("shards", [0, -1, 4_097, 2**70, 1.5, "4", True, [1]])
def test_a_number_of_shards_that_makes_no_sense_is_refused(hub, shards):
    with pytest.raises(mainstem.InvalidRequest):
        hub.streams.create("orders", shards=shards)
    assert hub.streams.list() == []


@pytest.mark.parametrize("hash_", ["md5", "", 7, ["crc32"]])
def test_an_unknown_hash_is_refused(hub, hash_):
    with pytest.raises(mainstem.InvalidRequest):
        hub.streams.create("orders", hash=hash_)
    assert hub.streams.list() == []


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../../etc/passwd", "a\0b", "a b", "ä", "_ours", "x" * 250, "x" * 100_000]
)
def test_a_hostile_name_is_refused(hub, name):
    with pytest.raises(mainstem.InvalidName):
        hub.streams.create(name)
    assert hub.streams.list() == []


@pytest.mark.parametrize("name", [None, 7, b"orders", ["orders"], {"a": 1}, "\ud800"])
def test_what_is_no_text_is_no_name_and_the_hub_works_on(hub, name):
    with pytest.raises(mainstem.InvalidRequest):
        hub.streams.create(name)
    for ask in (hub.streams.get, hub.streams.delete, hub.consumer):
        with pytest.raises(mainstem.InvalidRequest):
            ask(name)
    assert hub.streams.create("orders").name == "orders"


def test_the_longest_name_and_the_most_shards(hub):
    name = "n" * 249
    made = hub.streams.create(name, shards=4_096)
    assert made.shards == 4_096
    with hub.producer() as producer:
        assert producer.send(name, b"v", key=b"k").result(10)[1] == 0
    assert values(hub, name) == [b"v"]


# Deleting.


def test_a_deleted_stream_is_gone_at_once(hub):
    hub.streams.create("orders")
    hub.streams.delete("orders")
    assert hub.streams.list() == []
    with pytest.raises(mainstem.UnknownStream):
        hub.streams.get("orders")
    with pytest.raises(mainstem.UnknownStream):
        hub.streams.delete("orders")


def test_a_deletion_stops_writes_at_once(hub):
    hub.streams.create("orders")
    producer = hub.producer()
    producer.send("orders", b"before").result(10)
    hub.streams.delete("orders")
    # The producer knows the stream and sends; the log refuses. Asked again, there is no such stream.
    with pytest.raises(mainstem.StreamDeleted):
        producer.send("orders", b"after").result(10)
    with pytest.raises(mainstem.UnknownStream):
        producer.send("orders", b"after").result(10)


def test_a_deletion_leaves_other_streams_of_the_same_producer_alone(hub):
    hub.streams.create("orders")
    hub.streams.create("other")
    producer = hub.producer()
    producer.send("orders", b"0").result(10)
    producer.send("other", b"0").result(10)
    hub.streams.delete("orders")
    lost = producer.send("orders", b"1")
    kept = producer.send("other", b"1")
    assert isinstance(lost.exception(10), mainstem.StreamDeleted)
    assert kept.result(10) == (0, 1)
    assert producer.send("other", b"2").result(10) == (0, 2)
    producer.close()
    assert values(hub, "other") == [b"0", b"1", b"2"]


def test_a_deletion_ends_followers(hub):
    hub.streams.create("orders")
    with hub.producer() as producer:
        producer.send("orders", b"last words")
    consumer = hub.consumer("orders", start="earliest")
    got: list[bytes | None] = []
    reading = threading.Event()
    ended: list[BaseException] = []

    def follow() -> None:
        try:
            for record in consumer:
                got.append(record.value)
                reading.set()
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    assert reading.wait(10)
    hub.streams.delete("orders")
    thread.join(10)
    assert not thread.is_alive()
    assert [type(error) for error in ended] == [mainstem.StreamDeleted]
    assert got == [b"last words"]
    # Whoever asks again is told again.
    with pytest.raises(mainstem.InvalidRequest):
        consumer.poll(5)


def test_a_stream_made_again_is_another_one(hub):
    first = hub.streams.create("orders")
    with hub.producer() as producer:
        producer.send_many("orders", [b"old"] * 3)
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        list(consumer)
        cursor = consumer.cursor
    hub.streams.delete("orders")
    second = hub.streams.create("orders", shards=2)
    assert second.uuid != first.uuid
    assert second.id != first.id
    assert second.ends == (0, 0)
    with pytest.raises(mainstem.InvalidCursor, match="another stream"):
        hub.consumer("orders", start=cursor)
    assert values(hub, "orders") == []


def test_a_producer_finds_the_stream_that_took_the_name(hub):
    hub.streams.create("orders")
    producer = hub.producer()
    producer.send("orders", b"old").result(10)
    hub.streams.delete("orders")
    hub.streams.create("orders")
    with pytest.raises(mainstem.StreamDeleted):
        producer.send("orders", b"lost").result(10)
    assert producer.send("orders", b"new").result(10) == (0, 0)
    producer.close()
    assert values(hub, "orders") == [b"new"]


def test_streams_can_come_and_go_often(hub):
    for number in range(30):
        hub.streams.create("orders")
        with hub.producer() as producer:
            producer.send("orders", b"%d" % number)
        assert values(hub, "orders") == [b"%d" % number]
        hub.streams.delete("orders")
    assert hub.streams.list() == []


def test_statistics_are_numbers_with_names(hub):
    hub.streams.create("orders")
    before = hub.statistics()
    with hub.producer() as producer:
        producer.send("orders", b"x")
    after = hub.statistics()
    assert after["flushes_applied"] > before["flushes_applied"]
    assert after["bytes_written"] > before["bytes_written"]
    assert all(isinstance(name, str) and isinstance(count, int) for name, count in after.items())


# Streams made by writing to them.


def test_auto_create_makes_the_stream_of_the_first_write(tmp_path):
    with mainstem.open(tmp_path, auto_create=True) as hub:
        with hub.producer() as producer:
            assert producer.send("orders", b"x").result(10) == (0, 0)
            with pytest.raises(mainstem.InvalidName):
                producer.send("not/allowed", b"x")
        with pytest.raises(mainstem.UnknownStream):
            hub.consumer("never-written")
        assert [stream.name for stream in hub.streams.list()] == ["orders"]
