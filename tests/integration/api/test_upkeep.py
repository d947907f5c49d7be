"""Streams that are trimmed, compacted and erased, as a program sees it, over both hubs."""

import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

import mainstem
from mainstem.hub.embedded import LogPort
from mainstem.hub.hub import Hub
from mainstem.transport.port import AppendResult
from tests.integration.api.conftest import OPTIONS, Kept, noise, read_all, values
from tests.unit.log.parts import make_batch


def send(hub: Hub, stream: str, *pairs: tuple[bytes | None, bytes | None]) -> None:
    with hub.producer() as producer:
        producer.send_many(stream, [value for _, value in pairs], [key for key, _ in pairs]).result(10)


# Creating and altering.


def test_a_stream_with_everything(hub):
    made = hub.streams.create(
        "orders", retention="2d", retention_bytes=10_000, cleanup="compact,delete", tombstones=timedelta(hours=3)
    )
    assert (made.cleanup, made.retention_bytes, made.tombstone_us) == ("compact,delete", 10_000, 3 * 3_600_000_000)
    assert hub.streams.get("orders") == made
    assert hub.streams.list() == [made]
    plain = hub.streams.create("plain")
    assert (plain.cleanup, plain.retention_bytes, plain.tombstone_us) == ("delete", 0, 24 * 3_600_000_000)


def test_altering_changes_what_is_given_and_leaves_the_rest(hub):
    hub.streams.create("orders", retention="2d", retention_bytes=10_000, tombstones="3h")
    made = hub.streams.alter("orders", cleanup="compact")
    assert (made.cleanup, made.retention_bytes, made.tombstone_us) == ("compact", 10_000, 3 * 3_600_000_000)
    made = hub.streams.alter("orders", retention_bytes=0, tombstones="0s", retention="1h")
    assert (made.cleanup, made.retention_bytes, made.tombstone_us) == ("compact", 0, 0)
    assert made.retention_us == 3_600_000_000
    assert hub.streams.alter("orders") == made


@pytest.mark.parametrize(
    "wrong",
    [
        {"cleanup": "shrink"},
        {"cleanup": "delete,compact"},
        {"cleanup": ""},
        {"cleanup": 5},
        {"retention_bytes": -1},
        {"retention_bytes": 1 << 61},
        {"retention_bytes": "10GB"},
        {"retention_bytes": 1.5},
        {"tombstones": "-1s"},
        {"tombstones": "soon"},
        {"tombstones": timedelta(days=-1)},
        {"tombstones": timedelta(days=400_000)},
        {"retention": "0s"},
        {"retention": 7},
    ],
    ids=str,
)
def test_values_that_cannot_be(hub, wrong):
    hub.streams.create("orders")
    with pytest.raises(mainstem.InvalidSetting):
        hub.streams.create("other", **wrong)
    with pytest.raises(mainstem.InvalidSetting):
        hub.streams.alter("orders", **wrong)
    assert [stream.name for stream in hub.streams.list()] == ["orders"]
    assert hub.streams.get("orders").cleanup == "delete"


# Trimming.


def test_trim_by_offset(hub):
    hub.streams.create("orders", shards=2)
    with hub.producer() as producer:
        for number in range(20):
            producer.send("orders", b"%d" % number, key=b"%d" % number).result(10)
    ends = hub.streams.get("orders").ends
    made = hub.streams.trim("orders", offset=3, shard=1)
    assert made.starts == (0, 3)
    assert made.ends == ends
    made = hub.streams.trim("orders", offset=5)
    assert made.starts == (5, 5)
    # Back is not possible, and says nothing.
    assert hub.streams.trim("orders", offset=1).starts == (5, 5)
    # An offset that no shard has reached is a mistake. Of all shards, those that end before it are emptied.
    for mistaken, words in ((max(ends) + 1, f"end at offset {max(ends)}"), (-1, "from 0 to"), (1 << 70, "from 0 to")):
        with pytest.raises(mainstem.InvalidRequest, match=words):
            hub.streams.trim("orders", offset=mistaken)
    made = hub.streams.trim("orders", offset=max(ends))
    assert made.starts == made.ends == ends
    assert read_all(hub, "orders") == []
    send(hub, "orders", (b"k", b"after"))
    assert values(hub, "orders") == [b"after"]


