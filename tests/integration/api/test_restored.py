"""A log that was restored from a backup: who stands on records that it does not have any more is told exactly which."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import mainstem
from mainstem.hub.hub import Hub
from mainstem.log.backup import back_up
from mainstem.log.restore import restore
from mainstem.testing.server import ServerProcess
from tests.integration.api.conftest import values

GONE = r"shard 0 of 'orders', and records 10 to 14 are not in this log any more"


def send(hub: Hub, first: int, stop: int, word: str = "old", stream: str = "orders") -> None:
    with hub.producer() as producer:
        for number in range(first, stop):
            producer.send(stream, f"{word} {number}".encode())


def bring_back(path: Path) -> None:
    """The data folder is lost; what the backup has takes its place."""
    shutil.rmtree(path / "data")
    restore(path / "backup", path / "data")


@pytest.fixture
def cursors(tmp_path) -> dict[int, mainstem.Cursor]:
    """A backup after ten records, fifteen were written; the cursors that a reader had on the way."""
    found = {}
    with mainstem.open(tmp_path / "data") as hub:
        hub.streams.create("orders")
        send(hub, 0, 10)
        back_up(tmp_path / "data", tmp_path / "backup")
        send(hub, 10, 15)
        with hub.consumer("orders", start="earliest", follow=False) as consumer:
            found[0] = consumer.cursor
            for record in consumer:
                found[record.offset + 1] = consumer.cursor
    bring_back(tmp_path)
    return found


@pytest.fixture(params=["embedded", "folder", "remote"])
def opened(request, tmp_path):
    @contextmanager
    def open_hub() -> Iterator[Hub]:
        if request.param == "remote":
            with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
                yield hub
        else:
            with mainstem.open(tmp_path / "data", read_only=request.param == "folder") as hub:
                yield hub

    return open_hub


def test_cursors_up_to_the_backup_are_good_and_those_after_it_are_refused_by_range(opened, cursors, tmp_path):
    with mainstem.open(tmp_path / "data") as hub:
        send(hub, 10, 30, "new")
    with opened() as hub:
        for offset, cursor in cursors.items():
            if offset <= 10:
                with hub.consumer("orders", start=cursor, follow=False) as consumer:
                    assert next(iter(consumer)).offset == offset
                    assert consumer.cursor.epoch == 2
            else:
                with pytest.raises(mainstem.InvalidCursor, match=f"records 10 to {offset - 1} are not in this log"):
                    hub.consumer("orders", start=cursor)


def test_a_group_is_not_set_to_a_cursor_of_what_the_backup_does_not_have(tmp_path, cursors):
    with mainstem.open(tmp_path / "data") as hub:
        send(hub, 10, 30, "new")
        with hub.consumer("orders", group="g", start="earliest") as member:
            member.poll(10)
        hub.groups.reset("g", cursors[10], dry_run=False)
        assert hub.groups.get("g").shards[0].offset == 10
        with pytest.raises(mainstem.InvalidCursor, match="records 10 to 14 are not in this log"):
            hub.groups.reset("g", cursors[15], dry_run=False)
        with pytest.raises(mainstem.InvalidCursor, match="epoch 4"):
            hub.groups.reset("g", mainstem.Cursor(cursors[0].stream, 4, (0,)))


def test_two_restores_in_a_row(tmp_path, cursors):
    """The second backup is older than what was read in the epoch between."""
    with mainstem.open(tmp_path / "data") as hub:
        send(hub, 10, 12, "new")
        back_up(tmp_path / "data", tmp_path / "second")
        send(hub, 12, 14, "new")
        info = hub.streams.get("orders")
        between = mainstem.Cursor(info.uuid, 2, (13,))
        good = mainstem.Cursor(info.uuid, 2, (12,))
    shutil.rmtree(tmp_path / "data")
    restore(tmp_path / "second", tmp_path / "data")
    with mainstem.open(tmp_path / "data") as hub:
        assert hub.streams.get("orders").restored == ((1, (10,)), (2, (12,)))
        with hub.consumer("orders", start=good) as consumer:
            assert consumer.cursor == mainstem.Cursor(info.uuid, 3, (12,))
        with pytest.raises(mainstem.InvalidCursor, match="records 12 to 12 are not"):
            hub.consumer("orders", start=between)
        with pytest.raises(mainstem.InvalidCursor, match="records 10 to 10 are not"):
            hub.consumer("orders", start=cursors[11])
        hub.consumer("orders", start=cursors[10]).close()
        with pytest.raises(mainstem.InvalidCursor, match="epoch 4"):
            hub.consumer("orders", start=mainstem.Cursor(info.uuid, 4, (0,)))


def test_a_shard_that_was_empty_in_the_backup(tmp_path):
    with mainstem.open(tmp_path / "data") as hub:
        info = hub.streams.create("orders", shards=2)
        back_up(tmp_path / "data", tmp_path / "backup")
        send(hub, 0, 10)
    bring_back(tmp_path)
    with mainstem.open(tmp_path / "data") as hub:
        hub.consumer("orders", start=mainstem.Cursor(info.uuid, 1, (0, 0))).close()
        with pytest.raises(mainstem.InvalidCursor, match=r"shard 1 .*records 0 to 2"):
            hub.consumer("orders", start=mainstem.Cursor(info.uuid, 1, (0, 3)))


def test_more_restores_than_are_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr("mainstem.log.administration.RESTORED_EPOCHS_MAX", 1)
    with mainstem.open(tmp_path / "data") as hub:
        info = hub.streams.create("orders")
    for _ in range(2):
        back_up(tmp_path / "data", tmp_path / "backup")
        bring_back(tmp_path)
    with mainstem.open(tmp_path / "data") as hub:
        with pytest.raises(mainstem.InvalidCursor, match="restored 2 times"):
            hub.consumer("orders", start=mainstem.Cursor(info.uuid, 1, (0,)))
        hub.consumer("orders", start=mainstem.Cursor(info.uuid, 2, (0,))).close()


# ------------------------------------------------------------------------------ clients that live through the restore


@pytest.fixture
def server(tmp_path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as server:
        yield server


def restore_under(server: ServerProcess, path: Path, written: int = 0) -> None:
    """Kill the server, lose its folder, restore it, let somebody write to it, and serve it at the same address."""
    server.kill()
    bring_back(path)
    if written:
        with mainstem.open(path / "data") as hub:
            send(hub, 10, 10 + written, "new")
    server.start()


@pytest.fixture
def hub(server, tmp_path) -> Iterator[Hub]:
    """Ten records are in the backup."""
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        send(hub, 0, 10)
        back_up(tmp_path / "data", tmp_path / "backup")
        yield hub


@pytest.mark.parametrize("written", [0, 2, 40])
def test_a_follower_beyond_the_backup_is_told(hub, server, tmp_path, written):
    """Whether the log ends before its position again or has grown beyond it."""
    send(hub, 10, 15)
    with hub.consumer("orders", start="earliest") as consumer:
        assert [consumer.poll(10).offset for _ in range(15)] == list(range(15))
        restore_under(server, tmp_path, written)
        for _ in range(2):
            with pytest.raises(mainstem.InvalidCursor, match=GONE):
                consumer.poll(20)
        assert consumer.cursor.epoch == 1
        consumer.seek_shard(0, 10)
        send(hub, 90, 91, "new")
        assert consumer.poll(10).value.startswith(b"new")
        assert consumer.cursor.epoch == 2
        consumer.seek("latest")
        send(hub, 91, 92, "new")
        assert consumer.poll(10).value == b"new 91"


def test_a_follower_within_the_backup_goes_on(hub, server, tmp_path):
    send(hub, 10, 15)
    with hub.consumer("orders", start="earliest", prefetch_bytes=4096) as consumer:
        assert [consumer.poll(10).offset for _ in range(3)] == [0, 1, 2]
        consumer.seek_shard(0, 5)
        cursor = consumer.cursor
        restore_under(server, tmp_path, 3)
        assert [consumer.poll(20).value for _ in range(8)] == [
            *(b"old %d" % number for number in range(5, 10)),
            *(b"new %d" % number for number in range(10, 13)),
        ]
        assert cursor.epoch == 1
        with hub.consumer("orders", start=consumer.cursor) as another:
            assert another.cursor == mainstem.Cursor(cursor.stream, 2, (13,))


def test_a_reader_to_an_end_that_is_gone_is_told(hub, server, tmp_path):
    send(hub, 10, 15)
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        restore_under(server, tmp_path)
        with pytest.raises(mainstem.InvalidCursor, match=GONE):
            consumer.poll(20)
        consumer.seek("earliest")
        assert [record.offset for record in consumer] == list(range(10))


def test_a_consumer_of_a_stream_that_the_backup_does_not_have(hub, server, tmp_path):
    hub.streams.create("later")
    send(hub, 0, 1, stream="later")
    with hub.consumer("later", start="earliest") as consumer:
        consumer.poll(10)
        restore_under(server, tmp_path)
        with pytest.raises(mainstem.UnknownStream):
            consumer.poll(20)
        hub.streams.create("later")
        with pytest.raises(mainstem.StreamDeleted):
            consumer.poll(20)


def test_a_producer_goes_on_and_what_does_not_fit_fails_by_name(hub, server, tmp_path):
    """Its numbers are ahead of what the backup knows of it: the first batch says so, the next are under new ones."""
    producer = hub.producer()
    for _ in range(5):
        producer.send("orders", b"old").result(10)
    restore_under(server, tmp_path)
    with pytest.raises((mainstem.OutOfSequence, mainstem.UnknownProducer)):
        producer.send("orders", b"in between").result(20)
    assert producer.send("orders", b"new").result(20) == (0, 10)
    producer.close()
    assert values(hub, "orders")[10:] == [b"new"]


def test_a_producer_of_a_stream_that_the_backup_does_not_have(hub, server, tmp_path):
    """Another stream was created since; nothing may land there."""
    hub.streams.create("later")
    producer = hub.producer()
    producer.send("later", b"x").result(10)
    restore_under(server, tmp_path)
    hub.streams.create("other")
    with pytest.raises(mainstem.UnknownStream):
        producer.send("later", b"y").result(20)
    assert hub.streams.get("other").records == 0


def test_a_reader_of_a_folder_that_is_exchanged_under_it_opens_it_again(tmp_path):
    with mainstem.open(tmp_path / "data") as hub:
        hub.streams.create("orders")
        send(hub, 0, 10)
        back_up(tmp_path / "data", tmp_path / "backup")
        send(hub, 10, 15)
    with mainstem.open(tmp_path / "data", read_only=True) as reader:
        consumer = reader.consumer("orders", start="earliest")
        assert next(consumer).offset == 0
        bring_back(tmp_path)
        with mainstem.open(tmp_path / "data") as hub:
            send(hub, 10, 15, "new")
        with pytest.raises(mainstem.FolderUnusable, match=r"was restored from a backup.*open it again"):
            list(consumer)
        with pytest.raises(mainstem.FolderUnusable, match="open it again"):
            reader.streams.list()
