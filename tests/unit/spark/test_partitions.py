"""Rows by partition: the same rows, each where its time or its shard says."""

from datetime import UTC, date, datetime, timedelta

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from mainstem.core.errors import InvalidSetting
from mainstem.spark.jobs.partitions import Partition, Partitioning

TIMES = st.integers(-(10**9), 2 * 10**9).map(
    lambda second: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
)


def _rows(times):
    return pa.record_batch(
        {"ts": pa.array(times, pa.timestamp("us", "UTC")), "place": pa.array(range(len(times)), pa.int64())}
    )


@given(st.lists(st.none() | TIMES, min_size=1, max_size=50))
def test_hours_are_those_of_the_calendar(times):
    """Also before 1970, and where there is no time at all."""
    found = {}
    for partition, rows in Partitioning("hour", "ts").split(_rows(times)):
        assert partition not in found
        assert rows["place"].to_pylist() == sorted(rows["place"].to_pylist())
        found[partition] = rows["place"].to_pylist()
    wanted: dict[Partition, list[int]] = {}
    for place, time in enumerate(times):
        values = (None, None) if time is None else (time.date().isoformat(), str(time.hour))
        wanted.setdefault(Partition((("_date", values[0]), ("_hour", values[1]))), []).append(place)
    assert found == wanted


def test_days_of_dates_and_of_local_times():
    days = [date(1969, 12, 31), date(2026, 1, 31)]
    local = pa.array([1_769_900_400_000] * 2, pa.timestamp("ms"))  # 2026-01-31 23:00
    rows = pa.record_batch({"d": pa.array(days), "l": local})
    assert [part.path for part, _ in Partitioning("day", "d").split(rows)] == ["_date=1969-12-31", "_date=2026-01-31"]
    assert [part.path for part, _ in Partitioning("day", "l").split(rows)] == ["_date=2026-01-31"]


def test_a_time_outside_of_the_years_of_dates_has_no_partition():
    """A table whose log has such a date cannot be opened by anybody."""
    first, last = -62_135_596_800_000_000, 253_402_300_799_999_999
    times = pa.array([-(2**63), first - 1, first, last, last + 1, 2**63 - 1, None], pa.int64()).cast(pa.timestamp("us"))
    days = pa.array([-(2**31), -719_163, -719_162, 2_932_896, 2_932_897, 2**31 - 1, None], pa.int32()).cast(pa.date32())
    rows = pa.record_batch({"t": times, "d": days, "place": pa.array(range(7))})
    wanted = {"_date=0001-01-01": [2], "_date=9999-12-31": [3], "_date=__HIVE_DEFAULT_PARTITION__": [0, 1, 4, 5, 6]}
    for name in ("t", "d"):
        found = {part.path: part_rows["place"].to_pylist() for part, part_rows in Partitioning("day", name).split(rows)}
        assert {path: sorted(places) for path, places in found.items()} == wanted


def test_rows_of_one_partition_are_not_copied():
    rows = _rows([datetime(2026, 1, 31, 5, tzinfo=UTC) + timedelta(minutes=minute) for minute in range(50)])
    ((partition, found),) = Partitioning("hour", "ts").split(rows)
    assert partition.path == "_date=2026-01-31/_hour=5"
    assert found is rows


def test_shards():
    rows = pa.record_batch({"_shard": pa.array([1, 0, 1], pa.int32()), "x": ["a", "b", "c"]})
    found = {part.path: part_rows["x"].to_pylist() for part, part_rows in Partitioning("shard").split(rows)}
    assert found == {"_shard=0": ["b"], "_shard=1": ["a", "c"]}


def test_what_cannot_be():
    rows = pa.schema([("x", pa.int64()), ("_date", pa.string()), ("ts", pa.timestamp("us", "UTC"))])
    with pytest.raises(
        InvalidSetting, match=r"partition \(--partition\) must be one of none, shard, day, hour, not 'week'"
    ):
        Partitioning("week")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="have a column '_date'"):
        Partitioning("day", "ts").check(rows)
    with pytest.raises(InvalidSetting, match=r"partition \(--partition\): the rows have no column '_shard'"):
        Partitioning("shard").check(rows)
    with pytest.raises(
        InvalidSetting, match=r"time \(--time\): the rows have no column 'at' to partition by hour; there are"
    ):
        Partitioning("hour", "at").check(rows.remove(1))
    with pytest.raises(InvalidSetting, match=r"time \(--time\): column 'x' is int64, and to partition by hour takes a"):
        Partitioning("hour", "x").check(rows.remove(1))
    with pytest.raises(InvalidSetting, match=r"time \(--time\) .* has no effect with none: choose one of these"):
        Partitioning("none", "ts")
    Partitioning("day").check(pa.schema([("_timestamp", pa.timestamp("us", "UTC"))]))
