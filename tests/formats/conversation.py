"""A conversation between a client and a server that uses everything version 1 of the protocol has, and its record.

`converse` is what the client does; it works with the client library of any version and returns what it was told. A
recorded conversation (`tests/testdata/protocol-<n>.json`, made by `tools/conversation.py`) has these results and all
messages of both sides in their order. The server had the golden folder of format 1.
"""

import base64
import hashlib
import json
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from mainstem.consume.record import Record
from mainstem.core import layouts, payload
from mainstem.core.batch import Batch, BatchHeader
from mainstem.core.checksum import crc32c
from mainstem.core.cursor import Cursor
from mainstem.core.errors import DataLoss, MainstemError
from mainstem.hub.hub import Hub
from mainstem.testing.clock import START_US

TESTDATA = Path(__file__).parents[1] / "testdata"
PREFIX = struct.Struct("<IBBHII")
# What version 1 says of a stream.
STREAM_FIELDS = (
    "id", "uuid", "name", "shards", "hash", "generation", "retention_us", "created_us", "starts", "ends", "bytes",
    "epoch",
)  # fmt: skip
# And of a record.
RECORD_FIELDS = ("value", "key", "shard", "offset", "timestamp_us", "headers")
PRODUCER = 4_711


@dataclass(frozen=True, slots=True)
class Said:
    """One message: who sent it, its kind and id, and all of its bytes."""

    by_client: bool
    data: bytes

    @property
    def kind(self) -> int:
        return int(PREFIX.unpack_from(self.data)[1])

    @property
    def id(self) -> int:
        return int(PREFIX.unpack_from(self.data)[4])

    @property
    def header(self) -> bytes:
        return self.data[PREFIX.size : PREFIX.size + PREFIX.unpack_from(self.data)[5]]

    @property
    def rest(self) -> bytes:
        return self.data[PREFIX.size + len(self.header) :]

    def with_id(self, id_: int) -> bytes:
        return self.data[:8] + struct.pack("<I", id_) + self.data[12:]


def cut(data: bytearray) -> list[bytes]:
    """Take the whole messages out of what has arrived."""
    found = []
    while len(data) >= 4 and len(data) >= (length := 4 + struct.unpack_from("<I", data)[0]):
        found.append(bytes(data[:length]))
        del data[:length]
    return found


def load(version: int) -> tuple[list[Said], list[Any]]:
    """A recorded conversation: what was said, and what the client's user was told."""
    record = json.loads((TESTDATA / f"protocol-{version}.json").read_text())
    said = [Said(line[0] == ">", base64.b64decode(line[1:])) for line in record["said"]]
    return said, record["results"]


def save(version: int, said: Sequence[Said], results: Sequence[Any]) -> Path:
    lines = ["><"[not message.by_client] + base64.b64encode(message.data).decode() for message in said]
    parts = [
        f' "{name}": [\n  ' + ",\n  ".join(map(json.dumps, items)) + "\n ]"
        for name, items in (("said", lines), ("results", results))
    ]
    path = TESTDATA / f"protocol-{version}.json"
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    return path


