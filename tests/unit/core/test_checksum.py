"""crc32c: the published values, every kind of buffer, and what it is for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core.checksum import crc32c


def bitwise(data: bytes) -> int:
    """The definition: the reflected Castagnoli polynomial, one bit at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


# From RFC 3720, B.4, and the usual check value.
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_values(data, expected):
    assert crc32c(data) == expected == bitwise(data)


@given(st.binary(max_size=300))
def test_it_is_crc32c_whatever_the_buffer(data):
    expected = bitwise(data)
    assert crc32c(data) == expected
    assert crc32c(bytearray(data)) == expected
    assert crc32c(memoryview(data)) == expected
    assert crc32c(memoryview(b"xx" + data + b"y")[2 : 2 + len(data)]) == expected


@given(st.binary(min_size=1, max_size=200), st.data())
def test_one_flipped_bit_always_shows(data, choose):
    bit = choose.draw(st.integers(0, 8 * len(data) - 1))
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    assert crc32c(flipped) != crc32c(data)
