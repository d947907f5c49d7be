"""Log lines: fields in both forms, and hostile text that stays where it is."""

import json
import logging
import re
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core.events import Event
from mainstem.core.log_lines import JsonLines, TextLines, configure_logging, log_failed_threads
from mainstem.core.plain import one_line
from mainstem.core.settings import Settings

TIME = 1_769_860_800.0425  # 2026-01-31T12:00:00.0425Z
EVIL = 'evil"\n2026-01-01T00:00:00.000Z CRITICAL mainstem: all is lost\x1b[2J\r\u202e level=critical \ud800'
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w.]+: .*")


def record(message: object, *arguments: object, exc_info=None) -> logging.LogRecord:
    made = logging.LogRecord("mainstem.server", logging.WARNING, __file__, 1, message, arguments, exc_info)
    made.created = TIME
    return made


def test_text():
    line = TextLines().format(record(Event("stream created", stream="clicks", shards=4, seconds=0.25, http=None)))
    assert line == (
        "2026-01-31T12:00:00.042Z WARNING mainstem.server: stream created stream=clicks shards=4 seconds=0.25 http=null"
    )


def test_json():
    event = Event("stream created", stream="clicks", shards=4, seconds=0.1234567, exact=True, never=float("nan"))
    assert json.loads(JsonLines().format(record(event))) == {
        "time": "2026-01-31T12:00:00.042Z",
        "level": "warning",
        "logger": "mainstem.server",
        "message": "stream created",
        "stream": "clicks",
        "shards": 4,
        "seconds": 0.123457,
        "exact": True,
        "never": "nan",
    }


def test_a_message_without_fields_is_an_event_too():
    plain = record("%d of %s", 3, "these")
    assert TextLines().format(plain).endswith(": 3 of these")
    assert json.loads(JsonLines().format(plain))["message"] == "3 of these"


def test_a_field_cannot_take_a_key_that_every_line_has():
    with pytest.raises(AssertionError):
        Event("x", level="critical")


def test_any_formatter_shows_the_fields():
    """A program that uses the library has its own."""
    assert logging.Formatter("%(message)s").format(record(Event("lost", server="x:1"))) == "lost server=x:1"


@pytest.mark.parametrize("message", [Event("client disconnected", client=EVIL, reason="x"), EVIL])
def test_hostile_text_breaks_no_line_and_forges_none(message):
    text = TextLines().format(record(message))
    assert LINE.fullmatch(text)
    assert text.isprintable()
    assert text.count(" WARNING mainstem.server: ") == 1
    line = JsonLines().format(record(message))
    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    assert found["level"] == "warning"
    assert EVIL.encode("utf-16", "surrogatepass").decode("utf-16", "replace")[:4] in json.dumps(found)


def test_a_value_of_more_than_a_word_is_quoted():
    """So that `x level=critical` is seen to be one value."""
    assert str(Event("lost", client='x level="critical"')) == r'lost client="x level=\"critical\""'
    assert str(Event("lost", client="")) == 'lost client=""'
    assert str(Event("lost", client="ä")) == r'lost client="\u00e4"'


@given(st.text(), st.text(st.characters(codec=None)))
def test_whatever_a_client_says(name, reason):
    event = Event("client disconnected", client=name, reason=reason)
    assert LINE.fullmatch(TextLines().format(record(event)))
    found = json.loads(JsonLines().format(record(event)))
    assert (found["client"], found["reason"]) == (name, reason)


def test_long_values_are_cut():
    assert len(str(Event("x", client="y" * 10**6))) < 1_100
    assert len(TextLines().format(record("y" * 10**6))) < 17_000
    assert len(JsonLines().format(record("y" * 10**6))) < 17_000


def test_a_traceback_is_indented():
    try:
        raise ValueError(EVIL)
    except ValueError:
        failed = record(Event("reading failed", stream="clicks"), exc_info=sys.exc_info())
    first, *rest = TextLines().format(failed).split("\n")
    assert LINE.fullmatch(first)
    assert rest
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    assert "ValueError" in json.loads(JsonLines().format(failed))["exception"]


def test_one_line_leaves_what_can_be_printed():
    assert one_line("Grüße, 世界") == "Grüße, 世界"
    assert one_line("a\tb\x00\x1b[31m\u2028") == r"a\tb\x00\x1b[31m\u2028"
    assert one_line("x" * 20, 10) == "x" * 9 + "…"


@pytest.fixture
def untouched():
    """Loggers and hooks as they were."""
    loggers = [logging.getLogger(name) for name in ("mainstem", "uvicorn", "asyncio")]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    hook = threading.excepthook
    yield
    threading.excepthook = hook
    for logger, handlers, level, propagate in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def test_configured(untouched, capsys):
    configure_logging(Settings(log_format="json", log_level="info"))
    logging.getLogger("mainstem.log").info(Event("stream created", stream="clicks"))
    logging.getLogger("mainstem.log").debug(Event("nothing"))
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == ["stream created", "Invalid HTTP request received."]
    assert lines[0]["stream"] == "clicks"


def test_a_thread_that_fails_says_so(untouched, capsys):
    configure_logging(Settings(log_format="json"))
    log_failed_threads()

    def fail() -> None:
        raise ValueError("no")

    thread = threading.Thread(target=fail, name="mainstem-commit")
    thread.start()
    thread.join()
    (line,) = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (line["level"], line["message"], line["thread"]) == ("critical", "a thread failed", "mainstem-commit")
    assert "ValueError: no" in line["exception"]
