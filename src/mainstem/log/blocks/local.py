"""Blocks as files of one folder."""

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from mainstem.core.batch import Buffer
from mainstem.core.errors import Closed
from mainstem.log.blocks.base import BlockMissing
from mainstem.log.disk import Disk, DiskFile
from mainstem.log.frame import BlockHeader

_NAME = re.compile(r"([0-9]{16})\.block")
# Open files kept for reading; the least recently used is closed beyond this.
_OPEN_FILES_MAX = 64


class LocalBlockWriter:
    """Appends to one new file."""

    def __init__(self, file: DiskFile, block: int) -> None:
        self.block = block
        self.position = 0
        self._file = file

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._file.write_durably(buffers, self.position)
        self.position += sum(len(buffer) for buffer in buffers)

    def close(self) -> None:
        self._file.close()


class LocalBlocks:
    """The block store of a data folder: `blocks/0000000000000001.block` and so on."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._open: OrderedDict[int, DiskFile] = OrderedDict()
        self._is_closed = False
        self._lock = threading.Lock()

    def create(self, header: BlockHeader) -> LocalBlockWriter:
        writer = LocalBlockWriter(self._disk.create(self._path(header.block)), header.block)
        try:
            writer.append([header.pack()])
        except BaseException:
            writer.close()
            raise
        return writer

    def read(self, block: int, position: int, length: int) -> bytes:
        # The lock keeps a file from being closed under a read; page-cache reads are short.
        with self._lock:
            return self._file(block).read(position, length)

    def size(self, block: int) -> int:
        with self._lock:
            return self._file(block).size()

    def sync(self, block: int) -> None:
        with self._lock:
            self._file(block).sync()

    def list(self) -> list[int]:
        matches = (_NAME.fullmatch(name) for name in self._disk.list(self._folder))
        return sorted(int(match[1]) for match in matches if match)

    def remove(self, block: int) -> None:
        with self._lock:
            file = self._open.pop(block, None)
            if file is not None:
                file.close()
            # Under the lock, or a reader could open it once more, and its space would not come back.
            self._disk.remove(self._path(block))

    def where(self, block: int) -> str:
        return f"{self._folder.name}/{self._path(block).name}"

    def close(self) -> None:
        """Also while others read: they are told."""
        with self._lock:
            self._is_closed = True
            while self._open:
                self._open.popitem()[1].close()

    def _path(self, block: int) -> Path:
        return self._folder / f"{block:016d}.block"

    def _file(self, block: int) -> DiskFile:
        if self._is_closed:
            raise Closed("the log was closed")
        file = self._open.get(block)
        if file is None:
            try:
                file = self._disk.open(self._path(block))
            except FileNotFoundError:
                raise BlockMissing(self.where(block)) from None
            self._open[block] = file
            if len(self._open) > _OPEN_FILES_MAX:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(block)
        return file
