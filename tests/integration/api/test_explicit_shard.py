"""Records whose shard the caller chooses, over both hubs: it wins over the key, and keeps its place in the order."""

import time
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import mainstem
from mainstem.core.errors import InvalidRecord, InvalidRequest, InvalidSetting
from mainstem.core.placement import shards_for
from mainstem.hub.hub import Hub
from mainstem.produce.shipping import Shipping
from tests.integration.api.conftest import read_all

SHARDS = 4
SCHEMA = {"id": "int64 not null", "note": "text"}


@pytest.fixture
def wide(hub: Hub) -> str:
    hub.streams.create("wide", shards=SHARDS)
    return "wide"


@pytest.fixture
def orders(hub: Hub) -> str:
    hub.streams.create("orders", shards=SHARDS, schema=SCHEMA, key="id")
    return "orders"


def hashed(key: bytes) -> int:
    return int(shards_for([key], SHARDS, "crc32", 0)[0])


def by_shard(hub: Hub, stream: str) -> dict[int, list[Any]]:
    """What stands in each shard, in its order."""
    found: dict[int, list[Any]] = {}
    for record in read_all(hub, stream):
        found.setdefault(record.shard, []).append(record.value)
    return found


# Bytes.


def test_it_wins_over_the_key_which_is_stored(hub, wide):
    with hub.producer() as producer:
        places = [producer.send(wide, b"v", b"k", shard=shard).result() for shard in range(SHARDS)]
    assert places == [(shard, 0) for shard in range(SHARDS)]
    assert {(record.shard, record.key, record.value) for record in read_all(hub, wide)} == {
        (shard, b"k", b"v") for shard in range(SHARDS)
    }


def test_with_headers_a_time_and_no_key(hub, wide):
    with hub.producer() as producer:
        assert producer.send(wide, None, None, {"a": b"b"}, 17, 3).result() == (3, 0)
        assert producer.send(wide, b"v", shard=np.int64(2)).result() == (2, 0)
    with hub.consumer(wide, start="earliest", follow=False, where="_shard = 3") as consumer:
        (record,) = consumer
    assert (record.shard, record.value, record.headers, record.timestamp_us) == (3, None, {"a": b"b"}, 17)


@pytest.mark.parametrize("batch_bytes", [1 << 10, 1 << 20])
def test_among_keyed_records_and_others_every_shard_keeps_the_order(hub, wide, batch_bytes):
    """Of one thread, and many in one chunk: the acks say where each one is."""
    chosen = [None, 0, None, 3, 1, None, 2]
    sent = []
    with hub.producer(batch_bytes=batch_bytes) as producer:
        for number in range(2_000):
            shard = chosen[number % len(chosen)]
            key = b"%d" % (number % 11) if number % 3 else None
            sent.append((shard, key, producer.send(wide, b"%d" % number, key, shard=shard)))
    places = [ack.result() for _, _, ack in sent]
    for (shard, key, _), (placed, _) in zip(sent, places, strict=True):
        if shard is not None:
            assert placed == shard
        elif key is not None:
            assert placed == hashed(key)
    found = {(record.shard, record.offset): (record.key, record.value) for record in read_all(hub, wide)}
    assert [found[place] for place in places] == [(key, b"%d" % number) for number, (_, key, _) in enumerate(sent)]
    for shard in range(SHARDS):
        offsets = [offset for placed, offset in places if placed == shard]
        assert offsets == list(range(len(offsets)))


def test_many_and_tables(hub, wide):
    keys = [b"%d" % number for number in range(100)]
    with hub.producer() as producer:
        producer.send(wide, b"first", shard=2)
        assert producer.send_many(wide, keys, keys, shard=2).result() == [(2, 1, 100)]
        assert producer.send_many(wide, [b"x"], shard=1).result() == [(1, 0, 1)]
        table = pa.table({"key": keys, "value": keys})
        assert producer.send_batch(wide, table, shard=2).result() == [(2, 101, 100)]
        assert len(producer.send_batch(wide, table).result()) == SHARDS
    assert by_shard(hub, wide)[2][:201] == [b"first", *keys, *keys]


