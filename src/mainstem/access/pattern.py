"""Patterns: names of streams with `*` for any characters."""

import functools
import re

from mainstem.core.errors import InvalidName
from mainstem.core.limits import PATTERN_STARS_MAX, STREAM_NAME_CHARS_MAX

_PATTERN = re.compile(r"[A-Za-z0-9._*-]+", re.ASCII)


def check_pattern(pattern: str) -> str:
    """The pattern, if it can be one, else InvalidName."""
    if len(pattern) > STREAM_NAME_CHARS_MAX or not _PATTERN.fullmatch(pattern):
        raise InvalidName(f"pattern {pattern[:40]!r}: use the characters of a stream's name, and '*' for any of them")
    if pattern.count("*") > PATTERN_STARS_MAX:
        raise InvalidName(f"pattern {pattern[:40]!r}: at most {PATTERN_STARS_MAX} '*' are allowed")
    return pattern


def is_match(pattern: str, stream: str) -> bool:
    """Whether the pattern is for this stream. What is done to the log as a whole has no name, and only `*` is for it.
    Streams of Mainstem's own begin with `_`; only a pattern that does too is for them."""
    if stream.startswith("_") and not pattern.startswith("_"):
        return False
    return _compiled(pattern).fullmatch(stream) is not None


@functools.lru_cache(maxsize=4_096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.ASCII)
