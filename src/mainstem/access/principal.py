"""Principals: who asks."""

import re
from dataclasses import dataclass
from typing import Final

from mainstem.core.errors import InvalidName
from mainstem.core.limits import PRINCIPAL_NAME_CHARS_MAX

# Everybody who is known, in rules and quotas.
EVERYBODY: Final = "*"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who is known by name; `token` is the id of the token it came with, empty for a certificate."""

    name: str
    token: str = ""

    def __str__(self) -> str:
        return self.name or "anonymous"


# Nobody in particular: who may do everything on its own machine until the first principal exists, and nothing after.
ANONYMOUS: Final = Principal("")


def check_principal_name(name: str, *, is_everybody_allowed: bool = False) -> str:
    """The name, if a principal may have it, else InvalidName."""
    if is_everybody_allowed and name == EVERYBODY:
        return name
    if len(name) > PRINCIPAL_NAME_CHARS_MAX or not _NAME.fullmatch(name):
        raise InvalidName(
            f"principal {name[:40]!r}: use at most {PRINCIPAL_NAME_CHARS_MAX} letters, digits, '.', '_', '@', '+' and "
            "'-', a letter or digit first"
        )
    return name
