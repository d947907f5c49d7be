"""What the demonstration shows fits a terminal of 80 columns."""

import os
import sys

from rich.console import Console

from mainstem.cli import demo
from mainstem.demo.demonstration import Sample
from mainstem.demo.pipeline_process import PipelineState
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
