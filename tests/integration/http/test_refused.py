"""What requests that are refused, or made to wait, leave with the server: nothing, and never more than all may have."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import mainstem
from mainstem.core.limits import HTTP_ANSWERS_BYTES_MAX
from mainstem.hub.access import NewToken
from mainstem.testing.server import ServerProcess
from mainstem.transport.guarding import Mode
from tests.integration.http.client import Client

RECORDS = "/streams/orders/records"


class Guarded(Client):
    """A client of a server that has an administrator and a reader, as whichever of them."""

    server: ServerProcess
    root: NewToken
    alice: NewToken

    def known(self, token: NewToken) -> dict[str, str]:
        return {"authorization": f"Bearer {token.secret}"}

    def answer_bytes(self) -> int:
        """What answers under way hold, as the server counts it."""
        lines = self.get("/metrics", **self.known(self.root)).body.decode().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("mainstem_http_answer_bytes ")))


@contextmanager
def guarded(folder: Path, read_bytes: int = 0, mode: Mode = "limit") -> Iterator[Guarded]:
    with mainstem.open(folder / "data") as hub:
        hub.streams.create("orders")
        root = hub.access.create_token("root", admin=True)
        alice = hub.access.create_token("alice", allow=["read:*", "write:*"])
        if read_bytes:
            hub.access.set_quota("alice", "read_bytes", read_bytes, mode=mode)
    with (
        ServerProcess(folder / "data", "--http", "127.0.0.1:0", "--auto-create", "off") as server,
        Guarded(server.http) as client,
    ):
        client.server, client.root, client.alice = server, root, alice
        yield client


def growth(server: ServerProcess, action: Callable[[], object], times: int) -> int:
    """How much more memory the server has when this was done so many times, after a few that do not count."""
    for _ in range(50):
        action()
    before = server.memory_bytes()
    for _ in range(times):
        action()
    return server.memory_bytes() - before


def test_nothing_is_kept_of_a_post_to_a_stream_that_it_may_not_have(tmp_path):
    with guarded(tmp_path) as client:
        headers = {**client.known(client.alice), "x-padding": "x" * 30_000}

        def post() -> None:
            assert client.ask("POST", "/streams/nosuch/records", b'{"value": "1"}\n', **headers).status == 403

        # All that was sent is twice as much.
        assert growth(client.server, post, 500) < 7e6


def fill(client: Guarded, rows: int) -> None:
    body = b"".join(b'{"value": "%d %s"}\n' % (number, b"x" * 1_000) for number in range(rows))
    assert client.ask("POST", RECORDS, body, **client.known(client.root)).status == 200


def test_nothing_is_held_for_an_answer_that_a_quota_refuses(tmp_path):
    with guarded(tmp_path, 1_000, "block") as client:
        fill(client, 2_000)
        # What is larger than the quota passes after a rest, and has to be paid.
        assert client.get(f"{RECORDS}?limit=1000", **client.known(client.alice)).status == 200
        for query in ("", "?limit=1000"):
            for _ in range(5):
                assert client.get(RECORDS + query, **client.known(client.alice)).status == 429
            assert client.answer_bytes() == 0


def test_pages_that_wait_for_a_quota_are_in_the_budget_of_all(tmp_path):
    """Many at once have begun before one of them is charged; then all wait, each with a page that is made."""
    head = f"GET {RECORDS}?limit=1000000 HTTP/1.1\r\nHost: localhost\r\n"
    with guarded(tmp_path, 1_000) as client, ExitStack() as stack:
        fill(client, 6_000)
        before = client.server.memory_bytes()
        for _ in range(40):
            peer = stack.enter_context(socket.create_connection(client.address))
            peer.sendall(f"{head}Authorization: Bearer {client.alice.secret}\r\n\r\n".encode())
        held: list[int] = []
        while len(held) < 5 or held[-1] > held[-5]:
            time.sleep(0.2)
            held.append(client.answer_bytes())
        growth = client.server.memory_bytes() - before
        # They would wait on.
        client.server.kill()
    # Large pages as long as there is room for them, and small ones from then on.
    assert 10e6 < held[-1] < 1.3 * HTTP_ANSWERS_BYTES_MAX
    assert growth < 2.5 * HTTP_ANSWERS_BYTES_MAX, held
