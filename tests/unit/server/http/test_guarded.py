"""HTTP behind a guard: what the guard says happens, before a request, while it lasts, and to what it may see."""

import asyncio
import http.client
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainstem.core.errors import Forbidden, MainstemError, QuotaExceeded, Unauthenticated
from mainstem.core.kinds import Address
from mainstem.server.door import Direction
from mainstem.server.http import tails
from mainstem.server.http.app import HttpApp
from mainstem.server.http.listener import HttpListener
from mainstem.server.http.routes import ROUTES
from mainstem.server.server import Server
from mainstem.server.sockets import address_of, bind
from mainstem.transport.port import Answer, Call
from tests.integration.http.client import Client, Events
from tests.unit.server.parts import run, serving

SCHEMA = {"id": "int64", "text": "string"}


class Guest:
    """May do what `allowed` says, as (action, name); None: everything."""

    def __init__(self, name: str, allowed: set[tuple[str, str]] | None) -> None:
        self.name = name
        self.allowed = allowed
        self.is_revoked = False
        self.over: dict[Direction, MainstemError] = {}
        self.pause = 0.0
        self.charged = {"read": 0, "write": 0}
        self.calls: list[str] = []

    def check(self, action: str, name: str) -> None:
        if self.is_revoked:
            raise Unauthenticated("revoked")
        if self.allowed is not None and (action, name) not in self.allowed:
            raise Forbidden(f"{self.name} may not {action} {name!r}")

    def check_any(self, action: str) -> None:
        if self.allowed is not None and action not in {allowed for allowed, _ in self.allowed}:
            raise Forbidden(f"{self.name} may not {action} anything")

    def check_call(self, call: Call) -> None:
        self.calls.append(type(call).__name__)

    def seen(self, call: Call, answer: Answer) -> Answer:
        return answer

    def begin(self, direction: Direction) -> None:
        if error := self.over.get(direction):
            raise error

    def charge(self, direction: Direction, size: int) -> float:
        self.charged[direction] += size
        return self.pause


class Guard:
    """Knows guests by their tokens, which are their names."""

    is_guarded = True

    def __init__(self, *guests: Guest) -> None:
        self._guests = {guest.name: guest for guest in guests}

    def admit(self, token: str, certificate: str, address: str) -> Guest:
        if token not in self._guests:
            raise Unauthenticated("who are you?")
        return self._guests[token]


def guarded(path: Path, guard: Guard, test: Callable[[str, Server], None]) -> None:
    """Run a test, in a thread of its own, against a server that has this guard at its door."""

    async def serve() -> None:
        async with serving(path) as rig:
            sockets = bind(Address("127.0.0.1", 0))
            app = HttpApp(rig.server, lambda: "metrics\n", guard)
            listener = HttpListener(sockets, app, 100)
            listening = asyncio.ensure_future(listener.serve())
            try:
                await asyncio.to_thread(test, address_of(sockets), rig.server)
            finally:
                app.stop()
                listener.stop()
                await listening
                app.close()

    run(serve)


def ask(address: str, token: str, method: str, path: str, body: Any = None, **headers: str) -> Any:
    with Client(address) as client:
        return client.ask(method, path, body, **headers, **({"authorization": f"Bearer {token}"} if token else {}))


def test_every_route_refuses_whom_the_guard_refuses(tmp_path):
    root, nobody = Guest("root", None), Guest("nobody", set())

    def test(address: str, server: Server) -> None:
        assert ask(address, "root", "PUT", "/streams/orders", {"schema": SCHEMA}).status == 201
        for row in ROUTES:
            path = row.path.replace("{name}", "orders")
            body = b"{}" if row.method in ("PUT", "POST", "PATCH") else None
            for token, status in (("", 401), ("expired", 401), ("nobody", 403)):
                answer = ask(address, token, row.method, path, body)
                assert answer.status == (status if row.action else 200), (row, answer)
                if row.action:
                    assert answer.json()["code"] in (220, 221)
                    assert ("www-authenticate" in answer.headers) is (status == 401)
        assert [row.name for row in server.log.ledger.list_streams() if not row.deleted_us] == ["orders"]

    guarded(tmp_path, Guard(root, nobody), test)


