"""The newest record of each key, against a dict."""

import unittest.mock

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given

from mainstem.spark.generations import generation_of
from mainstem.spark.jobs import newest

GENERATIONS = [(2, (10,)), (4, (20, 8))]
PLACES = st.tuples(st.integers(0, 3), st.integers(0, 30))


@given(st.dictionaries(PLACES, st.none() | st.sampled_from([b"", b"a", b"b", b"c"]), max_size=40))
def test_the_newest_of_each_key(records):
    batches = [_batch(shard, records) for shard in range(4)]
    found = newest.newest_of(pa.Table.from_batches(batches))
    assert {row["_key"]: (row["_shard"], row["_offset"]) for row in found.to_pylist()} == _oracle(records)
    assert found.num_rows == len(_oracle(records))


@given(st.dictionaries(PLACES, st.sampled_from([b"a", b"b", b"c"]), max_size=60), st.integers(1, 20))
def test_in_bounded_memory_the_newest_comes_too(records, rows_max):
    batches = [_batch(shard, records) for shard in range(4)]
    with unittest.mock.patch.object(newest, "_HELD_ROWS_MAX", rows_max):
        tables = list(newest.newest_batches(batches))
    found = newest.newest_of(pa.concat_tables(tables))
    assert {row["_key"]: (row["_shard"], row["_offset"]) for row in found.to_pylist()} == _oracle(records)


def _batch(shard, records):
    places = sorted(offset for where, offset in records if where == shard)
    rows = pa.record_batch(
        {
            "_key": pa.array([records[shard, offset] for offset in places], pa.binary()),
            "_shard": pa.array([shard] * len(places), pa.int32()),
            "_offset": pa.array(places, pa.int64()),
        }
    )
    return newest.with_generation(rows, shard, GENERATIONS)


def _oracle(records):
    def age(place):
        shard, offset = place
        return generation_of(shard, offset, GENERATIONS), offset, shard

    found = {}
    for place in sorted(records, key=age):
        if records[place] is not None:
            found[records[place]] = place
    return found
