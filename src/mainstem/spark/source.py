"""The source: a stream as a table of Spark, read at once or as it grows.

    spark.read.format("mainstem").option("hub", "./data").load("orders")
    spark.readStream.format("mainstem").option("hub", "./data").load("orders")

Spark builds the source anew in every process that has a part in a read: one that looks up the schema, one that plans,
one for each task, and one that a streaming query asks for offsets. So nothing is kept here but the options.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)

from mainstem.consume.view import with_metadata
from mainstem.core.errors import InvalidSetting
from mainstem.core.predicate import Predicate
from mainstem.core.schema import METADATA_COLUMNS
from mainstem.spark import types
from mainstem.spark.filters import of_columns, predicate_of
from mainstem.spark.options import ReadOptions, begin_of, end_of, read_options
from mainstem.spark.origin import opened
from mainstem.spark.reading import (
    Partition,
    Shape,
    all_columns,
    batches_of,
    columns_of,
    cores,
    losses_for_spark,
    note_loss,
    parts_for,
    planned,
)
from mainstem.spark.slices import slices_of
from mainstem.transport.port import GetStreamCall, StreamInfo

# Is loaded in the process in which Spark asks a reader about filters, and in no other.
_PUSHDOWN = "pyspark.sql.worker.data_source_pushdown_filters"


class MainstemSource(DataSource):
    """`format("mainstem")`."""

    @classmethod
    def name(cls) -> str:
        return "mainstem"

    def schema(self) -> st.StructType:
        # Which kind of read it is for, Spark does not say.
        options = read_options(dict(self.options), streaming=None)
        return types.to_spark(columns_of(look_up(options), options))

    def reader(self, schema: st.StructType) -> DataSourceReader:
        options = read_options(dict(self.options), streaming=False)
        _require_agreement(options, schema)
        # A reader that takes filters fails where Spark was not told to push them down, as it is by default.
        takes_filters = options.push_filters and _PUSHDOWN in sys.modules
        return (PushdownReader if takes_filters else BatchReader)(options, schema)

    def streamReader(self, schema: st.StructType) -> DataSourceStreamReader:
        from mainstem.spark.stream import StreamReader

        options = read_options(dict(self.options), streaming=True)
        _require_agreement(options, schema)
        return StreamReader(options, schema)

    def writer(self, schema: st.StructType, overwrite: bool) -> DataSourceWriter:
        from mainstem.spark.sink import batch_sink
        from mainstem.spark.write_options import write_options

        return batch_sink(write_options(dict(self.options)), schema, overwrite=overwrite)

    def streamWriter(self, schema: st.StructType, overwrite: bool) -> DataSourceStreamWriter:
        from mainstem.spark.sink import stream_sink
        from mainstem.spark.write_options import write_options

        return stream_sink(write_options(dict(self.options)), schema, overwrite=overwrite)


class BatchReader(DataSourceReader):
    """Reads a stream from one place to another; what is written meanwhile is left for the next read."""

    def __init__(self, options: ReadOptions, schema: st.StructType) -> None:
        info = look_up(options)
        self._options = options
        self._schema = schema
        self._shape = Shape.of(info, schema)
        self._where = options.where
        if options.where:
            # A mistake is said by the planner, once, and not by every task.
            Predicate.parse(options.where).bind(with_metadata(all_columns(info)))

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        port = opened(options.access)
        info = look_up(options)
        first = begin_of(port, info, options.starting or "earliest")
        end = end_of(port, info, options.ending or "latest")
        parts = options.partitions or parts_for(info.bytes, cores())
        on_loss = None if options.fail_on_data_loss else note_loss
        with losses_for_spark():
            slices = slices_of(port, options.access, info, first, end, where=self._where, parts=parts, on_loss=on_loss)
        return planned(slices, options, self._where)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Partition)
        return batches_of(partition, self._shape, self._options)


class PushdownReader(BatchReader):
    """The same, with the filters of the query.

    Only for a frame that is read by one query, once, and only where that is said (`pushFilters`): Spark 4.3 keeps the
    reader that was given filters with the frame, and reads by it whatever else is made of that frame. Without a word,
    all else would lack the rows that those filters leave out.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        columns = with_metadata(all_columns(look_up(self._options)))
        # Where the user's schema has another type, Spark asks about what a value is cast to, not about the value.
        asked = of_columns(filters, types.unchanged(columns, self._schema))
        self._where = predicate_of(asked, columns, self._options.where)
        return filters


def _require_agreement(options: ReadOptions, schema: st.StructType) -> None:
    """InvalidSetting if the options ask for columns, and the schema, which is then the user's, for others: it would win
    without a word."""
    named, metadata = options.columns, METADATA_COLUMNS if options.metadata else ()
    there = set(schema.names)
    if there.issuperset((*(named or ()), *metadata)) and (named is None or there.issubset((*named, *metadata))):
        return
    given = " and ".join([*(["columns"] if named is not None else []), *(["includeMetadata"] if metadata else [])])
    raise InvalidSetting(
        f".schema(...) has the columns {', '.join(schema.names)}, and {given} asks for others. Leave {given} out: "
        f"with a schema, the columns that it names are read, also {', '.join(METADATA_COLUMNS)}"
    )


def look_up(options: ReadOptions) -> StreamInfo:
    return opened(options.access).call(GetStreamCall(options.stream)).streams[0]
