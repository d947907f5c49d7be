"""Events for the log lines of a process: a message that is the same every time, and fields that say what it was about.

    logger.info(Event("stream created", stream=name, shards=4))

As text that is `stream created stream=clicks shards=4`, in whatever way a program formats its log lines; where lines
are JSON, the fields are keys (see log_lines.py). Values may come from a client: whatever they hold, an event is one
line, and no value can pass for a field or for another event.
"""

import json
import re
from typing import Final

OWN_KEYS: Final = frozenset(("time", "level", "logger", "message", "exception"))
_VALUE_CHARS_MAX: Final = 1_000
_WORD: Final = re.compile(r"[A-Za-z0-9_.,:/@%+\[\]-]+")

Plain = str | int | float | bool | None


class Event:
    """One event. Made where it happens, read by whoever writes it down."""

    __slots__ = ("_fields", "message")

    def __init__(self, message: str, /, **fields: object) -> None:
        assert not OWN_KEYS & fields.keys(), "these keys every line has"
        self.message = message
        self._fields = fields

    def fields(self) -> dict[str, Plain]:
        """The fields in forms that JSON has."""
        return {name: _plain(value) for name, value in self._fields.items()}

    def __str__(self) -> str:
        return " ".join((self.message, *(f"{name}={_shown(value)}" for name, value in self.fields().items())))


def _plain(value: object) -> Plain:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and abs(value) < float("inf"):
        return round(value, 6)
    # JSON has neither infinity nor NaN.
    return str(value)[:_VALUE_CHARS_MAX]


def _shown(value: Plain) -> str:
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    # In JSON's quotes every character that is not plain ASCII is escaped, and no quote inside can end the value.
    return json.dumps(value)
