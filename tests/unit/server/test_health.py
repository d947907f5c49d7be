"""What the HTTP listener says about a server."""

import asyncio
import json
from typing import Any, cast

import pytest

from mainstem.core.kinds import Address
from mainstem.server.health import HttpListener


@pytest.mark.parametrize(
    ("is_ready", "is_disk_full", "code", "body"),
    [
        (True, False, 200, {"status": "ready"}),
        (False, False, 503, {"status": "stopping"}),
        # Out of service it could neither be read nor be trimmed.
        (True, True, 200, {"status": "ready", "disk": "full"}),
    ],
)
def test_a_server_with_a_full_disk_is_ready_and_says_so(is_ready, is_disk_full, code, body):
    listener = HttpListener(Address("127.0.0.1", 0), lambda: is_ready, lambda: "", lambda: is_disk_full)
    try:
        response = asyncio.run(listener._readyz(cast("Any", None)))
    finally:
        listener._socket.close()
    assert (response.status_code, json.loads(bytes(response.body))) == (code, body)
