"""Files that become rows of a Delta table in one commit, read back by delta-rs."""

import json
import math
import os
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, Schema, write_deltalake

from mainstem.core.checksum import crc32c
from mainstem.core.errors import SchemaMismatch, TableUnusable
from mainstem.core.limits import MIB
from mainstem.spark.jobs import part_files
from mainstem.spark.jobs.lake import DELETED_COLUMN, Lake
from mainstem.spark.jobs.part_files import Target, write_parts
from mainstem.spark.jobs.partitions import Partitioning

START = datetime(2026, 1, 31, 22, tzinfo=UTC)
SCHEMA = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("x", pa.float64()), ("v", pa.string())])


def _rows(first, count):
    return pa.record_batch(
        [
            pa.array(range(first, first + count), pa.int64()),
            pa.array(
                [START + timedelta(minutes=at, microseconds=7) for at in range(first, first + count)], SCHEMA[1].type
            ),
            pa.array([at / 2 for at in range(first, first + count)]),
            pa.array([f"v{at}" for at in range(first, first + count)]),
        ],
        schema=SCHEMA,
    )


def _target(folder: Path, partitioning, schema=SCHEMA, **given):
    marker = folder / "_mainstem" / "attempts" / "one"
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    return Target(str(folder), "one", str(marker), pa.schema([*schema, *partitioning.fields]), partitioning, **given)


def _table(folder):
    return pa.table(DeltaTable(str(folder)).to_pyarrow_table())


def test_a_load_is_one_commit_and_its_number(tmp_path):
    lake = Lake(tmp_path / "t")
    by_hour = Partitioning("hour", "ts")
    schema = lake.prepare(pa.schema([*SCHEMA, *by_hour.fields]), by_hour.columns)
    assert schema.names == [*SCHEMA.names, "_date", "_hour"]
    files, count = write_parts(_target(lake.folder, by_hour), 0, [_rows(0, 100), _rows(100, 100)])
    assert count == 200
    assert min(file.path.rpartition("/")[0] for file in files) == "_date=2026-01-31/_hour=22"
    assert lake.number_of("j") == 0
    lake.append(files, "j", 1, {"mainstem.end": "c1"})
    assert (lake.number_of("j"), lake.end_of(1, "j"), lake.end_of(2, "j")) == (1, "c1", None)
    found = _table(lake.folder).sort_by("id")
    assert found["id"].to_pylist() == list(range(200))
    assert found["_hour"].to_pylist()[0] == 22
    assert found.select(SCHEMA.names).cast(SCHEMA).to_batches()[0].slice(0, 100).equals(_rows(0, 100))
    assert sum(file.rows for file in files) == found.num_rows


def test_a_number_is_committed_once(tmp_path):
    """Also by a run that looked before another had committed it: it counts what the table has then."""
    lake = Lake(tmp_path / "t")
    lake.prepare(pa.schema([("_key", pa.binary()), ("x", pa.int64())]), [])
    rows = pa.table({"_key": [b"a"], "x": [1], DELETED_COLUMN: [False]})
    assert lake.number_of("j") == Lake(tmp_path / "t").number_of("j") == 0
    lake.upsert(rows, "j", 1, {})
    for number in (0, 1):
        with pytest.raises(TableUnusable, match=f"has load {number} of this job already: another run has committed it"):
            lake.append([], "j", number, {})
        with pytest.raises(TableUnusable, match=f"has load {number} of this job already"):
            lake.upsert(rows, "j", number, {})
    assert lake.version == 1
    # A table that does not decide may have the number from a run that was killed.
    lake.append([], "j", 1, {}, overwrite=True, can_repeat=True)
    lake.append([], "j", 2, {})


@pytest.mark.parametrize("is_merge", [False, True])
def test_a_number_is_committed_once_where_bounds_are_given_up_first(tmp_path, monkeypatch, is_merge):
    """Another run commits the load while this one says which columns have no bounds."""
    lake = Lake(tmp_path / "t")
    rows = pa.table({"_key": [b"a"], "x": [math.inf], DELETED_COLUMN: [False]})
    lake.prepare(rows.drop_columns(DELETED_COLUMN).schema, [], "upsert" if is_merge else "append")
    give_up = lake._leave_unbounded

    def meanwhile(names):
        give_up(names)
        Lake(tmp_path / "t").append([], "j", 1, {})

    monkeypatch.setattr(lake, "_leave_unbounded", meanwhile)
    commit = partial(lake.upsert, rows) if is_merge else partial(lake.append, [])
    with pytest.raises(TableUnusable, match="another run has committed it"):
        commit("j", 1, {})


