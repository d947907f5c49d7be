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
- if a checkpoint was begun and is not known to be done, the WAL it copies is still there. (A rebuilt ledger has none,
  and is known by holding more than that checkpoint: the flush that announced it.)
- the number in the database file alone is not below the one its WAL builds on, which the first commit of a WAL says: a
  WAL that was begun after a checkpoint lacks what was copied by it.

If not, it is put aside, and the newest sound snapshot, or an empty ledger, takes its place. Then every flush above its
number is applied again, in order, to the same offsets. A number that is missing, or blocks that end below what the
ledger or a frame says was applied, are refused with the range: something was taken away, and going on would give the
same offsets to other records.

What a crash leaves: at most one incomplete flush at the end of the newest block. It is not touched, and not read again.
A last flush that is not whole is taken for one unless something that was written after it proves that it was durable:
the footer of its block, or a later block whose header says that it begins after it. Then it is damage: a flush whose
payloads only are wrong is replayed, and its readers are told; one whose frames cannot be followed is refused.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mainstem.core.errors import FolderUnusable, LedgerDamaged
from mainstem.core.events import Event
from mainstem.log.blocks.base import BlockMissing, BlockStore
from mainstem.log.flush import Flush
from mainstem.log.frame import BLOCK_HEADER_BYTES, BlockHeader, FrameDamaged, FrameKind
from mainstem.log.ledger import wal
from mainstem.log.ledger.apply import Applier
from mainstem.log.ledger.base import AppliedPlace
from mainstem.log.ledger.sqlite import SqliteLedger, place_without_wal
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
    replayed: int
    # The ledger was rebuilt, or its last flush cannot be read back: a new snapshot should be taken soon.
    snapshot_wanted: bool
    # Blocks of earlier lives that will not grow any more: those that were open, and those that were begun and not used.
    ended: list[int]


