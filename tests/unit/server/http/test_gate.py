"""Which requests pass the gate."""

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from uvicorn.protocols.http.flow_control import FlowControl

from mainstem.access.action import Action
from mainstem.access.bucket import Turnstile
from mainstem.core.errors import QuotaExceeded, Unauthenticated
from mainstem.server.door import PASSER, Visitor
from mainstem.server.http.gate import Gate
from mainstem.server.http.problems import HttpRefusal, answer
from mainstem.server.http.routes import ROUTES, Row
from mainstem.server.http.sending import ABORT, Connection
from mainstem.testing.clock import SimulatedClock

READ = next(row for row in ROUTES if row.handler == "read_records")
OWN = {"host": "localhost"}


def request(client: str = "127.0.0.1", peer: object = None, scheme: str = "http", **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    scope = {"type": "http", "method": "GET", "path": "/", "scheme": scheme, "query_string": b"", "headers": raw}
    transport: Any = SimpleNamespace(get_extra_info=lambda name: peer if name == "peercert" else None)
    return Request(
        {
            **scope,
            "client": (client, 1),
            "server": ("127.0.0.1", 7071),
            ABORT: Connection(transport, FlowControl(transport)),
        }
    )


def gate_of(guard: "Guard", connects_per_second: float = 1_000) -> Gate:
    return Gate(guard, Turnstile(connects_per_second, SimulatedClock()))


@pytest.mark.parametrize(
    ("headers", "scheme", "status"),
    [
        ({"host": "127.0.0.1:7071"}, "http", 0),
        ({"host": "LOCALHOST"}, "http", 0),
        ({"host": "localhost."}, "http", 0),
        ({"host": "[::1]:7071"}, "http", 0),
        ({"host": "10.0.0.7"}, "http", 0),
        ({"host": "box.example"}, "http", 421),
        ({"host": "box.example:7071"}, "https", 0),
        ({"host": "box.example", "origin": "https://box.example"}, "https", 0),
        ({"host": "box.example", "origin": "http://box.example"}, "https", 403),
        ({"host": "box.example", "origin": "https://evil.example"}, "https", 403),
        ({"host": "evil.example"}, "http", 421),
        ({"host": "127.0.0.1.evil.example"}, "http", 421),
        ({"host": ""}, "http", 421),
        ({}, "http", 421),
        ({"host": "localhost", "origin": "http://localhost"}, "http", 0),
        ({"host": "localhost", "origin": "http://localhost:80"}, "http", 403),
        ({"host": "localhost", "origin": "null"}, "http", 403),
        ({"host": "localhost", "origin": "http://["}, "http", 403),
        ({"host": "localhost", "origin": "http://localhost.evil.example"}, "http", 403),
        ({"host": "localhost", "sec_fetch_site": "same-site"}, "http", 403),
        ({"host": "localhost", "sec_fetch_site": "none"}, "http", 0),
        ({"host": "localhost", "authorization": "Bearer t"}, "http", 0),
        ({"host": "localhost", "authorization": "Basic dDp0"}, "http", 400),
        ({"host": "localhost", "authorization": "Bearer "}, "http", 400),
    ],
)
def test_who_passes(headers, scheme, status):
    guard = Guard()
    gate = gate_of(guard)
    if not status:
        gate.admit(request(scheme=scheme, **headers), READ, "orders")
        assert guard.turned_away == []
        return
    with pytest.raises(HttpRefusal) as refused:
        gate.admit(request(scheme=scheme, **headers), READ, "orders")
    assert refused.value.status == status
    # Nobody was asked who that is, and it is noted.
    assert (guard.asked, guard.turned_away) == ([], [("127.0.0.1", str(refused.value))])


class Guard:
    """Lets everybody in and notes what was asked."""

    is_guarded = True

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.turned_away: list[tuple[str, str]] = []

    def turn_away(self, address: str, reason: str) -> None:
        self.turned_away.append((address, reason))

    def admit(self, token: str, certificate: str, address: str) -> Visitor:
        self.asked.append((token, certificate, address))
        guard = self

        class Noted(type(PASSER)):  # type: ignore[misc]
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
    gate = gate_of(guard)
    gate.admit(request(peer=peer, authorization="bearer abc", **OWN), row, "orders" if row.is_named else "")
    if not row.action:
        assert (row.is_open, guard.asked) == (True, [])
        return
    assert row.action in set(Action)
    assert guard.asked[0] == ("abc", "alice", "127.0.0.1")
    assert guard.asked[1:] == [
        (row.action, "orders") if row.is_named else (row.action, "") if row.is_open else (row.action,)
    ]


@pytest.mark.parametrize("row", [row for row in ROUTES if row.is_open], ids=lambda row: row.path)
def test_only_probes_are_for_pages_of_other_sites(row: Row):
    class Nobody(Guard):
        is_guarded = False

    guard = Nobody()
    assert gate_of(guard).admit(request(**OWN), row, "") is PASSER
    for headers in ({"host": "evil.example"}, {**OWN, "origin": "http://evil.example"}):
        if not row.action:
            assert gate_of(guard).admit(request(**headers), row, "") is PASSER
            continue
        with pytest.raises(HttpRefusal):
            gate_of(guard).admit(request(**headers), row, "")
    # Where somebody has to be known, it is the token that counts: whoever gathers metrics asks by any name.
    gate_of(Guard()).admit(request(host="box.example", authorization="bearer abc"), row, "")


def test_what_the_guard_refuses_is_refused():
    class Closed(Guard):
        def admit(self, token: str, certificate: str, address: str) -> Visitor:
            raise Unauthenticated("nobody")

    for row in ROUTES:
        if row.action:
            with pytest.raises(Unauthenticated, match="nobody") as refused:
                gate_of(Closed()).admit(request(**OWN), row, "orders")
            response = answer(refused.value)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        else:
            assert gate_of(Closed()).admit(request(), row, "") is PASSER


def test_of_many_who_connect_at_once_some_are_told_to_come_back():
    clock = SimulatedClock()
    gate = Gate(Guard(), Turnstile(50, clock))
    herd = [request(**OWN) for _ in range(300)]
    waits = []
    for each in herd:
        try:
            gate.admit(each, READ, "orders")
        except QuotaExceeded as refused:
            waits.append(refused.retry_after)
    assert len(waits) == 200
    # Who is in stays in, and whoever looks whether the server lives is not counted.
    gate.admit(herd[0], READ, "orders")
    probe = next(row for row in ROUTES if row.is_open and not row.action)
    assert gate.admit(request(**OWN), probe, "") is PASSER
    # Each comes back when it was told to, on the same connection.
    for each, wait in zip(herd[100:], waits, strict=True):
        clock.advance(max(0.0, wait - clock.monotonic()) + 0.0001)
        gate.admit(each, READ, "orders")
    assert clock.monotonic() < 6


def test_a_quota_says_how_long_to_wait():
    response = answer(QuotaExceeded("slow down", retry_after=2.2))
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
