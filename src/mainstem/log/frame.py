"""The frame: the unit of bytes in a block, and the checks that make a wrong one impossible to mistake for a right one.

A block is a 64-byte header followed by frames, each 8-aligned. The frames of one flush lie next to each other and end
with a commit frame; without a valid commit frame the others mean nothing, so a torn tail is inert.

Frame header, little-endian, 136 bytes, then statistics (a multiple of 8), then the payload (padded to 8):

    offset size field
         0    4 magic             b"MSF1"
         4    4 header_crc        crc32c of bytes 8 to header_len, statistics included
         8    1 version           1
         9    1 kind              1 data, 2 moved, 3 command, 4 commit, 5 footer, 6 staged,
                                  7 parquet_end, of a cold block
        10    1 encoding          of the payload
        11    1 layout            of the payload
        12    4 header_len        136 + statistics
        16    8 stream
        24    4 shard
        28    4 count             records in the payload; in a commit frame, frames in the flush
        32    4 stored_len        bytes of the payload as stored
        36    4 raw_len           bytes of the payload uncompressed
        40    4 payload_crc       crc32c of the stored payload
        44    4 schema_id
        48    8 producer
        56    4 producer_epoch
        60    4 generation
        64    8 sequence
        72    8 block             the block this frame was written to
        80    8 position          and where in it: a misplaced frame names another place
        88    4 ledger_epoch
        92    4 writer_epoch
        96    8 flush             the flush this frame belongs to
       104    8 applied           the last flush applied to the ledger when this was written
       112    8 time_low          microseconds since 1970
       120    8 time_high
       128    8 transaction       of a staged frame

A moved frame holds a batch that was written before and is stored anew: its `producer` is the batch's first offset, its
`sequence` the number of offsets it covers. Moved frames stand behind the command that says what they replace.

A staged frame holds a batch of a transaction. It means nothing until a command of a later flush commits the transaction
and names it by its place, or where it stands right behind such a command; then it is like a data frame.

The payload of a commit frame (32 bytes): first_position u64, flush_crc u32 (crc32c of every header_crc of the flush
in order), rules u32, checkpoint_begun u64, checkpoint_done u64 (see recovery.py). `rules` has bit 0 set if moments are
noted when the flush is applied: what earlier programs wrote has none, however often it is applied.

Block header, 64 bytes: magic b"MSBLOCK1", of a cold block (see cold.py) b"PAR1MSB1", header_crc u32 (of bytes 12 to
64), version u32, block u64, log uuid 16 bytes, writer_epoch u32, ledger_epoch u32, first_flush u64, created_us i64
(crc, then zero padding to 64).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from mainstem.core.batch import BatchHeader, Buffer
from mainstem.core.checksum import crc32c
from mainstem.core.errors import FolderUnusable
from mainstem.core.limits import (
    COLD_STORED_BYTES_MAX,
    COMMAND_BYTES_MAX,
    PAYLOAD_STORED_BYTES_MAX,
    STATISTICS_BYTES_MAX,
)

FRAME_MAGIC: Final = 0x3146534D
FRAME_VERSION: Final = 1
FRAME = struct.Struct("<IIBBBBIQIIIIIIQIIQQQIIQQqqQ")
FRAME_BYTES: Final = FRAME.size
_FRAME_BODY = struct.Struct("<BBBBIQIIIIIIQIIQQQIIQQqqQ")
_FRAME_HEAD = struct.Struct("<II")
COMMIT = struct.Struct("<QIIQQ")
_NOTES_MOMENTS: Final = 1
BLOCK_HEADER = struct.Struct("<8sIIQ16sIIQq")
BLOCK_HEADER_BYTES: Final = 64
BLOCK_MAGIC: Final = b"MSBLOCK1"
# A cold block is a Parquet file too, and begins as one.
COLD_MAGIC: Final = b"PAR1MSB1"
# Blocks are counted from 1; cold ones have the time when they were planned, in microseconds, for their number.
COLD_BLOCK_FIRST: Final = 10**15
# The payload of a frame of a cold block: row groups of Parquet, which only the whole file says how to read.
PARQUET_ENCODING: Final = 6
ALIGNMENT: Final = 8
# How long a header is with its statistics, at most.
HEADER_BYTES_MAX: Final = FRAME_BYTES + STATISTICS_BYTES_MAX
_HEADER_LEN = struct.Struct("<I")
_HEADER_LEN_AT: Final = 12

assert FRAME_BYTES == 136 and FRAME_BYTES % ALIGNMENT == 0
assert BLOCK_HEADER.size <= BLOCK_HEADER_BYTES and COMMAND_BYTES_MAX <= PAYLOAD_STORED_BYTES_MAX

_PADDING = [bytes(n) for n in range(ALIGNMENT)]


class FrameKind(IntEnum):
    DATA = 1
    MOVED = 2
    COMMAND = 3
    COMMIT = 4
    FOOTER = 5
    STAGED = 6
    PARQUET_END = 7


# Frames that hold records.
BATCH_KINDS: Final = (FrameKind.DATA, FrameKind.MOVED, FrameKind.STAGED)


class FrameHeader(NamedTuple):
    """A frame's header as read back, in the order of the bytes."""

    magic: int
    header_crc: int
    version: int
    kind: int
    encoding: int
    layout: int
    header_len: int
    stream: int
    shard: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    stored_len: int
    raw_len: int
    payload_crc: int
    schema_id: int
    producer: int
    producer_epoch: int
    generation: int
    sequence: int
    block: int
    position: int
    ledger_epoch: int
    writer_epoch: int
    flush: int
    applied: int
    time_low: int
    time_high: int
    transaction: int

    @property
    def total_len(self) -> int:
        """Bytes from the start of this frame to the start of the next."""
        return self.header_len + _padded(self.stored_len)

    @property
    def span(self) -> int:
        """How many offsets the batch of this frame covers."""
        return self.sequence if self.kind == FrameKind.MOVED else self.count

    def batch_header(self, statistics: bytes) -> BatchHeader:
        is_moved = self.kind == FrameKind.MOVED
        return BatchHeader(
            self.stream,
            self.shard,
            self.count,
            self.encoding,
            self.layout,
            self.schema_id,
            self.raw_len,
            self.stored_len,
            self.payload_crc,
            0 if is_moved else self.producer,
            self.producer_epoch,
            0 if is_moved else self.sequence,
            self.generation,
            self.time_low,
            self.time_high,
            # Readers see of a transaction only what is committed, and that is like the rest.
            0 if self.kind == FrameKind.STAGED else self.transaction,
            statistics,
            self.span if self.span != self.count else 0,
        )


