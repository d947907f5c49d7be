"""Patterns against the one of the library, and against names that are made to be slow."""

import fnmatch
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.access.pattern import check_pattern, is_match
from mainstem.core.errors import InvalidName

LETTERS = st.text("ab.", max_size=8)


@given(LETTERS, st.text("ab.*", min_size=1, max_size=8))
def test_as_the_library_matches(name, pattern):
    assert is_match(pattern, name) == fnmatch.fnmatchcase(name, pattern)


@pytest.mark.parametrize(
    ("pattern", "name", "is_matched"),
    [
        ("*", "", True),
        ("orders", "", False),
        ("*", "_audit", False),
        ("*audit", "_audit", False),
        ("_*", "_audit", True),
        ("_audit", "_audit", True),
        ("aa*aa", "aaa", False),
        ("aa*aa", "aaaa", True),
        ("a.b", "axb", False),
    ],
)
def test_what_is_ours_and_what_overlaps(pattern, name, is_matched):
    assert is_match(pattern, name) == is_matched


def test_no_name_takes_long():
    begun = time.perf_counter()
    assert not is_match("*a" * 120 + "*b", "a" * 100_000)
    assert time.perf_counter() - begun < 1


@pytest.mark.parametrize("wrong", ["", "a b", "a/b", "ä", "a" * 250, "[ab]", "a?"])
def test_what_is_no_pattern(wrong):
    with pytest.raises(InvalidName):
        check_pattern(wrong)
