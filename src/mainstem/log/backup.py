"""Copies a data folder, also one that is being written, into a backup folder from which it can be restored.

It reads as any reader does: without the lock, without the right to write there. Blocks never change once they are
sealed, so those are copied first, while the log goes on; then the ledger, as it is after one flush, and what that still
lacks. The block of that flush is cut after it. So the copy is the log as it was at one moment near the end.

Every frame is checked while it is copied: a backup that holds damage and passes for a good one would be found out when
it is needed. What the backup folder has already is not read again. A block that was removed under the copy, because
nothing points into it any more, is not in the next look at the ledger either: the copy of the ledger is then made anew.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from mainstem.core.checksum import crc32c_extended
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import BackupUnusable, FolderUnusable
from mainstem.core.limits import MIB
from mainstem.log.backup_folder import FORMAT, BackupFolder, Manifest, StoredBlock, StoredLedger, require_free
from mainstem.log.block_check import BlockCheck
from mainstem.log.blocks.base import BlockMissing, BlockStore
from mainstem.log.disk import Disk, LocalDisk
from mainstem.log.finding import Commands
from mainstem.log.folder import Folder
from mainstem.log.frame import BLOCK_HEADER_BYTES, FrameDamaged
from mainstem.log.frame_check import FrameCheck
from mainstem.log.ledger.base import AppliedPlace, BlockRow
from mainstem.log.ledger.sqlite import LedgerCopy, SqliteLedgerReader, copy_ledger
from mainstem.log.scan import BlockScanner

Progress = Callable[[int, int], None]

_PIECE_BYTES: Final = MIB
# How often the ledger is copied anew because blocks went away meanwhile. Each time less is left to copy.
_TRIES_MAX: Final = 10
# How long a flush that is in a block may take to get into the ledger: a process that writes needs milliseconds.
_APPLY_SECONDS_MAX: Final = 10.0
_APPLY_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup did. `files` and `bytes` are those of the backup, `copied_*` what had to be copied for it."""

    log: str
    epoch: int
    flush: int
    created_us: int
    files: int
    bytes: int
    copied_files: int
    copied_bytes: int
    removed_files: int
    seconds: float
    # Blocks that were copied though they are damaged, by their names in the data folder.
    damaged: tuple[str, ...] = ()


def back_up(
    source: Path,
    target: Path,
    progress: Progress = lambda done, total: None,
    *,
    verify: bool = False,
    even_damaged: bool = False,
    clock: Clock = SYSTEM_CLOCK,
    disk: Disk | None = None,
) -> BackupReport:
    """Bring the backup in folder `target` up to date with the log in folder `source`.

    What is there already is taken by its size; with `verify` it is read, and copied again if it is not what was
    written. A block that is damaged is refused, or with `even_damaged` copied as it is and reported. `progress` is told
    how many bytes of about how many are copied.
    """
    disk = disk or LocalDisk()
    _require_apart(source, target)
    folder = Folder(source, disk)
    log_uuid = folder.require()
    if not folder.ledger.exists():
        raise FolderUnusable(
            f"{source} has no {folder.ledger.name}; open it once for writing (mainstem serve --data {source}), and it "
            "is rebuilt from the blocks"
        )
    store = BackupFolder(target, disk)
    with closing(folder.blocks):
        store.prepare()
        with store.locked(writes=True):
            made = _Backup(folder, log_uuid, store, progress, clock, disk, verify=verify, even_damaged=even_damaged)
            return made.run()


def _require_apart(source: Path, target: Path) -> None:
    data, backup = source.resolve(), target.resolve()
    if backup == data or data in backup.parents or backup in data.parents:
        raise BackupUnusable(f"{target} and the data folder {source} lie in each other; choose a folder elsewhere")


class _BlockGone(Exception):
    """A block is not there, or is shorter than the ledger says."""


