"""The write path of Scribe: categories, batches, acknowledgements, the shared buffer, a request taken apart."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import mainstem
from mainstem.consume.record import Record
from mainstem.core.batch import Batch
from mainstem.core.limits import BATCH_RECORDS_MAX
from mainstem.hub import remote
from mainstem.hub.hub import Hub
from mainstem.hub.requests import AppendRequest
from mainstem.produce.producer import Producer
from mainstem.testing import planted
from mainstem.testing.server import ServerFailed, ServerProcess
from mainstem.transport.wire import Appended, wire_error
from tests.integration.mechanisms.rig import percentile, read_all, repeats, values


@pytest.fixture
def server(tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        yield server


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


# S1: a thousand streams, and one that is not there.


WRITE_TENS = """
    import sys, mainstem
    url, first = sys.argv[1], int(sys.argv[2])
    with mainstem.connect(url) as hub, hub.producer() as producer:
        for number in range(5):
            for stream in range(1000):
                producer.send(f"s{stream}", b"%d:%d" % (stream, first + number))
"""


@pytest.mark.mechanism("S1")
@pytest.mark.slow("creates a thousand streams and reads each of them")
def test_s1(server, tmp_path):
    """1,000 streams, 10 records to each from 2 processes, 20 readers at a time: everything, and nothing of others.

    A write to a stream that is not there is refused within 100 ms and not tried again. Where streams are made by
    writing to them the refusal is switched off, and the slip of the pen is a stream."""
    with mainstem.connect(server.url) as hub:
        for number in range(1_000):
            hub.streams.create(f"s{number}")
        writers = [python(WRITE_TENS, server.url, first) for first in (0, 5)]
        assert [writer.wait(30) for writer in writers] == [0, 0]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.close()
        with ThreadPoolExecutor(20) as pool:
            found = list(pool.map(lambda number: values(hub, f"s{number}"), range(1_000)))
        for number, records in enumerate(found):
            assert sorted(records) == sorted(b"%d:%d" % (number, n) for n in range(10))

        before = hub.statistics()["unknown_streams"]
        with hub.producer() as producer:
            began = time.perf_counter()
            with pytest.raises(mainstem.UnknownStream) as caught:
                producer.send("nope", b"v")
            assert time.perf_counter() - began < 0.1
        assert not caught.value.retriable
        assert hub.statistics()["unknown_streams"] == before + 1

    with ServerProcess(tmp_path / "control", "--auto-create") as loose, mainstem.connect(loose.url) as hub:
        with hub.producer() as producer:
            producer.send("nope", b"v").result(10)
        assert [stream.name for stream in hub.streams.list()] == ["nope"]


# S4: one by one, or as a table.


def enqueued(producer: Producer, work: Callable[[], object]) -> int:
    """How many times something was put into the producer's buffer."""
    count = 0

    def counting(call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object) -> object:
            nonlocal count
            count += 1
            return call(*arguments)

        return counted

    send, send_batches = producer.send, producer._send_batches
    producer.send = counting(send)  # type: ignore[assignment]

    def send_counted(*arguments: object, **options: bool) -> object:
        nonlocal count
        count += 1
        return send_batches(*arguments, **options)  # type: ignore[arg-type]

    producer._send_batches = send_counted  # type: ignore[method-assign, assignment]
    work()
    return count


ROWS = 100_000
NUMBERS = pa.schema([("number", pa.int64())])


def transcoded(hub: Hub, stream: str) -> int:
    """How many batches the server makes columns of for three readers who want columns, of a stream with that schema."""
    before = hub.statistics()["batches_transcoded"]
    readers = [hub.consumer(stream, start="earliest", follow=False) for _ in range(3)]
    found = [pa.Table.from_batches([batch.to_arrow() for batch in reader.batches()]) for reader in readers]
    for reader, table in zip(readers, found, strict=True):
        assert table.column("number").to_pylist() == list(range(ROWS))
        reader.close()
    return hub.statistics()["batches_transcoded"] - before


