"""What goes wrong in groups and transactions: a typed error for who did it, nothing for the others."""

import time

import pytest

import mainstem
from mainstem.core.errors import (
    DataLoss,
    Fenced,
    GroupBusy,
    InvalidName,
    InvalidRequest,
    Refused,
    Retriable,
    StreamDeleted,
)
from mainstem.log import transactions
from mainstem.produce import transaction as transaction_module
from mainstem.testing.link import Link
from mainstem.testing.server import ServerProcess
from mainstem.transport.sharing import BeatGroupCall, JoinGroupCall
from tests.integration.api.conftest import noise, values

QUICK = ("--group-heartbeat", "200ms", "--group-session-timeout", "1s", "--group-revocation-timeout", "2s")
HOSTILE = ["", " ", "a b", "../../etc/passwd", "a/b", "a\0b", "line\n", "ü", "a" * 256, "'; drop table groups", "%s{}"]


@pytest.fixture(scope="module")
def quick_server(tmp_path_factory):
    """A server that notices soon that a member is gone."""
    with ServerProcess(tmp_path_factory.mktemp("quick") / "data", *QUICK) as server:
        yield server
        print(server.stderr())


@pytest.fixture
def quick(quick_server):
    with mainstem.connect(quick_server.url) as hub:
        yield hub
        for stream in hub.streams.list():
            hub.streams.delete(stream.name)


def delete(hub, group):
    try:
        hub.groups.delete(group)
    except GroupBusy:
        return False
    return True


