"""Copies of the ledger from which it can be rebuilt: `snapshots/ledger-<number>.db`, named by the last flush in them.

A snapshot is the database file right after a complete checkpoint, so it needs no WAL. It is written under another name
and renamed when it is durable: a snapshot that can be seen is whole.
"""

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from mainstem.core.errors import LedgerDamaged
from mainstem.core.events import Event
from mainstem.log.disk import Disk, DiskFile
from mainstem.log.ledger.sqlite import SqliteLedger, place_without_wal

logger = logging.getLogger("mainstem.log")

_NAME = re.compile(r"ledger-([0-9]{16})\.db")
_KEPT = 2
_PIECE_BYTES = 1 << 20


class Snapshots:
    """The snapshots of one data folder. One thread at a time."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self.disk = disk
        # The ledger's file, open for copying. To close a file takes away the locks that SQLite holds on it in this
        # process, so it stays open until SQLite is done with it.
        self._source = -1

    def numbers(self) -> list[int]:
        """Newest first."""
        matches = (_NAME.fullmatch(name) for name in self.disk.list(self._folder))
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def needed_from(self) -> int:
        """The first block that a rebuild from the older of the kept snapshots would read; 0 while there are not two.

        Two, because the newest may turn out to be damaged on the day it is needed.
        """
        numbers = self.numbers()
        if len(numbers) < _KEPT:
            return 0
        try:
            return min(place_without_wal(self.path(number)).block for number in numbers[:_KEPT])
        except LedgerDamaged as error:
            logger.warning(Event("a ledger snapshot cannot be read; another is taken", error=error))
            return 0

    def path(self, number: int) -> Path:
        return self._folder / f"ledger-{number:016d}.db"

    def take(self, ledger: Path) -> int:
        """Copy the database file, which must stay unchanged meanwhile, and forget all but the newest two."""
        number = place_without_wal(ledger).number
        target = self.path(number)
        if not target.exists():
            part = target.with_suffix(".part")
            try:
                self.disk.write_new(part, self._ledger_pieces(ledger))
                self.disk.replace(part, target)
            except OSError:
                # Most likely the disk is full: half a copy must not make it worse.
                part.unlink(missing_ok=True)
                raise
        for old in self.numbers()[_KEPT:]:
            self.path(old).unlink(missing_ok=True)
        return number

    def _ledger_pieces(self, ledger: Path) -> Iterator[bytes]:
        if self._source < 0:
            self._source = os.open(ledger, os.O_RDONLY | os.O_CLOEXEC)
        position = 0
        while piece := os.pread(self._source, _PIECE_BYTES, position):
            yield piece
            position += len(piece)

    def close(self) -> None:
        """Let go of the ledger's file. SQLite must have closed it before."""
        source, self._source = self._source, -1
        if source >= 0:
            os.close(source)

    def restore(self, target: Path) -> int | None:
        """Put the newest sound snapshot at `target`, which must not exist; its number, or None if there is none."""
        for number in self.numbers():
            part = target.with_suffix(".part")
            try:
                self.disk.write_new(part, self._pieces(number))
                ledger = SqliteLedger(part)
                try:
                    ledger.check_pages()
                finally:
                    ledger.close()
            except LedgerDamaged as error:
                logger.warning(Event("snapshot cannot be used", file=self.path(number).name, reason=error))
                continue
            finally:
                for suffix in ("-wal", "-shm"):
                    part.with_name(part.name + suffix).unlink(missing_ok=True)
            self.disk.replace(part, target)
            return number
        return None

    def _pieces(self, number: int) -> Iterator[bytes]:
        """The content of a snapshot; LedgerDamaged if the disk does not give it."""
        position = 0
        try:
            file = self.disk.open(self.path(number))
        except OSError as error:
            raise LedgerDamaged(str(error)) from error
        try:
            while piece := _read(file, position):
                yield piece
                position += len(piece)
        finally:
            file.close()


def _read(file: DiskFile, position: int) -> bytes:
    try:
        return file.read(position, _PIECE_BYTES)
    except OSError as error:
        raise LedgerDamaged(str(error)) from error
