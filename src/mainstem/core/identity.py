"""Names nobody else has: the one place that draws randomness for identities."""

import secrets
import uuid

# For jitter: nothing that must be repeatable draws from it.
RANDOMNESS = secrets.SystemRandom()


def new_producer_id() -> int:
    """A producer's id: 63 random bits, never 0, which means a batch without a producer."""
    return secrets.randbits(63) | 1


def new_stream_uuid() -> str:
    return uuid.uuid4().hex
