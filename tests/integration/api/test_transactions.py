"""Transactions: writes to several streams, and cursors, together or not at all."""

import contextlib
import random
import threading
import time
from collections import Counter
from typing import Any

import pytest

import mainstem
from mainstem.core.errors import (
    Closed,
    DeadlineExceeded,
    Fenced,
    InvalidName,
    InvalidRequest,
    InvalidSetting,
    Refused,
    TransactionAborted,
)
from mainstem.hub.hub import Hub
from mainstem.log.flush import ForgetTransactions
from mainstem.testing.server import ServerProcess
from tests.integration.api.conftest import read_all


def values(hub: Hub, stream: str) -> list[Any]:
    return [record.value for record in read_all(hub, stream)]


def fill(hub, stream, count):
    hub.streams.create(stream, exist_ok=True)
    with hub.producer() as producer:
        for number in range(count):
            producer.send(stream, b"%d" % number)


@pytest.fixture(params=["held back", "written"])
def put(request):
    """Sends a record in a transaction. A small one is all held back until its commit; this makes it a large one, of
    which everything is written when it is sent."""

    def put_one(hub, tx, stream, value):
        tx.send(stream, value)
        if request.param == "written":
            write(hub, tx)
        tx._writing.producer.flush()
        assert tx._writing.port.is_begun == (request.param == "written")

    return put_one


def write(hub, tx):
    hub.streams.create("ballast", exist_ok=True)
    tx.send_many("ballast", [random.Random(7).randbytes(500_000) for _ in range(3)])


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


def test_small_ones_do_not_all_write_to_the_same_shard(hub):
    hub.streams.create("wide", shards=2)
    for _ in range(24):
        # Each of another program, as it were: what writes is made anew, and begins somewhere.
        hub._writings.forget()
        with hub.transaction() as tx:
            tx.send("wide", b"v")
    assert {record.shard for record in read_all(hub, "wide")} == {0, 1}


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


def test_one_transaction_at_a_time_advances_a_consumer(hub):
    """Were the later committed first, the cursor would be past what the earlier has read, which is then refused."""
    fill(hub, "orders", 5)
    hub.streams.create("totals")
    with hub.consumer("orders", group="g", start="earliest", commit="manual") as consumer:
        earlier, later = hub.transaction(), hub.transaction()
        earlier.send("totals", consumer.poll(10).value)
        earlier.advance(consumer)
        earlier.send("totals", consumer.poll(10).value)
        with pytest.raises(InvalidRequest, match="commit or abort it first"):
            later.advance(consumer)
        with pytest.raises(InvalidRequest, match="commit or abort it first"):
            consumer.commit()
        earlier.advance(consumer)
        earlier.commit()
        later = hub.transaction()
        later.send("totals", consumer.poll(10).value)
        later.advance(consumer)
        later.abort()
        with hub.transaction() as tx:
            tx.advance(consumer)
            tx.send("totals", consumer.poll(10).value)
            tx.advance(consumer)
    assert values(hub, "totals") == [b"0", b"1", b"2"]
    assert [shard.offset for shard in hub.groups.get("g").shards] == [3]


@pytest.mark.parametrize("as_batches", [False, True])
def test_who_advances_first_and_fails_reads_the_same_again(hub, as_batches):
    """Also if it catches the error and just goes on."""
    fill(hub, "orders", 6)
    hub.streams.create("totals")
    failures = [True, True]
    with hub.consumer("orders", group="g", start="earliest", follow=False, commit="manual") as consumer:
        for found in consumer.batches() if as_batches else consumer:
            records = found.records() if as_batches else [found]
            with contextlib.suppress(ZeroDivisionError), hub.transaction() as tx:
                tx.advance(consumer)
                for record in records:
                    tx.send("totals", record.value)
                    if int(record.value) % 3 == 2 and failures and failures.pop():
                        raise ZeroDivisionError
    assert values(hub, "totals") == [b"%d" % number for number in range(6)]
    assert not failures


