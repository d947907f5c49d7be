"""Sizes and durations: what is read, what is refused, and what is written is read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core.kinds import parse_bytes, parse_duration, render_bytes, render_duration


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MB", 64_000_000),
        ("64 MiB", 64 << 20),
        ("64mib", 64 << 20),
        (" 1.5 GB ", 1_500_000_000),
        ("10kB", 10_000),
        ("10KiB", 10_240),
        ("512", 512),
        ("512 B", 512),
        ("0", 0),
    ],
)
def test_parse_bytes(text: str, size: int):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "MB", "64 M", "-1MB", "1e6", "64MBMB", "1.5", "0.0001kB", "9" * 30, "٣MB", "1_000"]
)
def test_parse_bytes_refuses(text: str):
    with pytest.raises(ValueError):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5.0),
        ("250ms", 0.25),
        ("7d", 604_800.0),
        ("1.5h", 5_400.0),
        ("2 m", 120.0),
        ("10us", 0.00001),
        ("0s", 0.0),
    ],
)
def test_parse_duration(text: str, seconds: float):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 seconds", "1h30m", "0.1us", "inf"])
def test_parse_duration_refuses(text: str):
    with pytest.raises(ValueError):
        parse_duration(text)


@given(st.integers(0, 2**50))
def test_rendered_bytes_are_parsed_back(size: int):
    assert parse_bytes(render_bytes(size)) == size


@given(st.integers(0, 10**16))
def test_rendered_durations_are_parsed_back(microseconds: int):
    assert parse_duration(render_duration(microseconds / 1_000_000)) == microseconds / 1_000_000


def test_rendering_prefers_the_short_form():
    assert [render_bytes(size) for size in (0, 1, 1_000, 1_024, 128 << 20, 1_500_000)] == [
        "0 B",
        "1 B",
        "1 kB",
        "1 KiB",
        "128 MiB",
        "1500 kB",
    ]
    assert [render_duration(seconds) for seconds in (0, 0.25, 5, 90, 604_800)] == ["0s", "250ms", "5s", "90s", "7d"]
