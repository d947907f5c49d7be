"""Blocks as files of one folder."""

import logging
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from mainstem.core.batch import Buffer
from mainstem.core.errors import Closed
from mainstem.core.events import Event
from mainstem.log.blocks.base import BlockMissing
from mainstem.log.disk import Disk, DiskFile, is_out_of_space
from mainstem.log.frame import BlockHeader, is_cold

logger = logging.getLogger("mainstem.log")

_NAME = re.compile(r"([0-9]{16})\.block")
_COLD_NAME = re.compile(r"([0-9]{16})\.parquet")
_PART_NAME = re.compile(r"([0-9]{16})-([0-9a-f]{16})\.part")
# Open files kept for reading; the least recently used is closed beyond this.
_OPEN_FILES_MAX = 64


def block_name(block: int) -> str:
    """What the file of a block is called."""
    return f"{block:016d}.parquet" if is_cold(block) else f"{block:016d}.block"


class LocalBlockWriter:
    """Appends to one new file."""

    def __init__(self, file: DiskFile, block: int) -> None:
        self.block = block
        self.position = 0
        self._file = file

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._file.write_durably(buffers, self.position)
        self.position += sum(len(buffer) for buffer in buffers)

    def let_go(self, position: int) -> None:
        self._file.let_go(position, self.position - position)

    def abandon(self) -> None:
        # The header of the next block says from which flush on this one does not count; cutting off what was written
        # of the last one gives its room back, and leaves nothing that a start before the next block could mistake.
        try:
            self._file.truncate(self.position)
        except OSError as error:
            logger.warning(Event("a block could not be cut back", block=self.block, bytes=self.position, error=error))
        self.close()

    def close(self) -> None:
        self._file.close()


class LocalBlocks:
    """The block store of a data folder: `blocks/0000000000000001.block` and so on; cold ones end with `.parquet`."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._open: OrderedDict[int, DiskFile] = OrderedDict()
        self._is_closed = False
        self._lock = threading.Lock()

    def create(self, header: BlockHeader) -> LocalBlockWriter:
        try:
            writer = LocalBlockWriter(self._disk.create(self._path(header.block)), header.block)
            try:
                writer.append([header.pack()])
            except BaseException:
                writer.close()
                raise
        except OSError as error:
            if is_out_of_space(error):
                self.remove(header.block)
            raise
        return writer

    def remove(self, block: int) -> None:
        with self._lock:
            file = self._open.pop(block, None)
            if file is not None:
                file.close()
            self._disk.remove(self._path(block))

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
        return [*self._named(_NAME)]

    def list_cold(self) -> Sequence[int]:
        return self._named(_COLD_NAME)

    def list_parts(self) -> Sequence[int]:
        return self._named(_PART_NAME)

    def _named(self, pattern: re.Pattern[str]) -> Sequence[int]:
        matches = (pattern.fullmatch(name) for name in self._disk.list(self._folder))
        return sorted(int(match[1]) for match in matches if match)

    def write_part(self, block: int, content: Sequence[Buffer]) -> str:
        part = secrets.token_hex(8)
        self._disk.write_new(self._part(block, part), content)
        return part

    def read_part(self, block: int, part: str, bytes_max: int) -> bytes:
        path = self._part(block, part)
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            raise BlockMissing(f"{self._folder.name}/{path.name}") from None
        try:
            return file.read(0, bytes_max)
        finally:
            file.close()

    def adopt(self, block: int, part: str) -> None:
        self._disk.replace(self._part(block, part), self._path(block))

    def remove_parts(self, block: int) -> None:
        for name in self._disk.list(self._folder):
            match = _PART_NAME.fullmatch(name)
            if match and int(match[1]) == block:
                self._disk.remove(self._folder / name)

    def where(self, block: int) -> str:
        return f"{self._folder.name}/{self._path(block).name}"

    def close(self) -> None:
        """Also while others read: they are told."""
        with self._lock:
            self._is_closed = True
            while self._open:
                self._open.popitem()[1].close()

    def _part(self, block: int, part: str) -> Path:
        name = f"{block:016d}-{part}.part"
        if not _PART_NAME.fullmatch(name):
            raise BlockMissing(f"{name!r}, which is no name of a part")
        return self._folder / name

    def _path(self, block: int) -> Path:
        return self._folder / block_name(block)

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