def test_what_a_table_from_before_was_made_for_is_told_by_its_loads(tmp_path):
    """It has no note of it. Where its loads do not tell either, as in a table of somebody else's, both may be right."""
    keyed = pa.schema([("_key", pa.binary()), ("x", pa.int64())])
    lakes = {}
    for name, schema in (("upsert", keyed), ("append", SCHEMA), ("unknown", keyed)):
        lakes[name] = Lake(tmp_path / name)
        DeltaTable.create(str(tmp_path / name), Schema.from_arrow(schema))
        lakes[name].require_kind([], "append")
        lakes[name].require_kind([], "upsert")
    lakes["upsert"].upsert(pa.table({"_key": [b"a"], "x": [1], DELETED_COLUMN: [False]}), "j", 1, {})
    for name, number in (("upsert", 2), ("append", 1), ("unknown", 1)):
        lakes[name].append([], "j", number, {})
    lakes["upsert"].require_kind([], "upsert")
    with pytest.raises(TableUnusable, match=r"has one row for each key \(mode upsert\)"):
        lakes["upsert"].require_kind([], "append")
    lakes["append"].require_kind([], "append")
    with pytest.raises(TableUnusable, match=r"has every record that was loaded \(mode append\)"):
        lakes["append"].require_kind([], "upsert")
    lakes["unknown"].require_kind([], "upsert")
    lakes["unknown"].require_kind([], "append")


@pytest.fixture
def synced(monkeypatch):
    """Every file and folder that was made durable, by its path."""
    found: set[Path] = set()
    sync = os.fsync

    def fsync(fd):
        found.add(Path(os.readlink(f"/proc/self/fd/{fd}")))
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_every_commit_survives_a_power_cut(tmp_path, synced):
    """Whatever a step adds to the table's folder is on disk when it returns: files, the folders that name them, what
    the log says. delta-rs itself syncs nothing."""
    seen: set[Path] = set()

    def check(folder):
        there = {path for path in (folder, *folder.rglob("*")) if "_mainstem" not in path.parts}
        changed = {*(there - seen), *(path.parent for path in there - seen)}
        assert changed
        assert changed <= synced, changed - synced
        seen.update(there)
        synced.clear()

    lake = Lake(tmp_path / "deep" / "t")
    by_hour = Partitioning("hour", "ts")
    lake.prepare(pa.schema([*SCHEMA, *by_hour.fields]), by_hour.columns)
    check(lake.folder)
    for number in range(1, 11):
        files, _ = write_parts(_target(lake.folder, by_hour), number, [_rows(0, 10)])
        lake.append(files, "j", number, {})
        check(lake.folder)
    assert lake.compact(1 << 27) == 10
    check(lake.folder)
    wider = pa.schema([*SCHEMA, ("more", pa.int64()), *by_hour.fields])
    lake.prepare(wider, by_hour.columns)
    check(lake.folder)

    keyed = Lake(tmp_path / "keyed")
    keyed.prepare(pa.schema([("_key", pa.binary()), ("x", pa.int64())]), [])
    check(keyed.folder)
    for number in (1, 2):
        keyed.upsert(pa.table({"_key": [b"a"], "x": [number], DELETED_COLUMN: [False]}), "j", number, {})
        check(keyed.folder)


def test_what_a_killed_run_committed_is_made_durable_by_the_next(tmp_path, synced):
    Lake(tmp_path / "t").prepare(SCHEMA, [])
    write_deltalake(str(tmp_path / "t"), pa.Table.from_batches([_rows(0, 3)]), mode="append")
    synced.clear()
    Lake(tmp_path / "t").make_durable()
    (file,) = (tmp_path / "t").glob("*.parquet")
    assert {
        file,
        file.parent,
        tmp_path / "t" / "_delta_log" / f"{1:020d}.json",
        tmp_path / "t" / "_delta_log",
    } <= synced


