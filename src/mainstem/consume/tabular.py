"""Records as columns, and as whatever can be made of columns."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from mainstem.core.errors import InvalidPayload, MainstemError
from mainstem.core.plain import one_line
from mainstem.registry import formats
from mainstem.registry.types import type_text


class Tabular(ABC):
    """What has `to_arrow`, and so the other formats too: a batch of records, and what was found.

    Every format has the columns of `to_arrow`; `metadata` adds _shard, _offset, _timestamp, _key and _headers. A
    tombstone is a row of nulls, so every column may be null here, whatever the stream's schema says of its rows.
    InvalidPayload if a format has no place for a column or a value of it; Arrow, dicts and text have one for all.
    """

    __slots__ = ()

    @abstractmethod
    def to_arrow(self, *, metadata: bool = False) -> Any:
        """The columns of the stream's schema, or those that were asked for; without a schema key, value, headers,
        timestamp. With `metadata` also _shard, _offset, _timestamp, _key, _headers."""

    def to_pandas(self, *, metadata: bool = False) -> Any:
        """A pandas DataFrame; pandas must be installed."""
        return _made(self.to_arrow(metadata=metadata), "pandas", lambda rows: rows.to_pandas())

    def to_polars(self, *, metadata: bool = False) -> Any:
        """A polars DataFrame; polars must be installed."""
        import polars as pl

        def make(rows: Any) -> Any:
            for field in rows.schema:
                _require_narrow_decimals(field.type)
            return pl.from_arrow(rows)

        return _made(self.to_arrow(metadata=metadata), "polars", make)

    def to_dicts(self, *, metadata: bool = False) -> list[dict[str, Any]]:
        """The rows as dicts."""
        return formats.to_dicts(self.to_arrow(metadata=metadata))

    def to_ndjson(self, *, metadata: bool = False) -> bytes:
        """The rows as JSON, one a line."""
        return formats.to_ndjson(self.to_arrow(metadata=metadata))

    def to_csv(self, *, metadata: bool = False, header: bool = True) -> bytes:
        """The rows as CSV: text in quotes, null as nothing."""
        return formats.to_csv(self.to_arrow(metadata=metadata), header)

    def to_avro(self, *, metadata: bool = False) -> bytes:
        """The rows as an Avro file."""
        rows = self.to_arrow(metadata=metadata)
        return formats.to_avro_file(_batches(rows), rows.schema)

    def to_parquet(self, *, metadata: bool = False) -> bytes:
        """The rows as a Parquet file."""
        rows = self.to_arrow(metadata=metadata)
        return bytes(_made(rows, "Parquet", lambda rows: formats.to_parquet(_batches(rows), rows.schema)))


def _batches(rows: Any) -> list[pa.RecordBatch]:
    return rows.to_batches() if isinstance(rows, pa.Table) else [rows]


def _made(rows: Any, target: str, make: Callable[[Any], Any]) -> Any:
    """What a library makes of rows. Libraries have errors of their own for what they cannot hold, and none names the
    column: here it is found and named."""
    try:
        return make(rows)
    except (MainstemError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  # pyarrow, pandas and polars share no root
        name = next((name for name in rows.schema.names if not _can_make(rows.select([name]), make)), "")
        which = f"column {name!r} ({type_text(rows.schema.field(name).type)})" if name else "these rows"
        why = one_line(str(error), 200).rstrip(". ")
        raise InvalidPayload(
            f"{which} cannot go to {target}: {why}; ask for other columns (columns=), or take to_arrow(), which holds "
            "everything"
        ) from None


def _can_make(rows: Any, make: Callable[[Any], Any]) -> bool:
    try:
        make(rows)
    except Exception:  # noqa: BLE001
        return False
    return True


def _require_narrow_decimals(kind: pa.DataType) -> None:
    """Polars panics where a decimal is kept in 256 bits, and a panic is no Exception."""
    if pa.types.is_decimal256(kind):
        raise ValueError("polars has no decimals of more than 128 bits (38 digits)")
    for index in range(kind.num_fields):
        _require_narrow_decimals(kind.field(index).type)