def test_an_atomic_table_of_many_keys(hub, wide):
    """Without the shard it is refused, as its keys belong to several."""
    table = pa.table({"key": [b"%d" % number for number in range(20)], "value": [b"x"] * 20})
    with hub.producer() as producer:
        with pytest.raises(InvalidRequest, match="must belong to one shard"):
            producer.send_batch(wide, table, atomic=True)
        assert producer.send_batch(wide, table, shard=3, atomic=True).result() == [(3, 0, 20)]


# Rows.


def test_rows_and_tombstones(hub, orders):
    """The key is made of a column, and found in any shard; the hash of a key says nothing of these."""
    with hub.producer() as producer:
        acks = [
            producer.send(orders, {"id": 1}, shard=3),
            producer.send(orders, {"id": 1, "note": "by its key"}),
            producer.send(orders, b'{"id": 2}', shard=0),
            producer.send(orders, {"id": 3}, shard=3),
            producer.send(orders, None, key=1, shard=3),
            producer.send(orders, {"id": 4}, shard=3),
        ]
        places = [ack.result() for ack in acks]
        many = producer.send_many(orders, [{"id": 5}, b'{"id": 6}', None], [None, None, 5], shard=2)
        assert [run[0] for run in many.result()] == [2, 2]
        table = pa.table({"id": range(7, 20)})
        assert producer.send_batch(orders, table, shard=1, atomic=True).result()[0][0] == 1
    home = hashed(b"1")
    assert [shard for shard, _ in places] == [3, home, 0, 3, 3, 3]
    chosen = [
        record
        for record in read_all(hub, orders)
        if record.shard == 3 and record.value != {"id": 1, "note": "by its key"}
    ]
    assert [(record.key, record.value and record.value["id"]) for record in chosen] == [
        (b"1", 1),
        (b"3", 3),
        (b"1", None),
        (b"4", 4),
    ]
    assert sorted(found["_shard"] for found in hub.find(orders, "id = 1", columns=["_shard"]).to_dicts()) == sorted(
        [3, home]
    )


def test_rows_by_the_fast_way_keep_their_order_beside_chosen_ones(hub, orders):
    with hub.producer() as producer:
        for number in range(1_000):
            producer.send(orders, {"id": 1, "note": str(number)}, shard=hashed(b"1") if number % 5 == 4 else None)
    assert [row["note"] for row in by_shard(hub, orders)[hashed(b"1")]] == [str(number) for number in range(1_000)]


def test_erasing_a_key_reaches_all_of_its_records(hub, wide):
    with hub.producer() as producer:
        for shard in range(SHARDS):
            producer.send(wide, b"v", b"k", shard=shard)
    assert hub.streams.erase(wide, b"k").records == SHARDS
    assert read_all(hub, wide) == []


def test_a_dead_letter_goes_to_the_stream_of_dead_letters(hub, orders):
    with hub.producer(on_bad="dead_letter") as producer:
        ack = producer.send(orders, {"id": "x"}, shard=3)
        assert ack.result() == (0, 0)
        assert ack.stream == "orders.dead"
        with pytest.raises(InvalidRequest, match="has 4 shards"):
            producer.send(orders, {"id": "x"}, shard=4)


# What is refused, in the call.


@pytest.mark.parametrize("shard", [4, -1, 1 << 70])
def test_a_shard_that_is_not_there(hub, wide, shard):
    with hub.producer() as producer:
        for send in calls(producer, wide, shard):
            with pytest.raises(InvalidRequest, match=f"'wide' has 4 shards, 0 to 3; there is no shard {shard}"):
                send()
    assert read_all(hub, wide) == []


