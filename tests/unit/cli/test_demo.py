"""What the demonstration shows fits a terminal of 80 columns."""

import os
import sys

import pytest
from rich.console import Console

from mainstem.cli import demo
from mainstem.cli.app import run
from mainstem.demo.account import Verdict
from mainstem.demo.demonstration import Sample
from mainstem.demo.pipeline_process import PipelineState
from mainstem.demo.revenue import RevenueVerdict, Takings, compare_revenue
from mainstem.demo.revenue_reader import RevenueState

WIDTH = 80
SAMPLE = Sample(30.0, (4_321_098, 4_321_098), 8_642_196, 12.3, 45.6, ((1_080_274,) * 4, (1_080_274,) * 4), ())


def drawn(part) -> str:
    console = Console(width=WIDTH)
    with console.capture() as capture:
        console.print(part)
    return capture.get()


def test_the_table_of_streams_is_not_cut():
    table = drawn(demo._streams_table(SAMPLE, [100_000.0, 100_000.0]))
    assert "…" not in table
    assert table.count("1,080,274") == 8
    assert table.count("4,321,098") == 2


def test_lines_break_between_words(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((WIDTH, 24)))
    text = (
        "server at mainstem://127.0.0.1:40631, log in a temporary folder; three producers, two streams of four shards"
    )
    demo._tell(text)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(len(line) <= WIDTH for line in lines)
    assert " ".join(lines) == text


def test_where_there_is_no_terminal_a_line_is_a_line(capsys):
    demo._tell("word " * 40 + "end")
    assert capsys.readouterr().out == "word " * 40 + "end\n"


def test_that_spark_has_joined_is_said_above_what_it_has_made(monkeypatch):
    screen = demo._Screen()
    shown: list[object] = []
    monkeypatch.setattr(screen._live, "update", shown.append)
    screen.say("Spark has joined after 78 s")
    screen.show_revenue(PipelineState(is_up=True, rows=10), RevenueState())
    picture = drawn(shown[-1])
    assert 0 <= picture.index("Spark has joined") < picture.index("Spark: 10 events read")


class _Shown:
    """A demonstration of which every record is there; what the table and the stream have is given."""

    url = "mainstem://127.0.0.1:1"
    is_temporary = True
    pipeline = PipelineState(is_up=True, rows=10)
    revenue = RevenueState()
    seconds = 1.0

    def __init__(self, table: Takings, stream: Takings) -> None:
        self._told = {"table": table, "stream": stream}
        self.server = self

    def compare_revenue(self) -> tuple[RevenueVerdict, ...]:
        return tuple(compare_revenue(place, {0: TAKEN}, {0: told}) for place, told in self._told.items())

    def sample(self) -> Sample:
        return SAMPLE

    def read_back(self, fault: object) -> Verdict:
        return Verdict(10, 10, 0, ())

    def has_pipeline_ended(self, seconds: float) -> bool:
        return True

    def start_pipeline(self, drop: object, *, is_killed: bool) -> None:
        return None

    start = finish_writing = close_streams = lambda self: None

    def __enter__(self) -> "_Shown":
        return self

    def __exit__(self, *exc: object) -> None:
        return None


TAKEN, LESS = Takings(3, 750), Takings(2, 500)


@pytest.mark.parametrize(("table", "stream", "code"), [(TAKEN, TAKEN, 0), (LESS, TAKEN, 1), (TAKEN, LESS, 1)])
def test_an_order_that_is_nowhere_but_in_the_log_is_a_failure(monkeypatch, capsys, table, stream, code):
    """Every record is there; the revenue alone says that Spark has left one out."""
    monkeypatch.setattr("mainstem.demo.demonstration.Demonstration", lambda options: _Shown(table, stream))
    monkeypatch.setattr("mainstem.demo.pipeline_process.missing_requirement", lambda: "")
    assert run(["demo", "--seconds", "0.1"]) == code
    out, error = capsys.readouterr()
    assert "every acknowledged record is there" in out
    places = [place for place, told in (("table", table), ("stream", stream)) if told is LESS]
    said = "mainstem: revenue from 00:00:00 on: the producers took 3 orders, 7.50, the {} says 2 orders, 5.00"
    assert error.splitlines() == [said.format(place) for place in places]
    assert ("next:" in out) == (code == 0)
