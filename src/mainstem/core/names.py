"""What a stream may be called."""

import re

from mainstem.core.errors import InvalidName
from mainstem.core.limits import STREAM_NAME_CHARS_MAX

_STREAM_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


def check_stream_name(name: object, *, reserved: bool = False) -> str:
    """The name, if users may create a stream of it, else InvalidName. `reserved` allows our own `_names`."""
    if not isinstance(name, str):
        raise InvalidName(f"a stream's name must be text, not {type(name).__name__}")
    if len(name) > STREAM_NAME_CHARS_MAX:
        raise InvalidName(
            f"stream name of {len(name)} characters starting {name[:20]!r}: at most {STREAM_NAME_CHARS_MAX} are allowed"
        )
    if name in ("", ".", "..") or not _STREAM_NAME.fullmatch(name):
        raise InvalidName(f"stream name {name!r}: use letters, digits, '.', '_' and '-' (not '.' or '..' alone)")
    if name.startswith("-"):
        raise InvalidName(f"stream name {name!r}: names that start with '-' look like options of a command")
    if name.startswith("_") and not reserved:
        raise InvalidName(f"stream name {name!r}: names that start with '_' are reserved for Mainstem itself")
    return name