def converse(hub: Hub) -> list[Any]:
    """Use everything; what came back, in a form that JSON keeps."""
    results: list[Any] = []

    def step(name: str, action: Callable[[], Any]) -> None:
        try:
            results.append([name, action()])
        except MainstemError as error:
            results.append([name, {"code": error.code, "text": str(error)}])

    streams = hub.streams
    step("create", lambda: _info(streams.create("talk", shards=2, retention="10000d")))
    step("create again", lambda: _info(streams.create("talk", shards=2)))
    step("get", lambda: _info(streams.get("talk")))
    step("get unknown", lambda: _info(streams.get("nobody")))
    step("list", lambda: [_info(stream) for stream in streams.list()])
    step("alter", lambda: _info(streams.alter("talk", retention="20000d")))
    talk = streams.get("talk").id
    for layout in range(8):
        batch = _batch(talk, layout % 2, layout // 2, layout, None)
        step(f"append layout {layout}", partial(_append, hub, [batch]))
    step(
        "append compressed", lambda: _append(hub, [_batch(talk, 0, 4, 1, "lz4", 80), _batch(talk, 1, 4, 3, "zstd", 80)])
    )
    step("append large", lambda: _append(hub, [_batch(talk, 0, 5, 0, "zstd", 1_500)]))
    step("append repeated", lambda: _append(hub, [_batch(talk, 0, 3, 6, None), _batch(talk, 0, 5, 0, "zstd", 1_500)]))
    step("append out of sequence", lambda: _append(hub, [_batch(talk, 0, 9, 0, None), _batch(talk, 1, 5, 0, None)]))
    step("append to no shard", lambda: _append(hub, [_batch(talk, 7, 0, 0, None)]))
    step(
        "append unacknowledged",
        lambda: hub._port.append_unacknowledged([_batch(streams.get("empty").id, 0, 0, 0, None)]),
    )
    step("produce", lambda: _produce(hub))
    step("read", lambda: _read(hub, "talk", "earliest"))
    step("read from a time", lambda: _read(hub, "keyed", datetime.fromtimestamp(START_US / 1e6 + 100, UTC)))
    step("read what was trimmed", lambda: _read(hub, "trimmed", Cursor(streams.get("trimmed").uuid, 1, (0,))))
    step("follow", lambda: _follow(hub, talk))
    step("subscribe to nothing", lambda: _subscribe(hub, 9_999))
    step("statistics", lambda: sorted(hub.statistics()))
    step("delete", lambda: streams.delete("talk"))
    step("append to what was deleted", lambda: _append(hub, [_batch(talk, 0, 6, 0, None)]))
    return results


def _info(stream: Any) -> dict[str, Any]:
    found = {name: getattr(stream, name) for name in STREAM_FIELDS}
    return {**found, "starts": list(stream.starts), "ends": list(stream.ends)}


def _batch(stream: int, shard: int, sequence: int, layout: int, compression: str | None, count: int = 3) -> Batch:
    values = [None if i == 1 else b"value %d of batch %d " % (i, sequence) * 3 for i in range(count)]
    keys = [b"key %d" % (i % 7) for i in range(count)] if layout & layouts.HAS_KEY else None
    headers = [{"number": b"%d" % i} for i in range(count)] if layout & layouts.HAS_HEADERS else None
    times = [START_US + i for i in range(count)] if layout & layouts.HAS_TIMESTAMP else None
    encoded = payload.encode(layouts.build(values, keys, headers, times), compression)
    low, high = (times[0], times[-1]) if times else (START_US, START_US)
    sizes = (encoded.raw_len, len(encoded.payload), crc32c(encoded.payload))
    header = BatchHeader(
        stream, shard, count, encoded.encoding, encoded.layout, 0, *sizes, PRODUCER, 0, sequence, 0, low, high
    )
    return Batch(header, encoded.payload)


def _append(hub: Hub, batches: Sequence[Batch]) -> list[Any]:
    """The offset of each batch, or the code of its error."""
    done = threading.Event()
    found: list[Any] = []

    def take(results: Sequence[Any]) -> None:
        found.extend(result.code if isinstance(result, MainstemError) else result for result in results)
        done.set()

    hub._port.append(batches, 30.0, take)
    hub._port.schedule(lambda: None)
    assert done.wait(30)
    return found


def _produce(hub: Hub) -> list[int]:
    with hub.producer(compression=None) as producer:
        return [producer.send("talk", b"sent %d" % i, key=b"same").result()[1] for i in range(3)]


def _read(hub: Hub, stream: str, start: Any) -> dict[str, Any]:
    losses: list[Any] = []
    records: list[Record] = []
    # So little credit that more has to be given.
    with hub.consumer(stream, start=start, follow=False, prefetch_bytes=4_096) as consumer:
        while True:
            try:
                records.extend(consumer)
                break
            except DataLoss as loss:
                losses.append(loss.facts())
        return {"losses": losses, "cursor": str(consumer.cursor), **_summary(records)}


def _follow(hub: Hub, stream: int) -> dict[str, Any]:
    with hub.consumer("talk", start="latest") as consumer:
        assert consumer.poll(0.2) is None
        _append(hub, [_batch(stream, 0, 6, 5, None)])
        return _summary([consumer.poll(30) for _ in range(3)])


def _summary(records: Sequence[Any]) -> dict[str, Any]:
    # Shards take turns as it happens; within each the order counts.
    ordered = sorted(records, key=lambda record: (record.shard, record.offset))
    fields = [{name: getattr(record, name) for name in RECORD_FIELDS} for record in ordered]
    digest = hashlib.sha256(msgspec.msgpack.encode(fields))
    return {"records": len(records), "digest": digest.hexdigest()}


def _subscribe(hub: Hub, stream: int) -> None:
    info = msgspec.structs.replace(hub.streams.get("talk"), id=stream)
    subscription = hub._port.subscribe(info, (0, 0), None, 1_000)
    try:
        subscription.next(30)
    finally:
        subscription.close()