def test_trim_by_time(hub):
    hub.streams.create("orders")
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    hub.streams.alter("orders", retention="36500d")
    with hub.producer() as producer:
        for hour in range(6):
            producer.send("orders", b"%d" % hour, timestamp=noon + timedelta(hours=hour))
    made = hub.streams.trim("orders", before=noon + timedelta(hours=2))
    assert made.starts == (2,)
    assert values(hub, "orders") == [b"2", b"3", b"4", b"5"]
    # Within one batch, to the record.
    assert hub.streams.trim("orders", before=noon + timedelta(hours=3, seconds=1)).starts == (4,)
    assert hub.streams.trim("orders", before=noon).starts == (4,)
    assert hub.streams.trim("orders", before=datetime(9999, 1, 1, tzinfo=UTC)).starts == (6,)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"offset": 1, "before": datetime(2026, 1, 1, tzinfo=UTC)},
        {"offset": 1, "shard": 2},
        {"offset": 1, "shard": -1},
        {"offset": -1, "shard": 0},
        {"offset": 99, "shard": 0},
    ],
    ids=str,
)
def test_trims_that_make_no_sense(hub, wrong):
    hub.streams.create("orders", shards=2)
    with pytest.raises(mainstem.InvalidRequest):
        hub.streams.trim("orders", **wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"before": datetime(2026, 1, 1)}, {"before": "15m"}, {"offset": "1"}, {"offset": 10**20}],  # noqa: DTZ001
    ids=str,
)
def test_trims_by_something_else(hub, wrong):
    hub.streams.create("orders")
    with pytest.raises(mainstem.InvalidSetting):
        hub.streams.trim("orders", **wrong)


def test_a_stream_that_is_not_there(hub):
    for act in (
        lambda: hub.streams.trim("nothing", offset=1),
        lambda: hub.streams.erase("nothing", b"k"),
        lambda: hub.streams.alter("nothing", cleanup="compact"),
    ):
        with pytest.raises(mainstem.UnknownStream):
            act()


def test_a_consumer_behind_a_trim_is_told_the_exact_range(kept):
    hub = kept.hub
    hub.streams.create("orders")
    for number in range(20):
        send(hub, "orders", (b"k", b"%d" % number))
    with hub.consumer("orders", start="earliest", prefetch_bytes=4096) as consumer:
        assert consumer.poll(10).value == b"0"
        cursor = consumer.cursor
    hub.streams.trim("orders", offset=12)
    with hub.consumer("orders", start=cursor) as consumer:
        with pytest.raises(mainstem.DataLoss) as caught:
            consumer.poll(10)
        loss = caught.value
        assert (loss.stream, loss.shard, loss.first, loss.last, loss.reason) == ("orders", 0, 1, 11, "trimmed")
        assert [consumer.poll(10).value for _ in range(8)] == [b"%d" % number for number in range(12, 20)]


# Compacted streams.


@pytest.fixture
def compacted(kept: Kept) -> Kept:
    """A stream of 200 records, of which those in LEFT are left: the keys of the others were written again."""
    hub = kept.hub
    hub.streams.create("c", cleanup="compact")
    pairs: list[tuple[bytes | None, bytes | None]] = [(b"again%d" % (n % 7), noise(n, 600)) for n in range(200)]
    for offset in range(0, 200, 20):
        pairs[offset] = (b"only%d" % offset, b"v%d" % offset)
    for offset in range(190, 200):
        pairs[offset] = (b"again%d" % (offset - 190), b"v%d" % offset)
    send(hub, "c", *pairs[:100])
    send(hub, "c", *pairs[100:197])
    send(hub, "c", *pairs[197:])
    kept.cool()
    kept.come_to(lambda: [record.offset for record in read_all(hub, "c")] == LEFT)
    return kept


LEFT = [*range(0, 200, 20), *range(190, 200)]


def test_a_compacted_stream_is_read_as_records(compacted):
    found = read_all(compacted.hub, "c")
    assert [record.offset for record in found] == LEFT
    assert [record.value for record in found] == [b"v%d" % offset for offset in LEFT]
    info = compacted.hub.streams.get("c")
    assert (info.starts, info.ends, info.records) == ((0,), (200,), len(LEFT))
    assert [each.records for each in compacted.hub.streams.list() if each.name == "c"] == [len(LEFT)]


def test_a_compacted_stream_is_read_as_batches(compacted):
    offsets: list[int] = []
    with compacted.hub.consumer("c", start="earliest", follow=False) as consumer:
        for batch in consumer.batches():
            table = batch.to_arrow(metadata=True)
            assert table.num_rows == batch.count == len(batch) == len(batch.values())
            assert table.column("_offset").to_pylist() == list(batch.offsets())
            assert [record.offset for record in batch.records()] == list(batch.offsets())
            assert batch.offset == batch.offsets()[0]
            assert [record.offset for record in batch.last(1).records()] == [batch.offsets()[-1]]
            offsets += batch.offsets()
        assert consumer.cursor.offsets == (200,)
    assert offsets == LEFT