class _Backup:
    """One backup on its way."""

    def __init__(
        self,
        folder: Folder,
        log_uuid: str,
        store: BackupFolder,
        progress: Progress,
        clock: Clock,
        disk: Disk,
        *,
        verify: bool,
        even_damaged: bool,
    ) -> None:
        self._folder = folder
        self._log_uuid = log_uuid
        self._blocks = folder.blocks
        self._store = store
        self._progress = progress
        self._clock = clock
        self._disk = disk
        self._began = clock.monotonic()
        self._before = store.manifest()
        # The files of the last backup that can be used again.
        self._sound = {
            name
            for name, stored in (self._before.files() if self._before else ())
            if store.has(name, stored.bytes) and (not verify or store.is_sound(name, stored.crc32c))
        }
        # What is in the backup folder already, by what tells one copy of a block from another.
        self._have = {
            _identity(block.number, block.created_us, block.writer_epoch, block.bytes): block
            for block in (self._before.blocks if self._before else ())
            if block.name in self._sound
        }
        self._unnamed = store.unnamed_blocks(self._before)
        self._even_damaged = even_damaged
        self._damaged: set[str] = set()
        self._copied_files = 0
        self._copied_bytes = 0
        self._total_bytes = 0

    def run(self) -> BackupReport:
        with closing(SqliteLedgerReader(self._folder.ledger)) as ledger:
            epoch = ledger.epoch()
            self._require_successor(epoch, ledger.applied().number)
            self._copy_sealed(ledger.list_blocks())
            made, stored, blocks = self._copy_ledger(ledger)
        self._require_successor(made.epoch, made.applied.number)
        if (made.log_uuid, made.epoch) != (self._log_uuid, epoch):
            raise FolderUnusable(
                f"{self._folder.path} is of log {self._log_uuid} and epoch {epoch}, its ledger of log {made.log_uuid} "
                f"and epoch {made.epoch}: the folder was exchanged under the backup; run it again"
            )
        now_us = self._clock.now_us()
        number, program = made.applied.number, metadata.version("mainstem")
        manifest = Manifest(FORMAT, program, self._log_uuid, made.epoch, number, now_us, stored, tuple(blocks))
        if manifest.ledger_name not in self._sound:
            self._store.keep(self._store.part(), manifest.ledger_name)
        self._store.write_manifest(manifest)
        removed = self._store.remove_others(manifest)
        return BackupReport(
            log=self._log_uuid,
            epoch=made.epoch,
            flush=number,
            created_us=now_us,
            files=len(manifest.files()),
            bytes=manifest.bytes,
            copied_files=self._copied_files,
            copied_bytes=self._copied_bytes,
            removed_files=removed,
            seconds=self._clock.monotonic() - self._began,
            damaged=tuple(sorted(self._damaged)),
        )

    def _require_successor(self, epoch: int, flush: int) -> None:
        """The backup that is there is of this log, and of an earlier moment of it."""
        before, where = self._before, self._store.path
        if before is None:
            return
        if before.log != self._log_uuid:
            raise BackupUnusable(
                f"{where} holds a backup of log {before.log}, {self._folder.path} is log {self._log_uuid}; choose "
                "another folder for this one"
            )
        if (before.epoch, before.flush) > (epoch, flush):
            raise BackupUnusable(
                f"{where} holds flush {before.flush} of epoch {before.epoch}, which is newer than what "
                f"{self._folder.path} has (flush {flush} of epoch {epoch}): this is an older copy of the log. Back it "
                "up to another folder, or restore the newer one first"
            )

    # Blocks.

    def _copy_sealed(self, rows: Sequence[BlockRow]) -> None:
        """Most of the work. What goes away meanwhile was not needed any more, or is missed later."""
        wanted = [row for row in rows if row.state == "sealed" and row.bytes and not row.dead_us]
        lacking = [row for row in wanted if self._stored(row, row.bytes) is None]
        self._total_bytes = sum(row.bytes for row in lacking) + os.stat(self._folder.ledger).st_size
        require_free(self._store.path, self._total_bytes, self._disk)
        for row in lacking:
            try:
                self._copy_block(row, row.bytes)
            except _BlockGone:
                continue

    def _copy_ledger(self, ledger: SqliteLedgerReader) -> tuple[LedgerCopy, StoredLedger, list[StoredBlock]]:
        """The ledger after one flush, and all blocks that it needs."""
        gone: object = None
        for _ in range(_TRIES_MAX):
            self._await_applied(ledger)
            part = self._store.part()
            try:
                unchanged = self._unchanged(ledger)
                if unchanged is not None:
                    return unchanged
                part.unlink(missing_ok=True)
                made = copy_ledger(self._folder.ledger, part)
                blocks = [self._needed(row, made.applied) for row in made.blocks if _is_needed(row, made.applied)]
            except _BlockGone as error:
                gone = error
                continue
            return made, self._stored_ledger(part), blocks
        raise FolderUnusable(
            f"{gone}: records that the ledger points to are gone. Bring the file back; mainstem doctor says what is "
            "missing. Nothing was changed in the backup"
        )

    def _unchanged(self, ledger: SqliteLedgerReader) -> tuple[LedgerCopy, StoredLedger, list[StoredBlock]] | None:
        """What the backup has, if nothing was written to the log since."""
        before = self._before
        if before is None or before.ledger_name not in self._sound:
            return None
        epoch, rows, place = ledger.epoch(), ledger.list_blocks(), ledger.applied()
        if (epoch, place.number) != (before.epoch, before.flush):
            return None
        found = [self._stored(row, self._size(row, place)) for row in rows if _is_needed(row, place)]
        if ledger.applied() != place or found != list(before.blocks):
            return None
        return LedgerCopy(ledger.log_uuid(), epoch, place, tuple(rows)), before.ledger, list(before.blocks)

    def _needed(self, row: BlockRow, place: AppliedPlace) -> StoredBlock:
        size = self._size(row, place)
        return self._stored(row, size) or self._copy_block(row, size)

    def _size(self, row: BlockRow, place: AppliedPlace) -> int:
        """How much of the block belongs to the log as it is after the flush at `place`."""
        if row.id == place.block:
            return self._end_of(place)
        # One that was missing when it was sealed may be back.
        return row.bytes or self._size_there(row.id)

    def _end_of(self, place: AppliedPlace) -> int:
        try:
            header, _, end = BlockScanner(self._blocks, place.block).commit_at(place.commit_position)
            if header.flush != place.number:
                raise FrameDamaged(place.commit_position, f"this is the commit of flush {header.flush}")
        except BlockMissing:
            raise _BlockGone(f"{self._blocks.where(place.block)} is missing") from None
        except FrameDamaged as error:
            raise FolderUnusable(
                f"{self._blocks.where(place.block)} is damaged where flush {place.number} ends ({error}); a log that "
                "is damaged there is not copied. Write something to it, and back it up again"
            ) from error
        return end

    def _size_there(self, block: int) -> int:
        try:
            return self._blocks.size(block)
        except BlockMissing:
            raise _BlockGone(f"{self._blocks.where(block)} is missing") from None

    def _stored(self, row: BlockRow, size: int) -> StoredBlock | None:
        """The copy of the block that is there already."""
        identity = _identity(row.id, row.created_us, row.writer_epoch, size)
        found = self._have.get(identity)
        if found is None and (adopted := self._left_over(row, size)):
            found = self._have[identity] = adopted
        return found

    def _left_over(self, row: BlockRow, size: int) -> StoredBlock | None:
        """The copy of the block that a backup which was cut short has made: it begins as the block does, and its
        content is what its name says."""
        for name, checksum in self._unnamed.get(row.id, ()):
            if not self._store.has(name, size):
                continue
            begin = next(self._store.pieces(name), b"")[:BLOCK_HEADER_BYTES]
            try:
                is_same = begin == self._blocks.read(row.id, 0, BLOCK_HEADER_BYTES)
            except BlockMissing:
                return None
            if is_same and self._store.is_sound(name, checksum):
                return StoredBlock(row.id, size, checksum, row.created_us, row.writer_epoch)
        return None

    def _copy_block(self, row: BlockRow, size: int) -> StoredBlock:
        reading = _Reading(self._blocks, row.id, size, self._on_piece)
        part = self._store.part(row.id)
        self._disk.write_new(part, reading.pieces())
        if not reading.frames.is_sound():
            self._look_at_damage(row.id, size, part)
        stored = StoredBlock(row.id, size, reading.checksum, row.created_us, row.writer_epoch)
        self._store.keep(part, stored.name)
        self._have[_identity(row.id, row.created_us, row.writer_epoch, size)] = stored
        self._copied_files += 1
        return stored

    def _look_at_damage(self, block: int, size: int, part: Path) -> None:
        """Refuse a block that is damaged, unless it was asked for. One that ends with a flush that was never finished
        is not: its writer was killed."""
        commands = Commands(self._folder.path)
        check = BlockCheck(self._blocks, None, None, self._log_uuid, commands)
        try:
            damage = next((found for found in check.damages(block) if found.begin < size), None)
            header = check.header(block)
        except BlockMissing:
            raise _BlockGone(f"{self._blocks.where(block)} is missing") from None
        position, reason = (0, header.reason) if isinstance(header, FrameDamaged) else (0, "")
        if not reason and damage is not None:
            position, reason = damage.begin, damage.reason
        if not reason:
            return
        where = self._blocks.where(block)
        if not self._even_damaged:
            part.unlink(missing_ok=True)
            raise FolderUnusable(
                f"{where} is damaged at byte {position} ({reason}); {self._store.path} stays as it was. Which records "
                f"are lost: {commands.deep()}. To copy what there is as it is: mainstem backup --even-damaged"
            )
        self._damaged.add(where)

    def _on_piece(self, size: int) -> None:
        self._copied_bytes += size
        self._progress(self._copied_bytes, max(self._total_bytes, self._copied_bytes))

    # The ledger.

    def _stored_ledger(self, part: Path) -> StoredLedger:
        checksum = 0
        for piece in self._store.pieces(part.name):
            checksum = crc32c_extended(checksum, piece)
            self._on_piece(len(piece))
        self._copied_files += 1
        return StoredLedger(part.stat().st_size, checksum)

    def _await_applied(self, ledger: SqliteLedgerReader) -> None:
        """A process that writes has every flush of the blocks in the ledger a moment later. If nobody does, the ledger
        lacks what was written before a crash, and so would its copy."""
        place = ledger.applied()
        if not self._has_flush_after(place):
            return
        deadline = self._clock.monotonic() + _APPLY_SECONDS_MAX
        while ledger.applied().number == place.number:
            if self._clock.monotonic() > deadline:
                raise FolderUnusable(
                    f"the blocks of {self._folder.path} hold flush {place.number + 1}, its ledger ends before it, and "
                    "no process brings it up to date: the last one was killed. Start it once (mainstem serve --data "
                    f"{self._folder.path}), then back it up"
                )
            self._clock.sleep(_APPLY_LOOK_SECONDS)

    def _has_flush_after(self, place: AppliedPlace) -> bool:
        try:
            if place.number and self._is_flush_at(place.block, self._end_of(place), place.number + 1):
                return True
            later = [block for block in self._blocks.list() if block > place.block]
            return any(self._is_flush_at(block, BLOCK_HEADER_BYTES, place.number + 1) for block in later)
        except _BlockGone:
            return False  # the copy of the ledger will miss it

    def _is_flush_at(self, block: int, position: int, number: int) -> bool:
        try:
            read = next(BlockScanner(self._blocks, block).flushes(position), None)
        except (FrameDamaged, BlockMissing):
            return False  # being written, or cut short
        return read is not None and read.damaged is None and read.flush.number == number


