"""Which requests pass the gate."""

import pytest
from starlette.requests import Request

from mainstem.server.http.gate import Gate, LoopbackAccess
from mainstem.server.http.problems import HttpRefusal


def request(client: str = "127.0.0.1", **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    scope = {"type": "http", "method": "GET", "path": "/", "scheme": "http", "query_string": b"", "headers": raw}
    return Request({**scope, "client": (client, 1), "server": ("127.0.0.1", 7071)})


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
    ],
)
def test_who_passes(headers, client, status):
    gate = Gate(LoopbackAccess(), ["box.example"])
    if not status:
        assert gate.admit(request(client, **headers), "read", "orders").name == "loopback"
        return
    with pytest.raises(HttpRefusal) as refused:
        gate.admit(request(client, **headers), "read", "orders")
    assert refused.value.status == status
