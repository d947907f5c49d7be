"""A cursor as text and back."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core.cursor import Cursor
from mainstem.core.errors import InvalidCursor
from mainstem.core.limits import CURSOR_TEXT_CHARS_MAX, SHARDS_PER_STREAM_MAX

UUID = "6f1c" * 8


def summed(text: str) -> str:
    """The text with the checksum that fits it."""
    return f"{text}:{zlib.crc32(text.encode()):08x}"


@given(
    st.uuids(),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 2**63 - 1), max_size=50),
)
def test_what_str_wrote_parse_reads(uuid, epoch, offsets):
    cursor = Cursor(uuid.hex, epoch, tuple(offsets))
    assert Cursor.parse(str(cursor)) == cursor


def test_the_form_is_the_documented_one():
    assert str(Cursor(UUID, 1, (120, 77))) == summed(f"ms1:{UUID}:1:120,77")
    assert Cursor.parse(f" {Cursor(UUID, 1, (120, 77))}\n") == Cursor(UUID, 1, (120, 77))


@pytest.mark.parametrize("offsets", [(), (0,), (0, 1001, 0, 0), (499, 501, 499, 501)])
def test_a_cursor_that_was_cut_is_refused(offsets):
    text = str(Cursor(UUID, 1, offsets))
    for length in range(len(text)):
        with pytest.raises(InvalidCursor):
            Cursor.parse(text[:length])


def test_a_cursor_that_was_changed_is_refused():
    text = str(Cursor(UUID, 1, (120, 77)))
    for place, letter in enumerate(text):
        for other in "0123456789abcdef,:":
            if other != letter:
                with pytest.raises(InvalidCursor):
                    Cursor.parse(text[:place] + other + text[place + 1 :])


def test_a_cursor_of_the_most_shards_fits_its_text():
    cursor = Cursor(UUID, 2**32 - 1, (2**63 - 1,) * SHARDS_PER_STREAM_MAX)
    assert len(str(cursor)) <= CURSOR_TEXT_CHARS_MAX
    assert Cursor.parse(str(cursor)) == cursor


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ms1",
        "ms1:::",
        f"ms2:{UUID}:1:0",  # another version
        f"ms1:{UUID}:1",
        f"ms1:{UUID}:1:-1",
        f"ms1:{UUID}:1:1,",
        f"ms1:{UUID}:1:,1",
        f"ms1:{UUID}:1:1;2",
        f"ms1:{UUID}:1:1 2",
        f"ms1:{UUID}:1:0x10",
        f"ms1:{UUID}:-1:0",
        f"ms1:{UUID.upper()}:1:0",
        f"ms1:{UUID[:-1]}:1:0",
        f"ms1:{UUID}0:1:0",
        f"ms1:{UUID}:1:0\x00",
        f"ms1:{UUID}:1:٣",  # a digit for Unicode, not for us
        f"ms1:{UUID}:1:{2**63}",
        f"ms1:{UUID}:1:{10**19}",
        f"ms1:{UUID}:1:{10**30}",
        f"ms1:{UUID}:1:" + ",".join("0" * (SHARDS_PER_STREAM_MAX + 1)),
        f"ms1:{UUID}:1:" + "0," * CURSOR_TEXT_CHARS_MAX + "0",
    ],
)
def test_a_malformed_cursor_is_refused(text):
    for given_ in (text, summed(text)):
        with pytest.raises(InvalidCursor):
            Cursor.parse(given_)


@pytest.mark.parametrize("value", [None, 7, b"ms1:", ("a",), Cursor(UUID, 1, ())])
def test_a_cursor_is_parsed_from_text_only(value):
    with pytest.raises(InvalidCursor):
        Cursor.parse(value)


@given(st.text(max_size=80))
def test_any_text_gives_a_cursor_or_our_error(text):
    try:
        found: object = Cursor.parse(text)
    except InvalidCursor as error:
        found = str(error)
    assert isinstance(found, Cursor) or len(str(found)) < 300


def test_a_cursor_is_a_value():
    assert Cursor(UUID, 1, (1, 2)) == Cursor(UUID, 1, (1, 2)) != Cursor(UUID, 1, (1, 3))
    assert len({Cursor(UUID, 1, (1,)), Cursor(UUID, 1, (1,))}) == 1
