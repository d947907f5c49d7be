"""Groups of readers: shards shared, cursors committed, members that come, go and die."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from contextlib import ExitStack

import pytest

import mainstem
from mainstem.consume.part import Part
from mainstem.consume.record import Record
from mainstem.core.errors import (
    Fenced,
    GroupBusy,
    InvalidCursor,
    InvalidRequest,
    InvalidSetting,
    ReadOnly,
    UnknownGroup,
)
from mainstem.testing.server import ServerProcess
from tests.integration.mechanisms.rig import changed_servers

QUICK = ("--group-heartbeat", "200ms", "--group-session-timeout", "1s", "--group-revocation-timeout", "3s")


@pytest.fixture
def quick_server(tmp_path):
    """A server that notices soon that a member is gone."""
    with ServerProcess(tmp_path / "data", *QUICK) as server:
        yield server
        print(server.stderr())


def fill(hub, stream, count, *, shards=None, first=0):
    hub.streams.create(stream, shards=shards, exist_ok=True)
    with hub.producer() as producer:
        for number in range(first, first + count):
            producer.send(stream, b"%d" % number, key=b"%d" % number)


def read_up_to(consumer, offset):
    """Fail at this record."""
    for record in consumer:
        assert record.offset < offset or 1 / 0


def numbers(records):
    return sorted(int(record.value) for record in records)


def cursors(hub, group):
    return {(shard.stream, shard.shard): shard.offset for shard in hub.groups.get(group).shards}


def take(consumer, count, seconds=20.0):
    """So many records."""
    found: list[Record] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < deadline, (len(found), consumer)
        record = consumer.poll(0.2)
        if record is not None:
            found.append(record)
    return found


def come_to(is_so, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_group_goes_on_where_it_was(hub):
    fill(hub, "orders", 100, shards=4)
    with hub.consumer("orders", group="billing", start="earliest", follow=False) as consumer:
        assert numbers(consumer) == list(range(100))
    assert sum(cursors(hub, "billing").values()) == 100
    fill(hub, "orders", 50, first=100)
    with hub.consumer("orders", group="billing", start="earliest", follow=False) as consumer:
        assert numbers(consumer) == list(range(100, 150))
    with hub.consumer("orders", group="billing", follow=False) as consumer:
        assert list(consumer) == []


def test_another_group_has_its_own_cursor(hub):
    fill(hub, "orders", 10)
    for group in ("a", "b"):
        with hub.consumer("orders", group=group, start="earliest", follow=False) as consumer:
            assert len(list(consumer)) == 10
    assert [info.name for info in hub.groups.list()] == ["a", "b"]


def test_latest_is_where_the_stream_ended_when_the_consumer_was_opened(hub):
    fill(hub, "orders", 10)
    with hub.consumer("orders", group="billing") as consumer:
        fill(hub, "orders", 5, first=10)
        assert numbers(take(consumer, 5)) == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("spread", [False, True])
def test_where_a_group_begins_in_a_stream_that_is_younger(hub, spread):
    """Where who opens it says; but one that somebody waits for is read from its beginning, whoever comes then."""
    options = {"group": "billing", "spread": spread}
    fill(hub, "orders", 10)
    with hub.consumer("orders", start="earliest", follow=False, **options) as consumer:
        assert len(list(consumer)) == 10
    fill(hub, "clicks", 10)
    with hub.consumer("clicks", start="latest", follow=False, **options) as consumer:
        assert list(consumer) == []
    with hub.consumer(pattern="late-*", start="latest", **options) as patient:
        assert patient.poll(0) is None
        come_to(lambda: hub.groups.get("billing").member_count == 1)
        fill(hub, "late-1", 10)
        with hub.consumer(pattern="late-*", start="latest", **options) as other:
            found: list[Record] = []
            deadline = time.monotonic() + 20
            while len(found) < 10:
                assert time.monotonic() < deadline, found
                found += filter(None, (patient.poll(0.1), other.poll(0.1)))
            assert numbers(found) == list(range(10))
    # Nobody is there, and the pattern has been given.
    fill(hub, "late-2", 10)
    with hub.consumer(pattern="late-*", start="latest", follow=False, **options) as consumer:
        assert {record.offset for record in consumer if record.stream == "late-2"} == set(range(10))


def test_what_was_yielded_last_is_not_committed_if_the_block_raises(hub):
    fill(hub, "orders", 10)
    with pytest.raises(ZeroDivisionError), hub.consumer("orders", group="g", start="earliest") as consumer:
        read_up_to(consumer, 4)
    assert cursors(hub, "g") == {("orders", 0): 4}
    with hub.consumer("orders", group="g", follow=False) as consumer:
        assert [record.offset for record in consumer] == [4, 5, 6, 7, 8, 9]


def fail_when_asked_for_shards(hub, consumer, as_batch):
    """It has something in hand, and another member comes; its block ends by an error before it has acted on that."""
    assert (consumer.poll_batch(20) if as_batch else consumer.poll(20)) is not None
    with hub.consumer("orders", group="g", start="earliest"):
        deadline = time.monotonic() + 20
        while consumer._member.news() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        raise ZeroDivisionError


@pytest.mark.parametrize("as_batch", [False, True])
def test_nor_is_it_if_its_shard_is_asked_for_meanwhile(hub, as_batch):
    hub.streams.create("orders", shards=2)
    with hub.producer() as producer:
        for shard in (0, 1):
            producer.send_many("orders", [b"x"] * 5, shard=shard)
    with pytest.raises(ZeroDivisionError), hub.consumer("orders", group="g", start="earliest") as consumer:
        fail_when_asked_for_shards(hub, consumer, as_batch)
    assert cursors(hub, "g") == {("orders", 0): 0, ("orders", 1): 0}


@pytest.mark.parametrize("error", [mainstem.DeadlineExceeded, Fenced])
def test_what_failed_is_seen_though_nothing_can_be_committed(hub, error, monkeypatch):
    """Nor does who hears of it wait for long."""
    waited: list[float | None] = []

    def refuse(call, timeout=None):
        waited.append(timeout)
        raise error("nobody is there")

    def read_two(consumer):
        consumer._looked_at = float("inf")  # nothing is committed in between
        take(consumer, 2)
        monkeypatch.setattr(consumer._port, "call", refuse)
        monkeypatch.setattr(consumer._member, "session_timeout", 0.1)

    def fail(consumer):
        read_two(consumer)
        raise ZeroDivisionError

    fill(hub, "orders", 10)
    with pytest.raises(ZeroDivisionError), hub.consumer("orders", group="g", start="earliest") as consumer:
        fail(consumer)
    monkeypatch.undo()
    assert waited == [5.0]
    with pytest.raises(error), hub.consumer("orders", group="g", start="earliest") as consumer:
        read_two(consumer)
    monkeypatch.undo()


def test_a_clean_close_commits_exactly_what_was_yielded(hub):
    fill(hub, "orders", 10)
    with hub.consumer("orders", group="g", start="earliest") as consumer:
        assert [record.offset for record in take(consumer, 3)] == [0, 1, 2]
    assert cursors(hub, "g") == {("orders", 0): 3}


def test_nothing_is_committed_by_itself_where_the_user_does_it(hub):
    fill(hub, "orders", 10)
    with hub.consumer("orders", group="g", start="earliest", commit="manual") as consumer:
        take(consumer, 4)
        consumer.commit()
        take(consumer, 3)
    assert cursors(hub, "g") == {("orders", 0): 4}
    with hub.consumer("orders", group="g", commit="manual") as consumer:
        assert [record.offset for record in take(consumer, 2)] == [4, 5]
        consumer.rewind()
        assert [record.offset for record in take(consumer, 2)] == [4, 5]


def test_two_members_share_the_shards(hub):
    fill(hub, "orders", 200, shards=4)
    with (
        hub.consumer("orders", group="g", start="earliest") as one,
        hub.consumer("orders", group="g", start="earliest") as other,
    ):
        found: Counter[int] = Counter()
        deadline = time.monotonic() + 20
        while sum(found.values()) < 200 or not one.positions or not other.positions:
            assert time.monotonic() < deadline, (one, other, sum(found.values()))
            for consumer in (one, other):
                record = consumer.poll(0.02)
                if record is not None:
                    found[int(record.value)] += 1
        assert set(found) == set(range(200))
        assert set(found.values()) == {1}
        deadline = time.monotonic() + 20
        while not (len(one.positions) == len(other.positions) == 2):
            assert time.monotonic() < deadline
            one.poll(0.02), other.poll(0.02)
        assert set(one.positions).isdisjoint(other.positions)
    assert sum(cursors(hub, "g").values()) == 200


def test_many_shards_come_at_once(tmp_path, monkeypatch):
    """What it costs to begin with them does not grow with the square of their number."""
    bound: list[int] = []
    bind = Part._bound

    def count(part):
        bound.append(len(part._held))
        bind(part)

    monkeypatch.setattr(Part, "_bound", count)
    with mainstem.open(tmp_path) as hub:
        fill(hub, "orders", 500, shards=200)
        with hub.consumer("orders", group="g", start="earliest", follow=False) as consumer:
            assert numbers(consumer) == list(range(500))
    assert len(bound) < 20


def test_a_member_that_is_slow_with_a_batch_shares_all_the_same(hub):
    """What it is to do between records does not wait for the end of a batch."""
    hub.streams.create("orders", shards=2)
    with hub.producer() as producer:
        for shard in (0, 1):
            producer.send_many("orders", [b"%d" % number for number in range(1000)], shard=shard)
    found: Counter[tuple[int, int]] = Counter()
    is_shared = threading.Event()

    def read_slowly(consumer):
        for record in consumer:
            found[record.shard, record.offset] += 1
            if is_shared.is_set():
                break
            time.sleep(0.02)

    with hub.consumer("orders", group="g", start="earliest") as slow:
        reader = threading.Thread(target=read_slowly, args=(slow,))
        reader.start()
        deadline = time.monotonic() + 15
        while not found or not sum(cursors(hub, "g").values()):
            assert time.monotonic() < deadline, "nothing is committed before the end of the batch"
            time.sleep(0.02)
        with hub.consumer("orders", group="g") as other:
            while (record := other.poll(0.05)) is None:
                assert time.monotonic() < deadline, "nothing is let go before the end of the batch"
            found[record.shard, record.offset] += 1
            is_shared.set()
            reader.join()
    assert sum(found.values()) < 1000
    assert set(found.values()) == {1}


def test_going_back_while_iterating(hub):
    hub.streams.create("orders")
    with hub.producer() as producer:
        producer.send_many("orders", [b"%d" % number for number in range(100)])
    seen = []
    with hub.consumer("orders", group="g", start="earliest", follow=False, commit="manual") as consumer:
        for record in consumer:
            seen.append(record.offset)
            if len(seen) == 10:
                consumer.commit()
            if len(seen) == 30:
                consumer.rewind()
    assert seen == [*range(30), *range(10, 100)]


def test_a_predicate_and_batches(hub):
    hub.streams.create("rows", schema={"id": "int64", "amount": "float64"}, shards=2)
    with hub.producer() as producer:
        for number in range(100):
            producer.send("rows", {"id": number, "amount": float(number)})
    with hub.consumer("rows", group="g", start="earliest", follow=False, where="amount >= 90", columns=["id"]) as one:
        assert sorted(row for batch in one.batches() for row in batch.to_arrow()["id"].to_pylist()) == list(
            range(90, 100)
        )
    assert sum(cursors(hub, "g").values()) == 100


def test_several_streams_and_a_pattern_that_finds_new_ones(hub):
    fill(hub, "orders-a", 10, shards=2)
    fill(hub, "orders-b", 10, first=10)
    with hub.consumer(["orders-a", "orders-b"], group="two", start="earliest", follow=False) as consumer:
        assert numbers(consumer) == list(range(20))
    with hub.consumer(pattern="orders-*", group="all", start="earliest") as consumer:
        assert numbers(take(consumer, 20)) == list(range(20))
        fill(hub, "orders-c", 10, first=20)
        assert numbers(take(consumer, 10)) == list(range(20, 30))
    assert {stream for stream, _ in cursors(hub, "all")} == {"orders-a", "orders-b", "orders-c"}


def test_more_shards_while_members_read(hub):
    """The records of a key come in their order, whoever reads them."""
    hub.streams.create("orders", shards=2)
    keys = [b"k%d" % number for number in range(20)]
    with hub.producer() as producer:
        for number in range(400):
            producer.send("orders", b"%d" % number, key=keys[number % 20])
    hub.streams.alter("orders", shards=5)
    with hub.producer() as producer:
        for number in range(400, 800):
            producer.send("orders", b"%d" % number, key=keys[number % 20])
    seen: dict[bytes, int] = {}
    total = 0
    with ExitStack() as stack:
        members = [stack.enter_context(hub.consumer("orders", group="g", start="earliest")) for _ in range(2)]
        deadline = time.monotonic() + 25
        while total < 800:
            assert time.monotonic() < deadline, (total, members)
            for consumer in members:
                batch = consumer.poll_batch(0.02)
                for record in batch.records() if batch is not None else ():
                    assert seen.get(record.key, -1) < int(record.value)
                    seen[record.key] = int(record.value)
                    total += 1
    assert sum(cursors(hub, "g").values()) == 800


@pytest.mark.parametrize("commit", ["auto", "manual"])
def test_more_shards_when_all_there_was_is_committed(hub, commit):
    """The last commit before the change takes the group over its barrier: no other will come."""
    fill(hub, "orders", 100, shards=2)
    with hub.consumer("orders", group="g", start="earliest", commit=commit) as consumer:
        take(consumer, 100)
        assert consumer.poll(0) is None
        consumer.commit()
        assert hub.groups.get("g").records == 0
        hub.streams.alter("orders", shards=5)
        fill(hub, "orders", 100, first=100)
        assert numbers(take(consumer, 100)) == list(range(100, 200))


def test_who_waits_for_long_is_woken_by_the_commit_behind_which_more_shards_are(hub):
    """Nothing else wakes a reader who has come to where the shards changed while a commit of its is on the way."""
    hub.streams.create("s", schema={"id": "int64", "v": "string"}, key="id")
    chance = random.Random(1)
    with hub.producer() as producer:
        for first in range(0, 40_000, 2_000):
            producer.send_many("s", [{"id": first + n, "v": chance.randbytes(30).hex()} for n in range(2_000)])
            producer.flush()
    hub.streams.alter("s", shards=2)
    with hub.producer() as producer:
        producer.send_many("s", [{"id": -1 - n, "v": ""} for n in range(20)])
    with hub.consumer("s", group="g", start="earliest") as consumer:
        found = 0
        while found < 20:
            batch = consumer.poll_batch(20)
            assert batch is not None
            found += sum(id_ < 0 for id_ in batch.to_arrow()["id"].to_pylist())


def test_reset_says_what_it_would_do_and_refuses_a_busy_group(hub):
    fill(hub, "orders", 10)
    with hub.consumer("orders", group="g", start="earliest") as consumer:
        take(consumer, 10)
        with pytest.raises(GroupBusy):
            hub.groups.reset("g", "earliest", dry_run=False)
        with pytest.raises(GroupBusy):
            hub.groups.delete("g")
    (change,) = hub.groups.reset("g", "earliest")
    assert (change.before, change.after, change.records) == (10, 0, 10)
    assert cursors(hub, "g") == {("orders", 0): 10}
    hub.groups.reset("g", {("orders", 0): 7}, dry_run=False)
    with hub.consumer("orders", group="g", follow=False) as consumer:
        assert [record.offset for record in consumer] == [7, 8, 9]
    hub.groups.delete("g")
    with pytest.raises(UnknownGroup):
        hub.groups.get("g")


def test_reset_takes_what_seek_takes(hub):
    for stream in ("orders", "returns"):
        fill(hub, stream, 10)
    with hub.consumer(["orders", "returns"], group="g", start="earliest") as consumer:
        take(consumer, 20)
    with hub.consumer(["orders", "returns"], start="earliest") as reader:
        take(reader, 13)
        several = reader.cursor
    with hub.consumer("orders", start="earliest") as reader:
        take(reader, 4)
        one = reader.cursor
    hub.groups.reset("g", several, dry_run=False)
    assert sum(cursors(hub, "g").values()) == 13
    assert len(hub.groups.reset("g", one, dry_run=False)) == 1
    assert cursors(hub, "g")["orders", 0] == 4
    with hub.consumer(["orders", "returns"], group="g", commit="manual") as member:
        take(member, 1)
        positions = member.positions
    hub.groups.reset("g", positions, dry_run=False)
    assert sum(cursors(hub, "g").values()) == sum(positions.values())
    with pytest.raises(InvalidCursor, match="none of these streams: returns"):
        hub.groups.reset("g", one, streams=["returns"])
    # What was trimmed is told to who reads there.
    hub.streams.trim("orders", offset=6)
    hub.groups.reset("g", one, dry_run=False)
    with (
        hub.consumer("orders", group="g", follow=False) as consumer,
        pytest.raises(mainstem.DataLoss, match="4 to 5"),
    ):
        list(consumer)
    hub.groups.reset("g", {("orders", 0): 3}, dry_run=False)
    assert cursors(hub, "g")["orders", 0] == 3
    # New shards begin where they do; a stream that was created again is another.
    hub.streams.alter("orders", shards=2)
    assert [(change.shard, change.after) for change in hub.groups.reset("g", one)] == [(0, 4), (1, 0)]
    hub.streams.delete("orders")
    fill(hub, "orders", 10)
    with hub.consumer("orders", group="g", start="earliest") as consumer:
        take(consumer, 1)
    for to in (one, several):
        with pytest.raises(InvalidCursor, match="created again is another"):
            hub.groups.reset("g", to)


def test_lag_in_records_and_in_seconds(hub):
    fill(hub, "orders", 10)
    with hub.consumer("orders", group="g", start="earliest") as consumer:
        take(consumer, 4)
    time.sleep(0.05)
    info = hub.groups.get("g")
    assert info.records == 6
    assert 0.05 <= info.seconds < 20
    assert info.member_count == 0
    with hub.consumer("orders", group="g", follow=False) as consumer:
        list(consumer)
    info = hub.groups.get("g")
    assert (info.records, info.seconds, info.catch_up_seconds) == (0, 0.0, 0.0)


def test_what_cannot_be(hub):
    hub.streams.create("orders")
    with pytest.raises(InvalidSetting):
        hub.consumer("orders", group="g", commit="sometimes")
    with pytest.raises(InvalidSetting):
        hub.consumer(["orders", "orders"], group="g")
    with pytest.raises(mainstem.InvalidName):
        hub.consumer("orders", group="no name")
    with pytest.raises(mainstem.UnknownStream):
        hub.consumer("nothing", group="g")
    with pytest.raises(UnknownGroup):
        hub.groups.get("nobody")


def test_a_hub_that_only_reads_sees_groups_and_is_no_member(tmp_path):
    with mainstem.open(tmp_path) as hub:
        fill(hub, "orders", 10)
        with hub.consumer("orders", group="g", start="earliest", follow=False) as consumer:
            list(consumer)
        with mainstem.open(tmp_path, read_only=True) as reader:
            assert cursors(reader, "g") == {("orders", 0): 10}
            assert [info.name for info in reader.groups.list()] == ["g"]
            with pytest.raises(ReadOnly):
                reader.consumer("orders", group="g")


def member_process(server, stream, group, name, *, pause=0.0):
    """A process that reads in a group and prints what it gets."""
    program = f"""
        import sys, time, mainstem
        with mainstem.connect({server.url!r}) as hub:
            with hub.consumer({stream!r}, group={group!r}, start="earliest") as consumer:
                print("ready", flush=True)
                while True:
                    try:
                        batch = consumer.poll_batch(1.0)
                    except mainstem.Fenced:
                        print("fenced", flush=True)
                        continue
                    if batch is not None:
                        for record in batch.records():
                            print(record.value.decode(), flush=True)
                        time.sleep({pause})
        """
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)


class Lines(threading.Thread):
    """What a process prints."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process = process
        self.lines = []
        self.start()

    def run(self):
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def end(self):
        """`kill -9`."""
        self.process.kill()
        self.process.wait()
        self.join()
        self.process.stdout.close()

    def numbers(self):
        return [int(line) for line in tuple(self.lines) if line.isdigit()]

    def come_to(self, is_so, seconds=20.0):
        deadline = time.monotonic() + seconds
        while not is_so(self):
            assert time.monotonic() < deadline, self.lines[-5:]
            time.sleep(0.02)


