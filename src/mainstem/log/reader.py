"""Reads stored batches by offset: from the hot tail, else from the block the ledger names. What leaves is checked."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple

from mainstem.core import pieces
from mainstem.core.batch import BatchHeader, Buffer, FetchedBatch
from mainstem.core.errors import DataLoss, InvalidPayload, StreamDeleted, UnknownStream
from mainstem.core.limits import (
    BATCH_OVERHEAD_BYTES,
    COLD_READS_BYTES_MAX,
    PIECES_STORED_BYTES_MIN,
    READ_BYTES_MAX,
    READ_ENTRIES_MAX,
    RECENT_READS_BYTES_MAX,
    RECENT_STATISTICS_BYTES_MAX,
    SHARED_READS_BYTES_MAX,
    SHARED_READS_BYTES_MIN,
)
from mainstem.core.pieces import FetchedPart, Part
from mainstem.core.statistics import length_of, pieces_in
from mainstem.log.blocks.base import BlockMissing, BlockStore
from mainstem.log.cold_reads import ColdReads
from mainstem.log.frame import (
    BATCH_KINDS,
    FRAME_BYTES,
    FrameDamaged,
    FrameHeader,
    is_cold,
    parse_header,
    payload_of,
    statistics_of,
)
from mainstem.log.hot_tail import HotTail
from mainstem.log.ledger.base import Entry, GenerationRow, LedgerReader, MomentRow, ShardRow, StreamRow
from mainstem.log.read_ahead import Begun, ReadAhead
from mainstem.log.recent_reads import RecentBytes, RecentReads
from mainstem.log.shared_reads import SharedReads, about

# What comes last in a shard is looked into without asking the ledger if it is not more than this.
_TAIL_BYTES_MAX: Final = 32 * 1_024
# Bytes of other shards between two entries that are cheaper to read along than to skip.
_GAP_BYTES_MAX: Final = 16 * 1_024
# Less than this is read sooner than another thread is told to.
_AHEAD_BYTES_MIN: Final = 256 * 1_024
# Read of a payload together with its header: in a batch of 60 columns all that stands before the first.
_FRONT_BYTES: Final = 4 * 1_024


# Whether no record of an entry is wanted; the second brings its whole statistics, of which the entry has a part.
CanSkip = Callable[[Entry, Callable[[], bytes]], bool]


class LogReader:
    """Batches of any shard from any offset. Any thread. Holds no state of any reader."""

    def __init__(
        self,
        ledger: LedgerReader,
        blocks: BlockStore,
        hot: HotTail | None = None,
        recent_bytes: int | None = None,
    ) -> None:
        self._ledger = ledger
        self._blocks = blocks
        self._hot = hot
        self._recent = RecentBytes(self._read_block, RECENT_READS_BYTES_MAX if recent_bytes is None else recent_bytes)
        # Only who hears of erasures may remember batches by their offsets: who has the hot tail.
        self.shared = SharedReads(SHARED_READS_BYTES_MAX if hot is not None else 0, SHARED_READS_BYTES_MIN)
        self._statistics = RecentReads(self._read_statistics, RECENT_STATISTICS_BYTES_MAX)
        cold_bytes = COLD_READS_BYTES_MAX if recent_bytes is None else recent_bytes
        self.cold = ColdReads(self._read_block, blocks, ledger, cold_bytes)
        self._ahead = ReadAhead()
        # Reads of blocks, and the bytes they brought.
        self.disk_reads = 0
        self.disk_bytes = 0

    def close(self) -> None:
        """Read ahead no more, and nothing from memory: who reads on is told that the log is closed."""
        self._ahead.close()
        self.shared.close()

    def shard(self, stream: int, shard: int) -> ShardRow:
        """Where the shard starts and ends now."""
        return self._ledger.load_shard(stream, shard)

    def read(
        self,
        stream: StreamRow,
        shard: int,
        offset: int,
        bytes_max: int = READ_BYTES_MAX,
        entries_max: int = READ_ENTRIES_MAX,
    ) -> list[FetchedBatch]:
        """Batches from the one that holds `offset`, about `bytes_max` of them, at least one; [] at the end. DataLoss if
        records from `offset` on were trimmed or are damaged; its `last + 1` is where to go on."""
        end = self._end(stream, shard, offset)
        if offset >= end:
            return []
        hot = self._find_hot(stream.id, shard, offset, bytes_max)
        if hot:
            return hot
        shared = self.shared.find((stream.id, shard), None, offset)
        if shared is not None:
            return shared.after(offset, bytes_max)
        version = self.shared.version
        known = self.shared.next_base((stream.id, shard), None, offset)
        # Also if he wants less now: the rest is what he, and others, want next.
        size = bytes_max if self._hot is None else max(bytes_max, READ_BYTES_MAX)

        def read(entries: Sequence[Entry]) -> Iterator[FetchedBatch]:
            return self._batches(stream, _before(entries, known), offset, size)

        batches = list(self._from_entries(stream, shard, offset, entries_max, read))
        if batches:
            self.shared.keep((stream.id, shard), None, batches, version)
        return about(batches, bytes_max)

    def walk(
        self,
        stream: StreamRow,
        shard: int,
        offset: int,
        entries_max: int = READ_ENTRIES_MAX,
        *,
        can_skip: CanSkip,
        part: Part | None = None,
        until: int | None = None,
    ) -> Iterator[FetchedBatch]:
        """The batches of up to `entries_max` entries, from the one that holds `offset`, each read when it is asked for;
        none at the end. Those that begin at `until` or behind it are not needed.

        Entries of which `can_skip` says so are not read: one batch without records stands for several that follow each
        other. Of batches of the schema of `part` that can be read by columns, only those columns are. DataLoss as
        `read`, if it is met first; else what stands before it is all that comes.
        """
        end = self._end(stream, shard, offset)
        if offset >= end:
            return
        # Who skips looks at the ledger's rows first: most of what is in memory need not be looked into either. But for
        # the little that came last: a follower finds it here.
        hot = self._find_hot(stream.id, shard, offset, _TAIL_BYTES_MAX)
        if hot and _is_little(hot, end):
            yield from hot
            return

        def read(entries: Sequence[Entry]) -> Iterator[FetchedBatch]:
            return self._wanted(stream, _before(entries, until), offset, can_skip, part)

        yield from self._from_entries(stream, shard, offset, entries_max, read)

    def _end(self, stream: StreamRow, shard: int, offset: int) -> int:
        """Where the shard ends now. DataLoss if `offset` was trimmed."""
        row = self._ledger.load_shard(stream.id, shard)
        if offset < row.start:
            raise DataLoss(stream=stream.name, shard=shard, first=offset, last=row.start - 1)
        return row.stable

    def _from_entries(
        self,
        stream: StreamRow,
        shard: int,
        offset: int,
        entries_max: int,
        read: Callable[[Sequence[Entry]], Iterator[FetchedBatch]],
    ) -> Iterator[FetchedBatch]:
        """What `read` makes of the entries from the one that holds `offset`, up to what it cannot read."""
        before: Sequence[Entry] = ()
        while True:
            entries = self._ledger.entries_from(stream.id, shard, offset, entries_max)
            if not entries or entries[0].base > offset:
                # The row is gone though the shard reached so far back a moment ago: it was trimmed since, which is
                # said here. Or the stream was deleted, which its readers are told by others.
                self._end(stream, shard, offset)
                return
            is_first = True
            try:
                for batch in read(entries):
                    is_first = False
                    yield batch
            except _FileMissing as missing:
                # What is no longer there may be elsewhere by now, or trimmed: the ledger is asked again before that is
                # called a loss.
                if is_first and entries != before:
                    before = entries
                    self._end(stream, shard, offset)
                    continue
                if is_first:
                    raise missing.loss from None
            except DataLoss:
                # What lies before the damage is delivered first; the next call meets the damage at its own offset.
                if is_first:
                    raise
            return

    def _wanted(
        self, stream: StreamRow, entries: Sequence[Entry], offset: int, can_skip: CanSkip, part: Part | None
    ) -> Iterator[FetchedBatch]:
        """Batches of the entries that are not skipped, and one without records for each run of those that are."""
        runs = _runs(entries, lambda entry: can_skip(entry, partial(self.statistics_of, entry)), part)
        run = next(runs, None)
        ahead: Begun[_Brought] | None = None
        goes_on = False
        try:
            while run is not None:
                brought = self._bring(stream, run, offset, part) if ahead is None else ahead.result()
                # Who takes one run and has enough needs nothing ahead. Of a part little is read.
                following = next(runs) if goes_on and run.is_followed and part is None else None
                ahead = None
                if following is not None and following.size >= _AHEAD_BYTES_MIN:
                    ahead = self._ahead.begin(partial(self._bring, stream, following, offset, part))
                yield from brought.batches
                if brought.error is not None:
                    raise brought.error
                if not brought.batches or brought.batches[-1].end < run.entries[-1].end:
                    # Of this run something is left, which comes before anything else.
                    return
                run = following or next(runs, None)
                goes_on = True
        finally:
            if ahead is not None:
                ahead.drop()

    def _bring(self, stream: StreamRow, run: "_Run", offset: int, part: Part | None) -> "_Brought":
        """The batches of a run, from memory or from its block."""
        first, last = run.entries[0], run.entries[-1]
        if run.is_skipped:
            return _Brought([_without_records(first._replace(span=last.end - first.base))])
        hot = self._find_hot(stream.id, first.shard, max(offset, first.base), READ_BYTES_MAX)
        batches = [batch for batch in hot if batch.end <= last.end]
        if batches:
            return _Brought(batches)
        try:
            batches.extend(self._run(stream, self._known(run.entries), offset, part))
        except (DataLoss, _FileMissing) as error:
            return _Brought(batches, error)
        return _Brought(batches)

    def _known(self, entries: list[Entry]) -> list[Entry]:
        """Those of the first of these entries that were read a moment ago, for whoever can ask for the others later;
        all if there are none."""
        end = entries[0].position + self._recent.known(entries[0].block, entries[0].position)
        known = list(takewhile(lambda entry: entry.position + entry.length <= end, entries))
        return known or entries

    def _find_hot(self, stream: int, shard: int, offset: int, bytes_max: int) -> list[FetchedBatch]:
        return self._hot.find(stream, shard, offset, bytes_max) if self._hot is not None else []

    def load(self, stream: StreamRow, entries: Sequence[Entry]) -> Iterator[FetchedBatch]:
        """Every batch of these entries, which are a shard's and in order, from their blocks, with its statistics.
        DataLoss if one of them cannot be read."""
        for run in _neighbours(entries, READ_BYTES_MAX):
            try:
                if is_cold(run[0].block):
                    yield from self._cold_batches(stream, run[0], run[0].base)
                elif run[0].length:
                    yield from self._frames(stream, run, run[0].base, with_statistics=True)
                else:
                    yield from map(_without_records, run)
            except _FileMissing as missing:
                raise missing.loss from None

    def statistics_of(self, entry: Entry) -> bytes:
        """All statistics of an entry's batch, checked; b"" if it has none. Also if they cannot be read: then the batch
        has to be, and whoever does is told what is the matter."""
        length = length_of(entry.statistics)
        if not length:
            return b""
        try:
            return bytes(self._statistics.read(entry.block, entry.position, FRAME_BYTES + length))
        except (FrameDamaged, BlockMissing, OSError):
            return b""

    def _read_statistics(self, block: int, position: int, length: int) -> bytes:
        data = self._read_block(block, position, length)
        return statistics_of(data, 0, parse_header(data, 0, position, block))

    def offset_at_time(self, stream: StreamRow, shard: int, time_us: int) -> int:
        """The base of the first stored run that holds a record of `time_us` or later, else the end."""
        entry = self._ledger.entry_at_time(stream.id, shard, time_us)
        row = self._ledger.load_shard(stream.id, shard)
        return row.stable if entry is None else max(entry.base, row.start)

    def entries(self, stream: int, shard: int, offset: int, limit: int) -> Sequence[Entry]:
        """The rows of the ledger from the one that holds `offset`, in order, so many at most."""
        return self._ledger.entries_from(stream, shard, offset, limit)

    def flush(self) -> int:
        """The number of the last flush that was applied."""
        return self._ledger.applied().number

    def stream(self, stream: int) -> StreamRow | None:
        """The stream as it is now; None if it is forgotten."""
        return self._ledger.load_stream(stream)

    def generations(self, stream: int) -> Sequence[GenerationRow]:
        """The changes of its number of shards, the oldest first."""
        return self._ledger.load_generations(stream)

    def moments(self, stream: int, after_us: int, limit: int) -> Sequence[MomentRow]:
        """Where its shards stood at times after this one, the oldest first. Whoever has read a record that is stored
        behind a moment finds that moment."""
        return self._ledger.load_moments(stream, after_us, limit)

    def moment_before(self, stream: int, time_us: int) -> MomentRow | None:
        """The last of them before this time."""
        return self._ledger.newest_moment(stream, time_us)

    def versions(self, stream: int) -> Mapping[int, int]:
        """The newest version that each schema of a stream is, by the schema's id."""
        return {row.schema_id: row.version for row in self._ledger.load_versions(stream)}

    def require_stream(self, stream: int) -> StreamRow:
        row = self._ledger.load_stream(stream)
        if row is None:
            raise UnknownStream(f"no stream has id {stream}")
        if row.deleted_us:
            raise StreamDeleted(f"stream {row.name!r} was deleted")
        return row

    def _batches(
        self, stream: StreamRow, entries: Sequence[Entry], offset: int, bytes_max: int
    ) -> Iterator[FetchedBatch]:
        got = 0
        for run in _neighbours(entries, bytes_max):
            for batch in self._run(stream, run, offset, None):
                yield batch
                got += batch.header.stored_len + BATCH_OVERHEAD_BYTES
                if got >= bytes_max:
                    return
            if 2 * got >= bytes_max:
                # Another run would be read for a part of it only.
                return

    def _run(self, stream: StreamRow, run: list[Entry], offset: int, part: Part | None) -> Iterable[FetchedBatch]:
        """The batches of neighbours."""
        if not run[0].length:
            return map(_without_records, run)
        if is_cold(run[0].block):
            return self._cold_batches(stream, run[0], offset)
        found = None if part is None else self._read_part(run[0], part)
        return self._frames(stream, run, offset) if found is None else [found]

    def _cold_batches(self, stream: StreamRow, entry: Entry, offset: int) -> Iterator[FetchedBatch]:
        """The batches of a cold block, from the one that holds `offset`."""
        wanted = max(offset, entry.base)
        try:
            batches = self.cold.read(stream, entry)
        except BlockMissing as error:
            loss = self._damaged(stream, entry, wanted, entry.end - 1, entry.position, "the file is missing")
            raise _FileMissing(loss) from error
        except FrameDamaged as error:
            raise self._damaged(stream, entry, wanted, entry.end - 1, error.position, error.reason) from error
        except OSError as error:
            raise self._damaged(stream, entry, wanted, entry.end - 1, entry.position, str(error)) from error
        yield from (batch for batch in batches if batch.end > offset)

    def _read_part(self, entry: Entry, part: Part) -> FetchedPart | None:
        """Some columns of an entry's batch, checked; None if they cannot be had alone. Also if something is wrong with
        them: then all of it has to be read, and whoever does is told what is the matter."""
        table = _pieces_of(entry, part)
        if table is None:
            return None
        length = FRAME_BYTES + length_of(entry.statistics)
        try:
            # What comes first in a payload is small, and read along.
            head = self._recent.read(entry.block, entry.position, min(length + _FRONT_BYTES, entry.length))
            header = parse_header(head, 0, entry.position, entry.block)
            if header.header_len != length or not _is_of(header, entry) or header.span != entry.span:
                return None

            def payload(begin: int, end: int) -> Buffer:
                if length + end <= len(head):
                    return memoryview(head)[length + begin : length + end]
                return self._recent.read(entry.block, entry.position + length + begin, end - begin)

            known = statistics_of(head, 0, header)
            return pieces.read(entry.base, header.batch_header(b""), known[table], part, payload)
        except (FrameDamaged, InvalidPayload, BlockMissing, OSError):
            return None

    def _frames(
        self, stream: StreamRow, run: list[Entry], offset: int, *, with_statistics: bool = False
    ) -> Iterator[FetchedBatch]:
        """The batches of entries that lie near each other in one block, from the one that holds `offset`."""
        origin = run[0].position
        data = self._load(stream, run, max(offset, run[0].base))
        for entry in run:
            base = entry.base
            at = entry.position - origin
            stop = at + entry.length
            while at < stop:
                header = self._header(stream, data, at, origin + at, entry, max(base, offset))
                if base + header.span > offset:
                    payload = self._checked(stream, data, at, header, base, max(base, offset))
                    known = statistics_of(data, at, header) if with_statistics else b""
                    yield FetchedBatch(base, header.batch_header(known), payload)
                base += header.span
                at += header.total_len

    def _load(self, stream: StreamRow, run: list[Entry], wanted: int) -> Buffer:
        first, last = run[0], run[-1]
        length = last.position + last.length - first.position
        try:
            return self._recent.read(first.block, first.position, length)
        except BlockMissing as error:
            end = self._end_in_block(last)
            loss = self._damaged(stream, first, wanted, end - 1, first.position, "the file is missing")
            raise _FileMissing(loss) from error
        except OSError as error:
            raise self._damaged(stream, first, wanted, last.end - 1, first.position, str(error)) from error

    def _read_block(self, block: int, position: int, length: int) -> bytes:
        data = self._blocks.read(block, position, length)
        self.disk_reads += 1
        self.disk_bytes += len(data)
        return data

    def _end_in_block(self, entry: Entry) -> int:
        """Where the shard leaves the block of this entry: a missing file is told as one range."""
        while True:
            following = self._ledger.entries_from(entry.stream, entry.shard, entry.end, READ_ENTRIES_MAX)
            for found in following:
                if found.block != entry.block:
                    return entry.end
                entry = found
            if not following:
                return entry.end

    def _header(
        self, stream: StreamRow, data: Buffer, at: int, position: int, entry: Entry, wanted: int
    ) -> FrameHeader:
        try:
            header = parse_header(data, at, position, entry.block)
            if not _is_of(header, entry):
                raise FrameDamaged(position, "frame of another shard")
            return header
        except FrameDamaged as error:
            # Without the header nothing says where the next frame begins: the rest of the entry is unreadable.
            raise self._damaged(stream, entry, wanted, entry.end - 1, error.position, error.reason) from error

    def _checked(
        self, stream: StreamRow, data: Buffer, at: int, header: FrameHeader, base: int, wanted: int
    ) -> memoryview:
        try:
            return payload_of(data, at, header)
        except FrameDamaged as error:
            entry = Entry(header.stream, header.shard, base, 0, 0, header.block, 0, 0, 0, 0, 0, b"")
            last = base + header.span - 1
            raise self._damaged(stream, entry, wanted, last, error.position, error.reason) from error

    def _damaged(self, stream: StreamRow, entry: Entry, first: int, last: int, position: int, detail: str) -> DataLoss:
        return DataLoss(
            stream=stream.name,
            shard=entry.shard,
            first=first,
            last=last,
            reason="damaged",
            path=self._blocks.where(entry.block),
            position=position,
            detail=detail,
        )


