"""What producers said they have sent, and up to when audits found all of it: the streams `_counts` and `_verified`.

Both say of which stream by its name and its uuid: a stream that is made under the name of one that was deleted is
another. What was kept before they had the uuid counts for every stream of its name.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

import msgspec

from mainstem.consume.record import RecordBatch
from mainstem.core.errors import UnknownStream
from mainstem.transport.counting import COUNTS_STREAM, VERIFIED_STREAM, Verified

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
    uuid: str = ""


def sent_counts(hub: "Hub", stream: str) -> list[SentCount]:
    """Everything that was counted of a stream; what was said twice is there once."""
    uuid = hub.streams.get(stream).uuid
    found: dict[tuple[str, int, int], SentCount] = {}
    for count in _records(hub, COUNTS_STREAM, SentCount):
        if count.stream == stream and count.uuid in ("", uuid):
            found[count.producer, count.number, count.start_us] = count
    return list(found.values())


def verified(hub: "Hub") -> dict[str, Verified]:
    """What the newest audit of each stream found that there is."""
    uuids = {info.name: info.uuid for info in hub.streams.list()}
    said = _records(hub, VERIFIED_STREAM, Verified)
    return {each.stream: each for each in said if each.stream in uuids and each.uuid in ("", uuids[each.stream])}


def verified_us(hub: "Hub", stream: str) -> int:
    """When the newest audit of a stream said what it found; 0 if none has."""
    uuid = hub.streams.get(stream).uuid
    times = (at for batch in _batches(hub, VERIFIED_STREAM) for at in _times_of(batch, stream.encode(), uuid))
    return max(times, default=0)


def _times_of(batch: RecordBatch, key: bytes, uuid: str) -> Iterator[int]:
    decode = msgspec.json.Decoder(Verified).decode
    of_name = (record for record in batch.records() if record.key == key and record.value)
    return (record.timestamp_us for record in of_name if decode(record.value).uuid in ("", uuid))


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
