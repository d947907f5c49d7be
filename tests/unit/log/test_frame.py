"""Frames: what was written comes back, and nothing else is ever taken for it."""

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.core.errors import FolderUnusable
from mainstem.core.limits import PAYLOAD_STORED_BYTES_MAX, STATISTICS_BYTES_MAX
from mainstem.log.frame import (
    ALIGNMENT,
    BLOCK_HEADER_BYTES,
    FRAME,
    FRAME_BYTES,
    BlockHeader,
    FlushWriter,
    FrameDamaged,
    FrameHeader,
    FrameKind,
    flush_crc,
    parse_commit,
    parse_header,
    payload_of,
)
from tests.unit.log.parts import NOW_US, flush_bytes, make_batch, make_place

HEADER = BlockHeader(7, bytes(range(16)), 3, 1, 42, NOW_US)


def frames_of(data: bytes, position: int, block: int = 1) -> list[FrameHeader]:
    found = []
    at = 0
    while at < len(data):
        header = parse_header(data, at, position + at, block)
        payload_of(data, at, header)
        found.append(header)
        at += header.total_len
    return found


def test_what_was_written_comes_back():
    batches = [
        make_batch([b"a", None, b"ccc"], stream=5, shard=2, producer=9, epoch=1, sequence=4, generation=1),
        make_batch([b"d" * 1000], stream=6),
    ]
    data = flush_bytes(batches, block=3, flush=17, position=640)
    first, second, commit = frames_of(data, 640, block=3)
    assert first.batch_header(b"") == batches[0].header
    assert second.batch_header(b"") == batches[1].header
    assert (first.kind, second.kind, commit.kind) == (FrameKind.DATA, FrameKind.DATA, FrameKind.COMMIT)
    assert {header.flush for header in (first, second, commit)} == {17}
    assert bytes(payload_of(data, 0, first)) == batches[0].payload
    said = parse_commit(commit, payload_of(data, commit.position - 640, commit))
    assert (said.first_position, said.flush_crc) == (640, flush_crc([first, second]))
    assert commit.count == 2


def test_a_staged_frame_says_its_transaction_and_readers_do_not_see_it():
    batch = make_batch([b"a", b"b"], stream=5, shard=2)
    writer = FlushWriter(make_place(), BLOCK_HEADER_BYTES)
    writer.add_staged(msgspec.structs.replace(batch.header, transaction=77), batch.payload)
    (found,) = frames_of(b"".join(bytes(buffer) for buffer in writer.buffers), BLOCK_HEADER_BYTES)
    assert (found.kind, found.transaction, found.span) == (FrameKind.STAGED, 77, 2)
    assert found.batch_header(b"") == batch.header


def test_statistics_travel_with_the_header():
    statistics = bytes(range(64))
    batch = make_batch([b"a"])
    header = msgspec.structs.replace(batch.header, statistics=statistics)
    writer = FlushWriter(make_place(), 64)
    writer.add_data(header, batch.payload)
    data = b"".join(bytes(buffer) for buffer in writer.buffers)
    found = parse_header(data, 0, 64, 1)
    assert found.header_len == FRAME_BYTES + 64
    assert found.batch_header(data[FRAME_BYTES : FRAME_BYTES + 64]) == header
    for place in range(FRAME_BYTES, FRAME_BYTES + 64):
        damaged = bytearray(data)
        damaged[place] ^= 0x80
        with pytest.raises(FrameDamaged):
            parse_header(damaged, 0, 64, 1)


@pytest.mark.parametrize("length", range(20))
def test_frames_are_aligned_whatever_the_payload(length):
    data = flush_bytes([make_batch([b"v" * length]), make_batch([b"w" * (length + 1)])])
    assert len(data) % ALIGNMENT == 0
    assert all(header.position % ALIGNMENT == 0 for header in frames_of(data, 64))


def test_positions_are_where_the_frames_lie():
    writer = FlushWriter(make_place(), 128)
    positions = [
        writer.add_data(batch.header, batch.payload) for batch in [make_batch([b"a"]), make_batch([b"b" * 99])]
    ]
    positions.append(writer.add_commit(NOW_US, 0, 0))
    assert writer.positions == positions
    data = b"".join(bytes(buffer) for buffer in writer.buffers)
    assert [header.position for header in frames_of(data, 128)] == positions
    assert writer.end == 128 + len(data)


def test_every_flip_of_every_bit_of_the_header_is_detected():
    data = flush_bytes([make_batch([b"value"])])
    for place in range(FRAME_BYTES):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            with pytest.raises(FrameDamaged):
                parse_header(damaged, 0, 64, 1)


