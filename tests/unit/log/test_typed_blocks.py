"""Blocks with rows: they say their schemas themselves, and can be read without a ledger."""

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstem.core import layouts
from mainstem.core.batch import Batch
from mainstem.core.errors import InvalidRequest
from mainstem.core.limits import MIB
from mainstem.core.schema import Schema
from mainstem.core.schema import described as described_field
from mainstem.log import batcher
from mainstem.log.doctor import examine
from mainstem.log.flush import AlterStream, Appended, CreateStream, DescribeSchema, Rejected, SetSchema
from mainstem.log.ledger.inspector import LedgerInspector
from mainstem.log.log import Log, LogOptions, Waiter
from mainstem.log.rebuild import rebuild
from mainstem.log.replacement import grouped
from mainstem.log.salvage import Salvage, names_beside, schemas_beside, write_parquet
from mainstem.log.scan import BlockScanner
from tests.unit.log.parts import NOW_US, append, encode_batch, make_batch, make_blocks, values_of

FIRST = Schema(pa.schema([("id", pa.int64()), ("_flush", pa.string())]))
SECOND = Schema(FIRST.arrow.append(pa.field("amount", pa.float64())))


def rows(log: Log, stream: int, schema: Schema, ids: list[int], *, shard: int = 0, headers: bool = False) -> Batch:
    row = log.reader.require_stream(stream)
    columns = {"id": ids, "_flush": [f"row {number}" for number in ids], "amount": [number / 2 for number in ids]}
    arrays = [pa.array(columns[field.name], field.type) for field in schema.arrow]
    fields = [field.remove_metadata() for field in schema.arrow]
    if headers:
        arrays.append(pa.array([[("a", b"1")]] * len(ids), layouts.HEADERS_TYPE))
        fields.append(layouts.ROW_HEADERS)
    decoded = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    schema_id = log._ledger.schema_with(schema.fingerprint) or 0
    place = {"stream": stream, "shard": shard, "generation": row.generation, "schema_id": schema_id}
    return encode_batch(decoded, schema, compression=None, **place)


def filled(path, options=None) -> Log:
    """Records without a schema, rows of the first version and of the second."""
    log = Log(path, options)
    command = CreateStream(
        "0" * 32, "orders", 2, "crc32", 10**15, NOW_US, schema=FIRST.serialized, fingerprint=FIRST.fingerprint
    )
    stream = log.execute(command).stream
    assert append(log, make_batch([b"{}", b"[]"], stream=stream)) == [Appended(0)]
    assert append(log, rows(log, stream, FIRST, [1, 2, 3])) == [Appended(2)]
    log.execute(SetSchema(stream, SECOND.serialized, SECOND.fingerprint, 2, NOW_US))
    assert append(log, rows(log, stream, SECOND, [4, 5], headers=True)) == [Appended(5)]
    assert append(log, rows(log, stream, FIRST, [6], shard=1)) == [Appended(0)]
    return log


def described(path) -> dict[int, list[int]]:
    """For every block the ids of the schemas that it says, in order."""
    blocks = make_blocks(path)
    try:
        return {
            block: [
                item.id
                for read in BlockScanner(blocks, block).flushes()
                for item in read.flush.items
                if isinstance(item, DescribeSchema)
            ]
            for block in blocks.list()
        }
    finally:
        blocks.close()


def test_a_block_says_each_schema_once_before_its_first_rows(tmp_path):
    log = filled(tmp_path)
    for number in range(3):
        append(log, rows(log, 1, SECOND, [number]), rows(log, 1, FIRST, [number]))
    log.close()
    assert described(tmp_path) == {1: [1, 2]}
    log = Log(tmp_path)
    append(log, rows(log, 1, SECOND, [9]))
    append(log, rows(log, 1, SECOND, [10]))
    log.close()
    assert described(tmp_path) == {1: [1, 2], 2: [2]}


