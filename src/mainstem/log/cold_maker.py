"""Makes cold files of entries, in any process that sees the data folder, and finds those that there are."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from mainstem.core.batch import FetchedBatch
from mainstem.core.checksum import crc32c
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import FolderUnusable, InvalidPayload, Refused, UnknownStream
from mainstem.core.events import Event
from mainstem.core.known_schemas import KnownSchemas
from mainstem.core.limits import COLD_TASK_FILES_MAX
from mainstem.core.schema import Schema
from mainstem.log import cold
from mainstem.log.blocks.base import BlockStore
from mainstem.log.blocks.local import block_name
from mainstem.log.cold_plan import entries_between, gathered
from mainstem.log.contents import Contents, SchemaOf
from mainstem.log.disk import LocalDisk
from mainstem.log.folder import Folder
from mainstem.log.frame import BlockHeader, is_cold
from mainstem.log.ledger.base import Entry, LedgerReader, StreamRow
from mainstem.log.ledger.rules.replacement import fingerprint
from mainstem.log.ledger.sqlite import SqliteLedgerReader
from mainstem.log.reader import LogReader
from mainstem.log.replacement import Records, records_of
from mainstem.transport.port import ColdFile, ColdPlan, ColdTask

logger = logging.getLogger("mainstem.log")


class Cooler:
    """Makes cold files of the entries of tasks. One thread."""

    def __init__(
        self, ledger: LedgerReader, blocks: BlockStore, schema_of: SchemaOf, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._ledger = ledger
        self._blocks = blocks
        self._schema_of = schema_of
        self._clock = clock
        self._reader = LogReader(ledger, blocks, recent_bytes=0)

    def make(self, plan: ColdPlan, task: ColdTask) -> Iterator[ColdFile]:
        """The files of one task, each written when it is asked for, and not durable before it is committed. Refused if
        its entries have changed, DataLoss if they cannot be read."""
        stream = self._reader.require_stream(task.stream)
        entries = list(entries_between(self._ledger, task.stream, task.shard, task.base, task.end))
        if (len(entries), entries[0].base if entries else -1) != (task.rows, task.base):
            raise Refused("these entries were replaced by others meanwhile; plan again")
        block = task.block
        for run, batches in gathered(self._loaded(stream, entries), task.bytes_min):
            made = self._write(plan, stream, block, run, batches)
            if made is not None:
                yield made
                block += 1
            if block == task.block + COLD_TASK_FILES_MAX:
                return

    def checksum(self, file: ColdFile) -> int:
        """The crc32c of a file that was made and is not committed yet."""
        return crc32c(self._blocks.read_part(file.block, file.part, file.bytes))

    def _loaded(self, stream: StreamRow, entries: Sequence[Entry]) -> Iterator[tuple[Entry, Sequence[FetchedBatch]]]:
        """Each entry with its batches. Read many at a time, held one at a time."""
        bases = np.array([entry.base for entry in entries])

        def place(batch: FetchedBatch) -> int:
            return int(np.searchsorted(bases, batch.base, side="right")) - 1

        for index, batches in groupby(self._reader.load(stream, entries), place):
            yield entries[index], list(batches)

    def _write(
        self, plan: ColdPlan, stream: StreamRow, block: int, run: Sequence[Entry], batches: Sequence[FetchedBatch]
    ) -> ColdFile | None:
        shard = run[0].shard
        records = records_of(batches, Contents.of(stream, self._schema_of))
        header = BlockHeader(
            block, bytes.fromhex(plan.log), plan.writer_epoch, plan.epoch, plan.flush, self._clock.now_us()
        )
        try:
            data = b"".join(cold.pack(header, plan.flush, stream.id, shard, records))
            _require_same(cold.records_in(cold.parse(data, block), records.contents), records)
        except InvalidPayload as error:
            place = {"stream": stream.name, "shard": shard, "first": records.first, "last": records.stop - 1}
            logger.warning(Event("records that make no cold file are left as they are", reason=error, **place))
            return None
        part = self._blocks.write_part(block, [data])
        return ColdFile(
            stream.id,
            shard,
            run[0].base,
            run[-1].end,
            len(run),
            fingerprint(run),
            block,
            len(data),
            len(records.offsets),
            part,
        )


@contextmanager
def open_cooler(path: Path, log_uuid: str) -> Iterator[Cooler]:
    """For a process that sees the data folder `path` and does not hold its lock. FolderUnusable if that is not the
    folder of this log."""
    with _opened(path, log_uuid) as (folder, ledger):
        yield Cooler(ledger, folder.blocks, KnownSchemas(ledger.load_schema).get)


@contextmanager
def _opened(path: Path, log_uuid: str | None = None) -> Iterator[tuple[Folder, SqliteLedgerReader]]:
    folder = Folder(path, LocalDisk())
    with closing(folder.blocks):
        if folder.require() != log_uuid and log_uuid is not None:
            raise FolderUnusable(f"{path} is not the folder of log {log_uuid} here; run the job where its files are")
        with closing(SqliteLedgerReader(folder.ledger)) as ledger:
            yield folder, ledger


class ColdPath(NamedTuple):
    """A cold file of a stream, for who reads Parquet: what `shard` has of offsets `base` to `end - 1`."""

    path: Path
    shard: int
    base: int
    end: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    schema_id: int


class ColdStream(NamedTuple):
    """What of a stream is in cold files: where its shards begin and end, and the schemas of the files and its own.
    `is_whole`: nothing is anywhere else."""

    stream: StreamRow
    files: list[ColdPath]
    is_whole: bool
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    schemas: dict[int, Schema]


def cold_files(path: Path, stream: str) -> list[ColdPath]:
    """The cold files of a stream in a data folder, in the order of shards and offsets. A file goes ten minutes at the
    earliest after the entry that points to it."""
    return cold_stream(path, stream).files


def cold_stream(path: Path, stream: str, *, if_whole: bool = False) -> ColdStream:
    """The same, and what is to be known of them. With `if_whole` nobody looks on once something is elsewhere."""
    with _opened(path) as (folder, ledger):
        row = ledger.stream_named(stream)
        if row is None:
            raise UnknownStream(f"there is no stream {stream!r} in {path}")
        shards = [ledger.load_shard(row.id, shard) for shard in range(row.shards)]
        found: list[ColdPath] = []
        is_whole = True
        for shard, state in enumerate(shards):
            for entry in entries_between(ledger, row.id, shard, state.start, state.stable):
                if is_cold(entry.block):
                    found.append(_path_of(folder, entry))
                elif entry.count:
                    is_whole = False
                    if if_whole:
                        break
        known = {file.schema_id for file in found} | {row.schema_id}
        return ColdStream(
            row,
            found,
            is_whole,
            tuple(state.start for state in shards),
            tuple(state.stable for state in shards),
            {number: KnownSchemas(ledger.load_schema).get(number) for number in known if number},
        )


def _path_of(folder: Folder, entry: Entry) -> ColdPath:
    path = folder.path / "blocks" / block_name(entry.block)
    return ColdPath(path, entry.shard, entry.base, entry.end, entry.count, entry.schema_id)


def _require_same(read: Records, written: Records) -> None:
    """What was just made is read back before anybody relies on it."""
    is_same = (
        (read.first, read.stop, read.generation, read.schema_id)
        == (written.first, written.stop, written.generation, written.schema_id)
        and np.array_equal(read.offsets, written.offsets)
        and np.array_equal(read.times, written.times)
        and list(read.columns) == list(written.columns)
        and all(_are_same(read.columns[name], column) for name, column in written.columns.items())
    )
    if not is_same:
        raise InvalidPayload("a Parquet file does not give them back as they are")


def _are_same(read: pa.Array, written: pa.Array) -> bool:
    if not read.type.equals(written.type):
        return False
    # To Arrow nothing is like NaN, not even itself.
    return read.equals(written) or repr(read.to_pylist()) == repr(written.to_pylist())