@pytest.mark.parametrize("shard", ["1", 1.0, True, b"1", [1]])
def test_a_shard_that_is_no_number(hub, wide, shard):
    with hub.producer() as producer:
        for send in calls(producer, wide, shard):
            with pytest.raises(InvalidSetting, match="'wide': shard is a whole number, not"):
                send()


def test_a_compacted_stream(hub):
    hub.streams.create("kept", shards=SHARDS, cleanup="compact")
    with hub.producer() as producer:
        for send in calls(producer, "kept", 1):
            with pytest.raises(InvalidRequest, match="compacted by key, each shard for itself"):
                send()
        producer.send("kept", b"v", b"k").result()
        hub.streams.alter("kept", cleanup="delete")
        assert producer.send("kept", b"v", b"k", shard=1).result()[0] == 1


def test_an_atomic_table_is_still_one_batch(hub, wide):
    with hub.producer() as producer, pytest.raises(mainstem.RecordTooLarge, match="split the table"):
        producer.send_batch(wide, pa.table({"value": [bytes(1 << 20)] * 20}), shard=1, atomic=True)


def test_a_tombstone_still_needs_its_key(hub, orders):
    with hub.producer() as producer, pytest.raises(InvalidRecord, match="give its key"):
        producer.send(orders, None, shard=1)


def calls(producer, stream, shard):
    table = pa.table({"key": [b"k"], "value": [b"v"]})
    return (
        lambda: producer.send(stream, b"v", b"k", shard=shard),
        lambda: producer.send_many(stream, [b"v"], [b"k"], shard=shard),
        lambda: producer.send_batch(stream, table, shard=shard),
        lambda: producer.send_batch(stream, table, shard=shard, atomic=True),
    )


# More shards.


def test_a_new_shard_may_be_asked_for_at_once(hub, wide):
    with hub.producer() as producer:
        producer.send(wide, b"v").result()
        hub.streams.alter(wide, shards=9)
        assert producer.send(wide, b"v", shard=8).result() == (8, 0)
        with pytest.raises(InvalidRequest, match="has 9 shards, 0 to 8; there is no shard 9"):
            producer.send(wide, b"v", shard=9)


@pytest.mark.parametrize("is_anew", [False, True])
def test_a_new_shard_may_be_asked_for_while_records_gather_for_the_old_ones(hub, wide, is_anew):
    """These records are in a chunk that was begun for four shards. If the stream was deleted meanwhile, they fail."""
    with hub.producer(linger=60) as producer:
        old = [producer.send(wide, b"keyed", b"k"), producer.send(wide, b"old", shard=1)]
        if is_anew:
            hub.streams.delete(wide)
            hub.streams.create(wide, shards=9)
        else:
            hub.streams.alter(wide, shards=9)
        new = producer.send(wide, b"new", shard=8)
        later = producer.send(wide, b"later", shard=1)
        assert new.result() == (8, 0)
        assert later.result()[0] == 1
        errors = [ack.exception() for ack in old]
    assert [type(error) for error in errors] == [mainstem.StreamDeleted if is_anew else type(None)] * 2
    assert [value for value in by_shard(hub, wide)[1] if value != b"keyed"] == (
        [b"later"] if is_anew else [b"old", b"later"]
    )


@pytest.mark.parametrize("before", [1, SHARDS])
def test_what_comes_back_stays_in_its_shard(hub, before):
    """The producer does not know yet that there are more shards: everything is refused once and split anew."""
    hub.streams.create("s", shards=before)
    keys = [b"%d" % number for number in range(40)]
    table = pa.table({"key": keys, "value": keys})
    with hub.producer() as producer:
        producer.send("s", b"v").result()
        hub.streams.alter("s", shards=16)
        shard = before - 1
        few = producer.send("s", b"few", b"k", shard=shard)
        one = few.result()
        hub.streams.alter("s", shards=32)
        mixed = [producer.send("s", key, key, shard=None if number % 2 else shard) for number, key in enumerate(keys)]
        many = producer.send_many("s", keys, keys, shard=shard)
        atomic = producer.send_batch("s", table, shard=shard, atomic=True)
        places = [ack.result() for ack in mixed]
        runs = [*many.result(), *atomic.result()]
    assert one[0] == shard
    assert {place[0] for place in places[::2]} == {shard}
    wanted = shards_for(keys[1::2], 32, "crc32", 0).tolist()
    assert [place[0] for place in places[1::2]] == wanted
    assert [(run[0], run[2]) for run in runs] == [(shard, 40), (shard, 40)]
    assert all(first < second for first, second in pairwise(place for place in places if place[0] == shard))


