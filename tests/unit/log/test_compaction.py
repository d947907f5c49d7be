"""Compaction's decisions: which records stay, when a tombstone goes, when a shard is worth the work."""

import numpy as np
import pyarrow as pa
import pytest

from mainstem.log.compaction import DIRTY_SECONDS_MAX, KeyIndex, is_due, tombstones, without_key
from mainstem.log.replacement import Records
from tests.unit.log.parts import NOW_US


def records(*pairs: tuple[bytes | None, bytes | None], first: int = 0, times: int = NOW_US) -> Records:
    """(key, value) of neighbouring offsets."""
    columns = {
        "key": pa.array([key for key, _ in pairs], pa.binary()),
        "value": pa.array([value for _, value in pairs], pa.binary()),
    }
    count = len(pairs)
    return Records(first, first + count, np.arange(first, first + count), np.full(count, times), 0, columns)


def kept(index: KeyIndex, found: Records, tombstones_over: int = 0) -> list[int]:
    offsets: list[int] = found.offsets[index.kept(found, tombstones_over)].tolist()
    return offsets


def test_of_every_key_the_newest_stays():
    found = records((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"), (b"b", b"5"))
    index = KeyIndex()
    index.learn(found)
    assert index.end == 5
    assert kept(index, found) == [2, 3, 4]


def test_what_was_not_learnt_stays():
    index = KeyIndex()
    index.learn(records((b"a", b"1")))
    later = records((b"a", b"2"), (b"b", b"3"), first=1)
    assert kept(index, later) == [1, 2]


def test_records_without_a_key_stay():
    found = records((None, b"1"), (None, b"2"), (b"a", b"3"), (None, b"4"), (b"a", b"5"))
    index = KeyIndex()
    index.learn(found)
    assert kept(index, found) == [0, 1, 3, 4]
    keyless = found._replace(columns={"value": found.columns["value"]})
    index.learn(keyless)
    assert kept(index, keyless) == [0, 1, 2, 3, 4]
    assert not tombstones(keyless).any()


def test_a_tombstone_stays_while_it_is_young():
    found = records((b"a", b"1"), (b"a", None), (b"b", None), (b"b", b"2"))
    index = KeyIndex()
    index.learn(found)
    assert tombstones(found).tolist() == [False, True, True, False]
    assert kept(index, found, 1) == [1, 3]
    assert kept(index, found, 2) == [3]


def test_a_tombstone_after_what_was_learnt_stays_however_old_it_is():
    """Of what it hides, something may stand before it that was not looked at yet."""
    index = KeyIndex()
    index.learn(records((b"a", b"1")))
    assert kept(index, records((b"a", None), first=1), NOW_US + 1) == [1]


def test_a_record_without_key_and_value_is_no_tombstone():
    assert not tombstones(records((None, None))).any()


def test_an_empty_key_is_a_key():
    found = records((b"", b"1"), (b"", b"2"), (None, b"3"))
    index = KeyIndex()
    index.learn(found)
    assert kept(index, found) == [1, 2]


@pytest.mark.parametrize("length", [31, 32, 33, 5_000])
def test_long_keys_are_told_apart(length):
    one, other = b"k" * (length - 1) + b"1", b"k" * (length - 1) + b"2"
    found = records((one, b"1"), (other, b"2"), (one, b"3"))
    index = KeyIndex()
    index.learn(found)
    assert kept(index, found) == [1, 2]


def test_a_short_key_that_looks_like_the_digest_of_a_long_one_is_another_key():
    long = b"k" * 40
    index = KeyIndex()
    index.learn(records((long, b"1")))
    (digest,) = index._newest
    assert isinstance(digest, int)
    short = digest.to_bytes(16, "little")
    assert kept(index, records((short, b"x")), 0) == [0]


def test_the_index_says_when_it_is_full():
    index = KeyIndex(2)
    index.learn(records((b"a", b"1"), (b"a", b"2")))
    assert not index.is_full
    index.learn(records((b"b", b"3"), first=2))
    assert index.is_full


@pytest.mark.parametrize(
    ("dirty", "clean", "waited", "due"),
    [
        (0, 0, DIRTY_SECONDS_MAX, False),
        (1, 0, 0.0, False),
        (1, 0, DIRTY_SECONDS_MAX, True),
        (64 << 10, 0, 0.0, True),
        ((64 << 10) - 1, 0, 0.0, False),
        (1 << 20, 1 << 20, 0.0, True),
        ((1 << 20) - 1, 1 << 20, 0.0, False),
    ],
)
def test_when_a_shard_is_due(dirty, clean, waited, due):
    assert is_due(dirty, clean, waited) is due


def test_erasing_keeps_every_other_key():
    found = records((b"a", b"1"), (b"ab", b"2"), (None, b"3"), (b"a", None), (b"", b"4"))
    assert without_key(found, b"a").tolist() == [False, True, True, False, True]
    assert without_key(found, b"").tolist() == [True, True, True, True, False]
    keyless = found._replace(columns={"value": found.columns["value"]})
    assert without_key(keyless, b"a").all()
