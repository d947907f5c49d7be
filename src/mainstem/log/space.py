"""Room on the disk: how much is left, when appends are refused, and a ballast to work in when there is none.

Problem. A log that writes until the disk is full cannot even free space any more: letting records go is itself written
down first. And what fills the disk may be somebody else, at any moment.

Idea. Below a low watermark of free space nothing is appended; commands, which are small and free more than they take,
still are. Should the disk become full to the last byte nevertheless, a file that was allocated in better times, the
ballast, is given up, and commands and the ledger have room again. When there is room above the watermark, and for a new
ballast, appends go on by themselves.

A write that finds no room counts more than what the file system says is free (there are quotas, and inodes): the log is
full for a moment, then one write is tried, and each such surprise in a row doubles the moment.
"""

import logging
import threading
from collections import deque
from pathlib import Path
from typing import Final

from mainstem.core.clock import Clock
from mainstem.core.errors import DiskFull
from mainstem.core.events import Event
from mainstem.core.limits import MIB
from mainstem.log.disk import Disk

logger = logging.getLogger("mainstem.log")

# How often the file system is asked: after so much time, or after so much was written.
_LOOK_SECONDS: Final = 0.1
_LOOK_BYTES: Final = 8 * MIB
# On a small file system the watermark and the ballast are these parts of it.
_WATERMARK_PART: Final = 8
_BALLAST_PART: Final = 32
# Appends go on when this part of the watermark is free above it: at the very edge they would come and go.
_RESUME_PART: Final = 16
# How long a write that found no room makes the log wait, if the file system says that there is some.
_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 2.0
# How long after a ballast could not be made it is tried again.
_BALLAST_SECONDS: Final = 60.0
# The rate of growth is that of the last minute, from one sample a second.
_SAMPLES: Final = 60
_SAMPLE_SECONDS: Final = 1.0


class Space:
    """The room that one data folder has. Any thread.

    `is_full` is what decides about appends; `look` brings it up to date and asks the file system only now and then.
    """

    def __init__(self, path: Path, disk: Disk, clock: Clock, free_bytes_min: int, ballast_bytes: int) -> None:
        self._path = path
        self._disk = disk
        self._clock = clock
        total = disk.total_bytes(path)
        self.watermark = min(free_bytes_min, total // _WATERMARK_PART)
        self._resume_at = self.watermark + self.watermark // _RESUME_PART
        self._ballast_bytes = min(ballast_bytes, total // _BALLAST_PART)
        self._ballast = path / "ballast"
        # One of an earlier life is used as it is.
        self._has_ballast = self._ballast.exists()
        self._ballast_not_before = 0.0
        self._lock = threading.Lock()
        # Whether an append would be refused now; and whether it was logged and not taken back that the disk is full.
        self.is_full = False
        self.is_told_full = False
        self.refused = 0
        self.free = disk.free_bytes(path)
        self._full_since = 0.0
        self._looked_at = clock.monotonic()
        self._written_since = 0
        # A write found no room: not before this time is it tried again; and how often that happened in a row.
        self._not_before = 0.0
        self._surprises = 0
        # (time, free bytes), oldest first.
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)
        self._judge(self._looked_at)

    def look(self, *, now: bool = False) -> bool:
        """Whether the log is full, asking the file system if it was not asked for a while, or `now`."""
        time = self._clock.monotonic()
        if now or time - self._looked_at >= _LOOK_SECONDS or self._written_since >= _LOOK_BYTES:
            with self._lock:
                self._looked_at, self._written_since = time, 0
                self.free = self._ask()
                self._judge(time)
        return self.is_full

    def wrote(self, count: int) -> None:
        """So many bytes found room."""
        self._written_since += count
        if self._surprises:
            with self._lock:
                self._surprises, self._not_before = 0, 0.0
                self.free = self._ask()
                self._judge(self._clock.monotonic())

    def met_full(self) -> None:
        """A write found no room."""
        with self._lock:
            time = self._clock.monotonic()
            pause = min(_PAUSE_SECONDS_MIN * 2**self._surprises, _PAUSE_SECONDS_MAX)
            self._surprises = min(self._surprises + 1, 16)
            self._not_before = time + pause
            self.free = self._ask()
            self._looked_at = time
            self._judge(time)

    def refusal(self) -> DiskFull:
        """What somebody is told who wants to append now."""
        self.refused += 1
        return DiskFull(
            f"{self._told()}; free some space there, delete or trim streams, or shorten their retention. Writing goes "
            "on by itself"
        )

    @property
    def seconds_until_full(self) -> float | None:
        """At the rate of the last minute, when appends will be refused; None if free space is not getting less."""
        with self._lock:
            if self.is_told_full:
                return 0.0
            if len(self._samples) < 2:
                return None
            (begun, most), (ended, least) = self._samples[0], self._samples[-1]
            if least >= most:
                return None
            return max(0.0, (self.free - self.watermark) * (ended - begun) / (most - least))

    def release_ballast(self) -> bool:
        """Give up the ballast, if there is one; whether there was."""
        with self._lock:
            if not self._has_ballast:
                return False
            self._has_ballast = False
            self._samples.clear()
            try:
                self._disk.remove(self._ballast)
            except OSError as error:
                logger.error(Event("the ballast could not be given up", error=error))
                return False
        logger.warning(Event("disk full: the ballast was given up, so that space can be freed"))
        return True

    # With the lock held.

    def _ask(self) -> int:
        try:
            return self._disk.free_bytes(self._path)
        except OSError:
            # Whatever is wrong with the disk, the next write says it better.
            return self.free

    def _judge(self, time: float) -> None:
        if not self._samples or time - self._samples[-1][0] >= _SAMPLE_SECONDS:
            self._samples.append((time, self.free))
        needed = self._resume_at + self._ballast_missing if self.is_told_full else self.watermark
        self.is_full = time < self._not_before or self.free < needed
        if self.is_full and not self.is_told_full:
            self.is_told_full, self._full_since = True, time
            logger.error(Event("disk full: appends are refused until there is room", reason=self._told()))
        elif not self.is_full and not self._surprises:
            if self.is_told_full:
                self.is_told_full = False
                logger.warning(Event("appends go on", seconds=time - self._full_since, free_bytes=self.free))
            self._maybe_make_ballast(time)

    def _told(self) -> str:
        where = f"the disk of {self._path.absolute()}"
        if self.free < MIB and not self.watermark:
            return f"{where} is full"
        if self.free >= self._resume_at + self._ballast_missing:
            return f"{where} takes no more, though {_mib(self.free)} seem free: a quota is used up, or all inodes are"
        needed = self._resume_at + self._ballast_missing
        return f"{_mib(self.free)} are free on {where}, writing needs {_mib(needed)} (free_bytes_min)"

    @property
    def _ballast_missing(self) -> int:
        """What must be free for a ballast that is not there, with as much again so that it is not given up at once."""
        return 0 if self._has_ballast else 2 * self._ballast_bytes

    def _maybe_make_ballast(self, time: float) -> None:
        """If there is so much room that the log is not full again at once."""
        missing = self._ballast_missing
        if not missing or self.free < self._resume_at + missing or time < self._ballast_not_before:
            return
        try:
            self._disk.allocate(self._ballast, self._ballast_bytes)
        except OSError as error:
            self._ballast_not_before = time + _BALLAST_SECONDS
            logger.warning(Event("the ballast cannot be made; it is tried again later", error=error))
            return
        self._has_ballast = True
        self.free -= self._ballast_bytes
        self._samples.clear()


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"