@pytest.mark.slow("by default a member is missed after eight seconds")
@pytest.mark.parametrize("settings", [QUICK, ()], ids=["quick", "default"])
def test_a_killed_member_is_replaced(tmp_path, settings):
    """Within ten seconds of the kill, also with the settings that nobody has changed."""
    with ServerProcess(tmp_path / "data", *settings) as server, mainstem.connect(server.url) as hub:
        fill(hub, "orders", 100, shards=4)
        process = member_process(server, "orders", "g", "first")
        lines = Lines(process)
        lines.come_to(lambda one: len(one.numbers()) == 100)
        began = time.monotonic()
        lines.end()
        fill(hub, "orders", 50, first=100)
        with hub.consumer("orders", group="g") as consumer:
            found: set[int] = set()
            while not found >= set(range(100, 150)):
                assert time.monotonic() < began + 10
                record = consumer.poll(0.2)
                if record is not None:
                    found.add(int(record.value))


@pytest.mark.parametrize("shards", [1, 4])
def test_what_a_killed_member_had_is_read_before_reading_ends(quick_server, shards):
    """Whoever reads to the end cannot know at once that another member is dead, and must not take it for alive: of one
    shard, or of the half that is not to move, nothing else says so."""
    with mainstem.connect(quick_server.url) as hub:
        fill(hub, "orders", 100, shards=shards)
        lines = Lines(member_process(quick_server, "orders", "g", "first"))
        lines.come_to(lambda one: len(one.numbers()) == 100)
        lines.end()
        fill(hub, "orders", 50, first=100)
        with hub.consumer("orders", group="g", follow=False) as consumer:
            assert set(numbers(consumer)) >= set(range(100, 150))