def test_who_has_lost_a_shard_reads_the_others_again(hub):
    """What was to be written together with what was read of that is not written either."""
    hub.streams.create("orders", shards=2)
    with hub.producer() as producer:
        for shard in (0, 1):
            producer.send("orders", b"%d" % shard, shard=shard)
    with hub.consumer("orders", group="g", start="earliest", commit="manual") as consumer:
        first, second = consumer.poll_batch(10), consumer.poll_batch(10)
        consumer._lose(consumer._unit_of(first))
        with pytest.raises(Fenced), hub.transaction() as tx:
            tx.advance(consumer)
        assert consumer.poll_batch(10).shard == second.shard


def test_more_shards_between_a_write_and_its_commit_abort_it(hub, put):
    """Embedded as on a server: what has to be done again is TransactionAborted."""
    hub.streams.create("orders")
    tx = hub.transaction()
    put(hub, tx, "orders", b"early")
    hub.streams.alter("orders", shards=2)
    with pytest.raises(TransactionAborted, match="Nothing of it was kept"):
        tx.commit()
    assert values(hub, "orders") == []
    with hub.transaction() as tx:
        tx.send("orders", b"late")
    assert values(hub, "orders") == [b"late"]


def read_and_sum(hub, consumers, fail):
    """One record of each consumer at a time, doubled, in one transaction; who fails goes on reading."""
    calls = 0
    while True:
        records = [record for consumer in consumers if (record := consumer.poll(10)) is not None]
        if not records:
            return
        calls += 1
        try:
            with hub.transaction() as tx:
                fail(calls, "before")
                tx.advance(*consumers)
                fail(calls, "advanced")
                for record in records:
                    tx.send("totals", record.stream.encode() + record.value)
                fail(calls, "sent")
        except (ZeroDivisionError, Fenced, TransactionAborted):
            continue


@pytest.mark.parametrize("where", ["advanced", "sent"])
def test_nothing_is_lost_wherever_a_block_raises_after_the_advance(hub, where):
    fill(hub, "in1-", 8)
    fill(hub, "in2-", 8)
    hub.streams.create("totals")

    def fail(call, place):
        if place == where and call in (1, 3, 4):
            raise ZeroDivisionError

    options = {"start": "earliest", "follow": False, "commit": "manual"}
    with hub.consumer("in1-", group="g1", **options) as one, hub.consumer("in2-", group="g2", **options) as two:
        read_and_sum(hub, (one, two), fail)
    assert values(hub, "totals") == [b"in%d-%d" % (group, number) for number in range(8) for group in (1, 2)]


@pytest.mark.parametrize("fenced", [0, 1])
def test_a_refused_advance_sets_all_consumers_back(hub, fenced):
    """Those named after the one that refuses it, and those named before."""
    fill(hub, "in1-", 8)
    fill(hub, "in2-", 8)
    hub.streams.create("totals")

    def fail(call, place):
        if call == 3 and place == "before":
            # As if another member had had a shard of it for a while.
            (unit,) = consumers[fenced]._committed
            consumers[fenced]._lost.append(unit)

    options = {"start": "earliest", "follow": False, "commit": "manual"}
    with hub.consumer("in1-", group="g1", **options) as one, hub.consumer("in2-", group="g2", **options) as two:
        consumers = one, two
        read_and_sum(hub, consumers, fail)
    assert values(hub, "totals") == [b"in%d-%d" % (group, number) for number in range(8) for group in (1, 2)]


def test_a_transaction_whose_advance_was_refused_is_over(hub):
    fill(hub, "orders", 5)
    hub.streams.create("totals")
    with hub.consumer("orders", group="g", start="earliest", commit="manual") as consumer:
        assert consumer.poll(10).offset == 0
        tx = hub.transaction()
        tx.send("totals", b"0")
        consumer._lost.append(next(iter(consumer._committed)))
        with pytest.raises(Fenced):
            tx.advance(consumer)
        with pytest.raises(TransactionAborted):
            tx.commit()
        assert consumer.poll(10).offset == 0
    assert values(hub, "totals") == []


