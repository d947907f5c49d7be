"""Which requests pass the gate."""

from types import SimpleNamespace

import pytest
from starlette.requests import Request

from mainstem.core.errors import Forbidden, QuotaExceeded, Unauthenticated
from mainstem.server.door import ACTIONS, NEIGHBOUR, LoopbackDoor, Visitor
from mainstem.server.http.gate import Gate
from mainstem.server.http.problems import HttpRefusal, answer
from mainstem.server.http.routes import ROUTES, Row
from mainstem.server.http.sending import ABORT, Connection

READ = next(row for row in ROUTES if row.handler == "read_records")
OWN = {"host": "localhost"}


def request(client: str = "127.0.0.1", peer: object = None, **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    scope = {"type": "http", "method": "GET", "path": "/", "scheme": "http", "query_string": b"", "headers": raw}
    transport = SimpleNamespace(get_extra_info=lambda name: peer if name == "peercert" else None)
    return Request({**scope, "client": (client, 1), "server": ("127.0.0.1", 7071), ABORT: Connection(transport)})


@pytest.mark.parametrize(
    ("headers", "client", "status"),
    [
        ({"host": "127.0.0.1:7071"}, "127.0.0.1", 0),
        ({"host": "LOCALHOST"}, "::1", 0),
        ({"host": "localhost."}, "::ffff:127.0.0.1", 0),
        ({"host": "[::1]:7071"}, "127.8.9.1", 0),
        ({"host": "box.example"}, "127.0.0.1", 0),
        ({"host": "10.0.0.7"}, "10.0.0.7", 403),
        ({"host": "evil.example"}, "127.0.0.1", 421),
        ({"host": "127.0.0.1.evil.example"}, "127.0.0.1", 421),
        ({"host": ""}, "127.0.0.1", 421),
        ({}, "127.0.0.1", 421),
        ({"host": "localhost", "origin": "http://localhost"}, "127.0.0.1", 0),
        ({"host": "localhost", "origin": "http://localhost:80"}, "127.0.0.1", 403),
        ({"host": "localhost", "origin": "null"}, "127.0.0.1", 403),
        ({"host": "localhost", "origin": "http://["}, "127.0.0.1", 403),
        ({"host": "localhost", "origin": "http://localhost.evil.example"}, "127.0.0.1", 403),
        ({"host": "localhost", "sec_fetch_site": "same-site"}, "127.0.0.1", 403),
        ({"host": "localhost", "sec_fetch_site": "none"}, "127.0.0.1", 0),
        ({"host": "localhost", "authorization": "Bearer t"}, "127.0.0.1", 0),
        ({"host": "localhost", "authorization": "Basic dDp0"}, "127.0.0.1", 400),
        ({"host": "localhost", "authorization": "Bearer "}, "127.0.0.1", 400),
    ],
)
def test_who_passes(headers, client, status):
    gate = Gate(LoopbackDoor(), ["box.example"])
    if not status:
        assert gate.admit(request(client, **headers), READ, "orders").name == "loopback"
        return
    with pytest.raises((HttpRefusal, Forbidden)) as refused:
        gate.admit(request(client, **headers), READ, "orders")
    assert getattr(refused.value, "status", 403) == status


class Guard:
    """Lets everybody in and notes what was asked; `name` is who may do nothing."""

    is_guarded = True

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def admit(self, token: str, certificate: str, address: str) -> Visitor:
        self.asked.append((token, certificate, address))
        guard = self

        class Noted(type(NEIGHBOUR)):  # type: ignore[misc]
            def check(self, action: str, name: str) -> None:
                guard.asked.append((action, name))

            def check_any(self, action: str) -> None:
                guard.asked.append((action,))

        found: Visitor = Noted()
        return found


@pytest.mark.parametrize("row", ROUTES, ids=lambda row: f"{row.method} {row.path}")
def test_every_route_asks_for_its_right(row: Row):
    guard = Guard()
    peer = {"subject": ((("organizationName", "x"),), (("commonName", "alice"),))}
    gate = Gate(guard)
    gate.admit(request(peer=peer, authorization="bearer abc", **OWN), row, "orders" if row.is_named else "")
    if not row.action:
        assert (row.is_open, guard.asked) == (True, [])
        return
    assert row.action in ACTIONS
    assert guard.asked[0] == ("abc", "alice", "127.0.0.1")
    assert guard.asked[1:] == [
        (row.action, "orders") if row.is_named else (row.action, "") if row.is_open else (row.action,)
    ]


def test_what_the_guard_refuses_is_refused():
    class Closed(LoopbackDoor):
        is_guarded = True

        def admit(self, token: str, certificate: str, address: str) -> Visitor:
            raise Unauthenticated("nobody")

    for row in ROUTES:
        if row.action:
            with pytest.raises(Unauthenticated, match="nobody") as refused:
                Gate(Closed()).admit(request(**OWN), row, "orders")
            response = answer(refused.value)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        else:
            assert Gate(Closed()).admit(request(), row, "") is NEIGHBOUR


def test_a_quota_says_how_long_to_wait():
    response = answer(QuotaExceeded("slow down", retry_after=2.2))
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
