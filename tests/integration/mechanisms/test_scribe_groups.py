"""What Scribe does for many readers of one stream: balance, advice, bytes apart from what says where they are, and
results that are there exactly once."""

import contextlib
import random
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import mainstem
from mainstem.hub.hub import Hub
from mainstem.testing import planted
from mainstem.testing.link import Link
from mainstem.testing.server import ServerProcess
from mainstem.transport.sharing import GroupInfo
from tests.integration.mechanisms.members import (
    QUICK,
    MemberProcess,
    Writer,
    come_to,
    killed_at_last,
    missing,
    times_read,
)
from tests.integration.mechanisms.rig import changed_servers, read_all

# S11: members share what is to be read by its weight.

RATES = range(1, 13)

NO_RATES = """
from mainstem.log import whole_group
beat = whole_group._beat
import dataclasses
whole_group._beat = lambda call: dataclasses.replace(beat(call), rates={})
"""


def imbalance(info: GroupInfo) -> float:
    """The largest load of a member, by the mean."""
    loads = Counter[int]()
    for shard in info.shards:
        loads[shard.member] += RATES[shard.shard]
    if 0 in loads or len(loads) < 3:
        return float("inf")
    return max(loads.values()) * len(loads) / sum(loads.values())


@contextmanager
def weighted(path: Path) -> Iterator[tuple[Hub, list[MemberProcess], Writer]]:
    """Three members of a stream of twelve shards, to which 1 to 12 KB are written at a time."""
    with (
        ServerProcess(path, *QUICK) as server,
        mainstem.connect(server.url) as hub,
        killed_at_last([]) as members,
    ):
        hub.streams.create("clicks", shards=len(RATES))
        writer = Writer(hub, "clicks", RATES, pause=0.1, value=b"x" * 1_000)
        for _ in range(3):
            members.append(MemberProcess(server, "clicks", "g"))
            assert members[-1].is_ready.wait(30)
            come_to(lambda: _members_with_shards(hub) == len(members), 20)
        try:
            yield hub, members, writer
        finally:
            writer.stop()


def _members_with_shards(hub: Hub) -> int:
    try:
        return sum(member.shards > 0 for member in hub.groups.get("g").members)
    except mainstem.UnknownGroup:
        return 0


@pytest.mark.mechanism("S11")
@pytest.mark.slow("three members in processes of their own, which are measured for some seconds")
def test_s11(tmp_path):
    """Twelve shards that weigh 1 to 12, three members: soon nobody has more than 1.2 times the mean. One of them is
    killed: the others have everything, after a gap, and read again what it had not committed."""
    with weighted(tmp_path / "data") as (hub, members, writer):
        come_to(lambda: imbalance(hub.groups.get("g")) <= 1.2, 20, lambda: hub.groups.get("g"))
        killed = members.pop()
        come_to(lambda: len(killed.reads) >= 20, 20)
        killed.kill()
        killed_at = time.time()
        come_to(lambda: _members_with_shards(hub) == 2 and all(s.member for s in hub.groups.get("g").shards), 10)
        time.sleep(1.5)
        writer.stop()
        come_to(lambda: hub.groups.get("g").records == 0, 20)
        everybody = (*members, killed)
        come_to(lambda: missing(hub, "clicks", [read for one in everybody for read in one.reads]) == 0, 10)
        # What it was reading, somebody else has gone on with.
        gaps = []
        for shard in {read.shard for read in killed.reads[-20:]}:
            last = max(read.end for read in killed.reads if read.shard == shard)
            first = [read.at for one in members for read in one.reads if read.shard == shard and read.end > last]
            gaps += [min(first) - killed_at] if first else []
        assert gaps
        assert max(gaps) < 10
        again = [place for place, times in times_read([r for one in everybody for r in one.reads]).items() if times > 1]
        in_hand = [r for shard in range(12) for r in [r for r in killed.reads if r.shard == shard][-3:]]
        assert set(again) <= set(times_read(in_hand))


