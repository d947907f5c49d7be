"""The data folder: what is where, whose it is, and that only one process writes it.

mainstem.json              format version, the log's UUID, and a checksum of both
lock                       held by the writing process; says which one
ledger.db, -wal, -shm      the ledger
snapshots/ledger-<n>.db    copies of it
blocks/<n>.block           the blocks
"""

import errno
import fcntl
import json
import logging
import os
import uuid
from pathlib import Path
from typing import Final

from mainstem.core.checksum import crc32c
from mainstem.core.errors import FolderLocked, FolderUnusable
from mainstem.log.blocks.local import LocalBlocks
from mainstem.log.disk import Disk
from mainstem.log.frame import FrameDamaged
from mainstem.log.scan import BlockScanner
from mainstem.log.snapshots import Snapshots

logger = logging.getLogger("mainstem.log")

FORMAT: Final = 1


class Folder:
    """Paths and identity of one data folder."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self.disk = disk
        self.ledger = path / "ledger.db"
        self.blocks = LocalBlocks(path / "blocks", disk)
        self.snapshots = Snapshots(path / "snapshots", disk)
        self._identity = path / "mainstem.json"

    def prepare(self) -> str:
        """Make the folder if it is new; return the log's UUID. The caller holds the lock."""
        for name in ("blocks", "snapshots"):
            self.disk.make_dirs(self.path / name)
        found = self._read_identity() or self._identity_of_blocks()
        if found is None:
            if self.ledger.exists():
                raise FolderUnusable(
                    f"{self.path} has a ledger.db and neither mainstem.json nor blocks: the records are gone; "
                    "bring the blocks folder back, or choose an empty folder"
                )
            found = uuid.uuid4().hex
        if not self._identity.exists():
            self._write_identity(found)
        return found

    def require(self) -> str:
        """The UUID of an existing log, for readers."""
        found = self._read_identity()
        if found is None:
            raise FolderUnusable(f"{self.path} is not a Mainstem data folder: it has no mainstem.json")
        return found

    def _read_identity(self) -> str | None:
        try:
            content = self._identity.read_bytes()
        except FileNotFoundError:
            return None
        identity = _parse_identity(content)
        if identity is None:
            # The file only repeats what every block says of itself.
            logger.warning("%s is damaged; the blocks say which log this is", self._identity)
            return self._identity_of_blocks() or _unreadable(self._identity)
        version, log_uuid = identity
        if version > FORMAT:
            raise FolderUnusable(
                f"{self.path} has format {version}, this program reads up to format {FORMAT}; use a newer Mainstem"
            )
        return log_uuid

    def _identity_of_blocks(self) -> str | None:
        for block in self.blocks.list():
            try:
                return BlockScanner(self.blocks, block).header().log_uuid.hex()
            except FrameDamaged:
                continue
        return None

    def _write_identity(self, log_uuid: str) -> None:
        part = self._identity.with_suffix(".part")
        content = {"format": FORMAT, "uuid": log_uuid, "check": _identity_check(FORMAT, log_uuid)}
        part.write_text(json.dumps(content) + "\n")
        self.disk.replace(part, self._identity)


def _parse_identity(content: bytes) -> tuple[int, str] | None:
    """Format and UUID, or None if this is not what was written."""
    try:
        fields = json.loads(content)
        version, log_uuid = int(fields["format"]), uuid.UUID(fields["uuid"]).hex
        return (version, log_uuid) if fields["check"] == _identity_check(version, log_uuid) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _identity_check(version: int, log_uuid: str) -> str:
    return f"{crc32c(f'{version} {log_uuid}'.encode()):08x}"


def _unreadable(path: Path) -> str:
    raise FolderUnusable(f"{path} cannot be read and no block says which log this is; bring the file back from a copy")


class FolderLock:
    """Held by the one process that writes a folder. Released by the kernel when that process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path / "lock"
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise FolderLocked(
                f"{path} may not be written by this user ({error.strerror}); open it with read_only=True"
            ) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._fd, 64).decode(errors="replace").strip() or "another process"
            os.close(self._fd)
            raise FolderLocked(
                f"{path} is being written by {holder}; only one process writes a data folder. Connect to it "
                f"(mainstem.connect), open the folder with read_only=True, or stop that process first"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"process {os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another process write. In a child made by fork: let go of the copy without releasing the parent's."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