def with_large_schemas(path, count: int, options: LogOptions | None = None) -> tuple[Log, list[Schema]]:
    """A stream with so many versions of its schema, each of a hundred times the bytes of a row."""
    log = Log(path, options)
    stream = log.execute(CreateStream("0" * 32, "orders", 1, "crc32", 10**15, NOW_US)).stream
    schemas = []
    for version in range(1, count + 1):
        field = described_field(pa.field("id", pa.int64()), doc=f"{version} " + "x" * 100_000)
        schemas.append(Schema(pa.schema([field])))
        log.execute(SetSchema(stream, schemas[-1].serialized, schemas[-1].fingerprint, version, NOW_US))
    assert all(100_000 < len(schema.serialized) < 101_000 for schema in schemas)
    return log, schemas


def test_what_says_schemas_counts_in_the_limit_of_a_flush(tmp_path, monkeypatch):
    monkeypatch.setattr(batcher, "FLUSH_BYTES_MAX", 250_000)
    log, schemas = with_large_schemas(tmp_path, 4)
    before = log.counters()["flushes_applied"]
    waiters = [Waiter() for _ in range(12)]
    for number, waiter in enumerate(waiters):
        # Each schema three times in a row: it is said, and counted, once.
        log.append([rows(log, 1, schemas[number // 3], [number])], waiter.set)
    assert [waiter.wait(log.batcher) for waiter in waiters] == [[Appended(number)] for number in range(12)]
    assert log.counters()["flushes_applied"] - before == 2
    assert log.batcher.pending_bytes == 0
    log.close()


def test_what_says_schemas_counts_in_the_size_of_a_block(tmp_path):
    log, schemas = with_large_schemas(tmp_path, 30, LogOptions(block_bytes=MIB))
    log.batcher.request_roll()
    for schema in schemas:
        # Once it is said it takes no room any more.
        for _ in range(3):
            append(log, rows(log, 1, schema, [1]))
    log.close()
    _, *sizes = [path.stat().st_size for path in sorted((tmp_path / "blocks").glob("*.block"))]
    assert len(sizes) == 3
    assert max(sizes) < MIB


def test_a_batch_of_a_schema_that_nobody_has_is_refused_and_described_by_nobody(tmp_path):
    log = filled(tmp_path)
    batch = rows(log, 1, FIRST, [1])
    header = msgspec.structs.replace(batch.header, schema_id=99)
    (outcome,) = append(log, Batch(header, batch.payload))
    assert isinstance(outcome, Rejected)
    assert "never had schema 99" in str(outcome.error)
    log.close()
    assert described(tmp_path) == {1: [1, 2]}


def salvaged(block, output, **beside):
    found = Salvage(block, **beside)
    try:
        return write_parquet(found, output)
    finally:
        found.close()


def test_salvage_writes_rows_to_a_file_for_each_schema(tmp_path):
    filled(tmp_path / "data").close()
    block = tmp_path / "data" / "blocks" / "0000000000000001.block"
    report = salvaged(block, tmp_path / "out.parquet")
    assert (report.records, report.damaged_count) == (8, 0)
    files = {1: tmp_path / "out.schema-1.parquet", 2: tmp_path / "out.schema-2.parquet"}
    assert report.row_files == {schema: str(path) for schema, path in files.items()}
    assert report.rows == {schema: pq.read_table(path).num_rows for schema, path in files.items()}
    plain = pq.read_table(tmp_path / "out.parquet")
    assert plain.column("value").to_pylist() == [b"{}", b"[]"]
    first, second = (pq.read_table(path) for path in files.values())
    assert first.column("id").to_pylist() == [1, 2, 3, 6]
    assert first.column("_offset").to_pylist() == [2, 3, 4, 0]
    assert first.column("_shard").to_pylist() == [0, 0, 0, 1]
    # A column of the rows keeps its name.
    assert first.column("_flush").to_pylist() == ["row 1", "row 2", "row 3", "row 6"]
    assert len(set(first.column("_flush_").to_pylist())) == 2
    assert second.select(["id", "amount", "_stream", "_headers"]).to_pylist() == [
        {"id": 4, "amount": 2.0, "_stream": "orders", "_headers": [("a", b"1")]},
        {"id": 5, "amount": 2.5, "_stream": "orders", "_headers": [("a", b"1")]},
    ]
    assert set(second.column("_timestamp").cast(pa.int64()).to_pylist()) == {NOW_US}
    assert not list(tmp_path.glob("*.part"))


def test_salvage_leaves_nothing_if_one_of_its_files_is_there(tmp_path):
    filled(tmp_path / "data").close()
    (tmp_path / "out.schema-2.parquet").write_text("mine")
    with pytest.raises(InvalidRequest, match="is there already"):
        salvaged(tmp_path / "data" / "blocks" / "0000000000000001.block", tmp_path / "out.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out.schema-2.parquet"]


def test_rows_of_a_schema_whose_description_is_damaged(tmp_path):
    """They are counted, unless a ledger beside the block knows it."""
    log = filled(tmp_path / "data")
    log.close()
    block = tmp_path / "data" / "blocks" / "0000000000000001.block"
    content = bytearray(block.read_bytes())
    at = content.index(b"describe_schema")
    content[at] ^= 1
    block.write_bytes(content)
    report = salvaged(block, tmp_path / "alone")
    assert report.records == 4
    assert sum("schema 1, which the block does not say" in reason for _, _, reason in report.damaged) == 2
    assert schemas_beside(block) == {1: FIRST, 2: SECOND}
    report = salvaged(block, tmp_path / "beside", names=names_beside(block), schemas=schemas_beside(block))
    assert report.records == 8
    assert report.damaged_count == 1


def test_a_ledger_made_anew_has_the_same_schemas_and_generations(tmp_path):
    log = filled(tmp_path)
    log.execute(AlterStream(1, shards=4))
    append(log, rows(log, 1, SECOND, [7], shard=3))
    before = shape(log)
    log.close()
    rebuild(tmp_path)
    log = Log(tmp_path)
    assert shape(log) == before
    log.close()


def shape(log: Log):
    row = log.ledger.load_stream(1)
    return row, list(log.ledger.load_versions(1)), list(log.ledger.load_generations(1)), log.schema(2)


def findings(path):
    return [finding.what for finding in examine(path, deep=True).findings if finding.code == "ledger-rows"]


@pytest.fixture
def folder(tmp_path):
    log = filled(tmp_path)
    log.execute(AlterStream(1, shards=4))
    log.close()
    assert findings(tmp_path) == []
    return tmp_path


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("DELETE FROM schemas WHERE id = 1", "entries of stream 1 have schema 1, which the stream never had"),
        ("DELETE FROM stream_schemas WHERE version = 1", "stream 1 has version 2 of its schema"),
        ("UPDATE streams SET schema_version = 3", "stream 1 has version 3 of its schema"),
        ("UPDATE streams SET schema_id = 1", "stream 1 has version 2 of its schema"),
        ("UPDATE schemas SET arrow = x'00' WHERE id = 2", "schema 2 cannot be read"),
        ("DELETE FROM generations", "stream 1 is of generation 1, and 0 of its changes are noted"),
    ],
)
def test_the_doctor_compares_schemas_and_generations(folder, change, what):
    log = Log(folder)
    log._ledger._db.execute(change)
    log.close()
    assert any(what in found for found in findings(folder)), findings(folder)


def test_the_inspector_leaves_out_schemas_that_cannot_be_read(folder):
    log = Log(folder)
    log._ledger._db.execute("UPDATE schemas SET arrow = x'00' WHERE id = 2")
    log.close()
    inspector = LedgerInspector(folder / "ledger.db")
    assert inspector.list_schemas() == {1: FIRST}
    inspector.close()


def test_what_is_merged_is_from_one_side_of_a_barrier(tmp_path):
    """A batch that reached over a barrier would bring records from behind it too early."""
    log = Log(tmp_path, LogOptions())
    stream = log.execute(CreateStream("0" * 32, "orders", 1, "crc32", 10**15, NOW_US)).stream
    append(log, make_batch([b"1"], stream=stream), make_batch([b"2"], stream=stream))
    log.execute(AlterStream(stream, shards=2))
    append(log, make_batch([b"3"], stream=stream, generation=1))
    batches = log.reader.read(log.reader.require_stream(stream), 0, 0)
    assert [[values_of(batch) for batch in group] for group in grouped(batches, {2})] == [[[b"1"], [b"2"]], [[b"3"]]]
    log.close()
