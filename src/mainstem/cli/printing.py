"""What commands print: tables for people, plain columns for pipes, JSON for programs."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from mainstem.core.times import from_us


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=2, ensure_ascii=False))


def print_table(names: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """A table; on a terminal drawn by rich, else columns of text. `right` names the columns with numbers."""
    if sys.stdout.isatty():
        _print_rich(names, rows, right)
        return
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    for row in (names, *rows):
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(names, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _print_rich(names: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def counted(count: int, noun: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def time_text(time_us: int) -> str:
    """Microseconds since 1970 as `2026-01-31T12:00:00.000000Z`."""
    return from_us(time_us).isoformat(timespec="microseconds").replace("+00:00", "Z")