class FrameDamaged(Exception):
    """The bytes at `position` are not a valid frame of this place. Internal: translated where the reader is known."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at byte {position}: {reason}")
        self.position = position
        self.reason = reason


class Place(NamedTuple):
    """What every frame of one flush shares: where and when it is written."""

    block: int
    ledger_epoch: int
    writer_epoch: int
    flush: int
    applied: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The content of a commit frame."""

    first_position: int
    flush_crc: int
    checkpoint_begun: int
    checkpoint_done: int
    notes_moments: bool


def _padded(length: int) -> int:
    return (length + ALIGNMENT - 1) & ~(ALIGNMENT - 1)


class FlushWriter:
    """Lays out the frames of one flush as a list of buffers, ready for one `writev`. One thread, used once.

    Payloads are not copied. `positions` has the place of each added frame in order.
    """

    def __init__(self, place: Place, position: int) -> None:
        assert position % ALIGNMENT == 0
        self.buffers: list[Buffer] = []
        self.positions: list[int] = []
        self._place = place
        self._first = position
        self._position = position
        self._crcs = bytearray()

    @property
    def end(self) -> int:
        return self._position

    def add_data(self, header: BatchHeader, payload: Buffer) -> int:
        return self._add(FrameKind.DATA, header, payload)

    def add_staged(self, header: BatchHeader, payload: Buffer) -> int:
        return self._add(FrameKind.STAGED, header, payload)

    def add_moved(self, base: int, header: BatchHeader, payload: Buffer) -> int:
        """A batch that has its offsets already, from `base` on."""
        span = header.span or header.count
        return self._add(FrameKind.MOVED, msgspec.structs.replace(header, producer=base, sequence=span), payload)

    def add_command(self, payload: bytes, now_us: int) -> int:
        assert len(payload) <= COMMAND_BYTES_MAX, "commands are checked when they are made"
        return self._add(FrameKind.COMMAND, _plain_header(payload, 1, now_us), payload)

    def add_footer(self, payload: bytes, count: int, now_us: int) -> int:
        return self._add(FrameKind.FOOTER, _plain_header(payload, count, now_us), payload)

    def add_parquet_end(self, payload: bytes, now_us: int) -> int:
        """What a reader of Parquet looks for at the end of a file; so nothing may pad it."""
        assert len(payload) % ALIGNMENT == 0, "padding would stand behind the end of the file"
        return self._add(FrameKind.PARQUET_END, _plain_header(payload, 1, now_us), payload)

    def add_commit(self, now_us: int, checkpoint_begun: int, checkpoint_done: int) -> int:
        payload = COMMIT.pack(self._first, crc32c(self._crcs), _NOTES_MOMENTS, checkpoint_begun, checkpoint_done)
        return self._add(FrameKind.COMMIT, _plain_header(payload, len(self.positions), now_us), payload)

    def _add(self, kind: FrameKind, header: BatchHeader, payload: Buffer) -> int:
        position, place = self._position, self._place
        extra = header.statistics
        assert len(extra) % ALIGNMENT == 0, "statistics are made in whole words, so that nothing pads them"
        body = (
            _FRAME_BODY.pack(
                FRAME_VERSION,
                kind,
                header.encoding,
                header.layout,
                FRAME_BYTES + len(extra),
                header.stream,
                header.shard,
                header.count,
                header.stored_len,
                header.raw_len,
                header.payload_crc,
                header.schema_id,
                header.producer,
                header.producer_epoch,
                header.generation,
                header.sequence,
                place.block,
                position,
                place.ledger_epoch,
                place.writer_epoch,
                place.flush,
                place.applied,
                header.time_low,
                header.time_high,
                header.transaction,
            )
            + extra
        )
        head = _FRAME_HEAD.pack(FRAME_MAGIC, crc32c(body))
        self._crcs += head[4:]
        self.buffers.append(head + body)
        if header.stored_len:
            self.buffers.append(payload)
            padding = -header.stored_len % ALIGNMENT
            if padding:
                self.buffers.append(_PADDING[padding])
        self.positions.append(position)
        self._position = position + FRAME_BYTES + len(extra) + _padded(header.stored_len)
        return position


