"""Many rows handed over at once: dicts, JSON and tombstones, as tables of one kind each, in their order."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mainstem.core.errors import SchemaMismatch
from mainstem.core.layouts import binary_array
from mainstem.produce.admission import key_array
from mainstem.produce.row_batches import with_envelope
from mainstem.registry.rows import BadRow, RowConverter


class Run(NamedTuple):
    """Records that follow each other and are of one kind: rows of the schema, or tombstones."""

    is_rows: bool
    table: pa.Table


def as_runs(rows: RowConverter, values: Sequence[Any], keys: list[Any] | None) -> tuple[list[Run], list[BadRow]]:
    """The records as runs, and the rows that do not fit and are left out."""
    runs: list[Run] = []
    bad: list[BadRow] = []
    begin = 0
    for is_tombstone, group in groupby(values, key=lambda value: value is None):
        part = list(group)
        own = None if keys is None else key_array(keys[begin : begin + len(part)])
        if is_tombstone:
            columns = {"value": pa.nulls(len(part), pa.binary())}
            runs.append(Run(False, pa.table(columns if own is None else {**columns, "key": own})))
        else:
            batch, misfits = _batch_of(rows, part)
            bad += [BadRow(begin + one.index, one.path, one.reason) for one in misfits]
            batch = with_envelope(batch, None if own is None else own.to_pylist(), None, None)
            kept = pa.Table.from_batches([batch])
            if misfits:
                fits = np.ones(len(part), bool)
                fits[[one.index for one in misfits]] = False
                kept = kept.filter(pa.array(fits))
            if kept.num_rows:
                runs.append(Run(True, kept))
        begin += len(part)
    return runs, bad


def _batch_of(rows: RowConverter, values: list[Any]) -> tuple[pa.RecordBatch, Sequence[BadRow]]:
    """Rows as a batch; those that do not fit are null rows in it."""
    if all(type(value) is bytes for value in values):
        return rows.from_json(binary_array(values))
    bad: list[BadRow] = []
    taken = [_taken(rows, index, value, bad) for index, value in enumerate(values)]
    return rows.build(taken), bad


def _taken(rows: RowConverter, index: int, value: Any, bad: list[BadRow]) -> Any:
    try:
        is_json = isinstance(value, bytes | bytearray | memoryview | str)
        return (rows.convert_json(value) if is_json else rows.convert(value))[0]
    except SchemaMismatch as error:
        bad.append(BadRow(index, error.path, str(error).removeprefix(error.path).strip()))
        return rows.nothing
