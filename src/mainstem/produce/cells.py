"""The cells of CSV, as texts; a cell with nothing in it is null, one with a pair of quotes an empty text.

Python's reader gives the same for both, so where a row has an empty cell its line is looked at once more.
"""

import csv
import io
import re
from collections.abc import Iterator
from typing import IO, Any, Final

import msgspec

from mainstem.core.errors import InvalidRecord
from mainstem.core.limits import RECORD_BYTES_MAX
from mainstem.registry.texts import BASE64_BEGIN

Cells = dict[str, str | None]

_CELL: Final = re.compile(r'(?:^|,)("[^"]*(?:""[^"]*)*"|[^,]*)')


def csv_cells(file: IO[bytes]) -> Iterator[tuple[int, Cells]]:
    """The rows of a CSV file by the names in its first line, each with the number of the line it ends on.

    Empty lines are passed over, unless there is one column only: then each is a null.
    """
    # utf-8-sig: spreadsheets put a mark in front of the first name.
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="strict", newline="")
    csv.field_size_limit(max(csv.field_size_limit(), RECORD_BYTES_MAX))
    lines = _Lines(text)
    reader = csv.reader(lines, strict=True)
    try:
        names = next(reader, [])
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidRecord(f"line 1 names the field {twice!r} twice; a row can hold it only once")
        lines.taken.clear()
        for row in reader if names else ():
            if row or len(names) == 1:
                cells = row or [""]
                if len(cells) != len(names):
                    amount = "more" if len(cells) > len(names) else "fewer"
                    raise InvalidRecord(
                        f"line {reader.line_num}: {amount} fields than the {len(names)} names in the first line"
                    )
                told = _with_nulls(cells, lines) if "" in cells else cells
                yield reader.line_num, dict(zip(names, told, strict=True))
            lines.taken.clear()
    except csv.Error as error:
        raise InvalidRecord(f"line {reader.line_num}: not CSV ({error})") from None
    except UnicodeDecodeError as error:
        # Text is decoded some lines ahead.
        raise InvalidRecord(f"line {reader.line_num + 1} or one after it: not UTF-8 text ({error.reason})") from None
    finally:
        # The descriptor is the caller's to close.
        text.detach()


class _Lines:
    """Lines on their way to the reader, which takes no more of them than it needs for a row. One thread."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        # Those of the row that is read.
        self.taken: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._text)
        self.taken.append(line)
        return line


def _with_nulls(cells: list[str], lines: _Lines) -> list[str | None]:
    """The cells, with None for those that have nothing, not even quotes."""
    text = "".join(lines.taken).rstrip("\r\n")
    if '""' not in text:
        return [cell or None for cell in cells]
    stored = _CELL.findall(text)
    return [cell if cell or quoted else None for cell, quoted in zip(cells, stored, strict=True)]


def bytes_cell(text: str | None) -> Any:
    """What a cell says of bytes: a text, or, where they are not UTF-8, the object of JSON that is written for them."""
    try:
        return msgspec.json.decode(text) if text is not None and text.startswith(BASE64_BEGIN) else text
    except msgspec.DecodeError:
        return text