def _plain_header(payload: bytes, count: int, now_us: int) -> BatchHeader:
    size = len(payload)
    return BatchHeader(0, 0, count, 0, 0, 0, size, size, crc32c(payload), 0, 0, 0, 0, now_us, now_us)


def claimed_header_len(data: Buffer, at: int = 0) -> int:
    """How many bytes the header at `data[at:]` says it has, at most as many as one can have, for who has read only its
    beginning. Whether it is a header is for `parse_header` to say."""
    if len(data) - at < FRAME_BYTES:
        return FRAME_BYTES
    return int(min(max(_HEADER_LEN.unpack_from(data, at + _HEADER_LEN_AT)[0], FRAME_BYTES), HEADER_BYTES_MAX))


def parse_header(data: Buffer, at: int, position: int, block: int) -> FrameHeader:
    """The frame header at `data[at:]`, which lies at `position` of block `block`; FrameDamaged if it is not one."""
    if len(data) - at < FRAME_BYTES:
        raise FrameDamaged(position, "fewer bytes than a frame header")
    header = FrameHeader._make(FRAME.unpack_from(data, at))
    if header.magic != FRAME_MAGIC:
        raise FrameDamaged(position, "no frame begins here")
    length = header.header_len
    if not FRAME_BYTES <= length <= HEADER_BYTES_MAX or length % ALIGNMENT:
        raise FrameDamaged(position, f"header length {length}")
    if len(data) - at < length:
        raise FrameDamaged(position, "header cut short")
    if crc32c(memoryview(data)[at + 8 : at + length]) != header.header_crc:
        raise FrameDamaged(position, "header checksum does not match")
    if header.block != block or header.position != position:
        raise FrameDamaged(position, f"frame belongs to block {header.block} byte {header.position}")
    if header.version != FRAME_VERSION:
        raise _of_version("frame", block, position, header.version)
    if header.stored_len > stored_bytes_max(header.block):
        raise FrameDamaged(position, f"payload length {header.stored_len} over the limit")
    return header


