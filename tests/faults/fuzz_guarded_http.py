"""Mutated and hostile requests to HTTP of a server that asks who everybody is: before a client is known, and after.

Half of the requests have no token, or a wrong one; the others are somebody's who may next to nothing. The server
answers every one of them, in bounded memory; a healthy client is served on; and of what they asked for nothing has
happened. One in eight comes by TLS, to the same data in the next life of the server.
"""

import http.client
import json
import random
from pathlib import Path

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults.fuzz_guarded import rights
from tests.faults.fuzz_http import CONNECTIONS_AT_ONCE, TLS_EVERY, Healthy, judge, secured, throw
from tests.faults.trials import Trials
from tests.fuzz.http_fuzz import SCHEMA, HttpFuzz


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is one request."""
    result = Trials()
    rng = random.Random(f"guarded http {seed}")
    try:
        with mainstem.open(folder / "guarded") as hub:
            root = hub.access.create_token("root", admin=True)
            guest = hub.access.create_token("guest", allow=["describe:fuzzed"])
            hub.streams.create("typed", schema=json.dumps(SCHEMA))
            for name in ("fuzzed", "healthy"):
                hub.streams.create(name)
        wrong = f"mst_{guest.secret.split('_')[1]}_{'0' * 64}"
        known = HttpFuzz(seed, guest.secret)
        clients = [HttpFuzz(seed), HttpFuzz(seed, wrong), known, known]
        tls, settings = secured(folder / "authority")
        for context, ca, more, until in (
            (None, None, [], trials - trials // TLS_EVERY),
            (tls, folder / "authority" / "ca.crt", settings, trials),
        ):
            with ServerProcess(folder / "guarded", "--http", "127.0.0.1:0", *more) as server:
                with mainstem.connect(server.url, token=root.secret, ca=ca) as hub:
                    kept, before = [*rights(hub), *_ends(hub)], server.memory_bytes()
                    healthy = Healthy(server.http, root.secret, context)
                    while result.trials < until and server.is_running and len(result.findings) <= 5:
                        requests = [rng.choice(clients).request() for _ in range(CONNECTIONS_AT_ONCE)]
                        throw(server.http, requests, result, context)
                    healthy.stop(result)
                    found = [*rights(hub), *_ends(hub)]
                    if found != kept:
                        result.add_finding(f"seed {seed}: somebody who may not has changed {kept} to {found}")
                judge(seed, server, before, result)
    except (ServerFailed, MainstemError, OSError, http.client.HTTPException) as error:
        result.add_finding(f"seed {seed}: after {result.trials} requests: {type(error).__name__}: {error}")
    return result


def _ends(hub: mainstem.Hub) -> list[str]:
    """What is in the streams that nobody may write."""
    return [f"{name} {hub.streams.get(name).ends}" for name in ("fuzzed", "typed")]
