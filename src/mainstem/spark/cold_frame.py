"""Cold files as a frame of Spark's own reader of Parquet, with the columns that the source gives.

    read_cold(spark, "/var/lib/mainstem", "orders")     # what of a stream is in such files
    whole_cold(spark, access, "orders")                 # a stream that is in such files and nowhere else

The ledger says which files there are. Those of each schema are read with the types of that schema, and become rows of
the newest one by the rules of promotion, as far as Spark can: a column under its old name, a wider number, null where a
column came later. The rest is left to the source: JSON that becomes rows, defaults, and types that are another thing in
Parquet. Pages have checksums, which Spark is told to verify.
"""

import functools
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from mainstem.consume.view import METADATA_SCHEMA, with_metadata
from mainstem.core.errors import DataLoss, FolderUnusable, InvalidSchema, MainstemError
from mainstem.core.layouts import FULL_SCHEMA
from mainstem.core.schema import Schema, default_of
from mainstem.log.cold_maker import ColdPath, ColdStream, cold_stream
from mainstem.log.folder import word_of_writer
from mainstem.registry.promotion import promotion
from mainstem.registry.types import type_text
from mainstem.spark import types
from mainstem.spark.origin import Access, opened
from mainstem.transport.port import GetStreamCall, RunsCall, StreamInfo

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PATTERN: Final = frozenset("{}[]*?\\")
_VERIFY: Final = "parquet.page.verify-checksum.enabled"
# What cold files of rows have of each record beside its row, and those of records without a schema all in all.
_BESIDE: Final = [METADATA_SCHEMA.field(name) for name in ("_offset", "_timestamp", "_key", "_headers")]
_PLAIN: Final = FULL_SCHEMA.append(METADATA_SCHEMA.field("_offset"))
_COMPANIONS: Final = {"_timestamp": "timestamp", "_key": "key", "_headers": "headers"}
# Types that are the same whether Spark reads them from Parquet or is given them by the source.
_SAME: Final = frozenset(
    (
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
        *(pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()),
    )
)


def read_cold(spark: "SparkSession", hub: str | Path, stream: str, **credentials: str | None) -> "DataFrame | None":
    """What of a stream is in cold files, by Spark's own reader of Parquet; None if nothing is.

    `hub` is a folder, or the address of a server whose folder is to be seen from here, with the credentials of
    `Access`. Rows have the columns of the newest schema, and those that every record has. InvalidSchema if only the
    source can read them; DataLoss if a file is missing.
    """
    access = Access.to(str(hub), **{name: value for name, value in credentials.items() if value})
    info = opened(access).call(GetStreamCall(stream)).streams[0]
    folder = _folder_of(spark, access, info)
    if folder is None:
        where = access.data or f"the folder of {access.url}"
        raise FolderUnusable(f"{where} is not to be seen by Spark, or its name is a pattern: read through the source")
    found = cold_stream(folder, stream)
    return _frame(spark, found, has_metadata=True) if found.files else None


def whole_cold(spark: "SparkSession", access: Access, stream: str, *, has_metadata: bool = False) -> "DataFrame | None":
    """A stream of which every record is in cold files, by Spark's own reader of Parquet; None if there are others, or
    if only the source can read them. DataLoss if a file is missing."""
    try:
        info = opened(access).call(GetStreamCall(stream)).streams[0]
        folder = _folder_of(spark, access, info)
        found = cold_stream(folder, stream, if_whole=True) if folder is not None else None
        if found is None or not found.files or not found.is_whole or found.stream.uuid != info.uuid:
            return None
        if len(found.ends) < info.shards or any(map(int.__lt__, found.ends, info.ends)):
            return None
        return _frame(spark, found, has_metadata=has_metadata)
    except DataLoss:
        raise
    except (MainstemError, OSError):
        # Whatever it is: the source finds it too, and tells it as it is told everywhere.
        return None


def _folder_of(spark: "SparkSession", access: Access, info: StreamInfo) -> Path | None:
    """The log's folder, for the driver and for every executor; None if it is not certain that they see it."""
    folder = access.data
    if not folder and _is_local(spark):
        answer = opened(access).call(RunsCall(info.name, 0, info.ends[0], info.ends[0]))
        is_here = answer.word and word_of_writer(Path(answer.folder)) == answer.word
        folder = answer.folder if is_here else ""
    # To Spark's reader a path with these is a pattern.
    return Path(folder) if folder and not _PATTERN.intersection(folder) else None


def _is_local(spark: "SparkSession") -> bool:
    from pyspark.errors import PySparkException

    try:
        return (spark.sparkContext.master or "").startswith("local")
    except PySparkException:
        return False


def _frame(spark: "SparkSession", found: ColdStream, *, has_metadata: bool) -> "DataFrame":
    given = _given(found, has_metadata=has_metadata)
    _require_plain(given)
    _require_there(found)
    frames = [_rows(spark, found, files, given, shard) for shard, files in _groups(found, by_shard=has_metadata)]
    return functools.reduce(lambda some, more: some.union(more), frames)