def is_cold(block: int) -> bool:
    """Whether this is the number of a cold block."""
    return block >= COLD_BLOCK_FIRST


def stored_bytes_max(block: int) -> int:
    """How long a payload in this block may be."""
    return COLD_STORED_BYTES_MAX if is_cold(block) else PAYLOAD_STORED_BYTES_MAX


def _of_version(what: str, block: int, position: int, version: int) -> Exception:
    """A newer one is not damaged: its checksum is right, and to take it for torn would be to lose it."""
    if version > FRAME_VERSION:
        return FolderUnusable(
            f"the {what} at byte {position} of block {block} has version {version}, this program reads up to version "
            f"{FRAME_VERSION}; use a newer Mainstem"
        )
    return FrameDamaged(position, f"{what} version {version}")


def statistics_of(data: Buffer, at: int, header: FrameHeader) -> bytes:
    """The statistics of the frame at `data[at:]`, whose header was parsed from there."""
    return bytes(memoryview(data)[at + FRAME_BYTES : at + header.header_len])


def payload_of(data: Buffer, at: int, header: FrameHeader) -> memoryview:
    """The payload of the frame at `data[at:]`, checked."""
    begin = at + header.header_len
    if len(data) - begin < header.stored_len:
        raise FrameDamaged(header.position, "payload cut short")
    payload = memoryview(data)[begin : begin + header.stored_len]
    if crc32c(payload) != header.payload_crc:
        raise FrameDamaged(header.position, "payload checksum does not match")
    return payload


def parse_commit(header: FrameHeader, payload: Buffer) -> Commit:
    if len(payload) != COMMIT.size:
        raise FrameDamaged(header.position, "commit frame of the wrong size")
    first, crc, rules, begun, done = COMMIT.unpack(payload)
    return Commit(first, crc, begun, done, bool(rules & _NOTES_MOMENTS))


def flush_crc(headers: Sequence[FrameHeader]) -> int:
    """What the commit frame of these frames must hold."""
    return crc32c(b"".join(struct.pack("<I", header.header_crc) for header in headers))


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """The first 64 bytes of a block."""

    block: int
    log_uuid: bytes
    writer_epoch: int
    ledger_epoch: int
    first_flush: int
    created_us: int

    def pack(self) -> bytes:
        magic = _magic_of(self.block)
        rest = BLOCK_HEADER.pack(
            magic,
            0,
            FRAME_VERSION,
            self.block,
            self.log_uuid,
            self.writer_epoch,
            self.ledger_epoch,
            self.first_flush,
            self.created_us,
        ).ljust(BLOCK_HEADER_BYTES, b"\0")[12:]
        return magic + struct.pack("<I", crc32c(rest)) + rest

    @classmethod
    def parse(cls, data: bytes) -> "BlockHeader":
        if len(data) < BLOCK_HEADER_BYTES or data[:8] not in (BLOCK_MAGIC, COLD_MAGIC):
            raise FrameDamaged(0, "not a block")
        magic, crc, version, block, uuid, writer, ledger, first, created = BLOCK_HEADER.unpack_from(data)
        if crc != crc32c(data[12:BLOCK_HEADER_BYTES]):
            raise FrameDamaged(0, "block header checksum does not match")
        if version != FRAME_VERSION:
            raise _of_version("block", block, 0, version)
        if magic != _magic_of(block):
            raise FrameDamaged(0, f"block {block} does not begin like this")
        return cls(block, uuid, writer, ledger, first, created)


def _magic_of(block: int) -> bytes:
    return COLD_MAGIC if is_cold(block) else BLOCK_MAGIC
