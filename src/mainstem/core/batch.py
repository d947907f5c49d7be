"""A batch as it travels: a small header and opaque payload bytes that nobody re-encodes on the way."""

from typing import Annotated, Any, Final

import msgspec

# Ranges are part of the types, so that a number from the wire that does not fit its field is refused when decoded.
U8 = Annotated[int, msgspec.Meta(ge=0, le=0xFF)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
U63 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
# What a datetime can hold, the years 1 to 9999: a reader must be able to have every time as one.
TIME_US_MIN: Final = -62_135_596_800_000_000
TIME_US_MAX: Final = 253_402_300_799_999_999
TimeUs = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]


class BatchHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is known of a batch without opening its payload. The same struct goes over the wire and into a frame.

    `encoding`, `layout` and `raw_len` say how to read the payload (see core/payload.py). `schema_id` is 0 for streams
    without a schema. (`producer`, `producer_epoch`, `stream`, `shard`, `sequence`) identify the batch for exactly once.
    `span` is how many offsets the batch covers if its records are fewer, because others were compacted away or erased;
    0 if it has one for each. Fields are appended at the end only, with a default.
    """

    stream: U63
    shard: U32
    count: U32
    encoding: U8
    layout: U8
    schema_id: U32
    raw_len: U32
    stored_len: U32
    payload_crc: U32
    producer: U63
    producer_epoch: U32
    sequence: U63
    generation: U32
    time_low: TimeUs
    time_high: TimeUs
    transaction: U63 = 0
    statistics: bytes = b""
    span: U63 = 0


Buffer = bytes | bytearray | memoryview


class Batch(msgspec.Struct, frozen=True, gc=False):
    """A header with its payload. `columns` is the Arrow batch that the payload was made of, while whoever made it has
    it anyway: its statistics need not open the payload. It goes no further than that."""

    header: BatchHeader
    payload: Buffer
    columns: Any = None


class FetchedBatch(msgspec.Struct, frozen=True, gc=False):
    """A stored batch on its way to a reader: offsets `base` to `end - 1` of its shard.

    One without records has no payload: it says only that none of these offsets has a record any more. If `raw_len` is
    not 0, they have, of so many bytes as they are stored, but a quota of the reader leaves them out.
    """

    base: int
    header: BatchHeader
    payload: Buffer

    @property
    def end(self) -> int:
        """The offset after the last it covers."""
        return self.base + (self.header.span or self.header.count)
