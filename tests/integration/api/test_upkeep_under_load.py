"""Producers and followers at work while the log is kept as hard as it can be: nobody misses or repeats anything."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

import mainstem
from mainstem.hub.hub import Hub
from tests.integration.api.conftest import Kept, read_all

SECONDS = 2.5
# How long everything together may take to come to rest.
REST_SECONDS = 20.0
WORK = ("blocks_freed", "records_compacted", "entries_merged")

Place = tuple[int, int]


@dataclass
class Written:
    """What was acknowledged of one stream, by place. One producer."""

    stream: str
    keys: int
    records: dict[Place, tuple[bytes, bytes]] = field(default_factory=dict)

    def write(self, hub: Hub, stop: threading.Event) -> None:
        rng = random.Random(self.stream)
        number = 0
        with hub.producer() as producer:
            while not stop.is_set():
                # Now one at a time, now many at once; a large one ends a run of tiny ones, which is then merged.
                is_large = rng.random() < 0.05
                sent = []
                for _ in range(1 if is_large else rng.choice((1, 1, 1, 40))):
                    size = 40_000 if is_large else rng.choice((3, 600))
                    key, value = b"k%d" % rng.randrange(self.keys), b"%d " % number + rng.randbytes(size)
                    sent.append((producer.send(self.stream, value, key=key), key, value))
                    number += 1
                for ack, key, value in sent:
                    self.records[ack.result(10)] = (key, value)


@dataclass
class Follower:
    """Reads to the end, and notes what is wrong: a record that is not the next, or not what was written there."""

    written: Written
    # Compacted, or erased from: then offsets may be missing, but none comes twice.
    has_gaps: bool = False
    wrong: list[str] = field(default_factory=list)
    seen: dict[Place, tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    lost: int = 0
    expected: dict[int, int] = field(default_factory=dict)

    def follow(self, hub: Hub, is_over: Callable[[dict[int, int]], bool]) -> None:
        with hub.consumer(self.written.stream, start="earliest") as consumer:
            while not is_over(dict(enumerate(consumer.cursor.offsets))):
                try:
                    record = consumer.poll(0.1)
                except mainstem.DataLoss as loss:
                    self._lose(loss)
                    continue
                if record is not None:
                    self._take(record)

    def _take(self, record: mainstem.Record) -> None:
        expected = self.expected.get(record.shard, 0)
        is_next = record.offset >= expected if self.has_gaps else record.offset == expected
        if not is_next:
            self.wrong.append(f"shard {record.shard}: {record.offset} came, {expected} was next")
        self.expected[record.shard] = record.offset + 1
        self.seen[record.shard, record.offset] = (record.key, record.value)

    def _lose(self, loss: mainstem.DataLoss) -> None:
        expected = self.expected.get(loss.shard, 0)
        if loss.reason != "trimmed" or (not self.has_gaps and loss.first != expected) or loss.first < expected:
            self.wrong.append(f"{loss}, {expected} was next")
        self.expected[loss.shard] = loss.last + 1
        self.lost += loss.last + 1 - loss.first

    def check(self) -> None:
        assert self.wrong == []
        for place, pair in self.seen.items():
            assert self.written.records[place] == pair


class Work:
    """Threads, and the first error of any of them."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, act: Callable[..., None], *args: object) -> None:
        def guarded() -> None:
            try:
                act(*args)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=guarded, name=act.__qualname__)
        thread.start()
        self._threads.append(thread)

    def join(self) -> None:
        deadline = time.monotonic() + REST_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        assert self.errors == []
        assert [thread.name for thread in self._threads if thread.is_alive()] == []


def trim_again_and_again(hub: Hub, stream: str, stop: threading.Event) -> None:
    rng = random.Random(1)
    while not stop.wait(0.05):
        info = hub.streams.get(stream)
        shard = rng.randrange(info.shards)
        hub.streams.trim(stream, offset=rng.randint(info.starts[shard], info.ends[shard]), shard=shard)


def erase_again_and_again(hub: Hub, stream: str, erased: list[int], stop: threading.Event) -> None:
    while not stop.wait(0.1):
        erased.append(hub.streams.erase(stream, b"k0").records)


@pytest.mark.slow("writes for some seconds while everything else goes on")
def test_nobody_misses_or_repeats_anything(kept: Kept) -> None:
    hub = kept.hub
    hub.streams.create("plain")
    hub.streams.create("trimmed", shards=2)
    hub.streams.create("compacted", cleanup="compact")
    hub.streams.create("erased")
    written = {name: Written(name, 30) for name in ("plain", "trimmed", "compacted", "erased")}
    followers = [
        Follower(each, has_gaps=name in ("compacted", "erased")) for name, each in written.items() for _ in range(2)
    ]
    stop, done = threading.Event(), threading.Event()
    ends: dict[str, tuple[int, ...]] = {}

    def is_over(stream: str) -> Callable[[dict[int, int]], bool]:
        return lambda at: done.is_set() and all(at[shard] >= end for shard, end in enumerate(ends[stream]))

    writing, reading, administering = Work(), Work(), Work()
    erased: list[int] = []
    beside = mainstem.open(kept.data, read_only=True)
    with beside:
        for each in written.values():
            writing.start(each.write, hub, stop)
        for number, follower in enumerate(followers):
            # One of each two reads the folder beside the process that writes it.
            reading.start(follower.follow, beside if number % 2 else hub, is_over(follower.written.stream))
        administering.start(trim_again_and_again, hub, "trimmed", stop)
        administering.start(erase_again_and_again, hub, "erased", erased, stop)
        time.sleep(SECONDS)
        # A slow machine takes longer to write what is worth merging.
        late = time.monotonic() + REST_SECONDS
        while not all(hub.statistics()[name] for name in WORK) and time.monotonic() < late:
            time.sleep(0.2)
        stop.set()
        writing.join()
        administering.join()
        for name in written:
            ends[name] = hub.streams.get(name).ends
        done.set()
        reading.join()
    for follower in followers:
        follower.check()
        if follower.written.stream == "plain":
            assert (len(follower.seen), follower.lost) == (len(follower.written.records), 0)
        elif follower.written.stream == "trimmed":
            assert len(follower.seen) + follower.lost == len(follower.written.records)
    check_what_is_left(hub, written, sum(erased))
    counts = hub.statistics()
    assert counts["upkeep_errors"] == 0
    assert all(counts[name] > 0 for name in WORK)


def check_what_is_left(hub: Hub, written: dict[str, Written], erased: int) -> None:
    """Everything is read once more, from the beginning."""
    for name, each in written.items():
        left = {(record.shard, record.offset): (record.key, record.value) for record in read_all(hub, name)}
        for place, pair in left.items():
            assert each.records[place] == pair
        info = hub.streams.get(name)
        if name == "plain":
            assert left.keys() == each.records.keys()
        elif name == "trimmed":
            assert left.keys() == {place for place in each.records if place[1] >= info.starts[place[0]]}
        elif name == "compacted":
            newest = {key: place for place, (key, _) in sorted(each.records.items())}
            assert set(newest.values()) <= left.keys()
        else:
            missing = [each.records[place][0] for place in each.records.keys() - left.keys()]
            assert set(missing) <= {b"k0"}
            assert len(missing) == erased