def test_what_is_no_member_of_a_group_is_not_advanced(hub):
    fill(hub, "orders", 5)
    with hub.consumer("orders", start="earliest") as consumer, hub.transaction() as tx:
        for strange in (consumer, None, "orders"):
            with pytest.raises(InvalidRequest, match="opened with group="):
                tx.advance(strange)


def test_a_consumer_that_commits_by_itself_is_not_advanced(hub):
    fill(hub, "orders", 5)
    with hub.consumer("orders", group="g", start="earliest") as consumer:
        consumer.poll(10)
        with pytest.raises(InvalidRequest), hub.transaction() as tx:
            tx.advance(consumer)


def test_a_newer_writer_fences_the_older(hub, put):
    hub.streams.create("a")
    old = hub.transaction(writer="billing")
    put(hub, old, "a", b"old")
    hub._writers.clear()
    with hub.transaction(writer="billing") as new:
        new.send("a", b"new")
    with pytest.raises(Refused) as caught:
        old.commit()
    assert isinstance(caught.value, Fenced | TransactionAborted)
    assert values(hub, "a") == [b"new"]


def commit_late(hub, tx, put):
    put(hub, tx, "a", b"late")
    time.sleep(0.3)
    tx.commit()


def test_one_whose_time_is_over_is_aborted(hub, put):
    hub.streams.create("a")
    tx = hub.transaction(timeout="100ms")
    with pytest.raises(TransactionAborted):
        commit_late(hub, tx, put)
    assert values(hub, "a") == []
    with pytest.raises(InvalidSetting):
        hub.transaction(timeout="2h")


def test_a_stream_that_was_deleted_meanwhile(hub, put):
    hub.streams.create("a")
    hub.streams.create("b")
    tx = hub.transaction()
    tx.send("a", b"1")
    put(hub, tx, "b", b"1")
    hub.streams.delete("a")
    with pytest.raises(mainstem.MainstemError):
        tx.commit()
    assert values(hub, "b") == []
    with hub.transaction() as tx:
        tx.send("b", b"2")
    assert values(hub, "b") == [b"2"]


def test_a_small_one_is_one_flush(hub):
    for stream in ("a", "b", "c"):
        hub.streams.create(stream)
    flushes = []
    for _ in range(5):
        before = hub.statistics()["flushes_applied"]
        with hub.transaction() as tx:
            tx.send("a", b"1")
            tx.send_many("b", [b"2", b"3"])
            tx.send("c", b"4")
            tx.send_many("b", [b"5"])
        flushes.append(hub.statistics()["flushes_applied"] - before)
    # Now and then one of upkeep comes between.
    assert min(flushes) == 1
    assert tx.offsets == {("a", 0): (4, 1), ("b", 0): (12, 3), ("c", 0): (4, 1)}
    assert values(hub, "b") == [b"2", b"3", b"5"] * 5


def test_what_grows_beyond_what_is_held_back_is_all_there(hub):
    hub.streams.create("a", shards=3)
    sent = []
    with hub.transaction() as tx:
        for number in range(200):
            sent.append(random.Random(number).randbytes(20_000))
            tx.send("a", sent[-1], key=b"%d" % number)
            if number % 10 == 0:
                tx.send_many("a", [b"%d" % number], keys=[b"%d" % number])
                sent.append(b"%d" % number)
        assert tx._writing.port.is_begun
        assert values(hub, "a") == []
    assert Counter(values(hub, "a")) == Counter(sent)


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
        write(hub, tx)
        assert tx._writing is not None
        tx._writing.producer.flush()
        held = hub.transaction()
        held.send("a", b"held back")
        with hub.transaction() as kept:
            kept.send("a", b"kept")
        server.kill()
        server.start()
        with pytest.raises(TransactionAborted):
            tx.commit()
        held.commit()
        assert values(hub, "a") == [b"kept", b"held back"]


