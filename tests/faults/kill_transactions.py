"""Read, transform, write in transactions, with workers killed between any two steps, and their server under them.

Workers read two streams as members of two groups. A transaction takes what came of both, writes each record to two
other streams, and moves both cursors. Some are aborted on purpose; workers kill themselves between steps, are killed
and put to sleep; the server is killed; answers are lost. What comes out is every record exactly once and in order. A
reader beside them never sees a part of a transaction and nothing that was aborted. At the end nothing is open and the
space of what was never committed is given back.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path

import mainstem
from mainstem.consume.group_consumer import GroupConsumer
from mainstem.consume.record import RecordBatch
from mainstem.core.cursor import Cursor
from mainstem.core.errors import MainstemError, Refused, Retriable
from mainstem.hub.hub import Hub
from mainstem.testing import planted
from mainstem.testing.history import History
from mainstem.testing.link import Link
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults.kill_upkeep import collected
from tests.faults.lives import ARGUMENTS
from tests.faults.load import Load
from tests.faults.members import QUICK, SESSION_SECONDS, CursorWatch, come_to
from tests.faults.stamped import check_kept, count_report
from tests.faults.trials import Trials

INPUTS = ("orders", "clicks")
OUTPUTS = ("billed", "archived")
SHARDS = 2
WORKERS = 3
_TRANSACTION_SECONDS = 3
_LIFE_SECONDS_MAX = 0.4
_CATCH_UP_SECONDS_MAX = 100.0
# Which of so many steps of a worker is its last, which transactions are aborted, and which are large.
_STEPS_PER_DEATH = 150
_TRANSACTIONS_PER_ABORT = 12
_TRANSACTIONS_PER_LARGE = 6
_LARGE_BYTES = 30_000


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is one kill, of a worker or of the server; between them workers sleep, and answers are lost."""
    result = Trials()
    rng = random.Random(f"kill transactions {seed}")
    place = folder / "transactions"
    histories = {stream: History() for stream in INPUTS}
    server = ServerProcess(place, *QUICK, *ARGUMENTS)
    try:
        with (
            server,
            Link(server.address) as link,
            mainstem.connect(server.url) as hub,
            ExitStack() as stack,
        ):
            for stream in (*INPUTS, *OUTPUTS):
                hub.streams.create(stream, shards=SHARDS)
            loads = [_Load(server.url, stream, history) for stream, history in histories.items()]
            watch = CursorWatch(hub, [_group(stream) for stream in INPUTS])
            looks = _Looks(hub)
            killing = _Killing(rng, server, link)
            # The hub first: who still asks it something is told at once that there is no answer.
            for callback in (*(load.leave for load in loads), looks.leave, watch.stop, killing.end, hub.close):
                stack.callback(callback)
            while killing.kills < trials:
                killing.strike()
            assert server.is_running, "the server ended by itself"
            for load in loads:
                load.stop()
            ends = {stream: hub.streams.get(stream).ends for stream in INPUTS}
            for stream in INPUTS:
                # Once something was wrong, there is no end to wait for.
                if not looks.wrong and not killing.await_end(hub, stream, ends[stream], looks.wrong):
                    result.add_finding(f"seed {seed}: the group of {stream} hangs: {hub.groups.get(_group(stream))}")
            killing.end()
            looks.stop()
            watch.stop()
            errors = [text for load in loads for text in load.errors]
            for text in (*errors, *watch.wrong, *looks.check(ends), *([] if looks.wrong else _given_back(hub))):
                result.lost += "is missing" in text
                result.duplicated += "came twice" in text
                result.add_finding(f"seed {seed}: {text}")
            result.trials = killing.kills
            result.took(killing.worst_start_seconds)
    except (ServerFailed, MainstemError, AssertionError) as error:
        result.add_finding(f"seed {seed}: {type(error).__name__}: {error}\n{server.stderr()}")
    check_kept(result, place, f"seed {seed}")
    for stream, history in histories.items():
        count_report(result, history.check(), f"seed {seed}, stream {stream}")
    for text in collected(place):
        result.add_finding(f"seed {seed}, after all: {text}")
    return result


def _group(stream: str) -> str:
    return f"workers-of-{stream}"


