"""What is different between two versions of a table: how many rows were added, removed and changed, and how many are
the same.

Only hashes go through Spark's shuffle: one of the columns that tell rows apart, one of the whole row. Rows that occur
more than once are counted as often as they occur.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mainstem.spark.jobs.lake import Lake
from mainstem.spark.jobs.tasks import translated

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# What Spark takes for patterns in the paths that it is given to read.
_PATTERN: Final = re.compile(r"[{}\[\]*?\\]")


@dataclass(frozen=True, slots=True)
class Compared:
    """Rows of a table compared with those of version `before`. Where nothing tells rows apart but all that is in them,
    none is changed: one was removed and another added."""

    before: int
    added: int
    removed: int
    changed: int
    same: int


def compare(spark: "SparkSession", lake: Lake, before: int, after: int, key: Sequence[str] = ()) -> Compared:
    """What has changed between two versions. `key` are columns that tell rows apart; where a version has not all of
    them, whole rows do."""
    from pyspark.sql import functions as f

    old, new = _rows(spark, lake, before), _rows(spark, lake, after)
    names = sorted({*old.columns, *new.columns})
    is_keyed = bool(key) and {*key} <= {*old.columns} & {*new.columns}
    both = _hashed(old, names, key if is_keyed else names, -1).unionByName(
        _hashed(new, names, key if is_keyed else names, 1)
    )
    counts = (f.sum((f.col("side") == side).cast("bigint")).alias(name) for side, name in ((-1, "old"), (1, "new")))
    rows = both.groupBy("key", "row").agg(*counts)
    # Of each key: rows that both have, and what either has beside those.
    least = f.least("old", "new")
    keys = rows.groupBy("key").agg(
        f.sum(least).alias("same"), f.sum(f.col("old") - least).alias("gone"), f.sum(f.col("new") - least).alias("come")
    )
    changed = f.least("gone", "come")
    wanted = {
        "added": f.col("come") - changed,
        "removed": f.col("gone") - changed,
        "changed": changed,
        "same": f.col("same"),
    }
    with translated():
        (found,) = keys.agg(*(f.coalesce(f.sum(each), f.lit(0)).alias(name) for name, each in wanted.items())).collect()
    return Compared(before, **found.asDict())


def _rows(spark: "SparkSession", lake: Lake, version: int) -> "DataFrame":
    """A version of a table, by Spark's own reader of Parquet."""
    from mainstem.spark.jobs.record_frame import spark_schema

    schema, files = lake.at(version)
    if not files:
        return spark.createDataFrame([], spark_schema(schema))
    reader = spark.read.schema(spark_schema(schema)).option("basePath", str(lake.folder.absolute()))
    return reader.parquet(*map(_literal, files))


def _literal(path: Path) -> str:
    """A path that is one to Spark, whatever it has in it."""
    return _PATTERN.sub(r"\\\g<0>", str(path))


def _hashed(rows: "DataFrame", names: Sequence[str], key: Sequence[str], side: int) -> "DataFrame":
    from pyspark.sql import functions as f

    there = {name: _hashable(rows, name) if name in rows.columns else f.lit(None) for name in names}
    return rows.select(
        _hash([there[name] for name in key]).alias("key"),
        _hash([there[name] for name in names]).alias("row"),
        f.lit(side).alias("side"),
    )


def _hash(columns: "Sequence[Column]") -> "Column":
    """A null changes nothing of a hash: that it is one must be said."""
    from pyspark.sql import functions as f

    return f.xxhash64(*(part for column in columns for part in (column.isNull(), column)))


def _hashable(rows: "DataFrame", name: str) -> "Column":
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StructType

    column = rows[f"`{name}`"]
    if isinstance(rows.schema[name].dataType, ArrayType | MapType | StructType):
        # Maps have no hash, and nulls in what is nested would change nothing.
        return f.to_json(f.struct(column), {"ignoreNullFields": "false"})
    return column