@pytest.mark.mechanism("S4")
@pytest.mark.slow("a hundred thousand single calls")
def test_s4(server):
    """100,000 rows as 100 tables and one by one: the same rows, at least 50 times fewer steps in the producer; the
    bytes that are read are the bytes that were sent, and nobody on the way makes columns of them, as somebody has to of
    rows that were sent one by one as JSON."""
    singles = [b'{"number":%d}' % number for number in range(ROWS)]
    tables = [pa.table({"number": range(first, first + 1_000)}, NUMBERS) for first in range(0, ROWS, 1_000)]
    with mainstem.connect(server.url) as hub:
        hub.streams.create("tables", schema=NUMBERS)
        hub.streams.create("singles")
        sent: list[bytes] = []
        with hub.producer() as producer:
            append = producer._port.append

            def remember(batches: Sequence[Batch], *rest: object) -> None:
                sent.extend(bytes(batch.payload) for batch in batches)
                append(batches, *rest)  # type: ignore[arg-type]

            producer._port.append = remember  # type: ignore[method-assign, assignment]
            by_table = enqueued(producer, lambda: [producer.send_batch("tables", table) for table in tables])
            producer.flush()
            producer._port.append = append  # type: ignore[method-assign]
        with hub.producer() as producer:
            one_by_one = enqueued(producer, lambda: [producer.send("singles", row) for row in singles])
        hub.streams.set_schema("singles", NUMBERS)
        assert by_table * 50 <= one_by_one
        with hub.consumer("tables", start="earliest", follow=False) as consumer:
            assert [bytes(batch._fetched.payload) for batch in consumer.batches()] == sent
        assert transcoded(hub, "tables") == 0
        assert transcoded(hub, "singles") > 0


# S5: what belongs together stays together.


def write_groups(hub: Hub, worker: int, atomic: bool) -> None:
    with hub.producer(batch_bytes=2_048) as producer:
        for number in range(60):
            group = [b"%d:%d:%d" % (worker, number, member) for member in range(50)]
            if atomic:
                producer.send_batch("grouped", pa.table({"value": group}), atomic=True)
            else:
                for value in group:
                    producer.send("grouped", value)
            for _ in range(50):
                producer.send("grouped", b"loose")


def broken_groups(records: Sequence[Record]) -> int:
    """Groups of which a member is missing, or has a stranger beside it or is in another shard."""
    places: dict[bytes, list[tuple[int, int]]] = {}
    for record in records:
        if record.value != b"loose":
            group, _, member = record.value.rpartition(b":")
            places.setdefault(group, []).append((record.shard, record.offset - int(member)))
    return sum(1 for found in places.values() if len(set(found)) != 1 or len(found) != 50)


def groups_torn(path: Path, *, atomic: bool) -> int:
    """Four producers, groups of 50 among loose records, the server is killed on the way: how many groups are torn."""
    with ServerProcess(path) as server, mainstem.connect(server.url) as hub:
        hub.streams.create("grouped", shards=2)
        threads = [threading.Thread(target=write_groups, args=(hub, worker, atomic)) for worker in range(4)]
        for thread in threads:
            thread.start()
        with hub.consumer("grouped", start="earliest") as consumer:
            assert consumer.poll(10) is not None
        server.kill()
        server.start()
        for thread in threads:
            thread.join()
        records = read_all(hub, "grouped")
    assert len(records) == 4 * 60 * 100
    return broken_groups(records)


@pytest.mark.mechanism("S5")
@pytest.mark.slow("kills two servers under load")
def test_s5(tmp_path):
    """Atomic tables of 50 among loose records, and a kill on the way: no group is torn. Sent one by one, groups are."""
    assert groups_torn(tmp_path / "atomic", atomic=True) == 0
    assert groups_torn(tmp_path / "control", atomic=False) > 0


