"""Names nobody else has: the one place that draws randomness for identities."""

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
    """A producer's id: 63 random bits, never 0, which means a batch without a producer."""
    return secrets.randbits(63) | 1


def new_stream_uuid() -> str:
    return uuid.uuid4().hex


def program_name() -> str:
    """This process as an operator knows it, such as `billing.py[4711]`: what a client calls itself."""
    path = Path(sys.argv[0] if sys.argv else "")
    name = path.parent.name if path.name == "__main__.py" else path.name
    name = "python" if name in ("", "-c", "-m") else one_line(name)
    return f"{name}[{os.getpid()}]"[-CLIENT_NAME_CHARS_MAX:]
