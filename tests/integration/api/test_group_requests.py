"""What groups and their consumers refuse, and say when they do."""

import math
import threading
import time
from datetime import datetime

import pytest

import mainstem
from mainstem.core.errors import Closed, GroupBusy, InvalidCursor, InvalidName, InvalidSetting
from mainstem.testing.server import ServerProcess
from mainstem.transport.sharing import GetGroupCall

MEMBER = {"group": "g", "start": "earliest", "commit": "manual"}


def fill(hub, stream, count, *, shards=None):
    hub.streams.create(stream, shards=shards, exist_ok=True)
    with hub.producer() as producer:
        producer.send_many(stream, [b"x"] * count)


@pytest.mark.parametrize(
    "positions",
    [
        {("orders", 99): 0},
        {("orders", -1): 0},
        {("nosuch", 0): 0},
        {("other", 0): 0},
        {("orders", 0): -1},
        {("orders", 0): "1"},
        {("orders", 0): 1.5},
        {("orders", 0): None},
        {("orders", 0): 1 << 63},
        {("orders", "0"): 1},
        {"orders": 1},
        {7: 1},
        [],
        5,
        "orders",
    ],
    ids=repr,
)
def test_no_place_is_no_place_to_commit(hub, positions):
    fill(hub, "orders", 10)
    fill(hub, "other", 10)
    with hub.consumer("orders", **MEMBER) as consumer:
        assert consumer.poll(10).offset == 0
        with pytest.raises(InvalidCursor):
            consumer.commit(positions)
        assert [shard.offset for shard in hub.groups.get("g").shards] == [0]
        consumer.commit({})
        consumer.commit(consumer.positions)
    assert [shard.offset for shard in hub.groups.get("g").shards] == [1]


def test_positions_of_a_stream_that_is_gone_are_no_error(hub):
    """Who noted them could not know."""
    fill(hub, "orders-1", 10)
    fill(hub, "orders-2", 10)
    with hub.consumer(pattern="orders-*", **MEMBER) as consumer:
        for _ in range(20):
            assert consumer.poll(10) is not None
        positions = consumer.positions
        hub.streams.delete("orders-2")
        deadline = time.monotonic() + 20
        while "orders-2" in {stream for stream, _ in consumer.positions}:
            assert consumer.poll(0.05) is None
            assert time.monotonic() < deadline
        consumer.commit(positions)
    assert {shard.stream: shard.offset for shard in hub.groups.get("g").shards} == {"orders-1": 10}


def test_what_was_trimmed_is_not_unread(hub):
    fill(hub, "orders", 100)
    with hub.consumer("orders", **MEMBER) as consumer:
        consumer.poll(10)
        consumer.commit()
    hub.streams.trim("orders", offset=60)
    info = hub.groups.get("g")
    assert (info.records, info.shards[0].records, info.shards[0].offset) == (40, 40, 1)
    assert [group.records for group in hub.groups.list()] == [40]
    hub.streams.trim("orders", offset=100)
    info = hub.groups.get("g")
    assert (info.records, info.seconds, info.catch_up_seconds) == (0, 0.0, 0.0)


@pytest.mark.parametrize("dry_run", [None, 0, "no"])
def test_only_false_resets(hub, dry_run):
    fill(hub, "orders", 10)
    with hub.consumer("orders", **MEMBER) as consumer:
        consumer.poll(10)
        consumer.commit()
    with pytest.raises(InvalidSetting, match="dry_run"):
        hub.groups.reset("g", "latest", dry_run=dry_run)
    assert hub.groups.get("g").records == 9


@pytest.mark.parametrize("to", [{"orders": 1}, {("orders", 0): "x"}, {("orders", 0): 1.0}, {7: 1}], ids=repr)
def test_no_place_is_no_place_to_reset_to(hub, to):
    fill(hub, "orders", 10)
    with hub.consumer("orders", **MEMBER) as consumer:
        consumer.poll(10)
        consumer.commit()
    for dry_run in (True, False):
        with pytest.raises(InvalidCursor, match="no offset by stream and shard"):
            hub.groups.reset("g", to, dry_run=dry_run)
    assert hub.groups.get("g").records == 9


def test_what_is_said_of_a_place_names_what_was_given(hub):
    fill(hub, "orders", 10)
    with hub.consumer("orders", **MEMBER) as consumer:
        consumer.poll(10)
    with hub.consumer("orders", start="earliest") as consumer:
        text = str(consumer.cursor)
        with pytest.raises(InvalidSetting, match=r'^to must be "earliest"'):
            consumer.seek("begin")
    for to in ("begin", 5, None):
        with pytest.raises(InvalidSetting, match=r'^to must be "earliest", .* a cursor, or offsets such as'):
            hub.groups.reset("g", to)
    with pytest.raises(InvalidSetting, match=r"^to: a time needs a time zone"):
        hub.groups.reset("g", datetime(2026, 1, 1))  # noqa: DTZ001
    for name, give in (
        ("start", lambda given: hub.consumer("orders", start=given)),
        ("start", lambda given: hub.consumer("orders", group="g", start=given)),
        ("start", lambda given: hub.sequence("orders", start=given)),
        ("to", lambda given: hub.groups.reset("g", given)),
    ):
        with pytest.raises(InvalidSetting, match=rf"^{name}: .*mainstem\.Cursor\.parse\(text\)"):
            give(text)
        with pytest.raises(InvalidSetting, match=rf"^{name}: .*mainstem\.Cursors\.parse\(text\)"):
            give(f"{text};{text}")


