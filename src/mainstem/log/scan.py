"""Reads the flushes of a block back, for recovery and salvage."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from mainstem.log.blocks.base import BlockStore
from mainstem.log.flush import (
    Command,
    CommitTransaction,
    Flush,
    ReplaceEntries,
    WrittenBatch,
    WrittenItem,
    WrittenReplacement,
    WrittenStaged,
    WrittenTransaction,
    decode_command,
)
from mainstem.log.frame import (
    ALIGNMENT,
    BATCH_KINDS,
    BLOCK_HEADER_BYTES,
    FRAME_BYTES,
    FRAME_MAGIC,
    BlockHeader,
    Commit,
    FrameDamaged,
    FrameHeader,
    FrameKind,
    claimed_header_len,
    flush_crc,
    parse_commit,
    parse_header,
    payload_of,
    statistics_of,
)

_WINDOW_BYTES: Final = 4 << 20
_MAGIC: Final = FRAME_MAGIC.to_bytes(4, "little")


@dataclass(frozen=True, slots=True)
class ReadFlush:
    """A flush as found in a block. `damaged` is the first payload whose checksum does not match, if any."""

    flush: Flush
    commit: Commit
    applied: int
    damaged: FrameDamaged | None


class BlockScanner:
    """The flushes of one block in order. One thread."""

    def __init__(self, blocks: BlockStore, block: int) -> None:
        self.block = block
        self._blocks = blocks
        self._size = blocks.size(block)
        self._window = b""
        self._window_at = 0

    def header(self) -> BlockHeader:
        header = BlockHeader.parse(self._blocks.read(self.block, 0, BLOCK_HEADER_BYTES))
        if header.block != self.block:
            raise FrameDamaged(0, f"this is block {header.block}")
        return header

    def flushes(self, position: int = BLOCK_HEADER_BYTES) -> Iterator[ReadFlush]:
        """From the flush that begins at `position` on; ends at the footer or the end, else FrameDamaged."""
        while position < self._size:
            found = self._flush(position)
            if found is None:
                return
            yield found[0]
            position = found[1]

    def has_footer_at(self, position: int) -> bool:
        """Whether the block was sealed at `position`: everything before it was durable and applied by then."""
        try:
            return self._header(position).kind == FrameKind.FOOTER
        except FrameDamaged:
            return False

    def commit_at(self, position: int) -> tuple[FrameHeader, Commit, int]:
        """The commit frame at `position` and where the next flush begins."""
        header, payload = self._frame(position)
        if header.kind != FrameKind.COMMIT:
            raise FrameDamaged(position, "no commit frame here")
        return header, parse_commit(header, payload), position + header.total_len

    def flush_beyond(self, position: int, above: int) -> FrameHeader | None:
        """A valid frame after `position` that proves damage between, if there is one: of a flush numbered over `above`,
        or the footer of a block that has `above` in it."""
        position = (position + ALIGNMENT - 1) & ~(ALIGNMENT - 1)
        while position + FRAME_BYTES <= self._size:
            data = self._view(position, min(_WINDOW_BYTES, self._size - position))
            at = bytes(data).find(_MAGIC)
            if at < 0:
                position += max(ALIGNMENT, len(data) - ALIGNMENT)
                continue
            position += at
            try:
                header = self._header(position)
                if header.flush > above or (header.kind == FrameKind.FOOTER and header.flush == above):
                    return header
                position += header.total_len
            except FrameDamaged:
                position += ALIGNMENT - position % ALIGNMENT
        return None

    def _flush(self, position: int) -> tuple[ReadFlush, int] | None:
        headers: list[FrameHeader] = []
        items: list[WrittenBatch | WrittenStaged | Command] = []
        moved: list[WrittenBatch] = []
        damaged: FrameDamaged | None = None
        while True:
            header = self._header(position)
            if header.kind == FrameKind.FOOTER and not headers:
                return None
            if headers and header.flush != headers[0].flush:
                raise FrameDamaged(position, f"flush {headers[0].flush} has no commit frame")
            if header.kind == FrameKind.COMMIT:
                read = self._committed(header, headers, _with_frames(header, items, moved), damaged)
                return read, position + header.total_len
            if header.kind == FrameKind.COMMAND:
                items.append(_command(header, self._frame(position)[1]))
            elif header.kind in BATCH_KINDS:
                damaged = damaged or self._damage(position)
                batch = WrittenBatch(header.batch_header(self._statistics(header)), position, header.total_len)
                if header.kind == FrameKind.MOVED:
                    moved.append(batch)
                else:
                    items.append(batch if header.kind == FrameKind.DATA else WrittenStaged(batch))
            else:
                raise FrameDamaged(position, f"a frame of kind {header.kind} inside a flush")
            headers.append(header)
            position += header.total_len

    def _committed(
        self,
        header: FrameHeader,
        headers: list[FrameHeader],
        items: tuple[WrittenItem, ...],
        damaged: FrameDamaged | None,
    ) -> ReadFlush:
        position = header.position
        commit = self.commit_at(position)[1]
        first = headers[0].position if headers else position
        if (header.count, commit.first_position, commit.flush_crc) != (len(headers), first, flush_crc(headers)):
            raise FrameDamaged(position, "the commit frame does not match the frames before it")
        flush = Flush(header.flush, self.block, position, header.time_high, items, commit.notes_moments)
        return ReadFlush(flush, commit, header.applied, damaged)

    def _damage(self, position: int) -> FrameDamaged | None:
        try:
            self._frame(position)
        except FrameDamaged as error:
            return error
        return None

    def _statistics(self, header: FrameHeader) -> bytes:
        return statistics_of(self._view(header.position, header.header_len), 0, header)

    def _frame(self, position: int) -> tuple[FrameHeader, memoryview]:
        header = self._header(position)
        return header, payload_of(self._view(position, header.total_len), 0, header)

    def _header(self, position: int) -> FrameHeader:
        length = claimed_header_len(self._view(position, FRAME_BYTES))
        return parse_header(self._view(position, length), 0, position, self.block)

    def _view(self, position: int, length: int) -> memoryview:
        """Bytes at `position`, fewer at the end of the block, through a window that moves forward."""
        at = position - self._window_at
        if at < 0 or at + length > len(self._window):
            self._window = self._blocks.read(self.block, position, max(length, _WINDOW_BYTES))
            self._window_at, at = position, 0
        return memoryview(self._window)[at : at + length]


def _with_frames(
    commit: FrameHeader, items: list[WrittenBatch | WrittenStaged | Command], moved: list[WrittenBatch]
) -> tuple[WrittenItem, ...]:
    """The items, each command that replaces entries with the moved frames that stand behind it, and each that commits
    what is staged in this flush with those."""
    if sum(item.frames for item in items if isinstance(item, ReplaceEntries)) != len(moved):
        raise FrameDamaged(
            commit.position, f"flush {commit.flush} has {len(moved)} moved frames, its commands say others"
        )
    frames = iter(moved)
    found: list[WrittenItem] = []
    left = iter(items)
    for item in left:
        if isinstance(item, ReplaceEntries):
            found.append(WrittenReplacement(item, tuple(islice(frames, item.frames))))
        elif isinstance(item, CommitTransaction) and item.frames:
            staged = [each.batch for each in islice(left, item.frames) if isinstance(each, WrittenStaged)]
            if len(staged) != item.frames:
                raise FrameDamaged(
                    commit.position,
                    f"flush {commit.flush} has {len(staged)} of the {item.frames} frames of a transaction",
                )
            found.append(WrittenTransaction(item, tuple(staged)))
        else:
            found.append(item)
    return tuple(found)


def _command(header: FrameHeader, payload: memoryview) -> Command:
    try:
        return decode_command(payload)
    except msgspec.MsgspecError as error:
        raise FrameDamaged(header.position, f"command cannot be read: {error}") from error
