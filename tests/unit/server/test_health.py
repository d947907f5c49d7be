"""What the HTTP listener says about a server."""

import asyncio
import json
from typing import Any, cast

import pytest

from mainstem.core.kinds import Address
from mainstem.server.health import HttpListener
from mainstem.server.sockets import bind


@pytest.mark.parametrize(
    ("is_ready", "is_disk_full", "damage", "code", "body"),
    [
        (True, False, "", 200, {"status": "ready"}),
        (False, False, "", 503, {"status": "stopping"}),
        # Out of service it could neither be read nor be trimmed.
        (True, True, "", 200, {"status": "ready", "disk": "full"}),
        (True, False, "ledger.db is\ndamaged", 503, {"status": "damaged", "reason": r"ledger.db is\ndamaged"}),
    ],
)
def test_whether_a_server_is_ready(is_ready, is_disk_full, damage, code, body):
    [bound] = bind(Address("127.0.0.1", 0))
    with bound:
        listener = HttpListener([bound], lambda: is_ready, lambda: "", lambda: is_disk_full, lambda: damage)
        response = asyncio.run(listener._readyz(cast("Any", None)))
    assert (response.status_code, json.loads(bytes(response.body))) == (code, body)
