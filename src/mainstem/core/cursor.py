"""How far a reader got, as a value that can be saved as text."""

import re
import zlib
from dataclasses import dataclass

from mainstem.core.errors import InvalidCursor
from mainstem.core.limits import CURSOR_TEXT_CHARS_MAX, SHARDS_PER_STREAM_MAX

_FORM = re.compile(r"(ms1:([0-9a-f]{32}):([0-9]{1,10}):((?:[0-9]{1,19}(?:,[0-9]{1,19})*)?)):([0-9a-f]{8})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The next offset of every shard of one stream.

    Example: `ms1:6f1c…:1:120,77:0a9b11c4` stands before offset 120 of shard 0 and offset 77 of shard 1 of the stream
    whose UUID is 6f1c…, in epoch 1 of the ledger. The epoch changes only when a ledger is restored from a backup, so a
    cursor from after the backup is recognised instead of pointing at other records. A shard the cursor does not name
    (added later) starts at its beginning. The last part is a checksum of the others: a text that was cut or changed
    would otherwise be read as another place.
    """

    stream: str
    epoch: int
    offsets: tuple[int, ...]

    def __str__(self) -> str:
        text = f"ms1:{self.stream}:{self.epoch}:{','.join(map(str, self.offsets))}"
        return f"{text}:{_checksum(text)}"

    @classmethod
    def parse(cls, text: object) -> "Cursor":
        """The cursor that `str` wrote."""
        if not isinstance(text, str) or len(text) > CURSOR_TEXT_CHARS_MAX:
            raise InvalidCursor("a cursor is a text of at most 128 KiB, as str(consumer.cursor) gives it")
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise InvalidCursor(f"not a cursor: {text[:60]!r}; expected the text that str(consumer.cursor) gave")
        if match[5] != _checksum(match[1]):
            raise InvalidCursor(f"cursor {text[:60]!r} was changed or cut: its checksum does not fit")
        offsets = tuple(int(part) for part in match[4].split(",")) if match[4] else ()
        if len(offsets) > SHARDS_PER_STREAM_MAX or any(offset >= 1 << 63 for offset in offsets):
            raise InvalidCursor(f"cursor {text[:60]!r} has too many shards or an offset over 2^63")
        return cls(match[2], int(match[3]), offsets)


@dataclass(frozen=True, slots=True)
class Cursors:
    """The cursors of several streams, as one value and one text: theirs, with `;` between them."""

    parts: tuple[Cursor, ...]

    def __str__(self) -> str:
        return ";".join(map(str, self.parts))

    def of(self, stream: str) -> Cursor | None:
        """The cursor of the stream with this UUID, if there is one."""
        return next((part for part in self.parts if part.stream == stream), None)

    @classmethod
    def parse(cls, text: object) -> "Cursors":
        """The cursors that `str` wrote."""
        if not isinstance(text, str):
            raise InvalidCursor("cursors are a text, as str(consumer.cursor) gives it")
        return cls(tuple(Cursor.parse(part) for part in text.split(";")) if text.strip() else ())


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode('ascii')):08x}"
