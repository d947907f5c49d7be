"""Transactions: writes to several streams, and cursors, together or not at all."""

import time

import pytest

import mainstem
from mainstem.core.errors import (
    Closed,
    DeadlineExceeded,
    Fenced,
    InvalidRequest,
    InvalidSetting,
    Refused,
    TransactionAborted,
)
from mainstem.testing.server import ServerProcess
from mainstem.transport.sharing import CommitTransactionCall
from tests.integration.api.conftest import values


@pytest.fixture(autouse=True)
def no_groups_left(request):
    hub = request.getfixturevalue("hub") if "hub" in request.fixturenames else None
    yield
    for group in hub.groups.list() if hub is not None else ():
        hub.groups.delete(group.name)


def fill(hub, stream, count):
    hub.streams.create(stream, exist_ok=True)
    with hub.producer() as producer:
        for number in range(count):
            producer.send(stream, b"%d" % number)


def send_and_fail(transaction, stream="a", consumer=None):
    with transaction as tx:
        tx.send_many(stream, [b"x"] * 1000)
        if consumer is not None:
            tx.advance(consumer)
        raise ZeroDivisionError


def test_all_of_it_is_seen_when_the_block_ends(hub):
    hub.streams.create("a", shards=2)
    hub.streams.create("b")
    with hub.transaction() as tx:
        for number in range(10):
            tx.send("a", b"%d" % number, key=b"%d" % number)
        tx.send_many("b", [b"x", b"y"])
        assert values(hub, "a") == values(hub, "b") == []
    assert sorted(values(hub, "a")) == sorted(b"%d" % number for number in range(10))
    assert values(hub, "b") == [b"x", b"y"]
    assert tx.offsets[("b", 0)] == (0, 2)
    assert sum(count for (stream, _), (_, count) in tx.offsets.items() if stream == "a") == 10


def test_nothing_is_seen_if_the_block_raises(hub):
    hub.streams.create("a")
    tx = hub.transaction()
    with pytest.raises(ZeroDivisionError):
        send_and_fail(tx)
    assert values(hub, "a") == []
    with pytest.raises(TransactionAborted):
        tx.commit()
    with hub.transaction() as tx:
        tx.send("a", b"y")
        tx.abort()
    assert values(hub, "a") == []
    with hub.transaction() as tx:
        tx.send("a", b"z")
    assert values(hub, "a") == [b"z"]
    assert tx.offsets == {("a", 0): (0, 1)}
    with pytest.raises(Closed):
        tx.send("a", b"again")


def test_rows_and_tables(hub):
    hub.streams.create("rows", schema={"id": "int64"})
    with hub.transaction() as tx:
        tx.send("rows", {"id": 1})
        with pytest.raises(mainstem.SchemaMismatch):
            tx.send("rows", {"id": "no"})
        import pyarrow as pa

        tx.send_batch("rows", pa.table({"id": pa.array([2, 3], pa.int64())}))
    assert values(hub, "rows") == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_more_than_one_part(hub):
    hub.streams.create("a")
    with hub.transaction() as tx:
        for number in range(40):
            tx.send("a", b"%02d" % number * 50_000)
    found = values(hub, "a")
    assert [value[:2] for value in found] == [b"%02d" % number for number in range(40)]


def test_read_transform_write(hub):
    fill(hub, "orders", 20)
    hub.streams.create("totals")
    with hub.consumer("orders", group="g", start="earliest", follow=False, commit="manual") as consumer:
        for batch in consumer.batches():
            with hub.transaction() as tx:
                for record in batch.records():
                    tx.send("totals", b"%d" % (2 * int(record.value)))
                tx.advance(consumer)
    assert values(hub, "totals") == [b"%d" % (2 * number) for number in range(20)]
    assert [shard.offset for shard in hub.groups.get("g").shards] == [20]


