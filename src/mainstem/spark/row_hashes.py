"""A number for each row of a frame, made of all its values that can be compared exactly.

Rows that differ have other numbers, whichever value it is; the names of columns count, their order does not, nor does
that of the items of a list or map, which Spark may collect in another order when it computes a row again. Made by Arrow
and NumPy, a column at a time. Floating-point numbers are not in it: computed again they may differ in their last bits.

What is hashed is nobody's secret and nobody's attack: the numbers have to differ by chance only.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.checksum import crc32c

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

# Bytes of a word.
WORD: Final = 8
# Odd numbers without a pattern, as other hashes multiply by.
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_OTHER_FACTOR: Final = np.uint64(0xBF58476D1CE4E5B9)
_HALF: Final = np.uint64(32)
_NULL: Final = np.uint64(0x94D049BB133111EB)
_ALL: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
# How many bytes of texts are looked at together, and up to which length texts are: longer ones are hashed one by one.
_BLOCK_BYTES: Final = 64
_SHORT_BYTES_MAX: Final = 256
# One for each word of a text, odd.
_FACTORS: Final = _FACTOR * np.arange(1, 2 * (_SHORT_BYTES_MAX // WORD), 2).astype(np.uint64)


def row_hashes(rows: pa.RecordBatch) -> Words:
    """The number of each row."""
    found = np.zeros(rows.num_rows, np.uint64)
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        found += _mixed(_hashes(column) + _seed(name))
    return _mixed(found)


def weights_of(hashes: Words) -> Numbers:
    """Numbers between 1 and 2, one for each row."""
    return 1.0 + (hashes >> np.uint64(12)).astype(np.float64) * 2.0**-52


def words_of(array: pa.Array) -> Words:
    """Numbers, times and dates as 64 bits each, decimals as several such words; null is 0."""
    width = array.type.bit_width
    kind = {8: np.int8, 16: np.int16, 32: np.int32}.get(width, np.uint64)
    count = len(array) * max(1, width // 64)
    words = np.frombuffer(array.buffers()[1], kind, count, array.offset * width // 8).astype(np.uint64, copy=False)
    if not array.null_count:
        return words
    return np.where(np.repeat(_valid(array), count // len(array)), words, np.uint64(0))


def parts(array: Any) -> Iterator[tuple[str, pa.Array]]:
    """What a nested column is made of, without what stands under nulls."""
    kind = array.type
    if pa.types.is_struct(kind):
        for field in kind:
            yield field.name, pc.struct_field(array, field.name)
    elif pa.types.is_map(kind):
        present = array.drop_null()
        first, last = present.offsets[0].as_py(), present.offsets[-1].as_py()
        yield "key", present.keys.slice(first, last - first)
        yield "item", present.items.slice(first, last - first)
    else:
        yield "item", array.flatten()


def lengths_of(array: Any) -> Words:
    """How many items each list or map has; none under null."""
    lengths = np.diff(array.offsets.to_numpy()).astype(np.uint64)
    return np.where(_valid(array), lengths, np.uint64(0)) if array.null_count else lengths


def _hashes(array: pa.Array) -> Words:
    """A number for each value of an array."""
    kind = array.type
    if pa.types.is_floating(kind) or pa.types.is_null(kind) or not len(array):
        found = np.zeros(len(array), np.uint64)
    elif pa.types.is_struct(kind):
        found = np.zeros(len(array), np.uint64)
        for name, child in parts(array):
            found += _mixed(_hashes(child) + _seed(name))
    elif pa.types.is_nested(kind):
        found = _of_items(array)
    elif pa.types.is_binary(kind) or pa.types.is_string(kind):
        found = _of_texts(array, np.dtype(np.int32))
    elif pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        found = _of_texts(array, np.dtype(np.int64))
    elif pa.types.is_boolean(kind):
        found = array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64)
    else:
        words = words_of(array).reshape(len(array), -1)
        found = words[:, 0]
        for place in range(1, words.shape[1]):
            found = _mixed(found * _FACTOR) + words[:, place]
    return np.where(_valid(array), found, _NULL) if array.null_count else found


def _of_items(array: Any) -> Words:
    """Of lists and maps: the sum over their items."""
    lengths = lengths_of(array)
    children = [_hashes(child) for _, child in parts(array)]
    items = children[0]
    if len(children) > 1:
        # The key and the item of a map belong together.
        items = _mixed(items * _FACTOR) + children[1]
    ends = np.cumsum(lengths, dtype=np.int64)
    sums = np.zeros(len(items) + 1, np.uint64)
    np.cumsum(_mixed(items * _FACTOR), out=sums[1:])
    return sums[ends] - sums[ends - lengths.astype(np.int64)] + lengths


def _of_texts(array: pa.Array, place: np.dtype[Any]) -> Words:
    """Of texts: of all their bytes."""
    offsets = np.frombuffer(array.buffers()[1], place, len(array) + 1, array.offset * place.itemsize)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    found = lengths.astype(np.uint64)
    if offsets[-1] == offsets[0]:
        return found
    data = np.frombuffer(array.buffers()[2], np.uint8)
    for row in np.flatnonzero(lengths > _SHORT_BYTES_MAX):
        found[row] += np.uint64(crc32c(data[starts[row] : starts[row] + lengths[row]].data))
        lengths[row] = 0
    for begin in range(0, int(lengths.max()), _BLOCK_BYTES):
        rows = slice(None) if lengths.min() > begin else np.flatnonzero(lengths > begin)
        found[rows] += _of_blocks(data, starts[rows] + begin, lengths[rows] - begin, begin)
    return found


def _of_blocks(data: npt.NDArray[np.uint8], at: Places, left: Places, begin: int) -> Words:
    """Of the blocks of texts that stand `at` these places, ascending, and have so many bytes `left`. What is behind a
    text adds nothing: how wide the block is depends on other texts."""
    width = min(_BLOCK_BYTES, -(-int(left.max()) // WORD) * WORD)
    blocks = _blocks(data, at, width)
    found = np.zeros(len(at), np.uint64)
    for number in range(width // WORD):
        words = blocks[:, number]
        beyond = (number + 1) * WORD - left
        if beyond.max() > 0:
            words = words & _ALL >> (8 * np.clip(beyond, 0, WORD)).astype(np.uint64)
        words = words * _FACTORS[begin // WORD + number]
        words ^= words >> _HALF
        words *= _OTHER_FACTOR
        found += words
    return found


def _blocks(data: npt.NDArray[np.uint8], at: Places, width: int) -> Words:
    """What stands at these places, so many bytes each, as words; zeros behind the end."""
    within = int(np.searchsorted(at, data.size - width, "right"))
    pieces = [_gathered(data, at[:within], width)]
    if within < len(at):
        rest = np.pad(data[at[within] :], (0, width))
        pieces.append(_gathered(rest, at[within:] - at[within], width))
    found = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return found.view(np.uint64).reshape(len(at), -1)


def _gathered(data: npt.NDArray[np.uint8], at: Places, width: int) -> npt.NDArray[np.void]:
    if not len(at):
        return np.empty(0, f"V{width}")
    # One at every byte of the buffer.
    return np.ndarray((data.size - width + 1,), f"V{width}", data, strides=(1,))[at]


def _mixed(words: Words) -> Words:
    """Each bit of a word into many others."""
    words = words ^ words >> _HALF
    words *= _FACTOR
    words ^= words >> _HALF
    words *= _OTHER_FACTOR
    words ^= words >> _HALF
    return words


def _seed(name: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=WORD).digest(), "little"))


def _valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid
