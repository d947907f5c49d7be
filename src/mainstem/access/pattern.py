"""Patterns: names of streams with `*` for any characters."""

import re

from mainstem.core.errors import InvalidName
from mainstem.core.limits import STREAM_NAME_CHARS_MAX

_PATTERN = re.compile(r"[A-Za-z0-9._*-]+", re.ASCII)


def check_pattern(pattern: str) -> str:
    """The pattern, if it can be one, else InvalidName."""
    if len(pattern) > STREAM_NAME_CHARS_MAX or not _PATTERN.fullmatch(pattern):
        raise InvalidName(f"pattern {pattern[:40]!r}: use the characters of a stream's name, and '*' for any of them")
    return pattern


def is_match(pattern: str, stream: str) -> bool:
    """Whether the pattern is for this stream. What is done to the log as a whole has no name, and only `*` is for it.
    Streams of Mainstem's own begin with `_`; only a pattern that does too is for them.

    Each part between two `*` is taken where it comes first, which never spoils the rest: a name that somebody makes up
    to be matched slowly cannot be.
    """
    if stream.startswith("_") and not pattern.startswith("_"):
        return False
    first, *others = pattern.split("*")
    if not others:
        return pattern == stream
    *middle, last = others
    at, end = len(first), len(stream) - len(last)
    if at > end or not stream.startswith(first) or not stream.endswith(last):
        return False
    for part in middle:
        found = stream.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
