"""What producers said they have sent, and up to when audits found all of it: the streams `_counts` and `_verified`.

Both say of which stream by its name and its uuid: a stream that is made under the name of one that was deleted is
another. What was kept before they had the uuid counts for every stream of its name.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

import msgspec

from mainstem.consume.record import RecordBatch
from mainstem.core.errors import UnknownStream
from mainstem.transport.counting import COUNTS_STREAM, VERIFIED_STREAM, Verified, worst

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


# The newest record of `_verified` that names a tier, and when it was written.
_Newest = dict[str, tuple[int, Verified]]


def verified(hub: "Hub") -> dict[str, Verified]:
    """Up to when everything of each stream that there is was found, in the tier that is verified least far."""
    found = {
        name: worst((tier, said) for tier, (_, said) in newest.items()) for name, newest in _verified_tiers(hub).items()
    }
    return {name: said for name, said in found.items() if said is not None}


def verified_tiers(hub: "Hub", stream: str) -> _Newest:
    """What was said of each tier of a stream last, and when. It was forgotten if it is not among the record's tiers."""
    return _verified_tiers(hub).get(stream, {})


def _verified_tiers(hub: "Hub") -> dict[str, _Newest]:
    """By the name of the stream."""
    uuids = {info.name: info.uuid for info in hub.streams.list()}
    decode = msgspec.json.Decoder(Verified).decode
    found: dict[str, _Newest] = {}
    for record in (record for batch in _batches(hub, VERIFIED_STREAM) for record in batch.records() if record.value):
        said = decode(record.value)
        if said.stream in uuids and said.uuid in ("", uuids[said.stream]):
            found.setdefault(said.stream, {}).update(dict.fromkeys(said.named, (record.timestamp_us, said)))
    return found


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