@pytest.mark.parametrize("is_done", [True, False], ids=["it was done", "it was not"])
def test_a_commit_that_nobody_answered_is_looked_up(hub, is_done, monkeypatch):
    """Whether the work is to be done again is for the log to say."""
    fill(hub, "orders", 20)
    hub.streams.create("totals")
    commit_whole = hub._port.commit_whole

    def no_answer(*args):
        monkeypatch.setattr(hub._port, "commit_whole", commit_whole)
        if is_done:
            commit_whole(*args)
        raise DeadlineExceeded("nobody answered")

    def work(batch):
        with hub.transaction() as tx:
            for record in batch.records():
                tx.send("totals", record.value)
            tx.advance(consumer)

    with hub.consumer("orders", group="g", start="earliest", follow=False, commit="manual") as consumer:
        batches = consumer.batches()
        monkeypatch.setattr(hub._port, "commit_whole", no_answer)
        with pytest.raises(DeadlineExceeded) as raised:
            work(next(batches))
        assert "not known whether" in raised.value.__notes__[0]
        for batch in consumer.batches():
            work(batch)
    assert values(hub, "totals") == [b"%d" % number for number in range(20)]
    assert hub.groups.get("g").records == 0


def test_what_went_wrong_is_told_though_a_consumer_is_closed(hub):
    fill(hub, "orders", 20)
    hub.streams.create("a")
    consumer = hub.consumer("orders", group="g", start="earliest", follow=False, commit="manual")
    assert next(consumer.batches()).count == 20
    tx = hub.transaction()
    tx.advance(consumer)
    consumer.close()
    with pytest.raises(ZeroDivisionError):
        send_and_fail(tx)


def test_a_writer_has_a_name(hub):
    for name in ("", "no spaces", 7):
        with pytest.raises(InvalidName):
            hub.transaction(writer=name)


def test_a_writer_that_was_forgotten_takes_its_name_anew(tmp_path):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("a")
        with hub.transaction(writer="nightly") as tx:
            tx.send("a", b"1")
        log = hub._port.log  # type: ignore[attr-defined]
        log.execute(ForgetTransactions(0, 1, log.clock.now_us() + 1_000_000))
        with pytest.raises(mainstem.WriterForgotten), hub.transaction(writer="nightly") as tx:
            tx.send("a", b"2")
        with hub.transaction(writer="nightly") as tx:
            tx.send("a", b"2")
        assert values(hub, "a") == [b"1", b"2"]


@pytest.mark.slow("waits for a server that does not answer")
def test_an_abort_waits_for_no_server_that_is_away(tmp_path):
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("a")
        tx = hub.transaction()
        tx.send("a", b"x")
        server.kill()
        began = time.monotonic()
        tx.abort()
        assert time.monotonic() - began < 30


@pytest.mark.slow("a server is killed and started again, three times")
def test_small_ones_happen_once_while_the_server_is_killed(tmp_path):
    """What was under way when it was killed is sent again; what was committed has the same answer."""
    committed = []
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("a", shards=2)
        hub.streams.create("b")
        is_over = threading.Event()

        def work():
            number = 0
            while not is_over.is_set():
                with hub.transaction() as tx:
                    tx.send_many("a", [b"%d" % number] * 3)
                    tx.send("b", b"%d" % number)
                committed.append((number, tx.offsets["b", 0][0]))
                number += 1

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for _ in range(3):
                before = len(committed)
                while len(committed) < before + 20:
                    assert worker.is_alive()
                    time.sleep(0.01)
                server.kill()
                server.start()
        finally:
            is_over.set()
            worker.join(60)
        count = len(committed)
        # One after the other, so each stands where its number says, and nothing else is there.
        assert committed == [(number, number) for number in range(count)]
        assert values(hub, "b") == [b"%d" % number for number in range(count)]
        assert Counter(values(hub, "a")) == {b"%d" % number: 3 for number in range(count)}
