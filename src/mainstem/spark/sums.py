"""What adds up over the rows of a frame, whatever their order and whoever writes which of them.

A batch that Spark runs again must be known again, and one that has other rows must not pass for it. Rows have another
order after a shuffle, and are in other tasks; so what is compared are sums. Over each column: of values, of their
squares, of lengths, of the bytes of texts and of their first and last eight. And over rows: of a hash of each
(spark/row_hashes.py), without which the same values in other rows would not be noticed. They are numbers of 64 bits
that wrap around, made by Arrow and NumPy a column at a time. Floating-point numbers are summed as such, and as levels,
each weighed by the hash of its row, in which they are not: see core/delivery.py.
"""

import hashlib
import struct
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.delivery import COLUMN_DIGEST_BYTES, ROW_DIGEST_BYTES, Fingerprint
from mainstem.spark.row_hashes import WORD, Numbers, Words, lengths_of, parts, row_hashes, weights_of, words_of

_MASK: Final = (1 << 64) - 1
# So many numbers at once stay in the cache of a core.
_PIECE: Final = 1 << 15
_ONE: Final = np.float64(1.0).view(np.int64)
_LEVEL_OF_NONE: Final = 1025.0


@dataclass(slots=True)
class Sums:
    """Sums over the rows that were added. Can be pickled, and those of several tasks merged."""

    rows: int = 0
    # By the path of a column and what is summed.
    exact: dict[str, int] = field(default_factory=dict)
    hashes: int = 0
    # Weighed by the rows' hashes; magnitudes are not.
    total: float = 0.0
    magnitude: float = 0.0
    levels: float = 0.0
    levels_magnitude: float = 0.0

    def add(self, table: pa.Table) -> None:
        self.rows += table.num_rows
        for batch in table.to_batches():
            hashes = row_hashes(batch)
            self.hashes = (self.hashes + int(hashes.sum(dtype=np.uint64))) & _MASK
            weights = weights_of(hashes)
            for place, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True), 1):
                self._add_array(name, column, place, weights)

    def merge(self, other: "Sums") -> None:
        self.rows += other.rows
        self.hashes = (self.hashes + other.hashes) & _MASK
        self.total += other.total
        self.magnitude += other.magnitude
        self.levels += other.levels
        self.levels_magnitude += other.levels_magnitude
        for path, value in other.exact.items():
            self._add(path, value)

    def fingerprint(self) -> Fingerprint:
        digest = hashlib.blake2b(digest_size=16)
        for path in sorted(self.exact):
            # What is 0 says nothing, and which columns came to 0 may depend on who counted.
            if self.exact[path]:
                name = path.encode()
                digest.update(struct.pack("<IQ", len(name), self.exact[path]) + name)
        exact = digest.digest()[:COLUMN_DIGEST_BYTES] + struct.pack("<Q", self.hashes)[-ROW_DIGEST_BYTES:]
        return Fingerprint(self.rows, exact, self.total, self.magnitude, self.levels, self.levels_magnitude)

    def _add(self, path: str, value: int) -> None:
        self.exact[path] = (self.exact.get(path, 0) + value) & _MASK

    def _add_array(self, path: str, array: pa.Array, place: int, weights: Numbers) -> None:
        if not len(array):
            return
        kind = array.type
        self._add(f"{path}:null", array.null_count)
        if pa.types.is_floating(kind):
            self._add_floats(path, array, place, weights)
        elif pa.types.is_struct(kind):
            for name, child in parts(array):
                self._add_array(f"{path}.{name}", child, place, weights)
        elif pa.types.is_nested(kind):
            lengths = lengths_of(array)
            self._add_words(f"{path}.length", lengths)
            for name, child in parts(array):
                self._add_array(f"{path}.{name}", child, place, np.repeat(weights, lengths.astype(np.int64)))
        elif pa.types.is_binary(kind) or pa.types.is_string(kind):
            self._add_texts(path, array, np.dtype(np.int32))
        elif pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
            self._add_texts(path, array, np.dtype(np.int64))
        elif pa.types.is_boolean(kind):
            self._add(f"{path}:true", array.true_count)
        elif not pa.types.is_null(kind):
            self._add_words(path, words_of(array))

    def _add_words(self, path: str, words: Words) -> None:
        self._add(f"{path}:sum", int(words.sum(dtype=np.uint64)))
        self._add(f"{path}:squares", int(np.dot(words, words)))

    def _add_floats(self, path: str, array: pa.Array, place: int, weights: Numbers) -> None:
        if array.null_count:
            weights = weights[array.is_valid().to_numpy(zero_copy_only=False)]
        values = array.drop_null().to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        for begin in range(0, len(values), _PIECE):
            levels = _levels(values[begin : begin + _PIECE])
            self.levels += place * float(np.dot(levels, weights[begin : begin + _PIECE]))
            self.levels_magnitude += place * float(np.abs(levels).sum())
        is_finite = np.isfinite(values)
        finite = values
        if not is_finite.all():
            finite, weights = values[is_finite], weights[is_finite]
        self._add(f"{path}:other", len(values) - len(finite))
        # Weighed by the column's place, so that two columns cannot change places.
        with np.errstate(over="ignore", invalid="ignore"):
            self.total += place * float(np.dot(finite, weights))
            self.magnitude += place * float(np.abs(finite).sum())

    def _add_texts(self, path: str, array: pa.Array, place: np.dtype[Any]) -> None:
        offsets = np.frombuffer(array.buffers()[1], place, len(array) + 1, array.offset * place.itemsize)
        first, last = int(offsets[0]), int(offsets[-1])
        lengths = np.diff(offsets).astype(np.uint64)
        self._add_words(f"{path}:length", lengths)
        if last == first:
            return
        data = array.buffers()[2]
        octets = pa.Array.from_buffers(pa.uint8(), last - first, [None, data], 0, first)
        self._add(f"{path}:bytes", pc.sum(octets).as_py())
        if data.size >= WORD:
            # A word at every byte of the buffer; only those that begin and end texts are taken.
            words = np.ndarray((data.size - WORD + 1,), np.uint64, data, strides=(1,))
            long = lengths >= WORD
            first_bytes, ends = offsets[:-1], offsets[1:]
            if not long.all():
                first_bytes, ends = first_bytes[long], ends[long]
            self._add_words(f"{path}:head", words[first_bytes])
            self._add_words(f"{path}:tail", words[ends - WORD])


def _levels(values: Numbers) -> Numbers:
    """As core/delivery.py has them: what the bits of a number are as a whole number goes up like its logarithm."""
    bits = (np.abs(values) + 1.0).view(np.int64) - _ONE
    levels: Numbers = np.copysign(bits * 2.0**-52, values)
    is_none = np.isnan(values)
    if is_none.any():
        # Its bits, its sign among them, say nothing.
        levels[is_none] = _LEVEL_OF_NONE
    return levels
