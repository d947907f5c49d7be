"""A data folder of an older format: kept as it is before anything in it is changed.

`before-format-<n>/` inside the folder is then a complete data folder of the format before, which a program of that
format opens. Blocks and snapshots never change, so they get a second name there and take no room; where the file system
knows no second names they are copied, as the ledger's files are.

What a crash leaves: a folder `before-format-<n>.part`, which the next start makes anew, or the whole of
`before-format-<n>`, which is renamed when everything in it is durable. The folder itself says the old format until
then. After it, `mainstem.json` says the new one, and the ledger is upgraded when it is opened (ledger/sqlite): the
next start finds each of these done or not done, and does what is missing.
"""

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mainstem.core.errors import FolderUnusable
from mainstem.core.limits import MIB
from mainstem.log.disk import Disk
from mainstem.log.frame import BLOCK_HEADER_BYTES

_PIECE_BYTES: Final = 1 << 20
# Room that is left beside the copies: a disk that an upgrade fills to the last byte could not be written to after it.
_SPARE_BYTES: Final = 16 * MIB
_IMMUTABLE: Final = ("blocks", "snapshots")


class Backup:
    """The folder as it was before format `number`, in a folder inside it. The caller holds the lock; one thread."""

    def __init__(self, folder: Path, disk: Disk, number: int) -> None:
        self.path = folder / f"before-format-{number}"
        self._folder = folder
        self._disk = disk
        self._part = folder / f"{self.path.name}.part"

    def take(self) -> None:
        """Make it, unless a start that was cut short has; FolderUnusable if that is not possible."""
        if self.path.exists():
            self._require_same()
            return
        try:
            self._disk.remove_folder(self._part)
            self._fill()
            self._disk.replace_folder(self._part, self.path)
        except OSError as error:
            self._give_up()
            raise FolderUnusable(
                f"{self._folder} has to be kept as it is before it is upgraded, and {self.path.name} cannot be "
                f"written: {error.strerror or error}; nothing was changed"
            ) from error
        except FolderUnusable:
            self._give_up()
            raise

    def _fill(self) -> None:
        for name in _IMMUTABLE:
            self._disk.make_dirs(self._part / name)
        copied = [name for name in self._names() if not self._maybe_link(name)]
        needed = sum((self._folder / name).stat().st_size for name in copied) + _SPARE_BYTES
        free = self._disk.free_bytes(self._folder)
        if free < needed:
            raise FolderUnusable(
                f"{self._folder} has to be kept as it is before it is upgraded, which takes {needed} bytes, and {free} "
                "are free: make room on this disk and start again; nothing was changed"
            )
        for name in copied:
            self._disk.write_new(self._part / name, self._pieces(self._folder / name))

    def _names(self) -> list[str]:
        """What makes the folder, by names inside it; not who holds the lock, nor SQLite's shared memory."""
        names = [f"{folder}/{name}" for folder in _IMMUTABLE for name in self._disk.list(self._folder / folder)]
        names += [name for name in ("ledger.db", "ledger.db-wal", "mainstem.json") if (self._folder / name).exists()]
        return [name for name in names if not name.endswith(".part")]

    def _maybe_link(self, name: str) -> bool:
        return "/" in name and self._disk.link(self._folder / name, self._part / name)

    def _pieces(self, path: Path) -> Iterator[bytes]:
        file = self._disk.open(path)
        try:
            position = 0
            while piece := file.read(position, _PIECE_BYTES):
                yield piece
                position += len(piece)
        finally:
            file.close()

    def _require_same(self) -> None:
        """One that is there already is of this state of the folder. Whoever wrote to it since has begun a new block;
        the ledger's files may differ, because a power cut takes from them what was not synced."""
        blocks = self._folder / "blocks"
        for name in self._disk.list(blocks):
            if not name.endswith(".part") and _head(blocks / name) != _head(self.path / "blocks" / name):
                raise FolderUnusable(
                    f"{self.path} is from an earlier upgrade: it has another block {name}. If nobody needs it, delete "
                    f"it (rm -r {shlex.quote(str(self.path))}), else move it away, and start again; nothing was changed"
                )

    def _give_up(self) -> None:
        with contextlib.suppress(OSError):
            self._disk.remove_folder(self._part)


def _head(block: Path) -> bytes:
    """What tells a block from every other one; nothing if it is not there."""
    try:
        with open(block, "rb") as file:
            return file.read(BLOCK_HEADER_BYTES)
    except FileNotFoundError:
        return b""
