"""Producers count what they send, by stream and window, whatever becomes of the server meanwhile."""

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import mainstem
import mainstem.aio
from mainstem.core.errors import Forbidden, InvalidSetting
from mainstem.hub.counted import SentCount, sent_counts, verified, verified_tiers
from mainstem.testing.server import ServerProcess
from mainstem.transport.counting import Count, NoteCountsCall, NoteVerifiedCall

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
START_US = int(START.timestamp() * 1_000_000)
TEN_SECONDS = 10_000_000


def by_window(counts: list[SentCount]) -> dict[int, tuple[int, int]]:
    sent: Counter[int] = Counter()
    acknowledged: Counter[int] = Counter()
    for count in counts:
        place = (count.start_us - START_US) // TEN_SECONDS
        sent[place] += count.sent
        acknowledged[place] += count.acknowledged or 0
    return {place: (sent[place], acknowledged[place]) for place in sorted(sent)}


def test_records_are_counted_by_their_own_times(hub):
    hub.streams.create("orders", shards=3)
    with hub.producer(counts="10s") as producer:
        for number in range(40):
            at = START + timedelta(seconds=number)
            producer.send("orders", b"x", key=b"%d" % number, timestamp=at)
    counts = sent_counts(hub, "orders")
    assert by_window(counts) == dict.fromkeys(range(4), (10, 10))
    assert {count.window_us for count in counts} == {TEN_SECONDS}
    assert all("[" in count.source and "@" in count.source for count in counts)


def test_rows_and_tables_are_counted(hub):
    hub.streams.create("orders", shards=2, schema={"id": "int64"}, key="id")
    times = pa.array([START_US + number * 1_000_000 for number in range(25)], pa.timestamp("us", "UTC"))
    with hub.producer(counts=timedelta(seconds=10)) as producer:
        producer.send_batch("orders", pa.table({"id": range(25), "_timestamp": times}))
        producer.send("orders", {"id": 99}, timestamp=START)
        producer.send_many("orders", [{"id": 100}, {"id": 101}])
    counts = sent_counts(hub, "orders")
    now = max(by_window(counts))
    assert by_window(counts) == {0: (11, 11), 1: (10, 10), 2: (5, 5), now: (2, 2)}


def test_without_a_window_nothing_is_counted(hub):
    hub.streams.create("orders")
    with hub.producer() as producer:
        producer.send("orders", b"x")
    assert sent_counts(hub, "orders") == []
    assert [stream.name for stream in hub.streams.list()] == ["orders"]


def test_counts_are_told_when_a_window_ends(hub):
    """A producer that stays open says what it sent within a window's length."""
    hub.streams.create("orders")
    with hub.producer(counts="1s") as producer:
        producer.send("orders", b"x").result(10)
        deadline = time.monotonic() + 10
        while not sent_counts(hub, "orders"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        producer.send("orders", b"y").result(10)
    assert sum(count.sent for count in sent_counts(hub, "orders")) == 2
    assert {count.number for count in sent_counts(hub, "orders")} == {0, 1}


def test_who_wants_no_acknowledgement_says_so(hub):
    hub.streams.create("orders")
    with hub.producer(acks="none", counts="10s") as producer:
        producer.send("orders", b"x", timestamp=START)
    (count,) = sent_counts(hub, "orders")
    assert (count.sent, count.acknowledged) == (1, None)


def test_the_asyncio_producer_counts_too(kind, request, tmp_path):
    where = tmp_path / "data" if kind == "embedded" else request.getfixturevalue("shared_server").url

    async def send() -> None:
        connect = mainstem.aio.open if kind == "embedded" else mainstem.aio.connect
        async with connect(where) as hub:
            await hub.streams.create("async-orders")
            async with hub.producer(counts="10s") as producer:
                await producer.send("async-orders", b"x", timestamp=START)

    asyncio.run(send())
    with mainstem.open(where) if kind == "embedded" else mainstem.connect(where) as hub:
        assert by_window(sent_counts(hub, "async-orders")) == {0: (1, 1)}
        hub.streams.delete("async-orders")


@pytest.mark.parametrize("window", ["10ms", "2d", "soon"])
def test_windows_have_a_sensible_length(hub, window):
    with pytest.raises(InvalidSetting):
        hub.producer(counts=window)


def test_the_newest_word_of_an_audit_counts(hub):
    hub.streams.create("orders")
    assert verified(hub) == {}
    hub._port.call(NoteVerifiedCall("orders", START_US, 2))
    info = hub.streams.get("orders")
    assert (info.verified_through_us, info.windows_differing) == (START_US, 2)
    hub._port.call(NoteVerifiedCall("orders", START_US + 5, 0))
    info = hub.streams.get("orders")
    assert (info.verified_through_us, info.windows_differing) == (START_US + 5, 0)
    found = verified(hub)["orders"]
    assert (found.through_us, found.differing) == (START_US + 5, 0)


def test_a_stream_that_was_made_anew_is_another(hub):
    """What was counted and verified of a stream is not said of one that has its name later; what its producer says late
    is of the one that it wrote to. What was kept without saying which is said of any."""
    hub.streams.create("orders")
    uuid = hub.streams.get("orders").uuid
    with hub.producer(counts="10s") as late:
        with hub.producer(counts="10s") as producer:
            producer.send("orders", b"x", timestamp=START)
        late.send("orders", b"y", timestamp=START).result(10)
        hub._port.call(NoteVerifiedCall("orders", START_US, 0, uuid))
        assert by_window(sent_counts(hub, "orders")) == {0: (1, 1)}
        assert verified(hub)["orders"].uuid == uuid
        assert "log" in verified_tiers(hub, "orders")
        hub.streams.delete("orders")
        assert verified(hub) == {}
        hub.streams.create("orders")
    assert sent_counts(hub, "orders") == []
    assert verified(hub) == {}
    assert verified_tiers(hub, "orders") == {}
    with hub.producer(counts="10s") as producer:
        producer.send("orders", b"z", timestamp=START + timedelta(seconds=10))
    assert by_window(sent_counts(hub, "orders")) == {1: (1, 1)}
    # As before there was a uuid.
    count = Count("orders", START_US, 3, 3)
    hub._port.call(NoteCountsCall(7, 0, "old", TEN_SECONDS, (count,)))
    hub._port.call(NoteVerifiedCall("orders", START_US, 0))
    assert by_window(sent_counts(hub, "orders")) == {0: (3, 3), 1: (1, 1)}
    assert verified(hub)["orders"].through_us == START_US
    assert "log" in verified_tiers(hub, "orders")


def test_counts_outlive_a_killed_server(tmp_path):
    """The server is gone when the window ends: the producer says it again when it is back, and it counts once."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        with hub.producer(counts="1s") as producer:
            for number in range(50):
                producer.send("orders", b"%d" % number, timestamp=START)
            producer.flush()
            server.kill()
            time.sleep(1.5)
            server.start()
            producer.send("orders", b"last", timestamp=START).result(20)
        assert by_window(sent_counts(hub, "orders")) == {0: (51, 51)}


def test_nobody_writes_the_counts_but_the_server(tmp_path):
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        with hub.producer(counts="1s") as producer:
            producer.send("orders", b"x")
        with pytest.raises(Forbidden), hub.producer() as producer:
            producer.send("_counts", b"{}").result(10)