def test_polls_and_a_cursor_in_the_middle_of_a_batch_with_gaps(compacted):
    hub = compacted.hub
    for taken in range(len(LEFT) + 1):
        with hub.consumer("c", start="earliest", follow=False) as consumer:
            assert [consumer.poll(10).offset for _ in range(taken)] == LEFT[:taken]
            cursor = consumer.cursor
            rest = consumer.poll_batch(10)
            if taken < len(LEFT):
                assert rest.offset == LEFT[taken]
        with hub.consumer("c", start=cursor, follow=False) as consumer:
            assert [record.offset for record in consumer] == LEFT[taken:]


def test_seek_into_a_gap(compacted):
    with compacted.hub.consumer("c", start="earliest", follow=False) as consumer:
        for place in (1, 0, 19, 20, 21, 150, 181, 189, 190, 199, 200):
            consumer.seek_shard(0, place)
            assert [record.offset for record in consumer] == [offset for offset in LEFT if offset >= place]


def test_a_start_by_time(compacted):
    hub = compacted.hub
    whole = read_all(hub, "c")
    for record in (whole[0], whole[12], whole[-1]):
        with hub.consumer("c", start=record.timestamp, follow=False) as consumer:
            first = next(consumer)
        assert first.timestamp_us >= record.timestamp_us
        assert first.offset == next(other.offset for other in whole if other.timestamp_us >= record.timestamp_us)


def test_reading_ends_in_a_gap_at_the_end(kept):
    """The last records were erased: nothing comes, and the reader does not wait for it."""
    hub = kept.hub
    hub.streams.create("orders")
    send(hub, "orders", (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"a", b"4"))
    assert hub.streams.erase("orders", b"a").records == 3
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        assert [record.value for record in consumer] == [b"2"]
        assert consumer.cursor.offsets == (4,)
        assert consumer.poll(0) is None
    with hub.consumer("orders", start="earliest") as consumer:
        assert consumer.poll(10).value == b"2"
        assert consumer.poll(0.2) is None
        send(hub, "orders", (b"c", b"5"))
        record = consumer.poll(10)
        assert (record.offset, record.value) == (4, b"5")


def test_a_tombstone_is_read_and_then_gone(kept):
    hub = kept.hub
    hub.streams.create("c", cleanup="compact", tombstones="0s")
    send(hub, "c", (b"a", noise(1, 70_000)), (b"b", b"kept"), (b"a", None))
    with hub.consumer("c", start="earliest") as consumer:
        assert [consumer.poll(10).key for _ in range(3)] == [b"a", b"b", b"a"]
    kept.cool()
    kept.come_to(lambda: [record.key for record in read_all(hub, "c")] == [b"b"])


@pytest.mark.parametrize("key", [True, False], ids=["after one with a key", "first"])
def test_a_compacted_stream_takes_no_record_without_a_key(hub, key):
    hub.streams.create("c", cleanup="compact")
    with hub.producer() as producer:
        if key:
            producer.send("c", b"v", key=b"k").result(10)
        for act in (
            lambda: producer.send("c", b"v"),
            lambda: producer.send("c", b"v", headers={"a": b"b"}),
            lambda: producer.send_many("c", [b"v"]),
            lambda: producer.send_many("c", [b"v", b"w"], [b"k", None]),
        ):
            with pytest.raises(mainstem.InvalidRecord, match="needs a key"):
                act().result(10)
        producer.send("c", b"v", key=b"").result(10)
    assert len(read_all(hub, "c")) == 1 + key


def test_the_server_refuses_a_record_without_a_key_itself(hasty_server):
    """A client that does not check is not believed."""
    with mainstem.connect(hasty_server.url) as hub:
        made = hub.streams.create("unchecked", cleanup="compact")
        results: list[AppendResult] = []
        done = threading.Event()

        def note(found: Sequence[AppendResult]) -> None:
            results.extend(found)
            done.set()

        hub._port.append([make_batch([b"v"], stream=made.id, producer=7)], 10.0, note)
        assert done.wait(10)
        assert isinstance(results[0], mainstem.InvalidRecord)
        assert hub.streams.get("unchecked").ends == (0,)
        hub.streams.delete("unchecked")


# Erasing.


def test_an_erased_key_is_gone_for_everyone(kept):
    hub = kept.hub
    hub.streams.create("orders", shards=3)
    pairs = [(b"secret" if n % 5 == 0 else b"k%d" % n, b"%d" % n) for n in range(50)]
    send(hub, "orders", *pairs)
    before = hub.streams.get("orders")
    with hub.consumer("orders", start="earliest") as follower:
        seen = [follower.poll(10) for _ in range(50)]
        assert sum(record.key == b"secret" for record in seen) == 10
        erased = hub.streams.erase("orders", "secret")
        assert erased.records == 10
        assert erased.gone_by_us > 0
        left = {(record.shard, record.offset): record.value for record in read_all(hub, "orders")}
        assert left == {(record.shard, record.offset): record.value for record in seen if record.key != b"secret"}
        # Who follows goes on after it.
        send(hub, "orders", (b"secret", b"new"))
        assert follower.poll(10).value == b"new"
    after = hub.streams.get("orders")
    assert sum(after.ends) == sum(before.ends) + 1
    assert hub.streams.erase("orders", b"nobody").records == 0
    assert hub.streams.erase("orders", b"secret").records == 1


