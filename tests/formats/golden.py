"""Golden folders: one data folder per format, as a program of that format left it, and what must be found in it.

`tests/testdata/format-<n>.tar.xz` is the folder, `format-<n>.json` what it holds. `tools/golden.py` makes both.
"""

import hashlib
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mainstem.consume.record import Record, RecordBatch
from mainstem.core import layouts, payload
from mainstem.core.batch import Batch, BatchHeader, FetchedBatch
from mainstem.core.checksum import crc32c
from mainstem.core.errors import DataLoss
from mainstem.log.batcher import Submission
from mainstem.log.flush import Appended, Outcome
from mainstem.log.folder import FORMAT
from mainstem.log.log import Log, LogOptions, Waiter
from mainstem.testing.clock import START_US, SimulatedClock

TESTDATA = Path(__file__).parents[1] / "testdata"
# Blocks, checkpoints and snapshots are small, so that a small folder has several of each.
OPTIONS = LogOptions(block_bytes=64 << 10, checkpoint_bytes=96 << 10, snapshot_bytes=160 << 10)

# Where an upgrade keeps a folder of an older format.
BACKUP = f"before-format-{FORMAT}"

# What later formats say of a stream, and what streams of earlier ones have.
_LATER: tuple[tuple[str, Any], ...] = (
    ("retention_bytes", 0),
    ("cleanup", "delete"),
    ("tombstone_us", 0),
    ("schema_version", 0),
    ("key", []),
    ("index", []),
    ("compatibility", "backward"),
    ("generation", 0),
)


def formats() -> list[int]:
    """Every format of which there is a golden folder."""
    return sorted(int(path.stem.removeprefix("format-")) for path in TESTDATA.glob("format-*.json"))


def expected(number: int) -> Any:
    """What the golden folder of a format holds."""
    return json.loads((TESTDATA / f"format-{number}.json").read_text())


