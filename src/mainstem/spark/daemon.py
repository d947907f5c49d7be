"""Spark's daemon, which starts its workers in Python, with nothing on the terminal of those that nobody waits for.

Where a LIMIT is reached, or a task has failed, Spark closes the connections of the other tasks. The daemon writes a
stack for each: on one machine, between the lines of whoever asked.
"""

import os
from socket import socket

from pyspark import daemon

_worker = daemon.worker


def _ended(sock: socket, authenticated: bool) -> int:
    try:
        return _worker(sock, authenticated)
    except BrokenPipeError:
        os._exit(1)


if __name__ == "__main__":
    daemon.worker = _ended
    daemon.manager()