def test_every_flip_in_the_payload_is_detected_and_the_header_still_says_where_the_next_frame_is():
    batch = make_batch([b"some value"])
    data = flush_bytes([batch])
    for place in range(FRAME_BYTES, FRAME_BYTES + batch.header.stored_len):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        header = parse_header(damaged, 0, 64, 1)
        assert header.total_len == parse_header(data, 0, 64, 1).total_len
        with pytest.raises(FrameDamaged, match="payload checksum"):
            payload_of(damaged, 0, header)


@pytest.mark.parametrize(("block", "position"), [(2, 64), (1, 72), (1, 0), (0, 64)])
def test_a_frame_in_the_wrong_place_names_its_own(block, position):
    data = flush_bytes([make_batch([b"value"])], block=1, position=64)
    with pytest.raises(FrameDamaged, match="belongs to block 1 byte 64"):
        parse_header(data, 0, position, block)


def test_every_truncation_is_detected():
    batch = make_batch([b"value" * 10])
    data = flush_bytes([batch])
    end = FRAME_BYTES + batch.header.stored_len
    for length in range(end):
        with pytest.raises(FrameDamaged):
            payload_of(data[:length], 0, parse_header(data[:length], 0, 64, 1))
    payload_of(data[:end], 0, parse_header(data[:end], 0, 64, 1))


def rewritten(data: bytes, **fields: int) -> bytes:
    """The first frame with other header fields and a checksum that is right again: a hostile frame, not a torn one."""
    from mainstem.core.checksum import crc32c

    header = FrameHeader._make(FRAME.unpack_from(data))._replace(**fields)
    packed = bytearray(FRAME.pack(*header))
    packed[4:8] = struct.pack("<I", crc32c(packed[8:]))
    return bytes(packed) + data[FRAME_BYTES:]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"version": 0}, "version 0"),
        ({"header_len": FRAME_BYTES - 8}, "header length"),
        ({"header_len": FRAME_BYTES + STATISTICS_BYTES_MAX + 8}, "header length"),
        ({"header_len": FRAME_BYTES + 4}, "header length"),
        ({"header_len": 2**32 - 8}, "header length"),
        ({"stored_len": PAYLOAD_STORED_BYTES_MAX + 1}, "over the limit"),
        ({"stored_len": 2**32 - 1}, "over the limit"),
        ({"magic": 0x3246534D}, "no frame begins here"),
    ],
)
def test_a_frame_that_claims_too_much_is_refused_before_anything_is_allocated(fields, reason):
    data = rewritten(flush_bytes([make_batch([b"value"])]), **fields)
    with pytest.raises(FrameDamaged, match=reason):
        parse_header(data, 0, 64, 1)


def test_a_frame_of_a_newer_version_is_not_damage():
    data = rewritten(flush_bytes([make_batch([b"value"])]), version=2)
    with pytest.raises(FolderUnusable, match=r"version 2, this program reads up to version 1"):
        parse_header(data, 0, 64, 1)
    with pytest.raises(FrameDamaged, match="belongs to block 1"):
        parse_header(data, 0, 64, 2)


def test_a_commit_of_the_wrong_size_is_refused():
    header = parse_header(flush_bytes([make_batch()]), 0, 64, 1)
    for size in (0, 31, 33):
        with pytest.raises(FrameDamaged, match="wrong size"):
            parse_commit(header, bytes(size))


def test_a_commit_covers_every_frame_in_its_order():
    headers = frames_of(flush_bytes([make_batch([b"a"]), make_batch([b"b"])]), 64)[:2]
    assert flush_crc(headers) != flush_crc(headers[::-1])
    assert flush_crc(headers) != flush_crc(headers[:1])


@settings(max_examples=300)
@given(st.binary(max_size=400), st.integers(0, 8))
def test_random_bytes_are_never_a_frame(data, at):
    with pytest.raises(FrameDamaged):
        parse_header(data, min(at, len(data)), 64, 1)


# The block's own header.


def test_a_block_header_comes_back():
    packed = HEADER.pack()
    assert len(packed) == BLOCK_HEADER_BYTES
    assert BlockHeader.parse(packed) == HEADER
    assert BlockHeader.parse(packed + b"frames follow") == HEADER


def test_every_flip_of_every_byte_of_a_block_header_is_detected():
    packed = HEADER.pack()
    for place in range(BLOCK_HEADER_BYTES):
        for bit in range(8):
            damaged = bytearray(packed)
            damaged[place] ^= 1 << bit
            with pytest.raises(FrameDamaged):
                BlockHeader.parse(bytes(damaged))


def test_a_block_header_cut_short_is_detected():
    packed = HEADER.pack()
    for length in range(BLOCK_HEADER_BYTES):
        with pytest.raises(FrameDamaged):
            BlockHeader.parse(packed[:length])