class _FileMissing(Exception):
    """The block of an entry is not there. `loss` is what to tell the reader if the entry is still the same."""

    def __init__(self, loss: DataLoss) -> None:
        self.loss = loss


def _without_records(entry: Entry) -> FetchedBatch:
    """What stands for offsets whose records were all compacted away or erased."""
    header = BatchHeader(entry.stream, entry.shard, *(0,) * 13, span=entry.span)
    return FetchedBatch(entry.base, header, b"")


def _before(entries: Sequence[Entry], offset: int | None) -> Sequence[Entry]:
    """Those that begin before an offset, if there is one."""
    return entries if offset is None else [entry for entry in entries if entry.base < offset]


def _is_of(header: FrameHeader, entry: Entry) -> bool:
    """Whether a frame holds a batch, and one of the entry's shard."""
    return header.kind in BATCH_KINDS and (header.stream, header.shard) == (entry.stream, entry.shard)


def _pieces_of(entry: Entry, part: Part) -> slice | None:
    """Where in its statistics the pieces of an entry's batch are; None if this part of it cannot be read alone."""
    if entry.schema_id != part.schema_id or entry.length < PIECES_STORED_BYTES_MIN:
        return None
    try:
        return pieces_in(entry.statistics)
    except InvalidPayload:
        return None


