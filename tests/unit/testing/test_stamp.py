"""Stamps: read back, pinned, told from any other bytes, alone and by the array."""

import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.testing.stamp import STAMP_BYTES, Stamp, read_stamp, read_stamps, stamp, stamps


@given(st.integers(0, 2**24 - 1), st.integers(0, 2**40 - 1), st.integers(STAMP_BYTES, 300))
def test_stamp_is_read_back(producer: int, sequence: int, size: int):
    value = stamp(producer, sequence, size)
    assert len(value) == size
    assert value == stamp(producer, sequence, size)
    assert read_stamp(value) == Stamp(producer, sequence)
    assert stamps(producer, [sequence], size).to_pylist() == [value]


def test_stamp_bytes_are_pinned():
    value = stamp(7, 300, 20)
    assert value[:12].hex() == "07000000" + "2c01000000000000"
    assert int.from_bytes(value[12:16], "little") == zlib.crc32(value[:12] + value[16:])


def test_stamp_larger_than_the_filler():
    value = stamp(1, 2, 300_000)
    assert read_stamp(value) == Stamp(1, 2)
    assert stamps(1, [2], 300_000)[0].as_py() == value


@given(st.binary(max_size=64))
def test_other_bytes_are_not_a_stamp(value: bytes):
    assert read_stamp(value) is None


def test_a_valid_checksum_over_numbers_too_large_is_not_a_stamp():
    identity = (2**32 - 1).to_bytes(4, "little") + (5).to_bytes(8, "little")
    value = identity + zlib.crc32(identity).to_bytes(4, "little")
    assert read_stamp(value) is None
    assert not read_stamps(pa.array([value]))[2].any()


def test_stamp_smaller_than_its_header_is_refused():
    with pytest.raises(ValueError, match="at least 16 bytes"):
        stamp(1, 1, 15)


@given(st.lists(st.one_of(st.none(), st.binary(max_size=40), st.builds(stamp, st.integers(0, 9), st.integers(0, 99)))))
def test_read_stamps_agrees_with_read_stamp(values: list[bytes | None]):
    for array in (
        pa.array(values, pa.binary()),
        pa.array(values, pa.large_binary()),
        pa.array([b"before", *values, b"after"], pa.binary())[1:-1],
        pa.chunked_array([values[:1], values[1:]], pa.binary()),
    ):
        producers, sequences, intact = read_stamps(array)
        expected = [None if value is None else read_stamp(value) for value in values]
        found = [
            Stamp(int(producer), int(sequence)) if good else None
            for producer, sequence, good in zip(producers, sequences, intact, strict=True)
        ]
        assert found == expected


def test_read_stamps_of_an_empty_chunked_array():
    assert len(read_stamps(pa.chunked_array([], pa.binary()))[2]) == 0
