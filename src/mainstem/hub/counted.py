"""What producers said they have sent, and up to when audits found all of it: the streams `_counts` and `_verified`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

import msgspec

from mainstem.consume.record import RecordBatch
from mainstem.core.errors import UnknownStream
from mainstem.transport.counting import COUNTS_STREAM, VERIFIED_STREAM

if TYPE_CHECKING:
    from mainstem.hub.hub import Hub

T = TypeVar("T")


class SentCount(msgspec.Struct, frozen=True):
    """Records of a stream and window, as one producer counted them. `acknowledged` is None if it did not ask."""

    producer: str
    number: int
    source: str
    stream: str
    start_us: int
    window_us: int
    sent: int
    acknowledged: int | None = None


class Verified(msgspec.Struct, frozen=True):
    """Up to which time an audit found every record of a stream where it belongs; how many windows after that differ."""

    stream: str
    through_us: int
    differing: int = 0


def sent_counts(hub: "Hub", stream: str) -> list[SentCount]:
    """Everything that was counted of a stream; what was said twice is there once."""
    found: dict[tuple[str, int, int], SentCount] = {}
    for count in _records(hub, COUNTS_STREAM, SentCount):
        if count.stream == stream:
            found[count.producer, count.number, count.start_us] = count
    return list(found.values())


def verified(hub: "Hub") -> dict[str, Verified]:
    """What the newest audit of each stream found."""
    return {each.stream: each for each in _records(hub, VERIFIED_STREAM, Verified)}


def verified_us(hub: "Hub", stream: str) -> int:
    """When the newest audit of a stream said what it found; 0 if none has."""
    times = (at for batch in _batches(hub, VERIFIED_STREAM) for at in _times_of(batch, stream.encode()))
    return max(times, default=0)


def _times_of(batch: RecordBatch, key: bytes) -> Iterator[int]:
    return (record.timestamp_us for record in batch.records() if record.key == key)


def _records(hub: "Hub", stream: str, kind: type[T]) -> Iterator[T]:
    """What is kept in one of the log's own streams."""
    decode = msgspec.json.Decoder(kind).decode
    for batch in _batches(hub, stream):
        yield from map(decode, filter(None, batch.values()))


def _batches(hub: "Hub", stream: str) -> Iterator[RecordBatch]:
    """Those of one of the log's own streams; nothing if there is none yet."""
    try:
        consumer = hub.consumer(stream, start="earliest", follow=False)
    except UnknownStream:
        return
    with consumer:
        yield from consumer.batches()