def test_a_consumer_goes_back_if_the_transaction_is_aborted(hub):
    fill(hub, "orders", 5)
    hub.streams.create("totals")
    with hub.consumer("orders", group="g", start="earliest", commit="manual") as consumer:
        record = consumer.poll(10)
        with pytest.raises(ZeroDivisionError):
            send_and_fail(hub.transaction(), "totals", consumer)
        again = consumer.poll(10)
        assert again.offset == record.offset == 0
        with hub.transaction() as tx:
            tx.send("totals", again.value)
            tx.advance(consumer)
        assert [shard.offset for shard in hub.groups.get("g").shards] == [1]
        assert consumer.poll(10).offset == 1
    assert values(hub, "totals") == [b"0"]


def test_a_consumer_that_commits_by_itself_is_not_advanced(hub):
    fill(hub, "orders", 5)
    with hub.consumer("orders", group="g", start="earliest") as consumer:
        consumer.poll(10)
        with pytest.raises(InvalidRequest), hub.transaction() as tx:
            tx.advance(consumer)


def test_a_newer_writer_fences_the_older(hub):
    hub.streams.create("a")
    old = hub.transaction(writer="billing")
    old.send("a", b"old")
    old._writing.producer.flush()
    hub._writers.clear()
    with hub.transaction(writer="billing") as new:
        new.send("a", b"new")
    with pytest.raises(Refused) as caught:
        old.commit()
    assert isinstance(caught.value, Fenced | TransactionAborted)
    assert values(hub, "a") == [b"new"]


def test_one_whose_time_is_over_is_aborted(hub):
    hub.streams.create("a")
    tx = hub.transaction(timeout="100ms")
    tx.send("a", b"late")
    tx._writing.producer.flush()
    time.sleep(0.3)
    with pytest.raises(TransactionAborted):
        tx.commit()
    assert values(hub, "a") == []
    with pytest.raises(InvalidSetting):
        hub.transaction(timeout="2h")


def test_a_stream_that_was_deleted_meanwhile(hub):
    hub.streams.create("a")
    hub.streams.create("b")
    tx = hub.transaction()
    tx.send("a", b"1")
    tx.send("b", b"1")
    tx._writing.producer.flush()
    hub.streams.delete("a")
    with pytest.raises(mainstem.MainstemError):
        tx.commit()
    assert values(hub, "b") == []
    with hub.transaction() as tx:
        tx.send("b", b"2")
    assert values(hub, "b") == [b"2"]


def test_an_empty_one(hub):
    with hub.transaction() as tx:
        pass
    assert tx.offsets == {}


@pytest.mark.slow("a server is killed and started again")
def test_what_a_killed_server_had_not_committed_is_aborted(tmp_path):
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("a")
        tx = hub.transaction()
        tx.send("a", b"lost")
        tx._writing.producer.flush()
        with hub.transaction() as kept:
            kept.send("a", b"kept")
        server.kill()
        server.start()
        with pytest.raises(TransactionAborted):
            tx.commit()
        assert values(hub, "a") == [b"kept"]


def test_after_a_commit_of_which_nothing_was_heard_the_consumer_goes_on_where_the_group_stands(hub, monkeypatch):
    """It was carried out, and only the answer was lost: reading the same again would do its work twice."""
    fill(hub, "orders", 10)
    hub.streams.create("totals")
    carry_out = hub._port.call

    def lose_answer(call, timeout=None):
        answer = carry_out(call, timeout)
        if isinstance(call, CommitTransactionCall):
            raise DeadlineExceeded("the outcome is not known")
        return answer

    with hub.consumer("orders", group="g", start="earliest", commit="manual") as consumer:
        records = [consumer.poll(10) for _ in range(4)]
        transaction = hub.transaction()
        transaction.send("totals", records[0].value)
        transaction.advance(consumer)
        monkeypatch.setattr(hub._port, "call", lose_answer)
        with pytest.raises(DeadlineExceeded):
            transaction.commit()
        monkeypatch.undo()
        assert consumer.poll(10).offset == 4
    assert values(hub, "totals") == [b"0"]
