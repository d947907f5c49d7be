"""Disks that misbehave on purpose, as layers over another disk.

`DiskLayer` forwards everything; each fault is a small class that overrides one decision. What a layer counts and can
strike at are the operations by which the log changes its folder: `create`, `write`, `sync`, `replace`, `remove`. A
write of the log is durable when it returns, so a strike at a write stands for a failed write and for a failed fsync
alike: `leaves` says which bytes reached the disk before it.

    log = Log(folder, disk=FailingDisk(LocalDisk(), at=7, error=errno.ENOSPC))

For what a power cut leaves behind see `crash.py`.
"""

import errno
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple, NoReturn, TypeVar

from mainstem.core.batch import Buffer
from mainstem.log import disk as real
from mainstem.log.disk import Disk, DiskFile, LocalDisk, LocalFile

Leaves = Literal["nothing", "part", "all"]
KINDS: Final = ("create", "write", "sync", "replace", "remove")
T = TypeVar("T")


class Operation(NamedTuple):
    """One change of the folder: what kind, and of which file (the target of a rename)."""

    kind: str
    path: Path


class DiskLayer:
    """A disk over another one. Subclasses override `write` or `perform`. Any thread, as far as the one below allows."""

    def __init__(self, inner: Disk | None = None) -> None:
        self.inner: Disk = inner or LocalDisk()

    def perform(self, operation: Operation, act: Callable[[], T]) -> T:
        """Every change but a durable write passes here."""
        return act()

    def write(self, path: Path, file: DiskFile, buffers: Sequence[Buffer], position: int) -> None:
        """Every durable write passes here; `file` is the one below."""
        self.perform(Operation("write", path), lambda: file.write_durably(buffers, position))

    def truncate(self, path: Path, file: DiskFile, size: int) -> None:
        """Every cut passes here; `file` is the one below."""
        file.truncate(size)

    def create(self, path: Path) -> "FileLayer":
        return FileLayer(self, path, self.perform(Operation("create", path), lambda: self.inner.create(path)))

    def open(self, path: Path) -> "FileLayer":
        return FileLayer(self, path, self.inner.open(path))

    def write_new(self, path: Path, pieces: Iterable[Buffer]) -> None:
        """Counts as one write."""
        self.perform(Operation("write", path), lambda: self.inner.write_new(path, pieces))

    def make_dirs(self, path: Path) -> None:
        self.inner.make_dirs(path)

    def list(self, folder: Path) -> list[str]:
        return self.inner.list(folder)

    def link(self, source: Path, target: Path) -> bool:
        return self.perform(Operation("create", target), lambda: self.inner.link(source, target))

    def replace_folder(self, source: Path, target: Path) -> None:
        self.perform(Operation("replace", target), lambda: self.inner.replace_folder(source, target))

    def remove_folder(self, path: Path) -> None:
        self.inner.remove_folder(path)

    def replace(self, source: Path, target: Path) -> None:
        self.perform(Operation("replace", target), lambda: self.inner.replace(source, target))

    def allocate(self, path: Path, size: int) -> None:
        self.inner.allocate(path, size)

    def remove(self, path: Path) -> None:
        self.perform(Operation("remove", path), lambda: self.inner.remove(path))

    def free_bytes(self, path: Path) -> int:
        return self.inner.free_bytes(path)

    def total_bytes(self, path: Path) -> int:
        return self.inner.total_bytes(path)


class UnsyncedDisk(LocalDisk):
    """The local disk, without waiting until the bytes survive a power cut: for what takes very many flushes."""

    def create(self, path: Path) -> "_UnsyncedFile":
        return _UnsyncedFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)


class _UnsyncedFile(LocalFile):
    def write_durably(self, buffers: Sequence[Buffer], position: int) -> None:
        self._write_group([b"".join(buffers)], position, durably=False)

    def sync(self) -> None:
        return None


class FileLayer:
    """A file of a `DiskLayer`: changes go through the layer, reads do not."""

    def __init__(self, layer: DiskLayer, path: Path, inner: DiskFile) -> None:
        self.path = path
        self.read, self.size, self.let_go, self.close = inner.read, inner.size, inner.let_go, inner.close
        self._layer = layer
        self._inner = inner

    def write_durably(self, buffers: Sequence[Buffer], position: int) -> None:
        self._layer.write(self.path, self._inner, buffers, position)

    def sync(self) -> None:
        self._layer.perform(Operation("sync", self.path), self._inner.sync)

    def truncate(self, size: int) -> None:
        self._layer.truncate(self.path, self._inner, size)


