"""Streams from the outside: create, look up, list, alter, delete, and where a time is. One answer for every door."""

import contextlib
import logging
import re
from itertools import accumulate, takewhile
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core import layouts, payload
from mainstem.core.batch import BatchHeader, Buffer
from mainstem.core.errors import (
    DataLoss,
    InvalidRequest,
    InvalidSetting,
    ReadOnly,
    StreamExists,
)
from mainstem.core.identity import new_stream_uuid
from mainstem.core.limits import LIST_BYTES_MAX, RESTORED_EPOCHS_MAX, SHARDS_PER_STREAM_MAX
from mainstem.core.names import check_stream_name
from mainstem.core.placement import HASHES
from mainstem.log.flush import AlterStream, CreateStream, DeleteStream
from mainstem.log.ledger.base import LedgerReader, StreamRow
from mainstem.log.log import LEDGER_EPOCH_FIRST, Log, unknown_stream
from mainstem.log.reader import LogReader
from mainstem.transport.port import (
    AlterStreamCall,
    Answer,
    Call,
    CreateStreamCall,
    DeleteStreamCall,
    GetStreamCall,
    ListStreamsCall,
    OffsetsAtTimeCall,
    StatisticsCall,
    StreamInfo,
)

logger = logging.getLogger("mainstem.log")

RETENTION_US_DEFAULT: Final = 7 * 24 * 3600 * 1_000_000
# Longer than any disk lives; keeps the arithmetic far from overflow.
RETENTION_US_MAX: Final = 1000 * 365 * 24 * 3600 * 1_000_000

# A stream in an answer at most, beside its name: the other fields, then two offsets for each shard.
_STREAM_BYTES: Final = 256
_SHARD_BYTES: Final = 18

_UUID: Final = re.compile(r"[0-9a-f]{32}")


class Lookup:
    """What can be asked of a log that is only read. Any thread."""

    def __init__(self, ledger: LedgerReader, reader: LogReader) -> None:
        self._ledger = ledger
        self._reader = reader

    def handle(self, call: Call) -> Answer:
        match call:
            case GetStreamCall():
                return self.find(call.name)
            case ListStreamsCall():
                return self._list(call.after)
            case OffsetsAtTimeCall():
                return Answer(offsets=self._offsets_at(self._require(call.name), call.time_us))
            case StatisticsCall():
                return Answer(counters={"flushes_applied": self._ledger.applied().number})
            case _:
                raise ReadOnly("this hub only reads: another process writes the folder, or it was opened read_only")

    def find(self, name: str) -> Answer:
        """The stream of this name, or UnknownStream."""
        return Answer(streams=(self.info(self._require(name), with_restored=True),))

    def _list(self, after: int) -> Answer:
        rows = [row for row in self._ledger.list_streams() if not row.deleted_us and row.id > after]
        rows.sort(key=lambda row: row.id)
        sizes = accumulate(_STREAM_BYTES + len(row.name) + _SHARD_BYTES * row.shards for row in rows)
        count = max(1, sum(1 for _ in takewhile(lambda size: size <= LIST_BYTES_MAX, sizes)))
        return Answer(streams=tuple(self.info(row) for row in rows[:count]), more=count < len(rows))

    def info(self, row: StreamRow, *, with_restored: bool = False) -> StreamInfo:
        shards = [self._ledger.load_shard(row.id, shard) for shard in range(row.shards)]
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
            bytes=sum(shard.bytes for shard in shards),
            epoch=self._ledger.epoch(),
            restored=self._restored(row) if with_restored else (),
        )

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

    def _require(self, name: str) -> StreamRow:
        row = self._ledger.stream_named(check_stream_name(name, reserved=True))
        if row is None:
            raise unknown_stream(name)
        return row

    def _offsets_at(self, row: StreamRow, time_us: int) -> tuple[int, ...]:
        return tuple(self._offset_at(row, shard, time_us) for shard in range(row.shards))

    def _offset_at(self, row: StreamRow, shard: int, time_us: int) -> int:
        """The first record of `time_us` or later. The ledger knows the run of batches, the batches know the record."""
        offset = self._reader.offset_at_time(row, shard, time_us)
        while True:
            try:
                batches = self._reader.read(row, shard, offset)
            except DataLoss:
                # Reading from here tells the reader what is gone.
                return offset
            if not batches:
                return offset
            for batch in batches:
                if batch.header.time_high >= time_us:
                    return max(offset, batch.base + _first_at(batch.header, batch.payload, time_us))
            offset = batches[-1].end


