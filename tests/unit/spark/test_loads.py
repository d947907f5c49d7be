"""How history is cut into loads: everything once, bounded, and never past a change of shards too early."""

import hypothesis.strategies as st
from hypothesis import given

from mainstem.spark.generations import generation_of
from mainstem.spark.jobs.loads import Bound, Load, plan_loads


def test_one_load_if_it_fits():
    assert list(plan_loads((0, 5), (10, 7), (), Bound(100))) == [Load((0, 5), (10, 7))]


def test_nothing_to_load():
    assert list(plan_loads((3, 4), (3, 4), (), Bound(100))) == []


def test_a_large_stretch_is_cut_in_proportion():
    loads = list(plan_loads((0, 0), (100, 300), (), Bound(100)))
    assert [load.offsets for load in loads] == [100, 100, 100, 100]
    assert loads[0] == Load((0, 0), (25, 75))


def test_a_load_stops_where_shards_were_added():
    """Two shards until offsets 10 and 20, then four."""
    generations = [(4, (10, 20))]
    loads = list(plan_loads((0, 0, 0, 0), (15, 25, 5, 5), generations, Bound(1_000)))
    assert loads == [Load((0, 0, 0, 0), (10, 20, 0, 0)), Load((10, 20, 0, 0), (15, 25, 5, 5))]
    assert [generation_of(0, offset, generations) for offset in (9, 10)] == [0, 1]
    assert generation_of(3, 0, generations) == 1


def test_records_of_many_bytes_are_few_in_a_load():
    """The first fifty have a byte each, the rest a hundred."""

    def size(load):
        return sum(1 if at < 50 else 100 for at in range(load.start[0], load.end[0]))

    loads = list(plan_loads((0,), (100,), (), Bound(80, 1_000, size)))
    assert all(size(load) <= 1_000 for load in loads)
    assert sum(load.offsets for load in loads) == 100
    assert len(loads) <= 10
    # One record is a load, however large.
    assert [load.offsets for load in plan_loads((0,), (3,), (), Bound(80, 10, lambda load: 1_000))] == [1, 1, 1]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6),
    st.integers(1, 40),
    st.data(),
)
def test_every_offset_is_in_one_load(shards, offsets_max, data):
    start = tuple(low for low, _ in shards)
    end = tuple(low + more for low, more in shards)
    barriers = tuple(data.draw(st.integers(0, limit)) for limit in end[: data.draw(st.integers(0, len(end)))])
    generations = [(len(end), barriers)] if barriers else []
    place = start
    for load in plan_loads(start, end, generations, Bound(offsets_max)):
        assert load.start == place
        assert 0 < load.offsets <= offsets_max
        assert all(low <= high for low, high in zip(load.start, load.end, strict=True))
        ages = {
            generation_of(shard, at, generations)
            for shard in range(len(end))
            for at in range(load.start[shard], load.end[shard])
        }
        assert len(ages) <= 1
        place = load.end
    assert place == end