def test_calls_are_checked_one_by_one(tmp_path):
    """Whatever a route does beside what it is for passes the same table as the calls of every other client."""
    root = Guest("root", None)

    def test(address: str, server: Server) -> None:
        ask(address, "root", "PUT", "/streams/orders", {"schema": SCHEMA})
        ask(address, "root", "POST", "/streams/orders/records", b'{"id": 1, "text": "a"}\n')
        cursor = ask(address, "root", "GET", "/streams/orders/records").headers["mainstem-cursor"]
        ask(address, "root", "POST", "/groups/g/commit", {"stream": "orders", "cursor": cursor})
        assert {"CreateStreamCall", "GetStreamCall", "CommitCursorsCall"} <= set(root.calls)

    guarded(tmp_path, Guard(root), test)


def test_dead_letters_are_written_by_who_may(tmp_path):
    writer = Guest("writer", {("write", "orders"), ("create", "orders")})

    def test(address: str, server: Server) -> None:
        ask(address, "writer", "PUT", "/streams/orders", {"schema": SCHEMA})
        path = "/streams/orders/records?on_bad=dead_letter"
        assert ask(address, "writer", "POST", path, b'{"id": "x"}\n').status == 403
        assert writer.allowed is not None
        writer.allowed.add(("write", "orders.dead"))
        assert ask(address, "writer", "POST", path, b'{"id": "x"}\n').json()["dead"] == 1

    guarded(tmp_path, Guard(writer), test)


def test_quotas_refuse_slow_down_and_count(tmp_path):
    guest = Guest("guest", None)

    def test(address: str, server: Server) -> None:
        ask(address, "guest", "PUT", "/streams/orders", {"schema": SCHEMA})
        line = b'{"id": 1, "text": "a"}\n'
        guest.over["write"] = QuotaExceeded("too much", retry_after=7.5)
        answer = ask(address, "guest", "POST", "/streams/orders/records", line)
        assert (answer.status, answer.headers["retry-after"], answer.json()["retry_after"]) == (429, "8", 7.5)
        guest.over.clear()
        guest.pause = 0.2
        began = time.monotonic()
        assert ask(address, "guest", "POST", "/streams/orders/records", line).status == 200
        assert time.monotonic() - began >= guest.pause
        guest.pause = 0.0
        assert guest.charged["write"] == len(line)
        read = ask(address, "guest", "GET", "/streams/orders/records")
        page = ask(address, "guest", "GET", "/streams/orders/records?limit=1")
        assert guest.charged["read"] == len(read.body) + len(page.body)
        guest.over["read"] = QuotaExceeded("too much", retry_after=1.0)
        for accept in ("text/csv", "text/event-stream"):
            assert ask(address, "guest", "GET", "/streams/orders/records", accept=accept).status == 429

    guarded(tmp_path, Guard(guest), test)


def test_who_is_revoked_gets_nothing_more(tmp_path, monkeypatch):
    monkeypatch.setattr(tails, "_LOOK_SECONDS", 0.05)
    root, reader = Guest("root", None), Guest("reader", None)

    def test(address: str, server: Server) -> None:
        ask(address, "root", "PUT", "/streams/orders", {"schema": SCHEMA})
        rows = b"".join(b'{"id": %d, "text": "%s"}\n' % (number, b"x" * 500) for number in range(30_000))
        assert ask(address, "root", "POST", "/streams/orders/records", rows).status == 200
        # A long answer, of which some has come, and a tail that waits.
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request("GET", "/streams/orders/records", headers={"Authorization": "Bearer reader"})
        response = connection.getresponse()
        assert len(response.read(1_000)) == 1_000
        with Events(address, "/streams/orders/records", token="reader") as events:
            events.skip_to_position()
            reader.is_revoked = True
            (event,) = events.take(1)
            assert (event.kind, event.data["title"]) == ("error", "Unauthenticated")
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            response.read()
        connection.close()

    guarded(tmp_path, Guard(root, reader), test)
