"""Compares the blocks of a data folder with its ledger, and their bytes with their checksums.

A writer may be at work meanwhile: the newest block grows, rows move, dead blocks vanish. So a row is read again before
something is said about it, and of the newest block only what the ledger had applied counts.

Bytes that are no frame are damage if something that was written later stands behind them, or if flushes are missing
that the next block says were there. Else they are the end of a block whose writer was killed, which was never
acknowledged: the next block begins with the number of the flush that stands there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from mainstem.core.errors import DataLoss
from mainstem.core.limits import READ_BYTES_MAX
from mainstem.log.blocks.base import BlockMissing, BlockStore
from mainstem.log.finding import Commands, Finding, Severity
from mainstem.log.frame import (
    BLOCK_HEADER_BYTES,
    FRAME,
    FRAME_BYTES,
    BlockHeader,
    FrameDamaged,
    FrameHeader,
    FrameKind,
    is_cold,
)
from mainstem.log.ledger.base import BlockRow, Entry
from mainstem.log.ledger.inspector import LedgerInspector, LedgerView, Share
from mainstem.log.reader import LogReader
from mainstem.log.scan import BlockScanner
from mainstem.log.walk import DamagedRange, FoundFrame, FrameWalk

# Findings of one kind in one block that are told one by one.
_SHOWN_MAX: Final = 20
_SHARES_SHOWN: Final = 3
_FLUSH_NONE: Final = 1 << 63

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What counts in a block: flushes below `flush_end`. Those up to `complete` must be there."""

    flush_end: int
    complete: int


