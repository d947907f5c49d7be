"""Salvage: what a block holds, without its ledger, however it was damaged; and files that are no blocks."""

import os
import random
import struct
import tracemalloc
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import mainstem
from mainstem.consume.record import Record
from mainstem.core import layouts, payload
from mainstem.core.batch import BatchHeader, FetchedBatch
from mainstem.core.checksum import crc32c
from mainstem.core.errors import FolderUnusable, InvalidRequest
from mainstem.log.frame import (
    BLOCK_HEADER_BYTES,
    FRAME_BYTES,
    BlockHeader,
    FlushWriter,
    FrameHeader,
    FrameKind,
    parse_header,
)
from mainstem.log.log import Log, Waiter
from mainstem.log.salvage import SALVAGED_SCHEMA, Salvage, SalvageReport, names_beside, write_parquet
from tests.unit.log.parts import LOG_UUID, NOW_US, make_batch, make_place, make_stream


def salvage(path: Path, output: Path, **options) -> tuple[SalvageReport, list[dict]]:
    found = Salvage(path, **options)
    try:
        report = write_parquet(found, output)
    finally:
        found.close()
    table = pq.read_table(output)
    assert table.schema.equals(SALVAGED_SCHEMA)
    output.unlink()
    rows = table.to_pylist()
    assert len(rows) == report.records
    return report, rows


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, dict[tuple[str, int, int], Record]]:
    """A block that was closed, and its records as a reader sees them."""
    folder = tmp_path_factory.mktemp("salvage") / "data"
    expected = {}
    with mainstem.open(folder) as hub:
        hub.streams.create("orders", shards=2)
        # Some of its times are of 1970.
        hub.streams.create("clicks", retention="40000d")
        with hub.producer() as producer:
            for number in range(400):
                key = None if number % 5 else b"key %d" % number
                headers = {"n": b"%d" % number} if number % 7 == 0 else None
                producer.send("orders", b"order %d" % number * (number % 9), key=key, headers=headers).result()
                if number % 10 == 0:
                    producer.send("clicks", None, key="k", timestamp=number)
            producer.flush()
        for stream in ("orders", "clicks"):
            for record in hub.consumer(stream, start="earliest", follow=False):
                expected[stream, record.shard, record.offset] = record
    return folder / "blocks" / "0000000000000001.block", expected


def matches(row: dict, expected) -> None:
    """A salvaged record is one that a reader sees, wholly."""
    record = expected[row["stream"], row["shard"], row["offset"]]
    assert (row["key"], row["value"]) == (record.key, record.value)
    assert dict(row["headers"] or ()) == dict(record.headers or {})
    assert row["timestamp"] == record.timestamp


def test_a_whole_block(written, tmp_path):
    path, expected = written
    report, rows = salvage(path, tmp_path / "out")
    for row in rows:
        matches(row, expected)
    assert len(rows) == len(expected)
    assert (report.damaged_count, report.records_without_offset, report.has_footer) == (0, 0, True)
    assert {row["stream_id"] for row in rows} == {1, 2}
    assert all(row["flush"] > 2 for row in rows)


def test_a_block_with_a_damaged_header(written, tmp_path):
    path, expected = written
    content = path.read_bytes()
    (tmp_path / "block").write_bytes(b"\xff" * BLOCK_HEADER_BYTES + content[BLOCK_HEADER_BYTES:])
    report, rows = salvage(tmp_path / "block", tmp_path / "out", names={1: "orders", 2: "clicks"})
    for row in rows:
        matches(row, expected)
    assert len(rows) == len(expected)
    assert report.damaged == [(0, 64, "not a block")]
    assert report.block == 1
    # Without the header nothing says that ids count from 1 here.
    assert {row["stream"] for row in salvage(tmp_path / "block", tmp_path / "out")[1]} == {None}


def test_cut_anywhere(written, tmp_path):
    """What lies before the cut is there, without offsets: the footer is gone."""
    path, expected = written
    content = path.read_bytes()
    values = {(stream, shard, record.value) for (stream, shard, _), record in expected.items()}
    for seed in range(25):
        size = random.Random(seed).randrange(BLOCK_HEADER_BYTES, len(content))
        (tmp_path / "block").write_bytes(content[:size])
        report, rows = salvage(tmp_path / "block", tmp_path / "out")
        whole = [header for header in _frames(content) if header.position + header.total_len <= size]
        data = [header for header in whole if header.kind == FrameKind.DATA]
        # The last payload may be whole though its padding is not.
        assert sum(header.count for header in data) <= len(rows) <= sum(header.count for header in data) + 1
        assert {row["offset"] for row in rows} <= {None}
        assert {(row["stream"], row["shard"], row["value"]) for row in rows} <= values
        assert report.records_without_offset == len(rows)
        assert report.damaged_count <= 1


