"""Our own side: the server as a user starts it, and the few calls of the public API that several scenarios share."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.child import Talk
from benchmarks.harness import BenchmarkError, Process, check, run_child
from benchmarks.payload import Receipt

STREAM = "bench"
READY_TIMEOUT_S = 30.0


def available() -> str | None:
    """None, or why our own side cannot run here."""
    return None if importlib.util.find_spec("mainstem") else "mainstem is not installed: pip install -e ."


def command() -> list[str]:
    """The program as a user starts it."""
    script = shutil.which("mainstem", path=str(Path(sys.executable).parent))
    return [script] if script else [sys.executable, "-m", "mainstem"]


class Server(Process):
    """``mainstem serve`` on a folder, on a free port. Use it in a ``with`` block.

    `change` is Python code that the process runs first, to leave out what is to be measured; `more` are settings.
    """

    def __init__(self, folder: Path, change: str = "", *, more: Sequence[str] = (), http: bool = False) -> None:
        served = "127.0.0.1:0" if http else "off"
        options = [*more, "--data", str(folder / "data"), "--listen", "127.0.0.1:0", "--http", served, "--kafka", "off"]
        changed = [sys.executable, "-c", f"{change}\nfrom mainstem.cli import main\nmain()"]
        super().__init__([*(changed if change else command()), "serve", *options])
        word, _, rest = self.line(READY_TIMEOUT_S).partition(" ")
        self.ready_s = time.perf_counter() - self.started_at
        if word != "ready":
            self.stop()
            raise BenchmarkError(f"mainstem serve said {word!r} instead of ready{self.errors()}")
        addresses = json.loads(rest)
        scheme = "mainstems" if "--tls-cert" in more else "mainstem"
        self.url = f"{scheme}://{addresses['data']}"
        self.http: str = addresses.get("http", "")


def create_stream(url: str, *, name: str = STREAM, shards: int = 1) -> None:
    """Create a stream, from a process of its own, so that the harness itself never imports the product."""
    run_child("benchmarks.product:create", url=url, name=name, shards=shards)


def create(talk: Talk, url: str, name: str, shards: int) -> None:
    import mainstem

    with mainstem.connect(url) as hub:
        hub.streams.create(name, shards=shards)


def fill(talk: Talk, url: str, count: int, size: int) -> None:
    """Write ``count`` messages, as fast as it goes, for somebody else to read."""
    import mainstem
    from benchmarks.payload import messages

    with mainstem.connect(url) as hub, hub.producer() as producer:
        for value in messages(count, size):
            producer.send(STREAM, value)
        producer.flush()


def verify_stream(url: str, count: int, size: int) -> None:
    """Read the whole stream back in a process of its own and prove that it is what one producer sent."""
    run_child("benchmarks.product:verify", url=url, count=count, size=size)


def verify(talk: Talk, url: str, count: int, size: int) -> None:
    import mainstem

    receipt = Receipt(size)
    with mainstem.connect(url) as hub, hub.consumer(STREAM, start="earliest", follow=False) as consumer:
        for batch in consumer.batches():
            add_batch(receipt, batch)
    receipt.verify(count)


def add_batch(receipt: Receipt, batch: Any) -> None:
    table = batch.to_arrow()
    check(table.num_rows == batch.count, f"a batch says it holds {batch.count} records and holds {table.num_rows}")
    receipt.add_arrow(batch.shard, table.column("value"))
