"""What readers share: found from any offset in it, bounded, and gone when something of it is erased."""

import itertools
import random
from contextlib import closing

from mainstem.core.batch import FetchedBatch
from mainstem.log.ledger.base import ShardKey
from mainstem.log.log import Log, LogOptions
from mainstem.log.shared_reads import SharedReads
from tests.unit.log.parts import append_values, make_batch, make_stream

SHARD: ShardKey = (1, 0)


def fetched(base: int, count: int = 10, size: int = 100) -> FetchedBatch:
    batch = make_batch([bytes(size)] * count)
    return FetchedBatch(base, batch.header, batch.payload)


def test_a_stretch_is_found_from_any_offset_in_it():
    shared = SharedReads(1 << 20)
    batches = [fetched(100), fetched(110), fetched(120)]
    shared.keep(SHARD, None, batches, shared.version)
    for offset in range(100, 130):
        found = shared.find(SHARD, None, offset)
        assert found is not None
        assert found.after(offset, 1 << 20) == batches[(offset - 100) // 10 :]
        assert found.after(offset, 1) == [batches[(offset - 100) // 10]]
    for offset in (99, 130):
        assert shared.find(SHARD, None, offset) is None
    assert shared.find((1, 1), None, 100) is None
    assert shared.find(SHARD, "a > 1", 100) is None


def test_what_was_not_used_for_longest_goes_first():
    shared = SharedReads(10_000)
    for base in (0, 10, 20):
        shared.keep(SHARD, None, [fetched(base)], shared.version)
    room = 10_000 // (shared.bytes // 3)
    assert shared.find(SHARD, None, 0) is not None
    for base in range(30, 10 * (room + 1), 10):
        shared.keep(SHARD, None, [fetched(base)], shared.version)
    assert shared.bytes <= 10_000
    assert shared.find(SHARD, None, 0) is not None
    assert shared.find(SHARD, None, 10) is None
    assert shared.find(SHARD, None, 20) is not None


def test_there_is_as_much_room_as_readers_share():
    """One reader alone keeps little. When a second comes from far behind the room grows, until all between them is
    kept; when he is gone it shrinks again."""
    shared = SharedReads(100_000, 10_000)

    def read(base: int) -> bool:
        """Whether it was there."""
        if shared.find(SHARD, None, base) is not None:
            return True
        shared.keep(SHARD, None, [fetched(base)], shared.version)
        return False

    for base in range(0, 1_000, 10):
        assert not read(base)
    assert shared.bytes <= 10_000
    found = []
    for base in range(1_000, 5_000, 10):
        assert not read(base)
        found.append(read(base - 150))
    assert sum(found[-100:]) == 100
    assert 20_000 < shared.bytes <= 100_000
    for base in range(5_000, 20_000, 10):
        read(base)
    assert shared.bytes <= 10_000


def test_a_stretch_that_begins_where_another_did_takes_its_place():
    shared = SharedReads(1 << 20)
    shared.keep(SHARD, None, [fetched(0)], shared.version)
    before = shared.bytes
    longer = [fetched(0), fetched(10)]
    shared.keep(SHARD, None, longer, shared.version)
    found = shared.find(SHARD, None, 15)
    assert found is not None
    assert found.batches == longer
    assert shared.bytes < 2 * before + 1_000


def test_one_that_would_fill_it_is_not_kept():
    shared = SharedReads(10_000)
    shared.keep(SHARD, None, [fetched(0, size=1_000)], shared.version)
    assert shared.find(SHARD, None, 0) is None
    assert shared.bytes == 0


def test_all_that_was_read_counts_not_only_what_is_wanted_of_it():
    shared = SharedReads(1 << 20)
    batch = fetched(0)
    whole = bytes(batch.payload) + bytes(50_000)
    part = FetchedBatch(0, batch.header, memoryview(whole)[: len(batch.payload)])
    shared.keep(SHARD, None, [part], shared.version)
    assert shared.bytes > 50_000


def test_what_was_looked_up_before_something_was_forgotten_is_not_kept():
    shared = SharedReads(1 << 20)
    version = shared.version
    shared.keep(SHARD, None, [fetched(0)], version)
    shared.keep(SHARD, "a > 1", [fetched(0)], version)
    shared.keep((2, 0), None, [fetched(0)], version)
    shared.forget(SHARD)
    assert shared.find(SHARD, None, 0) is None
    assert shared.find(SHARD, "a > 1", 0) is None
    assert shared.find((2, 0), None, 0) is not None
    shared.keep(SHARD, None, [fetched(0)], version)
    assert shared.find(SHARD, None, 0) is None
    shared.forget((2, 0))
    assert shared.bytes == 0


def test_readers_anywhere_soon_share_their_reads(tmp_path):
    """Twenty readers of a cold log, each from its own offset and with its own appetite, in any order: what they get is
    what is there, and the disk is asked for little more than once."""
    with closing(Log(tmp_path, LogOptions(hot_tail_bytes=0))) as log:
        stream = make_stream(log)
        written = [b"%05d" % number * 40 for number in range(5_000)]
        for first in range(0, len(written), 50):
            append_values(log, stream, *written[first : first + 50])
        size = log.counters()["live_bytes"]
    with closing(Log(tmp_path, LogOptions(hot_tail_bytes=0))) as log:
        row = log.reader.require_stream(stream)
        chance = random.Random(20)
        positions = [chance.randrange(500) for _ in range(20)]
        appetites = [chance.choice((1, 5_000, 100_000)) for _ in positions]
        while readers := [at for at, position in enumerate(positions) if position < len(written)]:
            at = chance.choice(readers)
            batches = log.reader.read(row, 0, positions[at], appetites[at])
            assert batches[0].base <= positions[at] < batches[0].end
            for one, other in itertools.pairwise(batches):
                assert one.end == other.base
            positions[at] = batches[-1].end
        assert size <= log.counters()["block_read_bytes"] < 1.3 * size
