"""Mutated and well-formed messages to a server that asks who everybody is: before a client is known, and after.

Half of the connections never say who they are, or say it wrongly; the others are somebody's who may next to nothing.
All of them ask for everything that only an administrator may. The server stays up, in bounded memory; a healthy client
is served on; and of what they asked for nothing has happened.
"""

import contextlib
import random
from pathlib import Path

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.hub.hub import Hub
from mainstem.testing.server import ServerFailed, ServerProcess
from mainstem.transport.wire import VERSION, Hello, Kind, pack
from tests.faults.fuzz_server import (
    CONNECTIONS_AT_ONCE,
    GROWTH_BYTES_MAX,
    MESSAGES_PER_CONNECTION_MAX,
    Connection,
    Healthy,
    stop,
)
from tests.faults.trials import Trials
from tests.fuzz.wire_fuzz import Mixed, guarding_messages, messages


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is one message."""
    result = Trials()
    try:
        with mainstem.open(folder / "guarded") as hub:
            root = hub.access.create_token("root", admin=True)
            guest = hub.access.create_token("guest", allow=["describe:fuzzed"])
            hub.streams.create("healthy", shards=2)
            hub.streams.create("fuzzed", shards=2)
        with ServerProcess(folder / "guarded", "--connects-per-second", "1000000") as server:
            with mainstem.connect(server.url, token=root.secret) as hub:
                kept, before = rights(hub), server.memory_bytes()
                healthy = Healthy(hub)
                _throw(seed, trials, server, guest.secret, result)
                healthy.stop()
                growth = server.memory_bytes() - before
                healthy.judge(result)
                if rights(hub) != kept:
                    result.add_finding(f"seed {seed}: somebody who may not has changed {kept} to {rights(hub)}")
            if growth > GROWTH_BYTES_MAX:
                result.add_finding(f"seed {seed}: the server's memory grew by {growth >> 20} MiB")
            stop(server, f"seed {seed}", result)
    except (ServerFailed, MainstemError) as error:
        result.add_finding(f"seed {seed}: {type(error).__name__}: {error}")
    return result


def rights(hub: Hub) -> list[str]:
    """Everything that only an administrator may change."""
    access = hub.access
    return [
        *(f"{token.id} {token.principal} {token.revoked_us}" for token in access.tokens()),
        *(rule.text for rule in access.rules()),
        *map(str, access.quotas()),
        *(f"{stream.name} {stream.shards} {stream.starts}" for stream in hub.streams.list() if stream.name[0] != "_"),
        *(group.name for group in hub.groups.list()),
    ]


def _throw(seed: int, trials: int, server: ServerProcess, token: str, result: Trials) -> None:
    rng, source = random.Random(f"fuzz guarded {seed}"), Mixed(seed, guarding_messages(), messages())
    wrong = f"mst_{token.split('_')[1]}_{'0' * 64}"
    hellos = [
        b"",
        *(b"".join(pack(Kind.HELLO, 1, Hello(1, VERSION, "fuzz", said))) for said in ("", wrong, "mst_", token)),
    ]
    while result.trials < trials and server.is_running and len(result.findings) <= 5:
        with contextlib.ExitStack() as stack:
            try:
                connections = [
                    stack.enter_context(
                        Connection(server.address, source, hellos[-1] if number % 2 else rng.choice(hellos[:-1]))
                    )
                    for number in range(CONNECTIONS_AT_ONCE)
                ]
            except OSError as error:
                result.add_finding(f"after {result.trials} messages: cannot connect: {error}")
                return
            for connection in connections:
                connection.greet()
            for _ in range(rng.randint(1, MESSAGES_PER_CONNECTION_MAX)):
                for connection in connections:
                    connection.throw()
                    result.trials += 1
            for connection in connections:
                if wrong_end := connection.end():
                    result.add_finding(f"after {result.trials} messages: {wrong_end}"[:2_000])
