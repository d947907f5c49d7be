"""`mainstem schema`: show the schema of a stream, check what may come next, and set it."""

import json as json_module
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.cli import hubs
from mainstem.cli.exits import ExitCode, UsageProblem
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Data
from mainstem.cli.printing import print_json, time_text
from mainstem.cli.schema_file import CompatibilityOption, load
from mainstem.cli.stream import Name, existing
from mainstem.core.errors import IncompatibleSchema, UnknownStream
from mainstem.core.settings import Loaded

if TYPE_CHECKING:
    from mainstem.core.schema import Schema
    from mainstem.transport.port import StreamInfo

app = typer.Typer(help="Show, check and set the schemas of streams.", rich_markup_mode=None)

_OUTPUTS = ("json", "avro", "arrow-text")

SchemaFile = Annotated[
    str,
    typer.Argument(metavar="FILE", help="Columns and types as JSON, or an Avro record; - is standard input."),
]


@app.command()
@with_settings("schema")
def show(
    loaded: Loaded,
    name: Name,
    version: Annotated[int | None, typer.Option(metavar="NUMBER", min=1, help="Not the newest, but this one.")] = None,
    output: Annotated[
        str, typer.Option(metavar="|".join(_OUTPUTS), help="json: as `schema set` takes it; avro: a record schema.")
    ] = "json",
    data: Data = None,
) -> None:
    """Show the schema of a stream. Which version it is, of how many, stands on standard error."""
    if output not in _OUTPUTS:
        raise UsageProblem(f"--output {output}: use one of {', '.join(_OUTPUTS)}")
    with existing(name), hubs.reading(loaded, data) as hub:
        versions = hub.streams.schemas(name)
    if not versions:
        raise UnknownStream(f"stream {name!r} has no schema; give it one: mainstem schema set {name} FILE")
    found = next((each for each in versions if each.version == version), None) if version else versions[-1]
    if found is None:
        raise UnknownStream(f"stream {name!r} has versions 1 to {versions[-1].version} of its schema, and no {version}")
    _print(found.schema, name, output)
    print(f"version {found.version} of {versions[-1].version}, set {time_text(found.created_us)}", file=sys.stderr)


@app.command()
@with_settings("schema")
def check(
    loaded: Loaded, name: Name, file: SchemaFile, compatibility: CompatibilityOption = None, data: Data = None
) -> int:
    """Say whether a schema could be the next one of a stream, and change nothing.

    The exit code is 0 if it could, and 1 if readers or writers of an earlier version could not live with it; what is in
    the way stands on standard error. It says, too, if columns of the key or the index would get another name, or go.
    """
    given = load(file)
    try:
        with existing(name), hubs.writing(loaded, data) as hub:
            before = hub.streams.get(name)
            info = hub.streams.set_schema(name, given, compatibility=_mode(compatibility), dry_run=True)
    except IncompatibleSchema as error:
        print(f"mainstem: {error}", file=sys.stderr)
        return ExitCode.FAILURE
    print(f"{name} could have it ({compatibility or info.compatibility}); mainstem schema set {name} {file}")
    for line in _renamed(before, info):
        print(f"then {line}")
    return ExitCode.OK


@app.command("set")
@with_settings("schema")
def set_(
    loaded: Loaded,
    name: Name,
    file: SchemaFile,
    compatibility: CompatibilityOption = None,
    data: Data = None,
    json: hubs.Json = False,
) -> None:
    """Give a stream its schema, or the next version of it.

    It is refused if readers or writers of an earlier version could not live with it, as --compatibility says, which is
    the stream's from then on. Records that were written before a stream had a schema are rows if they are JSON.
    """
    given = load(file)
    with existing(name), hubs.writing(loaded, data) as hub:
        before = hub.streams.get(name)
        info = hub.streams.set_schema(name, given, compatibility=_mode(compatibility))
    if json:
        print_json({"stream": name, "version": info.schema_version, "compatibility": info.compatibility})
        return
    print(f"{name} has version {info.schema_version} of its schema; the next one must be {info.compatibility}")
    for line in _renamed(before, info):
        print(line)


def _renamed(before: "StreamInfo", after: "StreamInfo") -> list[str]:
    """What a schema changes of what the stream names columns for."""
    return [
        f"its {what} is {', '.join(now) or 'empty'}, not {', '.join(was)}"
        for what, was, now in (("key", before.key, after.key), ("index", before.index, after.index))
        if was != now
    ]


def _mode(text: str | None) -> Any:
    """The log says which there are."""
    return text


def _print(schema: "Schema", name: str, output: str) -> None:
    if output == "arrow-text":
        print(schema.arrow.to_string(show_schema_metadata=False))
        return
    if output == "avro":
        from mainstem.registry.avro import to_avro

        shown: Any = to_avro(schema, _avro_name(name))
    else:
        from mainstem.registry.forms import to_type_map

        shown = to_type_map(schema)
    print(json_module.dumps(shown, indent=2, ensure_ascii=False))


def _avro_name(name: str) -> str:
    """A stream's name as Avro has names."""
    letters = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name)
    return letters if letters[:1].isalpha() or letters.startswith("_") else f"_{letters}"