@dataclass(slots=True)
class _Journal:
    """What the blocks hold after a place: the last flush to replay, and what commit frames say about the ledger."""

    end: int
    start: int | None = None
    checkpoint_begun: int = 0
    checkpoint_done: int = 0
    applied: int = 0
    place_unreadable: bool = False

    def add(self, read: ReadFlush) -> None:
        self.end = read.flush.number
        self.applied = max(self.applied, read.applied)
        self.checkpoint_begun = max(self.checkpoint_begun, read.commit.checkpoint_begun)
        self.checkpoint_done = max(self.checkpoint_done, read.commit.checkpoint_done)


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
        self._headers: dict[int, BlockHeader | FrameDamaged] = {}

    def run(self) -> Recovered:
        found = self._open_ledger()
        is_rebuilt = isinstance(found, LedgerDamaged)
        replayed = 0
        if isinstance(found, LedgerDamaged):
            logger.warning(Event("ledger cannot be used and is rebuilt from the blocks", reason=found))
            replayed = self._rebuild()
            found = self._open_ledger()
            if isinstance(found, LedgerDamaged):
                raise found
        ledger, journal = found
        try:
            replayed += self._replay(ledger, journal)
        except BaseException:
            ledger.close()
            raise
        return Recovered(
            ledger,
            block_max=max(self._numbers, default=0),
            writer_epoch=max(ledger.writer_epoch_max(), *self._writer_epochs(), 0),
            checkpoint_done=journal.checkpoint_done,
            replayed=replayed,
            snapshot_wanted=is_rebuilt or journal.place_unreadable,
            ended=self._ended(ledger),
        )

    def _ended(self, ledger: SqliteLedger) -> list[int]:
        known = {row.id: row for row in ledger.list_blocks()}
        return [
            number
            for number in sorted({*known, *self._numbers})
            if (known[number].state == "open" if number in known else not self._has_flush(number))
        ]

    def _has_flush(self, number: int) -> bool:
        """Whether a block that no row knows begins with a flush that counts. How it came here is not for us to say, so
        it is left alone."""
        following = self._first_flush_after([later for later in self._numbers if later > number])
        try:
            first = next(BlockScanner(self._blocks, number).flushes(), None)
        except FrameDamaged:
            return False
        return first is not None and (following is None or first.flush.number < following)

    def judge(self, place: AppliedPlace, in_file: int, wal_base: int, wal_frames: int) -> int:
        """For whoever only looks: how many flushes a start would apply to a ledger that ends at `place`.

        LedgerDamaged if a start would rebuild the ledger, FolderUnusable if it would be refused. Changes nothing.
        """
        journal = self._survey(place)
        _require_trusted(place.number, in_file, wal_frames, journal)
        _require_base(in_file, wal_base)
        _require_complete(journal)
        return journal.end - place.number

    def rebuild(self) -> int:
        """Put the ledger aside even if it could be used, and make it anew; how many flushes were applied for it."""
        return self._rebuild()

    # The ledger.

    def _open_ledger(self) -> tuple[SqliteLedger, _Journal] | LedgerDamaged:
        """The ledger as it is on disk and the journal after it, or the reason why it cannot be used."""
        if not self._path.exists():
            if self._numbers:
                return LedgerDamaged("the file is missing")
            return SqliteLedger.create(self._path, log_uuid=self._log_uuid, epoch=self._epoch), _Journal(0)
        ledger: SqliteLedger | None = None
        try:
            wal_frames = self._check_wal()
            in_file = place_without_wal(self._path).number
            ledger = SqliteLedger(self._path)
            ledger.check_pages()
            self._check_identity(ledger)
            place = ledger.applied()
            journal = self._survey(place)
            _require_trusted(place.number, in_file, wal_frames, journal)
            _require_base(in_file, ledger.wal_base())
            ledger.builds_on(in_file)
            ledger.upgrade()
        except BaseException as error:
            if ledger is not None:
                ledger.close()
            if isinstance(error, LedgerDamaged):
                return error
            raise
        return ledger, journal

    def _check_wal(self) -> int:
        path = self._path.with_name(self._path.name + "-wal")
        if not path.exists() or path.stat().st_size == 0:
            return 0
        report = wal.verify(path)
        if report.damaged_at is not None:
            raise LedgerDamaged(f"{path.name} is damaged at byte {report.damaged_at}")
        # One that begins anew has nothing yet to add to the database file, which a checkpoint completed before that.
        return report.last_commit_frame or int(report.has_restarted)

    def _check_identity(self, ledger: SqliteLedger) -> None:
        if ledger.log_uuid() != self._log_uuid:
            raise FolderUnusable(
                f"{self._path} is the ledger of log {ledger.log_uuid()}, the blocks are of log {self._log_uuid}; "
                "put the files of one data folder back together"
            )

    def _rebuild(self) -> int:
        """Make the ledger anew beside the unusable one, from the newest sound snapshot or from nothing, and swap.

        Returns how many flushes were applied for it.
        Nothing is in its place before it is complete: a crash meanwhile only means to begin again.
        """
        claimed = self._claimed()
        target = self._path.with_name("ledger-rebuilt.db")
        _remove(target)
        number = self._snapshots.restore(target)
        if number is None:
            ledger = SqliteLedger.create(target, log_uuid=self._log_uuid, epoch=self._epoch)
        else:
            ledger = SqliteLedger(target)
            logger.info(Event("rebuilding the ledger from a snapshot", flush=number))
        try:
            self._check_identity(ledger)
            ledger.upgrade()
            journal = self._survey(ledger.applied())
            journal.applied = max(journal.applied, claimed)
            replayed = self._replay(ledger, journal)
            if not ledger.checkpoint():
                raise LedgerDamaged("the rebuilt ledger is in use by another process")
        except BaseException:
            ledger.close()
            _remove(target)
            raise
        ledger.close()
        self._put_aside()
        self._snapshots.disk.replace(target, self._path)
        _remove(target)
        return replayed

    def _claimed(self) -> int:
        """The highest flush number that the unusable ledger still claims to have; 0 if it cannot be read."""
        if not self._path.exists():
            return 0
        try:
            reader = SqliteLedger(self._path)
        except FolderUnusable:
            return 0
        try:
            return reader.applied().number
        except LedgerDamaged:
            return 0
        finally:
            reader.close()

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
        logger.warning(Event("unusable ledger files kept", folder=folder.name))

    # The journal.

    def _header(self, number: int) -> BlockHeader | FrameDamaged:
        found = self._headers.get(number)
        if found is None:
            try:
                found = BlockScanner(self._blocks, number).header()
            except FrameDamaged as error:
                found = error
            self._headers[number] = found
        if isinstance(found, BlockHeader) and found.log_uuid.hex() != self._log_uuid:
            raise FolderUnusable(
                f"{self._blocks.where(number)} belongs to log {found.log_uuid.hex()}, this folder to "
                f"{self._log_uuid}; move the foreign file away"
            )
        return found

    def _writer_epochs(self) -> list[int]:
        return [header.writer_epoch for header in self._headers.values() if isinstance(header, BlockHeader)]

    def _survey(self, place: AppliedPlace) -> _Journal:
        """Read through everything after `place` once: up to where it can be replayed, and what it says."""
        journal = _Journal(place.number)
        journal.start = self._after(place, journal)
        last: ReadFlush | None = None
        for read in self._flushes(place, journal.start):
            if last is not None:
                journal.add(last)
            last = read
        if last is not None and last.damaged is not None and not self._was_durable(last.flush):
            # Its commit frame reached the disk, a payload did not: it was never acknowledged, and a checkpoint that it
            # announced was never begun.
            logger.info(Event("flush not durable before the stop; dropped", flush=last.flush.number))
        elif last is not None:
            journal.add(last)
        return journal

    def _was_durable(self, flush: Flush) -> bool:
        """Whether something that is only written when this flush is durable stands after it."""
        later = (self._header(number) for number in self._numbers if number > flush.block)
        if any(isinstance(header, BlockHeader) and header.first_flush > flush.number for header in later):
            return True
        scanner = BlockScanner(self._blocks, flush.block)
        return scanner.has_footer_at(scanner.commit_at(flush.commit_position)[2])

    def _after(self, place: AppliedPlace, journal: _Journal) -> int | None:
        """Where the flush after `place` begins in its block, after checking that the block still holds `place`."""
        if place.number == 0:
            return None
        block = self._blocks.where(place.block)
        where = f"flush {place.number}, the last one in the ledger, is at byte {place.commit_position} of {block}"
        try:
            scanner = BlockScanner(self._blocks, place.block)
            if self._blocks.size(place.block) <= place.commit_position:
                raise BlockMissing
        except BlockMissing:
            raise FolderUnusable(
                f"{where}, which is missing or shorter than that: records that were acknowledged are gone; bring the "
                "file back, nothing was changed"
            ) from None
        try:
            header, commit, after = scanner.commit_at(place.commit_position)
            if header.flush != place.number:
                raise FrameDamaged(place.commit_position, f"this is the commit of flush {header.flush}")
        except FrameDamaged as error:
            # The ledger has this flush, so nothing is lost; but it cannot be replayed again from here.
            journal.place_unreadable = True
            logger.warning(Event("last applied flush damaged; nothing is lost by it", where=where, reason=error))
            beyond = scanner.flush_beyond(place.commit_position + 1, place.number)
            return self._blocks.size(place.block) if beyond is None else beyond.position
        journal.checkpoint_begun, journal.checkpoint_done = commit.checkpoint_begun, commit.checkpoint_done
        journal.applied = header.applied
        return after

    def _flushes(self, place: AppliedPlace, start: int | None) -> Iterator[ReadFlush]:
        """Every flush after `place`, in order and without a gap, else FolderUnusable."""
        expected = place.number + 1
        numbers = [number for number in self._numbers if number >= place.block]
        for index, number in enumerate(numbers):
            following = numbers[index + 1 :]
            stop_before = self._first_flush_after(following)
            position = start if number == place.block else None
            damage: FrameDamaged | None = None
            try:
                for read in self._block_flushes(number, position, expected, stop_before):
                    yield read
                    expected += 1
            except FrameDamaged as error:
                damage = error
            # What is not here may be in the next block if its header is damaged; then that one is to blame.
            is_elsewhere = damage is None and following and isinstance(self._header(following[0]), FrameDamaged)
            if stop_before is not None and expected < stop_before and not is_elsewhere:
                absent = range(number + 1, following[0]) if damage is None and following else ()
                raise self._missing(expected, stop_before - 1, number, damage, absent)
            if damage is not None and (stop_before is None or not damage.position):
                self._require_torn(number, damage, expected, place.number)

    def _first_flush_after(self, numbers: list[int]) -> int | None:
        """The number with which the next readable block begins."""
        for number in numbers:
            header = self._header(number)
            if isinstance(header, BlockHeader):
                return header.first_flush
        return None

    def _block_flushes(
        self, number: int, position: int | None, expected: int, stop_before: int | None
    ) -> Iterator[ReadFlush]:
        scanner = BlockScanner(self._blocks, number)
        if position is None:
            header = self._header(number)
            if isinstance(header, FrameDamaged):
                raise header
            position = BLOCK_HEADER_BYTES
        for read in scanner.flushes(position):
            found = read.flush.number
            if stop_before is not None and found >= stop_before:
                return
            if found < expected:
                continue
            if found > expected:
                raise self._missing(expected, found - 1, number, None)
            yield read
            expected += 1

    def _missing(
        self, first: int, last: int, number: int, damage: FrameDamaged | None, absent: Sequence[int] = ()
    ) -> FolderUnusable:
        """`absent` are blocks that are not there and stood where these flushes would stand, if there were such."""
        if first == 1 and damage is None and number == self._numbers[0]:
            return FolderUnusable(
                f"the ledger cannot be made from the blocks alone: the first there is, {self._blocks.where(number)}, "
                f"begins with flush {last + 1}, and only a snapshot of the ledger knows what came before. Bring "
                "ledger.db or a file of snapshots/ back, or restore a backup (mainstem restore); mainstem doctor "
                "--salvage reads single blocks. Nothing was changed"
            )
        cause = f" ({damage})" if damage else ""
        if absent:
            files = " to ".join(self._blocks.where(block) for block in dict.fromkeys((absent[0], absent[-1])))
            where = (
                f"flushes {first} to {last} are in no block, and {files} {'are' if len(absent) > 1 else 'is'} missing"
            )
        else:
            where = f"flushes {first} to {last} are missing or damaged in {self._blocks.where(number)}{cause}"
        return FolderUnusable(
            f"{where}, and what was written after them is there: acknowledged records would get other offsets. Bring "
            "the file back; nothing was changed"
        )

    def _require_torn(self, number: int, damage: FrameDamaged, expected: int, applied: int) -> None:
        """At the end of the newest block an incomplete flush is what a crash leaves; anything after it is not."""
        # A block's header is durable before anything follows it: behind a damaged one any frame is proof. What has the
        # same number in an earlier block was dropped by the life that wrote this one.
        above = expected if damage.position else applied
        beyond = BlockScanner(self._blocks, number).flush_beyond(damage.position, above)
        if beyond is not None:
            last = beyond.flush if beyond.kind == FrameKind.FOOTER else beyond.flush - 1
            first = min(expected, beyond.flush)
            raise self._missing(first, max(first, last), number, damage)
        logger.info(Event("flush not finished before the stop; dropped", flush=expected, reason=damage))

    def _replay(self, ledger: SqliteLedger, journal: _Journal) -> int:
        """Apply every flush after the ledger's own up to the journal's end; how many."""
        place = ledger.applied()
        _require_complete(journal)
        if journal.end == place.number:
            return 0
        # What only the page cache may hold is made durable before anything is built on it.
        for block in self._numbers:
            if block >= place.block:
                self._blocks.sync(block)
        applier = Applier(ledger)
        for read in self._flushes(place, journal.start):
            if read.flush.number > journal.end:
                break
            if read.damaged is not None:
                logger.warning(Event("flush with damaged records; readers will be told which", flush=read.flush.number))
            applier.apply(read.flush)
        assert applier.applied == journal.end
        return journal.end - place.number


def _remove(ledger: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        ledger.with_name(ledger.name + suffix).unlink(missing_ok=True)


def _require_trusted(number: int, in_file: int, wal_frames: int, journal: _Journal) -> None:
    if number < journal.checkpoint_begun:
        raise LedgerDamaged(f"it ends at flush {number}, but a checkpoint up to {journal.checkpoint_begun} was begun")
    if in_file < journal.checkpoint_done:
        raise LedgerDamaged(f"the file is of flush {in_file}, older than the checkpoint of {journal.checkpoint_done}")
    if journal.checkpoint_begun > journal.checkpoint_done and in_file <= journal.checkpoint_begun and not wal_frames:
        raise LedgerDamaged(f"a checkpoint up to {journal.checkpoint_begun} was begun and its WAL is gone")


def _require_base(in_file: int, wal_base: int) -> None:
    if in_file < wal_base:
        raise LedgerDamaged(f"the file is of flush {in_file}, its WAL builds on {wal_base}")


def _require_complete(journal: _Journal) -> None:
    if journal.end < journal.applied:
        raise FolderUnusable(
            f"flushes {journal.end + 1} to {journal.applied} were applied to the ledger and are no longer in the "
            "blocks; bring the missing block files back, nothing was changed"
        )
