"""Columns on standard output: which are wanted, and in which format they leave."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mainstem.cli.exits import UsageProblem
from mainstem.cli.printing import counted, print_table
from mainstem.core.errors import MainstemError
from mainstem.core.plain import one_line

if TYPE_CHECKING:
    import pyarrow as pa

    from mainstem.consume.columnar import ColumnWriter
    from mainstem.hub.hub import Hub

ColumnsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...", help="Only these columns; _shard, _offset, _timestamp, _key and _headers are columns too."
    ),
]

# What can only be written when everything is there.
AT_THE_END: Final = ("avro", "table")
COLUMNAR: Final = ("csv", "arrow", *AT_THE_END)


def column_names(option: str, text: str | None) -> list[str] | None:
    """The names in a list like id,amount."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageProblem(f"{option} {text}: name columns with commas between them, as in id,amount")
    return names


def check_columnar(output: str, others: Sequence[str] = ()) -> None:
    if output not in COLUMNAR:
        raise UsageProblem(f"--output {output}: use one of {', '.join((*others, *COLUMNAR))}")
    if output in ("arrow", "avro") and sys.stdout.isatty():
        raise UsageProblem(f"--output {output} is not for a terminal; send it to a file or a pipe")


def row_columns(hub: "Hub", name: str) -> list[str] | None:
    """The columns that rows of a stream have now, so that they are the same from the first batch to the last; None for
    a stream without a schema."""
    schema = hub.streams.get(name).schema
    return None if schema is None else schema.names


@contextmanager
def column_writer(output: str, schema: "pa.Schema") -> "Iterator[ColumnWriter]":
    """Writes batches to standard output; what is written at the end is not if something fails."""
    from mainstem.consume.columnar import WRITERS

    writer = _TableWriter(schema) if output == "table" else WRITERS[output](sys.stdout.buffer, schema)
    yield writer
    writer.close()


def tell_undecoded(count: int, name: str, why: MainstemError | None) -> bool:
    """Say how many records are not among the columns, and why the first is not; whether there are any."""
    if count:
        told = one_line(str(why), 400).partition("; ")[0].removeprefix(f"stream {name!r} ")
        print(f"mainstem: {counted(count, 'record')} of {name} left out: {told}", file=sys.stderr)
    return count > 0


class _TableWriter:
    """Columns for people."""

    def __init__(self, schema: "pa.Schema") -> None:
        self._schema = schema
        self._rows: list[list[str]] = []

    def write(self, batch: "pa.RecordBatch") -> None:
        from mainstem.registry import formats

        self._rows += [[_cell(value) for value in row.values()] for row in formats.to_dicts(batch)]

    def close(self) -> None:
        import pyarrow.types as kinds

        right = [field.name for field in self._schema if kinds.is_integer(field.type) or kinds.is_floating(field.type)]
        print_table(self._schema.names, self._rows, right=right)


def _cell(value: Any) -> str:
    """A value in one line that no terminal can be hurt with."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    return "NULL" if value is None else one_line(str(value))
