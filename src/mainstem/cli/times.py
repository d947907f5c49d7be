"""Points in time as options give them: a time with its zone, or how long ago."""

from datetime import datetime, timedelta

from mainstem.cli.exits import UsageProblem
from mainstem.core.clock import SYSTEM_CLOCK
from mainstem.core.kinds import parse_duration
from mainstem.core.times import from_us


def parse_time(option: str, text: str, others: str = "") -> datetime:
    """The time that `option` was given as. `others` names what else the option takes, for the one who mistyped."""
    try:
        ago = parse_duration(text)
    except ValueError:
        return _absolute(option, text, others)
    try:
        return from_us(SYSTEM_CLOCK.now_us()) - timedelta(seconds=ago)
    except OverflowError:
        raise UsageProblem(f"{option} {text}: that is before the year 1") from None


def is_ago(text: str) -> bool:
    """Whether this says how long ago, and so another time whenever it is asked."""
    try:
        parse_duration(text)
    except ValueError:
        return False
    return True


def _absolute(option: str, text: str, others: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        what = f"{others}, a time (2026-01-31T12:00:00Z), or how long ago (15m)".removeprefix(", ")
        raise UsageProblem(f"{option} {text}: use {what}") from None
    if found.tzinfo is None:
        raise UsageProblem(f"{option} {text}: the time needs a zone; {found.isoformat()}Z is UTC")
    return found
