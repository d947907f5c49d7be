"""`mainstem bench`: a quick self-check of speed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from mainstem.cli import hubs
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Data, Json
from mainstem.core.settings import DEFAULT, Loaded

if TYPE_CHECKING:
    from mainstem.hub.hub import Hub


@with_settings("bench")
def bench(
    loaded: Loaded,
    seconds: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="How long to write.")] = 2.0,
    size: Annotated[int, typer.Option(metavar="BYTES", min=1, max=1_000_000, help="The size of a record.")] = 100,
    data: Data = None,
    json: Json = False,
) -> None:
    """Measure writing and reading for a few seconds.

    It uses the server given, or a temporary one, writes to a stream of its own and deletes it afterwards. Says whether
    a log is about as fast as it should be on this machine; for a comparison with other systems there is `make bench`.
    """
    import dataclasses

    from mainstem.cli.printing import print_json, print_table
    from mainstem.demo.speed import measure

    with _hub(loaded, data) as (hub, where):
        found = measure(hub, seconds=seconds, record_bytes=size, on_step=_say)
    if json:
        print_json({"where": where, **dataclasses.asdict(found)})
        return
    rows = [
        ("write, acknowledged and durable", f"{found.write_per_second:,.0f}", "records/s"),
        ("read back as batches", f"{found.read_batches_per_second:,.0f}", "records/s"),
        ("read back record by record", f"{found.read_records_per_second:,.0f}", "records/s"),
        ("one at a time, until durable, p50", f"{found.one_at_a_time_p50_ms:.2f}", "ms"),
        ("one at a time, until durable, p99", f"{found.one_at_a_time_p99_ms:.2f}", "ms"),
    ]
    print_table(("what", "measured", "unit"), rows, right=("measured",))
    print(
        f"\n{found.records:,} records of {size} bytes, one producer and one consumer in one process, {where}.\n"
        "The rates are of this machine, this disk and this moment: compare them with an earlier run here."
    )


def _say(step: str) -> None:
    if sys.stderr.isatty():
        print(f"{step} ...", file=sys.stderr)


@contextmanager
def _hub(loaded: Loaded, data: str | None) -> "Iterator[tuple[Hub, str]]":
    if data is not None or loaded.origins["url"] != DEFAULT:
        with hubs.writing(loaded, data, create=True) as hub:
            yield hub, f"folder {data}" if data is not None else loaded.settings.url
        return
    with _temporary_server() as url, hubs.connected(url) as hub:
        yield hub, "a temporary server"


@contextmanager
def _temporary_server() -> Iterator[str]:
    import tempfile
    from pathlib import Path

    from mainstem.demo.server_process import DemoServer

    with tempfile.TemporaryDirectory(prefix="mainstem-bench-") as folder:
        flags = {"data": f"{folder}/data", "listen": "127.0.0.1:0", "http": "off"}
        server = DemoServer(flags, Path(folder) / "server.log")
        server.start()
        try:
            yield server.url
        finally:
            server.stop()