def test_statistics_let_readers_skip_files(tmp_path):
    lake = Lake(tmp_path / "t")
    lake.prepare(SCHEMA, [])
    none = Partitioning("none")
    for number in (1, 2):
        files, _ = write_parts(_target(lake.folder, none), number, [_rows(1_000 * number, 10)])
        stats = json.loads(files[0].stats)
        assert stats["numRecords"] == 10
        assert (stats["minValues"]["id"], stats["maxValues"]["id"]) == (1_000 * number, 1_000 * number + 9)
        assert stats["nullCount"] == {"id": 0, "ts": 0, "x": 0, "v": 0}
        lake.append(files, "j", number, {})
    table = DeltaTable(str(lake.folder))
    assert len(table.file_uris(file_pruning_predicate="id > 1500")) == 1
    assert len(table.file_uris(file_pruning_predicate="x < 600.0")) == 1
    # Bounds of times have milliseconds: the last row, with its microseconds, is not cut off.
    last = _rows(2_000, 10)["ts"][9].as_py()
    assert table.to_pyarrow_dataset().to_table(filter=ds.field("ts") >= last).num_rows == 1


LAST = "\U0010ffff"
# Of each column the values of one file, and of the next.
ODD: dict[str, tuple[list[Any], list[Any]]] = {
    "text": (["b", "", None], ["ä", "b", "z"]),
    "long": (["x" * 40 + "a", "x" * 40 + "b", "x" * 32], [None, "x" * 31, "x" * 33 + LAST]),
    "last": ([LAST * 40, LAST * 32, LAST], ["a" * 32 + LAST, "a" * 32 + LAST * 2 + "b", None]),
    "huge": (["h" * 5_000, "i", None], ["h", "h" * 5_000, "j" * 5_000]),
    "bytes": ([b"b", b"", None], [b"b" * 5_000, b"\xff" * 40, b"c"]),
    "flag": ([True, True, None], [False, True, True]),
    "price": ([Decimal("1.10"), Decimal("-2.35"), None], [Decimal("99999999.99"), Decimal("1.10"), Decimal(0)]),
    "exact": ([Decimal("12345678901234567.891"), Decimal(1), Decimal(2)], [Decimal("0.001"), None, Decimal(1)]),
    "float": ([1.5, math.inf, -2.0], [1.5, None, -math.inf]),
    "gap": ([1.5, math.nan, None], [math.nan, math.nan, None]),
    "day": ([date(1, 1, 1), date(9999, 12, 31), None], [date(2026, 1, 1), None, date(1, 1, 1)]),
    "none": ([None, None, None], [None, "n", None]),
}
ODD_TYPES = {"price": pa.decimal128(10, 2), "exact": pa.decimal128(38, 3), "none": pa.string()}


def _odd_rows(file):
    columns = {name: pa.array(files[file], ODD_TYPES.get(name)) for name, files in ODD.items()}
    keys = pa.array([f"{file}{at}".encode() for at in range(3)])
    return pa.RecordBatch.from_pydict({**columns, "_key": keys})


def _check_found(folder, values):
    """Every value that is there is found by it, and by its absence, with the bounds that the log says of each file."""
    rows = DeltaTable(str(folder)).to_pyarrow_dataset()
    for name, found in values.items():
        assert rows.to_table(filter=ds.field(name).is_null()).num_rows == found.count(None), name
        for value in {each for each in found if each is not None and each == each}:
            same = ds.field(name) == pa.scalar(value, rows.schema.field(name).type)
            assert rows.to_table(filter=same).num_rows == found.count(value), (name, value)


def test_no_bound_hides_a_row(tmp_path):
    """A bound that the log lacks is taken for one that no row keeps, by whoever reads through delta-rs's data set."""
    lake = Lake(tmp_path / "t")
    values = {}
    for number in (0, 1):
        rows = _odd_rows(number)
        lake.prepare(rows.schema, [])
        files, _ = write_parts(_target(lake.folder, Partitioning("none"), rows.schema), number, [rows])
        lake.append(files, "j", number + 1, {})
        values = {name: [each for file in sides[: number + 1] for each in file] for name, sides in ODD.items()}
        _check_found(lake.folder, values)
    # Columns that later files have alone, and that later files have no more.
    more = pa.record_batch({"text": ["b"], "later": ["new"]})
    lake.prepare(more.schema, [])
    files, _ = write_parts(_target(lake.folder, Partitioning("none"), more.schema), 2, [more])
    lake.append(files, "j", 3, {})
    values = {name: [*sides, "b" if name == "text" else None] for name, sides in values.items()}
    values["later"] = [None] * 6 + ["new"]
    _check_found(lake.folder, values)
    assert lake.compact(100 * MIB) == 0
    DeltaTable(str(lake.folder)).optimize.compact()
    assert len(DeltaTable(str(lake.folder)).file_uris()) == 1
    _check_found(lake.folder, values)
    DeltaTable(str(lake.folder)).create_checkpoint()
    _check_found(lake.folder, values)


