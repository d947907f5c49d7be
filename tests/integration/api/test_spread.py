"""Groups that spread their shards: every record is read, by whichever member, and none twice while nobody dies."""

import os
import queue
import random
import signal
import time

import pytest

import mainstem
from mainstem.cluster.assignment import Unit
from mainstem.cluster.spread import Spread
from mainstem.core.limits import LIST_BYTES_MAX
from mainstem.testing.server import ServerProcess
from mainstem.transport.port import Answer
from mainstem.transport.sharing import LeaseGroupCall
from tests.integration.mechanisms.members import QUICK, MemberProcess, come_to, killed_at_last, missing, times_read


def fill(hub, stream, count, *, shards=1, first=0, batch=10):
    hub.streams.create(stream, shards=shards, exist_ok=True)
    with hub.producer() as producer:
        for number in range(first, first + count, batch):
            values = [b"%d" % value for value in range(number, number + batch)]
            producer.send_many(stream, values, shard=(number // batch) % shards).result(10)


def numbers(records):
    return sorted(int(record.value) for record in records)


def cursors(hub, group):
    return {(shard.stream, shard.shard): shard.offset for shard in hub.groups.get(group).shards}


def take(consumer, count, seconds=20.0):
    found: list[mainstem.Record] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < deadline, (len(found), consumer)
        record = consumer.poll(0.2)
        if record is not None:
            found.append(record)
    return found


def read_up_to(consumer, count):
    """Fail at this record."""
    for number, _ in enumerate(consumer):
        assert number < count or 1 / 0


def test_one_member_reads_everything_and_goes_on_where_it_was(hub):
    fill(hub, "clicks", 200, shards=2)
    with hub.consumer("clicks", group="g", spread=True, start="earliest", follow=False) as consumer:
        assert isinstance(consumer, mainstem.SpreadConsumer)
        assert numbers(consumer) == list(range(200))
    assert sum(cursors(hub, "g").values()) == 200
    fill(hub, "clicks", 50, shards=2, first=200)
    with hub.consumer("clicks", group="g", spread=True, follow=False) as consumer:
        assert numbers(consumer) == list(range(200, 250))
    with hub.consumer("clicks", group="g", spread=True, follow=False) as consumer:
        assert list(consumer) == []


def test_what_is_written_comes_at_once(hub):
    fill(hub, "clicks", 10)
    with hub.consumer("clicks", group="g", spread=True) as consumer, hub.producer() as producer:
        assert consumer.poll(0.2) is None  # it begins at the end
        waits = []
        for number in range(10):
            producer.send("clicks", b"%d" % number).result(10)
            began = time.monotonic()
            assert take(consumer, 1)[0].value == b"%d" % number
            waits.append(time.monotonic() - began)
        assert sorted(waits)[5] < 0.5


def test_members_share_one_shard(hub):
    fill(hub, "clicks", 2_000, batch=20)
    with (
        hub.consumer("clicks", group="g", spread=True, start="earliest") as one,
        hub.consumer("clicks", group="g", spread=True, start="earliest") as other,
    ):
        fill(hub, "clicks", 2_000, first=2_000, batch=20)
        found: dict[int, list[int]] = {id(one): [], id(other): []}
        deadline = time.monotonic() + 30
        while sum(map(len, found.values())) < 4_000:
            assert time.monotonic() < deadline, {key: len(value) for key, value in found.items()}
            for consumer in (one, other):
                batch = consumer.poll_batch(0.01)
                if batch is not None:
                    found[id(consumer)] += map(int, batch.values())
        assert sorted(found[id(one)] + found[id(other)]) == list(range(4_000))
        assert all(found.values())
        info = hub.groups.get("g")
        assert (info.spread, info.member_count) == (True, 2)
    assert cursors(hub, "g") == {("clicks", 0): 4_000}
    assert hub.groups.get("g").member_count == 0


def test_a_clean_close_commits_exactly_what_was_yielded(hub):
    fill(hub, "clicks", 100)
    with hub.consumer("clicks", group="g", spread=True, start="earliest") as consumer:
        assert [record.offset for record in take(consumer, 13)] == list(range(13))
    assert cursors(hub, "g") == {("clicks", 0): 13}
    with (
        pytest.raises(ZeroDivisionError),
        hub.consumer("clicks", group="g", spread=True, start="earliest") as consumer,
    ):
        read_up_to(consumer, 4)
    assert cursors(hub, "g") == {("clicks", 0): 17}


def test_commits_by_hand(hub):
    fill(hub, "clicks", 100)
    with hub.consumer("clicks", group="g", spread=True, start="earliest", commit="manual") as consumer:
        take(consumer, 4)
        consumer.commit()
        assert cursors(hub, "g") == {("clicks", 0): 4}
        assert [record.offset for record in take(consumer, 3)] == [4, 5, 6]
        consumer.rewind()
        assert [record.offset for record in take(consumer, 3)] == [4, 5, 6]
        with pytest.raises(mainstem.InvalidRequest, match="spread"), hub.transaction() as tx:
            tx.advance(consumer)
    assert cursors(hub, "g") == {("clicks", 0): 4}


def test_a_commit_that_nobody_answers_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("mainstem.consume.spread_consumer.COMMIT_SECONDS", 0.3)
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        fill(hub, "clicks", 10)
        with hub.consumer("clicks", group="g", spread=True, start="earliest", commit="manual") as consumer:
            take(consumer, 4)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                with pytest.raises(mainstem.DeadlineExceeded, match="not known"):
                    consumer.commit()
            finally:
                os.kill(server.pid, signal.SIGCONT)
            monkeypatch.setattr("mainstem.consume.spread_consumer.COMMIT_SECONDS", 20.0)
            consumer.commit()
            assert cursors(hub, "g") == {("clicks", 0): 4}


def test_what_cannot_be(hub):
    hub.streams.create("keyed", schema={"id": "int64"}, key="id")
    with pytest.raises(mainstem.InvalidRequest, match="has a key"):
        hub.consumer("keyed", group="g", spread=True)
    fill(hub, "clicks", 10)
    with pytest.raises(mainstem.InvalidSetting, match="say which"):
        hub.consumer("clicks", spread=True)
    with hub.consumer("clicks", group="g", start="earliest") as whole:
        take(whole, 1)
        with (
            hub.consumer("clicks", group="g", spread=True) as consumer,
            pytest.raises(mainstem.InvalidRequest, match="read whole shards"),
        ):
            take(consumer, 1)
    with hub.consumer("clicks", group="g", spread=True, start="earliest") as consumer:
        take(consumer, 1)
        with pytest.raises(mainstem.GroupBusy):
            hub.groups.delete("g")
        with (
            hub.consumer("clicks", group="g") as whole,
            pytest.raises(mainstem.InvalidRequest, match="batch by batch"),
        ):
            take(whole, 1)


def test_a_pattern_and_more_shards(hub):
    fill(hub, "clicks-a", 20)
    with hub.consumer(pattern="clicks-*", group="g", spread=True, start="earliest") as consumer:
        assert numbers(take(consumer, 20)) == list(range(20))
        fill(hub, "clicks-b", 20, first=20)
        assert numbers(take(consumer, 20)) == list(range(20, 40))
        hub.streams.alter("clicks-a", shards=3)
        with hub.producer() as producer:
            producer.send("clicks-a", b"40", shard=2).result(10)
        assert numbers(take(consumer, 1)) == [40]


def test_a_pattern_passes_over_streams_with_a_key(hub):
    hub.streams.create("clicks-key-1", schema={"id": "int64"}, key="id")
    fill(hub, "clicks-a", 20)
    with hub.consumer(pattern="clicks-*", group="g", spread=True, start="earliest") as consumer:
        assert numbers(take(consumer, 20)) == list(range(20))
        hub.streams.create("clicks-key-2", schema={"id": "int64"}, key="id")
        hub.streams.create("clicks-key-3", cleanup="compact")
        with hub.producer() as producer:
            producer.send("clicks-key-2", {"id": 1}).result(10)
        fill(hub, "clicks-b", 20, first=20)
        assert numbers(take(consumer, 20)) == list(range(20, 40))
    assert cursors(hub, "g") == {("clicks-a", 0): 20, ("clicks-b", 0): 20}


def test_what_was_trimmed_is_told(hub):
    fill(hub, "clicks", 30)
    with hub.consumer("clicks", group="g", spread=True, start="earliest", follow=False) as consumer:
        take(consumer, 1)
    hub.streams.trim("clicks", offset=20)
    with hub.consumer("clicks", group="g", spread=True, follow=False) as consumer:
        with pytest.raises(mainstem.DataLoss) as caught:
            list(consumer)
        assert (caught.value.first, caught.value.last) == (1, 19)
        assert [record.offset for record in consumer] == list(range(20, 30))
    assert cursors(hub, "g") == {("clicks", 0): 30}


@pytest.fixture
def quick_hub(tmp_path):
    """Connected to a server that notices soon that a member is gone."""
    with ServerProcess(tmp_path / "data", *QUICK) as server, mainstem.connect(server.url) as hub:
        yield hub


def lease_and_die(hub, group, stream):
    """Be a member that gets something to read, and is never heard of again."""
    answers: queue.Queue[Answer | mainstem.MainstemError] = queue.Queue()
    starts = ((hub.streams.get(stream).id, (0,)),)
    hub._port.ask(LeaseGroupCall(group, 1, (stream,), starts=starts, wanted=8), 10.0, answers.put)
    answer = answers.get(timeout=10)
    assert isinstance(answer, Answer)
    assert answer.leases is not None
    assert answer.leases.leases


def test_what_a_dead_member_had_is_read_before_reading_ends(quick_hub):
    fill(quick_hub, "clicks", 100)
    lease_and_die(quick_hub, "g", "clicks")
    with quick_hub.consumer("clicks", group="g", spread=True, follow=False) as consumer:
        assert numbers(consumer) == list(range(100))
    assert cursors(quick_hub, "g") == {("clicks", 0): 100}


def test_what_a_member_has_that_lives_is_left_to_it(quick_hub):
    fill(quick_hub, "clicks", 100)
    with quick_hub.consumer("clicks", group="g", spread=True, start="earliest", commit="manual") as other:
        take(other, 1)
        began = time.monotonic()
        with quick_hub.consumer("clicks", group="g", spread=True, follow=False) as consumer:
            assert list(consumer) == []
        assert time.monotonic() > began + 1.0  # the session timeout
        assert len(take(other, 99)) == 99


def test_what_a_member_has_that_hangs_is_given_to_others(quick_hub):
    """Its beats go on; nobody waits for it for ever, and it goes on when it comes back."""
    fill(quick_hub, "clicks", 100)
    options = {"group": "g", "spread": True, "start": "earliest", "commit": "manual"}
    with quick_hub.consumer("clicks", **options) as hung:
        take(hung, 5)
        before = hung._place()
        take(hung, 1)
        assert hung._place() != before  # every record counts
        hung.commit()
        with quick_hub.consumer("clicks", **options) as other:
            hung._member.still_seconds = 0.5
            assert numbers(take(other, 94)) == list(range(6, 100))
            other.commit()
        hung._member.still_seconds = 30.0
        hung.commit()  # it had committed all that it had read
        fill(quick_hub, "clicks", 10, first=100)
        assert numbers(take(hung, 10)) == list(range(100, 110))
        with quick_hub.consumer("clicks", **options) as other:
            hung._member.still_seconds = 0.5
            assert numbers(take(other, 10)) == list(range(100, 110))
            with pytest.raises(mainstem.Fenced):
                hung.commit()
            other.commit()
    assert cursors(quick_hub, "g") == {("clicks", 0): 110}


@pytest.mark.slow("members in processes of their own, one of which is killed and one stopped for a while")
def test_members_that_die_or_sleep(tmp_path):
    with (
        ServerProcess(tmp_path / "data", *QUICK) as server,
        mainstem.connect(server.url) as hub,
        killed_at_last([]) as members,
    ):
        hub.streams.create("clicks")
        members += [MemberProcess(server, "clicks", "g", spread=True) for _ in range(3)]
        for member in members:
            assert member.is_ready.wait(30)
        fill(hub, "clicks", 1_000)
        come_to(lambda: all(member.reads for member in members), 20)
        members[0].process.kill()
        os.kill(members[1].process.pid, signal.SIGSTOP)
        fill(hub, "clicks", 1_000, first=1_000)
        come_to(lambda: hub.groups.get("g").records == 0, 20)
        os.kill(members[1].process.pid, signal.SIGCONT)
        fill(hub, "clicks", 1_000, first=2_000)
        come_to(lambda: hub.groups.get("g").records == 0, 20)
        time.sleep(0.3)
        reads = [read for member in members for read in member.reads]
        assert missing(hub, "clicks", reads) == 0
        again = sum(times - 1 for times in times_read(reads).values())
        assert again <= 3 * 3 * 20  # what two of them had on their way
        server.kill()
        server.start()
        fill(hub, "clicks", 500, first=3_000)
        come_to(lambda: hub.groups.get("g").records == 0, 30)
        time.sleep(0.3)
        assert missing(hub, "clicks", [read for member in members for read in member.reads]) == 0


def test_reading_ends_also_if_commits_are_by_hand(hub):
    fill(hub, "clicks", 100)
    with hub.consumer("clicks", group="g", spread=True, start="earliest", follow=False, commit="manual") as consumer:
        assert numbers(consumer) == list(range(100))
        assert cursors(hub, "g") == {("clicks", 0): 0}
        consumer.commit()
        assert list(consumer) == []
    assert cursors(hub, "g") == {("clicks", 0): 100}


def test_what_is_not_committed_keeps_nobody_from_more_up_to_a_limit(hub):
    hub.streams.create("clicks")
    with hub.consumer("clicks", group="g", spread=True, commit="manual", start="earliest") as consumer:
        for first in range(0, 100, 10):  # each is a range of its own
            fill(hub, "clicks", 10, first=first)
            assert numbers(take(consumer, 10)) == list(range(first, first + 10))
        assert cursors(hub, "g") == {("clicks", 0): 0}
        consumer.commit()
    assert cursors(hub, "g") == {("clicks", 0): 100}
    with hub.producer() as producer:
        for _ in range(20):
            producer.send("clicks", random.randbytes(1_200_000)).result(10)
    with hub.consumer("clicks", group="g", spread=True, commit="manual", follow=False) as consumer:
        with pytest.raises(mainstem.InvalidRequest, match="call commit"):
            list(consumer)
        consumer.commit()
        assert cursors(hub, "g") == {("clicks", 0): 116}
        assert len(list(consumer)) == 4


def test_what_is_written_elsewhere_costs_an_idle_member_nothing(tmp_path, monkeypatch):
    with mainstem.open(tmp_path / "data") as hub:
        fill(hub, "clicks", 50, shards=5)
        with hub.consumer("clicks", group="g", spread=True, start="earliest") as consumer:
            take(consumer, 50)
            assert consumer.poll(0.2) is None
            looked: list[Unit] = []
            look = Spread.next_offset

            def noted(spread: Spread, unit: Unit) -> int:
                looked.append(unit)
                return look(spread, unit)

            monkeypatch.setattr(Spread, "next_offset", noted)
            fill(hub, "other", 50)
            assert not looked
            fill(hub, "clicks", 10, first=50, shards=5)
            assert len(take(consumer, 10)) == 10
            assert {unit.shard for unit in looked} == {0}


def test_reading_ends_where_the_group_is_told_in_several_answers(tmp_path, monkeypatch):
    monkeypatch.setattr("mainstem.log.group_report._SHARD_BYTES", LIST_BYTES_MAX // 2)  # two shards in each
    with mainstem.open(tmp_path / "data") as hub:
        fill(hub, "clicks", 50, shards=5)
        with hub.consumer("clicks", group="g", spread=True, start="earliest", follow=False) as consumer:
            assert len(take(consumer, 50)) == 50
            assert consumer.poll(20) is None
            assert consumer._is_finished()


@pytest.mark.parametrize("is_named", [True, False])
def test_reading_ends_when_a_stream_is_deleted(hub, is_named):
    fill(hub, "clicks", 100)
    fill(hub, "clicks-2", 100)
    what = {"stream": ["clicks", "clicks-2"]} if is_named else {"pattern": "clicks*"}
    with hub.consumer(**what, group="g", spread=True, start="earliest", follow=False) as consumer:
        found = [consumer.poll_batch(5)]
        hub.streams.delete("clicks")
        if is_named:
            with pytest.raises(mainstem.StreamDeleted, match="'clicks'"):
                found += consumer.batches()
        found += consumer.batches()
    assert sum(len(batch) for batch in found if batch.stream == "clicks-2") == 100


def test_ranges_without_a_match_are_given_back_at_once(hub):
    """One poll finds the only match behind dozens of them; with the next heartbeat each would take seconds."""
    hub.streams.create("s", shards=2, schema={"id": "int64", "v": "string"})
    chance = random.Random(1)
    with hub.producer() as producer:
        for first in range(0, 200_000, 5_000):
            producer.send_many("s", [{"id": first + n, "v": chance.randbytes(60).hex()} for n in range(5_000)])
            producer.flush()
        producer.send("s", {"id": -1, "v": ""})
    with hub.consumer("s", group="g", start="earliest", spread=True, where="id = -1") as consumer:
        assert consumer.poll(10) is not None
