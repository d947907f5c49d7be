"""The newest record of each key, among batches of Arrow data.

Which of two records of a key is newer: the one that was written after the stream got more shards, else the one with the
greater offset. Records of a key are in one shard, unless writers chose the shards; then the log promises no order
between them, and this one is at least always the same.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.limits import MIB
from mainstem.spark.generations import Generations, generation_of

GENERATION_COLUMN: Final = "_generation"
# What is held before the older records of each key are let go.
_HELD_BYTES_MAX: Final = 256 * MIB
_HELD_ROWS_MAX: Final = 1 << 20


def with_generation(rows: pa.RecordBatch, shard: int, generations: Generations) -> pa.RecordBatch:
    """Rows of one shard, with the generation that each is of."""
    found = np.zeros(rows.num_rows, np.int32)
    if generations and rows.num_rows:
        offsets = rows.column("_offset").to_numpy()
        first = generation_of(shard, int(offsets[0]), generations)
        found += first
        for _, barriers in generations[first:]:
            found += offsets >= barriers[shard] if shard < len(barriers) else True
    return rows.append_column(GENERATION_COLUMN, pa.array(found))


def newest_of(rows: pa.Table) -> pa.Table:
    """The newest row of each key. Rows without a key are nobody's: they are left out, and told by who reads them."""
    rows = rows.filter(pc.is_valid(rows["_key"]))
    if not rows.num_rows:
        return rows
    keys = rows["_key"].combine_chunks().dictionary_encode()
    codes = pa.array((keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys).indices)
    order = pa.table(
        {"key": codes, "generation": rows[GENERATION_COLUMN], "offset": rows["_offset"], "shard": rows["_shard"]}
    )
    sorting = [(name, "ascending") for name in order.column_names]
    places = pc.sort_indices(order, sort_keys=sorting)
    ordered = codes.take(places).to_numpy()
    is_last = np.append(ordered[1:] != ordered[:-1], True)
    return rows.take(np.sort(places.to_numpy()[is_last]))


def newest_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same of any number of batches in bounded memory: a key may come again in a later table, newer ones last."""
    held: list[pa.RecordBatch] = []
    held_rows = held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_rows += batch.num_rows
        held_bytes += batch.nbytes
        if held_rows >= _HELD_ROWS_MAX or held_bytes >= _HELD_BYTES_MAX:
            table = newest_of(pa.Table.from_batches(held))
            if table.nbytes * 2 > _HELD_BYTES_MAX or table.num_rows * 2 > _HELD_ROWS_MAX:
                yield table
                held, held_rows, held_bytes = [], 0, 0
            else:
                held, held_rows, held_bytes = table.to_batches(), table.num_rows, table.nbytes
    if held:
        yield newest_of(pa.Table.from_batches(held))
