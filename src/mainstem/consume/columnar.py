"""Records written by whole batches, in a format that has columns: CSV, Arrow or Avro."""

from collections.abc import Callable
from typing import IO, Final, Protocol

import pyarrow as pa

from mainstem.registry import formats


class ColumnWriter(Protocol):
    """Writes batches of one schema to a file or a pipe. One thread; what is written is out when `write` returns, but
    for Avro, which is written when it is closed."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


class CsvWriter:
    """Text in quotes, nulls empty, the names of the columns first."""

    def __init__(self, sink: IO[bytes], schema: pa.Schema) -> None:
        self._sink = sink
        self.write(pa.RecordBatch.from_pylist([], schema), header=True)

    def write(self, batch: pa.RecordBatch, *, header: bool = False) -> None:
        for piece in formats.csv_pieces(batch, header):
            self._sink.write(piece)
        self._sink.flush()

    def close(self) -> None:
        return None


class ArrowWriter:
    """An Arrow IPC stream."""

    def __init__(self, sink: IO[bytes], schema: pa.Schema) -> None:
        self._sink = sink
        self._writer = pa.ipc.new_stream(sink, schema)
        sink.flush()

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self._sink.flush()

    def close(self) -> None:
        self._writer.close()
        self._sink.flush()


class AvroWriter:
    """An Avro container file: its rows are in memory until the end."""

    def __init__(self, sink: IO[bytes], schema: pa.Schema) -> None:
        self._sink = sink
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def close(self) -> None:
        self._sink.write(formats.to_avro_file(self._batches, self._schema))
        self._sink.flush()


WRITERS: Final[dict[str, Callable[[IO[bytes], pa.Schema], ColumnWriter]]] = {
    "csv": CsvWriter,
    "arrow": ArrowWriter,
    "avro": AvroWriter,
}