def test_a_member_that_was_stopped_cannot_commit_and_joins_anew(quick_server):
    with mainstem.connect(quick_server.url) as hub:
        fill(hub, "orders", 20)
        # It sleeps before it would commit what it has got.
        process = member_process(quick_server, "orders", "g", "first", pause=0.5)
        lines = Lines(process)
        lines.come_to(lambda one: one.numbers())
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with hub.consumer("orders", group="g", start="earliest") as consumer:
                assert numbers(take(consumer, 20)) == list(range(20))
                fill(hub, "orders", 5, first=20)
                assert numbers(take(consumer, 5)) == list(range(20, 25))
                consumer.commit()
                os.kill(process.pid, signal.SIGCONT)
                lines.come_to(lambda one: "fenced" in one.lines)
                assert cursors(hub, "g") == {("orders", 0): 25}
            # It is a member again: what comes next is its own.
            fill(hub, "orders", 5, first=25)
            lines.come_to(lambda one: set(one.numbers()) >= set(range(25, 30)))
        finally:
            lines.end()


@pytest.mark.slow("a server is killed and started again")
def test_members_go_on_when_the_server_was_killed(tmp_path):
    with ServerProcess(tmp_path / "data", *QUICK) as server, mainstem.connect(server.url) as hub:
        fill(hub, "orders", 50, shards=2)
        with hub.consumer("orders", group="g", start="earliest") as consumer:
            found = numbers(take(consumer, 25))
            server.kill()
            server.start()
            found += numbers(take(consumer, 25))
            fill(hub, "orders", 20, first=50)
            found += numbers(take(consumer, 20))
            # Nobody else has read meanwhile, so nothing comes twice.
            assert sorted(found) == list(range(70))
        assert sum(cursors(hub, "g").values()) == 70


