"""A JSON array, cut into the texts of its elements as it comes.

Decoded as a whole, an array of millions of tiny elements would be many times as large as its text. Here nothing is kept
but the element under way. Only strings, brackets and commas are looked at: whether an element is JSON is for who reads
it to say, and an array whose elements all are, is.
"""

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from mainstem.core.batch import Buffer
from mainstem.core.errors import InvalidRecord, RecordTooLarge
from mainstem.core.limits import KIB, RECORD_BYTES_MAX

# What is cut at once: what is known of its bytes takes many times as much as they do.
_PIECE_BYTES: Final = 128 * KIB
# What may stand between two words of JSON.
BLANKS: Final = b" \t\n\r"
_QUOTE, _COMMA, _END = b'",]'
# Whether a byte is looked at, and by how much the depth changes with it.
_IS_MARK: Final = np.zeros(256, np.bool_)
_IS_MARK[list(b'",[]{}')] = True
_STEP: Final = np.zeros(256, np.int32)
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1
# In a string a backslash belongs to the next byte; elsewhere JSON has none.
_ESCAPED: Final = re.compile(rb"\\.", re.DOTALL)


class JsonArray:
    """The elements of one array, of which all that follows its opening bracket is fed. One thread."""

    def __init__(self) -> None:
        # Elements that were given out.
        self.count = 0
        self._depth = 1
        self._is_in_string = False
        self._is_over = False
        # Of the element under way.
        self._parts: list[bytes] = []
        self._size = 0
        # A backslash whose byte is still to come.
        self._backslash = b""

    def feed(self, data: Buffer) -> Iterator[list[bytes]]:
        """The elements that end in it, some at a time."""
        for begin in range(0, len(data), _PIECE_BYTES):
            texts = self._cut(self._backslash + bytes(data[begin : begin + _PIECE_BYTES]))
            for number, text in enumerate(texts, self.count + 1):
                if not text or text.isspace():
                    raise InvalidRecord(f"the body is not JSON: there is nothing where row {number} should be")
            self.count += len(texts)
            yield texts

    def finish(self) -> None:
        """Nothing more comes."""
        if not self._is_over:
            raise InvalidRecord("the body is not JSON: it ends in the middle of its array")

    def _cut(self, piece: bytes) -> list[bytes]:
        plain, self._backslash = piece, b""
        if b"\\" in piece:
            plain = _ESCAPED.sub(b"__", piece)
            if plain.endswith(b"\\"):
                plain, piece, self._backslash = plain[:-1], piece[:-1], b"\\"
        if self._is_over:
            self._check_rest(piece + self._backslash)
            return []
        ends, self._is_over = self._ends(plain)
        texts = [piece[begin + 1 : end] for begin, end in zip([-1, *ends], ends, strict=False)]
        if texts:
            texts[0] = b"".join([*self._parts, texts[0]])
            self._parts.clear()
            self._size = 0
        rest = piece[ends[-1] + 1 :] if ends else piece
        if not self._is_over:
            self._keep(rest, self.count + len(texts) + 1)
            return texts
        self._check_rest(rest + self._backslash)
        # An empty array has no element, and no comma before its end.
        return [] if self.count + len(texts) == 1 and not texts[0].strip(BLANKS) else texts

    def _ends(self, plain: bytes) -> tuple[list[int], bool]:
        """Where elements end in a piece without escaped bytes, and whether the last of them ends the array."""
        codes = np.frombuffer(plain, np.uint8)
        places = np.flatnonzero(_IS_MARK[codes])
        if not len(places):
            return [], False
        marks = codes[places]
        quotes = np.cumsum(marks == _QUOTE, dtype=np.int32) + self._is_in_string
        is_outside = quotes & 1 == 0
        depths = np.cumsum(_STEP[marks] * is_outside, dtype=np.int32) + self._depth
        self._is_in_string, self._depth = bool(quotes[-1] & 1), int(depths[-1])
        is_end = (marks == _COMMA) & is_outside & (depths == 1)
        over = np.flatnonzero(depths == 0)
        if not len(over):
            return places[is_end].tolist(), False
        last = int(over[0])
        if marks[last] != _END:
            raise InvalidRecord("the body is not JSON: its array is closed by another bracket")
        return [*places[:last][is_end[:last]].tolist(), int(places[last])], True

    def _keep(self, part: bytes, number: int) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > RECORD_BYTES_MAX:
            raise RecordTooLarge(f"row {number} is longer than record_bytes_max, {RECORD_BYTES_MAX} bytes")

    def _check_rest(self, rest: bytes) -> None:
        if rest.strip(BLANKS):
            raise InvalidRecord("the body is not JSON: something follows its array")
