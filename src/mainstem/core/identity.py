"""Names nobody else has: the one place that draws randomness for identities."""

import hashlib
import os
import secrets
import sys
import uuid
from pathlib import Path

from mainstem.core.limits import CLIENT_NAME_CHARS_MAX
from mainstem.core.plain import one_line

# For jitter: nothing that must be repeatable draws from it.
RANDOMNESS = secrets.SystemRandom()


def new_producer_id() -> int:
    """A producer's id: 63 random bits, odd. It is never 0, which means a batch without a producer."""
    return secrets.randbits(63) | 1


def producer_id_of_key(*parts: str) -> int:
    """The producer's id that stands for a key which somebody made up: even, so nobody who draws one has it. Whoever
    takes ids from clients refuses those of keys, else one client could use up the keys of another."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 1) & ~1 | 2


def is_of_key(producer: int) -> bool:
    return producer != 0 and producer % 2 == 0


def new_stream_uuid() -> str:
    return uuid.uuid4().hex


def program_name() -> str:
    """This process as an operator knows it, such as `billing.py[4711]`: what a client calls itself."""
    path = Path(sys.argv[0] if sys.argv else "")
    name = path.parent.name if path.name == "__main__.py" else path.name
    name = "python" if name in ("", "-c", "-m") else one_line(name)
    return f"{name}[{os.getpid()}]"[-CLIENT_NAME_CHARS_MAX:]
