"""The disk filled to the last byte at random moments under load, and freed again.

A real server on a small file system of its own, tmpfs or ext4; producers and a follower that live through it, and a
filler that takes every byte that is left. While the disk is full, what was written can be read and a stream can be
deleted; the process stays the one it was; when there is room again, every producer is acknowledged again by itself, and
in the end nothing is lost and nothing is there twice. Without the right to mount, the disk is a counted one, and the
log is in this process.
"""

import errno
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.hub.embedded import LogPort
from mainstem.hub.hub import Hub
from mainstem.log.log import LogOptions
from mainstem.testing.disk import BudgetDisk
from mainstem.testing.history import History
from mainstem.testing.server import ServerFailed, ServerProcess
from mainstem.transport.port import Answer, Call, DeleteStreamCall, StatisticsCall
from tests.faults.load import SHARDS, CompanionLoad, Load
from tests.faults.mounts import PowerImage, can_mount, small_disk
from tests.faults.stamped import check_kept, count_report, read_back
from tests.faults.trials import Trials

logger = logging.getLogger(__name__)

# From the moment there is room until everybody is acknowledged again.
RESUME_SECONDS_MAX = 5.0
# Reading and deleting while the disk is full.
ANSWER_SECONDS_MAX = 5.0
_DISK_BYTES = 192 << 20
_PAUSE_SECONDS = 0.01
# Longer than the disk is ever full.
_TIMEOUT_SECONDS = 10.0
_READER = 2
_STREAM = "through-full-disks"
# Small blocks, checkpoints and snapshots: the disk is found full at all of them.
# Every other time appends are not refused before the disk is really full.
_OPTIONS = ("--block-bytes", "1MiB", "--checkpoint-bytes", "256KiB", "--snapshot-bytes", "2MiB")
_TINY = LogOptions(block_bytes=1 << 20, checkpoint_bytes=256 << 10, snapshot_bytes=2 << 20, ballast_bytes=1 << 20)


def run(seed: int, trials: int, folder: Path) -> Trials:
    result = Trials()
    rng = random.Random(f"disk full {seed}")
    history = History()
    with _place(seed, folder) as place, place.connect() as hub:
        hub.streams.create(_STREAM, shards=SHARDS)
        load = CompanionLoad(place.connect, _STREAM, history, pause=_PAUSE_SECONDS, timeout=_TIMEOUT_SECONDS)
        try:
            for trial in range(trials):
                _fill_and_free(result, f"seed {seed}, trial {trial}", place, hub, load, rng)
        except (ServerFailed, MainstemError) as error:
            load.leave()
            result.add_finding(f"seed {seed}, trial {result.trials}: {error}")
            return result
        load.stop()
        read_back(hub, _STREAM, history, _READER)
        for text in load.errors:
            result.add_finding(f"seed {seed}: {text}")
        check_kept(result, place.data, f"seed {seed}")
    count_report(result, history.check(), f"seed {seed}")
    return result


def _fill_and_free(result: Trials, name: str, place: "Place", hub: Hub, load: Load, rng: random.Random) -> None:
    spare = f"spare-{result.trials}"
    hub.streams.create(spare)
    time.sleep(rng.uniform(0.0, 0.4))
    if not _within(ANSWER_SECONDS_MAX, (place.data / "ballast").exists):
        result.add_finding(f"{name}: there is no ballast")
    place.fill()
    time.sleep(rng.uniform(0.0, 0.3))
    place.check()
    # Until the log has found out: appends are refused, or wait for room.
    if not _within(ANSWER_SECONDS_MAX, lambda: bool(_ask(hub, StatisticsCall()).counters["disk_full"])):
        result.add_finding(f"{name}: the log did not say that its disk is full")
    started = time.monotonic()
    _read_some(hub)
    _ask(hub, DeleteStreamCall(spare))
    took = time.monotonic() - started
    if took > ANSWER_SECONDS_MAX:
        result.add_finding(f"{name}: reading and deleting took {took:.1f} s while the disk was full")
    time.sleep(rng.uniform(0.0, 0.6))
    before = list(load.bursts)
    place.free()
    freed = time.monotonic()
    if not _within(RESUME_SECONDS_MAX, lambda: all(now > then for now, then in zip(load.bursts, before, strict=True))):
        result.add_finding(f"{name}: bursts {before}, and {load.bursts} {RESUME_SECONDS_MAX} s after there was room")
    place.check()
    result.trials += 1
    result.took(time.monotonic() - freed)


