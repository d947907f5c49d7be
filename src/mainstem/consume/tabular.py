"""Records as columns, and as whatever can be made of columns."""

from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa

from mainstem.registry import formats


class Tabular(ABC):
    """What has `to_arrow`, and so the other formats too: a batch of records, and what was found.

    Every format has the columns of `to_arrow`; `metadata` adds _shard, _offset, _timestamp, _key and _headers. A
    tombstone is a row of nulls, so every column may be null here, whatever the stream's schema says of its rows.
    """

    __slots__ = ()

    @abstractmethod
    def to_arrow(self, *, metadata: bool = False) -> Any:
        """The columns of the stream's schema, or those that were asked for; without a schema key, value, headers,
        timestamp. With `metadata` also _shard, _offset, _timestamp, _key, _headers."""

    def to_pandas(self, *, metadata: bool = False) -> Any:
        """A pandas DataFrame; pandas must be installed."""
        return self.to_arrow(metadata=metadata).to_pandas()

    def to_polars(self, *, metadata: bool = False) -> Any:
        """A polars DataFrame; polars must be installed."""
        import polars as pl

        return pl.from_arrow(self.to_arrow(metadata=metadata))

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
        batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        return formats.to_avro_file(batches, rows.schema)

    def to_parquet(self, *, metadata: bool = False) -> bytes:
        """The rows as a Parquet file."""
        rows = self.to_arrow(metadata=metadata)
        batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        return formats.to_parquet(batches, rows.schema)
