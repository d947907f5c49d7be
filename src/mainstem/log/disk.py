"""The disk as the log sees it: few calls, so that a test can stand in for it, record it, or make it fail.

Everything the log itself writes goes through here. SQLite writes its own files; they are rebuilt from the blocks
whenever they cannot be trusted, so their durability is not part of any promise.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from mainstem.core.batch import Buffer

# writev takes at most this many buffers on Linux; longer lists are joined in pieces.
_IOV_MAX = 1_024
# What a file system says that has no second names for files, or not for this one.
_CANNOT_LINK = frozenset((errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS))


class DiskFile(Protocol):
    """An open file. One thread writes; any thread reads."""

    def write_durably(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write at `position` and return when the bytes survive a power cut. An OSError means: nothing is known."""
        ...

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        ...

    def sync(self) -> None: ...

    def let_go(self, position: int, length: int) -> None:
        """What is durable here is not read soon, and need not stay in memory. Only a hint."""
        ...

    def truncate(self, size: int) -> None:
        """Give back what stands beyond `size`, durably."""
        ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """Files and folders. Any thread."""

    def create(self, path: Path) -> DiskFile:
        """A new file; it must not exist. The folder entry is durable when this returns."""
        ...

    def open(self, path: Path) -> DiskFile: ...

    def write_new(self, path: Path, pieces: Iterable[Buffer]) -> None:
        """A file of this content, instead of one that may be there. Nothing is durable before `replace` names it."""
        ...

    def make_dirs(self, path: Path) -> None: ...

    def list(self, folder: Path) -> list[str]: ...

    def replace(self, source: Path, target: Path) -> None:
        """Rename over, durably: content first, then the name."""
        ...

    def remove(self, path: Path) -> None:
        """Take a file away, durably, and free its room; nothing happens if it is not there."""
        ...

    def link(self, source: Path, target: Path) -> bool:
        """Give a file that never changes a second name; False if this file system cannot, and nothing was done."""
        ...

    def replace_folder(self, source: Path, target: Path) -> None:
        """Rename a folder to a name that is free, durably: everything in it first, then the name."""
        ...

    def remove_folder(self, path: Path) -> None:
        """Take away a folder, if it is there, with everything in it. What is left after a crash can be any part."""
        ...

    def allocate(self, path: Path, size: int) -> None:
        """A file that occupies `size` bytes, instead of one that may be there."""
        ...

    def free_bytes(self, path: Path) -> int:
        """What may still be written to the file system of `path`."""
        ...

    def total_bytes(self, path: Path) -> int:
        """The size of the file system of `path`."""
        ...


def is_out_of_space(error: BaseException) -> bool:
    """Whether an error says that there is no room, of the disk or of its owner's quota, and nothing worse."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class LocalFile:
    """A file of the local file system."""

    def __init__(self, path: Path, flags: int) -> None:
        self.path = path
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def write_durably(self, buffers: Sequence[Buffer], position: int) -> None:
        if len(buffers) <= _IOV_MAX:
            self._write_group(buffers, position, durably=True)
            return
        # A durable write covers its own bytes only: after several calls one sync covers them all.
        for begin in range(0, len(buffers), _IOV_MAX):
            position += self._write_group(buffers[begin : begin + _IOV_MAX], position, durably=False)
        self.sync()

    def _write_group(self, group: Sequence[Buffer], position: int, *, durably: bool) -> int:
        total = sum(len(buffer) for buffer in group)
        written = _pwritev(self._fd, group, position, durably=durably)
        if written < total:
            # A short write happens on a nearly full disk. The rest is tried once more: it either fits or says why not.
            rest = memoryview(b"".join(group))
            while written < total:
                written += _pwritev(self._fd, [rest[written:]], position + written, durably=False)
            if durably:
                self.sync()
        return total

    def let_go(self, position: int, length: int) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._fd, position, length, os.POSIX_FADV_DONTNEED)

    def write(self, pieces: Iterable[Buffer]) -> None:
        """From the beginning, without a sync."""
        position = 0
        for piece in pieces:
            position += self._write_group([piece], position, durably=False)

    def read(self, position: int, length: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length:
            data = os.pread(self._fd, length - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def sync(self) -> None:
        _sync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class LocalDisk:
    """The local file system."""

    def create(self, path: Path) -> LocalFile:
        file = LocalFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            sync_dir(path.parent)
        except BaseException:
            file.close()
            raise
        return file

    def open(self, path: Path) -> LocalFile:
        return LocalFile(path, os.O_RDONLY)

    def write_new(self, path: Path, pieces: Iterable[Buffer]) -> None:
        file = LocalFile(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            file.write(pieces)
        finally:
            file.close()

    def make_dirs(self, path: Path) -> None:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in reversed(missing):
            sync_dir(folder.parent)

    def list(self, folder: Path) -> list[str]:
        return sorted(os.listdir(folder))

    def link(self, source: Path, target: Path) -> bool:
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            return False
        return True

    def replace_folder(self, source: Path, target: Path) -> None:
        for folder, _, names in os.walk(source, topdown=False):
            for name in (*names, "."):
                sync_dir(Path(folder) / name)
        os.rename(source, target)
        sync_dir(target.parent)

    def remove_folder(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def replace(self, source: Path, target: Path) -> None:
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(source, target)
        sync_dir(target.parent)

    def allocate(self, path: Path, size: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _allocate(fd, size)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(fd)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        sync_dir(path.parent)

    def free_bytes(self, path: Path) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def total_bytes(self, path: Path) -> int:
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize


def sync_dir(folder: Path) -> None:
    """Make the names in a folder, or the content of a file, durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


if sys.platform == "linux":

    def _pwritev(fd: int, buffers: Sequence[Buffer], position: int, *, durably: bool) -> int:
        # One system call writes and syncs: one release of the interpreter lock on the way to an acknowledgement.
        return os.pwritev(fd, buffers, position, os.RWF_DSYNC if durably else 0)

    def _sync(fd: int) -> None:
        os.fdatasync(fd)

    def _allocate(fd: int, size: int) -> None:
        os.posix_fallocate(fd, 0, size)

else:

    def _pwritev(fd: int, buffers: Sequence[Buffer], position: int, *, durably: bool) -> int:
        written = os.pwritev(fd, buffers, position)
        if durably:
            _sync(fd)
        return written

    def _sync(fd: int) -> None:
        # On macOS fsync leaves the bytes in the drive's cache; F_FULLFSYNC does not.
        fcntl.fcntl(fd, getattr(fcntl, "F_FULLFSYNC", 51))

    def _allocate(fd: int, size: int) -> None:
        # macOS has no call that allocates; what is written is allocated.
        os.pwrite(fd, bytes(size), 0)
