"""Tells systemd how far the process is, if it was started by a unit of `Type=notify`. Elsewhere: nothing happens.

The manager names a datagram socket in NOTIFY_SOCKET; each message to it is one or more lines `NAME=value`.
"""

import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

from mainstem.core.events import Event
from mainstem.core.plain import one_line

logger = logging.getLogger("mainstem.server")

_VARIABLE: Final = "NOTIFY_SOCKET"


def notify(state: str, status: str, environ: Mapping[str, str] = os.environ) -> None:
    """Say `READY` or `STOPPING`, and a status line for people. A manager that does not listen is no reason to stop."""
    name = environ.get(_VARIABLE, "")
    if not name:
        return
    # A leading @ stands for the null byte of a name that is not in the file system.
    address = "\0" + name[1:] if name.startswith("@") else name
    message = f"{state}=1\nSTATUS={one_line(status)}\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.connect(address)
            manager.sendall(message.encode())
    except OSError as error:
        logger.warning(Event("the service manager cannot be told", state=state, reason=error))
