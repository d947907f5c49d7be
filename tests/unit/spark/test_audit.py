"""What an audit makes of the tables it is given, before any of it is counted by Spark."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from mainstem.core.errors import SchemaMismatch, TableUnusable
from mainstem.spark.jobs.audit import _About, _opened_table, _tally_of_file
from mainstem.transport.counting import LOG_TIER

SECOND_US = 1_000_000
TIMES = pa.array([datetime(2026, 3, 1, 12, 0, second, tzinfo=UTC) for second in (1, 1, 3)], pa.timestamp("us", "UTC"))


@pytest.fixture
def table(tmp_path) -> Path:
    write_deltalake(str(tmp_path / "table"), pa.table({"_timestamp": TIMES, "day": ["a b"] * 3}), partition_by=["day"])
    return tmp_path / "table"


def commit(table: Path, *actions: dict[str, object]) -> None:
    """Add a version to a table, as another program would."""
    version = DeltaTable(str(table)).version() + 1
    lines = "".join(json.dumps(action) + "\n" for action in actions)
    (table / "_delta_log" / f"{version:020d}.json").write_text(lines)


@pytest.mark.parametrize(
    ("feature", "words"), [("deletionVectors", "deletion vectors"), ("columnMapping", "column mapping")]
)
def test_a_table_whose_files_are_not_its_rows_is_refused(table, feature, words):
    """Rows that a deletion vector marks are deleted, and still in the file; mapped columns have other names there."""
    _opened_table(str(table), "_timestamp")
    features = [feature, "timestampNtz"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    commit(table, {"protocol": protocol})
    with pytest.raises(TableUnusable, match=rf"/table has {words}, .* \(ALTER TABLE .* DROP FEATURE {feature}\), or"):
        _opened_table(str(table), "_timestamp")


def test_a_table_from_before_there_were_features_says_by_a_property_that_columns_are_mapped(table):
    (metadata,) = [
        action["metaData"]
        for action in map(json.loads, (table / "_delta_log" / f"{0:020d}.json").read_text().splitlines())
        if "metaData" in action
    ]
    fields = json.loads(metadata["schemaString"])
    for number, field in enumerate(fields["fields"], 1):
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
    mapped = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    commit(
        table,
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        {"metaData": metadata | {"schemaString": json.dumps(fields), "configuration": mapped}},
    )
    with pytest.raises(TableUnusable, match="has column mapping"):
        _opened_table(str(table), "_timestamp")


def test_a_column_of_partitions_has_no_times(table):
    with pytest.raises(SchemaMismatch, match=r"/table is partitioned by 'day', .*; name the column that has"):
        _opened_table(str(table), "day")


def test_rows_from_before_the_column_of_times_have_none(table):
    """Their file has no such column, and is a file of the table all the same."""
    lake = DeltaTable(str(table))
    lake.alter.add_columns([Field("at", PrimitiveType("timestamp"))])
    write_deltalake(str(table), pa.table({"_timestamp": TIMES, "day": ["c"] * 3, "at": TIMES}), mode="append")
    files = _opened_table(str(table), "at").file_uris()
    first_us = int(TIMES[0].as_py().timestamp()) * SECOND_US
    found = {first_us: 2, first_us + 2 * SECOND_US: 1}
    assert [_tally_of_file(file, "_timestamp", SECOND_US) for file in files] == [found, found]
    assert sorted((_tally_of_file(file, "at", SECOND_US) for file in files), key=len) == [{}, found]


@pytest.mark.parametrize("address", ["file://{}", "file:{}", "file://localhost{}", "FILE://{}"])
def test_the_address_of_a_folder_is_the_folder(tmp_path, address):
    """The same table has one name, and is one that jobs write."""
    folder = tmp_path / "lake of orders"
    given = address.format(str(folder).replace(" ", "%20"))
    assert _About.of([given], []) == _About({str(folder): str(folder)}, ())
    assert _About.of([], [given, folder]).forgotten == (str(folder),)
    assert _About.of([Path(f"file://{folder}")], []).tiers == (LOG_TIER, str(folder))
    assert _About.of(["s3://bucket/a%20b"], []).tables == {"s3://bucket/a%20b": "s3://bucket/a%20b"}