def test_no_bound_hides_a_row_of_a_merge(tmp_path):
    lake = Lake(tmp_path / "t")
    # pyarrow cannot compare texts and bytes with those in files of delta-rs, which have another type there.
    odd = {name: ODD[name] for name in ("flag", "price", "exact", "float", "gap", "day")}
    for number in (0, 1):
        rows = pa.Table.from_batches([_odd_rows(number)]).select([*odd, "_key"])
        lake.prepare(rows.schema, [], "upsert")
        lake.upsert(rows.append_column(DELETED_COLUMN, pa.array([False] * 3)), "j", number + 1, {})
        values = {name: [each for file in sides[: number + 1] for each in file] for name, sides in odd.items()}
        _check_found(lake.folder, values)


def test_no_bound_hides_a_row_of_a_table_of_many_columns(tmp_path):
    """Of the first 32 delta-rs writes bounds. Where one of those is left out, none moves up: older files have none."""
    lake = Lake(tmp_path / "t")
    names = [f"c{at}" for at in range(40)]
    values: dict[str, list[float]] = {name: [] for name in names}
    for number in (1, 2, 3):
        row = {name: [100.0 * number + at] for at, name in enumerate(names)}
        if number == 2:
            row["c5"] = [math.inf]
        rows = pa.table({**row, "_key": [b"%d" % number]})
        lake.prepare(rows.schema, [], "upsert")
        lake.upsert(rows.append_column(DELETED_COLUMN, pa.array([False])), "j", number, {})
        values = {name: [*found, *row[name]] for name, found in values.items()}
        _check_found(lake.folder, values)


def test_bounds_of_texts_let_readers_skip_files(tmp_path):
    lake = Lake(tmp_path / "t")
    lake.prepare(SCHEMA, [])
    for number in (1, 2):
        files, _ = write_parts(_target(lake.folder, Partitioning("none")), number, [_rows(1_000 * number, 10)])
        lake.append(files, "j", number, {})
    assert len(DeltaTable(str(lake.folder)).file_uris(file_pruning_predicate="v > 'v1500'")) == 1


def test_files_are_closed_at_their_size(tmp_path):
    lake = Lake(tmp_path / "t")
    lake.prepare(SCHEMA, [])
    small = Partitioning("none")
    files, _ = write_parts(_target(lake.folder, small, file_bytes=1), 0, [_rows(0, 300_000), _rows(0, 300_000)])
    assert [file.rows for file in files] == [300_000, 300_000]


def test_a_checksum_is_of_the_whole_file(tmp_path, monkeypatch):
    """However many pieces it is read in."""
    monkeypatch.setattr(part_files, "_CHUNK_BYTES", 1_000)
    (file,), _ = write_parts(_target(tmp_path, Partitioning("none")), 0, [_rows(0, 5_000)])
    content = (tmp_path / file.path).read_bytes()
    assert len(content) > 3_000
    assert (file.bytes, file.crc32c) == (len(content), crc32c(content))


def test_many_partitions_take_bounded_memory_and_a_file_each(tmp_path, monkeypatch):
    """Every batch has rows of a hundred hours, or all of one. What is gathered is written where there is the most."""
    by_hour = Partitioning("hour", "ts")
    target = _target(tmp_path, by_hour)
    batches = [_rows(0, 60 * 100)] * 20
    files, count = write_parts(target, 0, batches)
    assert (len(files), count) == (100, 20 * 60 * 100)
    size = _rows(0, 60 * 100).nbytes
    monkeypatch.setattr(part_files, "_GATHERED_BYTES_MAX", 2 * size)
    monkeypatch.setattr(part_files, "_OPEN_MAX", 10)
    with part_files.PartFiles(target, 1) as bounded:
        for rows in (*batches[:4], *[_rows(0, 60)] * 400, *batches[:1]):
            bounded.write(rows)
            assert bounded.gathered_bytes < 2 * size
            assert bounded.open_files <= 10
    assert sum(file.rows for file in bounded.written) == 5 * 60 * 100 + 400 * 60
    # The hour that has the most is written in large groups, others wait for theirs.
    assert len(bounded.written) < 250


