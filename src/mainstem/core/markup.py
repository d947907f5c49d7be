"""What a notebook shows of our objects: small tables of HTML, escaped and bounded."""

import html
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

from mainstem.core.plain import one_line

_CELL_CHARS_MAX: Final = 80
_COLUMNS_MAX: Final = 20
_ROWS_MAX: Final = 50


def cut(value: Any) -> str:
    """A value as text that fits a cell. Bytes that are UTF-8 are shown as text."""
    if isinstance(value, bytes):
        value = value[: 4 * _CELL_CHARS_MAX].decode("utf-8", "backslashreplace")
    return "" if value is None else one_line(str(value), _CELL_CHARS_MAX)


def table(caption: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts; what is over the limits is left out, and said to be."""
    left_out = len(names) - _COLUMNS_MAX
    head = [cut(name) for name in names[:_COLUMNS_MAX]]
    if left_out > 0:
        caption = f"{caption}; {left_out} more columns"
    body = "".join(_row("td", row[:_COLUMNS_MAX]) for row in islice(rows, _ROWS_MAX))
    top = f"<thead>{_row('th', head)}</thead>" if any(head) else ""
    return f"<table><caption>{html.escape(caption)}</caption>{top}<tbody>{body}</tbody></table>"


def _row(kind: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in cells) + "</tr>"
