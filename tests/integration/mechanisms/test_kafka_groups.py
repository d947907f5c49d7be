"""Kafka's groups of consumers: queues and broadcast by one means, one reader for a shard, shards that change hands."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

import mainstem
from mainstem.consume.part import Part
from mainstem.hub.hub import Hub
from mainstem.testing.server import ServerProcess
from tests.integration.mechanisms.members import (
    QUICK,
    MemberProcess,
    Read,
    Writer,
    come_to,
    killed_at_last,
    missing,
    split,
    times_read,
)
from tests.integration.mechanisms.rig import changed_servers


def fill(hub: Hub, stream: str, count: int, shards: int) -> None:
    hub.streams.create(stream, shards=shards)
    with hub.producer(batch_bytes=4_096) as producer:
        for number in range(count):
            producer.send(stream, b"%d" % number, key=b"%d" % number)


class Reading(threading.Thread):
    """A member in a thread, with a connection of its own: what it gets, batch by batch."""

    def __init__(self, server: ServerProcess, stream: str, group: str, *, takes: int | None = None) -> None:
        super().__init__(daemon=True)
        self._hub = mainstem.connect(server.url)
        self.consumer = self._hub.consumer(stream, group=group, start="earliest")
        self._takes = takes
        self.found: list[tuple[int, int]] = []
        self.ended_with: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            for batch in self.consumer.batches():
                self.found += [(batch.shard, offset) for offset in batch.offsets()]
                if self._takes is not None and len(self.found) >= self._takes:
                    return
        except mainstem.MainstemError as error:
            self.ended_with = error

    def stop(self) -> None:
        with contextlib.suppress(mainstem.MainstemError):
            self._hub.close()
        self.join(10)


def split_now(hub: Hub) -> list[int]:
    try:
        return split(hub.groups.get("g"))
    except mainstem.UnknownGroup:
        return []


def has_split(hub: Hub, expected: list[int]) -> bool:
    return split_now(hub) == expected


# K17: a checkpoint behind what is flushed.

INDEX = """
    import json, os, sys, threading, time, mainstem
    url, folder, end, commit = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]

    def flush(number, documents):  # takes a while, and overwrites what is there
        time.sleep(0.005)
        with open(f"{folder}/{os.getpid()}-{number}.part", "w") as file:
            json.dump(documents, file)
        os.rename(file.name, file.name.removesuffix(".part") + ".json")

    with mainstem.connect(url) as hub, hub.consumer("docs", group="index", start="earliest", commit=commit) as consumer:
        documents, flushing, read = {}, None, 0
        while True:
            # Longer than it takes until the one before is known to be dead.
            record = consumer.poll(0.5 if documents else 5.0)
            if record is None and not documents:
                break
            if record is not None:
                documents[record.key.decode()] = record.value.decode()
                read += 1
            if len(documents) == 100 or record is None:
                if flushing is not None:
                    flushing[0].join()
                    if commit == "manual":
                        consumer.commit(flushing[1])
                thread = threading.Thread(target=flush, args=(read, documents))
                thread.start()
                flushing, documents = (thread, consumer.positions), {}
            if read == end:
                os.kill(os.getpid(), 9)
        if flushing is not None:
            flushing[0].join()
            if commit == "manual":
                consumer.commit()
