"""Tokens: secrets that say who somebody is.

A token is `mst_<id>_<secret>`: 64 bits that name it in lists and logs, and 256 random bits that nobody can guess. What
is stored is the id and the SHA-256 of the secret. A slow hash would protect passwords, which people choose and others
can try; to try 2^256 secrets is hopeless at any speed, and a fast hash lets a server check every connection at no cost.
"""

import hashlib
import hmac
import re
import secrets
from typing import Final, NamedTuple

from mainstem.core.errors import Unauthenticated

_ID_BYTES: Final = 8
_SECRET_BYTES: Final = 32
DIGEST_BYTES: Final = hashlib.sha256().digest_size
_TOKEN: Final = re.compile(r"mst_([0-9a-f]{16})_([0-9a-f]{64})", re.ASCII)
_ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)


class Minted(NamedTuple):
    """A new token: what its owner keeps, and what the log does."""

    secret: str
    id: str
    digest: bytes

    def __repr__(self) -> str:
        return f"<Minted {self.id}>"


def mint() -> Minted:
    """A token that was never there."""
    id_, secret = secrets.token_hex(_ID_BYTES), secrets.token_hex(_SECRET_BYTES)
    return Minted(f"mst_{id_}_{secret}", id_, _digest(secret))


def parse(token: str) -> tuple[str, bytes]:
    """The id of a token and the digest of its secret; Unauthenticated if it cannot be one."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise Unauthenticated("this is not a token: one begins with mst_ and is made by: mainstem token create NAME")
    return match[1], _digest(match[2])


def is_same(digest: bytes, other: bytes) -> bool:
    """Compared in a time that says nothing about where they differ."""
    return hmac.compare_digest(digest, other)


def is_token_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("ascii")).digest()
