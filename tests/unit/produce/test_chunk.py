"""A table that is made into batches before its turn comes."""

import msgspec
import pyarrow as pa
import pytest

from mainstem.core import payload
from mainstem.core.batch import Batch
from mainstem.core.errors import InvalidRequest
from mainstem.produce.chunk import Chunk, Parcel
from mainstem.transport.port import StreamInfo

STREAM = StreamInfo(1, f"{1:032x}", "s", 1, "crc32", 0, 1, 1, (0,), (0,), 0, 1)
MORE_SHARDS = msgspec.structs.replace(STREAM, shards=4, generation=STREAM.generation + 1)
KEYS = [b"%d" % number for number in range(100)]


@pytest.fixture
def chunk() -> Chunk:
    made = Chunk(STREAM, 5, Parcel(lambda parcel, timeout: True, 0.0), 0)
    made.batch = pa.record_batch({"key": KEYS, "value": [b"v%s" % key for key in KEYS]})
    made.seal()
    return made


def values_in(batch: Batch) -> list[bytes]:
    header = batch.header
    found = payload.decode(header.encoding, header.layout, header.count, header.raw_len, batch.payload)
    return found.column("value").to_pylist()


def test_is_handed_over_as_it_was_made(chunk):
    chunk.encode_ahead(0, "lz4")
    (made,) = chunk.ahead[1]
    assert chunk.encode(1, "lz4") == [made]
    assert values_in(made) == [b"v%s" % key for key in KEYS]


def test_is_made_anew_for_more_shards(chunk):
    chunk.encode_ahead(0, None)
    chunk.stream = MORE_SHARDS
    batches = chunk.encode(1, None)
    assert {batch.header.shard for batch in batches} == {0, 1, 2, 3}
    assert {batch.header.generation for batch in batches} == {MORE_SHARDS.generation}
    found = {batch.header.shard: values_in(batch) for batch in batches}
    assert sorted(value for values in found.values() for value in values) == sorted(b"v%s" % key for key in KEYS)
    # Where an ack says that a record is, it is.
    chunk.bases = dict.fromkeys(range(4), 0)
    assert [found[shard][offset] for shard, offset in map(chunk.placed, range(100))] == [b"v%s" % key for key in KEYS]


def test_that_must_stand_together_is_checked_anew_for_more_shards(chunk):
    chunk.atomic_in = STREAM.generation
    chunk.encode_ahead(0, None)
    chunk.stream = MORE_SHARDS
    with pytest.raises(InvalidRequest, match="must belong to one shard"):
        chunk.encode(1, None)


def test_that_comes_back_is_made_again(chunk):
    chunk.encode_ahead(0, None)
    chunk.encode(1, None)
    chunk.stream = MORE_SHARDS
    assert sum(batch.header.count for batch in chunk.encode(2, None)) == 100
