"""The tail: its cursor stands after what was taken, across shards, limits and losses."""

import os

import pytest

import mainstem
from mainstem.consume.cursor_file import CursorFile
from mainstem.consume.outlet import Outlet
from mainstem.consume.rendering import renderer
from mainstem.consume.tail import Tail
from mainstem.core.errors import DataLoss, InvalidCursor, MainstemError


@pytest.fixture
def hub(tmp_path):
    with mainstem.open(tmp_path / "data") as hub:
        hub.streams.create("s", shards=3)
        with hub.producer() as producer:
            for number in range(300):
                producer.send("s", b"%d" % number, key=b"%d" % (number % 10))
        yield hub


def poured(hub, path, *, start="earliest", limit=None, on_loss=lambda loss: None, **options):
    """The lines one call writes to a file, and its tail."""
    with path.open("wb") as file, hub.consumer("s", start=start, follow=False, **options) as consumer:
        tail = Tail(
            consumer,
            Outlet(file.fileno()),
            renderer("raw", framed=False),
            follow=False,
            limit=limit,
            on_loss=on_loss,
        )
        tail.run()
    return path.read_bytes().split(), tail


def test_pieces_of_any_length_add_up_to_the_whole(hub, tmp_path):
    whole, _ = poured(hub, tmp_path / "out")
    found: list[bytes] = []
    cursor: object = "earliest"
    for limit in (1, 0, 7, 100, 1, 1_000):
        lines, tail = poured(hub, tmp_path / "out", start=cursor, limit=limit)
        found += lines
        assert tail.count == len(lines) <= limit
        cursor = tail.cursor
    assert sorted(found) == sorted(whole)
    assert len(found) == 300


def test_pieces_of_what_matches_add_up_to_the_whole(hub, tmp_path):
    """Between two matches there are offsets of others: the cursor stands before the next one, at the end behind all."""
    found: list[bytes] = []
    cursor: object = "earliest"
    for limit in (1, 3, 20, 100):
        lines, tail = poured(hub, tmp_path / "out", start=cursor, limit=limit, where="key = '3' OR value LIKE '%7'")
        found += lines
        cursor = tail.cursor
    assert sorted(map(int, found)) == [n for n in range(300) if n % 10 in (3, 7)]
    assert tail.cursor.offsets == hub.streams.get("s").ends
    _, tail = poured(hub, tmp_path / "out", where="value = 'nothing'")
    assert tail.cursor.offsets == hub.streams.get("s").ends


def test_a_loss_is_reported_and_passed(hub, tmp_path, monkeypatch):
    losses: list[MainstemError] = []
    _, tail = poured(hub, tmp_path / "out", limit=0)
    assert tail.losses == 0
    with hub.consumer("s", start="earliest", follow=False) as consumer, open(os.devnull, "wb") as null:
        real = consumer.poll_batch
        raised: list[bool] = []

        def poll(timeout):
            if not raised:
                raised.append(True)
                loss = DataLoss(stream="s", shard=0, first=0, last=1)
                consumer.seek_shard(0, 2)
                raise loss
            return real(timeout)

        monkeypatch.setattr(consumer, "poll_batch", poll)
        tail = Tail(consumer, Outlet(null.fileno()), renderer("raw", framed=False), follow=False, on_loss=losses.append)
        tail.run()
    assert [loss.last for loss in losses if isinstance(loss, DataLoss)] == [1]
    assert (tail.losses, tail.count) == (1, 298)
    assert tail.cursor.offsets == hub.streams.get("s").ends


def test_a_cursor_file_is_replaced_as_a_whole(tmp_path):
    file = CursorFile(tmp_path / "place")
    assert file.load() is None
    cursor = mainstem.Cursor("0" * 32, 1, (1, 2))
    file.save(cursor)
    assert CursorFile(tmp_path / "place").load() == cursor
    assert os.listdir(tmp_path) == ["place"]
    (tmp_path / "place").write_bytes(b"\xff")
    with pytest.raises(InvalidCursor, match="place holds no cursor"):
        file.load()
