"""Members of groups for the experiments: processes of their own, which can be killed, and who read what."""

import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from mainstem.hub.hub import Hub
from mainstem.testing.server import ServerProcess
from mainstem.transport.sharing import GroupInfo

# Times a tenth of what they are if nothing is set.
QUICK = (
    *("--group-heartbeat", "300ms", "--group-session-timeout", "1s"),
    *("--group-revocation-timeout", "3s", "--group-rebalance-interval", "1s"),
)

READ = """
    import sys, time, mainstem
    url, stream, group, spread = sys.argv[1:]
    options = {"spread": True} if spread == "True" else {}
    with mainstem.connect(url) as hub, hub.consumer(stream, group=group, start="earliest", **options) as consumer:
        print("ready", flush=True)
        while True:
            try:
                batch = consumer.poll_batch(1.0)
            except mainstem.Fenced:
                print("fenced", flush=True)
                continue
            if batch is not None:
                print(batch.shard, batch.offset, batch.end, time.time(), flush=True)
"""


class Read(NamedTuple):
    """A batch that a member got: the offsets from `first` to before `end`, and when."""

    shard: int
    first: int
    end: int
    at: float


class MemberProcess(threading.Thread):
    """A process that reads as a member of a group, as fast as it can, and commits by itself."""

    def __init__(self, server: ServerProcess, stream: str, group: str, *, spread: bool = False) -> None:
        super().__init__(daemon=True)
        arguments = (server.url, stream, group, str(spread))
        command = [sys.executable, "-c", textwrap.dedent(READ), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.reads: list[Read] = []
        self.fenced = 0
        self.is_ready = threading.Event()
        self.start()

    def run(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            if words[0] == "ready":
                self.is_ready.set()
            self.fenced += words[0] == "fenced"
            if len(words) == 4:
                self.reads.append(Read(int(words[0]), int(words[1]), int(words[2]), float(words[3])))

    def kill(self) -> None:
        """`kill -9`."""
        self.process.kill()
        self.process.wait()
        self.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def killed_at_last(members: list[MemberProcess]) -> Iterator[list[MemberProcess]]:
    try:
        yield members
    finally:
        for member in members:
            member.kill()


def come_to(is_so: Callable[[], bool], seconds: float, why: Callable[[], object] = lambda: "") -> float:
    """Wait until it is so; how many seconds that took."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() < began + seconds, why()
        time.sleep(0.02)
    return time.monotonic() - began


def split(info: GroupInfo) -> list[int]:
    """How many shards each member has, the most first."""
    owned = Counter(shard.member for shard in info.shards if shard.member)
    return sorted((owned[member.id] for member in info.members), reverse=True)


def times_read(reads: Sequence[Read]) -> Counter[tuple[int, int]]:
    """How often each (shard, offset) was read."""
    return Counter((read.shard, offset) for read in reads for offset in range(read.first, read.end))


def missing(hub: Hub, stream: str, reads: Sequence[Read]) -> int:
    """How many offsets nobody has read."""
    ends = hub.streams.get(stream).ends
    read = times_read(reads)
    return sum((shard, offset) not in read for shard, end in enumerate(ends) for offset in range(end))


class Writer(threading.Thread):
    """Writes so many records to each shard of a stream, again and again, until it is stopped."""

    def __init__(self, hub: Hub, stream: str, counts: Sequence[int], *, pause: float, value: bytes = b"x") -> None:
        super().__init__(daemon=True)
        self._hub = hub
        self._stream = stream
        self._counts = counts
        self._pause = pause
        self._value = value
        self._stopped = threading.Event()
        self.start()

    def run(self) -> None:
        with self._hub.producer(compression=None) as producer:
            while not self._stopped.wait(self._pause):
                for shard, count in enumerate(self._counts):
                    producer.send_many(self._stream, [self._value] * count, shard=shard)

    def stop(self) -> None:
        self._stopped.set()
        self.join()
