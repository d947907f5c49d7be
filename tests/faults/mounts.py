"""Small file systems of one's own, for tests that fill them up or cut their power. They need the right to mount."""

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

# The file system stops at once, as if the power were gone: nothing that was not synced gets to the disk any more.
_FS_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = struct.pack("I", 2)


@cache
def can_mount() -> bool:
    """Whether this process may mount a file system over a file, and cut its power."""
    if os.geteuid() != 0:
        return False
    try:
        with TemporaryDirectory() as folder, PowerImage(Path(folder) / "probe", 8 << 20) as image:
            image.cut()
            image.restore()
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A file system in memory that holds `size` bytes."""
    folder.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        _run("umount", str(folder))
        folder.rmdir()


class PowerImage:
    """An ext4 file system in a file, mounted at `path`, whose power can be cut. One thread; a context manager."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._image = path.with_name(path.name + ".ext4")
        self._size = size

    def __enter__(self) -> "PowerImage":
        self.path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(self._size)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()
        return self

    def cut(self) -> None:
        """From here on every write fails, and what was not synced is gone."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _FS_IOC_SHUTDOWN, _NO_LOG_FLUSH)
        finally:
            os.close(descriptor)

    def restore(self) -> None:
        """Mount it again, as a start after the cut does. Nobody may have a file of it open."""
        _run("umount", str(self.path))
        self._mount()

    def __exit__(self, *exc: object) -> None:
        _run("umount", str(self.path))
        self.path.rmdir()
        self._image.unlink()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
