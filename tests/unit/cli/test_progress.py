"""What a terminal shows of how far a job is."""

import io
import re
import sys

import pytest
from rich.progress import Progress

from mainstem.cli.progress import job_progress

# A step of a job, what is done of it, of how much; what is then to be read of it.
_STEPS = {
    "warehouse": [
        (("load", 250_000, 1_000_000), "warehouse: records 25%"),
        (("write", 3, 6), "tasks of Spark 50%"),
        (("load", 1_000_000, 1_000_000), "warehouse: records 100%"),
        (("compact", 0, 1), "warehouse: making large files of small ones 100%"),
        (("compacted", 1, 1), ""),
        (("vacuum", 0, 1), "warehouse: deleting files that the table needs no more 100%"),
    ],
    "replay": [
        (("load", 0, 10), "replay: records 0%"),
        (("wrote", 6, 6), "tasks of Spark 100%"),
        (("compare", 0, 1), "replay: comparing with the version before"),
    ],
    "audit": [
        (("load", 0, 4), "audit: parts compared 0%"),
        (("write", 1, 2), "tasks of Spark 50%"),
        (("load", 3, 4), "audit: parts compared 75%"),
    ],
    "compact": [
        (("load", 0, 8), "compact: ranges of records 0%"),
        (("swap", 1, 1), ""),
        (("load", 4, 8), "compact: ranges of records 50%"),
    ],
}


class Terminal(io.StringIO):
    """Keeps what is drawn."""

    def isatty(self) -> bool:
        return True


class Prompt(Progress):
    """Draws at once, not some time soon."""

    def update(self, *given, **more) -> None:
        super().update(*given, **more)
        self.refresh()


@pytest.mark.parametrize("job", _STEPS)
def test_each_step_of_a_job_is_in_words(monkeypatch, job):
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("rich.progress.Progress", Prompt)
    with job_progress(job) as on_step:
        on_step("start", 0, 1)
        for step, words in _STEPS[job]:
            before = len(terminal.getvalue())
            on_step(*step)
            assert words in words_of(terminal.getvalue()[before:])
    assert f"{job}: starting Spark" in words_of(terminal.getvalue())


def test_where_nobody_watches_nothing_is_written(capsys):
    with job_progress("audit") as on_step:
        on_step("load", 0, 4)
    assert capsys.readouterr() == ("", "")


def words_of(drawn: str) -> str:
    """The words that were drawn, without the bars."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)
    return " ".join(re.sub(r"[━╸╺]+", " ", text).split())
