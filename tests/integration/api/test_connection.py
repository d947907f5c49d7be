"""The connection behind a remote hub: made, refused, lost, made again; nothing lost, nothing twice."""

import contextlib
import os
import signal
import socket
import threading
import time

import pytest

import mainstem
from mainstem.hub import link, remote
from mainstem.hub.hub import Hub
from mainstem.testing.server import ServerProcess
from mainstem.transport.retry import RetryPolicy
from tests.integration.api.conftest import read_all, values


@pytest.fixture
def server(tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        yield server


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


# Connecting.


def test_nobody_there_is_said_with_what_to_do(tmp_path):
    began = time.monotonic()
    with pytest.raises(mainstem.ConnectionLost, match="mainstem serve") as caught:
        mainstem.connect(f"mainstem://127.0.0.1:{free_port()}", timeout=0.5)
    assert 0.3 < time.monotonic() - began < 5
    assert caught.value.retriable
    assert "refused" in str(caught.value).lower()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:7070",
        "http://localhost:7070",
        "mainstem://",
        "mainstem://:7070",
        "mainstem://host:port",
        "mainstem://host:70700",
        "mainstem://host:7070/path",
        "mainstem://user@host:7070",
        None,
        7,
        b"mainstem://localhost",
    ],
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(mainstem.InvalidSetting):
        mainstem.connect(url, timeout=1)


@pytest.mark.parametrize("timeout", [0, 0.000_001])
def test_no_time_to_connect_is_a_clean_no(server, timeout):
    threads = threading.active_count()
    for _ in range(20):
        try:
            mainstem.connect(server.url, timeout=timeout).close()
        except mainstem.ConnectionLost:
            continue
    assert threading.active_count() <= threads