@pytest.mark.mechanism("S11")
@pytest.mark.slow("three members in processes of their own, which are measured for some seconds")
def test_s11_control(tmp_path):
    """If the coordinator hears nothing of what shards weigh, all members have as many, and one far too much."""
    with changed_servers(NO_RATES), weighted(tmp_path / "data") as (hub, _, _):
        come_to(lambda: imbalance(hub.groups.get("g")) < 10, 20)
        time.sleep(4.0)
        assert imbalance(hub.groups.get("g")) > 1.2


SKEWED = (20, 1, 1)


@contextmanager
def skewed(path: Path, *, spread: bool) -> Iterator[tuple[Hub, list[MemberProcess], Writer]]:
    """Three members of a stream of three shards, one of which has nearly everything that is written."""
    with (
        ServerProcess(path, *QUICK) as server,
        mainstem.connect(server.url) as hub,
        killed_at_last([]) as members,
    ):
        hub.streams.create("clicks", shards=len(SKEWED))
        members += [MemberProcess(server, "clicks", "g", spread=spread) for _ in range(3)]
        assert all(member.is_ready.wait(30) for member in members)
        come_to(lambda: hub.groups.get("g").member_count == 3, 20)
        writer = Writer(hub, "clicks", SKEWED, pause=0.05, value=b"x" * 1_000)
        try:
            yield hub, members, writer
        finally:
            writer.stop()


def imbalance_of_reads(members: Sequence[MemberProcess]) -> float:
    """The most that a member has read, by the mean; nobody knows before a few hundred records."""
    loads = [sum(read.end - read.first for read in member.reads) for member in members]
    return max(loads) * len(loads) / sum(loads) if sum(loads) > 500 else float("inf")


@pytest.mark.mechanism("S11")
@pytest.mark.slow("three members in processes of their own, one of which is killed")
def test_s11_spread(tmp_path):
    """Nearly everything is in one shard: if batches are spread, all members have as much to read all the same. One of
    them is killed: the others read what it had and nobody else did, and nothing else a second time."""
    with skewed(tmp_path / "data", spread=True) as (hub, members, writer):
        come_to(lambda: imbalance_of_reads(members) <= 1.2, 20, lambda: [len(member.reads) for member in members])
        members[0].kill()
        time.sleep(1.0)
        writer.stop()
        come_to(lambda: hub.groups.get("g").records == 0, 10)
        come_to(lambda: missing(hub, "clicks", [read for one in members for read in one.reads]) == 0, 10)
        again = {
            place for place, times in times_read([read for one in members for read in one.reads]).items() if times > 1
        }
        assert again <= set(times_read(members[0].reads[-10:]))


@pytest.mark.mechanism("S11")
@pytest.mark.slow("three members in processes of their own")
def test_s11_spread_control(tmp_path):
    """If shards are read whole, one member has nearly everything."""
    with skewed(tmp_path / "data", spread=False) as (_, members, _):
        come_to(lambda: imbalance_of_reads(members) < 10, 20)
        time.sleep(1.0)
        assert imbalance_of_reads(members) > 2


# S12: how many members there should be.

CAPACITY = 50  # records per second of one member

NO_ADVICE = """
from mainstem.cluster.advice import Advisor
def as_it_is(self, exact, current):
    self._size = self._size or current
Advisor._consider = as_it_is
"""