@pytest.mark.parametrize("options", [{}, {"group": "g"}, {"group": "g", "spread": True}, {"pattern": "order?"}])
@pytest.mark.parametrize("timeout", ["x", math.nan, math.inf, b""], ids=repr)
def test_no_time_to_wait(hub, options, timeout):
    fill(hub, "orders", 10)
    stream = None if "pattern" in options else "orders"
    with hub.consumer(stream, start="earliest", **options) as consumer:
        for poll in (consumer.poll, consumer.poll_batch):
            with pytest.raises(InvalidSetting, match="timeout"):
                poll(timeout)
        assert consumer.poll(10) is not None


def test_what_is_no_option(hub):
    fill(hub, "orders", 10)
    for spread in ("yes", 1, None):
        with pytest.raises(InvalidSetting, match="spread"):
            hub.consumer("orders", group="g", spread=spread)
    for streams in ("orders", ["orders"]):
        with pytest.raises(InvalidSetting, match="commit='manual' is for the members of a group"):
            hub.consumer(streams, commit="manual")
    for pattern in ("[", "[]", "orders[1", "or]ders", "a/b", "sales orders", "ü*"):
        for group in (None, "g"):
            with pytest.raises(InvalidSetting, match="pattern"):
                hub.consumer(pattern=pattern, group=group)
    with pytest.raises(InvalidName, match="a stream's name, several names, or a pattern"):
        hub.consumer()
    for group in (None, "g"):
        with pytest.raises(InvalidName, match="not bytes"):
            hub.consumer(b"orders", group=group)
    with pytest.raises(InvalidSetting, match="'30s'"):
        hub.consumer("orders", ordering_window="30s")
    for timeout in ("0s", "901s"):
        with pytest.raises(InvalidSetting, match="more than 0 and up to 900 seconds"):
            hub.transaction(timeout=timeout)


def test_what_other_consumers_have(hub):
    fill(hub, "orders", 10)
    for options in ({}, {"spread": True}):
        with hub.consumer("orders", group=f"g{len(options)}", **options) as member:
            for name, place in (("seek", "groups.reset"), ("cursor", "positions"), ("watermark", "ordering_window")):
                with pytest.raises(AttributeError, match=place):
                    getattr(member, name)
            assert not hasattr(member, "nothing")
    with hub.consumer(["orders"]) as several:
        for name, place in (("seek", "start="), ("watermark", "ordering_window")):
            with pytest.raises(AttributeError, match=place):
                getattr(several, name)


@pytest.mark.parametrize("spread", [False, True])
def test_a_consumer_that_was_closed_has_no_records(hub, spread):
    fill(hub, "orders", 10)
    consumer = hub.consumer("orders", group="g", start="earliest", spread=spread)
    assert consumer.poll(10).offset == 0
    consumer.close()
    with pytest.raises(Closed):
        consumer.poll()
    assert consumer.positions == {}
    assert [shard.offset for shard in hub.groups.get("g").shards] == [1]


@pytest.mark.parametrize("spread", [False, True])
def test_reading_ends_soon_if_a_pattern_finds_nothing(hub, spread):
    begun = time.monotonic()
    with hub.consumer(pattern="nothing-*", group="g", spread=spread, follow=False) as consumer:
        assert list(consumer) == []
        assert time.monotonic() < begun + 1.5


@pytest.mark.slow("a member waits for another for a second")
@pytest.mark.parametrize("waiting", ["poll", "aio"])
def test_who_has_read_its_own_looks_now_and_then_what_the_others_do(hub, monkeypatch, waiting):
    hub.streams.create("orders", shards=2)
    with hub.producer() as producer:
        for shard in range(2):
            producer.send_many("orders", [b"x"] * 50, shard=shard)
    looks = []
    call_of_port = type(hub._port).call

    def count(port, call, *args, **kwargs):
        if isinstance(call, GetGroupCall):
            looks.append(call)
        return call_of_port(port, call, *args, **kwargs)

    with (
        hub.consumer("orders", group="g", start="earliest", follow=False, commit="manual") as mine,
        hub.consumer("orders", group="g", start="earliest", follow=False, commit="manual") as other,
    ):
        while not len(mine.positions) == len(other.positions) == 1:
            for consumer in (mine, other):
                if consumer.poll(0.02) is not None:
                    consumer.commit()
        while mine.poll(0.5) is not None:
            pass
        mine.commit()
        monkeypatch.setattr(type(hub._port), "call", count)
        begun = time.monotonic()
        if waiting == "poll":
            assert mine.poll(1.0) is None
        else:
            looked = threading.Event()
            while time.monotonic() < begun + 1.0:
                # As those do who do not wait in a thread.
                looked.clear()
                assert mine.poll(0) is None
                mine.call_when_woken(looked.set)
                looked.wait(mine._pause_max())
        assert time.monotonic() > begun + 0.9
        # 0.01 s apart at first, a quarter of the time that has passed later.
        assert 3 <= len(looks) <= 40


@pytest.mark.parametrize("spread", [False, True])
def test_a_group_is_there_when_its_first_member_is_open(hub, spread):
    fill(hub, "orders", 10)
    for number in range(5):
        group = f"g{number}"
        with hub.consumer("orders", group=group, spread=spread):
            with pytest.raises(GroupBusy):
                hub.groups.reset(group, "earliest", dry_run=False)
            assert hub.groups.get(group).member_count == 1


@pytest.mark.slow("waits for a server that is away")
def test_a_close_does_not_wait_for_long_for_a_server_that_is_away(tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        hub = mainstem.connect(server.url)
        fill(hub, "orders", 10)
        consumer = hub.consumer("orders", group="g", start="earliest")
        assert consumer.poll(10) is not None
        server.kill()
        begun = time.monotonic()
        with pytest.raises(mainstem.Unavailable):
            hub.close()
        assert time.monotonic() < begun + 25
