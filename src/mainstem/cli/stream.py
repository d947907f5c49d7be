"""`mainstem stream`: create, list, show, alter, trim and delete streams, erase keys."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.cli import hubs
from mainstem.cli.columns import column_names
from mainstem.cli.exits import UsageProblem
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Data, Json
from mainstem.cli.printing import counted, print_json, print_table, time_text
from mainstem.cli.schema_file import CompatibilityOption, load
from mainstem.cli.times import parse_time
from mainstem.core.errors import UnknownStream
from mainstem.core.kinds import parse_bytes, render_duration
from mainstem.core.names import check_stream_name
from mainstem.core.plain import size_text
from mainstem.core.settings import Loaded

if TYPE_CHECKING:
    from mainstem.hub.hub import Hub
    from mainstem.transport.port import StreamInfo

# How long a command waits for a record that is there.
_LOOK_SECONDS = 5.0
_COLUMNS_SHOWN = 8

app = typer.Typer(help="Create, list, show, alter, trim and delete streams; erase keys.", rich_markup_mode=None)

RetentionBytes = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="How large the stream may get, as in 10GB; 0 for no limit."),
]
CleanupOption = Annotated[
    str | None,
    typer.Option(
        metavar="delete|compact|compact,delete",
        help="What goes: old records (delete), all but the newest record of every key (compact), or both.",
    ),
]
Tombstones = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="How long compaction keeps a record without a value, as in 24h."),
]
Name = Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name.")]


@app.command()
@with_settings("stream")
def create(
    loaded: Loaded,
    name: Name,
    shards: Annotated[
        int | None, typer.Option(metavar="COUNT", help="How many ordered parts it has; 1 if left out.")
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The columns of its rows: names and types as JSON, or an Avro record; -: standard input.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="NAME,...", help="The columns that are a row's key.")] = None,
    index: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Columns by whose values rows are to be found fast.")
    ] = None,
    compatibility: CompatibilityOption = None,
    retention: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How long records can be read, as in 7d; the server's default if left out."
        ),
    ] = None,
    retention_bytes: RetentionBytes = None,
    cleanup: CleanupOption = None,
    tombstones: Tombstones = None,
    hash: Annotated[  # noqa: A002
        str | None, typer.Option(metavar="crc32|murmur2", help="How keys choose a shard; crc32 if left out.")
    ] = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Take a stream of this name, if it has what is said here.")
    ] = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """Create a stream: of bytes, or of rows with a schema."""
    check_stream_name(name, reserved=True)
    columns = None if schema is None else load(schema)
    with hubs.writing(loaded, data, create=True) as hub:
        info = hub.streams.create(
            name,
            shards=shards,
            schema=columns,
            key=column_names("--key", key),
            index=column_names("--index", index),
            compatibility=compatibility,  # type: ignore[arg-type]  # the log says which there are
            retention=retention,
            retention_bytes=_size(retention_bytes),
            cleanup=cleanup,  # type: ignore[arg-type]  # as above
            tombstones=tombstones,
            hash=hash,
            exist_ok=exist_ok,
        )
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
            render_duration(info.retention_us / 1_000_000) if "delete" in info.cleanup else "compacted",
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
    """Show one stream with the offsets of its shards, and up to when an audit found everything where it belongs."""
    with existing(name), hubs.reading(loaded, data) as hub:
        info = hub.streams.get(name)
    if json:
        through = None if info.verified_through_us is None else time_text(info.verified_through_us)
        print_json(_described(info) | {"verified_through": through})
        return
    _print_stream(info, json)
    if info.verified_through_us is not None:
        behind = f"; windows after that which differ: {info.windows_differing}" if info.windows_differing else ""
        print(f"verified through {time_text(info.verified_through_us)}{behind}")


@app.command()
@with_settings("stream")
def alter(
    loaded: Loaded,
    name: Name,
    retention: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long records can be read, as in 7d.")
    ] = None,
    retention_bytes: RetentionBytes = None,
    cleanup: CleanupOption = None,
    tombstones: Tombstones = None,
    shards: Annotated[int | None, typer.Option(metavar="COUNT", help="More ordered parts than it has.")] = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """Change how long the records of a stream can be read, and which, and how many shards it has.

    With more shards most keys belong to another one from then on; consumers get what was written before the change
    first, so the records of a key stay in their order. There is no way back to fewer. A compacted stream keeps its
    shards, and one that got more cannot be compacted.
    """
    if shards is None and retention is retention_bytes is cleanup is tombstones is None:
        what = "--retention, --retention-bytes, --cleanup, --tombstones or --shards"
        raise UsageProblem(f"nothing to change: give {what}")
    with existing(name), hubs.writing(loaded, data) as hub:
        hub.streams.alter(
            name,
            retention=retention,
            retention_bytes=_size(retention_bytes),
            cleanup=cleanup,  # type: ignore[arg-type]  # as above
            tombstones=tombstones,
            shards=shards,
        )
        info = hub.streams.get(name)
        if cleanup is not None and "compact" in info.cleanup and _begins_without_keys(hub, info):
            print(
                f"the first records of {name} have no key: compaction never takes such away, and from now on they are "
                "refused; with --cleanup compact,delete they go by age",
                file=sys.stderr,
            )
    _print_stream(info, json)


def _begins_without_keys(hub: "Hub", info: "StreamInfo") -> bool:
    """Whether a record of the first batch that can be read has no key. All of them would take too long to look at."""
    if not info.records:
        return False
    with hub.consumer(info.name, start="earliest", follow=False, on_bad="keep") as consumer:
        batch = consumer.poll_batch(timeout=_LOOK_SECONDS)
    return batch is not None and any(record.key is None for record in batch.records())


@app.command()
@with_settings("stream")
def trim(
    loaded: Loaded,
    name: Name,
    before: Annotated[
        str | None, typer.Option(metavar="TIME", help="A time (2026-01-31T12:00:00Z), or how long ago (15m).")
    ] = None,
    offset: Annotated[int | None, typer.Option(metavar="OFFSET", help="The first offset to keep.")] = None,
    shard: Annotated[int | None, typer.Option(metavar="SHARD", help="Only of this shard; else of all.")] = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """Let go of the records before a time, or below an offset. There is no way back.

    Nobody can read them any more from now on; stream show says until when their bytes are on disk.
    """
    if (before is None) == (offset is None):
        raise UsageProblem("say what to trim: --before TIME or --offset OFFSET, one of them")
    time = None if before is None else parse_time("--before", before)
    with existing(name), hubs.writing(loaded, data) as hub:
        hub.streams.trim(name, before=time, offset=offset, shard=shard)
        info = hub.streams.get(name)
    _print_stream(info, json)


@app.command()
@with_settings("stream")
def erase(
    loaded: Loaded,
    name: Name,
    key: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY...",
            help="The key, as text; all of its records go. Of a key of several columns, their values one after "
            "another.",
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """Take away every record of one key. There is no way back.

    When the command ends, nobody can read them any more. It says how many there were, and when their last bytes are
    off the disk. Copies elsewhere, such as backups, are not touched.
    """
    with existing(name), hubs.writing(loaded, data) as hub:
        if not yes:
            _confirm(f"Erase all records of key {', '.join(map(repr, key))} of {name}", f"erasing a key of {name!r}")
        # The bytes as they stand on the command line: a key need not be text. A number is written as its text.
        parts = tuple(map(os.fsencode, key))
        erased = hub.streams.erase(name, parts[0] if len(parts) == 1 else parts)
    if json:
        gone_by = time_text(erased.gone_by_us) if erased.gone_by_us else None
        print_json({"stream": name, "records": erased.records, "gone_by": gone_by})
        return
    print(f"erased {counted(erased.records, 'record')} of {name}")
    if erased.gone_by_us:
        print(f"their last bytes are off the disk by {_minute(erased.gone_by_us)}, if the log stays open until then")


@app.command()
@with_settings("stream")
def delete(
    loaded: Loaded,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data: Data = None,
) -> None:
    """Delete a stream with all its records. There is no way back.

    Nobody can read the records any more, and the name is free. The disk space they take comes back in the background,
    at the latest a day later.
    """
    with existing(name), hubs.writing(loaded, data) as hub:
        info = hub.streams.get(name)
        if not yes:
            _confirm(f"Delete {name} with its {counted(info.records, 'record')}", f"deleting {name!r}")
        hub.streams.delete(name)
    print(f"deleted {name} and its {counted(info.records, 'record')}")


@contextmanager
def existing(name: str) -> Iterator[None]:
    """For commands about a stream that is there: one that is missing is misspelt, not to be created."""
    check_stream_name(name, reserved=True)
    try:
        yield
    except UnknownStream as error:
        missing = UnknownStream(f"there is no stream {name!r}; mainstem stream list shows what there is")
        missing.__notes__ = getattr(error, "__notes__", [])
        raise missing from None


def _confirm(question: str, deed: str) -> None:
    if not sys.stdin.isatty():
        raise UsageProblem(f"{deed} cannot be undone; say --yes if nobody is there to be asked")
    # Not typer.confirm: it makes a "no" of Ctrl-C.
    print(f"{question}? [y/N]: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort


def _described(info: "StreamInfo") -> dict[str, Any]:
    return {
        "name": info.name,
        "uuid": info.uuid,
        "shards": info.shards,
        "hash": info.hash,
        "generation": info.generation,
        "schema_version": info.schema_version,
        "key": list(info.key),
        "index": list(info.index),
        "compatibility": info.compatibility if info.schema_id else None,
        "retention": render_duration(info.retention_us / 1_000_000),
        "retention_bytes": info.retention_bytes,
        "cleanup": info.cleanup,
        "tombstones": render_duration(info.tombstone_us / 1_000_000),
        "created": time_text(info.created_us),
        "records": info.records,
        "bytes": info.bytes,
        "statistics_bytes": info.statistics_bytes,
        "waiting_bytes": info.waiting_bytes,
        "gone_by": time_text(info.gone_by_us) if info.gone_by_us else None,
        "starts": list(info.starts),
        "ends": list(info.ends),
    }


def _print_stream(info: "StreamInfo", json: bool) -> None:
    if json:
        print_json(_described(info))
        return
    records = counted(info.records, "record")
    print(f"{info.name}: {records}, {size_text(info.bytes)}, {_kept(info)}, keys placed by {info.hash}")
    if info.schema_bytes:
        print(_schema_line(info))
    if info.statistics_bytes:
        print(f"{size_text(info.statistics_bytes)} of it are statistics and filters, so that less has to be read")
    if info.waiting_bytes:
        print(
            f"{size_text(info.waiting_bytes)} more are on the disk until {_minute(info.gone_by_us)} at the latest: old "
            "copies of records that were merged or rewritten since, and what was trimmed"
        )
    rows = [
        (str(shard), f"{start:,}", f"{end:,}", f"{records:,}")
        for shard, (start, end, records) in enumerate(zip(info.starts, info.ends, info.shard_records, strict=True))
    ]
    print_table(("shard", "start", "end", "records"), rows, right=("shard", "start", "end", "records"))


def _schema_line(info: "StreamInfo") -> str:
    from mainstem.core.schema import Schema

    names = Schema.parse(info.schema_bytes).names
    shown = ", ".join(names[:_COLUMNS_SHOWN])
    more = f" and {len(names) - _COLUMNS_SHOWN} more" if len(names) > _COLUMNS_SHOWN else ""
    parts = [f"rows of {shown}{more} (version {info.schema_version}, {info.compatibility})"]
    parts += [f"key {', '.join(info.key)}"] if info.key else []
    parts += [f"index {', '.join(info.index)}"] if info.index else []
    return "; ".join(parts)


def _kept(info: "StreamInfo") -> str:
    """For how long records can be read, and which."""
    parts = []
    if "compact" in info.cleanup:
        parts.append("the newest record of every key")
    if "delete" in info.cleanup:
        parts.append(f"kept for {render_duration(info.retention_us / 1_000_000)}")
        if info.retention_bytes:
            parts.append(f"up to {size_text(info.retention_bytes)}")
    return ", ".join(parts)


def _minute(time_us: int) -> str:
    """A time as people read it, in UTC."""
    return time_text(time_us)[:16].replace("T", " ") + " UTC"


def _size(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise UsageProblem(f"--retention-bytes {text}: {error}; use a size like 10GB") from None
