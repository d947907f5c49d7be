"""What a record must be: which one of many is wrong, and which limit it breaks."""

import pyarrow as pa
import pytest

from mainstem.core import tables
from mainstem.core.errors import InvalidRecord, RecordTooLarge
from mainstem.core.limits import RECORD_BYTES_MAX
from mainstem.produce.admission import check_batches, columns

LARGE = b"y" * (RECORD_BYTES_MAX + 1)


@pytest.mark.parametrize("place", [0, 5, 6])
def test_a_record_that_is_too_large_is_named_by_its_place_in_the_table(place):
    values = [b"x"] * 7
    values[place] = LARGE
    batches = tables.as_batches(pa.table({"value": values}))
    expected = f"'s': record {place} of the table is {len(LARGE)} bytes; record_bytes_max is {RECORD_BYTES_MAX}"
    with pytest.raises(RecordTooLarge, match=expected):
        check_batches("s", batches)


def test_key_value_and_headers_count_together():
    table = pa.table(
        {
            "value": [LARGE[:-3]],
            "key": [b"k"],
            "headers": pa.array([[("h", b"")]], pa.map_(pa.string(), pa.binary())),
        }
    )
    check_batches("s", tables.as_batches(table))
    longer = table.set_column(1, "key", pa.array([b"key"]))
    with pytest.raises(RecordTooLarge, match=f"{RECORD_BYTES_MAX + 2} bytes"):
        check_batches("s", tables.as_batches(longer))


def test_keys_of_many_are_what_send_takes():
    (batch,) = columns([b"a", b"b", b"c", b"d"], ["k\u00e4", 7, None, b"k"])
    assert batch.column("key").to_pylist() == ["k\u00e4".encode(), b"7", None, b"k"]


PROBLEMS: dict[str, tuple[list[object], list[object] | None, str]] = {
    "value": ([b"a", 7], None, "value 1 must be bytes or None, not int; encode it first"),
    "text": (["a"], None, "value 0 must be bytes or None, not str; encode it first"),
    "key": ([b"a", b"b"], [b"k", 1.5], "key 1 must be bytes or None, not float; give bytes, text or a whole number"),
    "surrogate": ([b"a"], ["\ud800"], "key 0, .* is not Unicode text"),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_which_of_many_is_wrong(case):
    values, keys, message = PROBLEMS[case]
    with pytest.raises(InvalidRecord, match=message):
        columns(values, keys)


def test_which_of_many_is_too_large():
    with pytest.raises(RecordTooLarge, match=r"value 1 is \d+ bytes; record_bytes_max is"):
        columns([None, LARGE], None)