class StrikingDisk(DiskLayer):
    """Calls `strike` at the `at`-th operation (from 1) of the given kinds; 0 never strikes and only counts.

    `leaves` is what the operation did before the strike: nothing, the first half of a write, or all of it. The strike
    is expected not to return; one that does lets the operation go on as if nothing had been.
    """

    def __init__(
        self,
        inner: Disk | None,
        *,
        at: int,
        strike: Callable[[Operation], object],
        kinds: Collection[str] = KINDS,
        leaves: Leaves = "nothing",
    ) -> None:
        super().__init__(inner)
        self.calls: list[Operation] = []
        self.has_struck = False
        self._at = at
        self._strike = strike
        self._kinds = frozenset(kinds)
        self._leaves = leaves
        self._lock = threading.Lock()

    def perform(self, operation: Operation, act: Callable[[], T]) -> T:
        if not self._is_due(operation):
            return act()
        if self._leaves == "all":
            act()
        self._strike(operation)
        return act()

    def write(self, path: Path, file: DiskFile, buffers: Sequence[Buffer], position: int) -> None:
        operation = Operation("write", path)
        if not self._is_due(operation):
            file.write_durably(buffers, position)
            return
        whole = b"".join(buffers)
        left = whole[: {"nothing": 0, "part": len(whole) // 2, "all": len(whole)}[self._leaves]]
        if left:
            file.write_durably([left], position)
        self._strike(operation)
        file.write_durably([whole], position)

    def write_new(self, path: Path, pieces: Iterable[Buffer]) -> None:
        operation = Operation("write", path)
        if not self._is_due(operation):
            self.inner.write_new(path, pieces)
            return
        whole = b"".join(pieces)
        if self._leaves != "nothing":
            self.inner.write_new(path, [whole[: len(whole) // 2] if self._leaves == "part" else whole])
        self._strike(operation)
        self.inner.write_new(path, [whole])

    def _is_due(self, operation: Operation) -> bool:
        if operation.kind not in self._kinds:
            return False
        with self._lock:
            self.calls.append(operation)
            due = len(self.calls) == self._at
            self.has_struck |= due
            return due


class FailingDisk(StrikingDisk):
    """The `at`-th operation raises an OSError; the ones after it work again, as disks sometimes do."""

    def __init__(
        self,
        inner: Disk | None = None,
        *,
        at: int,
        error: int = errno.EIO,
        kinds: Collection[str] = KINDS,
        leaves: Leaves = "nothing",
    ) -> None:
        def strike(operation: Operation) -> NoReturn:
            raise OSError(error, f"{os.strerror(error)} (injected)", str(operation.path))

        super().__init__(inner, at=at, strike=strike, kinds=kinds, leaves=leaves)


class KillingDisk(StrikingDisk):
    """The process gets SIGKILL at the `at`-th operation."""

    def __init__(
        self, inner: Disk | None = None, *, at: int, kinds: Collection[str] = KINDS, leaves: Leaves = "nothing"
    ) -> None:
        super().__init__(inner, at=at, strike=lambda _: kill_self(), kinds=kinds, leaves=leaves)


class BudgetDisk(DiskLayer):
    """A disk with room for so many bytes, to the byte: a write that does not fit leaves what does, and finds no room.

    Set `free` at any time to fill it up or to free some of it. What SQLite writes itself is not counted. One thread at
    a time changes the folder.
    """

    def __init__(self, inner: Disk | None = None, *, free: int, total: int = 1 << 40) -> None:
        super().__init__(inner)
        self.free = free
        self.total = total
        # How many operations found no room.
        self.refused = 0

    def write(self, path: Path, file: DiskFile, buffers: Sequence[Buffer], position: int) -> None:
        whole = b"".join(buffers)
        fits = whole[: self._take(len(whole))]
        if fits:
            file.write_durably([fits], position)
        self._require(len(fits) == len(whole), path)

    def write_new(self, path: Path, pieces: Iterable[Buffer]) -> None:
        self.free += _size(path)
        whole = b"".join(pieces)
        fits = whole[: self._take(len(whole))]
        self.inner.write_new(path, [fits])
        self._require(len(fits) == len(whole), path)

    def truncate(self, path: Path, file: DiskFile, size: int) -> None:
        self.free += max(0, file.size() - size)
        file.truncate(size)

    def replace(self, source: Path, target: Path) -> None:
        self.free += _size(target)
        self.inner.replace(source, target)

    def allocate(self, path: Path, size: int) -> None:
        self._require(size <= self.free, path)
        self.inner.allocate(path, size)
        self.free -= size

    def remove(self, path: Path) -> None:
        self.free += _size(path)
        self.inner.remove(path)

    def free_bytes(self, path: Path) -> int:
        return self.free

    def total_bytes(self, path: Path) -> int:
        return self.total

    def _take(self, count: int) -> int:
        taken = min(count, self.free)
        self.free -= taken
        return taken

    def _require(self, fits: bool, path: Path) -> None:
        if not fits:
            self.refused += 1
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (injected)", str(path))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def kill_self() -> NoReturn:
    """End this process as `kill -9` does: no handler runs, no buffer is written."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive after SIGKILL")


@contextmanager
def short_writes(bytes_max: int) -> Iterator[None]:
    """Let no write of the local disk take more than `bytes_max` bytes at once, as a nearly full disk does."""
    whole = real._pwritev

    def short(fd: int, buffers: Sequence[Buffer], position: int, *, durably: bool) -> int:
        return whole(fd, [b"".join(buffers)[:bytes_max]], position, durably=durably)

    real._pwritev = short
    try:
        yield
    finally:
        real._pwritev = whole
