"""A slice of the payload fuzzing that is small enough for every run."""

import pytest

from mainstem.core import payload
from mainstem.core.errors import InvalidPayload
from tests.fuzz import payload_fuzz
from tests.fuzz.rows_fuzz import broken_rows


def test_check_gives_a_valid_batch_or_refuses():
    report = payload_fuzz.run(seed=20_240_501, count=20_000)
    # Both ends must have been exercised, or the mutations have become too mild or too wild to tell anything.
    assert report["valid"] > 200
    assert report["refused"] > 10_000


def test_offsets_and_texts_that_are_wrong_inside_a_right_message_are_refused():
    for case in broken_rows():
        with pytest.raises(InvalidPayload, match="not a batch of records"):
            payload.check(case.encoding, case.layout, case.count, case.raw_len, case.payload, schema=case.schema)