def _given_back(hub: Hub) -> list[str]:
    """What transactions still hold when the time of all of them is over."""
    deadline = time.monotonic() + 5 * _TRANSACTION_SECONDS
    while True:
        counters = hub.statistics()
        held = {name: counters[f"transactions_{name}"] for name in ("open", "staged_batches", "staged_bytes")}
        if not any(held.values()):
            return []
        if time.monotonic() > deadline:
            return [f"transactions of killed workers still hold {held}"]
        time.sleep(0.1)


class _Load(Load):
    """One producer, and a follower."""

    producers = 1
    shards = SHARDS

    def __init__(self, url: str, stream: str, history: History) -> None:
        super().__init__(lambda: mainstem.connect(url), stream, history, pause=0.1)


class _Looks:
    """Reads what comes out, again and again, and knows it all. A thread of its own.

    What a look has begun to see of a transaction, the next one has seen whole: in both streams, in all of their shards.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._stopping = threading.Event()
        self._cursors: dict[str, Cursor] = {}
        # By output and shard of an input, the offsets in the order in which they came out.
        self._found: defaultdict[tuple[str, str, int], list[int]] = defaultdict(list)
        # Of each transaction, how many records were seen, and how many it has; those that are not whole yet.
        self._seen: Counter[str] = Counter()
        self._size: dict[str, int] = {}
        self._begun: set[str] = set()
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """One more look, then no more."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._thread.join()
            self._look_twice()

    def leave(self) -> None:
        """No more looks: there is nobody to ask."""
        self._stopping.set()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(0.02):
                try:
                    self._look()
                except Retriable:
                    continue
        except Exception as error:
            self.wrong.append(f"the reader got {type(error).__name__}: {error}")

    def _look_twice(self) -> None:
        self._look()
        self._look()

    def _look(self) -> None:
        begun = self._begun
        for stream in OUTPUTS:
            start = self._cursors.get(stream, "earliest")
            with self._hub.consumer(stream, start=start, follow=False) as consumer:
                for batch in consumer.batches():
                    self._take(stream, batch)
                    self._cursors[stream] = consumer.cursor
        self._begun = {name for name, size in self._size.items() if self._seen[name] < size}
        for name in begun & self._begun:
            self.wrong.append(f"transaction {name} shows {self._seen[name]} of {self._size[name]} records")
        for name in [name for name, size in self._size.items() if self._seen[name] == size]:
            del self._size[name]

    def _take(self, output: str, batch: RecordBatch) -> None:
        for record in batch.records():
            stream, shard, offset, name, size, is_aborted = record.value.split()[:6]
            if is_aborted == b"1":
                self.wrong.append(f"{output}: a record of a transaction was seen that was aborted")
            self._found[output, stream.decode(), int(shard)].append(int(offset))
            self._seen[name.decode()] += 1
            self._size[name.decode()] = int(size)

    def check(self, ends: dict[str, tuple[int, ...]]) -> list[str]:
        """Every record of the inputs came out once and in order, in both outputs."""
        wrong = list(self.wrong)
        for output in OUTPUTS:
            for stream, shards in ends.items():
                for shard, end in enumerate(shards):
                    found = self._found[output, stream, shard]
                    wrong += [f"{output}, {text}" for text in _exactly_once(found, end, f"{stream} shard {shard}")]
        return wrong


def _exactly_once(found: list[int], end: int, name: str) -> list[str]:
    counts = Counter(found)
    wrong = [f"offset {offset} of {name} is missing" for offset in range(end) if offset not in counts]
    wrong += [f"offset {offset} of {name} came twice" for offset, count in counts.items() if count > 1]
    if not wrong and found != sorted(found):
        wrong.append(f"{name} came out of order")
    return wrong[:5]


