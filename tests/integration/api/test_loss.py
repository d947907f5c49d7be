"""What is gone is told once, by its exact range, and reading goes on behind it; the same through every hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import mainstem
from mainstem.consume.consumer import Consumer
from mainstem.hub.embedded import LogPort
from mainstem.hub.hub import Hub
from mainstem.log.flush import TrimShard
from mainstem.log.log import Log
from mainstem.testing.server import ServerProcess
from tests.unit.log.parts import append_values, make_stream


@pytest.fixture(params=["embedded", "folder", "remote"])
def opened(request, tmp_path):
    """How to open a hub on the folder: as its writer, as a reader of the folder, or through a server."""

    @contextmanager
    def open_hub() -> Iterator[Hub]:
        if request.param == "remote":
            with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
                yield hub
        else:
            with mainstem.open(tmp_path / "data", read_only=request.param == "folder") as hub:
                yield hub

    return open_hub


@pytest.fixture
def log(tmp_path):
    """A closed log in the end: thirty batches of one record, alternating between two shards."""
    log = Log(tmp_path / "data")
    stream = make_stream(log, shards=2)
    for number in range(30):
        append_values(log, stream, b"%d" % number, shard=number % 2)
    yield log
    log.close()


def damage(folder: Path, log: Log, shard: int, offset: int) -> None:
    """Flip one bit in the payload of the record."""
    entry = log.ledger.entries_from(1, shard, offset, 1)[0]
    path = folder / "data" / "blocks" / f"{entry.block:016d}.block"
    log.close()
    data = bytearray(path.read_bytes())
    data[entry.position + entry.length - 20] ^= 1
    path.write_bytes(data)


def read_through(consumer: Consumer) -> tuple[list[tuple[int, int]], list[mainstem.DataLoss]]:
    """Everything a consumer gives and everything it misses, going on after each loss."""
    found: list[tuple[int, int]] = []
    losses: list[mainstem.DataLoss] = []
    while True:
        try:
            found.extend((record.shard, record.offset) for record in consumer)
        except mainstem.DataLoss as loss:
            losses.append(loss)
            after = consumer.cursor.offsets[loss.shard]
            if after != loss.last + 1:
                pytest.fail(f"the cursor stands at {after} after {loss}")
        else:
            return found, losses


def test_a_cursor_in_front_of_trimmed_records_is_told_once(opened, log):
    uuid = log.ledger.list_streams()[0].uuid
    log.execute(TrimShard(1, 0, 5))
    log.close()
    with opened() as hub:
        assert hub.streams.get("orders").starts == (5, 0)
        assert hub.streams.get("orders").records == 25
        with hub.consumer("orders", start=mainstem.Cursor(uuid, 1, (2, 0)), follow=False) as consumer:
            found, losses = read_through(consumer)
    assert [(loss.stream, loss.shard, loss.first, loss.last, loss.reason) for loss in losses] == [
        ("orders", 0, 2, 4, "trimmed")
    ]
    assert sorted(found) == [*((0, offset) for offset in range(5, 15)), *((1, offset) for offset in range(15))]


def test_earliest_after_a_trim_is_no_loss(opened, log):
    log.execute(TrimShard(1, 0, 5))
    log.execute(TrimShard(1, 1, 15))
    log.close()
    with opened() as hub, hub.consumer("orders", start="earliest", follow=False) as consumer:
        found, losses = read_through(consumer)
    assert losses == []
    assert found == [(0, offset) for offset in range(5, 15)]


def test_a_shard_trimmed_to_its_end_is_told_and_over(opened, log):
    uuid = log.ledger.list_streams()[0].uuid
    log.execute(TrimShard(1, 0, 15))
    log.close()
    with opened() as hub, hub.consumer("orders", start=mainstem.Cursor(uuid, 1, (0, 14)), follow=False) as consumer:
        found, losses = read_through(consumer)
        assert consumer.cursor.offsets == (15, 15)
    assert [(loss.shard, loss.first, loss.last) for loss in losses] == [(0, 0, 14)]
    assert found == [(1, 14)]


def test_a_damaged_record_is_told_with_its_file_and_place(opened, log, tmp_path):
    damage(tmp_path, log, 1, 7)
    with opened() as hub, hub.consumer("orders", start="earliest", follow=False) as consumer:
        found, losses = read_through(consumer)
    assert [(loss.shard, loss.first, loss.last) for loss in losses] == [(1, 7, 7)]
    (loss,) = losses
    assert loss.reason == "damaged"
    assert loss.path.startswith("blocks/")
    assert loss.position > 0
    assert "7 to 7" in str(loss)
    assert sorted(found) == [(0, n) for n in range(15)] + [(1, n) for n in range(15) if n != 7]


def test_a_follower_goes_on_after_a_loss(opened, log, tmp_path):
    damage(tmp_path, log, 0, 3)
    with opened() as hub, hub.consumer("orders", start="earliest") as consumer:
        got: list[tuple[int, int]] = []
        losses = 0
        while len(got) < 29:
            try:
                record = consumer.poll(10)
            except mainstem.DataLoss as loss:
                assert (loss.shard, loss.first, loss.last) == (0, 3, 3)  # noqa: PT017  # told in the middle of reading
                losses += 1
            else:
                assert record is not None
                got.append((record.shard, record.offset))
        assert losses == 1
        assert consumer.poll(0) is None
        assert consumer.cursor.offsets == (15, 15)


def test_a_loss_is_told_again_to_whoever_comes_again(opened, log, tmp_path):
    damage(tmp_path, log, 0, 3)
    with opened() as hub:
        for _ in range(2):
            with hub.consumer("orders", start="earliest", follow=False) as consumer:
                assert len(read_through(consumer)[1]) == 1


def test_batches_stop_at_a_loss_and_go_on(opened, log, tmp_path):
    damage(tmp_path, log, 0, 3)
    with opened() as hub, hub.consumer("orders", start="earliest", follow=False) as consumer:
        offsets: list[tuple[int, int]] = []
        with pytest.raises(mainstem.DataLoss):
            offsets.extend((batch.shard, batch.offset) for batch in consumer.batches())
        offsets.extend((batch.shard, batch.offset) for batch in consumer.batches())
    assert len(offsets) == len(set(offsets)) == 29


def test_retention_moves_the_start_behind_what_is_too_old(tmp_path):
    """Records that say they are a day old, in a stream that keeps an hour."""
    from datetime import UTC, datetime, timedelta

    now = datetime.now(UTC)
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("short", retention="1h")
        hub.streams.create("long", retention="7d")
        with hub.producer() as producer:
            for name in ("short", "long"):
                producer.send(name, b"old", timestamp=now - timedelta(days=1)).result(10)
                producer.send(name, b"new", timestamp=now).result(10)
        with hub.consumer("short", start="earliest") as consumer:
            cursor = consumer.cursor
        assert isinstance(hub._port, LogPort)
        hub._port.log.upkeep.run_until_idle()
        assert hub.streams.get("short").starts == (1,)
        assert hub.streams.get("long").starts == (0,)
        with hub.consumer("short", start=cursor, follow=False) as consumer, pytest.raises(mainstem.DataLoss) as caught:
            list(consumer)
        assert (caught.value.first, caught.value.last, caught.value.reason) == (0, 0, "trimmed")
        with hub.consumer("short", start="earliest", follow=False) as consumer:
            assert [record.value for record in consumer] == [b"new"]


def test_a_missing_file_is_told_as_one_range(tmp_path):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("orders")
        with hub.producer() as producer:
            for number in range(700):
                producer.send("orders", b"%d" % number).result(10)
    next((tmp_path / "blocks").iterdir()).unlink()
    with (
        mainstem.open(tmp_path, read_only=True) as hub,
        hub.consumer("orders", start="earliest", follow=False) as consumer,
    ):
        with pytest.raises(mainstem.DataLoss, match="the file is missing") as caught:
            list(consumer)
        assert (caught.value.first, caught.value.last, caught.value.reason) == (0, 699, "damaged")
        assert list(consumer) == []
