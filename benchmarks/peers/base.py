"""What a peer offers the harness."""

from __future__ import annotations

import abc
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness import Process, rss_peak_bytes, run_child

Durability = Literal["safe", "shipped"]
"""``safe``: an acknowledged message survives power loss, as ours does. ``shipped``: whatever the defaults promise."""


class Peer(abc.ABC):
    """One system: its server is started on an empty folder, one producer process drives it, it is stopped.

    ``how`` says per durability how it is driven, ``promise`` what its acknowledgement then means.
    """

    name: str
    how: dict[Durability, str]
    promise: dict[Durability, str]
    # Messages of 100 bytes for about one second, so that rounds are short and comparable.
    count: dict[Durability, int]

    def __init__(self) -> None:
        self.durability: Durability = "safe"
        self.server: Process | None = None

    @classmethod
    @abc.abstractmethod
    def available(cls) -> str | None:
        """None, or why it cannot run here and what to install."""

    @classmethod
    @abc.abstractmethod
    def versions(cls) -> dict[str, str]:
        """Versions of the server and the client."""

    @abc.abstractmethod
    def start(self, folder: Path, durability: Durability) -> None:
        """Start the server on an empty folder; returns when it accepts."""

    @abc.abstractmethod
    def producer(self) -> tuple[str, dict[str, Any]]:
        """The child function that produces, and the arguments it needs beside count and size."""

    def run_producer(self, count: int, size: int) -> dict[str, float]:
        """Acknowledged messages per second of one producer process, which also verifies what the server holds."""
        assert self.server is not None
        function, arguments = self.producer()
        took = run_child(function, count=count, size=size, watch=[self.server.pid], **arguments)
        return {
            "msg_per_s": count / took["wall_s"],
            "msg_per_cpu_s": count / took["cpu_s"],
            "client_cores": took["client_cpu_s"] / took["wall_s"],
            "server_cores": took["server_cpu_s"] / took["wall_s"],
            "server_rss_mb": rss_peak_bytes(self.server.pid) / 1e6,
        }

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None
