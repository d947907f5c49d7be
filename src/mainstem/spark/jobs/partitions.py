"""Which partition of a table a row belongs to: by the time of its event, or by the shard it came from.

Nothing is exchanged between tasks for it: every task writes a file of its own in each partition that its rows are of. A
row that comes late goes where its time says, whatever the others of its load are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.errors import InvalidSetting
from mainstem.registry.types import type_text

By = Literal["none", "shard", "day", "hour"]
CHOICES: Final[tuple[By, ...]] = ("none", "shard", "day", "hour")

DATE_COLUMN: Final = "_date"
HOUR_COLUMN: Final = "_hour"
SHARD_COLUMN: Final = "_shard"
_TIME_COLUMN: Final = "_timestamp"
# What the table calls the partition of rows without a time.
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"

_COLUMNS: Final[dict[str, tuple[pa.Field, ...]]] = {
    "none": (),
    "shard": (pa.field(SHARD_COLUMN, pa.int32()),),
    "day": (pa.field(DATE_COLUMN, pa.date32()),),
    "hour": (pa.field(DATE_COLUMN, pa.date32()), pa.field(HOUR_COLUMN, pa.int32())),
}
_DAY_US: Final = 86_400_000_000
_STEP_US: Final = {"day": _DAY_US, "hour": _DAY_US // 24}
# The years 1 to 9999, in days since 1970: a table whose log has a date outside of them cannot be opened any more.
_DAYS_MIN: Final = (date.min - date(1970, 1, 1)).days
_DAYS_MAX: Final = (date.max - date(1970, 1, 1)).days


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition: the values of the partition columns, as the table's log writes them."""

    values: tuple[tuple[str, str | None], ...]

    @property
    def path(self) -> str:
        """Its folder in the table; empty if the table has no partitions."""
        return "/".join(f"{name}={_NO_VALUE if value is None else value}" for name, value in self.values)


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How a table is partitioned. `time` is the column with the time of the event; None: that of the record."""

    by: By = "none"
    time: str | None = None

    def __post_init__(self) -> None:
        if self.by not in CHOICES:
            raise InvalidSetting(f"partition (--partition) must be one of {', '.join(CHOICES)}, not {self.by!r}")
        if self.time is not None and self.by not in _STEP_US:
            raise InvalidSetting(
                f"time (--time) is what partition (--partition) day and hour are of, and has no effect with {self.by}: "
                "choose one of these, or leave time out"
            )

    @property
    def time_column(self) -> str:
        return _TIME_COLUMN if self.time is None else self.time

    @property
    def columns(self) -> list[str]:
        return [field.name for field in _COLUMNS[self.by]]

    @property
    def fields(self) -> list[pa.Field]:
        return list(_COLUMNS[self.by])

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns that rows must have to be told apart."""
        return {"none": (), "shard": (SHARD_COLUMN,)}.get(self.by, (self.time_column,))

    def check(self, schema: pa.Schema) -> None:
        """Say what is wrong with these columns, if rows of them cannot be told apart."""
        for name in self.columns:
            if name in schema.names and name != SHARD_COLUMN:
                raise InvalidSetting(
                    f"the rows have a column {name!r}, which partition (--partition) {self.by} would make: leave it "
                    "out with columns (--columns), or choose another partition"
                )
        for name in self.needs:
            if name not in schema.names:
                asked = "time (--time)" if name == self.time_column else "partition (--partition)"
                raise InvalidSetting(
                    f"{asked}: the rows have no column {name!r} to partition by {self.by}; there are "
                    f"{', '.join(schema.names)}"
                )
        if self.by in _STEP_US:
            kind = schema.field(self.time_column).type
            if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
                raise InvalidSetting(
                    f"time (--time): column {self.time_column!r} is {type_text(kind)}, and to partition by {self.by} "
                    "takes a column of times or dates"
                )

    def split(self, rows: pa.RecordBatch) -> Iterator[tuple[Partition, pa.RecordBatch]]:
        """The rows by partition, each part in the order that it had."""
        if self.by == "none" or not rows.num_rows:
            if rows.num_rows:
                yield Partition(()), rows
            return
        if self.by == "shard":
            steps = rows.column(SHARD_COLUMN).cast(pa.int64())
        else:
            steps = _steps(rows.column(self.time_column), _STEP_US[self.by])
        for step, part in _by_step(rows, steps):
            yield self._partition(step), part

    def _partition(self, step: int | None) -> Partition:
        if step is None:
            return Partition(tuple((name, None) for name in self.columns))
        if self.by == "shard":
            return Partition(((SHARD_COLUMN, str(step)),))
        hours = step if self.by == "hour" else step * 24
        values = ((DATE_COLUMN, str(np.datetime64(hours // 24, "D"))),)
        return Partition(values if self.by == "day" else (*values, (HOUR_COLUMN, str(hours % 24))))


def _steps(times: pa.Array, step_us: int) -> pa.Array:
    """Which day or hour since 1970 each time is in; before it, too. None of one whose day no log can say."""
    if pa.types.is_timestamp(times.type):
        # Finer ones only become coarser. A coarser one that is too large is refused with the table's other columns.
        found = times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64())
        moments = _within(found, _DAYS_MIN * _DAY_US, (_DAYS_MAX + 1) * _DAY_US - 1)
    else:
        days = times.cast(pa.date32(), safe=False).cast(pa.int32()).cast(pa.int64())
        moments = pc.multiply(_within(days, _DAYS_MIN, _DAYS_MAX), _DAY_US)
    # Arrow divides towards zero.
    before = pc.multiply(pc.less(moments, 0).cast(pa.int64()), step_us - 1)
    return pc.divide(pc.subtract(moments, before), step_us)


def _within(numbers: pa.Array, least: int, most: int) -> pa.Array:
    """The numbers, null in the place of those outside of these bounds."""
    bounds = pc.min_max(numbers)
    if len(numbers) == numbers.null_count or (bounds["min"].as_py() >= least and bounds["max"].as_py() <= most):
        return numbers
    is_within = pc.and_(pc.greater_equal(numbers, least), pc.less_equal(numbers, most))
    return pc.if_else(is_within, numbers, pa.scalar(None, pa.int64()))


def _by_step(rows: pa.RecordBatch, steps: pa.Array) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    if not steps.null_count:
        bounds = pc.min_max(steps)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        if low == high:  # nearly always: rows come in the order of time, or are of one shard
            yield low, rows
            return
    order = pc.array_sort_indices(steps)
    ordered = steps.take(order)
    ends = pc.run_end_encode(ordered)
    first = 0
    for value, end in zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True):
        # A copy: whoever keeps one part does not keep the memory of all.
        yield value, rows.take(order.slice(first, end - first))
        first = end