@pytest.mark.mechanism("S5")
def test_s5_what_cannot_stay_together_is_refused(server):
    """Keys of several shards, and more than fits into one batch, are refused by the call and nothing of them is there.
    Without the promise both are taken, and taken apart."""
    keys = [b"%d" % number for number in range(100)]
    spread = pa.table({"value": keys, "key": keys})
    large = pa.table({"value": [b""] * (BATCH_RECORDS_MAX + 1)})
    with mainstem.connect(server.url) as hub, hub.producer() as producer:
        hub.streams.create("grouped", shards=4)
        with pytest.raises(mainstem.InvalidRequest, match="must belong to one shard"):
            producer.send_batch("grouped", spread, atomic=True)
        with pytest.raises(mainstem.RecordTooLarge, match="an atomic batch holds at most"):
            producer.send_batch("grouped", large, atomic=True)
        producer.flush()
        assert hub.streams.get("grouped").records == 0
        producer.send_batch("grouped", spread).result(10)
        with hub.consumer("grouped", start="earliest", follow=False) as consumer:
            assert len({batch.shard for batch in consumer.batches()}) == 4
        producer.send_batch("grouped", large, shard=0).result(10)
        with hub.consumer("grouped", start="earliest", follow=False, where="_shard = 0 AND key IS NULL") as consumer:
            assert sum(1 for batch in consumer.batches() if batch.count) > 1


# S13: what the answer to a send says, and when.


def misplaced(hub: Hub, stream: str) -> int:
    """1,000 records in two parts: how many are not read at the place that was acknowledged."""
    hub.streams.create(stream, shards=4)
    placed: dict[tuple[int, int], bytes] = {}
    with hub.producer() as producer:
        for part in (range(500), range(500, 1_000)):
            acks = {number: producer.send(stream, b"%d" % number, key=b"%d" % number) for number in part}
            placed |= {ack.result(10): b"%d" % number for number, ack in acks.items()}
    found = {(record.shard, record.offset): record.value for record in read_all(hub, stream)}
    assert len(found) == 1_000
    return sum(1 for place, value in found.items() if placed.get(place) != value)


@pytest.mark.mechanism("S13")
def test_s13_places(server, monkeypatch):
    """1,000 acknowledged places are the places at which the records are read. Answers that do not say where the records
    went leave the producer to count its own, which is wrong."""
    with mainstem.connect(server.url) as hub:
        assert misplaced(hub, "acked") == 0
        answer = AppendRequest.answer
        monkeypatch.setattr(
            AppendRequest,
            "answer",
            lambda request, given, **state: answer(request, Appended([0] * len(given.bases)), **state),
        )
        assert misplaced(hub, "control") > 0


@pytest.mark.mechanism("S13")
@pytest.mark.xdist_group("measure")
def test_s13_deadlines(server):
    """With the server hung, an ack stays open until its deadline and then fails, within a tenth. The control, one with
    a later deadline, is still open."""
    with mainstem.connect(server.url) as hub:
        hub.streams.create("acked")
        patient = hub.producer()
        patient.send("acked", b"warm").result(10)
        hasty = hub.producer(delivery_timeout=3.0)
        hasty.send("acked", b"warm").result(10)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            failing, waiting = hasty.send("acked", b"hasty"), patient.send("acked", b"patient")
            assert not failing.done()
            error = failing.exception(10)
            took = time.monotonic() - began
            assert isinstance(error, mainstem.DeadlineExceeded)
            assert "not known" in str(error)
            assert 2.7 <= took <= 3.3
            assert not waiting.done()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        waiting.result(10)


# S14: one buffer for all streams.


