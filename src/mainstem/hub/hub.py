"""The object users hold: streams, producers and consumers of one log, near or far."""

import threading
import weakref
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

from mainstem.consume.consumer import PREFETCH_BYTES, Consumer, OnBad
from mainstem.consume.found import Found, find
from mainstem.consume.group_consumer import GroupConsumer
from mainstem.consume.member_consumer import Commit
from mainstem.consume.places import Start
from mainstem.consume.sequence import OrderedBatches
from mainstem.consume.several import ReadOptions, SeveralConsumer, checked_streams
from mainstem.consume.spread_consumer import SpreadConsumer
from mainstem.core.clock import SYSTEM_CLOCK
from mainstem.core.cursor import Cursors
from mainstem.core.durations import microseconds
from mainstem.core.errors import FolderLocked, InvalidName, InvalidRecord, InvalidSetting, MainstemError
from mainstem.core.identity import RANDOMNESS, new_stream_uuid
from mainstem.core.keys import check_key, key_of
from mainstem.core.kinds import render_duration
from mainstem.core.matching import names_before
from mainstem.core.names import check_group_name
from mainstem.core.schema import Schema
from mainstem.core.times import to_us
from mainstem.hub.access import Access
from mainstem.hub.groups import Groups
from mainstem.hub.overview import Overview, look
from mainstem.hub.redrive import Redrive, Redriven
from mainstem.produce.convoy import Convoy
from mainstem.produce.options import ProducerOptions
from mainstem.produce.producer import Producer
from mainstem.produce.transaction import Transaction, Writings
from mainstem.registry.forms import as_schema
from mainstem.transport.credentials import Credentials
from mainstem.transport.port import (
    AlterStreamCall,
    CreateStreamCall,
    DeleteStreamCall,
    EraseKeyCall,
    Erasure,
    GetStreamCall,
    ListStreamsCall,
    Port,
    SchemaInfo,
    SchemasCall,
    SetSchemaCall,
    StatisticsCall,
    StreamInfo,
    TrimStreamCall,
)
from mainstem.transport.retry import Randomness
from mainstem.transport.sharing import OpenWriterCall

Retention = str | timedelta
Cleanup = Literal["delete", "compact", "compact,delete"]
Compatibility = Literal[
    "backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive", "none"
]