@pytest.mark.parametrize(("shards", "follow"), [(1, True), (1, False), (2, True)])
@pytest.mark.parametrize("where", [None, "_key <> 'k3'"])
def test_what_a_consumer_has_fetched_ahead_is_not_given_out_after_it_was_erased(tmp_path, shards, follow, where):
    """In the process of the log. The batch that it is in is the reader's already."""
    with mainstem.open(tmp_path / "data") as hub:
        hub.streams.create("orders", shards=shards)
        for number in range(40):
            send(hub, "orders", (b"secret" if number % 4 == 1 else b"k%d" % number, b"%d" % number))
        with hub.consumer("orders", start="earliest", follow=follow, where=where) as consumer:
            first = consumer.poll(10)
            assert first is not None
            seen = [first]
            assert hub.streams.erase("orders", "secret").records == 10
            while record := consumer.poll(0.2):
                seen.append(record)
    left = [n for n in range(40) if n % 4 != 1 and (where is None or n != 3)]
    assert sorted(int(record.value) for record in seen if record.key != b"secret") == left
    assert all(record.key != b"secret" for record in seen[1:])


def test_what_waits_to_be_freed_is_told_and_goes(kept):
    hub = kept.hub
    hub.streams.create("orders")
    hub.streams.create("other")
    for number in range(20):
        send(hub, "orders", (b"secret" if number == 7 else b"k", noise(number, 30_000)))
        send(hub, "other", (b"k", noise(100 + number, 30_000)))
    # What the tests before have left in the same blocks may make upkeep move some of it meanwhile.
    kept.come_to(lambda: hub.streams.get("orders").waiting_bytes == 0)
    secret = noise(7, 30_000)[:64]
    erased = hub.streams.erase("orders", b"secret")
    assert erased.records == 1
    kept.come_to(lambda: hub.streams.get("orders").waiting_bytes == 0)
    assert hub.streams.get("orders").gone_by_us == 0
    for path in (kept.data / "blocks").iterdir():
        assert secret not in path.read_bytes()
    assert len(read_all(hub, "orders")) == 19
    assert len(read_all(hub, "other")) == 20


@pytest.mark.parametrize("how", ["delete", "trim", "retention_bytes"])
def test_space_comes_back(kept, how):
    hub = kept.hub
    hub.streams.create("small")
    send(hub, "small", (b"k", b"stays"))
    before = kept.blocks_bytes()
    hub.streams.create("large")
    with hub.producer() as producer:
        for number in range(40):
            producer.send("large", noise(number, 100_000)).result(10)
    assert kept.blocks_bytes() > 4_000_000
    if how == "delete":
        hub.streams.delete("large")
    elif how == "trim":
        hub.streams.trim("large", offset=40)
    else:
        hub.streams.alter("large", retention_bytes=1_000)
    kept.come_to(lambda: kept.blocks_bytes() < before + 1_500_000)
    assert values(hub, "small") == [b"stays"]
    assert hub.statistics()["blocks_freed"] > 0
    if how == "retention_bytes":
        assert 1_000 <= hub.streams.get("large").bytes < 150_000


def test_a_reader_of_the_folder_follows_a_log_that_is_kept(tmp_path):
    """Another process's folder, read beside it: also there nothing is skipped silently, and a deletion is told."""
    data = tmp_path / "data"
    with Hub(LogPort(data, OPTIONS), "kept") as hub, mainstem.open(data, read_only=True) as beside:
        hub.streams.create("orders")
        with beside.consumer("orders", start="earliest") as follower, hub.producer() as producer:
            seen: list[int] = []
            reasons = {"trimmed"}
            for number in range(300):
                producer.send("orders", b"%d" % number, key=b"k%d" % (number % 3)).result(10)
                if number % 50 == 49:
                    hub.streams.trim("orders", offset=number - 20)
                    while not seen or seen[-1] < number:
                        try:
                            record = follower.poll(10)
                        except mainstem.DataLoss as loss:
                            reasons.add(loss.reason)
                            seen.extend(range(loss.first, loss.last + 1))
                        else:
                            assert record is not None
                            assert record.value == b"%d" % record.offset
                            seen.append(record.offset)
            assert seen == list(range(300))
            assert reasons == {"trimmed"}
            hub.streams.delete("orders")
            deadline = time.monotonic() + 10
            assert isinstance(hub._port, LogPort)
            while hub._port.log.ledger.load_stream(1) is not None:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            # Forgotten altogether before the reader looks again.
            with pytest.raises(mainstem.StreamDeleted):
                follower.poll(10)