def requests_for(server: ServerProcess, producers: int) -> int:
    """How many requests 20,000 records of 200 bytes become, round-robin over 500 streams."""
    names = [f"s{number}" for number in range(500)]
    with mainstem.connect(server.url) as hub:
        for name in names:
            hub.streams.create(name, exist_ok=True)
        made = [hub.producer(batch_bytes=64 << 10, linger=0.1) for _ in range(producers)]
        for number, name in enumerate(names):
            made[number % producers].prepare(name)  # looked up before the clock starts
        before, records = hub.statistics()["appends"], records_in(hub)
        value = b"v" * 200
        for number in range(20_000):
            made[number % producers].send(names[number % 500], value)
        for producer in made:
            producer.flush()
        assert records_in(hub) == records + 20_000
        return hub.statistics()["appends"] - before


def records_in(hub: Hub) -> int:
    return sum(sum(stream.ends) for stream in hub.streams.list())


@pytest.mark.mechanism("S14")
@pytest.mark.slow("five hundred producers as the control")
def test_s14_requests(server, monkeypatch):
    """One buffer: about as many requests as 64 KB fit into 4 MB, and a fifth more. A producer per stream makes many
    times as many, when the hub does not gather what its producers ship."""
    shared = requests_for(server, 1)
    gathered = requests_for(server, 500)
    assert shared <= 75
    monkeypatch.setattr(remote, "gather", lambda waiting: AppendRequest([waiting.popleft()]))
    apart = requests_for(server, 500)
    assert apart > 5 * shared
    assert apart > 2 * gathered


FILL_BUFFERS = """
    import sys, mainstem

    def resident_bytes():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    hub, count = mainstem.connect(sys.argv[1]), int(sys.argv[2])
    options = {"acks": "none", "compression": None, "batch_bytes": 64 << 10, "buffer_bytes": 2 << 20}
    producers = [hub.producer(**options) for _ in range(count)]
    for number in range(500):
        producers[number % count].prepare(f"s{number}")
    print("ready", flush=True)
    sys.stdin.readline()
    before = resident_bytes()
    for number in range(200_000):
        producers[number % count].send(f"s{number % 500}", b"%08d" % number * 50)
    print(resident_bytes() - before, sum(producer.dropped for producer in producers), flush=True)
    sys.stdin.readline()
"""


