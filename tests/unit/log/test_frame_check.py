"""The first look at the bytes of a block while they pass by: whatever the pieces, damage anywhere is noticed."""

import random

import pytest

from mainstem.core.batch import BatchHeader
from mainstem.core.checksum import crc32c
from mainstem.log.frame import BLOCK_HEADER_BYTES, BlockHeader, FlushWriter, Place
from mainstem.log.frame_check import FrameCheck


def block_of(*sizes: int) -> bytes:
    """A block with one flush of frames whose payloads have these sizes."""
    writer = FlushWriter(Place(3, 1, 1, 1, 0), BLOCK_HEADER_BYTES)
    for size in sizes:
        payload = random.Random(size).randbytes(size)
        writer.add_data(BatchHeader(1, 0, 1, 1, 0, 0, size, size, crc32c(payload), 0, 0, 0, 0, 0, 0), payload)
    writer.add_commit(0, 0, 0)
    return BlockHeader(3, bytes(16), 1, 1, 1, 0).pack() + b"".join(map(bytes, writer.buffers))


def is_sound(content: bytes, cuts: list[int], block: int = 3) -> bool:
    check = FrameCheck(block)
    for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        check.add(content[begin:end])
    return check.is_sound()


CONTENT = block_of(0, 1, 8, 500, 13, 3_000)


@pytest.mark.parametrize("size", [1, 7, 64, 135, 136, 137, 1_000, 1 << 20])
def test_in_pieces_of_any_size(size):
    assert is_sound(CONTENT, list(range(size, len(CONTENT), size)))


def test_every_byte_but_padding_counts():
    rng = random.Random(5)
    unnoticed = []
    for position in range(len(CONTENT)):
        damaged = bytearray(CONTENT)
        damaged[position] ^= 1 << rng.randrange(8)
        if is_sound(bytes(damaged), [rng.randrange(1, len(CONTENT))]):
            unnoticed.append(position)
    # Payloads of 1, 500 and 13 bytes are padded to whole words.
    assert len(unnoticed) == 7 + 4 + 3
    assert all(CONTENT[position] == 0 for position in unnoticed)


def test_a_block_that_is_cut_and_one_of_another_number_are_not_sound():
    whole = {0, 64, 200, 344, 488, 1_128, 1_280, 4_416}
    for end in range(len(CONTENT)):
        assert is_sound(CONTENT[:end], []) == (end in whole), end
    assert not is_sound(CONTENT, [], block=4)