def test_a_stranger_on_the_port_is_not_taken_for_a_server():
    """Something that answers, but not in our protocol."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=greet, daemon=True).start()
        url = f"mainstem://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(mainstem.MainstemError):
            mainstem.connect(url, timeout=1)


def test_a_listener_that_never_answers_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        began = time.monotonic()
        with pytest.raises(mainstem.ConnectionLost):
            mainstem.connect(f"mainstem://127.0.0.1:{listener.getsockname()[1]}", timeout=0.5)
        assert time.monotonic() - began < 5


def test_a_hub_is_one_connection_however_much_it_is_used(server):
    before = set(threading.enumerate())
    with mainstem.connect(server.url) as hub, mainstem.connect(server.url) as other:
        hub.streams.create("orders")
        producers = [hub.producer() for _ in range(10)]
        consumers = [hub.consumer("orders", start="earliest") for _ in range(10)]
        for producer in producers:
            producer.send("orders", b"v").result(10)
        for consumer in consumers:
            assert consumer.poll(10) is not None
        found = other.statistics()
        assert (found["connections"], found["subscriptions"]) == (2, 10)
    begun = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not [name for name in begun if name.startswith("mainstem")]


def test_many_hubs_at_once(server):
    hubs = [mainstem.connect(server.url) for _ in range(20)]
    hubs[0].streams.create("orders")
    producers = [hub.producer() for hub in hubs]
    acks = [producer.send("orders", b"%d" % number) for number, producer in enumerate(producers)]
    assert sorted(ack.result(10)[1] for ack in acks) == list(range(20))
    for hub in hubs:
        hub.close()


# The server goes away and comes back.


@pytest.mark.slow("kills the server again and again")
def test_a_killed_server_loses_nothing_and_repeats_nothing(server):
    """Records are sent and read all the time while the server is killed three times."""
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        got: list[bytes] = []
        finished = threading.Event()

        def follow() -> None:
            with hub.consumer("orders", start="earliest") as consumer:
                for record in consumer:
                    assert record.offset == len(got)
                    got.append(record.value or b"")
                    if record.value == b"end":
                        finished.set()
                        return

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        acks = []
        with hub.producer(batch_bytes=2_048) as producer:
            for round_ in range(4):
                starter = threading.Thread(target=server.start)
                for number in range(500):
                    acks.append(producer.send("orders", b"%d" % (500 * round_ + number)))
                    if number == 250 and round_ < 3:
                        server.kill()
                        starter.start()
                if round_ < 3:
                    starter.join()
            producer.send("orders", b"end")
            offsets = [ack.result(30)[1] for ack in acks]
        assert finished.wait(20)
        reader.join(10)
    assert offsets == list(range(2_000))
    assert got == [*(b"%d" % number for number in range(2_000)), b"end"]


def test_what_several_threads_hand_over_leaves_in_the_order_of_its_numbers(server):
    """The thread that sends and the thread that hears the answers take turns in shipping: a swap would be refused."""
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        for _ in range(3):
            with hub.producer() as producer:
                acks = [producer.send_many("orders", [b"x" * 200] * 100) for _ in range(150)]
                bases = [ack.result(20)[0][1] for ack in acks]
            assert bases == list(range(bases[0], bases[0] + 15_000, 100))


def test_a_stopped_server_answers_first_and_loses_nothing(server):
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        stopped: list[int] = []
        with hub.producer(batch_bytes=2_048) as producer:
            acks = [producer.send("orders", b"%d" % number) for number in range(2_000)]
            stopper = threading.Thread(target=lambda: stopped.append(server.stop()))
            stopper.start()
            acks += [producer.send("orders", b"%d" % number) for number in range(2_000, 4_000)]
            stopper.join()
            server.start()
            assert [ack.result(30)[1] for ack in acks] == list(range(4_000))
        assert stopped == [0]
        assert values(hub, "orders") == [b"%d" % number for number in range(4_000)]


def test_calls_wait_for_a_server_that_comes_back(server):
    with mainstem.connect(server.url) as hub:
        server.kill()
        starter = threading.Timer(0.3, server.start)
        starter.start()
        assert hub.streams.create("orders").name == "orders"
        assert [stream.name for stream in hub.streams.list()] == ["orders"]
        starter.join()


@pytest.mark.slow("kills the server six times")
def test_a_repeated_create_or_delete_is_recognised_as_its_own(server):
    """The server is killed at any moment around the call, so that its answer may be lost: the caller sees success."""
    with mainstem.connect(server.url) as hub:
        for number in range(6):
            killer = threading.Timer(0.002 * number, server.kill)
            killer.start()
            starter = threading.Thread(target=lambda killer=killer: (killer.join(), server.start()))
            starter.start()
            assert hub.streams.create(f"s{number}").name == f"s{number}"
            starter.join()
        assert len(hub.streams.list()) == 6


def test_a_call_gives_up_in_the_end(server, monkeypatch):
    monkeypatch.setattr(remote, "_CALL", RetryPolicy(attempt_timeout=0.2, deadline=0.5, attempts_max=None))
    with mainstem.connect(server.url) as hub:
        server.kill()
        began = time.monotonic()
        with pytest.raises(mainstem.DeadlineExceeded) as caught:
            hub.streams.list()
        assert 0.4 < time.monotonic() - began < 5
        assert isinstance(caught.value, TimeoutError)
        monkeypatch.undo()
        server.start()
        assert hub.streams.list() == []


@pytest.fixture
def paused(server):
    """Stops the server's process without closing a socket, as a machine that hangs does."""
    paused: list[int] = []

    def pause() -> None:
        os.kill(server.pid, signal.SIGSTOP)
        paused.append(server.pid)

    def resume() -> None:
        os.kill(paused.pop(), signal.SIGCONT)

    yield pause, resume
    if paused:
        resume()


def test_an_ack_fails_at_its_deadline_and_the_outcome_is_unknown(server, paused):
    pause, resume = paused
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        producer = hub.producer(delivery_timeout=1.0)
        producer.send("orders", b"first").result(10)
        pause()
        began = time.monotonic()
        ack = producer.send("orders", b"second")
        with pytest.raises(mainstem.DeadlineExceeded, match="not known"):
            ack.result(10)
        assert 0.9 < time.monotonic() - began < 2
        resume()
        assert producer.send("orders", b"third").result(10)[1] in (1, 2)
        found = values(hub, "orders")
        assert found in ([b"first", b"second", b"third"], [b"first", b"third"])