class SlowMember(threading.Thread):
    """A member with a connection of its own that manages so many records per second, and no more."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._stopped = threading.Event()
        self.start()

    def run(self) -> None:
        with mainstem.connect(self._url) as hub, hub.consumer("clicks", group="g", start="earliest") as consumer:
            while not self._stopped.is_set():
                with contextlib.suppress(mainstem.Fenced):
                    if consumer.poll(0.2) is not None:
                        time.sleep(1 / CAPACITY)

    def stop(self) -> None:
        self._stopped.set()


class Traffic(threading.Thread):
    """So many records per second, to all shards in turn."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(daemon=True)
        self._hub = hub
        self.rate = 0.0
        self.is_over = False
        self.start()

    def run(self) -> None:
        number, due = 0, time.monotonic()
        with self._hub.producer() as producer:
            while not self.is_over:
                due = max(due + 1 / self.rate, time.monotonic() - 0.5) if self.rate else time.monotonic() + 0.01
                time.sleep(max(due - time.monotonic(), 0.0))
                if self.rate:
                    producer.send("clicks", b"x", shard=number % 40)
                    number += 1


def follow_advice(path: Path, seconds: float, rates: Sequence[float]) -> Iterator[tuple[list[int], float]]:
    """A supervisor that starts and stops members as it is advised, with so many records a second in each phase: what it
    was advised in it, period by period, and the lag at its end, in seconds."""
    with ServerProcess(path, *QUICK, "--group-rebalance-interval", "3s") as server, ExitStack() as stack:
        hub = stack.enter_context(mainstem.connect(server.url))
        hub.streams.create("clicks", shards=40)
        traffic = Traffic(hub)
        members = [SlowMember(server.url)]
        try:
            for rate in rates:
                traffic.rate = rate
                advised: list[int] = []
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    time.sleep(0.5)
                    advice = hub.groups.get("g").advice if hub.groups.list() else None
                    if advice is None:
                        continue
                    advised.append(advice.members)
                    members += [SlowMember(server.url) for _ in range(advice.members - len(members))]
                    while len(members) > advice.members:
                        members.pop().stop()
                yield advised, hub.groups.get("g").seconds
        finally:
            traffic.is_over = True
            traffic.join()
            for member in members:
                member.stop()
            for member in members:
                member.join()


@pytest.mark.mechanism("S12")
@pytest.mark.xdist_group("measure")
@pytest.mark.slow("half a minute of traffic, with up to ten members")
def test_s12(tmp_path):
    """A member manages 50 records a second. With 75, 375 and 75 a second, two, about ten and two members are advised;
    a supervisor that follows it keeps up. If the advice stays what it was, the group falls behind."""
    low, high, again = follow_advice(tmp_path / "right", 10, (75, 375, 75))
    assert low[0][-1] in (2, 3)
    assert 9 <= high[0][-1] <= 12
    assert again[0][-1] in (2, 3)
    assert again[1] < 5
    with changed_servers(NO_ADVICE):
        _, high = follow_advice(tmp_path / "control", 6, (75, 375))
    assert high[0][-1] == 1
    assert high[1] > 3


# S27: what says where bytes are is small, and order can be given without touching them.