def unpack(number: int, target: Path) -> Path:
    """The golden folder of a format as it was left, at `target`."""
    with tarfile.open(TESTDATA / f"format-{number}.tar.xz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(target, filter="data")
        else:  # before 3.11.4
            archive.extractall(target)  # our own archive
    return target


def clock(number: int) -> SimulatedClock:
    """A clock that stands a minute after the folder was written: nothing in it is too old yet."""
    return SimulatedClock(expected(number)["written_us"] + 60_000_000)


def content(log: Log) -> list[dict[str, Any]]:
    """Everything readers can see of a log, in a form that JSON keeps."""
    return [
        {
            "id": row.id,
            "uuid": row.uuid,
            "name": row.name,
            "hash": row.hash,
            "retention_us": row.retention_us,
            "created_us": row.created_us,
            **{name: value for name, usual in _LATER if (value := _plain(getattr(row, name, usual))) != usual},
            **_shape(log, row),
            "shards": [_shard(log, row, shard) for shard in range(row.shards)],
        }
        for row in log.ledger.list_streams()
        if not row.deleted_us
    ]


def groups(log: Log) -> list[Any]:
    """Every group with its owners and its cursors; and what it holds, if it does."""
    return [
        [
            *row[1:5],
            [[*key, *shard] for key, shard in log.ledger.list_group_shards(row.id)],
            *([row.hold_us] if getattr(row, "hold_us", 0) else []),
        ]
        for row in log.ledger.list_groups()
    ]


def access(log: Log) -> list[list[str]]:
    """Every row that says who may do what."""
    return [[*key, value.hex()] for key, value in sorted(log.ledger.load_access().items())]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shape(log: Log, row: Any) -> dict[str, Any]:
    """Versions of its schema, and changes of its shards, if there are any."""
    found: dict[str, Any] = {}
    if getattr(row, "schema_version", 0):
        versions = log.ledger.load_versions(row.id)
        found["schemas"] = [
            [version.version, version.schema_id, version.created_us, log.schema(version.schema_id).fingerprint.hex()]
            for version in versions
        ]
    if row.generation:
        generations = log.ledger.load_generations(row.id)
        found["generations"] = [[changed.shards, list(changed.barriers)] for changed in generations]
    return found


def _shard(log: Log, row: Any, shard: int) -> dict[str, Any]:
    place = log.reader.shard(row.id, shard)
    digest = hashlib.sha256()
    offset, records, losses = place.start, 0, []
    while offset < place.stable:
        try:
            batches = log.reader.read(row, shard, offset)
        except DataLoss as loss:
            losses.append([loss.first, loss.last, loss.reason])
            offset = loss.last + 1
            continue
        for batch in batches:
            if not batch.header.count:
                continue
            for text in _rows(log, batch) if batch.header.schema_id else _records(row, batch, offset):
                digest.update(text)
                records += 1
        offset = batches[-1].end
    return {
        "start": place.start,
        "end": place.stable,
        "records": records,
        "digest": digest.hexdigest(),
        "losses": losses,
    }


def _records(row: Any, batch: FetchedBatch, offset: int) -> Iterator[bytes]:
    return map(_text, RecordBatch(row.name, batch, offset, None).records())


def _rows(log: Log, batch: FetchedBatch) -> Iterator[bytes]:
    header = batch.header
    schema = log.schema(header.schema_id)
    rows = payload.decode(header.encoding, header.layout, header.count, header.raw_len, batch.payload, schema)
    for index, row in enumerate(rows.to_pylist()):
        distance = row.pop("_offset", index)
        fields = [batch.base + distance, header.schema_id, row]
        yield json.dumps(fields, default=repr).encode() + b"\n"


def _text(record: Record) -> bytes:
    headers = None if record.headers is None else [[name, _hex(value)] for name, value in record.headers.items()]
    fields = [record.offset, _hex(record.key), _hex(record.value), record.timestamp_us, headers]
    return json.dumps(fields).encode() + b"\n"


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def streams(number: int) -> list[dict[str, Any]]:
    """What `content` must find in a golden folder."""
    return [{name: stream[name] for name in stream if name != "cursor"} for stream in expected(number)["streams"]]


def numbered(stream: int, shard: int, producer: int, sequence: int, count: int) -> Batch:
    """A batch with these numbers; the log knows by them whether it has it."""
    encoded = payload.encode(layouts.build([b"new"] * count), None)
    sizes = (encoded.raw_len, len(encoded.payload), crc32c(encoded.payload))
    header = BatchHeader(
        stream, shard, count, encoded.encoding, encoded.layout, 0, *sizes, producer, 0, sequence, 0, START_US, START_US
    )
    return Batch(header, encoded.payload)


def append(log: Log, batch: Batch) -> Outcome:
    return append_all(log, [batch])[0]


def append_all(log: Log, batches: Sequence[Batch]) -> Sequence[Outcome]:
    waiter = Waiter()
    log.batcher.submit(Submission(batches, waiter.set))
    return waiter.wait(log.batcher)


def misremembered(log: Log, number: int) -> list[str]:
    """Send every batch again that the log of a golden folder must still recognise; what it says wrongly of them."""
    there = {row.id for row in log.ledger.list_streams() if not row.deleted_us}
    sent = [fields for fields in expected(number)["recent"] if fields[0] in there]
    batches = [
        numbered(stream, shard, producer, sequence, count) for stream, shard, producer, sequence, _, count in sent
    ]
    return [
        f"batch {sequence} of producer {producer} in stream {stream} shard {shard} got {outcome}, it stands at {base}"
        for (stream, shard, producer, sequence, base, _), outcome in zip(sent, append_all(log, batches), strict=True)
        if outcome != Appended(base, duplicate=True)
    ]


def files_of(folder: Path) -> dict[str, bytes]:
    """Everything in a data folder by name, but not its backup, nor what belongs to a running process."""
    paths = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    paths = [path for path in paths if path.parts[0] != BACKUP and path.name not in ("lock", "ledger.db-shm")]
    return {str(path): (folder / path).read_bytes() for path in paths}
