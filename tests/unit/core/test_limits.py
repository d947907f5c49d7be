"""The limits fit each other, and what is built from them fits them."""

from typing import Any

from mainstem.core import layouts, limits, payload
from mainstem.core.batch import BatchHeader
from mainstem.core.cursor import Cursor
from mainstem.transport import wire


def named() -> dict[str, int]:
    return {name: value for name, value in vars(limits).items() if name.isupper()}


def test_every_limit_is_a_positive_whole_number():
    assert {name: value for name, value in named().items() if type(value) is not int or value <= 0} == {}


def test_the_largest_record_fits_every_stage():
    assert (
        limits.RECORD_BYTES_MAX
        <= limits.PAYLOAD_RAW_BYTES_MAX
        <= limits.PAYLOAD_STORED_BYTES_MAX
        <= limits.FLUSH_BYTES_MAX
    )
    assert limits.PAYLOAD_STORED_BYTES_MAX <= limits.PENDING_BYTES_MAX
    assert limits.KEY_BYTES_MAX + limits.HEADER_BYTES_MAX < limits.RECORD_BYTES_MAX


def test_the_largest_record_can_be_encoded():
    batch = layouts.build([bytes(limits.RECORD_BYTES_MAX)])
    assert payload.encode(batch, None).raw_len <= limits.PAYLOAD_RAW_BYTES_MAX


def test_a_message_of_one_largest_payload_is_allowed():
    numbers: list[Any] = [2**31] * 15
    header = BatchHeader(*numbers)
    encoded = wire.encode_header(wire.Append([header]))
    assert limits.PAYLOAD_STORED_BYTES_MAX + len(encoded) + wire.PREFIX_BYTES <= limits.MESSAGE_BYTES_MAX


def test_a_message_of_the_most_batches_has_a_header_that_is_allowed():
    """Every number at its largest, so every number at its longest."""
    large = (1 << 63) - 1
    fields: list[Any] = [
        large,
        2**32 - 1,
        2**32 - 1,
        255,
        255,
        2**32 - 1,
        2**32 - 1,
        2**32 - 1,
        2**32 - 1,
        large,
        2**32 - 1,
    ]
    header = BatchHeader(*fields, large, 2**32 - 1, 1 << 62, 1 << 62, large)  # type: ignore[call-arg]
    encoded = wire.encode_header(wire.Append([header] * limits.APPEND_BATCHES_MAX))
    assert len(encoded) <= limits.MESSAGE_HEADER_BYTES_MAX


def test_a_producer_may_repeat_everything_it_has_in_flight():
    assert limits.PRODUCER_IN_FLIGHT_MAX <= limits.PRODUCER_RECENT_MAX


def test_the_longest_cursor_is_within_its_limit():
    text = str(Cursor("f" * 32, 2**32 - 1, (2**63 - 1,) * limits.SHARDS_PER_STREAM_MAX))
    assert len(text) <= limits.CURSOR_TEXT_CHARS_MAX
