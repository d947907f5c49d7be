"""Which records are kept of who is over its quota, and how they say so."""

import numpy as np
import pyarrow as pa
import pytest

from mainstem.core import layouts, payload
from mainstem.core.sampling import SHARE_HEADER, is_kept, kept, with_share
from mainstem.core.schema import Schema


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.97])
def test_about_the_share_is_kept_whoever_sends(share):
    for source in (0, 1, (1 << 63) - 1):
        found = kept(100_000, share, source, 5)
        assert np.count_nonzero(found) == pytest.approx(100_000 * share, rel=0.1, abs=60)


def test_the_same_records_are_kept_in_one_piece_or_in_many():
    whole = kept(1_000, 0.3, 7, 0)
    parts = [kept(250, 0.3, 7, first) for first in (0, 250, 500, 750)]
    assert np.array_equal(whole, np.concatenate(parts))
    # A smaller share is a part of a larger one.
    assert not np.any(kept(1_000, 0.2, 7, 0) & ~whole)


def test_everything_is_kept_of_all():
    assert kept(1_000, 1.0, 7, 0).all()
    assert is_kept(1.0, 1, 2, 3)


def test_no_pattern_of_the_data_is_followed():
    """Every tenth record is kept as often as any other."""
    found = kept(100_000, 0.5, 3, 0).reshape(-1, 10)
    assert found.mean(axis=0) == pytest.approx([0.5] * 10, abs=0.03)


def test_a_record_without_headers_gets_one():
    batch = with_share(layouts.build([b"a", b"b"], [b"k", None], None, [1, 2]), 0.25, is_rows=False)
    assert batch.schema.names == ["key", "value", "headers", "timestamp"]
    assert batch.column("headers").to_pylist() == [[(SHARE_HEADER, b"0.25")]] * 2
    batch.validate(full=True)


def test_headers_that_are_there_stay_before_it():
    headers = [[("x", b"1"), ("y", None)], None, [("z", b"3")]]
    batch = with_share(layouts.build([b"a", b"b", b"c"], None, headers).slice(1), 0.5, is_rows=False)
    assert batch.column("headers").to_pylist() == [[(SHARE_HEADER, b"0.5")], [("z", b"3"), (SHARE_HEADER, b"0.5")]]
    encoded = payload.encode(batch, "lz4")
    sizes = (encoded.encoding, encoded.layout, 2, encoded.raw_len)
    assert payload.check(*sizes, encoded.payload).equals(batch)


def test_rows_have_it_behind_their_columns():
    schema = Schema(pa.schema([("id", pa.int64())]))
    rows = pa.record_batch({"id": [1, 2], "_timestamp": pa.array([5, 6], layouts.TIMESTAMP_TYPE)})
    batch = with_share(rows, 0.1, is_rows=True)
    assert batch.schema.names == ["id", "_headers", "_timestamp"]
    encoded = payload.encode(batch, None, schema)
    assert encoded.layout == layouts.HAS_HEADERS | layouts.HAS_TIMESTAMP
