"""What a producer knows of the streams it writes to: looked up once, and corrected by what the log answers."""

import math
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import pyarrow as pa

from mainstem.core.callbacks import check_may_wait, is_calling
from mainstem.core.clock import Clock
from mainstem.core.errors import InvalidRecord, InvalidRequest, MainstemError, StreamDeleted, UnknownStream
from mainstem.core.identity import new_stream_uuid
from mainstem.core.schema import Schema
from mainstem.produce import dead_letters
from mainstem.produce.chunk import Parcel
from mainstem.produce.options import ProducerOptions
from mainstem.produce.returns import changed
from mainstem.produce.row_batches import rows_schema
from mainstem.transport.port import CreateStreamCall, GetStreamCall, Port, SetSchemaCall, StreamInfo

# How often streams are looked up again where no answer would tell that they were deleted.
_LOOKUP_SECONDS = 5.0
# How often a stream is looked up because a row does not fit the schema that is known of it, and how long that may take.
_NEWER_SECONDS = 1.0
_NEWER_TIMEOUT = 2.0


class KnownStreams:
    """The streams of one producer, by name. Any thread; what an answer says is noted with the producer's lock held."""

    def __init__(self, port: Port, options: ProducerOptions, clock: Clock) -> None:
        self._port = port
        self._options = options
        self._clock = clock
        self._known: dict[str, StreamInfo] = {}
        self._looked_up: dict[str, float] = {}
        # What was found when a row did not fit, and when that was.
        self._newest: dict[str, tuple[StreamInfo, float]] = {}

    def get(self, name: str) -> StreamInfo:
        """A stream by its name; asked for if it is not known."""
        _check_name(name)
        info = self._known.get(name)
        if info is None or (self._options.acks == "none" and self._is_stale(name)):
            info = self.look_up(name)
        return info

    def look_up(self, name: str) -> StreamInfo:
        """A stream as it is now."""
        _check_name(name)
        self._port.check_usable()
        check_may_wait(f"the first send to {name!r}")
        call = GetStreamCall(name, auto_create=True)
        info = self._port.call(call, self._options.delivery_timeout).streams[0]
        self._known[name] = info
        self._looked_up[name] = self._clock.monotonic()
        return info

    def name_of(self, stream: int) -> str:
        """The name of a stream that is known, by its id."""
        return next((info.name for info in self._known.values() if info.id == stream), str(stream))

    def newer(self, info: StreamInfo) -> StreamInfo | None:
        """The stream with a newer schema than this one, if it has one. It is not what is known until `adopt`: rows that
        fit the older schema may not fit this one."""
        found, at = self._newest.get(info.name, (info, -math.inf))
        if self._clock.monotonic() - at >= _NEWER_SECONDS and not is_calling():
            self._port.check_usable()
            with suppress(MainstemError):
                call = GetStreamCall(info.name)
                found = self._port.call(call, min(self._options.delivery_timeout, _NEWER_TIMEOUT)).streams[0]
            self._newest[info.name] = (found, self._clock.monotonic())
        is_newer = (found.id, found.schema_version) > (info.id, info.schema_version)
        return self.present(found) if found.schema_bytes and is_newer else None

    def adopt(self, info: StreamInfo) -> None:
        """What `newer` found is what is known from now on."""
        self._known[info.name] = info

    def _is_stale(self, name: str) -> bool:
        """Whether a stream should be looked up again: nobody tells an acks="none" producer that it was deleted."""
        return (
            self._clock.monotonic() - self._looked_up[name] > _LOOKUP_SECONDS
            and self._port.can_take()
            and not is_calling()
        )

    def dead_stream(self, stream: str) -> StreamInfo:
        """The stream that keeps the dead letters of another; made if there is none yet."""
        name = dead_letters.dead_stream_of(stream)
        info = self._known.get(name)
        if info is None:
            self._port.check_usable()
            check_may_wait(f"the first dead letter of {stream!r}")
            call = CreateStreamCall(name, retention_us=dead_letters.RETENTION_US, exist_ok=True, uuid=new_stream_uuid())
            info = self._port.call(call, self._options.delivery_timeout).streams[0]
            self._known[name], self._looked_up[name] = info, self._clock.monotonic()
        if info.schema_bytes:
            raise InvalidRequest(f"stream {name!r} has a schema of its own, and dead letters are no rows of it")
        return info

    def infer(self, stream: str, table: pa.Table) -> StreamInfo:
        """A stream that got the schema of a table, if it had none."""
        info = self.look_up(stream)
        if not info.schema_bytes:
            check_may_wait(f"giving {stream!r} a schema")
            schema = Schema(rows_schema(table))
            self._port.call(SetSchemaCall(stream, schema.serialized), self._options.delivery_timeout)
            info = self.look_up(stream)
        return info

    def present(self, stream: StreamInfo) -> StreamInfo:
        """The stream with the number of shards that is known by now."""
        known = self._known.get(stream.name)
        # Almost always it is the same.
        if known is stream or known is None or known.id != stream.id:
            return stream
        return _with_shards_of(stream, known)

    def note_shards(self, parcel: Parcel) -> None:
        """What is sent from now on is made for the shards that the log says."""
        for chunk in parcel.chunks:
            known = self._known.get(chunk.stream.name)
            if known is not None and known.id == chunk.stream.id:
                self._known[chunk.stream.name] = changed(known, chunk.error)

    def forget_deleted(self, parcel: Parcel) -> None:
        """A stream that was deleted may exist again under its name: look it up anew."""
        for chunk in parcel.chunks:
            if isinstance(chunk.error, StreamDeleted | UnknownStream):
                self._known.pop(chunk.stream.name, None)


def alike(streams: Sequence[StreamInfo]) -> list[StreamInfo]:
    """Streams that travel together; one that is there twice is the same both times. What is known may be older than one
    of them, where two threads looked it up at once, and some of its records would be refused and others taken."""
    newest = {stream.id: stream for stream in sorted(streams, key=lambda stream: stream.generation)}
    return [_with_shards_of(stream, newest[stream.id]) for stream in streams]


def _with_shards_of(stream: StreamInfo, known: StreamInfo) -> StreamInfo:
    """The stream with the shards that it had in another look at it, if that was a later one."""
    if known.generation <= stream.generation:
        return stream
    return msgspec.structs.replace(stream, shards=known.shards, generation=known.generation)


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise InvalidRecord(f"a stream's name is text, not {type(name).__name__}")