class BlockCheck:
    """The checks of one examination. One thread. Without a ledger only the blocks themselves can be checked."""

    def __init__(
        self,
        blocks: BlockStore,
        ledger: LedgerInspector | None,
        view: LedgerView | None,
        log_uuid: str | None,
        commands: Commands,
    ) -> None:
        self._blocks = blocks
        self._ledger = ledger
        self._view = view
        self._log_uuid = log_uuid
        self._commands = commands
        self._numbers = list(blocks.list())
        self._headers: dict[int, BlockHeader | FrameDamaged] = {}
        # Blocks with a finding that makes others about the same bytes superfluous.
        self._given_up: set[int] = set()
        # Block and byte of the commit frame that was found damaged.
        self._commit_told = (0, 0)

    # Files and rows.

    def files(self) -> Iterator[Finding]:
        """Every block that must be there is, is long enough, and says itself that it is."""
        if self._view is None or self._ledger is None:
            for block in self._numbers:
                yield from self._header_findings(block)
            return
        for row in self._view.blocks.values():
            if row.dead_us or not (current := self._ledger.load_block(row.id)) or current.dead_us:
                continue
            try:
                yield from self._file_findings(row)
            except BlockMissing:
                yield from self._missing(row)
            except OSError as error:
                self._given_up.add(row.id)
                yield self._damage("block-unreadable", row.id, f"it cannot be read: {error.strerror or error}")

    def _file_findings(self, row: BlockRow) -> Iterator[Finding]:
        assert self._view is not None
        size = self._blocks.size(row.id)
        used = self._view.block_sums.get(row.id)
        needed = max(row.bytes, used.end_position if used else 0)
        if used and used.first_position < BLOCK_HEADER_BYTES:
            yield self._rows_wrong(f"an entry points to byte {used.first_position} of {self._blocks.where(row.id)}")
        if size < needed:
            self._given_up.add(row.id)
            what = f"it ends at byte {size}, {needed - size} bytes before it should"
            yield self._damage("block-short", row.id, what + self._lost(row.id, size, needed), size)
        yield from self._header_findings(row.id)

    def _missing(self, row: BlockRow) -> Iterator[Finding]:
        assert self._ledger is not None
        current = self._ledger.load_block(row.id)
        if current is None or current.dead_us:
            return  # it was freed meanwhile
        self._given_up.add(row.id)
        shares = self._ledger.shares(row.id)
        what = f"the file is missing{self._shared(shares)}; bring it back, or restore a backup"
        yield Finding(Severity.DAMAGE, "block-missing", what, self._commands.restore(), self._blocks.where(row.id))

    def _header_findings(self, block: int) -> Iterator[Finding]:
        header = self.header(block)
        if isinstance(header, FrameDamaged):
            yield self._damage("block-header", block, f"its header cannot be trusted: {header.reason}", 0)
        elif self._log_uuid and header.log_uuid.hex() != self._log_uuid:
            self._given_up.add(block)
            what = f"it belongs to log {header.log_uuid.hex()}, this folder to {self._log_uuid}"
            yield Finding(
                Severity.DAMAGE,
                "block-foreign",
                what,
                self._commands.move_away(self._blocks.where(block)),
                self._blocks.where(block),
                0,
            )

    def header(self, block: int) -> BlockHeader | FrameDamaged:
        found = self._headers.get(block)
        if found is None:
            try:
                found = BlockScanner(self._blocks, block).header()
            except FrameDamaged as error:
                found = error
            except OSError as error:
                found = FrameDamaged(0, error.strerror or str(error))
            self._headers[block] = found
        return found

    def unknown(self) -> Iterator[Finding]:
        """Files of blocks that the ledger does not know."""
        if self._view is None or self._ledger is None:
            return
        for block in (*self._numbers, *self._blocks.list_cold()):
            if block in self._view.blocks or self._ledger.load_block(block):
                continue
            try:
                yield from self._unknown_findings(block)
            except BlockMissing:
                continue

    def _unknown_findings(self, block: int) -> Iterator[Finding]:
        assert self._view is not None
        file, applied = self._blocks.where(block), self._view.applied.number
        header = self.header(block)
        if isinstance(header, BlockHeader) and self._log_uuid and header.log_uuid.hex() != self._log_uuid:
            yield from self._header_findings(block)
        elif is_cold(block):
            what = "a cold file that was never swapped in; its records are where they were, and a start takes it away"
            yield Finding(Severity.NOTE, "block-unfinished", what, self._commands.serve(), file)
        elif isinstance(header, FrameDamaged) and self._blocks.size(block) > BLOCK_HEADER_BYTES:
            what = f"the ledger does not know this block, and its header cannot be trusted: {header.reason}"
            yield Finding(Severity.WARNING, "block-unknown", what, self._commands.salvage(file), file)
        elif isinstance(header, BlockHeader) and self._has_flush(block):
            if header.first_flush > applied:
                return  # a start applies it: told with the flushes that are to be applied
            what = "the ledger does not know this block: nothing points into it, and the log does without it"
            yield Finding(Severity.WARNING, "block-unknown", what, self._commands.salvage(file), file)
        elif block < max(self._view.blocks, default=0):
            # The newest may be one that a process is just beginning.
            what = "a block that was begun and not used; nothing in it was acknowledged"
            yield Finding(Severity.NOTE, "block-unfinished", what, self._commands.remove(file), file)

    def _has_flush(self, block: int) -> bool:
        """Whether the block holds a commit frame that counts."""
        flush_end, size = self._bounds(block).flush_end, self._blocks.size(block)
        frames = FrameWalk(self._reading(block), size, block).headers(BLOCK_HEADER_BYTES, size)
        return any(header.kind == FrameKind.COMMIT and header.flush < flush_end for header in frames)

    def place(self) -> Iterator[Finding]:
        """The last flush in the ledger has its commit frame where the ledger says."""
        if self._view is None or self._ledger is None or not self._view.applied.number:
            return
        place = self._view.applied
        try:
            header, *_ = BlockScanner(self._blocks, place.block).commit_at(place.commit_position)
            reason = "" if header.flush == place.number else f"this is the commit of flush {header.flush}"
        except FrameDamaged as error:
            reason = error.reason
        except BlockMissing:
            reason = "the block is missing"
        except OSError as error:
            reason = error.strerror or str(error)
        if reason and place.block not in self._given_up:
            what = f"flush {place.number}, the last one in the ledger, cannot be read back: {reason}"
            self._commit_told = (place.block, place.commit_position)
            yield self._damage("commit-damaged", place.block, what, place.commit_position)

    def gap_after(self, snapshot: int) -> tuple[int, int] | None:
        """The first flushes after a snapshot that are in no block, though later ones are: (first, last)."""
        needed = snapshot + 1
        last_block = 0
        for block in self._numbers:
            try:
                header = self.header(block)
            except BlockMissing:
                continue
            if not isinstance(header, BlockHeader):
                last_block = block
                continue
            if header.first_flush > needed and last_block != block - 1:
                needed = max(needed, self._last_flush(last_block) + 1)
                if header.first_flush > needed:
                    return needed, header.first_flush - 1
            needed = max(needed, header.first_flush)
            last_block = block
        return None

    def _last_flush(self, block: int) -> int:
        if not block:
            return 0
        size = self.size(block)
        frames = FrameWalk(self._reading(block), size, block).headers(BLOCK_HEADER_BYTES, size)
        return max((header.flush for header in frames if header.kind == FrameKind.COMMIT), default=0)

    # Bytes.

    def sampled(self) -> Iterator[Finding]:
        """The first and the last entry of every block can be read, but for the newest, which is read wholly, and for
        cold ones, of which that would be all."""
        if self._view is None:
            return
        for entry in self._view.samples:
            if entry.block in self._given_up or entry.block == self._view.applied.block or is_cold(entry.block):
                continue
            for stream, shard, first, last, position in self._losses(entry):
                what = f"records {first} to {last} of stream {stream!r} shard {shard} cannot be read"
                yield self._damage("records-damaged", entry.block, what, position)

    def to_walk(self, *, deep: bool) -> list[int]:
        """The blocks whose every byte is checked."""
        if self._view is None:
            chosen = self._numbers if deep else self._numbers[-1:]
        else:
            # Dead ones too, while they are there: a ledger that is made anew may need what is in them.
            newest = self._view.applied.block
            known = [block for block in self._view.blocks if block <= newest or is_cold(block)]
            chosen = [block for block in known if deep or block == newest]
        return [block for block in chosen if block not in self._given_up and self.size(block)]

    def size(self, block: int) -> int:
        try:
            return self._blocks.size(block)
        except (BlockMissing, OSError):
            return 0

    def walked(self, block: int, progress: Progress) -> Iterator[Finding]:
        """Every frame of a block is what was written."""
        try:
            damages = (damage for damage in self.damages(block, progress) if (block, damage.begin) != self._commit_told)
            for damage in islice(damages, _SHOWN_MAX):
                yield self._told(block, damage)
            for damage in islice(damages, 1):
                yield self._damage("bytes-damaged", block, "and more from here on", damage.begin)
        except BlockMissing:
            return  # told already, or freed meanwhile
        except OSError as error:
            yield self._damage("block-unreadable", block, f"it cannot be read: {error.strerror or error}")

    def damages(self, block: int, progress: Progress = lambda done: None) -> Iterator[DamagedRange]:
        """What of a block is not what was written; an end that was never acknowledged is none of it."""
        if is_cold(block):
            yield from self._cold_damages(block, progress)
            return
        bounds = self._bounds(block)
        pending: list[DamagedRange] = []
        last = 0
        for found in FrameWalk(self._reading(block), self._blocks.size(block), block).frames():
            if found.header is not None and found.header.flush >= bounds.flush_end:
                # What stands from here on is not applied yet, or was dropped by the next writer.
                break
            if isinstance(found, DamagedRange):
                pending.append(found)
                continue
            progress(found.header.position)
            yield from pending
            pending = []
            last = max(last, _completed(found))
        if pending and (last < bounds.complete or self._is_footer(block, pending[0], last)):
            yield from pending

    def _cold_damages(self, block: int, progress: Progress) -> Iterator[DamagedRange]:
        """The same of a cold block, which was whole before anything pointed into it."""
        size, position = self._blocks.size(block), BLOCK_HEADER_BYTES
        last: FrameHeader | None = None
        for found in FrameWalk(self._reading(block), size, block).frames():
            if isinstance(found, DamagedRange):
                yield found
                position, last = found.end, None
            else:
                position, last = found.header.position + found.header.total_len, found.header
                progress(position)
        if position != size or (last is not None and last.kind != FrameKind.PARQUET_END):
            yield DamagedRange(min(position, size), size, "the end of the Parquet file is missing")

    def _bounds(self, block: int) -> _Bounds:
        applied = None if self._view is None else self._view.applied
        if applied is not None and block == applied.block:
            return _Bounds(applied.number + 1, applied.number)
        following = next((number for number in self._numbers if number > block), 0)
        try:
            header = self.header(following) if following else None
        except BlockMissing:
            header = None
        if not isinstance(header, BlockHeader):
            return _Bounds(_FLUSH_NONE, 0)
        # Blocks between them may have been freed, with the flushes that were in them.
        is_next = following == block + 1
        return _Bounds(header.first_flush, header.first_flush - 1 if is_next else 0)

    def _is_footer(self, block: int, damage: DamagedRange, last: int) -> bool:
        """Whether the last bytes of a block are the footer it was sealed with, rather than an unfinished flush."""
        if damage.header is not None:
            return damage.header.kind == FrameKind.FOOTER
        data = self._blocks.read(block, damage.begin, FRAME_BYTES)
        if len(data) < FRAME_BYTES:
            return False
        claimed = FrameHeader._make(FRAME.unpack_from(data))
        is_whole = damage.begin + claimed.total_len == damage.end
        return claimed.kind == FrameKind.FOOTER or claimed.flush == last or is_whole

    def _told(self, block: int, damage: DamagedRange) -> Finding:
        where = f"bytes {damage.begin} to {damage.end - 1} are not what was written ({damage.reason})"
        losses = self._losses_in(block, damage.begin, damage.end)
        if not losses and self._ledger is not None:
            is_staged = damage.header is not None and damage.header.kind == FrameKind.STAGED
            whose = ": a batch that was staged in a transaction and not committed" if is_staged else ""
            what = f"{where}; no record that can be read is affected{whose}"
            file = self._blocks.where(block)
            return Finding(Severity.WARNING, "bytes-damaged", what, self._commands.salvage(file), file, damage.begin)
        code = "records-damaged" if losses else "bytes-damaged"
        return self._damage(code, block, where + "".join(losses), damage.begin)

    # Which records that is.

    def _losses_in(self, block: int, begin: int, end: int) -> list[str]:
        if self._ledger is None:
            return []
        if is_cold(block):
            # Without its end nobody can read what stands before it.
            begin, end = 0, max(end, self.size(block))
        entries = self._ledger.entries_at(block, begin, end, _SHOWN_MAX)
        told = [
            f"; records {first} to {last} of stream {stream!r} shard {shard} cannot be read"
            for entry in entries
            for stream, shard, first, last, _ in self._losses(entry)
        ]
        return told[:_SHOWN_MAX]

    def _losses(self, entry: Entry) -> Iterator[tuple[str, int, int, int, int]]:
        """What a reader of this entry would be told: (stream, shard, first, last, byte)."""
        assert self._view is not None
        assert self._ledger is not None
        stream = self._view.streams.get(entry.stream)
        if stream is None or stream.deleted_us:
            return
        reader = LogReader(self._ledger, self._blocks)
        offset = max(entry.base, self._ledger.load_shard(entry.stream, entry.shard).start)
        while offset < entry.end:
            try:
                batches = reader.read(stream, entry.shard, offset, READ_BYTES_MAX, 1)
                if not batches:
                    return
                offset = batches[-1].end
            except DataLoss as loss:
                offset = loss.last + 1
                if loss.reason == "damaged":
                    yield stream.name, entry.shard, loss.first, min(loss.last, entry.end - 1), loss.position

    def _lost(self, block: int, begin: int, end: int) -> str:
        return "".join(self._losses_in(block, begin, end))

    def _shared(self, shares: list[Share]) -> str:
        assert self._view is not None
        alive = [share for share in shares if share.stream in self._view.streams]
        told = [
            f"{share.records} records of stream {self._view.streams[share.stream].name!r} shard {share.shard} "
            f"(within {share.first} to {share.last})"
            for share in alive[:_SHARES_SHOWN]
        ]
        if len(alive) > _SHARES_SHOWN:
            told.append(f"and some of {len(alive) - _SHARES_SHOWN} other shards")
        return ", with " + ", ".join(told) if told else ""

    def _damage(self, code: str, block: int, what: str, position: int | None = None) -> Finding:
        file = self._blocks.where(block)
        return Finding(Severity.DAMAGE, code, what, self._commands.salvage(file), file, position)

    def _rows_wrong(self, what: str) -> Finding:
        return Finding(Severity.DAMAGE, "ledger-rows", what, self._commands.rebuild(), "ledger.db")

    def _reading(self, block: int) -> Callable[[int, int], bytes]:
        return lambda position, length: self._blocks.read(block, position, length)


def _completed(frame: FoundFrame) -> int:
    """The flush that is complete with this frame; 0 if none is."""
    return frame.header.flush if frame.header.kind == FrameKind.COMMIT else 0
