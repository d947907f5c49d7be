"""Between opening a data folder and the first flush: find the truth in the blocks, make the ledger agree with it.

The blocks are the journal. Flushes are numbered without gaps; a flush is valid if all its frames and its commit frame
are. A writer always starts a new block, so an incomplete flush can only stand at the end of a block, and the header of
the next block says with which number it begins: what an earlier block holds from that number on was never
acknowledged and was dropped then.

Whether `ledger.db` may be used as it is:

- it can be read, its pages and the chain of its WAL are sound;
- its number is not below `checkpoint_begun` of the newest commit frame: a checkpoint writes pages of newer flushes,
  and under a damaged WAL they would be mixed with older ones;
- the number in the database file alone is not below `checkpoint_done`: else the file is an older copy;
- if a checkpoint was begun and is not known to be done, the WAL is still there.

If not, it is put aside, and the newest sound snapshot, or an empty ledger, takes its place. Then every flush above its
number is applied again, in order, to the same offsets. A number that is missing, or blocks that end below what the
ledger or a frame says was applied, are refused with the range: something was taken away, and going on would give the
same offsets to other records.

What a crash leaves: at most one incomplete flush at the end of the newest block. It is not touched, and not read again.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mainstem.core.errors import FolderUnusable, LedgerDamaged
from mainstem.log.blocks.base import BlockMissing, BlockStore
from mainstem.log.frame import BlockHeader, FrameDamaged
from mainstem.log.ledger import wal
from mainstem.log.ledger.apply import Applier
from mainstem.log.ledger.base import AppliedPlace
from mainstem.log.ledger.sqlite import SqliteLedger, number_without_wal
from mainstem.log.scan import BlockScanner, ReadFlush
from mainstem.log.snapshots import Snapshots

logger = logging.getLogger("mainstem.log")


@dataclass(slots=True)
class Recovered:
    """The ledger, in agreement with the blocks."""

    ledger: SqliteLedger
    block_max: int
    writer_epoch: int
    checkpoint_done: int
    replayed: int = 0
    # The last applied flush cannot be read back from its block; a new snapshot should be taken at once.
    snapshot_wanted: bool = False


@dataclass(slots=True)
class _Journal:
    """What the blocks hold above a place: flushes to replay, and what their frames say about the ledger."""

    flushes: list[ReadFlush] = field(default_factory=list)
    checkpoint_begun: int = 0
    checkpoint_done: int = 0
    place_unreadable: str = ""


class Recovery:
    """Opens or rebuilds the ledger of one data folder. One thread, before anything else runs."""

    def __init__(
        self, ledger: Path, snapshots: Snapshots, blocks: BlockStore, log_uuid: str, ledger_epoch: int
    ) -> None:
        self._path = ledger
        self._snapshots = snapshots
        self._blocks = blocks
        self._log_uuid = log_uuid
        self._epoch = ledger_epoch
        self._numbers = list(blocks.list())
        self._headers: dict[int, BlockHeader] = {}
        self._bad_headers: dict[int, FrameDamaged] = {}

    def run(self) -> Recovered:
        self._read_headers()
        ledger, journal, why = self._open_ledger()
        floor = 0
        if ledger is None:
            floor = self._known_applied()
            logger.warning("ledger.db cannot be used and is rebuilt from the blocks: %s", why)
            ledger, journal = self._rebuild()
        try:
            replayed = self._replay(ledger, journal, floor)
        except BaseException:
            ledger.close()
            raise
        writer_epoch = max((header.writer_epoch for header in self._headers.values()), default=0)
        return Recovered(
            ledger,
            block_max=max(self._numbers, default=0),
            writer_epoch=writer_epoch,
            checkpoint_done=journal.checkpoint_done,
            replayed=replayed,
            snapshot_wanted=bool(why or journal.place_unreadable),
        )

    # The ledger.

    def _open_ledger(self) -> tuple[SqliteLedger | None, _Journal, str]:
        """The ledger as it is on disk with the journal above it, or None and the reason why it cannot be used."""
        if not self._path.exists():
            if self._numbers:
                return None, _Journal(), "the file is missing"
            return SqliteLedger.create(self._path, log_uuid=self._log_uuid, epoch=self._epoch), _Journal(), ""
        ledger: SqliteLedger | None = None
        try:
            wal_frames = self._check_wal()
            in_file = number_without_wal(self._path)
            ledger = SqliteLedger(self._path)
            ledger.check_pages()
            self._check_identity(ledger)
            place = ledger.applied()
            journal = self._read_journal(place)
            _require_trusted(place.number, in_file, wal_frames, journal)
        except LedgerDamaged as error:
            if ledger is not None:
                ledger.close()
            return None, _Journal(), str(error)
        except BaseException:
            if ledger is not None:
                ledger.close()
            raise
        return ledger, journal, ""

    def _check_wal(self) -> int:
        path = self._path.with_name(self._path.name + "-wal")
        if not path.exists() or path.stat().st_size == 0:
            return 0
        report = wal.verify(path)
        if report.damaged_at is not None:
            raise LedgerDamaged(f"{path.name} is damaged at byte {report.damaged_at}")
        return report.last_commit_frame

    def _check_identity(self, ledger: SqliteLedger) -> None:
        if ledger.log_uuid() != self._log_uuid:
            raise FolderUnusable(
                f"{self._path} is the ledger of log {ledger.log_uuid()}, the blocks are of log {self._log_uuid}; "
                "put the files of one data folder back together"
            )

    def _known_applied(self) -> int:
        """The highest flush number that an unusable ledger, or the WAL's end, still claims; 0 if it cannot be read."""
        try:
            reader = SqliteLedger(self._path)
        except (LedgerDamaged, FolderUnusable):
            return 0
        try:
            return reader.applied().number
        except LedgerDamaged:
            return 0
        finally:
            reader.close()

    def _rebuild(self) -> tuple[SqliteLedger, _Journal]:
        self._put_aside()
        number = self._snapshots.restore(self._path)
        if number is None:
            ledger = SqliteLedger.create(self._path, log_uuid=self._log_uuid, epoch=self._epoch)
        else:
            ledger = SqliteLedger(self._path)
            logger.info("starting from the snapshot of flush %d", number)
        try:
            self._check_identity(ledger)
            return ledger, self._read_journal(ledger.applied())
        except BaseException:
            ledger.close()
            raise

    def _put_aside(self) -> None:
        """Keep the unusable files: nothing is ever cleaned up on doubt."""
        names = [self._path.name + suffix for suffix in ("", "-wal", "-shm")]
        if not any(self._path.with_name(name).exists() for name in names):
            return
        turn = 1
        while self._path.with_name(f"damaged-{turn}").exists():
            turn += 1
        folder = self._path.with_name(f"damaged-{turn}")
        folder.mkdir()
        for name in names:
            path = self._path.with_name(name)
            if path.exists():
                path.rename(folder / name)
        logger.warning("the unusable ledger files were kept in %s", folder.name)

    # The journal.

    def _read_headers(self) -> None:
        for number in self._numbers:
            try:
                header = BlockScanner(self._blocks, number).header()
            except FrameDamaged as error:
                self._bad_headers[number] = error
                continue
            if header.log_uuid.hex() != self._log_uuid:
                raise FolderUnusable(
                    f"{self._blocks.where(number)} belongs to log {header.log_uuid.hex()}, this folder to "
                    f"{self._log_uuid}; move the foreign file away"
                )
            self._headers[number] = header

    def _read_journal(self, place: AppliedPlace) -> _Journal:
        """Every flush after `place`, checked to be without a gap."""
        journal = _Journal()
        start = self._after(place, journal)
        expected = place.number + 1
        numbers = [number for number in self._numbers if number >= place.block]
        for index, number in enumerate(numbers):
            stop_before = self._first_flush_after(numbers[index + 1 :])
            position = start if number == place.block else None
            found, damage = self._scan(number, position, expected, stop_before)
            journal.flushes += found
            expected += len(found)
            if stop_before is not None and expected < stop_before:
                raise self._missing(expected, stop_before - 1, number, damage)
            if damage is not None and stop_before is None:
                self._require_torn(number, damage, expected)
        self._drop_torn_payload(journal)
        for read in journal.flushes:
            journal.checkpoint_begun = max(journal.checkpoint_begun, read.commit.checkpoint_begun)
            journal.checkpoint_done = max(journal.checkpoint_done, read.commit.checkpoint_done)
        return journal

    def _after(self, place: AppliedPlace, journal: _Journal) -> int | None:
        """Where the flush after `place` begins in its block, after checking that the block still holds `place`."""
        if place.number == 0:
            return None
        where = f"flush {place.number}, the last one in the ledger, is at byte {place.commit_position} of "
        try:
            scanner = BlockScanner(self._blocks, place.block)
            if self._blocks.size(place.block) <= place.commit_position:
                raise BlockMissing
        except BlockMissing:
            raise FolderUnusable(
                f"{where}{self._blocks.where(place.block)}, which is missing or shorter than that: records that were "
                "acknowledged are gone; bring the file back, nothing was changed"
            ) from None
        try:
            header, commit, after = scanner.commit_at(place.commit_position)
            if header.flush != place.number:
                raise FrameDamaged(place.commit_position, f"this is the commit of flush {header.flush}")
        except FrameDamaged as error:
            # The ledger has this flush, so nothing is lost; but it cannot be replayed again from here.
            journal.place_unreadable = f"{self._blocks.where(place.block)} {error}"
            logger.warning("%s%s and damaged (%s)", where, self._blocks.where(place.block), error)
            beyond = scanner.flush_beyond(place.commit_position + 1, place.number)
            return self._blocks.size(place.block) if beyond is None else beyond.position
        journal.checkpoint_begun, journal.checkpoint_done = commit.checkpoint_begun, commit.checkpoint_done
        return after

    def _first_flush_after(self, numbers: list[int]) -> int | None:
        return next((self._headers[number].first_flush for number in numbers if number in self._headers), None)

    def _scan(
        self, number: int, position: int | None, expected: int, stop_before: int | None
    ) -> tuple[list[ReadFlush], FrameDamaged | None]:
        found: list[ReadFlush] = []
        if number in self._bad_headers and position is None:
            return found, self._bad_headers[number]
        scanner = BlockScanner(self._blocks, number)
        flushes: Iterator[ReadFlush] = scanner.flushes() if position is None else scanner.flushes(position)
        try:
            for read in flushes:
                if stop_before is not None and read.flush.number >= stop_before:
                    break
                if read.flush.number < expected:
                    continue
                if read.flush.number > expected:
                    raise self._missing(expected, read.flush.number - 1, number, None)
                found.append(read)
                expected += 1
        except FrameDamaged as error:
            return found, error
        return found, None

    def _missing(self, first: int, last: int, number: int, damage: FrameDamaged | None) -> FolderUnusable:
        cause = f" ({damage})" if damage else ""
        return FolderUnusable(
            f"flushes {first} to {last} are missing or damaged in {self._blocks.where(number)}{cause}, and later ones "
            "are there: acknowledged records would get other offsets. Bring the file back; nothing was changed"
        )

    def _require_torn(self, number: int, damage: FrameDamaged, expected: int) -> None:
        """At the end of the newest block an incomplete flush is what a crash leaves; anything after it is not."""
        beyond = BlockScanner(self._blocks, number).flush_beyond(damage.position, expected)
        if beyond is not None:
            raise self._missing(expected, beyond.flush - 1, number, damage)
        logger.info("flush %d was not finished before the stop and is dropped (%s)", expected, damage)

    def _drop_torn_payload(self, journal: _Journal) -> None:
        """The last flush may have its commit frame on disk and lack a payload: then it was never acknowledged."""
        if journal.flushes and journal.flushes[-1].damaged is not None:
            last = journal.flushes.pop()
            logger.info("flush %d was not durable before the stop and is dropped", last.flush.number)

    def _replay(self, ledger: SqliteLedger, journal: _Journal, floor: int) -> int:
        applied = ledger.applied().number
        end = journal.flushes[-1].flush.number if journal.flushes else applied
        claimed = max([floor, *(read.applied for read in journal.flushes)])
        if end < claimed:
            raise FolderUnusable(
                f"flushes {end + 1} to {claimed} were applied to the ledger and are no longer in the blocks; "
                "bring the missing block files back, nothing was changed"
            )
        # What only the page cache may hold is made durable before anything is built on it.
        for block in sorted({read.flush.block for read in journal.flushes}):
            self._blocks.sync(block)
        applier = Applier(ledger)
        for read in journal.flushes:
            if read.damaged is not None:
                logger.warning("flush %d has damaged records; readers will be told which", read.flush.number)
            applier.apply(read.flush)
        return len(journal.flushes)


def _require_trusted(number: int, in_file: int, wal_frames: int, journal: _Journal) -> None:
    if number < journal.checkpoint_begun:
        raise LedgerDamaged(f"it ends at flush {number}, but a checkpoint up to {journal.checkpoint_begun} was begun")
    if in_file < journal.checkpoint_done:
        raise LedgerDamaged(f"the file is of flush {in_file}, older than the checkpoint of {journal.checkpoint_done}")
    if journal.checkpoint_begun > journal.checkpoint_done and not wal_frames:
        raise LedgerDamaged(f"a checkpoint up to {journal.checkpoint_begun} was begun and its WAL is gone")
