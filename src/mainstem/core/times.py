"""Times as people have them, and as the log counts them: whole microseconds since 1970, UTC."""

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_us(time: datetime) -> int:
    """Of a time that has a zone."""
    delta = time - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def from_us(time_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time_us)