def test_a_result_asked_for_with_little_time_is_not_lost(server, paused):
    pause, resume = paused
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        producer = hub.producer()
        producer.send("orders", b"first").result(10)
        pause()
        ack = producer.send("orders", b"second")
        with pytest.raises(mainstem.DeadlineExceeded):
            ack.result(0.1)
        with pytest.raises(mainstem.DeadlineExceeded):
            producer.flush(0.1)
        assert not ack.done()
        resume()
        assert ack.result(10) == (0, 1)
        producer.close()


def test_a_full_buffer_blocks_no_longer_than_the_delivery_timeout(server, paused):
    pause, resume = paused
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        producer = hub.producer(batch_bytes=4_096, buffer_bytes=8_192, delivery_timeout=0.5)
        producer.send("orders", b"first").result(10)
        pause()
        began = time.monotonic()
        with pytest.raises(mainstem.DeadlineExceeded):
            list(map(producer.send, ["orders"] * 100, [b"x" * 3_000] * 100))
        assert time.monotonic() - began < 5
        resume()


def test_acks_none_goes_on_after_the_server_was_away(server):
    """What was sent meanwhile may be gone; what is sent after it is not."""
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        producer = hub.producer(acks="none", batch_bytes=1_024, buffer_bytes=4_096)
        producer.send("orders", b"before")
        producer.flush()
        server.kill()
        for number in range(500):
            producer.send("orders", b"during %d" % number)
        server.start()
        with hub.consumer("orders") as consumer:
            for attempt in range(200):
                producer.send("orders", b"after %d" % attempt)
                record = consumer.poll(0.1)
                if record is not None and (record.value or b"").startswith(b"after"):
                    break
            else:
                pytest.fail("nothing arrives any more")
        producer.close()
        found = values(hub, "orders")
        assert len(found) == len(set(found))


@pytest.mark.slow("kills the server again and again")
def test_a_follower_is_told_nothing_of_a_short_absence(server):
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders", shards=3)
        with hub.producer() as producer, hub.consumer("orders", start="earliest") as consumer:
            sent = 0
            for _ in range(3):
                for number in range(30):
                    producer.send("orders", b"%d" % sent, key=b"%d" % number)
                    sent += 1
                producer.flush()
                server.kill()
                server.start()
                for _ in range(30):
                    assert consumer.poll(10) is not None
            assert consumer.poll(0) is None
            assert sum(consumer.cursor.offsets) == sent


def test_another_log_on_the_same_address_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "_CALL", RetryPolicy(deadline=3.0, attempts_max=None))
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        consumer = hub.consumer("orders")
        consumer.poll(0)
        server.kill()
        other = ServerProcess(tmp_path / "other")
        other.address = server.address
        with other:
            with pytest.raises(mainstem.MainstemError):
                hub.streams.list()
            with pytest.raises(mainstem.InvalidRequest, match="another log"):
                consumer.poll(5)


def test_a_slow_reader_stalls_nobody(server):
    """One consumer takes nothing while ten megabytes pass; another reads all of it meanwhile."""
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        slow = hub.consumer("orders", start="earliest", prefetch_bytes=65_536)
        slow.poll(0)
        with hub.producer(compression=None) as producer:
            for number in range(100):
                producer.send("orders", bytes([number]) * 100_000)
        assert len(read_all(hub, "orders")) == 100
        late = [slow.poll(10) for _ in range(100)]
        assert [record.value[0] for record in late if record and record.value] == list(range(100))


def test_closing_while_the_server_is_away_ends(server):
    hub = mainstem.connect(server.url)
    hub.streams.create("orders")
    producer = hub.producer(delivery_timeout=0.5)
    producer.send("orders", b"v").result(10)
    consumer = hub.consumer("orders")
    consumer.poll(0)
    server.kill()
    producer.send("orders", b"w")
    began = time.monotonic()
    with pytest.raises(mainstem.DeadlineExceeded):
        hub.close()
    assert time.monotonic() - began < 5
    with pytest.raises(mainstem.Closed):
        hub.streams.list()
    server.start()


