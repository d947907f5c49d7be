"""A schema as commands take it: a file, or standard input."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mainstem.cli.exits import UsageProblem
from mainstem.core.errors import InvalidRequest
from mainstem.core.limits import SCHEMA_BYTES_MAX

if TYPE_CHECKING:
    from mainstem.core.schema import Schema

CompatibilityOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODE",
        help="What a schema must keep to: backward, forward, full, each also with _transitive after it, or none.",
    ),
]


def load(file: str) -> "Schema":
    """The schema in a file of JSON, or on standard input."""
    from mainstem.registry.forms import as_schema

    where = "standard input" if file == "-" else file
    if file == "-":
        text = sys.stdin.buffer.read(SCHEMA_BYTES_MAX + 1)
    else:
        with open(file, "rb") as opened:
            text = opened.read(SCHEMA_BYTES_MAX + 1)
    if len(text) > SCHEMA_BYTES_MAX:
        raise UsageProblem(f"{where}: a schema has at most {SCHEMA_BYTES_MAX} bytes")
    try:
        return as_schema(text)
    except InvalidRequest as error:
        raise type(error)(f"{where}: {error}") from None
