"""What a process tells its operator: one line per event on standard error, as text or as JSON.

    2026-01-31T12:00:00.000Z INFO mainstem.log: stream created stream=clicks shards=4
    {"time": "2026-01-31T12:00:00.000Z", "level": "info", "logger": "mainstem.log", "message": "stream created", ...}

An event stays one line whatever it repeats of what a client said, and looks like no other: what cannot be printed is
escaped. Only a traceback has lines of its own in text; they are indented, as no event is.
"""

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from typing import Final

from mainstem.core.events import Event
from mainstem.core.plain import one_line
from mainstem.core.settings import Settings

# Whose lines are shown: ours, and of the libraries under the server those that tell of something wrong.
_LOGGERS: Final = ("mainstem", "uvicorn", "asyncio")
_MESSAGE_CHARS_MAX: Final = 16_000
_TRACEBACK_CHARS_MAX: Final = 32_000


def configure_logging(settings: Settings) -> None:
    """Write events to standard error, as the settings say."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.log_format == "json" else TextLines())
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(settings.log_level.upper() if name == "mainstem" else logging.WARNING)
        logger.propagate = False


def log_failed_threads() -> None:
    """A thread that ends by an error says so in a line like any other."""

    def tell(failed: threading.ExceptHookArgs) -> None:
        name = failed.thread.name if failed.thread is not None else "unknown"
        logging.getLogger("mainstem").critical(Event("a thread failed", thread=name), exc_info=failed.exc_value)

    threading.excepthook = tell


class TextLines(logging.Formatter):
    """For people: time, level, logger, message, fields."""

    def format(self, record: logging.LogRecord) -> str:
        message = one_line(record.getMessage(), _MESSAGE_CHARS_MAX)
        line = f"{_time(record)} {record.levelname} {record.name}: {message}"
        return "\n".join((line, *(f"    {one_line(part)}" for part in _traceback(self, record).splitlines())))


class JsonLines(logging.Formatter):
    """For programs: one object per line, the fields beside what every event has."""

    def format(self, record: logging.LogRecord) -> str:
        event = record.msg if isinstance(record.msg, Event) else Event(record.getMessage()[:_MESSAGE_CHARS_MAX])
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": event.message,
            **event.fields(),
        }
        if trace := _traceback(self, record):
            line["exception"] = trace
        return json.dumps(line)


def _time(record: logging.LogRecord) -> str:
    found = datetime.fromtimestamp(record.created, UTC)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    return formatter.formatException(record.exc_info)[-_TRACEBACK_CHARS_MAX:]
