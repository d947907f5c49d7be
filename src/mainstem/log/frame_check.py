"""Whether the bytes of a block are what was written, told while they pass by in pieces on their way elsewhere.

Only a first look, made fast: it follows headers and compares checksums. Where it stops, `BlockCheck` says whether that
is damage or the end of a block whose writer was killed.
"""

import struct
from typing import Final

from mainstem.core.checksum import crc32c, crc32c_extended
from mainstem.core.limits import STATISTICS_BYTES_MAX
from mainstem.log.frame import (
    ALIGNMENT,
    BLOCK_HEADER_BYTES,
    FRAME_BYTES,
    FRAME_MAGIC,
    FRAME_VERSION,
    BlockHeader,
    FrameDamaged,
    stored_bytes_max,
)

# Of a frame header: magic, header_crc, version, header_len, stored_len, payload_crc, block, position.
_BRIEF: Final = struct.Struct("<IIB3xI16xI4xI28xQQ")


class FrameCheck:
    """Follows the frames of one block. One thread; pieces are given in order, from the first byte on."""

    def __init__(self, block: int) -> None:
        self._block = block
        # Where the next frame begins.
        self._position = 0
        self._rest = b""
        # Of a payload that has begun: bytes still to come, padding after it, the checksum so far and as it should be.
        self._payload_left = self._padding = self._crc = self._expected = 0
        self._is_sound = True

    def add(self, piece: bytes) -> None:
        data = self._rest + piece if self._rest else piece
        at = 0 if self._position else self._block_header(data)
        while self._is_sound and at < len(data):
            if self._payload_left or self._padding:
                at += self._payload(data, at)
            elif length := self._header(data, at):
                at += length
            else:
                break
        self._rest = data[at:] if self._is_sound else b""

    def is_sound(self) -> bool:
        """Whether everything that was added is whole frames, each what was written there."""
        return self._is_sound and not (self._rest or self._payload_left or self._padding)

    def _block_header(self, data: bytes) -> int:
        if len(data) < BLOCK_HEADER_BYTES:
            return 0
        try:
            self._is_sound = BlockHeader.parse(data[:BLOCK_HEADER_BYTES]).block == self._block
        except FrameDamaged:
            self._is_sound = False
        self._position = BLOCK_HEADER_BYTES
        return BLOCK_HEADER_BYTES

    def _header(self, data: bytes, at: int) -> int:
        """The frame that begins at `at`: how long its header is, 0 if it is not all there yet, or not sound."""
        if len(data) - at < FRAME_BYTES or not self._position:
            return 0
        magic, crc, version, length, stored, expected, block, position = _BRIEF.unpack_from(data, at)
        self._is_sound = (
            (magic, version, block, position) == (FRAME_MAGIC, FRAME_VERSION, self._block, self._position)
            and FRAME_BYTES <= length <= FRAME_BYTES + STATISTICS_BYTES_MAX
            and stored <= stored_bytes_max(self._block)
        )
        if not self._is_sound or len(data) - at < length:
            return 0
        self._is_sound = crc32c(data[at + 8 : at + length]) == crc
        self._payload_left, self._padding = stored, -stored % ALIGNMENT
        self._crc, self._expected = 0, expected
        self._position += length + stored + self._padding
        return int(length)

    def _payload(self, data: bytes, at: int) -> int:
        """As much of the payload and its padding as is there; how much that is."""
        part = data[at : at + self._payload_left]
        if part:
            self._crc = crc32c_extended(self._crc, part)
            self._payload_left -= len(part)
            self._is_sound = bool(self._payload_left) or self._crc == self._expected
        skipped = 0 if self._payload_left else min(self._padding, len(data) - at - len(part))
        self._padding -= skipped
        return len(part) + skipped
