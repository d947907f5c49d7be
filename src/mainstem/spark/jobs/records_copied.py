"""Records copied to another stream as they are: rows as rows, tombstones as tombstones.

A table of records has their keys, and in its last column which of them are tombstones. Rows and tombstones go in
batches of their own, in turns: rows, tombstones, rows. In which turn a record goes is decided for each key by itself:
its records keep their order, and there are few turns, however rows and tombstones of many keys are mixed.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.errors import InvalidRecord
from mainstem.spark.destination import PartWriter
from mainstem.spark.jobs.lake import KEY_COLUMN
from mainstem.transport.port import StreamInfo

_HEADERS: Final = "_headers"
_TIME: Final = "_timestamp"


def rows_of(stream: StreamInfo, records: pa.Schema) -> pa.Schema:
    """The columns of rows that come from a table of records. Where their key is made of columns, it is not sent."""
    rows = records.remove(len(records) - 1)
    return rows.remove(rows.get_field_index(KEY_COLUMN)) if stream.key else rows


class Copier:
    """Sends tables of records of a stream whose key is made of the columns `key`. Can be pickled."""

    def __init__(self, key: tuple[str, ...]) -> None:
        self._key = key

    def __call__(self, part: PartWriter, stream: StreamInfo, records: pa.Table, shard: int | None) -> None:
        is_deleted = records.column(-1).to_numpy()
        rows = records.remove_column(records.num_columns - 1)
        rows = rows.drop_columns([KEY_COLUMN]) if stream.key else rows
        if not is_deleted.any():
            part.send_batch(stream.name, rows, shard=shard)
            return
        turns = _turns(records.column(KEY_COLUMN), is_deleted)
        order = np.argsort(turns, kind="stable")
        for turn, places in enumerate(np.split(order, np.searchsorted(turns[order], np.arange(1, turns.max() + 1)))):
            if turn % 2:
                self._send_tombstones(part, stream, records.take(places), shard)
            elif len(places):
                part.send_batch(stream.name, rows.take(places), shard=shard)

    def _send_tombstones(self, part: PartWriter, stream: StreamInfo, records: pa.Table, shard: int | None) -> None:
        times = records.column(_TIME).cast(pa.int64()).to_pylist()
        keys, headers = (records.column(name).to_pylist() for name in (KEY_COLUMN, _HEADERS))
        for key, given, time_us in zip(keys, headers, times, strict=True):
            if stream.key not in ((), self._key) or key is None:
                raise InvalidRecord(
                    f"stream {stream.name!r} cannot take the tombstone of {key!r}, because its keys are made of "
                    f"{', '.join(stream.key) or 'nothing'}; leave tombstones out, by a condition (where) that asks for "
                    "a column that is not null"
                )
            part.send_tombstone(stream.name, key, given and dict(given), time_us, shard=shard)


def _turns(keys: pa.ChunkedArray, is_deleted: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """In which turn each record goes, the later ones of a key never before the earlier ones: rows in even ones,
    tombstones in odd ones."""
    codes = pc.dictionary_encode(keys.combine_chunks(), null_encoding="encode").indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    codes, kinds = codes[order], is_deleted[order].astype(np.int64)
    # One more wherever a key has a record of the other kind than the one before.
    steps = np.zeros(len(codes), np.int64)
    steps[1:] = (codes[1:] == codes[:-1]) & (kinds[1:] != kinds[:-1])
    sums = np.cumsum(steps)
    first = np.searchsorted(codes, codes)
    turns = np.empty(len(codes), np.int64)
    turns[order] = kinds[first] + sums - sums[first]
    return turns
