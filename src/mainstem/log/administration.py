"""Streams from the outside: create, look up, list, alter, delete, and where a time is. One answer for every door."""

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, takewhile
from typing import Final

import msgspec

from mainstem.core.batch import TIME_US_MAX
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import (
    DataLoss,
    IncompatibleSchema,
    InvalidRequest,
    InvalidSchema,
    InvalidSetting,
    ReadOnly,
    Refused,
    StreamExists,
)
from mainstem.core.events import Event
from mainstem.core.identity import new_stream_uuid
from mainstem.core.keys import check_key_fields
from mainstem.core.known_schemas import KnownSchemas
from mainstem.core.limits import (
    LIST_BYTES_MAX,
    RESTORED_EPOCHS_MAX,
    SHARDS_PER_STREAM_MAX,
)
from mainstem.core.matching import names_before
from mainstem.core.names import check_stream_name
from mainstem.core.placement import HASHES
from mainstem.core.schema import Schema
from mainstem.core.statistics import check_index_fields
from mainstem.log.contents import Contents
from mainstem.log.counted import Counted
from mainstem.log.flush import AlterStream, CreateStream, DeleteStream, NoteMoment, SetSchema, TrimShard
from mainstem.log.group_report import GroupReports
from mainstem.log.ledger.base import LedgerReader, ShardRow, StreamRow
from mainstem.log.log import LEDGER_EPOCH_FIRST, Log, unknown_stream
from mainstem.log.reader import LogReader
from mainstem.log.transactions import DeliveryNumber
from mainstem.log.upkeep import Pace
from mainstem.log.verified import VerifiedStreams
from mainstem.transport.counting import NoteCountsCall, NoteVerifiedCall
from mainstem.transport.port import (
    AlterStreamCall,
    Answer,
    Call,
    ConnectionsCall,
    CoolCall,
    CreateStreamCall,
    DeleteStreamCall,
    EraseKeyCall,
    Erasure,
    GetStreamCall,
    ListStreamsCall,
    MomentCall,
    OffsetsAtTimeCall,
    PlanColdCall,
    SchemaCall,
    SchemaInfo,
    SchemasCall,
    SetSchemaCall,
    StatisticsCall,
    StreamInfo,
    TrimStreamCall,
)
from mainstem.transport.sharing import (
    AbortDeliveryCall,
    AbortTransactionCall,
    GetGroupCall,
    ListGroupsCall,
    OpenWriterCall,
)

logger = logging.getLogger("mainstem.log")

RETENTION_US_DEFAULT: Final = 7 * 24 * 3600 * 1_000_000
# Longer than any disk lives; keeps the arithmetic far from overflow.
RETENTION_US_MAX: Final = 1000 * 365 * 24 * 3600 * 1_000_000
RETENTION_BYTES_MAX: Final = 1 << 60
# How long a reader has to learn from a tombstone that a key is gone.
TOMBSTONE_US_DEFAULT: Final = 24 * 3600 * 1_000_000
CLEANUPS: Final = ("delete", "compact", "compact,delete")
COMPATIBILITIES: Final = (
    "backward",
    "backward_transitive",
    "forward",
    "forward_transitive",
    "full",
    "full_transitive",
    "none",
)
# Whether a schema may follow others, the oldest first, in this mode; raises IncompatibleSchema.
CheckSchema = Callable[[Schema, Sequence[Schema], str], None]
# How often a schema is checked again because another one came before it.
_SET_SCHEMA_TRIES: Final = 8

# A stream in an answer at most, beside its name: the other fields, then three numbers for each shard.
_STREAM_BYTES: Final = 256
_SHARD_BYTES: Final = 27
# A version of a schema beside its bytes.
_SCHEMA_INFO_BYTES: Final = 64
# Shards whose first record is looked up for one answer.
_OLDEST_SHARDS_MAX: Final = 1_024

_UUID: Final = re.compile(r"[0-9a-f]{32}")


