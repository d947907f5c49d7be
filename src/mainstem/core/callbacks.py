"""Code of the user that a hub calls in a thread of its own. It must not wait: the hub would wait for itself."""

import logging
import threading
from collections.abc import Callable

from mainstem.core.errors import InvalidRequest
from mainstem.core.events import Event

logger = logging.getLogger("mainstem.hub")

_here = threading.local()


def run(callback: Callable[[], None], what: str) -> None:
    """Call it. What it raises is logged: there is nobody to raise it to, and others must go on."""
    outer, _here.is_calling = is_calling(), True
    try:
        callback()
    except Exception:
        logger.exception(Event("code of the user raised", what=what))
    finally:
        _here.is_calling = outer


def is_calling() -> bool:
    """Whether this thread is in a callback now."""
    return getattr(_here, "is_calling", False)


def check_may_wait(what: str) -> None:
    """Called before anything that may wait for the hub."""
    if is_calling():
        raise InvalidRequest(
            f"{what} waits, and a callback must not: hand it to a thread of your own. (`send` does not wait if there "
            "is room and the producer knows the stream: call producer.prepare(stream) before)"
        )
