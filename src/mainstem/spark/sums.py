"""What adds up over the rows of a frame, whatever their order and whoever writes which of them.

A batch that Spark runs again must be known again, and one that has other rows must not pass for it. Rows have another
order after a shuffle, and are in other tasks; so what is compared are sums over columns: of values, of their squares,
of lengths, of the bytes of texts and of their first and last eight. They are numbers of 64 bits that wrap around, made
by Arrow and NumPy a column at a time. Floating-point numbers are summed as such: see core/delivery.py.
"""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.delivery import Fingerprint

_MASK: Final = (1 << 64) - 1
_WORD: Final = 8
Words = npt.NDArray[np.uint64]


@dataclass(slots=True)
class Sums:
    """Sums over the rows that were added. Can be pickled, and those of several tasks merged."""

    rows: int = 0
    # By the path of a column and what is summed.
    exact: dict[str, int] = field(default_factory=dict)
    total: float = 0.0
    magnitude: float = 0.0

    def add(self, table: pa.Table) -> None:
        self.rows += table.num_rows
        for place, (name, column) in enumerate(zip(table.schema.names, table.columns, strict=True), 1):
            for chunk in column.chunks:
                self._add_array(name, chunk, place)

    def merge(self, other: "Sums") -> None:
        self.rows += other.rows
        self.total += other.total
        self.magnitude += other.magnitude
        for path, value in other.exact.items():
            self._add(path, value)

    def fingerprint(self) -> Fingerprint:
        digest = hashlib.blake2b(digest_size=16)
        for path in sorted(self.exact):
            # What is 0 says nothing, and which columns came to 0 may depend on who counted.
            if self.exact[path]:
                name = path.encode()
                digest.update(struct.pack("<IQ", len(name), self.exact[path]) + name)
        return Fingerprint(self.rows, digest.digest(), self.total, self.magnitude)

    def _add(self, path: str, value: int) -> None:
        self.exact[path] = (self.exact.get(path, 0) + value) & _MASK

    def _add_array(self, path: str, array: pa.Array, place: int) -> None:
        if not len(array):
            return
        kind = array.type
        self._add(f"{path}:null", array.null_count)
        if pa.types.is_floating(kind):
            self._add_floats(path, array, place)
        elif pa.types.is_nested(kind):
            for part, child in _parts(array):
                if isinstance(child, pa.Array):
                    self._add_array(f"{path}.{part}", child, place)
                else:
                    self._add_words(f"{path}.{part}", child)
        elif pa.types.is_binary(kind) or pa.types.is_string(kind):
            self._add_texts(path, array, np.dtype(np.int32))
        elif pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
            self._add_texts(path, array, np.dtype(np.int64))
        elif pa.types.is_boolean(kind):
            self._add(f"{path}:true", array.true_count)
        elif not pa.types.is_null(kind):
            self._add_words(path, _words_of(array))

    def _add_words(self, path: str, words: Words) -> None:
        self._add(f"{path}:sum", int(words.sum(dtype=np.uint64)))
        self._add(f"{path}:squares", int(np.dot(words, words)))

    def _add_floats(self, path: str, array: pa.Array, place: int) -> None:
        values = array.drop_null().to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        finite = values[np.isfinite(values)]
        self._add(f"{path}:other", len(values) - len(finite))
        # Weighed by the column's place, so that two columns cannot change places.
        with np.errstate(over="ignore"):
            self.total += place * float(finite.sum())
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
        if data.size >= _WORD:
            # A word at every byte of the buffer; only those that begin and end texts are taken.
            words = np.ndarray((data.size - _WORD + 1,), np.uint64, data, strides=(1,))
            long = lengths >= _WORD
            first_bytes, ends = offsets[:-1], offsets[1:]
            if not long.all():
                first_bytes, ends = first_bytes[long], ends[long]
            self._add_words(f"{path}:head", words[first_bytes])
            self._add_words(f"{path}:tail", words[ends - _WORD])


def _parts(array: Any) -> Iterator[tuple[str, pa.Array | Words]]:
    """What a nested column is made of, without what stands under nulls."""
    kind = array.type
    if pa.types.is_struct(kind):
        for field_ in kind:
            yield field_.name, pc.struct_field(array, field_.name)
        return
    present = array.drop_null()
    offsets = present.offsets.to_numpy()
    yield "length", np.diff(offsets).astype(np.uint64)
    if pa.types.is_map(kind):
        first, last = int(offsets[0]), int(offsets[-1])
        yield "key", present.keys.slice(first, last - first)
        yield "item", present.items.slice(first, last - first)
    else:
        yield "item", present.flatten()


def _words_of(array: pa.Array) -> Words:
    """Numbers, times and dates as 64 bits each, decimals as several such words; null is 0."""
    width = array.type.bit_width
    kind = {8: np.int8, 16: np.int16, 32: np.int32}.get(width, np.uint64)
    count = len(array) * max(1, width // 64)
    words = np.frombuffer(array.buffers()[1], kind, count, array.offset * width // 8).astype(np.uint64, copy=False)
    if not array.null_count:
        return words
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return np.where(np.repeat(valid, count // len(array)), words, np.uint64(0))
