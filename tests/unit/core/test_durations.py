"""Lengths of time as users write them."""

from datetime import timedelta

import pytest

from mainstem.core.durations import microseconds
from mainstem.core.errors import InvalidSetting


def test_lengths():
    assert microseconds("7d") == microseconds(timedelta(days=7)) == 7 * 24 * 3600 * 1_000_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("5", "'5' is no length of time like '7d': it needs a unit"),
        ("forever", "'forever' is no length of time like '7d'"),
        (7, "like '7d' or a timedelta, not int"),
    ],
)
def test_what_is_none_is_named(text, problem):
    with pytest.raises(InvalidSetting, match=problem):
        microseconds(text)
    with pytest.raises(InvalidSetting, match=f"^settle: .*{problem}"):
        microseconds(text, "settle")