def ledger_bytes(server: ServerProcess) -> int:
    """The size of the ledger, once everything is in the file itself."""
    import apsw

    with contextlib.closing(apsw.Connection(str(server.folder / "ledger.db"), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        pages, size = next(db.execute("select * from pragma_page_count(), pragma_page_size()"))
        free = next(db.execute("pragma freelist_count"))[0]
    return int((pages - free) * size)


def written_and_noted(path: Path, total: int, batch: int) -> float:
    """So many bytes are written, so many of them in a batch: how many bytes the ledger grows by, for each of them."""
    randomness = random.Random(1)
    size = min(batch, 1_000)
    with ServerProcess(path, "--upkeep-interval", "1h") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("clicks")
        before = ledger_bytes(server)
        with hub.producer(compression=None) as producer:
            for _ in range(total // batch):
                producer.send_many("clicks", [randomness.randbytes(size) for _ in range(batch // size)]).result(10)
        assert hub.streams.get("clicks").bytes >= total
        return (ledger_bytes(server) - before) / total


@pytest.mark.mechanism("S27")
@pytest.mark.slow("eight hundred flushes, one after the other")
def test_s27_size(tmp_path):
    """A row of the ledger for a batch of 800 KB: less than a hundredth of the bytes. A row for every record of
    200 bytes: a tenth of them."""
    assert written_and_noted(tmp_path / "right", 8_000_000, 800_000) < 0.01
    assert written_and_noted(tmp_path / "control", 160_000, 200) > 0.1


def io_of(server: ServerProcess) -> dict[str, int]:
    lines = Path(f"/proc/{server.pid}/io").read_text().splitlines()
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


@pytest.mark.mechanism("S27")
@pytest.mark.slow("30 MB are written")
def test_s27_order_without_the_bytes(tmp_path):
    """20 MB of two writers are staged, and get their order in the stream by what their commits say: the server reads
    and writes less than a hundredth of them for it. What is appended and not staged moves all of the bytes."""
    values = [random.Random(number).randbytes(500_000) for number in range(20)]
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("clicks")
        first, second = hub.transaction(), hub.transaction()
        for number, value in enumerate(values * 2):
            (first if number % 2 else second).send("clicks", value)
        for transaction in (first, second):
            transaction._producer().flush()
        before = io_of(server)
        second.commit()
        first.commit()
        after = io_of(server)
        moved = {name: after[name] - before[name] for name in ("rchar", "wchar")}
        assert max(moved.values()) < 200_000
        assert second.offsets == {("clicks", 0): (0, 20)}
        assert first.offsets == {("clicks", 0): (20, 20)}
        found = [record.value for record in read_all(hub, "clicks")]
        assert found == [values[n % 20] for n in range(0, 40, 2)] + [values[n % 20] for n in range(1, 40, 2)]
        before = io_of(server)
        with hub.producer() as producer:
            producer.send_many("clicks", values)
        assert io_of(server)["wchar"] - before["wchar"] > 9_000_000  # the control


@pytest.mark.mechanism("S27")
@pytest.mark.slow("a server is started twice")
def test_s27_bytes_that_cannot_be_read(tmp_path):
    """One batch is damaged on disk: that one is told, with its offsets, and reading goes on behind it."""
    with ServerProcess(tmp_path / "data") as server:
        with mainstem.connect(server.url) as hub:
            hub.streams.create("clicks")
            with hub.producer(compression=None) as producer:
                for number in range(3):
                    producer.send("clicks", b"%d" % number * 100_000).result(10)
        server.stop()
        for block in (server.folder / "blocks").iterdir():
            data = block.read_bytes()
            at = data.find(b"1" * 1_000)
            if at >= 0:
                block.write_bytes(data[:at] + b"2" + data[at + 1 :])
        server.start()
        with (
            mainstem.connect(server.url) as hub,
            hub.consumer("clicks", group="g", start="earliest", follow=False) as consumer,
        ):
            found: list[object] = []
            for _ in range(3):
                try:
                    record = consumer.poll(10)
                    found.append(record.value[:1] if record is not None else None)
                except mainstem.DataLoss as loss:
                    found.append((loss.first, loss.last, loss.reason))
            assert found == [b"0", (1, 1, "damaged"), b"2"]


# S82: the sum of everything, exactly.

SUM = """
    import os, sys, time, mainstem
    url, steps, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    options = {"group": "sum", "start": "earliest", "commit": "manual"}
    with mainstem.connect(url) as hub, hub.consumer("sales", **options) as consumer:
        print("ready", flush=True)
        producer = hub.producer()
        for batch in consumer.batches():
            steps -= 1
            sums = {}
            for record in batch.records():
                sums[record.key] = sums.get(record.key, 0) + int(record.value)
            try:
                if way == "transaction":
                    with hub.transaction() as tx:
                        tx.advance(consumer)
                        for key, amount in sums.items():
                            tx.send("sums", b"%d" % amount, key=key)
                        if steps == 0:
                            os.kill(os.getpid(), 9)
                else:
                    for key, amount in sums.items():
                        producer.send("sums", b"%d" % amount, key=key)
                    producer.flush()
                    if steps == 0:
                        os.kill(os.getpid(), 9)
                    consumer.commit()
            except mainstem.MainstemError as error:
                print(type(error).__name__, file=sys.stderr, flush=True)  # it is read again
"""


def sums(path: Path, way: str, kills: int = 4, server_kills: int = 2) -> tuple[Counter[bytes], Counter[bytes], int]:
    """Sales are written over a link that loses answers; a program sums them up by key. It is killed on the way, and so
    is the server. What the sums should be, what they are, and how often something was sent again."""
    expected = Counter[bytes]()
    amounts = random.Random(7)
    repeated = 0
    with ServerProcess(path, *QUICK) as server, Link(server.address) as link, mainstem.connect(server.url) as hub:
        hub.streams.create("sales", shards=2)
        hub.streams.create("sums")
        with mainstem.connect(f"mainstem://{link.address}") as far, far.producer(batch_bytes=1_024) as producer:
            for life in range(kills + 1):
                steps = 3 if life < kills else -1
                command = [sys.executable, "-c", textwrap.dedent(SUM), server.url, str(steps), way]
                processor = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                assert processor.stdout is not None
                assert processor.stdout.readline() == "ready\n"
                for number in range(300):
                    key, amount = b"%d" % amounts.randrange(10), amounts.randrange(100)
                    expected[key] += amount
                    producer.send("sales", b"%d" % amount, key=key)
                    if number % 20 == 0:
                        producer.flush()
                    if number == 150:
                        lose_answers(link, hub, producer)
                producer.flush()
                if life < server_kills:
                    repeated += hub.statistics()["batches_repeated"]
                    server.kill()
                    server.start()
                if life < kills:
                    assert processor.wait(60) == -9
                else:
                    come_to(lambda: hub.groups.get("sum").records == 0, 60)
                    processor.kill()
                    processor.wait()
                processor.stdout.close()
        repeated += hub.statistics()["batches_repeated"]
        found = Counter[bytes]()
        for record in read_all(hub, "sums"):
            found[record.key or b""] += int(record.value or b"0")
    return expected, found, repeated


def lose_answers(link: Link, hub: Hub, producer: mainstem.Producer) -> None:
    """What is under way is carried out, and nobody hears of it."""
    producer.flush()
    before = sum(hub.streams.get("sales").ends)
    link.hold_answers()
    producer.send("sales", b"0", key=b"0")
    come_to(lambda: sum(hub.streams.get("sales").ends) > before, 20)
    link.cut()
    producer.flush()


@pytest.mark.mechanism("S82")
@pytest.mark.slow("five processes of a program that is killed on the way, and a server that is")
def test_s82(tmp_path):
    """Killed four times, the server twice, answers lost five times: the sums are those of a single run, for every key,
    and the log has recognised what was sent again."""
    expected, found, repeated = sums(tmp_path / "data", "transaction")
    assert found == expected
    assert repeated > 0


@pytest.mark.mechanism("S82")
@pytest.mark.slow("programs that are killed on the way")
def test_s82_controls(tmp_path):
    """Where the log recognises nothing, what was sent again counts twice. A program that notes how far it has read
    after it has written, and not with it, writes some sums twice."""
    expected, found, _ = sums(tmp_path / "apart", "apart", kills=2, server_kills=0)
    assert found.total() > expected.total()
    with planted.skip_dedupe():
        wrong = repeats_of_sales(tmp_path / "forgetful")
    assert wrong > repeats_of_sales(tmp_path / "right") == 0


def repeats_of_sales(path: Path) -> int:
    """How many records there are too many when answers are lost five times."""
    with ServerProcess(path) as server, Link(server.address) as link, mainstem.connect(server.url) as hub:
        hub.streams.create("sales")
        with mainstem.connect(f"mainstem://{link.address}") as far, far.producer() as producer:
            producer.prepare("sales")
            for _ in range(5):
                lose_answers(link, hub, producer)
        return hub.streams.get("sales").records - 5
