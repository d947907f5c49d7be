"""A producer that was told to keep a share of its records: what is sent, what each ack says, what a reader can tell."""

from typing import Any

import pyarrow as pa
import pytest

import mainstem
from mainstem.core.errors import LeftOut
from mainstem.core.sampling import SHARE_HEADER
from mainstem.produce.shipping import Shipping

SHARE = 0.25


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with mainstem.open(tmp_path) as hub:
        monkeypatch.setattr(hub._port, "write_share", SHARE)
        yield hub


def read(hub, stream="orders") -> dict[tuple[int, int], Any]:
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        records = list(consumer)
    assert all((record.headers or {})[SHARE_HEADER] == b"0.25" for record in records)
    return {(record.shard, record.offset): record.value for record in records}


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("way", ["plain", "keyed", "with headers", "chosen", "few"])
def test_every_ack_tells_the_truth(hub, shards, way):
    hub.streams.create("orders", shards=shards)
    count = 20 if way == "few" else 2_000
    sent = {}
    with hub.producer() as producer:
        for number in range(count):
            value = b"%d" % number
            ways: dict[str, dict[str, Any]] = {
                "keyed": {"key": b"%d" % (number % 7)},
                "with headers": {"headers": {"number": value}},
                "chosen": {"shard": number % shards},
            }
            more = ways.get(way, {})
            sent[value] = producer.send("orders", value, **more)
        producer.flush()
        left_out = producer.left_out
    found = {}
    for value, ack in sent.items():
        if isinstance(ack.exception(), LeftOut):
            assert "LeftOut" in repr(ack)
            with pytest.raises(LeftOut, match=r"a share of 0\.25 is kept"):
                ack.result()
        else:
            found[ack.result()] = value
    assert read(hub) == found
    assert left_out == count - len(found)
    if count > 100:
        assert len(found) == pytest.approx(count * SHARE, rel=0.25)


def test_rows_are_sampled_with_their_headers(hub):
    hub.streams.create("orders", schema={"id": "int64"}, key="id", shards=3)
    with hub.producer() as producer:
        acks = [producer.send("orders", {"id": number}) for number in range(1_000)]
        producer.flush()
    found = {ack.result(): {"id": number} for number, ack in enumerate(acks) if ack.exception() is None}
    assert read(hub) == found


def test_a_table_has_the_runs_of_what_was_kept(hub):
    hub.streams.create("orders", schema={"id": "int64"})
    with hub.producer() as producer:
        runs = producer.send_batch("orders", pa.table({"id": range(1_000)})).result()
    stored = read(hub)
    assert sum(count for _, _, count in runs) == len(stored) == pytest.approx(250, rel=0.25)
    assert [value["id"] for value in stored.values()] == sorted(value["id"] for value in stored.values())


@pytest.mark.parametrize("count", [3, 1_000])
def test_a_table_that_was_encoded_before_its_sender_was_told_stays_whole(hub, monkeypatch, count):
    hub.streams.create("orders")
    table = pa.table({"value": [b"%d" % number for number in range(count)]})
    ship = Shipping._encode

    def told(self, parcel):
        monkeypatch.setattr(hub._port, "write_share", SHARE)
        return ship(self, parcel)

    monkeypatch.setattr(hub._port, "write_share", 1.0)
    monkeypatch.setattr(Shipping, "_encode", told)
    with hub.producer() as producer:
        ack = producer.send_batch("orders", table)
        assert ack.result() == [(0, 0, count)]
        assert producer.left_out == 0


def test_what_must_be_whole_is_not_sampled(hub):
    hub.streams.create("orders")
    with hub.producer() as producer:
        table = pa.table({"value": [b"%d" % number for number in range(100)]})
        assert producer.send_batch("orders", table, atomic=True).result() == [(0, 0, 100)]
    with hub.transaction() as transaction:
        transaction.send_many("orders", [b"x"] * 100)
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        assert len(list(consumer)) == 200


def test_nothing_may_be_left_of_a_chunk(hub, monkeypatch):
    monkeypatch.setattr(hub._port, "write_share", 1e-9)
    hub.streams.create("orders")
    with hub.producer() as producer:
        acks = [producer.send("orders", b"x") for _ in range(50)]
        assert producer.send_many("orders", [b"x"] * 10).result() == []
        producer.flush()
        assert all(isinstance(ack.exception(), LeftOut) for ack in acks)
        # And then all of them again, under the numbers that follow.
        monkeypatch.setattr(hub._port, "write_share", 1.0)
        assert producer.send("orders", b"kept").result() == (0, 0)
