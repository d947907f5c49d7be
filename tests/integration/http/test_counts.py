"""What comes by HTTP is counted by the server, once for each record that it acknowledged."""

import json
from pathlib import Path

import mainstem
from mainstem.hub.counted import sent_counts
from mainstem.testing.server import ServerProcess
from tests.integration.http.client import Client


def lines(first: int, count: int) -> bytes:
    return b"".join(json.dumps({"id": number}).encode() + b"\n" for number in range(first, first + count))


def totals(server: ServerProcess, stream: str) -> tuple[int, int]:
    with mainstem.connect(server.url) as hub:
        counts = sent_counts(hub, stream)
    return sum(count.sent for count in counts), sum(count.acknowledged or 0 for count in counts)


def test_posts_are_counted_and_repeated_ones_once(tmp_path: Path):
    with ServerProcess(tmp_path / "data", "--http", "127.0.0.1:0", "--http-counts", "1h") as server:
        with Client(server.http) as client:
            client.create("orders", shards=2)
            assert client.post("orders", lines(0, 30)).status == 200
            for _ in range(2):
                assert client.post("orders", lines(30, 12), Idempotency_Key="a").status == 200
            assert client.post("orders", b"no json\n").status == 422
        # Told when the window ends, and when the server does.
        assert totals(server, "orders") == (0, 0)
        server.stop()
        server.start()
        assert totals(server, "orders") == (42, 42)


def test_what_a_request_wrote_is_counted_of_its_stream(tmp_path: Path):
    """Also if another one has its name when the server says it."""
    with ServerProcess(tmp_path / "data", "--http", "127.0.0.1:0", "--http-counts", "1h") as server:
        with Client(server.http) as client, mainstem.connect(server.url) as hub:
            client.create("orders")
            assert client.post("orders", b'{"value": "x", "timestamp": "2026-03-01T12:00:00Z"}').status == 200
            hub.streams.delete("orders")
            client.create("orders")
            assert client.post("orders", lines(0, 2)).status == 200
        server.stop()
        server.start()
        assert totals(server, "orders") == (2, 2)


def test_records_of_several_windows_are_counted_in_each(tmp_path: Path):
    with ServerProcess(tmp_path / "data", "--http", "127.0.0.1:0", "--http-counts", "1s") as server:
        with Client(server.http) as client:
            client.create("orders")
            records = [
                {"value": "x", "timestamp": f"2026-03-01T12:00:{second:02d}Z"} for second in range(5) for _ in range(3)
            ]
            body = b"".join(json.dumps(record).encode() + b"\n" for record in records)
            assert client.post("orders", body).status == 200
        server.stop()
        server.start()
        with mainstem.connect(server.url) as hub:
            found = {count.start_us // 1_000_000 % 60: count.sent for count in sent_counts(hub, "orders")}
    assert found == dict.fromkeys(range(5), 3)


def test_nothing_is_counted_unless_it_is_asked_for(tmp_path: Path):
    with ServerProcess(tmp_path / "data", "--http", "127.0.0.1:0") as server:
        with Client(server.http) as client:
            client.create("orders")
            assert client.post("orders", lines(0, 3)).status == 200
        server.stop()
        server.start()
        assert totals(server, "orders") == (0, 0)