def test_an_error_leaves_no_file(tmp_path):
    target = _target(tmp_path, Partitioning("none"))
    broken = (1 / (3 - at) and _rows(at, 1) for at in range(10))
    with pytest.raises(ZeroDivisionError):
        write_parts(target, 0, broken)
    assert list(tmp_path.rglob("*.parquet")) == []


def test_an_attempt_that_was_given_up_writes_nothing(tmp_path):
    target = _target(tmp_path, Partitioning("none"))
    Path(target.marker).unlink()
    with pytest.raises(TableUnusable, match="was given up: another run has taken its place"):
        write_parts(target, 0, [_rows(0, 10)])
    assert list(tmp_path.rglob("*.parquet")) == []


def test_columns_are_added_and_partitions_are_not_changed(tmp_path):
    lake = Lake(tmp_path / "t")
    lake.prepare(SCHEMA, [])
    files, _ = write_parts(_target(lake.folder, Partitioning("none")), 0, [_rows(0, 3)])
    lake.append(files, "j", 1, {})
    wider = pa.schema([*SCHEMA, ("tags", pa.list_(pa.string()))])
    assert lake.prepare(wider, []).names == [*SCHEMA.names, "tags"]
    before = lake.version
    lake.prepare(wider, [])
    assert lake.version == before
    assert _table(lake.folder)["tags"].to_pylist() == [None] * 3
    with pytest.raises(TableUnusable, match="is partitioned by nothing, not by _shard"):
        lake.prepare(SCHEMA, ["_shard"])
    with pytest.raises(SchemaMismatch, match="column 'id'"):
        lake.prepare(pa.schema([("id", pa.string())]), [])


def test_rows_that_another_job_has_loaded_meanwhile_are_not_replaced(tmp_path):
    """What is not loaded but changed in the table is nobody's: columns, compacted files."""
    lake = Lake(tmp_path / "t")
    lake.prepare(SCHEMA, [])

    def load(job, number, **given):
        files, _ = write_parts(_target(lake.folder, Partitioning("none")), number, [_rows(100 * number, 10)])
        lake.append(files, job, number, {}, **given)

    for number in (1, 2):
        load("other", number)
    seen = lake.version
    DeltaTable(str(lake.folder)).optimize.compact()
    lake.prepare(pa.schema([*SCHEMA, ("more", pa.string())]), [])
    load("j", 1, overwrite=True, since=seen)
    assert sorted(_table(lake.folder)["id"].to_pylist()) == list(range(100, 110))
    load("other", 3)
    with pytest.raises(TableUnusable, match=r"got rows of another job \(other\) .*nothing was replaced, run it again"):
        load("j", 2, overwrite=True, since=seen)
    load("j", 2, overwrite=True, since=lake.version)
    assert sorted(_table(lake.folder)["id"].to_pylist()) == list(range(200, 210))


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(TableUnusable, match=r"no Delta table and not empty: it has 'holiday\.jpg'"):
        Lake(tmp_path).prepare(SCHEMA, [])
    with pytest.raises(TableUnusable, match="is an address"):
        Lake(Path("s3://bucket/t"))
    for odd in ("%41", "[", "^", "|", "\\"):
        with pytest.raises(TableUnusable, match=f"delta-rs cannot read {re.escape(odd)} in the name of a folder"):
            Lake(tmp_path / "50%" / f"{odd}bc")


def test_a_folder_may_have_any_name(tmp_path):
    """delta-rs escapes some characters of it where it says where its files are."""
    lake = Lake(tmp_path / "my täble + 50% #1?")
    lake.prepare(SCHEMA, [])
    for number in range(1, 11):
        files, _ = write_parts(_target(lake.folder, Partitioning("none")), number, [_rows(10 * number, 10)])
        lake.append(files, "j", number, {})
    assert lake.compact(1 << 27) == 10
    assert lake.vacuum(0) == 10
    (file,) = lake.at(lake.version)[1]
    assert list(lake.folder.glob("*.parquet")) == [file]
    assert sorted(_table(lake.folder)["id"].to_pylist()) == list(range(10, 110))
    assert [unquote(uri) for uri in DeltaTable(str(lake.folder)).file_uris()] == [str(file)]


