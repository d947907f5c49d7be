"""The object users hold: streams, producers and consumers of one log, near or far."""

import weakref
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from mainstem.consume.consumer import PREFETCH_BYTES, Consumer, Start
from mainstem.core.clock import SYSTEM_CLOCK
from mainstem.core.durations import microseconds
from mainstem.core.errors import FolderLocked, InvalidSetting, MainstemError
from mainstem.core.identity import new_stream_uuid
from mainstem.core.times import to_us
from mainstem.hub.overview import Overview, look
from mainstem.produce.producer import Producer, ProducerOptions
from mainstem.transport.port import (
    AlterStreamCall,
    CreateStreamCall,
    DeleteStreamCall,
    EraseKeyCall,
    Erasure,
    GetStreamCall,
    ListStreamsCall,
    Port,
    StatisticsCall,
    StreamInfo,
    TrimStreamCall,
)

Retention = str | timedelta
Cleanup = Literal["delete", "compact", "compact,delete"]


class Streams:
    """Creates, lists, changes and deletes streams. Any thread."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def create(
        self,
        name: str,
        *,
        shards: int = 1,
        retention: Retention | None = None,
        retention_bytes: int = 0,
        cleanup: Cleanup = "delete",
        tombstones: Retention | None = None,
        hash: str = "crc32",  # noqa: A002
        exist_ok: bool = False,
    ) -> StreamInfo:
        """A new stream. `hash` places keys: "crc32" as librdkafka does, or "murmur2" as Java's client does.

        `cleanup`: "delete" lets records go when they are older than `retention`, or when the stream is larger than
        `retention_bytes` (0: however large it is). "compact" keeps the newest record of every key, for ever, and a
        record without a value for as long as `tombstones` says (24 h): every record then needs a key. "compact,delete"
        does both.
        """
        call = CreateStreamCall(
            name=name,
            shards=shards,
            hash=hash,
            retention_us=_optional_us(retention),
            exist_ok=exist_ok,
            uuid=new_stream_uuid(),
            retention_bytes=retention_bytes,
            cleanup=cleanup,
            tombstone_us=_optional_us(tombstones),
        )
        return self._port.call(call).streams[0]

    def get(self, name: str) -> StreamInfo:
        """One stream as it is now, with what of it waits to be freed; UnknownStream if there is none."""
        return self._port.call(GetStreamCall(name, details=True)).streams[0]

    def list(self) -> list[StreamInfo]:
        """All streams by name."""
        # By name: one that was deleted and made again between two answers is in both.
        found: dict[str, StreamInfo] = {}
        answer = self._port.call(ListStreamsCall())
        while True:
            found.update((stream.name, stream) for stream in answer.streams)
            if not answer.more:
                return [found[name] for name in sorted(found)]
            answer = self._port.call(ListStreamsCall(after=answer.streams[-1].id))

    def alter(
        self,
        name: str,
        *,
        retention: Retention | None = None,
        retention_bytes: int | None = None,
        cleanup: Cleanup | None = None,
        tombstones: Retention | None = None,
    ) -> StreamInfo:
        """Change what can change; what is left out stays. The number of shards and the hash cannot."""
        call = AlterStreamCall(name, _optional_us(retention), retention_bytes, cleanup, _optional_us(tombstones))
        return self._port.call(call).streams[0]

    def trim(
        self, name: str, *, before: datetime | None = None, offset: int | None = None, shard: int | None = None
    ) -> StreamInfo:
        """Let go of the records before a time, or below an offset, of one shard or of all. Readers notice at once."""
        if before is not None and not isinstance(before, datetime):
            raise InvalidSetting(f"before must be a datetime, not {before!r}")
        if before is not None and before.tzinfo is None:
            raise InvalidSetting("before: a time needs a time zone, for example datetime.now(UTC)")
        before_us = None if before is None else to_us(before)
        return self._port.call(TrimStreamCall(name, before_us, offset, shard)).streams[0]

    def erase(self, name: str, key: bytes | str) -> Erasure:
        """Take away every record of one key that is there now. When this returns nobody can read them any more; the
        answer says how many there were, and when their last bytes are off the disk."""
        erased = self._port.call(EraseKeyCall(name, key.encode() if isinstance(key, str) else key)).erased
        assert erased is not None
        return erased

    def delete(self, name: str) -> None:
        """Stop writes and reads at once; the name is free for a new stream. The space comes back within a day."""
        self._port.call(DeleteStreamCall(name))


def _optional_us(length: Retention | None) -> int | None:
    return None if length is None else microseconds(length)


class Hub:
    """An open log. Any thread. Close it, or use it as a context manager; one that was not closed never blocks exit."""

    def __init__(self, port: Port, where: str) -> None:
        self._port = port
        self._where = where
        self.streams = Streams(port)
        self._open: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()

    def producer(
        self,
        *,
        acks: Literal["durable", "none"] = "durable",
        batch_bytes: int = 1 << 20,
        buffer_bytes: int = 32 << 20,
        linger: float = 0.0,
        delivery_timeout: float = 120.0,
        compression: Literal["zstd", "lz4"] | None = "lz4",
        on_full: Literal["block", "raise"] = "block",
    ) -> Producer:
        """A producer.

        `acks`: "durable" waits for the disk; "none" waits for nobody, and drops the oldest when the buffer is full.
        `batch_bytes` are shipped at once; fewer when nothing of this producer is under way, after `linger` seconds.
        `buffer_bytes` may wait to be acknowledged; then `send` blocks, or raises BufferFull, as `on_full` says.
        `delivery_timeout`: seconds until a record that was not acknowledged counts as failed.
        """
        options = ProducerOptions(
            acks=acks,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            linger=linger,
            delivery_timeout=delivery_timeout,
            compression=compression,
            on_full=on_full,
        )
        self._port.check_usable()
        self._port.check_writable()
        producer = Producer(self._port, options)
        self._open.add(producer)
        return producer

    def consumer(
        self, stream: str, *, start: Start = "latest", follow: bool = True, prefetch_bytes: int = PREFETCH_BYTES
    ) -> Consumer:
        """A consumer of one stream from `start`: "earliest", "latest", an aware datetime, or a Cursor."""
        consumer = Consumer(self._port, stream, start, follow=follow, prefetch_bytes=prefetch_bytes)
        self._open.add(consumer)
        return consumer

    def statistics(self) -> dict[str, int]:
        """Counters of the log, or of the server behind this hub."""
        return dict(self._port.call(StatisticsCall()).counters)

    def overview(self) -> Overview:
        """Counters, histograms, streams and connections at this moment: what `mainstem top` shows."""
        return look(self._port, SYSTEM_CLOCK)

    def close(self) -> None:
        """Flush and close its producers, close its consumers, then the log or the connection. Raises the first error,
        once everything is closed."""
        errors: list[MainstemError] = []
        try:
            for user in list(self._open):
                try:
                    user.close()
                except MainstemError as error:
                    errors.append(error)
        finally:
            self._port.close()
        if errors:
            raise errors[0]

    def __enter__(self) -> "Hub":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Hub {self._where}>"


def open_folder(path: object, *, read_only: bool | None = None, auto_create: bool = False) -> Hub:
    """See mainstem.open."""
    from mainstem.hub.embedded import FolderPort, LogPort

    if not isinstance(path, str | Path) or not str(path) or "\0" in str(path):
        raise InvalidSetting(f"a data folder is a path, not {path!r}")
    if "://" in str(path):
        raise InvalidSetting(f"{path!r} is an address, not a folder: use mainstem.connect({str(path)!r})")
    folder = Path(path)
    if read_only:
        return Hub(FolderPort(folder), f"{folder} (read only)")
    try:
        return Hub(LogPort(folder, auto_create_shards=1 if auto_create else 0), str(folder))
    except FolderLocked:
        if read_only is False:
            raise
        return Hub(FolderPort(folder), f"{folder} (read only: it is being written already)")


def connect_to(url: str, *, timeout: float) -> Hub:
    """See mainstem.connect."""
    from mainstem.hub.remote import RemotePort

    return Hub(RemotePort(url, timeout), url)
