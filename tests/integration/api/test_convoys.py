"""Many producers of one hub that send a record now and then: they share batches, and each is told the truth."""

import threading
import time
from typing import Any

import pytest

import mainstem
from mainstem.core.errors import SchemaMismatch, StreamDeleted

PRODUCERS = 20


@pytest.fixture
def hub(shared_server):
    with mainstem.connect(shared_server.url) as hub:
        yield hub
        for stream in hub.streams.list():
            hub.streams.delete(stream.name)


def placed(hub, stream="orders") -> dict[tuple[int, int], Any]:
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        return {(record.shard, record.offset): record.value for record in consumer}


def batches(hub, stream="orders") -> int:
    """As they were written: none is merged yet."""
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        return sum(1 for _ in consumer.batches())


@pytest.mark.parametrize("way", ["plain", "keyed", "rows"])
def test_they_share_batches_and_every_record_is_where_its_ack_says(hub, way):
    is_rows = way == "rows"
    hub.streams.create("orders", shards=3, schema={"who": "int64", "number": "int64"} if is_rows else None)
    producers = [hub.producer() for _ in range(PRODUCERS)]
    sent: list[tuple[Any, Any]] = []
    for number in range(30):
        for who, producer in enumerate(producers):
            value: Any = {"who": who, "number": number} if is_rows else b"%d %d" % (who, number)
            sent.append((producer.send("orders", value, b"%d" % who if way == "keyed" else None), value))
        time.sleep(0.01)
    for producer in producers:
        producer.close()
    assert placed(hub) == {ack.result(10): value for ack, value in sent}
    assert batches(hub) < len(sent) / 2


def test_each_keeps_its_order_whatever_it_sends_in_between(hub):
    """Lone records, floods, tables and headers: some travel with others, some do not, and none overtakes another."""
    hub.streams.create("orders")

    def work(who: int) -> None:
        with hub.producer(batch_bytes=8_192) as producer:
            number = 0
            for step in range(60):
                count = 300 if step % 7 == who % 7 else 1
                values = [b"%d %d" % (who, number + index) for index in range(count)]
                if step % 5 == 4:
                    producer.send_many("orders", values)
                else:
                    for value in values:
                        producer.send("orders", value, headers={"a": b"b"} if step % 11 == 10 else None)
                number += count
                time.sleep(0.001)
        totals[who] = number

    totals: dict[int, int] = {}
    threads = [threading.Thread(target=work, args=(who,)) for who in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found: dict[int, list[int]] = {who: [] for who in range(6)}
    for value in placed(hub).values():
        who, number = value.split()
        found[int(who)].append(int(number))
    assert found == {who: list(range(totals[who])) for who in range(6)}


def test_more_shards_while_they_send(hub):
    hub.streams.create("orders", shards=1)
    producers = [hub.producer() for _ in range(PRODUCERS)]
    sent = []
    for number in range(40):
        if number % 8 == 7:
            hub.streams.alter("orders", shards=1 + number // 4)
        for who, producer in enumerate(producers):
            sent.append((producer.send("orders", b"%d %d" % (who, number), b"%d" % who), b"%d %d" % (who, number)))
        time.sleep(0.003)
    for producer in producers:
        producer.close()
    assert placed(hub) == {ack.result(10): value for ack, value in sent}


def test_a_deleted_stream_is_told_to_those_who_wrote_to_it_and_to_nobody_else(hub):
    hub.streams.create("orders")
    hub.streams.create("gone")
    producers = [hub.producer() for _ in range(6)]
    for producer in producers:
        producer.prepare("orders", "gone")
    hub.streams.delete("gone")
    acks = [producer.send("gone" if who % 2 else "orders", b"%d" % who) for who, producer in enumerate(producers)]
    assert all(isinstance(ack.exception(10), StreamDeleted) for ack in acks[1::2])
    assert {ack.result(10) for ack in acks[::2]} == {(0, 0), (0, 1), (0, 2)}
    again = [producer.send("orders", b"again") for producer in producers]
    assert {ack.result(10)[1] for ack in again} == set(range(3, 9))


def test_a_record_that_is_refused_harms_nobody_else(hub):
    """They know the stream without its schema, so what does not fit is found by the server, in the batch of all."""
    hub.streams.create("orders")
    producers = [hub.producer() for _ in range(6)]
    for producer in producers:
        producer.prepare("orders")
    hub.streams.set_schema("orders", {"id": "int64"})
    values = [b'{"id": %d}' % who if who != 3 else b"no JSON" for who in range(6)]
    acks = [producer.send("orders", value) for producer, value in zip(producers, values, strict=True)]
    heard = [ack.exception(10) for ack in acks]
    assert [isinstance(error, SchemaMismatch) for error in heard] == [who == 3 for who in range(6)]
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        assert sorted(record.value["id"] for record in consumer) == [0, 1, 2, 4, 5]
