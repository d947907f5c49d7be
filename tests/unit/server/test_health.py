"""What the HTTP listener says about a server."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mainstem.server.http.probes import Probes


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
    state = SimpleNamespace(is_ready=is_ready, is_disk_full=is_disk_full, damage=damage)
    probes = Probes(state, lambda: "")
    response = asyncio.run(probes.readyz(cast("Any", None), cast("Any", None), ""))
    probes.close()
    assert (response.status_code, json.loads(bytes(response.body))) == (code, body)