def memory_of_buffers(server: ServerProcess, producers: int) -> tuple[int, int]:
    """How much a process grows by 80 MB of records for 500 streams while the server hangs, and how many it drops."""
    command = [sys.executable, "-c", textwrap.dedent(FILL_BUFFERS), server.url, str(producers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        os.kill(server.pid, signal.SIGSTOP)
        try:
            writer.stdin.write("go\n")
            writer.stdin.flush()
            grown, dropped = map(int, writer.stdout.readline().split())
        finally:
            writer.kill()
            os.kill(server.pid, signal.SIGCONT)
    return grown, dropped


@pytest.mark.mechanism("S14")
@pytest.mark.slow("fills the buffers of five hundred producers as the control")
def test_s14_memory(server):
    """While nothing leaves, one buffer for all streams holds what it may and drops the rest. A buffer of that size for
    each stream holds everything."""
    with mainstem.connect(server.url) as hub:
        for number in range(500):
            hub.streams.create(f"s{number}")
    shared, dropped = memory_of_buffers(server, 1)
    assert shared < 24 << 20
    assert dropped > 100_000
    apart, dropped = memory_of_buffers(server, 500)
    assert apart > 4 * shared
    assert dropped == 0


# S15: not waiting, or waiting for certainty.


def call_times(producer: Producer, count: int) -> list[float]:
    """How long each send takes, whether it is taken or refused."""
    clock = time.perf_counter
    found = []
    for _ in range(count):
        began = clock()
        with contextlib.suppress(mainstem.DeadlineExceeded):
            producer.send("orders", b"x" * 100)
        found.append(clock() - began)
    return found


@pytest.mark.mechanism("S15")
@pytest.mark.xdist_group("measure")
def test_s15_fire_and_forget(server):
    """With the server gone, acks="none" takes 100 us at most in 99 of 100 calls and loses only what was not shipped.
    acks="durable" waits for room instead: there the slowest call takes as long as its timeout."""
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        light = hub.producer(acks="none", batch_bytes=16 << 10, buffer_bytes=64 << 10)
        strict = hub.producer(delivery_timeout=0.5, batch_bytes=16 << 10, buffer_bytes=64 << 10)
        for producer in (light, strict):
            producer.send("orders", b"warm")
            producer.flush()
        server.kill()
        assert percentile(call_times(light, 20_000), 0.99) < 100e-6
        assert light.dropped > 0
        assert max(call_times(strict, 800)) > 0.2
        server.start()
        light.close()
        with contextlib.suppress(mainstem.DeadlineExceeded):
            strict.close()


def acknowledged_but_gone(server: ServerProcess, kills: int) -> int:
    """Send with acknowledgements while the server is killed, and once more when all is acknowledged; how many records
    that were promised are not there. All of them, if the server cannot start again."""
    promised: list[bytes] = []
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        stop = threading.Event()

        def write(worker: int) -> None:
            with hub.producer() as producer:
                number = 0
                while not stop.is_set():
                    value = b"%d:%d" % (worker, number)
                    producer.send("orders", value).result(30)
                    promised.append(value)
                    number += 1

        threads = [threading.Thread(target=write, args=(worker,)) for worker in range(2)]
        for thread in threads:
            thread.start()
        for turn in range(kills + 1):
            seen = len(promised)
            while len(promised) < seen + 50:
                time.sleep(0.002)
            if turn == kills:
                stop.set()
                for thread in threads:
                    thread.join()
            server.kill()
            try:
                server.start()
            except ServerFailed as error:
                assert "acknowledged are gone" in str(error)  # noqa: PT017  # the careless server's own words
                return len(promised)
        found = values(hub, "orders")
        assert repeats(found) == 0
        return len(set(promised) - set(found))


SEND_AND_HANG = """
    import sys, time, mainstem
    with mainstem.connect(sys.argv[1]) as hub:
        producer = hub.producer(acks="none", linger=float(sys.argv[2]))
        for number in range(500):
            producer.send(sys.argv[3], b"%d" % number)
            time.sleep(0.001)
        print("sent", flush=True)
        time.sleep(60)
"""


def kept_after_a_kill(server: ServerProcess, stream: str, linger: float, wait: int) -> int:
    """500 records at a thousand a second without acknowledgement, and the producer is killed when `wait` of them are
    there: how many there are then."""
    with mainstem.connect(server.url) as hub:
        hub.streams.create(stream)
        writer = python(SEND_AND_HANG, server.url, linger, stream)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "sent\n"
        deadline = time.monotonic() + 10
        while hub.streams.get(stream).records < wait and time.monotonic() < deadline:
            time.sleep(0.01)
        writer.kill()
        writer.wait()
        writer.stdout.close()
        return len(values(hub, stream))


@pytest.mark.mechanism("S15")
def test_s15_a_killed_producer(server):
    """A producer that is killed loses at most what it had not shipped, a tenth of a second's worth. One that holds
    everything back for a minute loses everything."""
    assert kept_after_a_kill(server, "shipped", linger=0.1, wait=400) >= 400
    assert kept_after_a_kill(server, "control", linger=60, wait=0) == 0


@pytest.mark.mechanism("S15")
@pytest.mark.slow("kills a server under load four times")
def test_s15_acknowledged(server, tmp_path):
    """Killed three times under load: everything promised is there. A server that answers before it writes loses some,
    and says so when it is started again."""
    assert acknowledged_but_gone(server, kills=2) == 0
    with planted.ack_before_write(), ServerProcess(tmp_path / "control") as careless:
        assert acknowledged_but_gone(careless, kills=0) > 0


# S22: one request, many streams.

STREAMS = [f"s{number}" for number in range(200)]
REFUSING = STREAMS[::4]


def send_to_all(producer: Producer, value: bytes) -> tuple[list[str], list[int]]:
    """A record to each stream in one request: the streams that did not take it, and how many batches went into that
    request and into those that followed."""
    sizes: list[int] = []
    append = producer._port.append

    def counting(batches: Sequence[Batch], *rest: object) -> None:
        sizes.append(len(batches))
        append(batches, *rest)  # type: ignore[arg-type]

    producer._port.append = counting  # type: ignore[method-assign, assignment]
    acks = {name: producer.send(name, value) for name in STREAMS}
    failed = [name for name, ack in acks.items() if ack.exception(10) is not None]
    producer._port.append = append  # type: ignore[method-assign]
    return failed, sizes


@pytest.mark.mechanism("S22")
def test_s22_a_part_that_can_be_sent_again(server, monkeypatch):
    """One request for 200 streams, a quarter of which got more shards since the producer looked: the others are there
    once, and only that quarter is sent again. With one fate for the whole request all of it is sent again, and what was
    there already is there twice."""
    with mainstem.connect(server.url) as hub, mainstem.connect(server.url) as other:
        for name in STREAMS:
            hub.streams.create(name)
        producer = hub.producer(linger=10)
        assert send_to_all(producer, b"first") == ([], [len(STREAMS)])
        for name in REFUSING:
            other.streams.alter(name, shards=2)
        began = time.monotonic()
        failed, sizes = send_to_all(producer, b"second")
        assert time.monotonic() - began < 2
        assert failed == []
        assert sizes[0] == len(STREAMS)
        assert sum(sizes[1:]) == len(REFUSING)
        assert all(values(other, name) == [b"first", b"second"] for name in STREAMS)

        answer = AppendRequest.answer

        def one_fate(request: AppendRequest, given: Appended, **state: bool) -> bool:
            if given.errors:
                # Come again, as you are.
                again = wire_error(mainstem.StaleGeneration("as the others", generation=0, shards=1))
                given = Appended(given.bases, dict.fromkeys(range(len(given.bases)), again) | given.errors)
            return answer(request, given, **state)

        monkeypatch.setattr(AppendRequest, "answer", one_fate)
        for name in REFUSING:
            other.streams.alter(name, shards=3)
        send_to_all(producer, b"third")
        producer.close()
        healthy = [name for name in STREAMS if name not in REFUSING]
        assert all(repeats(values(other, name)) == 1 for name in healthy)
        assert all(repeats(values(other, name)) == 0 for name in REFUSING)


@pytest.mark.mechanism("S22")
def test_s22_a_part_that_fails(server, monkeypatch):
    """One request for 200 streams, a quarter of which are gone: each record is told its own fate, and none is lost or
    doubled when what failed is sent again to streams that are there by then. With one fate for the whole request,
    records are told to have failed that are there."""
    with mainstem.connect(server.url) as hub, mainstem.connect(server.url) as other:
        for name in STREAMS:
            hub.streams.create(name)
        producer = hub.producer(linger=10)
        assert send_to_all(producer, b"first") == ([], [len(STREAMS)])
        for name in REFUSING:
            other.streams.delete(name)
        failed, sizes = send_to_all(producer, b"second")
        assert (failed, sizes) == (REFUSING, [len(STREAMS)])
        for name in failed:
            other.streams.create(name)
            producer.send(name, b"second")
        producer.flush()
        assert all(values(other, name)[-1:] == [b"second"] for name in STREAMS)
        assert sum(repeats(values(other, name)) for name in STREAMS) == 0

        answer = AppendRequest.answer

        def one_fate(request: AppendRequest, given: Appended, **state: bool) -> bool:
            if given.errors:
                error = next(iter(given.errors.values()))
                given = Appended(given.bases, dict.fromkeys(range(len(given.bases)), error))
            return answer(request, given, **state)

        monkeypatch.setattr(AppendRequest, "answer", one_fate)
        other.streams.delete(STREAMS[0])
        failed, _ = send_to_all(producer, b"third")
        assert sum(values(other, name)[-1:] == [b"third"] for name in failed if name != STREAMS[0]) == len(STREAMS) - 1
        producer.close()
