"""What batch and streaming reads share: the columns that come, the plan of partitions, and the task that reads one."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.datasource import InputPartition

from mainstem.consume.view import with_metadata
from mainstem.core.errors import DataLoss, InvalidSetting
from mainstem.core.events import Event
from mainstem.core.layouts import FULL_SCHEMA
from mainstem.core.limits import MIB
from mainstem.spark import machine, types
from mainstem.spark.options import ReadOptions
from mainstem.spark.session import cores_told
from mainstem.spark.slices import Slice, balance, read
from mainstem.transport.port import StreamInfo

logger = logging.getLogger("mainstem.spark")

# How many tasks a core has to do: fewer would leave cores idle at the end, each more costs about 10 ms.
_PARTS_PER_CORE: Final = 3
# So little is not worth a task of its own, and no task should have more than that.
_PART_BYTES_MIN: Final = 4 * MIB
_PART_BYTES_MAX: Final = 256 * MIB
# What a loss says to users of consumers.
_AGAIN: Final = "reading goes on after them if you call the consumer again"


class Partition(InputPartition):
    """What one task reads: slices, and how. Can be pickled."""

    def __init__(self, slices: Sequence[Slice], where: str) -> None:
        super().__init__(None)
        self.slices = tuple(slices)
        self.where = where

    def __repr__(self) -> str:
        places = ", ".join(f"{piece.shard}:{piece.first}-{piece.end - 1}" for piece in self.slices[:4])
        more = ", ..." if len(self.slices) > 4 else ""
        return f"<Partition {self.slices[0].stream if self.slices else ''} {places}{more}>"


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a read, in the order of Spark's schema, and that schema as Arrow has it."""

    columns: tuple[str, ...]
    arrow: pa.Schema

    @classmethod
    def of(cls, info: StreamInfo, schema: st.StructType) -> "Shape":
        """InvalidSchema if the stream has not these columns, or not of these types."""
        wanted = types.to_arrow(schema)
        if name := types.not_nullable(schema):
            # Where that is said Spark does not look for nulls.
            raise InvalidSetting(
                f"column {name!r} may be null: a tombstone is a row of nulls, and so may be what is in a column. Leave "
                "NOT NULL out of the schema (in Python nullable=False, containsNull=False, valueContainsNull=False)"
            )
        types.check_castable(with_metadata(all_columns(info)), wanted)
        return cls(tuple(wanted.names), wanted)


def all_columns(info: StreamInfo) -> pa.Schema:
    """The columns of a stream's rows, or of its records if it has no schema."""
    schema = info.schema
    return FULL_SCHEMA if schema is None else pa.schema(list(schema.arrow))


def columns_of(info: StreamInfo, options: ReadOptions) -> pa.Schema:
    """The columns that a read without a schema of the user's gives."""
    rows = all_columns(info)
    known = with_metadata(rows)
    if options.columns is None:
        return known if options.metadata else rows
    for name in options.columns:
        if name not in known.names:
            types.check_castable(known, pa.schema([(name, pa.null())]))
    chosen = pa.schema([known.field(name) for name in options.columns])
    return with_metadata(chosen) if options.metadata else chosen


def planned(slices: Sequence[Slice], options: ReadOptions, where: str) -> list[Partition]:
    """The slices as tasks, of about the same bytes. At least one, which may read nothing: Spark wants one."""
    parts = options.partitions or parts_for(sum(piece.bytes for piece in slices), cores())
    return [Partition(part, where) for part in balance(slices, parts)] or [Partition((), where)]


def parts_for(size: int, cores: int) -> int:
    """How many tasks are best for so many bytes on so many cores."""
    wanted = max(_PARTS_PER_CORE * cores, -(-size // _PART_BYTES_MAX))
    return max(1, min(wanted, -(-size // _PART_BYTES_MIN)))


def cores() -> int:
    """Of the session, as far as that is known here: a planning process is told nothing of it by Spark."""
    return cores_told() or machine.cores()


def batches_of(partition: Partition, shape: Shape, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """What one task yields: batches exactly as Spark expects them."""
    on_loss = None if options.fail_on_data_loss else note_loss
    for piece in partition.slices:
        found = read(piece, shape.columns, partition.where, on_bad=options.on_bad, on_loss=on_loss)
        with losses_for_spark():
            for batch in found:
                yield types.conform(batch, shape.arrow)


@contextlib.contextmanager
def losses_for_spark() -> Iterator[None]:
    """Of what is raised here."""
    try:
        yield
    except DataLoss as loss:
        raise for_spark(loss) from loss.__cause__


def for_spark(loss: DataLoss) -> DataLoss:
    """It says what a query can do about it, which has no consumer that could be called again."""
    text = str(loss).replace(_AGAIN, 'with the option failOnDataLoss="false" the query goes on after them')
    return DataLoss(text, **loss.facts())


def note_loss(loss: DataLoss) -> None:
    """With failOnDataLoss=false."""
    logger.warning(
        Event("records are lost; the query goes on after them", reason=str(loss).removesuffix(f"; {_AGAIN}"))
    )
