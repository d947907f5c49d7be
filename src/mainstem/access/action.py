"""Actions: what may be allowed or denied."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from mainstem.core.errors import InvalidSetting


class Action(StrEnum):
    """One thing to do to a stream; `ADMIN` is done to the log as a whole, whose name as a stream is empty."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    DESCRIBE = "describe"
    GROUP = "group"
    ADMIN = "admin"


# In a rule: every action.
ALL: Final = "all"
# Who may do one of these to a stream has to look it up for that, and may.
_WAYS_TO_DESCRIBE: Final = frozenset({Action.DESCRIBE, Action.READ, Action.WRITE, Action.ALTER, Action.DELETE})
# A rule for which actions allows this one.
ALLOWED_BY: Final[Mapping[Action, frozenset[str]]] = {
    action: frozenset({ALL}) | (_WAYS_TO_DESCRIBE if action is Action.DESCRIBE else frozenset({action}))
    for action in Action
}


def check_action(text: str) -> str:
    """The action of a rule, or InvalidSetting."""
    if text != ALL and text not in {action.value for action in Action}:
        raise InvalidSetting(f"action {text[:40]!r} is not known; use one of {', '.join([*Action, ALL])}")
    return text