def test_flipped_anywhere(written, tmp_path):
    path, expected = written
    content = path.read_bytes()
    footer = next(header for header in _frames(content) if header.kind == FrameKind.FOOTER)
    names = {1: "orders", 2: "clicks"}
    for seed in range(25):
        rng = random.Random(seed)
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 5)):
            damaged[rng.randrange(BLOCK_HEADER_BYTES, footer.position)] ^= 1 << rng.randrange(8)
        (tmp_path / "block").write_bytes(damaged)
        report, rows = salvage(tmp_path / "block", tmp_path / "out", names=names)
        assert report.damaged_count <= 5
        assert len(rows) >= len(expected) - 10
        for row in rows:
            matches(row, expected)


def test_behind_a_damaged_header_offsets_are_counted_from_the_end(tmp_path):
    path, headers = _block(tmp_path, [3, 4, 5, 6])
    content = bytearray(path.read_bytes())
    content[headers[1].position + 20] ^= 1
    path.write_bytes(content)
    report, rows = salvage(path, tmp_path / "out")
    assert [row["offset"] for row in rows] == [*range(100, 103), *range(107, 118)]
    assert [begin for begin, *_ in report.damaged] == [headers[1].position]
    # Two of them: what lies between cannot be placed, and nothing is guessed.
    content[headers[3].position + 20] ^= 1
    path.write_bytes(content)
    assert [row["offset"] for row in salvage(path, tmp_path / "out")[1]] == [100, 101, 102]


def test_batches_that_the_log_refused_are_left_out(tmp_path):
    path, _ = _block(tmp_path, [3, 4], listed=1)
    report, rows = salvage(path, tmp_path / "out")
    assert [row["offset"] for row in rows] == [100, 101, 102]
    assert report.batches_left_out == 1


def test_moved_batches_know_their_offsets(tmp_path):
    """Also those from which records were compacted away, and without a footer."""
    import pyarrow as pa

    records = layouts.build([b"a", b"b"]).append_column("offset", pa.array([1, 4], pa.uint32()))
    encoded = payload.encode(records, None)
    header = BatchHeader(7, 1, 2, encoded.encoding, encoded.layout, 0, encoded.raw_len, len(encoded.payload),
        crc32c(encoded.payload), 0, 0, 0, 0, NOW_US, NOW_US, span=6)  # fmt: skip
    writer = FlushWriter(make_place(5), BLOCK_HEADER_BYTES)
    writer.add_moved(1000, header, encoded.payload)
    writer.add_commit(NOW_US, 0, 0)
    path = _write(tmp_path / "block", 5, writer)
    _, rows = salvage(path, tmp_path / "out")
    assert [(row["offset"], row["value"], row["shard"]) for row in rows] == [(1001, b"a", 1), (1004, b"b", 1)]
    assert FetchedBatch(1000, header, b"").end == 1006


def test_batches_of_transactions_are_named_as_what_they_are(tmp_path):
    """A block cannot say of what was staged in it whether another block committed it."""
    log = Log(tmp_path / "data")
    make_stream(log)
    for transaction in (5, 6, 7):
        waiter = Waiter()
        log.stage(transaction, 0, [make_batch([b"%d" % transaction] * 2)], waiter.set)
        waiter.wait(log.batcher)
    log.abort_transaction(6)
    for transaction in (5, 7):
        waiter = Waiter()
        log.commit_transaction(transaction, 1, (), waiter.set)
        waiter.wait(log.batcher)
        log.batcher.request_roll()
        log.commit_nothing()
    log.close()
    report, rows = salvage(tmp_path / "data" / "blocks" / "0000000000000001.block", tmp_path / "out")
    assert [(row["value"], row["offset"]) for row in rows] == [
        (b"5", 0), (b"5", 1), (b"6", None), (b"6", None), (b"7", None), (b"7", None),
    ]  # fmt: skip
    assert (report.batches_staged, report.batches_left_out, report.records_without_offset) == (2, 0, 4)


def test_names_come_from_the_folder_around_the_block(written):
    path, _ = written
    assert names_beside(path) == {1: "orders", 2: "clicks"}
    assert names_beside(Path("/nowhere/at/all.block")) == {}


def test_names_are_only_taken_where_ids_begin(tmp_path):
    with mainstem.open(tmp_path / "data") as hub:
        for name in ("a", "b"):
            hub.streams.create(name)
        hub.streams.delete("a")
        hub.streams.create("a")
        producer = hub.producer()
        for name in ("a", "b"):
            producer.send(name, name.encode()).result()
    _, rows = salvage(tmp_path / "data" / "blocks" / "0000000000000001.block", tmp_path / "out")
    assert {(row["stream_id"], row["stream"], row["value"]) for row in rows} == {(3, "a", b"a"), (2, "b", b"b")}


