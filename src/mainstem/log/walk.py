"""Walks through the frames of a block file and over what is damaged in it. For the doctor and for salvage."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from mainstem.log.frame import (
    ALIGNMENT,
    BLOCK_HEADER_BYTES,
    FRAME_BYTES,
    FRAME_MAGIC,
    FrameDamaged,
    FrameHeader,
    claimed_header_len,
    parse_header,
    payload_of,
)

_WINDOW_BYTES: Final = 4 << 20
_MAGIC: Final = FRAME_MAGIC.to_bytes(4, "little")

# Up to `length` bytes at a position of the block; fewer only at its end.
Read = Callable[[int, int], bytes]


class FoundFrame(NamedTuple):
    """A frame whose header and payload are what was written."""

    header: FrameHeader
    payload: memoryview


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes `begin` to `end - 1` are no frame. Of a frame that only lost its payload the header is known."""

    begin: int
    end: int
    reason: str
    header: FrameHeader | None = None


class FrameWalk:
    """The frames of one block, in the order of their bytes. One thread. Holds at most one frame and a window."""

    def __init__(self, read: Read, size: int, block: int) -> None:
        self._read = read
        self._size = size
        self._block = block
        self._window = b""
        self._window_at = 0

    def frames(self, begin: int = BLOCK_HEADER_BYTES) -> Iterator[FoundFrame | DamagedRange]:
        """From `begin` to the end; a payload is valid until the next step."""
        position = begin
        while position < self._size:
            try:
                header = self.header_at(position)
            except FrameDamaged as error:
                end = self._next_header(position)
                yield DamagedRange(position, end, error.reason)
                position = end
                continue
            yield self._whole(header)
            position += header.total_len

    def headers(self, begin: int, end: int) -> Iterator[FrameHeader]:
        """The headers that are valid between two positions; payloads are not looked at."""
        position = begin
        while position < end:
            try:
                header = self.header_at(position)
            except FrameDamaged:
                position = self._next_header(position)
                continue
            yield header
            position += header.total_len

    def header_at(self, position: int) -> FrameHeader:
        length = claimed_header_len(self._view(position, FRAME_BYTES))
        return parse_header(self._view(position, length), 0, position, self._block)

    def _whole(self, header: FrameHeader) -> FoundFrame | DamagedRange:
        position = header.position
        try:
            return FoundFrame(header, payload_of(self._view(position, header.total_len), 0, header))
        except FrameDamaged as error:
            return DamagedRange(position, min(position + header.total_len, self._size), error.reason, header)

    def _next_header(self, damaged: int) -> int:
        """Where the first valid header after a damaged place begins, or the end of the block."""
        position = damaged - damaged % ALIGNMENT + ALIGNMENT
        while position + FRAME_BYTES <= self._size:
            self._view(position, FRAME_BYTES)
            at = self._window.find(_MAGIC, position - self._window_at)
            if at < 0:
                # What lies across the window's end is looked at with the next one.
                position = max(position + ALIGNMENT, _floor(self._window_at + len(self._window) - len(_MAGIC) + 1))
                continue
            found = self._window_at + at
            if found % ALIGNMENT:
                position = _floor(found) + ALIGNMENT
                continue
            try:
                self.header_at(found)
            except FrameDamaged:
                position = found + ALIGNMENT
            else:
                return found
        return self._size

    def _view(self, position: int, length: int) -> memoryview:
        """Bytes at `position`, fewer at the end of the block, through a window that moves forward."""
        at = position - self._window_at
        wanted = min(length, self._size - position)
        if at < 0 or at + wanted > len(self._window):
            self._window = self._read(position, max(wanted, _WINDOW_BYTES))
            self._window_at, at = position, 0
        return memoryview(self._window)[at : at + length]


def _floor(position: int) -> int:
    return position - position % ALIGNMENT
