"""Samples: which part of the records of who is over its quota is kept, and how a record says so.

Who writes more than it may can have a share of it kept. Each record is kept or not by a hash of who sends it and of its
number, so a sample follows no pattern in the data; those that are kept have the share in a header, so that whoever
counts or sums them knows what each of them stands for: 1 / share records.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.core.layouts import HEADERS_TYPE

# The header of a record that was kept, in which the share is decimal text.
SHARE_HEADER: Final = "mainstem-share"
# A share is at least this: some of everything is seen.
SHARE_MIN: Final = 0.001

_MASK: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15
_MIX: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def kept(count: int, share: float, source: int, first: int) -> npt.NDArray[np.bool_]:
    """Which of `count` records are within the share; `first` is the number of the first at its source. Asked again, the
    answer is the same."""
    numbers = np.arange(first, first + count, dtype=np.uint64) + np.uint64(source & _MASK)
    with np.errstate(over="ignore"):
        mixed = numbers * np.uint64(_STEP)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_MIX[0])
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_MIX[1])
        mixed ^= mixed >> np.uint64(31)
    return np.asarray(mixed < np.uint64(min(_MASK, int(share * (_MASK + 1)))))


def is_kept(share: float, *identity: int) -> bool:
    """The same for one thing that has this identity."""
    mixed = 0
    for number in identity:
        mixed = (mixed ^ number) * _STEP & _MASK
        mixed = (mixed ^ (mixed >> 30)) * _MIX[0] & _MASK
        mixed = (mixed ^ (mixed >> 27)) * _MIX[1] & _MASK
        mixed ^= mixed >> 31
    return mixed < share * (_MASK + 1)


def with_share(batch: pa.RecordBatch, share: float, *, is_rows: bool) -> pa.RecordBatch:
    """The records, each with a header that says which share of them was kept."""
    prefix = "_" if is_rows else ""
    name, text = f"{prefix}headers", f"{share:.6g}".encode()
    names, items, offsets = pa.array([], pa.string()), pa.array([], pa.binary()), np.zeros(batch.num_rows + 1, np.int64)
    at = batch.schema.get_field_index(name)
    if at >= 0:
        found = pa.concat_arrays([batch.column(at)])  # whose first offset is 0
        names, items, offsets = found.keys, found.items, found.offsets.to_numpy().astype(np.int64)
        batch = batch.remove_column(at)
    else:
        behind = [batch.schema.get_field_index(f"{prefix}{other}") for other in ("timestamp", "offset")]
        at = min((index for index in behind if index >= 0), default=batch.num_columns)
    # The new one stands behind those that a record has.
    order = np.insert(np.arange(len(names)), offsets[1:], len(names))
    headers = pa.MapArray.from_arrays(
        pa.array(offsets + np.arange(len(offsets)), pa.int32()),
        pa.concat_arrays([names, pa.array([SHARE_HEADER])]).take(pa.array(order)),
        pa.concat_arrays([items, pa.array([text])]).take(pa.array(order)),
    )
    return batch.add_column(at, pa.field(name, HEADERS_TYPE), headers.cast(HEADERS_TYPE))