def _is_little(hot: Sequence[FetchedBatch], end: int) -> bool:
    """Whether these batches are the last of their shard, and so small that they have no statistics."""
    return hot[-1].end >= end and sum(batch.header.stored_len for batch in hot) <= _TAIL_BYTES_MAX


class _Run(NamedTuple):
    """Entries that follow each other and are passed over, or read together."""

    entries: list[Entry]
    is_skipped: bool
    # Whether something to be read comes next; if not, nobody has asked yet how much is passed over.
    is_followed: bool

    @property
    def size(self) -> int:
        return sum(entry.length for entry in self.entries)


class _Brought(NamedTuple):
    """The batches of a run up to the first that could not be read."""

    batches: list[FetchedBatch]
    error: DataLoss | _FileMissing | None = None


def _runs(entries: Sequence[Entry], is_skipped: Callable[[Entry], bool], part: Part | None) -> Iterator[_Run]:
    """Entries grouped by whether they are skipped, in their order, and where they are not, as `_neighbours`. Only the
    first of the next group has been asked about when a group is taken."""
    run: list[Entry] = []
    was_skipped = False
    for entry in entries:
        skipped = not entry.length or is_skipped(entry)
        if run and (skipped != was_skipped or not (skipped or _is_near(run, entry, READ_BYTES_MAX, part))):
            yield _Run(run, was_skipped, is_followed=not skipped)
            run = []
        was_skipped = skipped
        run.append(entry)
    if run:
        yield _Run(run, was_skipped, is_followed=False)


def _neighbours(entries: Sequence[Entry], bytes_max: int) -> Iterator[list[Entry]]:
    """Entries grouped where their bytes lie close together, so that one read brings many small ones."""
    run: list[Entry] = []
    for entry in entries:
        if run and not _is_near(run, entry, bytes_max):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def _is_near(run: Sequence[Entry], entry: Entry, bytes_max: int, part: Part | None = None) -> bool:
    """Whether an entry is read together with those before it. One that can be read in parts stays alone."""
    last = run[-1]
    gap = entry.position - last.position - last.length
    size = entry.position + entry.length - run[0].position
    if entry.block != last.block or not 0 <= gap <= _GAP_BYTES_MAX or size > bytes_max:
        return False
    return part is None or (_pieces_of(entry, part) is None and _pieces_of(last, part) is None)