"""


def indexed(path: Path, commit: str) -> tuple[int, int]:
    """An indexer of 2,000 documents that writes a hundred at a time while it reads on, killed five times. How many
    documents are in its index, and how often it was killed."""
    (path / "index").mkdir(parents=True)
    with ServerProcess(path / "data", *QUICK) as server, mainstem.connect(server.url) as hub:
        fill(hub, "docs", 2_000, shards=2)
        kills = 0
        for life in range(8):
            end = 330 + 60 * life if life < 5 else -1
            command = [sys.executable, "-c", textwrap.dedent(INDEX), server.url, str(path / "index"), str(end), commit]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode in (0, -9), done.stderr
            kills += done.returncode == -9
            if done.returncode == 0:
                break
    found: dict[str, str] = {}
    for file in (path / "index").glob("*.json"):
        found.update(json.loads(file.read_text()))
    assert all(key == value for key, value in found.items())
    return len(found), kills


@pytest.mark.mechanism("K17")
@pytest.mark.slow("eight processes of an indexer, one after the other, each of which waits for the shards of the last")
def test_k17(tmp_path):
    """An indexer commits the place of what it has written, not of what it has read: killed five times, its index is
    complete. One that commits what it has read loses what was not written."""
    documents, kills = indexed(tmp_path / "right", "manual")
    assert (documents, kills) == (2_000, 5)
    documents, kills = indexed(tmp_path / "control", "auto")
    assert kills >= 3
    assert documents < 2_000


# K18: several readers in one process, evenly.

# Of what nobody has the least loaded gets most; but nothing moves any more.
NO_MOVES = """
from mainstem.cluster.assignment import _Sharing
_Sharing.level = lambda self, tolerance: None
"""


def shares(server: ServerProcess, hub: Hub, members: int) -> list[int]:
    """How many shards, and records of what is written when all are there, each of four readers of one program gets."""
    with ExitStack() as stack:
        readers: list[Reading] = []
        for number in range(members):
            readers.append(Reading(server, "orders", "g"))
            stack.callback(readers[-1].stop)
            come_to(lambda: number > 0 or sum(split_now(hub)) == 8, 20)  # noqa: B023
        with contextlib.suppress(AssertionError):
            come_to(lambda: split_now(hub) == [2, 2, 2, 2], 5)
        come_to(lambda: sum(len(reader.found) for reader in readers) >= 100, 20)
        before = [len(reader.found) for reader in readers]
        with hub.producer() as producer:
            for shard in range(8):
                producer.send_many("orders", [b"x"] * 500, shard=shard)
        come_to(lambda: sum(len(reader.found) for reader in readers) - sum(before) >= 4_000, 20)
        return sorted(len(reader.found) - was for reader, was in zip(readers, before, strict=True))


@pytest.mark.mechanism("K18")
@pytest.mark.slow("two servers, and five seconds in which nothing happens in the second")
def test_k18_evenly(tmp_path):
    """Four readers of eight shards have two each, and as many records, give or take 5 %. Where nothing moves to those
    who come later, the first has everything."""
    with ServerProcess(tmp_path / "right", *QUICK) as server, mainstem.connect(server.url) as hub:
        fill(hub, "orders", 100, shards=8)
        found = shares(server, hub, 4)
        assert sum(found) == 4_000
        assert all(950 <= count <= 1_050 for count in found)
    with (
        changed_servers(NO_MOVES),
        ServerProcess(tmp_path / "control", *QUICK) as server,
        mainstem.connect(server.url) as hub,
    ):
        fill(hub, "orders", 100, shards=8)
        assert shares(server, hub, 4)[-1] > 2_000


@pytest.mark.mechanism("K18")
@pytest.mark.xdist_group("measure")
@pytest.mark.slow("two seconds in which nothing happens, and two in which nothing comes")
def test_k18_waiting(tmp_path, monkeypatch):
    """A reader that waits costs next to nothing, and has a record at once; closing the hub ends the wait of each. If
    nobody is told what came, it does not come in time."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        fill(hub, "orders", 8, shards=8)
        readers = [Reading(server, "orders", "g") for _ in range(4)]
        come_to(lambda: split_now(hub) == [2, 2, 2, 2], 20)
        come_to(lambda: sum(len(reader.found) for reader in readers) >= 8, 20)
        before = time.process_time()
        time.sleep(2.0)
        assert (time.process_time() - before) / 2.0 / len(readers) < 0.05  # 1 %, five-fold
        with hub.producer() as producer:
            waits = []
            for shard in range(8):
                producer.send("orders", b"x", shard=shard).result(10)
                waits.append(come_to(lambda: sum(len(r.found) for r in readers) > 8 + shard, 10))  # noqa: B023
        assert sorted(waits)[len(waits) // 2] < 0.2
        for reader in readers:
            reader.stop()
            assert not reader.is_alive()
            assert isinstance(reader.ended_with, mainstem.Closed)
        monkeypatch.setattr(Part, "call_when_ready", lambda self, call: None)
        with hub.consumer("orders", group="other") as consumer:
            assert consumer.poll(0.5) is None
            with hub.producer() as producer:
                threading.Timer(0.1, lambda: producer.send("orders", b"x")).start()
                began = time.monotonic()
                consumer.poll(2.0)
                assert time.monotonic() - began > 1.0  # the control


# K19: a queue and a broadcast by one means.

ONE_GROUP = """
import msgspec
from mainstem.log.coordinator import Coordinator
def in_one(method):
    return lambda self, call, *rest: method(self, msgspec.structs.replace(call, group="one"), *rest)
Coordinator.ask, Coordinator.commit = in_one(Coordinator.ask), in_one(Coordinator.commit)
"""


def queue_and_broadcast(path: Path) -> tuple[list[list[tuple[int, int]]], list[tuple[int, int]]]:
    """What each of three members of one group got of 6,000 records, and the only member of another."""
    with (
        ServerProcess(path, *QUICK) as server,
        mainstem.connect(server.url) as hub,
        ExitStack() as stack,
    ):
        fill(hub, "orders", 10, shards=9)
        readers = [Reading(server, "orders", group) for group in ("a", "a", "a", "b")]
        for reader in readers:
            stack.callback(reader.stop)
        come_to(lambda: all(reader.consumer.positions for reader in readers), 20)
        time.sleep(0.5)
        with hub.producer(batch_bytes=4_096) as producer:
            for number in range(6_000):
                producer.send("orders", b"%d" % number, shard=number % 9)
        if path.name == "right":
            come_to(lambda: sum(len(reader.found) for reader in readers[:3]) >= 6_010, 20)
        time.sleep(1.0)
        return [reader.found for reader in readers[:3]], readers[3].found


@pytest.mark.mechanism("K19")
@pytest.mark.slow("two servers, and shards that are moved among four readers of each")
def test_k19(tmp_path):
    """Three members of one group share all records, no two of them get the same, and the only member of another group
    gets all. Where the name of a group says nothing, it does not."""
    shared, whole = queue_and_broadcast(tmp_path / "right")
    together = [place for found in shared for place in found]
    assert len(set(together)) == len(together) == 6_010
    assert all(shared)
    assert sorted(whole) == sorted(together)
    with changed_servers(ONE_GROUP):
        _, whole = queue_and_broadcast(tmp_path / "control")
    assert len(set(whole)) < 6_010


@pytest.mark.mechanism("K19")
@pytest.mark.xdist_group("measure")
@pytest.mark.slow("two servers, and a wait for what does not come")
def test_k19_a_group_that_stalls(tmp_path):
    """A group that stops reading holds up nobody: another reads everything meanwhile, about as fast as without it.
    Where the name of a group says nothing, what the one has stopped at is missing to the other."""

    def seconds(server: ServerProcess, hub: Hub, group: str) -> float:
        began = time.monotonic()
        with hub.consumer("orders", group=group, start="earliest", follow=False) as consumer:
            assert sum(batch.count for batch in consumer.batches()) == 50_000
        return time.monotonic() - began

    def fill(hub: Hub) -> None:
        hub.streams.create("orders", shards=4)
        with hub.producer() as producer:
            for number in range(100):
                producer.send_many("orders", [b"%d" % number * 50] * 500, shard=number % 4)

    with (
        changed_servers(ONE_GROUP),
        ServerProcess(tmp_path / "control", *QUICK) as server,
        mainstem.connect(server.url) as hub,
    ):
        fill(hub)
        stalled = Reading(server, "orders", "stalled", takes=1)
        come_to(lambda: bool(stalled.found), 20)
        with hub.consumer("orders", group="beside", start="earliest") as consumer:
            found = 0
            while (batch := consumer.poll_batch(2.0)) is not None:
                found += batch.count
        assert found < 50_000
        stalled.stop()
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        fill(hub)
        alone = min(seconds(server, hub, f"alone-{number}") for number in range(3))
        stalled = Reading(server, "orders", "stalled", takes=1)
        come_to(lambda: bool(stalled.found), 20)
        beside = min(seconds(server, hub, f"beside-{number}") for number in range(3))
        assert beside < 2 * alone + 0.2
        assert hub.groups.get("stalled").records > 40_000
        assert all(hub.groups.get(f"beside-{number}").records == 0 for number in range(3))
        stalled.stop()


# K20: one reader for a shard.

ALL_HAVE_ALL = """
from dataclasses import replace
from mainstem.cluster.group import Group
answer = Group._answer
def everything(self, member):
    held = tuple((unit, self._cursors[unit]) for unit in sorted(self._cursors))
    return replace(answer(self, member), hold=tuple(unit for unit, _ in held), cursors=held, let_go=())
Group._answer = everything
"""


def owners_and_reads(path: Path) -> tuple[list[int], int, int]:
    """Ten members of a stream of eight shards: how many each has, how many records were read, and how many of these
    more than once."""
    with ServerProcess(path, *QUICK) as server, mainstem.connect(server.url) as hub, ExitStack() as stack:
        hub.streams.create("orders", shards=8)
        readers = [Reading(server, "orders", "g") for _ in range(10)]
        for reader in readers:
            stack.callback(reader.stop)
        come_to(lambda: bool(hub.groups.list()) and sum(split(hub.groups.get("g"))) == 8, 20)
        with contextlib.suppress(AssertionError):
            come_to(lambda: split_now(hub) == [1] * 8 + [0] * 2, 10 if path.name == "right" else 3)
        found = split(hub.groups.get("g"))
        with hub.producer() as producer:
            for shard in range(8):
                producer.send_many("orders", [b"x"] * 100, shard=shard)
        come_to(lambda: len({place for reader in readers for place in reader.found}) == 800, 20)
        time.sleep(0.3)
        counts = Counter(place for reader in readers for place in reader.found)
        if found == [1] * 8 + [0] * 2:
            # Who has one goes, and one that had none stands in for it.
            busy = next(reader for reader in readers if reader.consumer.positions)
            busy.stop()
            come_to(lambda: split_now(hub) == [1] * 8 + [0], 20)
    return found, len(counts), counts.total() - len(counts)


@pytest.mark.mechanism("K20")
@pytest.mark.slow("two servers with ten connections each")
def test_k20(tmp_path):
    """Of ten members of a group on eight shards eight have one each and two stand by, also when one goes; no record is
    read by two. Where each member may read every shard, all of them are."""
    assert owners_and_reads(tmp_path / "right") == ([1] * 8 + [0] * 2, 800, 0)
    with changed_servers(ALL_HAVE_ALL):
        _, read, repeated = owners_and_reads(tmp_path / "control")
    assert read == 800
    assert repeated > 800


# K21: members come and go.


@pytest.mark.mechanism("K21")
@pytest.mark.slow("four members in processes of their own, one of which is killed")
def test_k21(tmp_path):
    """Eight shards, and one member, two, four, three after a kill: they are split evenly before long (fifteen seconds
    are for a busy machine), nothing is lost, nobody reads what another has, and what is read twice is what the killed
    one had not committed."""
    with (
        ServerProcess(tmp_path / "data", *QUICK) as server,
        mainstem.connect(server.url) as hub,
        killed_at_last([]) as members,
    ):
        hub.streams.create("orders", shards=8)
        writer = Writer(hub, "orders", [5] * 8, pause=0.05)
        for count, expected in ((1, [8]), (2, [4, 4]), (4, [2, 2, 2, 2])):
            members += [MemberProcess(server, "orders", "g") for _ in range(count - len(members))]
            for member in members:
                assert member.is_ready.wait(30)
            come_to(partial(has_split, hub, expected), 15, lambda: hub.groups.get("g"))
        killed = members.pop()
        killed.kill()
        come_to(lambda: split_now(hub) == [3, 3, 2], 15, lambda: hub.groups.get("g"))
        writer.stop()
        come_to(lambda: hub.groups.get("g").records == 0, 20)
        time.sleep(0.2)
        reads = [read for member in (*members, killed) for read in member.reads]
        come_to(lambda: missing(hub, "orders", [r for m in (*members, killed) for r in m.reads]) == 0, 10)
        again = [place for place, times in times_read(reads).items() if times > 1]
        lately = times_read(_last_of_each_shard(killed, 3))
        assert all(place in lately for place in again)


def _last_of_each_shard(member: MemberProcess, count: int) -> list[Read]:
    """The batches that a member got last in each shard: in hand, and being committed."""
    return [read for shard in range(8) for read in [read for read in member.reads if read.shard == shard][-count:]]


@pytest.mark.mechanism("K21")
@pytest.mark.slow("two members in processes of their own, and five seconds in which nothing moves")
def test_k21_control(tmp_path):
    """Where nothing is moved when members come, the second has nothing to do."""
    with (
        changed_servers(NO_MOVES),
        ServerProcess(tmp_path / "data", *QUICK) as server,
        mainstem.connect(server.url) as hub,
        killed_at_last([]) as members,
    ):
        hub.streams.create("orders", shards=8)
        for expected in ([8], [8, 0]):
            members.append(MemberProcess(server, "orders", "g"))
            assert members[-1].is_ready.wait(30)
            come_to(partial(has_split, hub, expected), 10)
        time.sleep(3.0)
        assert split_now(hub) == [8, 0]


@pytest.mark.mechanism("K21")
@pytest.mark.slow("a member in a process of its own is stopped for longer than a session")
def test_k21_one_that_was_away(tmp_path):
    """A member that was stopped and is taken for dead cannot commit when it wakes up: what it had is another's."""
    with ServerProcess(tmp_path / "data", *QUICK) as server, mainstem.connect(server.url) as hub:
        hub.streams.create("orders", shards=2)
        writer = Writer(hub, "orders", [5] * 2, pause=0.05)
        with killed_at_last([MemberProcess(server, "orders", "g")]) as (member,):
            come_to(lambda: len(member.reads) > 10, 20)
            os.kill(member.process.pid, signal.SIGSTOP)
            with hub.consumer("orders", group="g", commit="manual") as consumer:

                def reads_shards(count: int) -> bool:
                    if consumer.poll(0.02) is not None:
                        consumer.commit()
                    return len(consumer.positions) == count

                come_to(lambda: reads_shards(2), 20)
                at = consumer.positions
                os.kill(member.process.pid, signal.SIGCONT)
                while not reads_shards(1):
                    standing = {(shard.stream, shard.shard): shard.offset for shard in hub.groups.get("g").shards}
                    # As long as the shards are its own, nobody moves the group's cursor but itself.
                    assert standing == consumer.positions
            writer.stop()
            come_to(lambda: hub.groups.get("g").records == 0, 20)
            assert member.fenced
            come_to(lambda: any(read.first >= at["orders", read.shard] for read in member.reads), 20)