class Streams:
    """Creates, lists, changes and deletes streams. Any thread."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def create(
        self,
        name: str,
        *,
        shards: int | None = None,
        schema: Any = None,
        key: str | Sequence[str] | None = None,
        index: str | Sequence[str] | None = None,
        compatibility: Compatibility | None = None,
        retention: Retention | None = None,
        retention_bytes: int | None = None,
        cleanup: Cleanup | None = None,
        tombstones: Retention | None = None,
        hash: str | None = None,  # noqa: A002
        exist_ok: bool = False,
    ) -> StreamInfo:
        """A new stream, of one shard if not said otherwise. `hash` places keys: "crc32" (the default) as librdkafka
        does, or "murmur2" as Java's client does.

        `schema` says which columns its rows have: a pyarrow.Schema, a map of names to types, or an Avro record. `key`
        names the columns that make up a row's key, `index` those by whose values rows are to be found. `compatibility`
        is what a later version of the schema must keep to, "backward" if not said.

        `cleanup`: "delete" lets records go when they are older than `retention`, or when the stream is larger than
        `retention_bytes` (0: however large it is). "compact" keeps the newest record of every key, for ever, and a
        record without a value for as long as `tombstones` says (24 h): every record then needs a key. "compact,delete"
        does both ("delete" is the default).

        `exist_ok` takes a stream that is there already, if it has everything that is said here; InvalidSetting names
        what it has otherwise.
        """
        given: dict[str, Any] = {
            "shards": shards,
            "hash": hash,
            "retention_us": _optional_us(retention),
            "retention_bytes": retention_bytes,
            "cleanup": cleanup,
            "tombstone_us": _optional_us(tombstones),
            "key": _names("key", key),
            "index": _names("index", index),
            "compatibility": compatibility,
            "schema": None if schema is None else as_schema(schema).serialized,
        }
        given = {option: value for option, value in given.items() if value is not None}
        call = CreateStreamCall(name=name, exist_ok=exist_ok, uuid=new_stream_uuid(), **given)
        info = self._port.call(call).streams[0]
        if exist_ok and info.uuid != call.uuid:
            self._require_same(info, given)
        return info

    def _require_same(self, info: StreamInfo, given: dict[str, Any]) -> None:
        schema = given.pop("schema", b"")
        if schema and info.schema_bytes:
            # Who knows an older version of the schema knows columns by the names that they had.
            now = {
                was: name for name, was in names_before(Schema.parse(info.schema_bytes), Schema.parse(schema)).items()
            }
            if "key" in given:
                given["key"] = tuple(now.get(name, name) for name in given["key"])
            if "index" in given:
                given["index"] = tuple(now[name] for name in given["index"] if name in now)
        other = [
            f"{option.removesuffix('_us')} is {_shown(option, has)}, not {_shown(option, value)}"
            for option, value in given.items()
            if (has := getattr(info, option)) != value
        ]
        # Who knows an older version of the schema has the right stream.
        if schema and all(known.schema != Schema.parse(schema) for known in self.schemas(info.name)):
            other.append("its schema is another one" if info.schema_bytes else "it has no schema")
        if other:
            raise InvalidSetting(f"stream {info.name!r} exists already, with other options: {'; '.join(other)}")

    def set_schema(
        self, name: str, schema: Any, *, compatibility: Compatibility | None = None, dry_run: bool = False
    ) -> StreamInfo:
        """Give a stream the next version of its schema, or its first; see `create` for what may be given.

        IncompatibleSchema names what the versions before it could not live with, as the stream's compatibility says,
        or `compatibility`, which then is the stream's from now on. With `dry_run` nothing is changed. Records that were
        written before a stream had a schema are rows too if they are JSON.
        """
        call = SetSchemaCall(name, as_schema(schema).serialized, compatibility, dry_run)
        return self._port.call(call).streams[0]

    def schemas(self, name: str) -> Sequence[SchemaInfo]:
        """The versions of a stream's schema, the oldest first."""
        found: list[SchemaInfo] = []
        while True:
            answer = self._port.call(SchemasCall(name, found[-1].version if found else 0))
            found += answer.schemas
            if not answer.more:
                return found

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
        shards: int | None = None,
    ) -> StreamInfo:
        """Change what can change; what is left out stays. The hash cannot, and shards can only become more.

        With more shards most keys belong to another one from then on. Producers and consumers go over by themselves;
        a consumer gets what was written before the change, in all shards, before anything that was written after it,
        so the records of a key stay in their order.
        """
        call = AlterStreamCall(
            name, _optional_us(retention), retention_bytes, cleanup, _optional_us(tombstones), shards
        )
        return self._port.call(call).streams[0]

    def trim(
        self, name: str, *, before: datetime | None = None, offset: int | None = None, shard: int | None = None
    ) -> StreamInfo:
        """Let go of the records before a time, or below an offset, of one shard or of all. Readers notice at once."""
        if before is not None and not isinstance(before, datetime):
            raise InvalidSetting(f"before must be a datetime, not {before!r}")
        if before is not None and before.tzinfo is None:
            raise InvalidSetting("before: a time needs a time zone, for example datetime.now(UTC)")
        if offset is not None and (type(offset) is not int or not 0 <= offset < 1 << 63):
            raise InvalidSetting(f"offset must be a whole number from 0 to {(1 << 63) - 1}, not {offset!r}")
        before_us = None if before is None else to_us(before)
        return self._port.call(TrimStreamCall(name, before_us, offset, shard)).streams[0]

    def erase(self, name: str, key: bytes | str | int | tuple[Any, ...]) -> Erasure:
        """Take away every record of one key that is there now. When this returns nobody can read them any more; the
        answer says how many there were, and when their last bytes are off the disk.

        Where the key is made of several columns, give their values as a tuple; where it is one, its value.
        """
        if isinstance(key, str | int | tuple):
            key = self._key_of(name, key)
        erased = self._port.call(EraseKeyCall(name, key)).erased
        assert erased is not None
        return erased

    def _key_of(self, name: str, key: str | int | tuple[Any, ...]) -> bytes:
        """The bytes of a key that is given by its values; of text for any stream."""
        info = self._port.call(GetStreamCall(name)).streams[0]
        columns = info.key or ("key",)
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) != len(columns):
            made_of = f"made of {', '.join(info.key)}, not of" if info.key else "one value, not"
            raise InvalidRecord(f"stream {name!r}: the key is {made_of} {len(parts)} value{'s' * (len(parts) != 1)}")
        found = key_of(dict(zip(columns, parts, strict=True)), columns)
        if found is None:
            raise InvalidRecord(f"stream {name!r}: what has no {' or no '.join(columns)} has no key")
        if info.key and info.schema is not None:
            check_key(found, info.schema, info.key)
        return found

    def delete(self, name: str) -> None:
        """Stop writes and reads at once; the name is free for a new stream. The space comes back within a day."""
        self._port.call(DeleteStreamCall(name))