def test_manual_commits_of_a_lost_shard_are_fenced(quick_server):
    with mainstem.connect(quick_server.url) as hub, mainstem.connect(quick_server.url) as other_hub:
        fill(hub, "orders", 20)
        consumer = hub.consumer("orders", group="g", start="earliest", commit="manual")
        take(consumer, 5)
        # It lives, but never lets go: after the time for that it loses the shard.
        with other_hub.consumer("orders", group="g", start="earliest", commit="manual") as other:
            consumer._member.leave()
            assert [record.offset for record in take(other, 20)] == list(range(20))
            other.commit()
            with pytest.raises(Fenced):
                consumer._port.call(consumer._commit_call(consumer._changed()))
        assert cursors(hub, "g") == {("orders", 0): 20}


def test_no_more_is_committed_than_is_said(hub):
    fill(hub, "orders", 20)
    with hub.consumer("orders", group="g", start="earliest", commit="manual") as consumer:
        take(consumer, 5)
        places = consumer.positions
        take(consumer, 5)
        consumer.commit(places)
        assert cursors(hub, "g") == {("orders", 0): 5}
        consumer.commit({("orders", 0): 3})  # it has passed there
        assert cursors(hub, "g") == {("orders", 0): 5}
        with pytest.raises(mainstem.InvalidCursor, match="stands at 10"):
            consumer.commit({("orders", 0): 11})
        consumer.commit()
        assert cursors(hub, "g") == {("orders", 0): 10}