def test_a_vacuum_counts_what_it_deletes_itself(tmp_path):
    """The table's log goes on to know what earlier ones have deleted."""
    lake = Lake(tmp_path / "t")
    lake.prepare(SCHEMA, [])
    for number in (1, 2, 3):
        files, _ = write_parts(_target(lake.folder, Partitioning("none")), number, [_rows(10 * number, 10)])
        lake.append(files, "j", number, {}, overwrite=True)
        assert lake.vacuum(0) == (number > 1)
    assert lake.vacuum(0) == 0
    assert len(list(lake.folder.glob("*.parquet"))) == 1


def test_rows_take_the_place_of_those_of_their_keys(tmp_path):
    lake = Lake(tmp_path / "t")
    lake.prepare(pa.schema([("_key", pa.binary()), ("x", pa.int64())]), [])

    def merge(number, **rows):
        table = pa.table(
            {
                "_key": pa.array([key.encode() for key in rows], pa.binary()),
                "x": pa.array(rows.values(), pa.int64()),
                DELETED_COLUMN: pa.array([value is None for value in rows.values()]),
            }
        )
        lake.upsert(table, "j", number, {})
        assert lake.number_of("j") == number
        return {row["_key"]: row["x"] for row in _table(lake.folder).to_pylist()}

    assert merge(1, a=1, b=2, c=None) == {b"a": 1, b"b": 2}
    assert merge(2, a=None, b=3, d=4) == {b"b": 3, b"d": 4}
    # Nothing changes, and that too is a load.
    assert merge(3, z=None) == {b"b": 3, b"d": 4}


def test_many_small_files_become_large_ones(tmp_path):
    lake = Lake(tmp_path / "t")
    by_day = Partitioning("day", "ts")
    lake.prepare(pa.schema([*SCHEMA, *by_day.fields]), by_day.columns)
    for number in range(1, 13):
        files, _ = write_parts(_target(lake.folder, by_day), number, [_rows(10 * number, 10)])
        lake.append(files, "j", number, {})
    before = _table(lake.folder).sort_by("id")
    assert lake.compact(1 << 27) == 11  # those of the first day; the second has few
    assert len(DeltaTable(str(lake.folder)).file_uris()) <= 3
    assert _table(lake.folder).sort_by("id").equals(before)
    assert lake.number_of("j") == 12
    assert lake.compact(1 << 27) == 0


def test_small_files_of_hours_and_of_no_time_become_large_ones(tmp_path):
    """Rows without a time are in a partition of their own, which no text names."""
    lake = Lake(tmp_path / "t")
    by_hour = Partitioning("hour", "ts")
    lake.prepare(pa.schema([*SCHEMA, *by_hour.fields]), by_hour.columns)
    timeless = [_rows(at, 1).set_column(1, SCHEMA[1], pa.nulls(1, SCHEMA[1].type)) for at in range(100, 109)]
    # The second hour has too few.
    rows = [*(_rows(at, 1) for at in range(9)), *(_rows(at, 1) for at in range(60, 68)), *timeless]
    files = [
        file for part, row in enumerate(rows) for file in write_parts(_target(lake.folder, by_hour), part, [row])[0]
    ]
    lake.append(files, "j", 1, {})
    assert lake.compact(1 << 27) == 18
    left = sorted(Path(path).parent.name for path in DeltaTable(str(lake.folder)).file_uris())
    assert left == ["_hour=22", *["_hour=23"] * 8, "_hour=__HIVE_DEFAULT_PARTITION__"]
    found = _table(lake.folder).sort_by("id")
    assert found["id"].to_pylist() == [*range(9), *range(60, 68), *range(100, 109)]
    assert found["_hour"].to_pylist() == [22] * 9 + [23] * 8 + [None] * 9
    assert lake.compact(1 << 27) == 0


def test_a_load_takes_the_place_of_everything(tmp_path):
    lake = Lake(tmp_path / "t")
    lake.prepare(SCHEMA, [])
    for number in (1, 2):
        files, _ = write_parts(_target(lake.folder, Partitioning("none")), number, [_rows(100 * number, 10)])
        lake.append(files, "j", number, {}, overwrite=True)
    assert sorted(_table(lake.folder)["id"].to_pylist()) == list(range(200, 210))