def _names(what: str, names: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    found = (names,) if isinstance(names, str) or not isinstance(names, Sequence) else tuple(names)
    if not all(isinstance(name, str) for name in found):
        raise InvalidSetting(f"{what} is the name of a column, or several, not {names!r}")
    return found


def _shown(option: str, value: Any) -> str:
    if option.endswith("_us"):
        return render_duration(value / 1_000_000)
    return ", ".join(value) or "not set" if isinstance(value, tuple) else str(value)


def _window_us(window: str | timedelta) -> int:
    found = microseconds(window)
    if found <= 0:
        raise InvalidSetting(f"ordering_window must be between 1 minute and 10 years, not {window!r}")
    return found


def _optional_us(length: Retention | None) -> int | None:
    return None if length is None else microseconds(length)


class Hub:
    """An open log. Any thread. Close it, or use it as a context manager; one that was not closed never blocks exit."""

    def __init__(self, port: Port, where: str, randomness: Randomness = RANDOMNESS) -> None:
        self._port = port
        self._where = where
        # Chooses the shards of records without a key.
        self._randomness = randomness
        self.streams = Streams(port)
        self.access = Access(port)
        self.groups = Groups(port)
        self._writings = Writings(port, randomness)
        # Names under which this hub writes transactions, and the epoch of each.
        self._writers: dict[str, int] = {}
        self._writers_lock = threading.Lock()
        # By what its producers have in common; one goes with the last of them.
        self._convoys: weakref.WeakValueDictionary[tuple[Any, ...], Convoy] = weakref.WeakValueDictionary()
        self._open: weakref.WeakSet[
            Producer | Consumer | SeveralConsumer | GroupConsumer | SpreadConsumer | OrderedBatches
        ] = weakref.WeakSet()

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
        on_bad: Literal["raise", "dead_letter"] = "raise",
        counts: str | timedelta | None = None,
    ) -> Producer:
        """A producer.

        `acks`: "durable" waits for the disk; "none" waits for nobody, and drops the oldest when the buffer is full.
        `batch_bytes` are shipped at once; fewer when nothing of this producer is under way, after `linger` seconds.
        `buffer_bytes` may wait to be acknowledged; then `send` blocks, or raises BufferFull, as `on_full` says.
        `delivery_timeout`: seconds until a record that was not acknowledged counts as failed.
        `on_bad`: a row that does not fit the schema of its stream is a SchemaMismatch of `send`; "dead_letter" keeps it
        instead in the stream `<stream>.dead`, with the reason: its ack then says its place there. See `redrive`.
        `counts` ("1m"): it says how many records it has sent to each stream in every window of this length, by their
        own times, when the window ends and when it is closed; `mainstem job run audit` compares that with what is
        there.
        """
        options = ProducerOptions(
            acks=acks,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            linger=linger,
            delivery_timeout=delivery_timeout,
            compression=compression,
            on_full=on_full,
            on_bad=on_bad,
            counts=counts,
        )
        self._port.check_usable()
        self._port.check_writable()
        producer = Producer(self._port, options, convoy=self._convoy_for(options), randomness=self._randomness)
        self._open.add(producer)
        return producer

    def _convoy_for(self, options: ProducerOptions) -> Convoy | None:
        """What takes along the small parcels of all producers that wait as long and compress alike, where every batch
        is a message's worth of work."""
        if not self._port.checks_values:
            return None
        alike = (options.delivery_timeout, options.linger, options.compression)
        return self._convoys.setdefault(alike, Convoy(self._port, SYSTEM_CLOCK, options.compression, self._randomness))

    @overload
    def consumer(
        self,
        stream: str,
        *,
        start: Start = ...,
        follow: bool = ...,
        prefetch_bytes: int = ...,
        where: str | None = ...,
        columns: Sequence[str] | None = ...,
        on_bad: OnBad = ...,
        ordering_window: str | timedelta | None = ...,
        group: None = ...,
    ) -> Consumer: ...

    @overload
    def consumer(
        self,
        stream: list[str] | tuple[str, ...] | None = ...,
        *,
        pattern: str | None = ...,
        start: Start | Cursors = ...,
        follow: bool = ...,
        prefetch_bytes: int = ...,
        where: str | None = ...,
        columns: Sequence[str] | None = ...,
        on_bad: OnBad = ...,
        group: None = ...,
    ) -> SeveralConsumer: ...

    @overload
    def consumer(
        self,
        stream: str | Sequence[str] | None = ...,
        *,
        group: str,
        pattern: str | None = ...,
        commit: Commit = ...,
        start: Start | Cursors = ...,
        follow: bool = ...,
        prefetch_bytes: int = ...,
        where: str | None = ...,
        columns: Sequence[str] | None = ...,
        on_bad: OnBad = ...,
        spread: Literal[False] = ...,
    ) -> GroupConsumer: ...

    @overload
    def consumer(
        self,
        stream: str | Sequence[str] | None = ...,
        *,
        group: str,
        spread: Literal[True],
        pattern: str | None = ...,
        commit: Commit = ...,
        start: Start | Cursors = ...,
        follow: bool = ...,
        prefetch_bytes: int = ...,
        where: str | None = ...,
        columns: Sequence[str] | None = ...,
        on_bad: OnBad = ...,
    ) -> SpreadConsumer: ...

    def consumer(
        self,
        stream: str | Sequence[str] | None = None,
        *,
        start: Start | Cursors = "latest",
        follow: bool = True,
        prefetch_bytes: int = PREFETCH_BYTES,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        on_bad: OnBad = "raise",
        ordering_window: str | timedelta | None = None,
        group: str | None = None,
        pattern: str | None = None,
        commit: Commit = "auto",
        spread: bool = False,
    ) -> Consumer | SeveralConsumer | GroupConsumer | SpreadConsumer:
        """A consumer of a stream from `start`: "earliest", "latest", an aware datetime, or a Cursor.

        `where` is a SQL expression: only records for which it is true come. `columns` names what is wanted of them.
        `on_bad` says what happens to records that are no rows of the stream's schema: see Consumer.
        `ordering_window` ("5m"): no record comes after one that the log took later by more than that, whatever their
        shards; `consumer.watermark` says how far the time has come.

        Several streams may be named, or found by a `pattern` such as "orders-*", also if they come later. With a
        `group` they are shared with its other members, and reading goes on where the group has committed: see
        GroupConsumer. With `spread` its members share every shard batch by batch, where order does not matter: see
        SpreadConsumer.
        """
        if type(spread) is not bool:
            raise InvalidSetting(f"spread must be True or False, not {spread!r}")
        if spread and group is None:
            raise InvalidSetting("spread=True shares shards among the members of a group: say which, group=...")
        if commit != "auto" and group is None:
            raise InvalidSetting(f"commit={commit!r} is for the members of a group: say which, group=...")
        is_several = pattern is not None or isinstance(stream, list | tuple)
        if ordering_window is not None and (is_several or group is not None):
            raise InvalidSetting(
                "ordering_window is for a consumer that reads all shards of one stream: with a group or several "
                "streams leave it out, or open a consumer without a group for each stream"
            )
        if group is not None:
            options = ReadOptions(follow, prefetch_bytes, where, columns, on_bad)
            kind = SpreadConsumer if spread else GroupConsumer
            shared = kind(self._port, group, checked_streams(stream, pattern), pattern, start, options, commit)
            self._open.add(shared)
            return shared
        if is_several:
            options = ReadOptions(follow, prefetch_bytes, where, columns, on_bad)
            several = SeveralConsumer(self._port, checked_streams(stream, pattern), pattern, start, options)
            self._open.add(several)
            return several
        if stream is None:
            raise InvalidName("give a stream's name, several names, or a pattern")
        if isinstance(start, Cursors):
            raise InvalidSetting("start: these are the cursors of several streams, and this is one")
        consumer = Consumer(
            self._port,
            stream,  # type: ignore[arg-type]  # what is no text is refused there
            start,
            follow=follow,
            prefetch_bytes=prefetch_bytes,
            where=where,
            columns=columns,
            on_bad=on_bad,
            ordering_window_us=None if ordering_window is None else _window_us(ordering_window),
        )
        self._open.add(consumer)
        return consumer

    def transaction(self, *, timeout: str | timedelta = "60s", writer: str | None = None) -> Transaction:
        """Writes to several streams, and cursors of several groups, that become visible together or not at all:

            with hub.transaction() as tx:
                tx.advance(consumer)
                tx.send("totals", {...})

        It ends by itself `timeout` after its first write. `writer` is a name: a hub that writes under it later fences
        this one, whose transactions are then refused.
        """
        seconds = microseconds(timeout) / 1_000_000
        if writer is None:
            return Transaction(self._port, self._writings, seconds)
        check_group_name(writer, "writer")
        # One at a time: of two that open it at once, one would fence the other.
        with self._writers_lock:
            if writer not in self._writers:
                self._writers[writer] = self._port.call(OpenWriterCall(writer)).writer_epoch
            epoch = self._writers[writer]
        forget = partial(self._forget_writer, writer, epoch)
        return Transaction(self._port, self._writings, seconds, writer, epoch, forget_writer=forget)

    def _forget_writer(self, writer: str, epoch: int) -> None:
        """The log has: the next transaction takes the name anew."""
        with self._writers_lock:
            if self._writers.get(writer) == epoch:
                del self._writers[writer]

    def sequence(
        self, stream: str, *, batch: int = 10_000, start: Start = "earliest", follow: bool = True
    ) -> OrderedBatches:
        """A stream in a single order over all its shards, the same on every read and for every reader, in batches of
        `batch` records: see OrderedBatches."""
        ordered = OrderedBatches(self._port, stream, batch=batch, start=start, follow=follow)
        self._open.add(ordered)
        return ordered

    def find(self, stream: str, where: str, *, limit: int | None = None, columns: Sequence[str] | None = None) -> Found:
        """The records of a stream, as it is now, for which a SQL expression is true; at most `limit` of them.

        Batches of which the ledger or a filter knows that nothing in them can match are not read: an equality on the
        key or on an indexed column finds its record in milliseconds. What is found is held in memory.
        """
        return find(self._port, stream, where, limit, columns, SYSTEM_CLOCK)

    def redrive(
        self, stream: str, *, dry_run: bool = True, corrections: Mapping[int, Mapping[str, Any]] | None = None
    ) -> Redriven:
        """Put dead letters of a stream back that fit it by now; by default only say how many would.

        `corrections` are rows that take the place of letters, by the letter's offset in `<stream>.dead`. A letter is
        put back once, also if a run is cut short and done again; do not run two at the same time.
        """
        return Redrive(self, stream, corrections or {}, self._port.record_bytes_max).run(dry_run=dry_run)

    def statistics(self) -> dict[str, int]:
        """Counters of the log, or of the server behind this hub."""
        return dict(self._port.call(StatisticsCall()).counters)

    def overview(self) -> Overview:
        """Counters, histograms, streams and connections at this moment: what `mainstem top` shows."""
        return look(self._port, SYSTEM_CLOCK)

    def close(self) -> None:
        """Flush and close its producers, close its consumers, then the log or the connection. Raises the first error,
        once everything is closed."""
        self._close(is_clean=True)

    def _close(self, *, is_clean: bool) -> None:
        errors: list[MainstemError] = []
        try:
            for user in list(self._open):
                try:
                    if isinstance(user, GroupConsumer | SpreadConsumer) and not is_clean:
                        user.abandon()
                    else:
                        user.close()
                except MainstemError as error:
                    errors.append(error)
        finally:
            self._port.close()
        if errors:
            raise errors[0]

    def __enter__(self) -> "Hub":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._close(is_clean=kind is None)

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


def connect_to(url: str, *, timeout: float, credentials: Credentials | None = None) -> Hub:
    """See mainstem.connect."""
    from mainstem.hub.remote import RemotePort

    return Hub(RemotePort(url, timeout, credentials=credentials), url)