@pytest.mark.slow("a server is started, and a shard that is not let go is taken only after three seconds")
def test_of_a_shard_that_is_asked_for_no_more_is_read(quick_server):
    """Who commits later than it reads, from a stream that never ends, would never be done with it, and lose it."""
    with mainstem.connect(quick_server.url) as hub, mainstem.connect(quick_server.url) as other_hub:
        hub.streams.create("orders", shards=2)
        with (
            hub.producer() as producer,
            hub.consumer("orders", group="g", start="earliest", commit="manual") as consumer,
        ):

            def read_more():
                for shard in range(2):
                    producer.send("orders", b"x", shard=shard)
                producer.flush()
                while consumer.poll_batch(0.02) is not None:
                    pass

            while len(consumer.positions) < 2:
                read_more()
            with other_hub.consumer("orders", group="g", start="earliest", commit="manual") as other:
                deadline = time.monotonic() + 20
                while not other.positions:
                    assert time.monotonic() < deadline
                    before = consumer.positions
                    read_more()
                    consumer.commit(before)
                    other.poll(0.0)
                assert len(consumer.positions) == len(other.positions) == 1


def test_what_is_refused_is_told_to_who_asked_and_not_to_the_log(quick_server):
    with mainstem.connect(quick_server.url) as hub:
        for _ in range(20):
            with pytest.raises(UnknownGroup):
                hub.groups.delete("nobody")
        hub.streams.list()
    assert "ERROR" not in quick_server.stderr()


def test_an_answer_that_fits_in_no_message_is_told(tmp_path):
    """A member alone on more shards than a message has room for gets an error that says what to do, and so does
    whoever it is; others, and other calls on the same connection, do not notice."""
    small = "import mainstem.server.session as session; session.MESSAGE_HEADER_BYTES_MAX = 6_000"
    with changed_servers(small), ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("wide", shards=2_000)
        hub.streams.create("narrow", shards=2)
        with (
            pytest.raises(InvalidRequest, match="share its streams among more members"),
            hub.consumer("wide", group="g") as consumer,
        ):
            consumer.poll(10)
        fill(hub, "narrow", 10)
        with hub.consumer("narrow", group="h", start="earliest", follow=False) as consumer:
            assert numbers(consumer) == list(range(10))