def come_to(is_so, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def fill(hub, stream, count, *, first=0, shards=None):
    """Each record is a batch of its own."""
    hub.streams.create(stream, shards=shards, exist_ok=True)
    with hub.producer() as producer:
        for number in range(first, first + count):
            producer.send(stream, b"%d" % number).result()


def take(consumer, count, seconds=20.0):
    found: list[int] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < deadline, (len(found), consumer)
        record = consumer.poll(0.2)
        if record is not None:
            found.append(record.offset)
    return found


def stage_at_once(monkeypatch):
    """Small transactions are staged as they come too, as large ones are."""
    monkeypatch.setattr(transaction_module, "_HELD_BYTES_MAX", 0)


def write_out(transaction):
    """Have everything on the disk that was sent so far."""
    transaction._writing.producer.flush()


def cursors(hub, group):
    return {(shard.stream, shard.shard): shard.offset for shard in hub.groups.get(group).shards}


# Groups.


@pytest.mark.parametrize("commit", ["auto", "manual"])
def test_a_group_whose_cursor_was_trimmed_is_told_what_it_missed_and_goes_on(hub, commit):
    fill(hub, "orders", 20)
    with hub.consumer("orders", group="g", start="earliest") as consumer:
        take(consumer, 3)
    hub.streams.trim("orders", offset=10)
    with hub.consumer("orders", group="g", commit=commit) as consumer:
        with pytest.raises(DataLoss) as caught:
            take(consumer, 1)
        assert (caught.value.shard, caught.value.first, caught.value.last) == (0, 3, 9)
        assert take(consumer, 10) == list(range(10, 20))
        consumer.commit()
    assert cursors(hub, "g") == {("orders", 0): 20}


def test_one_that_was_trimmed_to_the_end_goes_on_with_what_comes(hub):
    fill(hub, "orders", 10)
    with hub.consumer("orders", group="g", start="earliest") as consumer:
        take(consumer, 2)
        hub.streams.trim("orders", offset=10)
    fill(hub, "orders", 2, first=10)
    with hub.consumer("orders", group="g", follow=False) as consumer:
        with pytest.raises(DataLoss) as caught:
            list(consumer)
        assert (caught.value.first, caught.value.last) == (2, 9)
        assert [record.offset for record in consumer] == [10, 11]


def test_a_group_is_reset_to_where_a_stream_begins_after_it_was_trimmed(hub):
    fill(hub, "orders", 10)
    with hub.consumer("orders", group="g", start="earliest") as consumer:
        take(consumer, 2)
    hub.streams.trim("orders", offset=6)
    hub.groups.reset("g", "earliest", dry_run=False)
    with hub.consumer("orders", group="g", follow=False) as consumer:
        assert [record.offset for record in consumer] == [6, 7, 8, 9]


@pytest.mark.slow("a member keeps what it was asked for, until that is over")
def test_a_member_that_never_commits_loses_its_shards_to_one_that_does(quick, quick_server):
    """It lives and reads on, and lets nothing go; then it is told so, and goes on with what it has."""
    fill(quick, "orders", 20, shards=2)
    with (
        mainstem.connect(quick_server.url) as other_hub,
        quick.consumer("orders", group="g", start="earliest", commit="manual") as lazy,
        other_hub.consumer("orders", group="others", start="earliest") as beside,
    ):
        assert len(take(lazy, 20)) == 20
        with other_hub.consumer("orders", group="g", start="earliest", commit="manual") as eager:
            come_to(lambda: eager.poll(0.05) is not None)
            # Nobody else has noticed.
            assert len(take(beside, 20)) == 20
            (lost,) = {(stream, shard) for stream, shard in eager.positions}
            with pytest.raises(Fenced):
                lazy.commit()
            assert cursors(quick, "g")[lost] == 0
            eager.commit()
            assert cursors(quick, "g")[lost] == 1
            # What it still has, it can commit.
            lazy.commit()
            (kept,) = set(cursors(quick, "g")) - {lost}
            assert cursors(quick, "g")[kept] == quick.streams.get("orders").ends[kept[1]]


@pytest.mark.slow("a server is killed and started again")
def test_a_commit_whose_answer_died_with_the_server_is_the_members_own(quick, quick_server):
    """The group stands where the member brought it without hearing so: it was lost to nobody, and nothing comes again.

    Another member is back first, so that the commit is refused when it is sent again.
    """
    for first in (0, 10):
        fill(quick, "orders", 10, first=first)
    quick.streams.create("clicks")
    with (
        quick.consumer("clicks", group="g") as other,
        Link(quick_server.address) as link,
        mainstem.connect(f"mainstem://{link.address}") as hub,
    ):
        other.poll(0.5)
        consumer = hub.consumer("orders", group="g", start="earliest", follow=False)
        assert take(consumer, 3) == [0, 1, 2]
        time.sleep(0.1)  # between the records of a batch it is committed now and then
        link.hold_answers()
        assert take(consumer, 1) == [3]
        come_to(lambda: cursors(quick, "g")["orders", 0] == 3)
        assert take(consumer, 1) == [4]
        quick_server.kill()
        link.cut()
        link.hold_answers()
        quick_server.start()
        come_to(lambda: quick.groups.get("g").members)
        link.release_answers()
        assert [record.offset for record in consumer] == list(range(5, 20))
        consumer.close()
    assert cursors(quick, "g")["orders", 0] == 20


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names(hub, name):
    hub.streams.create("orders")
    with pytest.raises(InvalidName):
        hub.consumer("orders", group=name)
    for call in (hub.groups.get, hub.groups.delete, lambda name: hub.groups.reset(name, "earliest")):
        with pytest.raises(InvalidName):
            call(name)
    if name:
        with pytest.raises(InvalidName), hub.transaction(writer=name):
            pass
    # A client that does not look itself.
    for call in (JoinGroupCall(name, 1, ("orders",)), BeatGroupCall(name, 1, 1, 1)):
        with pytest.raises(InvalidName):
            hub._port.call(call)
    assert hub.groups.list() == []


@pytest.mark.slow("a member is silent until it is given up")
def test_a_group_that_is_deleted_under_a_member_that_sleeps_begins_anew(quick, quick_server):
    fill(quick, "orders", 10)
    with Link(quick_server.address) as link, mainstem.connect(f"mainstem://{link.address}") as sleeping_hub:
        consumer = sleeping_hub.consumer("orders", group="g", start="earliest", commit="manual")
        assert take(consumer, 4) == [0, 1, 2, 3]
        consumer.commit()
        assert take(consumer, 4) == [4, 5, 6, 7]
        with pytest.raises(GroupBusy):
            quick.groups.delete("g")
        link.hold_answers()
        come_to(lambda: delete(quick, "g"))
        link.release_answers()
        with pytest.raises(Fenced):
            consumer.commit()
        # There is another group of this name now, which it has begun.
        assert take(consumer, 10) == list(range(10))
        consumer.commit()
        consumer.close()
    assert cursors(quick, "g") == {("orders", 0): 10}


def test_a_stream_that_is_deleted_under_a_group(hub):
    fill(hub, "orders", 5)
    fill(hub, "clicks", 5)
    with (
        hub.consumer("orders", group="named", start="earliest") as named,
        hub.consumer(pattern="*", group="found", start="earliest") as found,
    ):
        take(named, 3)
        take(found, 7)
        hub.streams.delete("orders")
        with pytest.raises(StreamDeleted):
            take(named, 10)
        fill(hub, "clicks", 5, first=5)
        deadline = time.monotonic() + 20
        while cursors(hub, "found") != {("clicks", 0): 10}:
            assert time.monotonic() < deadline
            found.poll(0.1)
    assert cursors(hub, "named") == {}
    # One of the same name is another stream.
    fill(hub, "orders", 3)
    with hub.consumer("orders", group="named", start="earliest", follow=False) as consumer:
        assert [record.offset for record in consumer] == [0, 1, 2]


# Transactions.


def test_more_shards_under_a_transaction(hub):
    """It was written for a stream of fewer: nothing of it is kept, and the next one succeeds."""
    fill(hub, "orders", 5)
    hub.streams.create("totals", shards=2)
    with hub.consumer("orders", group="g", start="earliest", commit="manual") as consumer:
        for attempt in range(2):
            transaction = hub.transaction()
            assert take(consumer, 1) == [0]
            transaction.send("totals", b"%d" % attempt, key=b"k")
            write_out(transaction)
            transaction.advance(consumer)
            if attempt == 0:
                hub.streams.alter("totals", shards=3)
                with pytest.raises((Refused, Retriable)):
                    transaction.commit()
                assert (values(hub, "totals"), cursors(hub, "g")) == ([], {("orders", 0): 0})
            else:
                transaction.commit()
    assert (values(hub, "totals"), cursors(hub, "g")) == ([b"1"], {("orders", 0): 1})


def test_a_fenced_member_takes_its_transaction_with_it(quick, quick_server):
    fill(quick, "orders", 5)
    quick.streams.create("totals")
    with Link(quick_server.address) as link, mainstem.connect(f"mainstem://{link.address}") as sleeping_hub:
        consumer = sleeping_hub.consumer("orders", group="g", start="earliest", commit="manual")
        assert take(consumer, 5) == [0, 1, 2, 3, 4]
        transaction = sleeping_hub.transaction()
        transaction.send("totals", b"of a zombie")
        transaction.advance(consumer)
        link.hold_answers()
        with quick.consumer("orders", group="g", commit="manual") as successor:
            assert take(successor, 5) == [0, 1, 2, 3, 4]
            with quick.transaction() as its:
                its.send("totals", b"of who came after")
                its.advance(successor)
            link.release_answers()
            with pytest.raises(Fenced):
                transaction.commit()
        consumer.close()
    assert values(quick, "totals") == [b"of who came after"]
    assert cursors(quick, "g") == {("orders", 0): 5}


def test_the_transactions_of_a_zombie_are_refused(quick, quick_server):
    """A hub that writes under a name fences the one before it, also what that had begun."""
    quick.streams.create("totals")
    with mainstem.connect(quick_server.url) as zombie, mainstem.connect(quick_server.url) as successor:
        begun = zombie.transaction(writer="billing")
        begun.send("totals", b"begun before")
        write_out(begun)
        with successor.transaction(writer="billing") as transaction:
            transaction.send("totals", b"new")
        with pytest.raises(Refused):
            begun.commit()
        with pytest.raises(Refused), zombie.transaction(writer="billing") as later:
            later.send("totals", b"begun after")
        with successor.transaction(writer="billing") as transaction:
            transaction.send("totals", b"newer")
        # Under no name, or another, it may.
        with zombie.transaction(writer="clearing") as other:
            other.send("totals", b"other")
    assert values(quick, "totals") == [b"new", b"newer", b"other"]
    assert quick.statistics()["transactions_open"] == 0


def test_limits_of_transactions(tmp_path, monkeypatch):
    """What does not fit is refused by name, is over, and holds nothing."""
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("a")
        monkeypatch.setattr(transactions, "TRANSACTION_BYTES_MAX", 3 << 20)
        stage_at_once(monkeypatch)
        large = hub.transaction()
        large.send_many("a", [noise(number, 500_000) for number in range(10)])
        with pytest.raises(InvalidRequest, match="commit more often"):
            large.commit()
        monkeypatch.setattr(transactions, "TRANSACTIONS_OPEN_MAX", 1)
        held = hub.transaction()
        held.send("a", b"1")
        write_out(held)
        monkeypatch.setattr(transactions, "TRANSACTION_BATCHES_MAX", 1)
        held.send("a", b"2")
        with pytest.raises(InvalidRequest, match="up to 1 batches"):
            held.commit()
        assert hub.statistics()["transactions_open"] == hub.statistics()["transactions_staged_bytes"] == 0
        with hub.transaction() as small:
            small.send("a", b"3")
        assert values(hub, "a") == [b"3"]


@pytest.mark.slow("writes 192 MiB")
def test_a_transaction_larger_than_the_memory_it_may_use(tmp_path):
    with ServerProcess(tmp_path / "data", "--hot-tail-bytes", "1MiB") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("a")
        piece = noise(0, 1 << 20)
        with hub.transaction() as transaction:
            transaction.send_many("a", [piece] * 8)
        before = server.memory_bytes()
        with hub.transaction() as transaction:
            for _ in range(192):
                transaction.send("a", piece)
        assert server.memory_bytes() - before < 96 << 20
        assert transaction.offsets == {("a", 0): (8, 192)}
        with hub.consumer("a", start="earliest", follow=False) as consumer:
            assert sum(batch.count for batch in consumer.batches()) == 200


@pytest.mark.slow("1,000 transactions, and the time until they are over")
def test_a_thousand_abandoned_transactions_give_everything_back(kept, monkeypatch):
    stage_at_once(monkeypatch)
    hub = kept.hub
    hub.streams.create("a")
    with hub.transaction() as transaction:
        transaction.send("a", b"kept")
    for number in range(1_000):
        abandoned = hub.transaction(timeout="6s")
        abandoned.send("a", noise(number, 5_000))
        write_out(abandoned)
    assert hub.statistics()["transactions_open"] > 10
    # Nobody else has to wait for them.
    with hub.producer() as producer:
        producer.send("a", b"beside").result(5)
    kept.come_to(lambda: hub.statistics()["transactions_open"] == 0, 30)
    counters = hub.statistics()
    assert counters["transactions_staged_batches"] == counters["transactions_staged_bytes"] == 0
    assert counters["transactions_timed_out"] >= 1_000
    kept.cool()
    # Five megabytes were written that nobody will ever see, and one that is kept.
    kept.come_to(lambda: kept.blocks_bytes() < 4 << 20, 30)
    assert values(hub, "a") == [b"kept", b"beside"]
