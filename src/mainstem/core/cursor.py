"""How far a reader got, as a value that can be saved as text."""

import re
from dataclasses import dataclass

from mainstem.core.errors import InvalidCursor
from mainstem.core.limits import CURSOR_TEXT_CHARS_MAX, SHARDS_PER_STREAM_MAX

_FORM = re.compile(r"ms1:([0-9a-f]{32}):([0-9]{1,10}):((?:[0-9]{1,19}(?:,[0-9]{1,19})*)?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The next offset of every shard of one stream.

    Example: `ms1:6f1c…:1:120,77` stands before offset 120 of shard 0 and offset 77 of shard 1 of the stream whose
    UUID is 6f1c…, in epoch 1 of the ledger. The epoch changes only when a ledger is restored from a backup, so a
    cursor from after the backup is recognised instead of pointing at other records. A shard the cursor does not name
    (added later) starts at its beginning.
    """

    stream: str
    epoch: int
    offsets: tuple[int, ...]

    def __str__(self) -> str:
        return f"ms1:{self.stream}:{self.epoch}:{','.join(map(str, self.offsets))}"

    @classmethod
    def parse(cls, text: object) -> "Cursor":
        """The cursor that `str` wrote."""
        if not isinstance(text, str) or len(text) > CURSOR_TEXT_CHARS_MAX:
            raise InvalidCursor("a cursor is a text of at most 128 KiB, as str(consumer.cursor) gives it")
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise InvalidCursor(f"not a cursor: {text[:60]!r}; expected the text that str(consumer.cursor) gave")
        offsets = tuple(int(part) for part in match[3].split(",")) if match[3] else ()
        if len(offsets) > SHARDS_PER_STREAM_MAX or any(offset >= 1 << 63 for offset in offsets):
            raise InvalidCursor(f"cursor {text[:60]!r} has too many shards or an offset over 2^63")
        return cls(match[1], int(match[2]), offsets)