def _ask(hub: Hub, call: Call) -> Answer:
    """Carry out a call in the time that is allowed while the disk is full."""
    return hub._port.call(call, timeout=ANSWER_SECONDS_MAX)


def _read_some(hub: Hub) -> None:
    """What was acknowledged before is there for somebody new."""
    if not any(hub.streams.get(_STREAM).ends):
        return
    with hub.consumer(_STREAM, start="earliest", follow=False) as consumer:
        batch = consumer.poll_batch(timeout=ANSWER_SECONDS_MAX)
    if batch is None:
        raise ServerFailed("nothing could be read while the disk was full")


def _within(seconds: float, is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


# ---------------------------------------------------------------------------------------------------------- places


class Place(Protocol):
    """A log on a disk that can be filled up."""

    data: Path

    def connect(self) -> AbstractContextManager[Hub]: ...

    def fill(self) -> None: ...

    def free(self) -> None: ...

    def check(self) -> None:
        """ServerFailed if the log did not live through it."""
        ...


@contextmanager
def _place(seed: int, folder: Path) -> Iterator[Place]:
    if not can_mount():
        logger.warning("disk_full: no file system can be mounted here; a counted disk stands in for it")
        with EmbeddedPlace(folder / "data", BudgetDisk(free=_DISK_BYTES, total=_DISK_BYTES)) as embedded:
            yield embedded
        return
    mount = folder / "small"
    with small_disk(mount, _DISK_BYTES) if seed % 2 else _ext4(mount) as disk:
        watermark = () if seed // 2 % 2 else ("--free-bytes-min", "0")
        server = ServerProcess(disk / "data", *_OPTIONS, *watermark)
        # Beside the disk that gets full.
        server._stderr = folder / "server.stderr"
        with server:
            server_place = ServerPlace(server, disk / "filler")
            try:
                yield server_place
            finally:
                server_place.free()


@contextmanager
def _ext4(mount: Path) -> Iterator[Path]:
    with PowerImage(mount, _DISK_BYTES) as image:
        yield image.path


class ServerPlace:
    """A server process and a file that takes what is left of its disk."""

    def __init__(self, server: ServerProcess, filler: Path) -> None:
        self.data = server.folder
        self._server = server
        self._pid = server.pid
        self._filler = filler

    def connect(self) -> AbstractContextManager[Hub]:
        return mainstem.connect(self._server.url)

    def fill(self) -> None:
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            size = 16 << 20
            end = 0
            while size:
                try:
                    os.posix_fallocate(descriptor, end, size)
                    end += size
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2
        finally:
            os.close(descriptor)

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def check(self) -> None:
        if self._server.pid != self._pid:
            raise ServerFailed("the server is another process now")


class EmbeddedPlace:
    """A log in this process on a counted disk."""

    def __init__(self, data: Path, disk: BudgetDisk) -> None:
        self.data = data
        self._disk = disk
        self._port = LogPort(data, _TINY, disk=disk)
        self._hub = Hub(self._port, str(data))

    def connect(self) -> AbstractContextManager[Hub]:
        return nullcontext(self._hub)

    def fill(self) -> None:
        self._disk.free = 0

    def free(self) -> None:
        self._disk.free = _DISK_BYTES

    def check(self) -> None:
        failure = self._port.log.batcher.failure
        if failure is not None:
            raise failure

    def __enter__(self) -> "EmbeddedPlace":
        return self

    def __exit__(self, *exc: object) -> None:
        self._hub.close()
