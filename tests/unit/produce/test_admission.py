"""What a record must be: which one of many is wrong, and which limit it breaks."""

import pyarrow as pa
import pytest

from mainstem.core import tables
from mainstem.core.errors import InvalidRecord, InvalidRequest, InvalidSetting, RecordTooLarge
from mainstem.core.limits import RECORD_BYTES_MAX
from mainstem.produce.admission import check_atomic, check_batches, check_shard, columns
from mainstem.transport.port import StreamInfo

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


def stream(shards: int, cleanup: str = "delete") -> StreamInfo:
    places = (0,) * shards
    return StreamInfo(1, f"{1:032x}", "s", shards, "crc32", 0, 1, 1, places, places, 0, 1, cleanup=cleanup)


def test_a_shard_that_is_asked_for_is_one_of_the_stream():
    assert [check_shard(stream(3), shard) for shard in (0, 2)] == [0, 2]
    for shard in (-1, 3):
        with pytest.raises(InvalidRequest, match=f"'s' has 3 shards, 0 to 2; there is no shard {shard}"):
            check_shard(stream(3), shard)
    with pytest.raises(InvalidRequest, match="'s' has 1 shard, number 0; there is no shard 1"):
        check_shard(stream(1), 1)
    for strange in ("0", 0.0, False, None):
        with pytest.raises(InvalidSetting, match="shard is a whole number, not"):
            check_shard(stream(3), strange)
    for cleanup in ("compact", "compact,delete"):
        with pytest.raises(InvalidRequest, match="compacted by key"):
            check_shard(stream(3, cleanup), 0)


def test_the_keys_of_an_atomic_table_do_not_matter_where_its_shard_is_asked_for():
    batches = columns([b"v"] * 9, [b"%d" % number for number in range(9)])
    assert check_atomic(stream(3), batches, 2) is None
    with pytest.raises(InvalidRequest, match="must belong to one shard"):
        check_atomic(stream(3), batches)
    with pytest.raises(RecordTooLarge, match="split the table"):
        check_atomic(stream(3), batches * 2, 2)
