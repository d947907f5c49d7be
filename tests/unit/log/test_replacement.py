"""Records taken apart and put together again: whatever columns they have and whichever are left, they stay the same."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.consume.record import Record, RecordBatch
from mainstem.core import layouts, payload
from mainstem.core.batch import Batch, BatchHeader, FetchedBatch
from mainstem.core.checksum import crc32c
from mainstem.core.limits import MIB, PAYLOAD_RAW_BYTES_MAX
from mainstem.core.schema import Schema
from mainstem.log import replacement
from mainstem.log.contents import Contents
from mainstem.log.flush import Replacement
from mainstem.log.ledger.base import Entry
from mainstem.log.ledger.rules.replacement import fingerprint
from mainstem.log.replacement import Upshot, grouped, moved, records_of, remade
from tests.unit.log.parts import NOW_US, KeyedRecord, make_keyed_batch

UPSHOT = Upshot(NOW_US, 5, 7)


def stored(batches: Sequence[Batch], first: int = 0) -> list[FetchedBatch]:
    """Batches as they are read, one after the other."""
    found = []
    for batch in batches:
        found.append(FetchedBatch(first, batch.header, batch.payload))
        first = found[-1].end
    return found


def rows(batches: Sequence[FetchedBatch]) -> list[Entry]:
    return [
        Entry(1, 0, batch.base, batch.end - batch.base, batch.header.count, 1, 64, 100, NOW_US, 0, 0, b"")
        for batch in batches
    ]


def read(batches: Sequence[FetchedBatch]) -> list[Record]:
    return [
        record
        for batch in batches
        if batch.header.count
        for record in RecordBatch("s", batch, batch.base, None).records()
    ]


def remake(batches: Sequence[FetchedBatch], kept: Sequence[bool] | None = None) -> list[FetchedBatch]:
    """What is kept, made anew; with everything that must be true of it whatever it is."""
    records = records_of(batches)
    if kept is not None:
        records = records.take(np.array(kept, bool))
    old = rows(batches)
    made = remade(old, [records], UPSHOT)
    command = made.command
    assert (command.base, command.end, command.rows) == (batches[0].base, batches[-1].end, len(batches))
    assert command.fingerprint == fingerprint(old)
    assert (command.rewrite_us, command.merged, command.compacted) == UPSHOT
    assert sum(span for span, _ in command.entries) == command.end - command.base
    assert command.frames == len(made.batches)
    for before, after in pairwise(made.batches):
        assert before.end == after.base
    for batch in made.batches:
        assert batch.header.count
        assert batch.header.payload_crc == crc32c(batch.payload)
        assert bool(batch.header.span) == bool(batch.header.layout & layouts.HAS_OFFSETS)
        assert batch.header.producer == 0
    return list(made.batches)


def expected(batches: Sequence[FetchedBatch], kept: Sequence[bool] | None = None) -> list[Record]:
    found = read(batches)
    return found if kept is None else [record for record, stays in zip(found, kept, strict=True) if stays]


keys = st.none() | st.binary(max_size=40)
values = st.none() | st.binary(max_size=60)
headers = st.none() | st.dictionaries(st.text(max_size=5), st.none() | st.binary(max_size=5), max_size=3)
times = st.integers(-5, 5).map(lambda step: NOW_US + step)


@st.composite
def batches(draw: st.DrawFn) -> list[FetchedBatch]:
    """Batches of every layout a producer may send."""
    made = []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 6))
        has_key, has_headers, same_time = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
        time = draw(times)
        records: list[KeyedRecord] = [
            (draw(keys) if has_key else None, draw(values), time if same_time else draw(times)) for _ in range(count)
        ]
        made.append(make_keyed_batch(records, headers=[draw(headers) for _ in range(count)] if has_headers else None))
    return stored(made, draw(st.integers(0, 1 << 40)))


@given(batches(), st.data())
def test_what_is_kept_is_the_same(found, data):
    count = sum(batch.header.count for batch in found)
    kept = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    again = remake(found, kept)
    assert read(again) == expected(found, kept)
    if any(kept):
        assert (again[0].base, again[-1].end) == (found[0].base, found[-1].end)
        # And once more, of what has gaps already.
        left = sum(kept)
        fewer = data.draw(st.lists(st.booleans(), min_size=left, max_size=left))
        assert read(remake(again, fewer)) == expected(again, fewer)


def one(value: bytes | None = b"v", key: bytes | None = b"k", time: int = NOW_US) -> KeyedRecord:
    return key, value, time


@pytest.mark.parametrize(
    "kept",
    [
        [False, True, True, True],
        [True, False, False, True],
        [True, True, True, False],
        [False, False, True, False],
    ],
    ids=["begin", "middle", "end", "alone"],
)
def test_gaps(kept):
    found = stored([make_keyed_batch([one(b"%d" % n) for n in range(4)])], 100)
    (made,) = remake(found, kept)
    assert (made.base, made.end, made.header.span, made.header.count) == (100, 104, 4, sum(kept))
    assert [record.offset for record in read([made])] == [100 + n for n, stays in enumerate(kept) if stays]


def test_nothing_left_is_an_entry_without_frames():
    found = stored([make_keyed_batch([one(), one()]), make_keyed_batch([one()])], 7)
    made = remade(rows(found), [records_of(found).take(np.zeros(3, bool))], UPSHOT)
    assert made.batches == ()
    assert made.command.entries == ((3, 0),)


def test_an_entry_without_records_among_others():
    first, last = stored([make_keyed_batch([one(b"1")])]), stored([make_keyed_batch([one(b"2")])], 50)
    header = first[0].header.__class__(1, 0, *(0,) * 13, span=49)
    found = [*first, FetchedBatch(1, header, b""), *last]
    (made,) = remake(found)
    assert (made.base, made.end, made.header.count) == (0, 51, 2)
    assert [record.offset for record in read([made])] == [0, 50]


@pytest.mark.parametrize("span", [1, 5, 9])
def test_what_is_stored_anew_stays_on_its_side_of_a_barrier(span):
    """Offsets without records, whether they begin behind it, or before it and reach over one or two; and records of a
    batch that reaches over one."""
    first = stored([make_keyed_batch([one(b"1")] * (10 - span))])
    gap = FetchedBatch(10 - span, BatchHeader(1, 0, *(0,) * 13, span=10), b"")
    last = stored([make_keyed_batch([one(b"2")])], gap.end)
    barriers = {4, 9, gap.end}
    groups = grouped([*first, gap, *last], barriers)
    made = remade(rows([*first, gap, *last]), map(records_of, groups), UPSHOT)
    assert not any(batch.base < barrier < batch.end for batch in made.batches for barrier in barriers)
    assert sum(covered for covered, _ in made.command.entries) == gap.end + 1
    assert read(made.batches) == read([*first, *last])


def test_offsets_that_follow_each_other_again_need_no_column():
    """What is left after gaps were cut off at a border of batches is dense."""
    found = stored([make_keyed_batch([one(b"%d" % n) for n in range(3)])], 10)
    assert not remake(found)[0].header.layout & layouts.HAS_OFFSETS


def test_columns_that_nobody_needs_any_more_go():
    mixed = [one(key=None), one(key=b"k", time=NOW_US + 1)]
    found = stored([make_keyed_batch(mixed, headers=[None, {"a": b"1"}])])
    assert found[0].header.layout == layouts.HAS_KEY | layouts.HAS_HEADERS | layouts.HAS_TIMESTAMP
    (made,) = remake(found, [True, False])
    assert made.header.layout == layouts.HAS_OFFSETS
    assert (made.header.time_low, made.header.time_high) == (NOW_US, NOW_US)


def test_a_record_without_a_time_keeps_that_of_its_batch():
    batch = make_keyed_batch([one(), one(), one()], times=[None, NOW_US + 2, None])
    other = make_keyed_batch([one(time=NOW_US + 9)])
    found = stored([batch, other])
    (made,) = remake(found)
    assert [record.timestamp_us for record in read([made])] == [NOW_US, NOW_US + 2, NOW_US, NOW_US + 9]


def test_large_values_become_several_batches():
    values = [bytes([n]) * 400_000 for n in range(9)]
    found = stored([make_keyed_batch([one(value) for value in values[n : n + 3]]) for n in (0, 3, 6)], 5)
    kept = [n != 4 for n in range(9)]
    made = remake(found, kept)
    assert len(made) > 2
    assert (made[0].base, made[-1].end) == (5, 14)
    assert [(record.offset, record.value) for record in read(made)] == [
        (5 + n, value) for n, value in enumerate(values) if n != 4
    ]


def test_one_value_larger_than_a_batch_should_be():
    value = np.random.default_rng(1).bytes(3 << 20)
    found = stored([make_keyed_batch([one(b"small"), one(value), one(b"after")])])
    assert read(remake(found, [True, True, True])) == read(found)
    assert read(remake(found, [False, True, False])) == expected(found, [False, True, False])


def test_the_generation_is_that_of_the_newest():
    first, second = make_keyed_batch([one()]), make_keyed_batch([one()])
    newer = Batch(msgspec.structs.replace(second.header, generation=3), second.payload)
    assert records_of(stored([first, newer])).generation == 3


def test_moved_batches_are_the_same_bytes_in_one_entry():
    found = stored([make_keyed_batch([one(), one()]), make_keyed_batch([one()])], 3)
    made = moved(rows(found), found, UPSHOT)
    assert made.batches == tuple(found)
    assert made.command.entries == ((3, 2),)
    assert (made.command.base, made.command.end, made.command.rows) == (3, 6, 2)


# Near the limits.


def stored_rows(columns: dict[str, pa.Array]) -> tuple[list[FetchedBatch], Contents]:
    """Rows as they are read, and what knows their schema."""
    schema = Schema(pa.schema([(name, column.type) for name, column in columns.items()]))
    encoded = payload.encode(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema.arrow), "lz4", schema)
    header = encoded.header(stream=1, shard=0, schema_id=1, generation=0, time_low=NOW_US, time_high=NOW_US)
    return [FetchedBatch(0, header, encoded.payload)], Contents(lambda _: schema)


def made_of(found: list[FetchedBatch], contents: Contents, kept: np.ndarray) -> Replacement:
    """What is kept, made anew, and that it covers the same offsets with the same records."""
    records = records_of(found, contents).take(kept)
    made = remade(rows(found), [records], UPSHOT)
    assert sum(span for span, _ in made.command.entries) == found[-1].end
    assert made.command.frames == len(made.batches)
    again = [records_of([batch], contents) for batch in made.batches]
    assert np.concatenate([part.offsets for part in again]).tolist() == records.offsets.tolist()
    assert pa.Table.from_batches([part.batch for part in again]).equals(pa.Table.from_batches([records.batch]))
    return made


def test_what_tells_values_apart_counts():
    """Rows of hundreds of empty texts are large, though they say nothing."""
    count = 4_000
    empty = pa.array([""] * count)
    found, contents = stored_rows({f"c{number}": empty for number in range(500)})
    made = made_of(found, contents, np.arange(count) != 5)
    assert all(batch.header.raw_len < 1.1 * MIB for batch in made.batches)
    assert len(made.batches) < found[0].header.raw_len / MIB * 1.2


def test_parts_of_lists_are_told_apart_too():
    texts = pa.array([[""] * 100_000] * 10, pa.list_(pa.string()))
    found, contents = stored_rows({"texts": texts})
    made = made_of(found, contents, np.arange(10) != 5)
    assert all(batch.header.raw_len < 1.1 * MIB for batch in made.batches)


def test_a_batch_that_would_be_over_the_limit_is_halved(monkeypatch):
    """Whatever it was that was not counted."""
    monkeypatch.setattr(replacement, "_BATCH_BYTES", 1 << 40)
    count = PAYLOAD_RAW_BYTES_MAX // (4 * 500) - 20
    found, contents = stored_rows({f"c{number}": pa.array([""] * count) for number in range(500)})
    assert found[0].header.raw_len + 4 * count > PAYLOAD_RAW_BYTES_MAX
    made = made_of(found, contents, np.arange(count) != 5)
    assert [batch.header.count for batch in made.batches] == [(count - 1) // 2, count // 2]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_record_at_the_limit_gets_no_column_of_offsets(place):
    """It would not fit with one: what is without records beside it is entries of their own."""
    texts = PAYLOAD_RAW_BYTES_MAX // 4 - 64
    values = [[""] * texts if number == place else [] for number in range(3)]
    found, contents = stored_rows({"texts": pa.array(values, pa.list_(pa.string()))})
    made = made_of(found, contents, np.arange(3) == place)
    expected = {0: ((1, 1), (2, 0)), 1: ((1, 0), (1, 1), (1, 0)), 2: ((2, 0), (1, 1))}
    assert made.command.entries == expected[place]
    assert (made.batches[0].base, made.batches[0].header.span) == (place, 0)
