"""The comparison of what was acknowledged with what was read: it finds each fault, and only that one."""

import numpy as np
import pytest

from mainstem.demo.account import ROW, Fault, compare, plant
from mainstem.demo.events import STREAMS, events, read_stamp


@pytest.fixture
def rows():
    """Two writers in four shards of two streams, in the order of reading."""
    found = [
        (stream, 1, shard, writer, 7 * offset + shard, offset, 10 * offset + 2 * shard + (stream == 1), 0, 0)
        for stream in range(2)
        for shard in range(4)
        for offset in range(50)
        for writer in [1 + offset % 2]
    ]
    return np.array(found, dtype=ROW)


def test_nothing_is_wrong(rows):
    assert compare(rows[::-1].copy(), rows, STREAMS).is_good


@pytest.mark.parametrize("fault", Fault)
def test_each_fault_is_found_alone(rows, fault):
    verdict = compare(rows, plant(rows, fault), STREAMS)
    assert [finding.fault for finding in verdict.findings] == [fault]
    assert str(verdict.findings[0]).startswith(f"1 record is {fault}: demo.clicks shard 0 offset ")


def test_what_was_never_answered_may_be_there_or_not(rows):
    acknowledged = rows.copy()
    acknowledged["known"][[3, 5]] = 0
    verdict = compare(acknowledged, np.delete(rows, 3), STREAMS)
    assert verdict.is_good
    assert (verdict.acknowledged, verdict.read, verdict.unsure) == (398, 399, 1)


def test_a_record_at_another_place_than_was_said(rows):
    moved = rows.copy()
    moved["shard"][0] = 3
    (finding,) = compare(rows, moved, STREAMS).findings
    assert finding.fault is Fault.CHANGED


def test_nothing_read_and_nothing_to_break(rows):
    nothing = np.empty(0, dtype=ROW)
    assert len(plant(nothing, Fault.SWAPPED)) == 0
    assert compare(nothing, nothing, STREAMS).is_good
    (finding,) = compare(rows, nothing, STREAMS).findings
    assert (finding.fault, finding.count) == (Fault.MISSING, 400)


def test_events_are_numbered_per_stream_and_can_be_recognised():
    made = events(3, np.random.default_rng(1))
    numbers: dict[int, int] = {0: 0, 1: 0}
    for event in (next(made) for _ in range(1_000)):
        stamp = read_stamp(event.value)
        assert stamp is not None
        assert (stamp.writer, stamp.number) == (3, event.number) == (3, numbers[event.stream])
        numbers[event.stream] += 1
    assert min(numbers.values()) > 100
    assert read_stamp(b"{}") is None
    assert read_stamp(None) is None
