"""What a stream may be called, and what not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core.errors import InvalidName
from mainstem.core.limits import STREAM_NAME_CHARS_MAX
from mainstem.core.names import check_stream_name

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"


@pytest.mark.parametrize("name", ["a", "orders", "Orders.2026-01_eu", "a-", "...", "a..b", "0", "x" * 249])
def test_an_allowed_name_is_returned_as_it_is(name):
    assert check_stream_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "../a",
        "a b",
        "-x",
        "a\n",
        "\na",
        "a\0",
        "größe",
        "①",  # a digit for Unicode, not for us
        "a\u200b",
        "\ud800",
        "x" * 250,
        "x" * 1_000_000,
    ],
)
def test_a_hostile_name_is_refused(name):
    with pytest.raises(InvalidName):
        check_stream_name(name)


@pytest.mark.parametrize("name", [None, 7, b"orders", ["orders"], {"a": 1}, object()])
def test_a_name_is_text(name):
    with pytest.raises(InvalidName, match="text"):
        check_stream_name(name)


def test_names_with_an_underscore_in_front_are_ours():
    with pytest.raises(InvalidName, match="reserved"):
        check_stream_name("_groups")
    assert check_stream_name("_groups", reserved=True) == "_groups"
    assert check_stream_name("a_b") == "a_b"


def test_the_message_does_not_repeat_a_huge_name():
    with pytest.raises(InvalidName) as caught:
        check_stream_name("y" * 1_000_000)
    assert len(str(caught.value)) < 200
    assert str(STREAM_NAME_CHARS_MAX) in str(caught.value)


@given(st.text(alphabet=LETTERS, min_size=1, max_size=STREAM_NAME_CHARS_MAX))
def test_every_text_of_allowed_letters_is_a_name_or_one_of_the_exceptions(name):
    if name in (".", "..") or name.startswith(("_", "-")):
        with pytest.raises(InvalidName):
            check_stream_name(name)
    else:
        assert check_stream_name(name) == name


@given(st.text(max_size=20))
def test_any_text_gives_a_name_or_our_error(name):
    try:
        assert set(check_stream_name(name)) <= set(LETTERS)
    except InvalidName:
        assert set(name) - set(LETTERS) or name in ("", ".", "..") or name.startswith(("_", "-"))