def test_one_producer_that_cannot_flush_does_not_keep_the_others_from_it(server):
    """Closing a hub: every producer gets its chance, and the first error is raised after that."""
    hub = mainstem.connect(server.url)
    hub.streams.create("doomed")
    hub.streams.create("orders")
    producers = [hub.producer(linger=60) for _ in range(4)]
    for producer in producers[::2]:
        producer.send("doomed", b"v")
    acks = [producer.send("orders", b"v") for producer in producers[1::2]]
    hub.streams.delete("doomed")
    with pytest.raises(mainstem.StreamDeleted):
        hub.close()
    assert sorted(ack.result(1) for ack in acks) == [(0, 0), (0, 1)]


# Gathering: many producers of one hub.


def assert_each_in_order(hub: Hub, producers: int, turns: int) -> None:
    """Every record `turn number` is there once, and each producer's are in the order it sent them."""
    read = [tuple(map(int, value.split())) for value in values(hub, "s") if value is not None and value != b"warm"]
    assert len(read) == producers * turns
    for number in range(producers):
        assert [turn for turn, sender in read if sender == number] == list(range(turns))


def test_producers_of_one_hub_share_requests_and_a_lone_one_does_not_wait(server):
    with mainstem.connect(server.url) as hub:
        hub.streams.create("s")
        producers = [hub.producer() for _ in range(50)]
        for producer in producers:
            producer.send("s", b"warm").result(10)
        before = hub.statistics()["appends"]
        acks = [
            producer.send("s", b"%d %d" % (turn, number))
            for turn in range(20)
            for number, producer in enumerate(producers)
        ]
        for ack in acks:
            ack.result(30)
        requests = hub.statistics()["appends"] - before
        # Not gathered, each producer would need a request of its own for its first record and at least one more.
        assert requests < 2 * len(producers)
        assert_each_in_order(hub, producers=50, turns=20)


def test_gathered_appends_survive_a_killed_server(server):
    """Producers ship together while the server dies and comes back: every record once, each producer's in order."""
    with mainstem.connect(server.url) as hub:
        hub.streams.create("s")
        producers = [hub.producer() for _ in range(10)]
        acks = []
        for turn in range(300):
            if turn in (100, 200):
                server.kill()
                server.start()
            acks += [producer.send("s", b"%d %d" % (turn, number)) for number, producer in enumerate(producers)]
        for ack in acks:
            ack.result(60)
        assert_each_in_order(hub, producers=10, turns=300)


# Retry etiquette, with real hubs.


