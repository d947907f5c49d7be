"""What errors say over HTTP."""

import json
from datetime import UTC, datetime

import pytest

from mainstem.core.cursor import Cursor
from mainstem.core.errors import DataLoss, MainstemError, QuotaExceeded, UndecodedRecords
from mainstem.produce.rows import decode_row
from mainstem.server.http.problems import answer, problem_of
from mainstem.server.http.reads import start_of


def raised(work):
    with pytest.raises(MainstemError) as found:
        work()
    return found.value


@pytest.mark.parametrize(
    "error",
    [
        raised(lambda: decode_row(b"{")),
        raised(lambda: decode_row(b"[]")),
        raised(lambda: Cursor.parse("ms1:x")),
        raised(lambda: Cursor.parse(7)),
        DataLoss(stream="orders", last=7),
        UndecodedRecords(stream="orders", reason="no JSON"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_advice_is_not_for_python_or_a_terminal(error):
    detail = problem_of(error)["detail"]
    assert not [word for word in ("consumer", "--", "='") if word in detail], detail


@pytest.mark.parametrize(("seconds", "said", "header"), [(0.0, 1, "1"), (2.5, 2.5, "3")], ids=["unknown", "known"])
def test_how_long_to_wait_is_the_same_in_both_places(seconds, said, header):
    response = answer(QuotaExceeded("too many", retry_after=seconds))
    assert (json.loads(bytes(response.body))["retry_after"], response.headers["retry-after"]) == (said, header)


def test_the_time_that_is_advised_is_taken():
    error = raised(lambda: start_of("2026-01-31", 0))
    advised = str(error).partition("; ")[2].partition(" ")[0]
    assert start_of(advised, 0) == datetime(2026, 1, 31, tzinfo=UTC)
