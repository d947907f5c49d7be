"""Lengths of time as users write them: "7d", "90 min", a timedelta; and seconds to wait."""

import threading
from datetime import timedelta
from functools import lru_cache

from mainstem.core.errors import InvalidSetting
from mainstem.core.kinds import parse_duration


def microseconds(value: str | timedelta, name: str = "") -> int:
    """The length in microseconds, or InvalidSetting, with the name of what was to be so long."""
    said = f"{name}: " if name else ""
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if not isinstance(value, str):
        raise InvalidSetting(f"{said}a length of time is a text like '7d' or a timedelta, not {type(value).__name__}")
    try:
        return _parsed(value)
    except ValueError as error:
        raise InvalidSetting(f"{said}{value[:40]!r} is no length of time like '7d': {error}") from None


def check_timeout(timeout: object) -> None:
    """InvalidSetting if nobody can wait for so many seconds."""
    try:
        # Not a number is not at most anything.
        is_time = timeout is None or timeout <= threading.TIMEOUT_MAX  # type: ignore[operator]
    except TypeError:
        is_time = False
    if not is_time:
        raise InvalidSetting(f"timeout is in seconds, or None to wait without end, not {timeout!r}")


@lru_cache(maxsize=64)
def _parsed(text: str) -> int:
    """The same few texts come again and again."""
    return round(parse_duration(text) * 1_000_000)