def _first_at(header: BatchHeader, data: Buffer, time_us: int) -> int:
    """The index of the first record of a batch with a time of `time_us` or later; the batch has one."""
    if not header.layout & layouts.HAS_TIMESTAMP:
        return 0
    batch = payload.decode(header.encoding, header.layout, header.count, header.raw_len, data)
    times = batch.column("timestamp").cast(pa.int64())
    return int(pc.index(pc.greater_equal(times, time_us), True).as_py())


class Administration(Lookup):
    """The same for the process that writes. `auto_create_shards` is 0 where a missing stream is refused."""

    def __init__(self, log: Log, *, retention_us: int = RETENTION_US_DEFAULT, auto_create_shards: int = 0) -> None:
        super().__init__(log.ledger, log.reader)
        self._log = log
        self._retention_us = retention_us
        self._auto_create_shards = auto_create_shards

    def handle(self, call: Call) -> Answer:
        match call:
            case CreateStreamCall():
                return self._create(call)
            case GetStreamCall() if call.auto_create and self._auto_create_shards:
                shards = self._auto_create_shards
                return self._create(CreateStreamCall(call.name, shards=shards, exist_ok=True, uuid=new_stream_uuid()))
            case AlterStreamCall():
                row = self._require(call.name)
                if call.retention_us is not None:
                    _check_retention(call.retention_us)
                self._log.execute(AlterStream(row.id, call.retention_us))
                return self.find(call.name)
            case DeleteStreamCall():
                row = self._require(call.name)
                self._log.execute(DeleteStream(row.id, self._log.clock.now_us()))
                logger.info("stream %s was deleted", row.name)
                return Answer()
            case StatisticsCall():
                return Answer(counters=self._log.counters())
            case _:
                return super().handle(call)

    def _create(self, call: CreateStreamCall) -> Answer:
        name = check_stream_name(call.name)
        if not 1 <= call.shards <= SHARDS_PER_STREAM_MAX:
            raise InvalidRequest(f"a stream has 1 to {SHARDS_PER_STREAM_MAX} shards, not {call.shards}")
        if call.hash not in HASHES:
            raise InvalidSetting(f"hash {call.hash!r} is not known; use one of {', '.join(HASHES)}")
        if not _UUID.fullmatch(call.uuid):
            raise InvalidRequest("a new stream needs a UUID of 32 hexadecimal digits")
        retention_us = self._retention_us if call.retention_us is None else call.retention_us
        _check_retention(retention_us)
        if self._ledger.stream_named(name) is None:
            command = CreateStream(call.uuid, name, call.shards, call.hash, retention_us, self._log.clock.now_us())
            # Another caller may be first; then the check below decides.
            with contextlib.suppress(StreamExists):
                self._log.execute(command)
                logger.info("stream %s was created with %d shards", name, call.shards)
        row = self._require(name)
        if row.uuid != call.uuid and not call.exist_ok:
            raise StreamExists(f"stream {name!r} exists already; use exist_ok=True to take it as it is")
        return Answer(streams=(self.info(row, with_restored=True),))


def _check_retention(retention_us: int) -> None:
    if not 1_000_000 <= retention_us <= RETENTION_US_MAX:
        raise InvalidSetting("retention must be between 1 second and 1000 years")