def _require_there(found: ColdStream) -> None:
    """DataLoss if a file is missing: Spark would say no more than that a path does not exist."""
    name = found.stream.name
    for file in found.files:
        if not file.path.exists():
            raise DataLoss(
                f"stream {name!r}: {file.path}, with records of shard {file.shard} from {file.base} on, is missing; "
                "bring it back, or see mainstem doctor for what to do",
                stream=name,
                shard=file.shard,
                first=file.base,
                last=file.end - 1,
                reason="damaged",
                path=str(file.path),
            )


def _given(found: ColdStream, *, has_metadata: bool) -> pa.Schema:
    """The columns that the source would give."""
    own = found.schemas[found.stream.schema_id].arrow if found.stream.schema_id else FULL_SCHEMA
    return with_metadata(own) if has_metadata else own


def _groups(found: ColdStream, *, by_shard: bool) -> Iterator[tuple[int, Sequence[ColdPath]]]:
    """Files of one schema that are read in one go, and their shard: no file says of which it is. A file that was
    trimmed in part is read alone."""

    def group(file: ColdPath) -> tuple[int, int, int]:
        is_trimmed = file.base < found.starts[file.shard]
        return file.schema_id, file.shard if by_shard or is_trimmed else 0, file.base if is_trimmed else -1

    for _, files in groupby(sorted(found.files, key=group), group):
        some = list(files)
        yield some[0].shard, some


def _rows(
    spark: "SparkSession", found: ColdStream, files: Sequence[ColdPath], given: pa.Schema, shard: int
) -> "DataFrame":
    """The rows of files of one schema as they are given."""
    from pyspark.sql import functions

    schema_id = files[0].schema_id
    if found.stream.schema_id and not schema_id:
        raise InvalidSchema("records without a schema in a stream that has one are for the source to read")
    stored = pa.schema([*found.schemas[schema_id].arrow, *_BESIDE]) if schema_id else _PLAIN
    _require_plain(stored)
    reader = spark.read.schema(types.to_spark(stored)).option(_VERIFY, "true")
    frame = reader.parquet(*(str(file.path) for file in files))
    if files[0].base < found.starts[shard]:
        frame = frame.where(functions.col("_offset") >= found.starts[shard])
    columns = [_column(found, schema_id, field, shard).alias(field.name) for field in given]
    return frame.select(*columns)


def _column(found: ColdStream, schema_id: int, field: pa.Field, shard: int) -> "Column":
    """A column that is given, of what is stored."""
    from pyspark.sql import functions

    name = field.name
    if name == "_shard":
        return functions.lit(shard).cast("int")
    if name in _COMPANIONS and not schema_id:
        return _named(_COMPANIONS[name])
    if name == "_key" and found.stream.key:
        return _key(found, schema_id)
    if name in METADATA_SCHEMA.names or schema_id == found.stream.schema_id:
        return _named(name)
    return _promoted(found.schemas[schema_id], found.schemas[found.stream.schema_id], name)


def _promoted(old: Schema, new: Schema, name: str) -> "Column":
    """A column of the new schema in rows of the old one."""
    from pyspark.sql import functions

    way, field = promotion(old, new), new.arrow.field(name)
    was = way.sources[name]
    kind = types.to_spark(pa.schema([field])).fields[0].dataType
    if was is None and field.nullable and not default_of(field)[0]:
        return functions.lit(None).cast(kind)
    if was is not None and (field.nullable or not old.arrow.field(was).nullable):
        if name in way.unchanged:
            return _named(was)
        if _is_number(old.arrow.field(was).type) and _is_number(field.type):
            return _named(was).cast(kind)
    raise InvalidSchema(f"column {name!r} of older rows is for the source to make")


def _key(found: ColdStream, schema_id: int) -> "Column":
    """The key of rows that have it in a column of their own, written as the log writes it."""
    new = found.schemas[found.stream.schema_id]
    name = found.stream.key[0]
    kind = new.arrow.field(name).type
    if len(found.stream.key) > 1 or not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
        raise InvalidSchema("a key that is made of these columns is for the source to make")
    column = _named(name) if schema_id == found.stream.schema_id else _promoted(found.schemas[schema_id], new, name)
    return column.cast("string").cast("binary")


def _named(name: str) -> "Column":
    from pyspark.sql import functions

    quoted = name.replace("`", "``")
    return functions.col(f"`{quoted}`")


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _require_plain(columns: pa.Schema) -> None:
    """InvalidSchema unless Spark reads each of these columns from Parquet as the source gives it, by its name."""
    names = [name.lower() for name in columns.names]
    if len(set(names)) < len(names):
        raise InvalidSchema("names that differ in their capitals alone are one to Spark's reader of Parquet")
    for field in columns:
        if not _is_plain(field.type):
            raise InvalidSchema(f"column {field.name!r} is {type_text(field.type)}, which is for the source to read")


def _is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return kind.unit in ("ms", "us")
    if pa.types.is_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind):
        parts = [kind.field(index).type for index in range(kind.num_fields)]
        if pa.types.is_map(kind):
            parts = [kind.key_type, kind.item_type]
        return all(map(_is_plain, parts))
    return kind in _SAME or (pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision)
