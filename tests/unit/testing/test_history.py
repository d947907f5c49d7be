"""The history checker: each anomaly, made by hand, is found, counted once and shown; a clean history is ok."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.testing.history import (
    ANOMALIES,
    EXAMPLES_MAX,
    History,
    Report,
)
from mainstem.testing.stamp import STAMP_BYTES, stamp, stamps

COUNT = 10


def clean(count: int = COUNT) -> History:
    """Producer 1 sends `count` values to shard 0 and reader 0 reads them all."""
    history = History()
    history.sent(1, range(count))
    history.acked(1, range(count), 0, range(count))
    return history


def read_all(history: History, sequences: list[int], *, reader: int = 0, first: int = 0) -> None:
    history.positioned(reader, 0, first)
    history.read(reader, 0, range(first, first + len(sequences)), [stamp(1, n, 32) for n in sequences])


def assert_only(report: Report, **expected: int) -> None:
    assert report.anomalies == expected, str(report)
    assert not report.ok
    for name, count in expected.items():
        assert len(report.examples[name]) == min(count, EXAMPLES_MAX)
        assert name in str(report)


def test_a_clean_history_is_ok():
    history = clean()
    read_all(history, list(range(COUNT)))
    report = history.check()
    assert report.ok
    assert report.anomalies == {}
    assert (report.sent, report.acked, report.read, report.unknown) == (COUNT, COUNT, COUNT, 0)
    assert str(report).startswith("ok (sent 10, acked 10")


def test_an_empty_history_is_ok():
    assert History().check().ok


def test_lost_is_an_acked_value_that_readers_passed():
    history = clean()
    history.read(0, 0, [0, 1, 2], [stamp(1, n) for n in (0, 1, 2)])
    history.positioned(0, 0, 4)
    history.read(0, 0, range(4, 10), stamps(1, range(4, 10)))
    report = history.check()
    assert_only(report, lost=1)
    assert report.examples["lost"][0].startswith("value 3 of producer 1 at shard 0 offset 3 was acknowledged")


def test_lost_when_another_value_took_its_offset():
    """A node forgot its last record after acknowledging it, and gave the offset to another."""
    history = clean(4)
    history.sent(2, 0)
    history.acked(2, 0, 0, 3)
    read_all(history, [0, 1, 2])
    history.read(0, 0, 3, stamp(2, 0))
    assert_only(history.check(), lost=1, inconsistent=1)


def test_unseen_is_the_acked_end_that_nobody_reached():
    history = clean()
    read_all(history, list(range(8)))
    assert_only(history.check(), unseen=2)
    assert history.check(final=False).ok
    assert history.check(final=False).unseen == 2


def test_a_shard_that_nobody_read_is_unseen_not_lost():
    history = clean()
    read_all(history, list(range(COUNT)))
    history.acked(1, 10, 1, 0)
    history.acked(1, 11, 3, 5)
    assert_only(history.check(), unseen=2)


def test_duplicated_is_one_value_at_two_offsets():
    history = clean()
    read_all(history, [*range(COUNT), 4])
    report = history.check()
    assert_only(report, duplicated=1)
    assert report.examples["duplicated"] == ("value 4 of producer 1 is at shard 0 offset 4 and at shard 0 offset 10",)


def test_duplicated_in_another_shard():
    history = clean()
    read_all(history, list(range(COUNT)))
    history.read(0, 1, 0, stamp(1, 4))
    assert_only(history.check(), duplicated=1)


def test_acked_in_one_place_and_read_in_another_is_duplicated():
    history = clean(1)
    history.read(0, 0, 1, stamp(1, 0))
    assert_only(history.check(), duplicated=1)


def test_acked_again_at_the_same_place_is_fine():
    """A send that is repeated within the window is answered with its original offset."""
    history = clean()
    history.acked(1, 3, 0, 3)
    read_all(history, list(range(COUNT)))
    assert history.check().ok


def test_reordered_is_per_producer_and_shard():
    history = History()
    history.sent(1, range(4))
    history.acked(1, [0, 1, 2, 3], 0, [0, 2, 1, 3])
    history.read(0, 0, range(4), [stamp(1, n) for n in (0, 2, 1, 3)])
    report = history.check()
    assert_only(report, reordered=1)
    assert report.examples["reordered"][0] == (
        "value 2 of producer 1 is at shard 0 offset 1, before the earlier value 1 of producer 1 at shard 0 offset 2"
    )


def test_order_between_producers_and_between_shards_is_free():
    history = History()
    history.sent(1, range(4))
    history.sent(2, range(2))
    history.acked(1, [0, 1, 2, 3], [1, 0, 1, 0], [7, 0, 8, 1])
    history.acked(2, [0, 1], 0, [2, 3])
    history.read(0, 0, range(4), [stamp(1, 1), stamp(1, 3), stamp(2, 0), stamp(2, 1)])
    history.read(0, 1, [7, 8], [stamp(1, 0), stamp(1, 2)])
    assert history.check().ok


def test_values_of_unknown_outcome_take_part_in_the_order():
    history = History()
    history.sent(1, [0, 1])
    history.read(0, 0, [0, 1], [stamp(1, 1), stamp(1, 0)])
    assert_only(history.check(), reordered=1)


@pytest.mark.parametrize("position", [0, 5, 13, 20])
def test_corrupted_is_a_stamp_that_fails_its_check(position: int):
    history = clean()
    values = [bytearray(stamp(1, n, 32)) for n in range(COUNT)]
    values[6][position] ^= 0x10
    history.read(0, 0, range(COUNT), [bytes(value) for value in values])
    report = history.check()
    assert_only(report, corrupted=1)
    assert report.examples["corrupted"] == ("the record at shard 0 offset 6 fails its check",)


def test_corrupted_is_another_value_than_the_acked_one():
    history = clean()
    history.sent(1, 10)
    read_all(history, [0, 1, 2, 3, 10, 5, 6, 7, 8, 9])
    report = history.check()
    # Value 10 stands before 5: where it should not be, it is out of order too. Value 4 is nowhere.
    assert_only(report, lost=1, reordered=1, corrupted=1)
    assert report.examples["corrupted"] == (
        "value 10 of producer 1 was read at shard 0 offset 4, acknowledged for value 4 of producer 1",
    )


def test_empty_short_and_null_values_are_corrupted():
    history = clean(3)
    history.read(0, 0, range(3), [b"", b"short", None])
    assert_only(history.check(), corrupted=3)


def test_inconsistent_is_one_offset_with_two_values():
    history = History()
    history.sent(1, [0])
    history.sent(2, [0])
    history.read(0, 0, 0, stamp(1, 0))
    history.read(1, 0, 0, stamp(2, 0))
    report = history.check()
    assert_only(report, inconsistent=1)
    assert "value 0 of producer 1" in report.examples["inconsistent"][0]
    assert "value 0 of producer 2" in report.examples["inconsistent"][0]


def test_inconsistent_acknowledgements():
    history = History()
    history.acked(1, 0, 0, 0)
    history.acked(2, 0, 0, 0)
    assert history.check(final=False).anomalies == {"inconsistent": 1}


def test_a_gap_is_a_jump_that_nobody_explained():
    history = History()
    history.sent(1, range(4))
    history.read(0, 0, [0, 1, 5, 6], stamps(1, range(4)))
    report = history.check()
    assert_only(report, gaps=1)
    assert report.examples["gaps"] == ("reader 0 jumped to shard 0 offset 5 when 2 was next",)


def test_a_gap_at_the_beginning_shows_against_the_position():
    history = History()
    history.sent(1, 0)
    history.positioned(0, 0, 0)
    history.read(0, 0, 3, stamp(1, 0))
    assert_only(history.check(), gaps=1)


def test_a_gap_over_ranges_that_were_told_is_excused():
    history = clean()
    history.positioned(0, 0, 0)
    history.excused(0, 0, 3)
    history.excused(0, 4, 5)
    history.read(0, 0, range(6, 10), stamps(1, range(6, 10)))
    report = history.check()
    assert report.ok, str(report)
    assert report.excused == 6


def test_a_gap_wider_than_what_was_told_is_a_gap():
    history = clean()
    history.positioned(0, 0, 0)
    history.excused(0, 0, 4)
    history.read(0, 0, range(6, 10), stamps(1, range(6, 10)))
    assert_only(history.check(), gaps=1, lost=1)


def test_what_was_told_of_one_shard_excuses_no_other():
    history = clean()
    history.positioned(0, 0, 0)
    history.excused(1, 0, 100)
    history.read(0, 0, range(6, 10), stamps(1, range(6, 10)))
    assert_only(history.check(), gaps=1, lost=6)


def test_readers_have_positions_of_their_own():
    history = clean()
    read_all(history, list(range(COUNT)), reader=0)
    read_all(history, list(range(5, COUNT)), reader=1, first=5)
    assert history.check().ok


def test_rewound_is_a_record_given_twice_to_one_reader():
    history = clean()
    read_all(history, list(range(COUNT)))
    history.read(0, 0, [8, 9], stamps(1, [8, 9]))
    report = history.check()
    assert_only(report, rewound=1)
    assert report.examples["rewound"] == ("reader 0 went back to shard 0 offset 8 when 10 was next",)


def test_a_reader_that_was_moved_back_is_not_rewound():
    history = clean()
    read_all(history, list(range(COUNT)))
    read_all(history, list(range(5, COUNT)), first=5)
    assert history.check().ok


def test_unknown_outcomes_may_or_may_not_appear():
    history = clean()
    history.sent(1, range(10, 14))
    read_all(history, [*range(COUNT), 11, 13])
    report = history.check()
    assert report.ok, str(report)
    assert (report.unknown, report.unknown_seen) == (4, 2)


def test_phantom_is_a_value_that_nobody_sent():
    history = clean()
    read_all(history, [*range(COUNT), 99])
    report = history.check()
    assert_only(report, phantoms=1)
    assert report.examples["phantoms"] == ("value 99 of producer 1 at shard 0 offset 10 was read, but nobody sent it",)


def test_refused_seen_is_a_failed_send_that_appears():
    history = clean()
    history.sent(1, [10, 11])
    history.failed(1, [10, 11])
    read_all(history, [*range(COUNT), 11])
    report = history.check()
    assert_only(report, refused_seen=1)
    assert (report.failed, report.unknown) == (2, 0)


def test_examples_are_few_and_counts_are_whole():
    history = clean(1_000)
    history.read(0, 0, 999, stamp(1, 999))
    report = history.check()
    assert_only(report, lost=999)
    assert "lost: ... and 994 more" in str(report)


def test_values_sent_twice_cannot_be_judged():
    history = clean()
    history.sent(1, 4)
    with pytest.raises(ValueError, match="sent twice: value 4 of producer 1"):
        history.check()


@pytest.mark.parametrize(
    "record",
    [
        lambda history: history.sent(1 << 24, 0),
        lambda history: history.sent(0, 1 << 40),
        lambda history: history.sent(0, -1),
        lambda history: history.acked(0, 0, 1 << 20, 0),
        lambda history: history.acked(0, 0, 0, 1 << 44),
        lambda history: history.acked(0, [1, 2, 3], 0, [1, 2]),
        lambda history: history.read(0, 0, [1, 2, 3], [stamp(0, 0)] * 2),
        lambda history: history.excused(0, 3, 2),
    ],
)
def test_numbers_that_do_not_fit_are_refused(record):
    with pytest.raises(ValueError):
        record(History())


def test_merge_adds_the_other_history():
    left, right = History(), clean()
    left.sent(2, range(5))
    left.acked(2, range(5), 1, range(5))
    left.read(0, 1, range(5), stamps(2, range(5)))
    right.read(1, 0, range(COUNT), stamps(1, range(COUNT)))
    right.excused(7, 0, 1)
    left.merge(right)
    report = left.check()
    assert report.ok, str(report)
    assert (report.sent, report.read) == (15, 15)


def test_recording_nothing_changes_nothing():
    history = clean()
    history.sent(1, [])
    history.acked(1, [], 0, [])
    history.read(0, 0, [], [])
    read_all(history, list(range(COUNT)))
    assert history.check().ok


@given(st.integers(0, 2**32), st.sampled_from(["drop", "double", "swap", "flip", "none"]))
def test_one_fault_in_a_shuffled_history_is_always_found(seed: int, fault: str):
    """Three producers, three shards, batches in any order: whatever single fault is put in, the verdict is right."""
    rng = random.Random(seed)
    history, logs = _random_history(rng)
    shard = rng.choice([number for number, log in enumerate(logs) if len(log) >= 2])
    position = rng.randrange(len(logs[shard]) - 1)
    _inject(fault, logs[shard], position, rng)
    for number, log in enumerate(logs):
        history.positioned(0, number, 0)
        history.read(0, number, range(len(log)), log)
    report = history.check()
    assert report.ok == (fault == "none"), str(report)


def _random_history(rng: random.Random) -> tuple[History, list[list[bytes]]]:
    history = History()
    logs: list[list[bytes]] = [[], [], []]
    waiting = [(producer, iter(range(rng.randrange(5, 20)))) for producer in range(3)]
    while waiting:
        producer, sequences = turn = rng.choice(waiting)
        sequence = next(sequences, None)
        if sequence is None:
            waiting.remove(turn)
            continue
        shard = rng.randrange(len(logs))
        history.sent(producer, sequence)
        history.acked(producer, sequence, shard, len(logs[shard]))
        logs[shard].append(stamp(producer, sequence, rng.randrange(STAMP_BYTES, 64)))
    return history, logs


def _inject(fault: str, log: list[bytes], position: int, rng: random.Random) -> None:
    if fault == "drop":
        del log[position]
    elif fault == "double":
        log.insert(position, log[position])
    elif fault == "swap":
        log[position], log[position + 1] = log[position + 1], log[position]
    elif fault == "flip":
        damaged = bytearray(log[position])
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        log[position] = bytes(damaged)


def test_a_million_records_are_judged_in_seconds():
    history = History()
    count = 500_000
    for producer in (1, 2):
        history.sent(producer, np.arange(count))
        history.acked(producer, np.arange(count), producer, np.arange(count))
        history.read(0, producer, np.arange(count), stamps(producer, np.arange(count), 24))
    report = history.check()
    assert report.ok
    assert report.read == 2 * count


def test_every_anomaly_is_a_count_of_the_report():
    assert set(ANOMALIES) <= set(Report.__dataclass_fields__)
