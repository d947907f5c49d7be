"""The messages of protocol version 1 as programs of that version know them. Frozen: these never change."""

from typing import Any

import msgspec


class Hello(msgspec.Struct, frozen=True, array_like=True):
    version_min: int
    version_max: int
    client: str
    token: str = ""


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    version: int
    server: str
    log: str
    epoch: int
    heartbeat: float
    idle_timeout: float
    message_bytes_max: int
    record_bytes_max: int


class WireError(msgspec.Struct, frozen=True, array_like=True):
    code: int
    message: str
    facts: dict[str, Any] = {}


class Nothing(msgspec.Struct, frozen=True, array_like=True):
    pass


class StreamInfo(msgspec.Struct, frozen=True):
    id: int
    uuid: str
    name: str
    shards: int
    hash: str
    generation: int
    retention_us: int
    created_us: int
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    bytes: int
    epoch: int


class Answer(msgspec.Struct, frozen=True):
    streams: tuple[StreamInfo, ...] = ()
    offsets: tuple[int, ...] = ()
    counters: dict[str, int] = {}
    more: bool = False


class BatchHeader(msgspec.Struct, frozen=True, array_like=True):
    stream: int
    shard: int
    count: int
    encoding: int
    layout: int
    schema_id: int
    raw_len: int
    stored_len: int
    payload_crc: int
    producer: int
    producer_epoch: int
    sequence: int
    generation: int
    time_low: int
    time_high: int
    transaction: int = 0
    statistics: bytes = b""


class Append(msgspec.Struct, frozen=True, array_like=True):
    batches: list[BatchHeader]
    acknowledge: bool = True
    timeout_ms: int = 0


class Appended(msgspec.Struct, frozen=True, array_like=True):
    bases: list[int]
    errors: dict[int, WireError] = {}


class Subscribe(msgspec.Struct, frozen=True, array_like=True):
    stream: int
    offsets: list[int]
    ends: list[int] | None
    credit: int


class Batches(msgspec.Struct, frozen=True, array_like=True):
    batches: list[tuple[int, BatchHeader]]


class Credit(msgspec.Struct, frozen=True, array_like=True):
    bytes: int


class Goodbye(msgspec.Struct, frozen=True, array_like=True):
    reason: str


HELLO, WELCOME, ERROR, PING, PONG, CALL, ANSWER, APPEND, APPENDED = range(1, 10)
SUBSCRIBE, BATCHES, CREDIT, UNSUBSCRIBE, END, GOODBYE = range(10, 16)

SERVER_HEADERS: dict[int, type] = {
    WELCOME: Welcome,
    ERROR: WireError,
    PONG: Nothing,
    ANSWER: Answer,
    APPENDED: Appended,
    BATCHES: Batches,
    END: Nothing,
    GOODBYE: Goodbye,
}


def header(kind: int, data: bytes) -> Any:
    """The header of a message of a server, as a client of version 1 reads it."""
    return msgspec.msgpack.decode(data, type=SERVER_HEADERS[kind])
