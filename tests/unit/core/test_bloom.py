"""The filter: what is in it is always found, what is not is found seldom, and its bytes are what the format says."""

import hashlib
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core import bloom
from mainstem.core.limits import FILTER_BYTES_MAX

MASK = (1 << 64) - 1


def by_the_book(value: bytes) -> int:
    """The hash as the format describes it, one step after the other."""
    if len(value) > 256:
        value = hashlib.blake2b(value, digest_size=16).digest()
    h = 0x243F6A8885A308D3 ^ len(value)
    words = [value[at : at + 8] if at + 8 <= max(8, len(value)) else value[-8:] for at in range(0, len(value), 8)]
    for at in range(0, len(words), 2):
        a, b = (int.from_bytes(word, "little") for word in (*words, b"")[at : at + 2])
        h = ((h ^ a) * 0xA0761D6478BD642F ^ b * 0xE7037ED1A0B428DB) & MASK
        h ^= h >> 32
    h = h * 0x9E3779B97F4A7C15 & MASK
    return h ^ h >> 32


def bits_of(value_hash: int, blocks: int) -> list[int]:
    block = (value_hash >> 32) * blocks >> 32
    return [256 * block + 64 * i + (value_hash >> 8 * i & 63) for i in range(4)]


def found(made: bytes, value_hash: int) -> bool:
    return bloom.may_contain(made, 0, len(made), value_hash)


@given(st.lists(st.none() | st.binary(max_size=40) | st.binary(min_size=250, max_size=300), max_size=30), st.data())
def test_a_column_and_single_values_have_the_same_hashes(values, data):
    first = data.draw(st.integers(0, len(values)))
    hashes = bloom.hashes_of_bytes(pa.array(values, pa.binary()).slice(first))
    present = [value for value in values[first:] if value is not None]
    assert hashes.tolist() == [bloom.hash_bytes(value) for value in present] == list(map(by_the_book, present))


@given(st.integers(0, 40), st.lists(st.binary(min_size=40, max_size=40), min_size=1, max_size=9))
def test_values_of_one_length_have_the_same_hashes_as_others(length, values):
    values = [value[:length] for value in values]
    assert bloom.hashes_of_bytes(pa.array(values, pa.binary())).tolist() == list(map(by_the_book, values))


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20), st.lists(st.floats(width=32), max_size=20))
def test_numbers_and_columns_of_them_have_the_same_hashes(numbers, floats):
    assert bloom.hashes_of_ints(np.array(numbers, np.int64)).tolist() == [bloom.hash_int(n) for n in numbers]
    assert [bloom.hash_int(n) for n in numbers] == [by_the_book(struct.pack("<q", n)) for n in numbers]
    present = [value for value in floats if value == value]
    for kind in (np.float32, np.float64):
        hashes = bloom.hashes_of_floats(np.array(floats, kind))
        assert hashes.tolist() == [bloom.hash_float(value) for value in present]


def test_numbers_of_every_width():
    for kind in (np.int8, np.uint8, np.int32, np.uint64):
        limits = np.iinfo(kind)
        hashes = bloom.hashes_of_ints(np.array([limits.min, 7, limits.max], kind))
        assert hashes.tolist() == [bloom.hash_int(int(n)) for n in (limits.min, 7, limits.max)]
    assert bloom.hash_float(-0.0) == bloom.hash_float(0.0) == bloom.hash_int(0)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=300), st.integers(32, 4_096))
def test_what_is_in_a_filter_is_found(values, bytes_max):
    made = bloom.build(bloom.hashes_of_bytes(pa.array(values, pa.binary())), bytes_max)
    assert len(made) % bloom.BLOCK_BYTES == 0
    assert len(made) <= bytes_max
    # Without a filter nothing is excluded.
    assert not made or all(found(made, bloom.hash_bytes(value)) for value in values)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=300))
def test_the_bits_are_those_of_the_format(values):
    made = bloom.build(bloom.hashes_of_bytes(pa.array(values, pa.binary())), FILTER_BYTES_MAX)
    expected = {bit for value in values for bit in bits_of(by_the_book(value), len(made) // 32)}
    bits = np.unpackbits(np.frombuffer(made, np.uint8), bitorder="little")
    assert set(np.flatnonzero(bits).tolist()) == expected


COLUMNS = {
    "numbers that count up": lambda first, count: bloom.hashes_of_ints(np.arange(first, first + count)),
    "high bits only": lambda first, count: bloom.hashes_of_ints(np.arange(first, first + count) << 40),
    "times": lambda first, count: bloom.hashes_of_ints(np.arange(first, first + count) * 1_000_000),
    "floats": lambda first, count: bloom.hashes_of_floats(np.arange(first, first + count) / 4),
    "numbers as text": lambda first, count: bloom.hashes_of_bytes(
        pa.array([b"%d" % number for number in range(first, first + count)], pa.binary())
    ),
    "one long beginning": lambda first, count: bloom.hashes_of_bytes(
        pa.array([b"customers/europe/%09d" % number for number in range(first, first + count)], pa.binary())
    ),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS.keys())
def test_what_is_not_in_a_filter_is_seldom_found(column):
    made = bloom.build(column(0, 10_000), FILTER_BYTES_MAX)
    assert 15 * 10_000 < 8 * len(made) <= 16 * 10_000
    absent = column(10_000, 5_000).tolist()
    assert sum(found(made, value_hash) for value_hash in absent) / len(absent) < 0.01


def test_few_different_values_make_a_small_filter():
    names = [b"open", b"paid", b"sent"] * 20_000
    made = bloom.build(bloom.hashes_of_bytes(pa.array(names, pa.binary())), FILTER_BYTES_MAX)
    assert len(made) <= 1_024
    assert all(found(made, bloom.hash_bytes(name)) for name in set(names))
    absent = sum(found(made, bloom.hash_bytes(b"%d" % number)) for number in range(2_000))
    assert absent < 20


def test_beyond_its_cap_a_filter_has_fewer_bits_and_then_none():
    hashes = bloom.hashes_of_ints(np.arange(10_000))
    half = bloom.build(hashes, 10_000)
    assert 9_000 < len(half) <= 10_000
    absent = [bloom.hash_int(number) for number in range(10_000, 15_000)]
    assert sum(found(half, value_hash) for value_hash in absent) / len(absent) < 0.05
    assert bloom.build(hashes, 2_000) == bloom.build(hashes, 0) == b""
    assert len(bloom.build(bloom.hashes_of_ints(np.arange(1 << 18)), FILTER_BYTES_MAX)) == FILTER_BYTES_MAX