@pytest.mark.parametrize("content", [b"", b"x", b"MSBLOCK1", b"MSF1" * 100_000, bytes(1 << 20), os.urandom(1 << 20)])
def test_what_is_no_block(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(FolderUnusable, match="is not a block"):
        Salvage(tmp_path / "file")
    with pytest.raises(InvalidRequest, match=r"test_what_is_no_block.* is a folder; name one block file, as in data/b"):
        Salvage(tmp_path)


def test_an_output_that_cannot_be_is_named_as_it_was_given(written, tmp_path):
    found, output = Salvage(written[0]), tmp_path / "nope" / "out"
    with pytest.raises(FileNotFoundError) as caught:
        write_parquet(found, output)
    found.close()
    assert caught.value.filename == str(output)


def test_the_output_is_new_and_whole(written, tmp_path):
    (tmp_path / "out").write_text("mine")
    found = Salvage(written[0])
    with pytest.raises(InvalidRequest, match="is there already"):
        write_parquet(found, tmp_path / "out")
    found.close()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("field", ["stored_len", "raw_len", "count", "stream", "flush", "shard", "producer"])
@pytest.mark.parametrize("kind", [FrameKind.DATA, FrameKind.MOVED, FrameKind.FOOTER])
def test_numbers_made_to_harm(tmp_path, field, kind):
    """Valid checksums, and the largest number a field can hold: nothing is allocated for it."""
    path, headers = _block(tmp_path, [3, 4])
    content = bytearray(path.read_bytes())
    frame = headers[0] if kind != FrameKind.FOOTER else list(_frames(bytes(content)))[-1]
    place = {"count": (28, 4), "stored_len": (32, 4), "raw_len": (36, 4), "shard": (24, 4), "stream": (16, 8),
        "flush": (96, 8), "producer": (48, 8)}[field]  # fmt: skip
    at = frame.position
    content[at + 9] = kind
    content[at + place[0] : at + sum(place)] = b"\xff" * place[1]
    struct.pack_into("<I", content, at + 4, crc32c(content[at + 8 : at + FRAME_BYTES]))
    path.write_bytes(content)
    tracemalloc.start()
    report, rows = salvage(path, tmp_path / "out")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20
    assert len(rows) <= 7
    if kind == FrameKind.DATA and field != "producer":
        assert report.damaged_count + report.batches_left_out > 0


def test_a_footer_made_to_harm(tmp_path):
    worst = [(1 << 63) - 1, -(1 << 63), -1, 0, 1]
    for seed in range(50):
        rng = random.Random(seed)
        rows = b"".join(struct.pack("<6q", *(rng.choice([*worst, 64, 100, 7]) for _ in range(6))) for _ in range(50))
        path, _ = _block(tmp_path, [3, 4], footer=rows + bytes(rng.choice([0, 0, 5])))
        salvage(path, tmp_path / "out")


def _block(tmp_path: Path, counts: list[int], *, listed: int | None = None, footer: bytes | None = None):
    """A sealed block with one entry from offset 100 on, of batches with so many records."""
    writer = FlushWriter(make_place(5), BLOCK_HEADER_BYTES)
    for count in counts:
        batch = make_batch([b"%d" % number for number in range(count)], stream=7)
        writer.add_data(batch.header, batch.payload)
    ends = [*writer.positions[1:], writer.end]
    taken = counts[: listed or len(counts)]
    length = ends[len(taken) - 1] - BLOCK_HEADER_BYTES
    writer.add_commit(NOW_US, 0, 0)
    entry = struct.pack("<6q", 7, 0, 100, sum(taken), BLOCK_HEADER_BYTES, length)
    writer.add_footer(entry if footer is None else footer, 1, NOW_US)
    path = _write(tmp_path / "block", 5, writer)
    return path, [header for header in _frames(path.read_bytes()) if header.kind == FrameKind.DATA]


def _write(path: Path, number: int, writer: FlushWriter) -> Path:
    header = BlockHeader(number, bytes.fromhex(LOG_UUID), 1, 1, 2, NOW_US)
    path.write_bytes(header.pack() + b"".join(bytes(buffer) for buffer in writer.buffers))
    return path


def _frames(content: bytes) -> list[FrameHeader]:
    number = BlockHeader.parse(content).block
    found, at = [], BLOCK_HEADER_BYTES
    while at < len(content):
        found.append(parse_header(content, at, at, number))
        at += found[-1].total_len
    return found