class Lookup:
    """What can be asked of a log that is only read. Any thread."""

    def __init__(
        self,
        ledger: LedgerReader,
        reader: LogReader,
        schemas: KnownSchemas,
        clock: Clock = SYSTEM_CLOCK,
        pace: Pace | None = None,
    ) -> None:
        self._ledger = ledger
        self._schemas = schemas
        self._reader = reader
        self._clock = clock
        # Who only reads a folder does not know how it is kept, and takes it that nothing was changed about that.
        self._pace = pace or Pace()
        self._groups = GroupReports(ledger, clock)
        self._verified = VerifiedStreams(ledger, reader)

    def handle(self, call: Call) -> Answer:
        match call:
            case GetStreamCall():
                return self._with_details(call.name) if call.details else self.find(call.name)
            case ListStreamsCall():
                return self._list(call.after, call.oldest)
            case SchemasCall():
                return self._versions(self.require(call.name), call.after)
            case SchemaCall():
                return Answer(schemas=(SchemaInfo(call.id, self._schemas.get(call.id).serialized),))
            case OffsetsAtTimeCall():
                return Answer(offsets=self._offsets_at(self.require(call.name), call.time_us))
            case MomentCall() if not call.settle:
                return Answer(offsets=self._moment_at(self.require(call.name), call.time_us))
            case StatisticsCall():
                return Answer(counters={"flushes_applied": self._ledger.applied().number})
            case ConnectionsCall():
                return Answer()  # nobody is connected to a folder
            case ListGroupsCall():
                return self._groups.list(call.after)
            case GetGroupCall():
                return self._groups.get(call.name, call.after)
            case _:
                raise ReadOnly("this hub only reads: another process writes the folder, or it was opened read_only")

    def find(self, name: str) -> Answer:
        """The stream of this name, or UnknownStream. From memory where the log is: nothing is counted."""
        return Answer(streams=(self.info(self.require(name), with_restored=True, counted=False),))

    def _with_details(self, name: str) -> Answer:
        """The same, looked into."""
        row = self.require(name)
        info = self.info(row, details=True, with_restored=True)
        if (verified := self._verified.of(row)) is not None:
            through_us, differing = verified.through_us, verified.differing
            info = msgspec.structs.replace(info, verified_through_us=through_us, windows_differing=differing)
        return Answer(streams=(info,))

    def _found(self, row: StreamRow) -> Answer:
        """The stream as somebody wants it who has changed it: with its records counted."""
        return Answer(streams=(self.info(row, with_restored=True),))

    def find_in_memory(self, name: str) -> Answer | None:
        """The same, but None if the disk would have to be asked for its schema."""
        row = self.require(name)
        return None if row.schema_id and self._schemas.at_hand(row.schema_id) is None else self.find(name)

    def _list(self, after: int, oldest: bool) -> Answer:
        rows = [row for row in self._ledger.list_streams() if not row.deleted_us and row.id > after]
        rows.sort(key=lambda row: row.id)
        sizes = accumulate(map(_listed_bytes, rows))
        count = max(1, sum(1 for _ in takewhile(lambda size: size <= LIST_BYTES_MAX, sizes)))
        infos = [self.info(row, is_listed=True) for row in rows[:count]]
        return Answer(streams=tuple(self._with_times(infos) if oldest else infos), more=count < len(rows))

    def _with_times(self, infos: list[StreamInfo]) -> Iterator[StreamInfo]:
        """The same with the times of their first records. Every shard is a query: for more than so many the rest of the
        list goes without."""
        left = _OLDEST_SHARDS_MAX
        for info in infos:
            shards = [shard for shard in range(info.shards) if info.starts[shard] < info.ends[shard]]
            if len(shards) > left:
                yield info
                continue
            left -= len(shards)
            times = [self._first_time(info, shard) for shard in shards]
            yield msgspec.structs.replace(info, oldest_us=min(filter(None, times), default=0))

    def _first_time(self, info: StreamInfo, shard: int) -> int:
        entries = self._ledger.entries_from(info.id, shard, info.starts[shard], 1)
        return entries[0].time_high if entries else 0

    def _versions(self, row: StreamRow, after: int) -> Answer:
        found: list[SchemaInfo] = []
        size = 0
        for version in self._ledger.load_versions(row.id):
            if version.version > after:
                schema = self._schemas.get(version.schema_id).serialized
                size += len(schema) + _SCHEMA_INFO_BYTES
                if found and size > LIST_BYTES_MAX:
                    return Answer(schemas=tuple(found), more=True)
                found.append(SchemaInfo(version.schema_id, schema, version.version, version.created_us))
        return Answer(schemas=tuple(found))

    def info(
        self,
        row: StreamRow,
        *,
        details: bool = False,
        with_restored: bool = False,
        is_listed: bool = False,
        counted: bool = True,
    ) -> StreamInfo:
        """The stream, its records counted; with details also what waits to be freed. Without both, from memory where
        the log is."""
        shards = [self._ledger.load_shard(row.id, shard) for shard in range(row.shards)]
        waiting, gone_by = self._waiting(row, shards) if details else ((0, 0), 0)
        return StreamInfo(
            id=row.id,
            uuid=row.uuid,
            name=row.name,
            shards=row.shards,
            hash=row.hash,
            generation=row.generation,
            retention_us=row.retention_us,
            created_us=row.created_us,
            starts=tuple(shard.start for shard in shards),
            ends=tuple(shard.stable for shard in shards),
            bytes=sum(shard.bytes for shard in shards) - waiting[0],
            epoch=self._ledger.epoch(),
            retention_bytes=row.retention_bytes,
            cleanup=row.cleanup,
            tombstone_us=row.tombstone_us,
            waiting_bytes=sum(waiting),
            gone_by_us=gone_by,
            restored=self._restored(row) if with_restored else (),
            schema_id=row.schema_id,
            schema_bytes=b"" if is_listed or not row.schema_id else self._schemas.get(row.schema_id).serialized,
            schema_version=row.schema_version,
            key=row.key,
            index=row.index,
            compatibility=row.compatibility,
            generations=() if is_listed else self._generations(row),
            statistics_bytes=self._ledger.statistics_bytes(row.id) if details else 0,
            missing=self._missing(row) if counted else (),
        )

    def _missing(self, row: StreamRow) -> tuple[int, ...]:
        found = tuple(self._ledger.missing_records(row.id, shard) for shard in range(row.shards))
        return found if any(found) else ()

    def _generations(self, row: StreamRow) -> tuple[tuple[int, tuple[int, ...]], ...]:
        if not row.generation:
            return ()
        # Those up to the row's own: one that came since is not of this answer.
        rows = self._ledger.load_generations(row.id)[: row.generation]
        return tuple((generation.shards, generation.barriers) for generation in rows)

    def _waiting(self, row: StreamRow, shards: Sequence[ShardRow]) -> tuple[tuple[int, int], int]:
        """Bytes that nobody can read any more, with rows and without, and when the last of them are off the disk."""
        now_us = self._clock.now_us()
        trimmed: Counter[int] = Counter()
        for shard, state in enumerate(shards):
            if state.start:
                trimmed.update(self._ledger.oldest_entries(row.id, shard, state.start, -1).blocks)
        dead = self._ledger.dead_bytes(row.id)
        blocks = [block for block in self._ledger.list_blocks() if block.id in dead or block.id in trimmed]
        return (trimmed.total(), sum(dead.values())), self._pace.gone_by_us(blocks, now_us)

    def _restored(self, row: StreamRow) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Where the shards ended in the backups that the log was restored from, the newest ones."""
        epoch = self._ledger.epoch()
        if epoch == LEDGER_EPOCH_FIRST:
            return ()
        # A shard that was empty then is not noted.
        noted = self._ledger.restored()
        ended = range(max(LEDGER_EPOCH_FIRST, epoch - RESTORED_EPOCHS_MAX), epoch)
        shards = range(row.shards)
        return tuple((past, tuple(noted.get(past, {}).get((row.id, shard), 0) for shard in shards)) for past in ended)

    def require(self, name: str) -> StreamRow:
        """The stream of this name, or UnknownStream."""
        row = self._ledger.stream_named(check_stream_name(name, reserved=True))
        if row is None:
            raise unknown_stream(name)
        return row

    def _moment_at(self, row: StreamRow, time_us: int) -> tuple[int, ...]:
        found = self._ledger.newest_moment(row.id, time_us + 1)
        return () if found is None else found.ends

    def _offsets_at(self, row: StreamRow, time_us: int) -> tuple[int, ...]:
        return tuple(self._offset_at(row, shard, time_us) for shard in range(row.shards))

    def _offset_at(self, row: StreamRow, shard: int, time_us: int) -> int:
        """The first record of `time_us` or later. The ledger knows the run of batches, the batches know the record."""
        offset = self._reader.offset_at_time(row, shard, time_us)
        contents = Contents.of(row, self._schemas.get)
        while True:
            try:
                batches = self._reader.read(row, shard, offset)
            except DataLoss:
                # Reading from here tells the reader what is gone.
                return offset
            if not batches:
                return offset
            for batch in batches:
                if batch.header.count and batch.header.time_high >= time_us:
                    return max(offset, contents.first_at(batch, time_us))
            offset = batches[-1].end


class Administration(Lookup):
    """The same for the process that writes. `auto_create_shards` is 0 where a missing stream is refused; `check_schema`
    knows which schemas may follow which."""

    def __init__(
        self,
        log: Log,
        *,
        check_schema: CheckSchema,
        retention_us: int = RETENTION_US_DEFAULT,
        auto_create_shards: int = 0,
    ) -> None:
        super().__init__(log.ledger, log.reader, log.schemas, log.clock, log.upkeep.pace)
        self._log = log
        self._check_schema = check_schema
        self._retention_us = retention_us
        self._auto_create_shards = auto_create_shards
        self._counted = Counted(log)

    def handle(self, call: Call) -> Answer:
        match call:
            case CreateStreamCall():
                return self._create(call)
            case GetStreamCall() if call.auto_create and self._auto_create_shards:
                shards = self._auto_create_shards
                return self._create(CreateStreamCall(call.name, shards=shards, exist_ok=True, uuid=new_stream_uuid()))
            case AlterStreamCall():
                return self._alter(call)
            case SetSchemaCall():
                return self._set_schema(call)
            case DeleteStreamCall():
                row = self.require(call.name)
                self._log.execute(DeleteStream(row.id, self._log.clock.now_us()))
                logger.info(Event("stream deleted", stream=row.name, records=self.info(row).records))
                return Answer()
            case AbortTransactionCall() | AbortDeliveryCall() | OpenWriterCall():
                return self._transact(call)
            case MomentCall() if call.settle:
                return self._note_moment(call)
            case NoteCountsCall() | NoteVerifiedCall():
                self._counted.note(call)
                return Answer()
            case TrimStreamCall() | EraseKeyCall():
                return self._trim(call) if isinstance(call, TrimStreamCall) else self._erase(call)
            case PlanColdCall() | CoolCall():
                return self._cool(call)
            case StatisticsCall():
                return Answer(counters=self._log.counters(), histograms=self._log.histograms())
            case _:
                return super().handle(call)

    def _transact(self, call: AbortTransactionCall | AbortDeliveryCall | OpenWriterCall) -> Answer:
        if isinstance(call, OpenWriterCall):
            return Answer(writer_epoch=self._log.open_writer(call.name).epoch)
        if isinstance(call, AbortDeliveryCall):
            delivery = DeliveryNumber(call.job, call.number)
            self._log.abort_delivery(self.require(call.name).id, delivery, for_good=call.for_good)
        else:
            self._log.abort_transaction(call.transaction)
        return Answer()

    def _note_moment(self, call: MomentCall) -> Answer:
        row = self.require(call.name)
        if self._moment_at(row, TIME_US_MAX) != self.info(row, counted=False).ends:
            self._log.execute(NoteMoment(row.id))
        return Answer(offsets=self._moment_at(row, call.time_us))

    def _alter(self, call: AlterStreamCall) -> Answer:
        row = self.require(call.name)
        _check_cleanup(call.retention_us, call.retention_bytes, call.cleanup, call.tombstone_us)
        given = (call.retention_us, call.retention_bytes, call.cleanup, call.tombstone_us, call.shards)
        self._log.execute(AlterStream(row.id, *given))
        if call.shards is not None and call.shards != row.shards:
            logger.info(Event("stream has more shards", stream=row.name, shards=call.shards, before=row.shards))
        return self._found(self.require(call.name))

    def _set_schema(self, call: SetSchemaCall) -> Answer:
        schema = Schema.parse(call.schema)
        _check_compatibility(call.compatibility)
        for _ in range(_SET_SCHEMA_TRIES):
            row = self.require(call.name)
            # The newest version again: a call that is repeated changes nothing more.
            is_same = bool(row.schema_id) and self._schemas.get(row.schema_id) == schema
            named = row if is_same else self._check_next_schema(row, schema, call.compatibility or row.compatibility)
            if call.dry_run:
                return self._found(named)
            try:
                self._store_schema(named, schema, call.compatibility, is_same=is_same)
            except Refused:
                if self.require(call.name).schema_version == row.schema_version:
                    raise
                continue  # another one came first: it is checked against that
            return self._found(self.require(call.name))
        raise Refused(f"others change the schema of {call.name!r} all the time; try again")

    def _check_next_schema(self, row: StreamRow, schema: Schema, compatibility: str) -> StreamRow:
        """The stream with its key and its index as the schema calls their columns, if it may have it."""
        earlier = [self._schemas.get(version.schema_id) for version in self._ledger.load_versions(row.id)]
        self._check_schema(schema, earlier, compatibility)
        return _renamed(row, schema, earlier) if earlier else row

    def _store_schema(self, row: StreamRow, schema: Schema, compatibility: str | None, *, is_same: bool) -> None:
        """The schema, for a stream whose key and index have the names that it has for them."""
        if is_same:
            if compatibility not in (None, row.compatibility):
                self._log.execute(AlterStream(row.id, compatibility=compatibility))
            return
        version, now_us = row.schema_version + 1, self._clock.now_us()
        names = (row.key, row.index)
        self._log.execute(
            SetSchema(row.id, schema.serialized, schema.fingerprint, version, now_us, compatibility, *names)
        )
        logger.info(Event("stream has a new schema", stream=row.name, version=version))

    def _trim(self, call: TrimStreamCall) -> Answer:
        row = self.require(call.name)
        if (call.before_us is None) == (call.offset is None):
            raise InvalidRequest("trim before a time or before an offset, one of them")
        ends = [self._ledger.load_shard(row.id, shard).stable for shard in range(row.shards)]
        if call.offset is not None and not 0 <= call.offset <= max(ends):
            raise InvalidRequest(
                f"the shards of {row.name!r} end at offset {max(ends)} at most; nothing is before {call.offset}"
            )
        if call.shard is not None and not 0 <= call.shard < row.shards:
            raise InvalidRequest(f"stream {row.name!r} has {row.shards} shards; there is no shard {call.shard}")
        for shard in range(row.shards) if call.shard is None else (call.shard,):
            before = self._offset_at(row, shard, call.before_us) if call.before_us is not None else call.offset
            assert before is not None
            end = self._ledger.load_shard(row.id, shard).stable
            if not 0 <= before <= end and call.shard is not None:
                raise InvalidRequest(f"shard {shard} of {row.name!r} ends at offset {end}; nothing is before {before}")
            self._log.execute(TrimShard(row.id, shard, min(max(before, 0), end)))
            self._log.upkeep.look_at((row.id, shard))
        logger.info(Event("stream trimmed", stream=row.name))
        return self._found(self.require(call.name))

    def _erase(self, call: EraseKeyCall) -> Answer:
        row = self.require(call.name)
        erased = self._log.upkeep.erase(row, call.key)
        self._log.cooling.forget(row.id)
        gone_by = self.info(row, details=True).gone_by_us
        logger.info(Event("records of one key erased", stream=row.name, records=erased))
        return Answer(erased=Erasure(erased, gone_by))

    def _cool(self, call: PlanColdCall | CoolCall) -> Answer:
        row = self.require(call.name)
        if isinstance(call, PlanColdCall):
            return Answer(cold=self._log.cooling.plan(row, call.before_us, *_given(call.bytes_min)))
        if call.file is None:
            self._log.cooling.abandon(call.abandon)
            return Answer()
        if call.file.stream != row.id:
            raise InvalidRequest(f"cold file {call.file.block} is not of stream {row.name!r}")
        entries = self._log.cooling.commit(call.file)
        logger.info(Event("records cooled", stream=row.name, records=call.file.records, entries=entries))
        return Answer()

    def _create(self, call: CreateStreamCall) -> Answer:
        name = check_stream_name(call.name)
        if not 1 <= call.shards <= SHARDS_PER_STREAM_MAX:
            raise InvalidRequest(f"a stream has 1 to {SHARDS_PER_STREAM_MAX} shards, not {call.shards}")
        if call.hash not in HASHES:
            raise InvalidSetting(f"hash {call.hash!r} is not known; use one of {', '.join(HASHES)}")
        if not _UUID.fullmatch(call.uuid):
            raise InvalidRequest("a new stream needs a UUID of 32 hexadecimal digits")
        retention_us = self._retention_us if call.retention_us is None else call.retention_us
        tombstone_us = TOMBSTONE_US_DEFAULT if call.tombstone_us is None else call.tombstone_us
        _check_cleanup(retention_us, call.retention_bytes, call.cleanup, tombstone_us)
        _check_compatibility(call.compatibility)
        schema = Schema.parse(call.schema) if call.schema else None
        if schema is not None:
            _check_columns(schema, call.key, call.index)
            self._check_schema(schema, [], call.compatibility)
        elif call.key or call.index:
            raise InvalidSetting("key and index name columns of a schema: give a schema too")
        created = False
        if self._ledger.stream_named(name) is None:
            command = CreateStream(
                uuid=call.uuid,
                name=name,
                shards=call.shards,
                hash=call.hash,
                retention_us=retention_us,
                created_us=self._clock.now_us(),
                retention_bytes=call.retention_bytes,
                cleanup=call.cleanup,
                tombstone_us=tombstone_us,
                schema=b"" if schema is None else schema.serialized,
                fingerprint=b"" if schema is None else schema.fingerprint,
                key=call.key,
                index=call.index,
                compatibility=call.compatibility,
            )
            # Another caller may be first; then the check below decides.
            with contextlib.suppress(StreamExists):
                self._log.execute(command)
                created = True
                logger.info(
                    Event("stream created", stream=name, shards=call.shards, retention_seconds=retention_us / 1e6)
                )
        row = self.require(name)
        if row.uuid != call.uuid and not call.exist_ok:
            raise StreamExists(f"stream {name!r} exists already; use exist_ok=True to take it as it is")
        return Answer(streams=(self.info(row, with_restored=True),), created=created)


def _given(value: int | None) -> tuple[int, ...]:
    return () if value is None else (value,)


def _listed_bytes(row: StreamRow) -> int:
    """What a stream takes in a list at most."""
    names = sum(4 * len(name) + 8 for name in (*row.key, *row.index))
    return _STREAM_BYTES + len(row.name) + names + _SHARD_BYTES * row.shards


def _check_compatibility(compatibility: str | None) -> None:
    if compatibility is not None and compatibility not in COMPATIBILITIES:
        raise InvalidSetting(
            f"compatibility {compatibility[:40]!r} is not known; use one of {', '.join(map(repr, COMPATIBILITIES))}"
        )


def _check_columns(schema: Schema, key: Sequence[str], index: Sequence[str]) -> None:
    """The columns that a stream names are there, and of a type that can be what they are for."""
    check_key_fields(schema, key)
    check_index_fields(schema, index)


def _renamed(row: StreamRow, schema: Schema, earlier: Sequence[Schema]) -> StreamRow:
    """The stream with its key and its index as its next schema calls their columns. What the schema does not have any
    more goes from the index; the key is in the rows for ever, so every version must have it."""
    before = earlier[-1]
    now = {was: name for name, was in names_before(schema, before).items()}
    if gone := [name for name in row.key if name not in now]:
        raise IncompatibleSchema(
            f"column {gone[0]!r} is part of the key of stream {row.name!r} and cannot go; keep it, or give the column "
            f"that takes its place the alias {gone[0]!r}"
        )
    key = tuple(now[name] for name in row.key)
    index = tuple(now[name] for name in row.index if name in now)
    for version, older in enumerate(earlier if key else (), 1):
        known, found = names_before(before, older), names_before(schema, older)
        for name, was in zip(key, (known[name] for name in row.key), strict=True):
            if found.get(name) != was:
                raise IncompatibleSchema(
                    f"column {name!r} is part of the key of stream {row.name!r}, and rows of version {version} have it "
                    f"as {was!r}; keep that as an alias"
                )
    try:
        _check_columns(schema, key, index)
    except InvalidSchema as error:
        raise IncompatibleSchema(f"stream {row.name!r}: {error}") from None
    return row._replace(key=key, index=index)


def _check_cleanup(
    retention_us: int | None, retention_bytes: int | None, cleanup: str | None, tombstone_us: int | None
) -> None:
    """What is None is not to be changed."""
    if retention_us is not None and not 1_000_000 <= retention_us <= RETENTION_US_MAX:
        raise InvalidSetting("retention must be between 1 second and 1000 years")
    if retention_bytes is not None and not 0 <= retention_bytes <= RETENTION_BYTES_MAX:
        raise InvalidSetting("retention_bytes must be 0, which is no limit, or a number of bytes up to 1 EiB")
    if cleanup is not None and cleanup not in CLEANUPS:
        raise InvalidSetting(f"cleanup {cleanup[:40]!r} is not known; use one of {', '.join(map(repr, CLEANUPS))}")
    if tombstone_us is not None and not 0 <= tombstone_us <= RETENTION_US_MAX:
        raise InvalidSetting("tombstones must be kept for 0 seconds to 1000 years")