@pytest.mark.parametrize("is_chosen", [True, False])
def test_a_record_for_a_new_shard_waits_for_those_that_come_back(tmp_path, is_chosen):
    """The first record is on its way to the only shard there was; when that is refused, its key puts it into shard 3.
    The second was sent after it, to shard 3: by its number, or by the same key of a stream that was looked up again."""
    key = next(key for key in (b"%d" % number for number in range(100)) if hashed(key) == 3)
    with mainstem.open(tmp_path) as hub, hub.producer() as producer:
        hub.streams.create("s")
        producer.prepare("s")
        append, held = producer._port.append, []
        producer._port.append = lambda *call: held.append(call)  # type: ignore[method-assign]
        producer.send("s", b"first", key)
        with pytest.raises(mainstem.DeadlineExceeded):
            producer.flush(0)
        hub.streams.alter("s", shards=SHARDS)
        if is_chosen:
            producer.send("s", b"second", shard=3)
        else:
            producer.prepare("s")
            producer.send("s", b"second", key)
        with pytest.raises(mainstem.DeadlineExceeded):
            producer.flush(0)
        producer._port.append = append  # type: ignore[method-assign]
        for call in held:
            append(*call)
        producer.flush(10)
        assert by_shard(hub, "s") == {3: [b"first", b"second"]}


@pytest.mark.parametrize("are_held_back", [True, False])
def test_a_chunk_is_acknowledged_whole_or_not_at_all(tmp_path, monkeypatch, are_held_back):
    """The stream is looked up again while a record for its only shard is refused. The two records after it are for that
    shard and for a new one: if they went out at once, the new shard would take its record, and the old refuse the
    other."""
    stays, moves = (next(key for key in map(b"%d".__mod__, range(100)) if hashed(key) == shard) for shard in (0, 3))
    if not are_held_back:
        monkeypatch.setattr(Shipping, "_are_ahead", lambda self, streams: False)
    with mainstem.open(tmp_path) as hub, hub.producer() as producer:
        hub.streams.create("s")
        producer.send("s", b"before", stays).result(10)
        append, held = producer._port.append, []

        def answer_later(batches, timeout, done):
            append(batches, timeout, lambda results: held.append((done, results)))

        hub.streams.alter("s", shards=SHARDS)
        producer._port.append = answer_later  # type: ignore[method-assign]
        first = producer.send("s", b"first", stays)
        with pytest.raises(mainstem.DeadlineExceeded):
            producer.flush(0)
        producer._port.append = append  # type: ignore[method-assign]
        producer.prepare("s")
        both = producer.send_many("s", [b"stays", b"moves"], [stays, moves])
        deadline = time.monotonic() + 10
        while not held or len(read_all(hub, "s")) < (1 if are_held_back else 2):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for done, results in held:
            done(results)
        assert first.result(10) == (0, 1)
        if are_held_back:
            assert both.result(10) == [(0, 2, 1), (3, 0, 1)]
            assert by_shard(hub, "s") == {0: [b"before", b"first", b"stays"], 3: [b"moves"]}
        else:
            with pytest.raises(mainstem.Refused, match="only those for shards 3 were written"):
                both.result(10)
            assert by_shard(hub, "s") == {0: [b"before", b"first"], 3: [b"moves"]}
        assert producer.send("s", b"after", stays).result(10) == (0, 3 if are_held_back else 2)
