"""What streams, groups and writers may be called, and how columns are named."""

import re
from collections.abc import Sequence

from mainstem.core.errors import InvalidName, InvalidSetting
from mainstem.core.limits import STREAM_NAME_CHARS_MAX

_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


def check_stream_name(name: object, *, reserved: bool = False) -> str:
    """The name, if users may create a stream of it, else InvalidName. `reserved` allows our own `_names`."""
    if not isinstance(name, str):
        raise InvalidName(f"a stream's name must be text, not {type(name).__name__}")
    if len(name) > STREAM_NAME_CHARS_MAX:
        raise InvalidName(
            f"stream name of {len(name)} characters starting {name[:20]!r}: at most {STREAM_NAME_CHARS_MAX} are allowed"
        )
    if name in ("", ".", "..") or not _NAME.fullmatch(name):
        raise InvalidName(f"stream name {name!r}: use letters, digits, '.', '_' and '-' (not '.' or '..' alone)")
    if name.startswith("-"):
        raise InvalidName(f"stream name {name!r}: names that start with '-' look like options of a command")
    if name.startswith("_") and not reserved:
        raise InvalidName(f"stream name {name!r}: names that start with '_' are reserved for Mainstem itself")
    return name


def check_group_name(name: object, what: str = "group") -> str:
    """The name, if a group, or a writer, may have it, else InvalidName."""
    if not isinstance(name, str) or len(name) > STREAM_NAME_CHARS_MAX or not _NAME.fullmatch(name):
        shown = repr(name[:20]) if isinstance(name, str) else type(name).__name__
        raise InvalidName(f"{what} name {shown}: use 1 to {STREAM_NAME_CHARS_MAX} letters, digits, '.', '_' and '-'")
    return name


def check_named_once(what: str, names: Sequence[str]) -> None:
    """InvalidSetting if one of these columns is there twice: nobody could tell them apart."""
    for at, name in enumerate(names):
        if name in names[:at]:
            raise InvalidSetting(f"{what}: {name!r} is named twice, in {', '.join(names)}")
