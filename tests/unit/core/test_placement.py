"""Placement: the same shard as Kafka's clients choose, and batches cut up without losing or reordering a record."""

import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core import layouts, placement
from mainstem.core.errors import InvalidSetting

# From Kafka's UtilsTest.java.
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}

keys_of = st.lists(st.none() | st.binary(max_size=20), max_size=50)


def murmur2(key):
    """The algorithm one byte at a time, as its author wrote it."""
    mask = 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    for i in range(0, len(key) - len(key) % 4, 4):
        k = int.from_bytes(key[i : i + 4], "little") * 0x5BD1E995 & mask
        k = (k ^ k >> 24) * 0x5BD1E995 & mask
        h = h * 0x5BD1E995 & mask ^ k
    if tail := key[len(key) - len(key) % 4 :]:
        h = (h ^ int.from_bytes(tail, "little")) * 0x5BD1E995 & mask
    h = (h ^ h >> 13) * 0x5BD1E995 & mask
    return h ^ h >> 15


def test_murmur2_gives_kafkas_published_answers():
    hashes = placement.murmur2(list(MURMUR2))
    assert hashes.astype(np.int32).tolist() == list(MURMUR2.values())
    for key, expected in MURMUR2.items():
        assert placement.murmur2([key, key]).astype(np.int32).tolist() == [expected] * 2


@given(st.lists(st.binary(max_size=70)))
def test_murmur2_agrees_with_the_scalar_algorithm(keys):
    assert placement.murmur2(keys).tolist() == [murmur2(key) for key in keys]


@given(keys_of, st.integers(1, 4096), st.data())
def test_every_key_is_placed_as_the_formula_says(keys, shards, data):
    sticky = data.draw(st.integers(0, shards - 1))
    by_crc = [sticky if key is None else zlib.crc32(key) % shards for key in keys]
    by_murmur = [sticky if key is None else (murmur2(key) & 0x7FFFFFFF) % shards for key in keys]
    assert placement.shards_for(keys, shards, "crc32", sticky).tolist() == by_crc
    assert placement.shards_for(keys, shards, "murmur2", sticky).tolist() == by_murmur
    assert placement.shards_for(keys, shards, "crc32", sticky).dtype == np.uint32
    assert [placement.shards_for([key], shards, "crc32", sticky)[0] for key in keys] == by_crc


@given(st.lists(st.none() | st.binary(max_size=30) | st.binary(min_size=60, max_size=70), max_size=30), st.data())
def test_a_column_of_keys_is_placed_like_single_ones(keys, data):
    first = data.draw(st.integers(0, len(keys)))
    found = placement.shards_for(pa.array(keys, pa.binary()).slice(first), 4096, "crc32", 7)
    assert found.tolist() == [7 if key is None else zlib.crc32(key) % 4096 for key in keys[first:]]


def test_only_keys_that_are_missing_are_sticky():
    assert placement.shards_for([None, None], 8, "murmur2", 5).tolist() == [5, 5]
    assert placement.shards_for([b""], 8, "crc32", 5).tolist() == [0]


def test_an_unknown_hash_is_refused():
    with pytest.raises(InvalidSetting, match="crc32, murmur2"):
        placement.shards_for([b"k"], 2, "md5", 0)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_split_keeps_every_record_in_its_shard_and_order(shard_of):
    batch = layouts.build([b"%d" % i for i in range(len(shard_of))])
    rank, pieces = placement.split(batch, np.array(shard_of, np.uint32), 6)
    expected = {s: [b"%d" % i for i, shard in enumerate(shard_of) if shard == s] for s in sorted(set(shard_of))}
    assert {shard: piece.column(0).to_pylist() for shard, piece in pieces} == expected
    assert [shard for shard, _ in pieces] == sorted(set(shard_of))
    for row, shard in enumerate(shard_of):
        assert expected[shard][rank[row]] == b"%d" % row


def test_split_shares_a_batch_that_belongs_to_one_shard():
    batch = layouts.build([b"a", b"b"])
    rank, pieces = placement.split(batch, np.array([3, 3], np.uint32), 4)
    assert pieces == [(3, batch)]
    assert pieces[0][1] is batch
    assert rank.tolist() == [0, 1]


def test_split_keeps_every_column():
    batch = layouts.build([b"a", b"b", b"c"], [b"x", b"y", b"x"], [{"n": b"1"}, None, {}], [1, 2, 3])
    _, pieces = placement.split(batch, np.array([1, 0, 1], np.uint32), 2)
    assert [piece.schema for _, piece in pieces] == [batch.schema] * 2
    assert pieces[1][1].equals(batch.take(pa.array([0, 2])))


def test_split_of_nothing_has_no_pieces():
    assert placement.split(layouts.build([]), np.array([], np.uint32), 4).pieces == []
