"""`mainstem stream`: create, list, show, alter and delete streams."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.cli import hubs
from mainstem.cli.exits import UsageProblem
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Data, Json
from mainstem.cli.printing import counted, print_json, print_table, size_text, time_text
from mainstem.core.errors import UnknownStream
from mainstem.core.kinds import render_duration
from mainstem.core.names import check_stream_name
from mainstem.core.settings import Loaded

if TYPE_CHECKING:
    from mainstem.transport.port import StreamInfo

app = typer.Typer(help="Create, list, show, alter and delete streams.", rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name.")]


@app.command()
@with_settings("stream")
def create(
    loaded: Loaded,
    name: Name,
    shards: Annotated[int, typer.Option(metavar="COUNT", help="How many ordered parts it has.")] = 1,
    retention: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How long records can be read, as in 7d; the server's default if left out."
        ),
    ] = None,
    hash: Annotated[str, typer.Option(metavar="crc32|murmur2", help="How keys choose a shard.")] = "crc32",  # noqa: A002
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Take a stream of this name as it is.")] = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """Create a stream."""
    check_stream_name(name, reserved=True)
    with hubs.writing(loaded, data, create=True) as hub:
        info = hub.streams.create(name, shards=shards, retention=retention, hash=hash, exist_ok=exist_ok)
    _print_stream(info, json)


@app.command("list")
@with_settings("stream")
def list_(loaded: Loaded, data: Data = None, json: Json = False) -> None:
    """List all streams by name."""
    with hubs.reading(loaded, data) as hub:
        found = hub.streams.list()
    if json:
        print_json([_described(info) for info in found])
        return
    names = ("stream", "shards", "records", "size", "kept for", "created")
    rows = [
        (
            info.name,
            str(info.shards),
            f"{info.records:,}",
            size_text(info.bytes),
            render_duration(info.retention_us / 1_000_000),
            time_text(info.created_us)[:19].replace("T", " "),
        )
        for info in found
    ]
    print_table(names, rows, right=("shards", "records", "size", "kept for"))
    if not found:
        print("no streams yet; create one: mainstem stream create NAME", file=sys.stderr)


@app.command()
@with_settings("stream")
def show(loaded: Loaded, name: Name, data: Data = None, json: Json = False) -> None:
    """Show one stream with the offsets of its shards."""
    with _existing(name), hubs.reading(loaded, data) as hub:
        info = hub.streams.get(name)
    _print_stream(info, json)


@app.command()
@with_settings("stream")
def alter(
    loaded: Loaded,
    name: Name,
    retention: Annotated[str, typer.Option(metavar="DURATION", help="How long records can be read, as in 7d.")],
    data: Data = None,
    json: Json = False,
) -> None:
    """Change how long the records of a stream can be read."""
    with _existing(name), hubs.writing(loaded, data) as hub:
        info = hub.streams.alter(name, retention=retention)
    _print_stream(info, json)


@app.command()
@with_settings("stream")
def delete(
    loaded: Loaded,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data: Data = None,
) -> None:
    """Delete a stream with all its records. There is no way back.

    Nobody can read the records any more, and the name is free. The disk space they take is not given back by this
    version.
    """
    with _existing(name), hubs.writing(loaded, data) as hub:
        info = hub.streams.get(name)
        if not yes:
            _ask(info)
        hub.streams.delete(name)
    print(f"deleted {name} and its {counted(info.records, 'record')}")


@contextmanager
def _existing(name: str) -> Iterator[None]:
    """For commands about a stream that is there: one that is missing is misspelt, not to be created."""
    check_stream_name(name, reserved=True)
    try:
        yield
    except UnknownStream as error:
        missing = UnknownStream(f"there is no stream {name!r}; mainstem stream list shows what there is")
        missing.__notes__ = getattr(error, "__notes__", [])
        raise missing from None


def _ask(info: "StreamInfo") -> None:
    if not sys.stdin.isatty():
        raise UsageProblem(f"deleting {info.name!r} cannot be undone; say --yes if nobody is there to be asked")
    # Not typer.confirm: it makes a "no" of Ctrl-C.
    print(
        f"Delete {info.name} with its {counted(info.records, 'record')}? [y/N]: ", end="", file=sys.stderr, flush=True
    )
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort


def _described(info: "StreamInfo") -> dict[str, Any]:
    return {
        "name": info.name,
        "uuid": info.uuid,
        "shards": info.shards,
        "hash": info.hash,
        "generation": info.generation,
        "retention": render_duration(info.retention_us / 1_000_000),
        "created": time_text(info.created_us),
        "records": info.records,
        "bytes": info.bytes,
        "starts": list(info.starts),
        "ends": list(info.ends),
    }


def _print_stream(info: "StreamInfo", json: bool) -> None:
    if json:
        print_json(_described(info))
        return
    kept = render_duration(info.retention_us / 1_000_000)
    print(
        f"{info.name}: {counted(info.records, 'record')}, {size_text(info.bytes)}, kept for {kept}, "
        f"keys placed by {info.hash}"
    )
    rows = [
        (str(shard), f"{start:,}", f"{end:,}", f"{end - start:,}")
        for shard, (start, end) in enumerate(zip(info.starts, info.ends, strict=True))
    ]
    print_table(("shard", "start", "end", "records"), rows, right=("shard", "start", "end", "records"))