class _Reading:
    """The bytes of a block up to `size`, and their checksum when they were read."""

    def __init__(self, blocks: BlockStore, block: int, size: int, on_piece: Callable[[int], None]) -> None:
        self._blocks = blocks
        self._block = block
        self._size = size
        self._on_piece = on_piece
        self.checksum = 0
        self.frames = FrameCheck(block)

    def pieces(self) -> Iterator[bytes]:
        where = self._blocks.where(self._block)
        position = 0
        while position < self._size:
            try:
                piece = self._blocks.read(self._block, position, min(_PIECE_BYTES, self._size - position))
            except BlockMissing:
                raise _BlockGone(f"{where} is missing") from None
            except OSError as error:
                raise FolderUnusable(f"{where} cannot be read at byte {position}: {error.strerror or error}") from error
            if not piece:
                raise _BlockGone(f"{where} ends at byte {position}, not {self._size}")
            self.checksum = crc32c_extended(self.checksum, piece)
            self.frames.add(piece)
            self._on_piece(len(piece))
            yield piece
            position += len(piece)


def _is_needed(row: BlockRow, place: AppliedPlace) -> bool:
    """Nothing points into a dead block. The last flush must be there, whatever it holds."""
    return not row.dead_us or row.id == place.block


def _identity(number: int, created_us: int, writer_epoch: int, size: int) -> tuple[int, int, int, int]:
    """What tells copies of blocks apart: a number is given again after a restore, and an open block grows."""
    return number, created_us, writer_epoch, size