class _Killing:
    """The workers, and what happens to them, to their server, and to the link between. One thread."""

    def __init__(self, rng: random.Random, server: ServerProcess, link: Link) -> None:
        self.kills = 0
        self.worst_start_seconds = 0.0
        self._rng = rng
        self._server = server
        self._link = link
        self._workers = [self._start() for _ in range(WORKERS)]
        for worker in self._workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"ready\n", _stderr(worker)

    def _start(self) -> "subprocess.Popen[bytes]":
        url = f"mainstem://{self._link.address}"
        command = planted.command("tests.faults.kill_transactions", url, str(self._rng.randrange(1 << 30)))
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def strike(self) -> None:
        time.sleep(self._rng.uniform(0.05, _LIFE_SECONDS_MAX))
        assert self._server.is_running, "the server ended by itself"
        self._bury()
        what = self._rng.random()
        if what < 0.4:
            self._rng.choice(self._workers).kill()
            self._bury()
        elif what < 0.5:
            self._put_to_sleep()
        else:
            self._lose_answers(is_killed=what < 0.7)

    def _bury(self) -> None:
        """Count who has died, and have others take their places."""
        for worker in [worker for worker in self._workers if worker.poll() is not None]:
            assert worker.returncode == -signal.SIGKILL, f"a worker ended by itself: {_stderr(worker)}"
            self.kills += 1
            self._workers.remove(worker)
            worker.communicate()
            self._workers.append(self._start())

    def _put_to_sleep(self) -> None:
        worker = self._rng.choice(self._workers)
        worker.send_signal(signal.SIGSTOP)
        time.sleep(SESSION_SECONDS * self._rng.uniform(1.2, 1.6))
        worker.send_signal(signal.SIGCONT)

    def _lose_answers(self, *, is_killed: bool) -> None:
        """The server does what it was asked; nobody hears of it."""
        if self._rng.random() < 0.8:
            self._link.hold_answers()
            time.sleep(self._rng.uniform(0.0, 0.4))
        if is_killed:
            self.kills += 1
            self._server.kill()
        self._link.cut()
        if is_killed:
            self._server.start()
            self.worst_start_seconds = max(self.worst_start_seconds, self._server.start_seconds)

    def await_end(self, hub: Hub, stream: str, ends: tuple[int, ...], wrong: list[str]) -> bool:
        """Whether the workers come to these ends before something is wrong; they still kill themselves."""
        deadline = time.monotonic() + _CATCH_UP_SECONDS_MAX
        while time.monotonic() < deadline and not wrong:
            self._bury()
            if come_to(hub, stream, _group(stream), ends, 1.0) is not False:
                return True
        return False

    def end(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.communicate()
        self._workers.clear()


def _stderr(worker: "subprocess.Popen[bytes]") -> str:
    worker.kill()
    return worker.communicate()[1].decode(errors="replace")[-2_000:]


# ------------------------------------------------------------------------------------------------------ the process


class _ChangedMind(Exception):
    """A transaction that is aborted on purpose."""


class _Worker:
    """Reads, transforms, writes, until it is killed, or kills itself between two steps."""

    def __init__(self, hub: Hub, consumers: list[GroupConsumer], rng: random.Random) -> None:
        self._hub = hub
        self._consumers = consumers
        self._rng = rng

    def work(self) -> None:
        try:
            batches = [batch for consumer in self._consumers if (batch := consumer.poll_batch(0.05)) is not None]
            self._step()
            if batches:
                self._transform(batches)
        except (_ChangedMind, Refused, Retriable):
            # Nothing of it has happened: all of it once more.
            for consumer in self._consumers:
                consumer.rewind()

    def _transform(self, batches: list[RecordBatch]) -> None:
        is_aborted = self._rng.randrange(_TRANSACTIONS_PER_ABORT) == 0
        padding = b" " * (_LARGE_BYTES if self._rng.randrange(_TRANSACTIONS_PER_LARGE) == 0 else 1)
        size = len(OUTPUTS) * sum(batch.count for batch in batches)
        with self._hub.transaction(timeout=f"{_TRANSACTION_SECONDS}s") as transaction:
            for output in OUTPUTS:
                for batch in batches:
                    place = f"{batch.stream} {batch.shard}".encode()
                    rest = b"%x %d %d" % (transaction.id, size, is_aborted) + padding
                    values = [b"%b %d %b" % (place, record.offset, rest) for record in batch.records()]
                    transaction.send_many(output, values, [place] * len(values))
                    self._step()
            for consumer in self._consumers:
                transaction.advance(consumer)
                self._step()
            if is_aborted:
                raise _ChangedMind
        self._step()

    def _step(self) -> None:
        if self._rng.randrange(_STEPS_PER_DEATH) == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _live(url: str, seed: str) -> None:
    with mainstem.connect(url, timeout=_CATCH_UP_SECONDS_MAX) as hub, ExitStack() as stack:
        consumers: list[GroupConsumer] = []
        for stream in INPUTS:
            consumer = hub.consumer(stream, group=_group(stream), start="earliest", commit="manual")
            assert isinstance(consumer, GroupConsumer)
            consumers.append(stack.enter_context(consumer))
        os.write(1, b"ready\n")
        worker = _Worker(hub, consumers, random.Random(seed))
        while True:
            worker.work()


if __name__ == "__main__":
    _live(*sys.argv[1:])