class Listener:
    """Accepts connections, notes when, and ends them at once: a server that is there and cannot serve."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_server((host, int(port)), backlog=512)
        self.arrivals: list[float] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                taken, _ = self._socket.accept()
            except OSError:
                return
            self.arrivals.append(time.monotonic())
            taken.close()

    def spread(self, window: float) -> float:
        """In how many windows somebody arrived, per arrival, once everybody had time to try more than twice.

        A process that is kept waiting makes arrivals fall together, never apart.
        """
        later = [at for at in self.arrivals if at > self.arrivals[0] + 1.0]
        return len({int(at / window) for at in later}) / len(later)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class LongestPause:
    def uniform(self, a: float, b: float, /) -> float:
        return b


def spread_of(server: ServerProcess, hubs: int) -> float:
    with contextlib.ExitStack() as stack:
        for _ in range(hubs):
            stack.enter_context(mainstem.connect(server.url))
        server.kill()
        listener = Listener(server.address)
        time.sleep(4.0)
        listener.close()
        return listener.spread(0.05)


@pytest.mark.mechanism("S46")
@pytest.mark.slow("a crowd of hubs without its server for four seconds, twice")
def test_hubs_that_lost_their_server_come_back_spread_out(server, monkeypatch):
    """The same crowd without jitter knocks all at once: full jitter is what spreads it."""
    polite = spread_of(server, 60)
    server.start()
    monkeypatch.setattr(link, "RANDOMNESS", LongestPause())
    rude = spread_of(server, 60)
    assert polite >= 2 * rude


@pytest.mark.mechanism("S46")
def test_what_cannot_be_retried_is_asked_once_and_the_rest_until_the_deadline(server, monkeypatch):
    begun: list[object] = []
    begin = remote.RemotePort._begin

    def counted(port: remote.RemotePort, request: object) -> None:
        begun.append(request)
        begin(port, request)  # type: ignore[arg-type]

    monkeypatch.setattr(remote.RemotePort, "_begin", counted)
    monkeypatch.setattr(remote, "_CALL", RetryPolicy(attempt_timeout=0.1, deadline=1.0, attempts_max=None, cap=0.2))
    with mainstem.connect(server.url) as hub:
        with pytest.raises(mainstem.UnknownStream):
            hub.streams.get("nowhere")
        assert len(begun) == 1
        with mainstem.connect(server.url) as other, monkeypatch.context() as control:
            # Taken for something that may succeed later, it is asked for again.
            control.setattr(mainstem.UnknownStream, "retriable", True)
            with pytest.raises(mainstem.MainstemError):
                other.streams.get("nowhere")
        assert len(begun) > 2
        begun.clear()
        os.kill(server.pid, signal.SIGSTOP)
        began = time.monotonic()
        try:
            with pytest.raises(mainstem.DeadlineExceeded, match="attempt 2 at") as caught:
                hub.streams.list()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert 0.5 < time.monotonic() - began < 5.0
        assert 2 <= len(begun) <= 10
        assert "gave up after" in str(caught.value)


def test_a_stream_never_used_before_is_waited_for_no_longer_than_a_delivery(server):
    with mainstem.connect(server.url) as hub, hub.producer(delivery_timeout=0.5) as producer:
        server.kill()
        began = time.monotonic()
        with pytest.raises(mainstem.DeadlineExceeded):
            producer.send("orders", b"x")
        assert time.monotonic() - began < 5.0


def test_closing_a_producer_without_acknowledgements_does_not_wait_for_a_server_that_is_away(server):
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        producer = hub.producer(acks="none")
        producer.send("orders", b"x")
        producer.flush()
        server.kill()
        deadline = time.monotonic() + 10
        while hub._port.can_take():  # until the hub has noticed
            assert time.monotonic() < deadline
            time.sleep(0.001)
        for _ in range(10):
            producer.send("orders", b"lost")
        began = time.monotonic()
        producer.close()
        assert time.monotonic() - began < 5.0
        assert producer.dropped == 10


def test_a_hub_whose_thread_fails_says_so_and_hangs_nobody(server, monkeypatch, caplog):
    with mainstem.connect(server.url) as hub:

        async def broken(port: link.Link, scratch: bytearray) -> bool:
            raise RuntimeError("planted")

        monkeypatch.setattr(link.Link, "_connect", broken)
        server.kill()
        with pytest.raises(mainstem.InternalError, match="planted"):
            hub.streams.list()
        with pytest.raises(mainstem.InternalError, match="planted"):
            hub.producer()


def test_a_host_that_cannot_be_one_is_refused_at_once():
    for url in ("mainstem://a..b:7070", f"mainstem://{'x' * 64}.example:7070"):
        with pytest.raises(mainstem.InvalidSetting):
            mainstem.connect(url, timeout=1)


def test_a_record_over_the_limit_of_the_server_fails_alone(tmp_path):
    with (
        ServerProcess(tmp_path / "data", "--record-bytes-max", "1KiB") as server,
        mainstem.connect(server.url) as hub,
        hub.producer() as producer,
    ):
        hub.streams.create("orders")
        acks = [producer.send("orders", b"ok")]
        with pytest.raises(mainstem.RecordTooLarge, match="record_bytes_max is 1024"):
            producer.send("orders", b"x" * 2_000)
        acks.append(producer.send("orders", b"ok"))
        assert [ack.result(10) for ack in acks] == [(0, 0), (0, 1)]


def test_everything_that_is_late_is_told_and_the_next_record_goes_on(server, paused):
    """Whoever hears that one has failed ships the next, which fails as well: there are more than go in one request."""
    pause, resume = paused
    with mainstem.connect(server.url) as hub:
        hub.streams.create("s", shards=3)
        producer = hub.producer(delivery_timeout=1)
        producer.send("s", b"first").result(10)
        pause()
        acks = [producer.send("s", os.urandom(20_000), key=b"%d" % number) for number in range(500)]
        for ack in acks:
            assert isinstance(ack.exception(timeout=20), mainstem.DeadlineExceeded)
        resume()
        producer.send("s", b"last").result(20)
        producer.close()
        assert values(hub, "s").count(b"last") == 1
