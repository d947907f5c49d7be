"""The feed: which batch a reader gets next. The server's side of a consumer, without I/O of its own.

After Scribe's Read Stream Service: it knows positions, not readers. A feed looks at a shard only when something may be
there: all shards at first, later those that a flush has touched.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Final

from mainstem.consume.barriers import Barriers, bounded
from mainstem.consume.ordering import Ordering, Sequenced, Window
from mainstem.consume.selection import Selection, cut_out, nothing
from mainstem.consume.watermark import Watermark
from mainstem.core.batch import FetchedBatch
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import DataLoss, InvalidRequest
from mainstem.core.limits import BATCH_OVERHEAD_BYTES, READ_ENTRIES_MAX
from mainstem.core.schema import Schema
from mainstem.log.hot_tail import HotTail
from mainstem.log.ledger.base import Entry, MomentRow, StreamRow
from mainstem.log.reader import LogReader
from mainstem.log.shared_reads import Stretch, Wanted
from mainstem.transport.port import ReadCounts

_ENTRIES_FIRST: Final = 4
# For so long one look for records that match goes on; then the reader is told how far it came, and others have a turn.
_LOOK_SECONDS: Final = 0.05


class Feed:
    """The shards of one stream, each from an offset on. One thread at a time.

    With `select` only what that selection wants comes out, and what it passes over is said by batches without records.
    It is called once, by the first read: to understand a predicate takes a while.

    Rows of a schema that the stream got after the one that the selection asks for come as they are stored: the reader
    is to ask for that one. Where it is plain it gets all as they are.

    With `window_us` no shard gets further ahead of the others than so much time; with 0 there is a single order. See
    `ordering`. What of a batch may come later is cut off; `schema_of` knows the schemas of rows.

    The stream may get more shards meanwhile: they are read too, unless there are ends. Offsets that are not given, of
    the last shards, are 0.
    """

    def __init__(
        self,
        reader: LogReader,
        stream: StreamRow,
        offsets: Sequence[int],
        ends: Sequence[int] | None,
        select: Callable[[], Selection] | None = None,
        *,
        is_plain: bool = False,
        window_us: int | None = None,
        schema_of: Callable[[int], Schema] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if max(len(offsets), len(ends or ())) > stream.shards:
            raise InvalidRequest(f"stream {stream.name!r} has {stream.shards} shards; give one offset for each")
        generations = reader.generations(stream.id)[: stream.generation] if stream.generation else ()
        self.stream = stream
        self._reader = reader
        self._select = select
        self._selection: Selection | None = None
        # Whether it wants everything, if need be in another form.
        self._is_plain = is_plain
        self.is_selected = select is not None and not is_plain
        self._clock = clock
        self.counts = ReadCounts()
        # By shard, up to where `counts` has what was skipped: a look may ask about more than it takes.
        self._counted: dict[int, int] = {}
        # Schemas that are no newer than the selection's.
        self._known: set[int] = {0}
        # Rows of the ledger that one look asks for: many where they are passed over, few where it does not come to
        # their end because their batches are wanted.
        self._entries_looked = READ_ENTRIES_MAX
        self._offsets = _padded(offsets, stream.shards)
        self._ends = None if ends is None else bounded(_padded(ends, stream.shards), generations)
        self._barriers = Barriers(generations)
        # A reader that wants one record does not wait for hundreds; one that goes on soon gets them.
        self._entries_max = _ENTRIES_FIRST
        # Shards that may have something to read, each at most once.
        self._ready = deque(shard for shard in range(stream.shards) if not self._is_done(shard))
        self._is_ready = [not self._is_done(shard) for shard in range(stream.shards)]
        self._open = sum(self._is_ready)
        self._barriers.passed(self._offsets, self._is_done)
        self._schema_of = schema_of
        self._window_us = window_us
        self._order: Ordering | None = None
        if window_us is not None:
            timeline = _Timeline(reader, stream.id)
            self._order = (
                Window(timeline, self._offsets, self._is_done, window_us)
                if window_us
                else Sequenced(timeline, self._offsets, self._is_done)
            )
        self._watermark = Watermark()

    @property
    def is_ordered(self) -> bool:
        return self._order is not None

    def watermark(self, settled_us: Callable[[], int]) -> int:
        """The time before which nothing will come any more from an ordered feed, 0 if none is known. `settled_us` is
        the log's: see Batcher."""
        assert self._order is not None
        return self._watermark.look(self._order.frontier_us, self._has_passed, lambda: (settled_us(), self._all_ends()))

    def _has_passed(self, ends: Sequence[int]) -> bool:
        return len(ends) <= len(self._offsets) and all(
            self._offsets[shard] >= end or self._is_done(shard) for shard, end in enumerate(ends)
        )

    def _all_ends(self) -> list[int]:
        """Where the shards end now, those included that came meanwhile."""
        row = self._reader.stream(self.stream.id) or self.stream
        return [self._reader.shard(row.id, shard).stable for shard in range(row.shards)]

    def before(self, batches: Iterable[FetchedBatch]) -> "Feed":
        """A feed that stands where this one stood before it gave these batches, which were the last."""
        offsets = list(self._offsets)
        for batch in batches:
            shard = batch.header.shard
            offsets[shard] = min(offsets[shard], batch.base)
        feed = Feed(
            self._reader,
            self.stream,
            offsets,
            self._ends,
            self._select,
            is_plain=self._is_plain,
            window_us=self._window_us,
            schema_of=self._schema_of,
            clock=self._clock,
        )
        feed.counts = self.counts
        # What the reader was told of the time was of what it has got.
        feed._watermark = self._watermark
        return feed

    @property
    def is_ready(self) -> bool:
        """Whether some shard may have something to read."""
        return bool(self._ready)

    @property
    def is_done(self) -> bool:
        """Whether every shard of a bounded feed was read to its end."""
        return self._ends is not None and self._open == 0

    def behind(self) -> int:
        """How many records its shards have that were not taken from here yet. Any thread, at about this moment.

        Only shards that may have something are looked at: for a reader that keeps up there are none.
        """
        ends = self._ends
        behind = 0
        for shard in (*tuple(self._ready), *self._barriers.held, *(self._order.held if self._order else ())):
            end = self._reader.shard(self.stream.id, shard).stable
            behind += max(0, (end if ends is None else min(end, ends[shard])) - self._offsets[shard])
        return behind

    def touch(self, shards: Iterable[int]) -> None:
        """These shards grew."""
        for shard in shards:
            if shard >= len(self._is_ready):
                self._learn_shards()
            elif not self._is_ready[shard] and not self._is_done(shard):
                self._is_ready[shard] = True
                self._ready.append(shard)
        if self._order is not None and self._order.held:
            # There may be a new moment, which lets those on that wait.
            self._order.look(self._offsets)
            self._let_on()

    def _learn_shards(self) -> None:
        """The stream has more shards than this knew."""
        row = self._reader.stream(self.stream.id)
        if row is None or row.generation == self.stream.generation:
            return
        self._barriers.add(self._reader.generations(row.id)[self.stream.generation : row.generation])
        self.stream = row
        self._offsets = _padded(self._offsets, row.shards)
        if self._ends is not None:
            self._ends = _padded(self._ends, row.shards)
        for shard in range(len(self._is_ready), row.shards):
            self._is_ready.append(not self._is_done(shard))
            if self._is_ready[shard]:
                self._ready.append(shard)
                self._open += 1
        self._let_on()

    def _is_held(self, shard: int) -> bool:
        """Whether the first shard has to wait where it stands; then it does."""
        if self._order is not None and self._order.holds(shard, self._offsets[shard]):
            # Unless there is a new moment: whoever noted it may have said so before this shard waited.
            self._order.look(self._offsets)
            if self._order.holds(shard, self._offsets[shard]):
                self._hold(shard, self._order)
                return True
        if not self._barriers.holds(shard, self._offsets[shard]):
            return False
        self._hold(shard, self._barriers)
        return True

    def _allowed(self, shard: int, batches: list[FetchedBatch]) -> list[FetchedBatch]:
        """What of the next batches of the first shard the reader may get now; nothing if the shard has to wait, which
        it does then."""
        if max([batch.header.generation for batch in batches], default=0) > self.stream.generation:
            self._learn_shards()
        allowed = self._barriers.allowed(shard, batches)
        if batches and not allowed:
            self._hold(shard, self._barriers)
        elif self._order is not None and allowed:
            allowed = self._in_order(self._order, shard, allowed)
            if not allowed:
                self._hold(shard, self._order)
        return allowed

    def _in_order(self, order: Ordering, shard: int, batches: list[FetchedBatch]) -> list[FetchedBatch]:
        """What of the next batches the other shards allow."""
        order.look(self._offsets)
        stop = order.stop(shard)
        if stop is None or batches[-1].end <= stop:
            return batches
        kept = [batch for batch in batches if batch.end <= stop]
        over, offset = batches[len(kept)], max(self._offsets[shard], batches[len(kept)].base)
        if offset < stop:
            number = over.header.schema_id
            schema = self._schema_of(number) if number and self._schema_of is not None else None
            kept += cut_out(over, offset, stop, schema)
        return kept

    def _hold(self, shard: int, by: Barriers | Ordering) -> None:
        self._ready.popleft()
        by.hold(shard)
        self._let_on()

    def _let_on(self) -> None:
        self._ready.extend(self._barriers.passed(self._offsets, self._is_done))
        order = self._order
        if order is not None:
            order.move(self._offsets)
            if order.shards > len(self._offsets):
                self._learn_shards()
            self._ready.extend(order.freed(self._offsets))

    def hot(self, tail: HotTail, bytes_max: int) -> list[FetchedBatch]:
        """The next batches if memory holds them; [] if there are none or the disk must be asked (`is_ready` tells)."""
        if self.is_selected:
            return []
        stream = self.stream.id
        if self._select is None:
            return self._take(lambda shard, offset: tail.find(stream, shard, offset, bytes_max))
        return self._take(lambda shard, offset: self._finished(tail.find(stream, shard, offset, bytes_max)))

    def shared(self, bytes_max: int) -> list[FetchedBatch]:
        """The next batches if a reader who wants the same has read them a moment ago; else as `hot`. Not for a feed in
        order, which may have to cut them."""
        if self._order is not None or (self.is_selected and self._selection is None):
            return []
        kept, selection = self._reader.shared, self._selection
        stretch: Stretch | None = None

        def find(shard: int, offset: int) -> list[FetchedBatch]:
            nonlocal stretch
            if selection is not None:
                stretch = kept.find((self.stream.id, shard), selection.wanted, offset)
                if stretch is not None:
                    made = stretch.after(offset, bytes_max)
                    selection.tally.shared += len(made)
                    return made
                if self.is_selected:
                    return []
            stretch = kept.find((self.stream.id, shard), None, offset)
            found = [] if stretch is None else stretch.after(offset, bytes_max)
            return found if self._select is None else self._finished(found)

        batches = self._take(find)
        if batches and stretch is not None and batches[0] is stretch.batches[0]:
            self.counts.add(*stretch.told)
        return batches

    def _take(self, find: Callable[[int, int], list[FetchedBatch]]) -> list[FetchedBatch]:
        """The next batches if they can be found without work."""
        while self._ready:
            shard = self._ready[0]
            offset = self._offsets[shard]
            row = self._reader.shard(self.stream.id, shard)
            if offset >= row.stable:
                self._rest(shard)
                continue
            if self._is_held(shard):
                continue
            batches = find(shard, offset) if offset >= row.start else []
            if not batches:
                return []
            batches = self._allowed(shard, batches)
            if batches:
                self._advance(shard, batches[-1].end)
                return batches
        return []

    @property
    def place(self) -> Hashable:
        """What would be read next; the same for all readers that would read the same. None if that is not known."""
        if not self._ready or (self.is_selected and self._selection is None):
            return None
        shard = self._ready[0]
        return self.stream.id, shard, self._wanted, self._offsets[shard]

    @property
    def _wanted(self) -> Wanted:
        return self._selection.wanted if self.is_selected and self._selection is not None else None

    def _finished(self, batches: list[FetchedBatch]) -> list[FetchedBatch]:
        """These if the reader gets them as they are; none if rows may have to be made of some, which takes too long for
        whoever has no thread to spare."""
        return [] if any(map(self._needs_work, batches)) else batches

    def _needs_work(self, batch: FetchedBatch) -> bool:
        return not batch.header.schema_id and (self._selection is None or self._selection.needs(batch.header))

    def read(self, bytes_max: int) -> list[FetchedBatch]:
        """The next batches of one shard, from memory or disk; [] when there is nothing now. DataLoss moves on behind
        the lost range; any other error comes again."""
        if self.is_selected:
            return self._read_selected(self._bound(), bytes_max)
        if self._selection is not None and self._selection.is_shared and (made := self.shared(bytes_max)):
            return made
        while self._ready:
            shard = self._ready[0]
            if self._is_held(shard):
                continue
            version = self._reader.shared.version
            try:
                batches = self._reader.read(self.stream, shard, self._offsets[shard], bytes_max, self._entries_max)
            except DataLoss as loss:
                raise self._pass_over(shard, loss) from loss.__cause__
            if not batches:
                self._rest(shard)
                continue
            if self._select is not None and self._selection is None and any(map(self._needs_work, batches)):
                # Rows must be made of these, and somebody who wants the same may just have done so.
                self._bound()
                return self.read(bytes_max)
            batches = self._allowed(shard, batches)
            if batches:
                self._entries_max = min(2 * self._entries_max, READ_ENTRIES_MAX)
                end = batches[-1].end
                if self._select is not None:
                    batches, end = self._convert(shard, batches, version)
                self._advance(shard, end)
                return batches
        return []

    def _convert(self, shard: int, batches: list[FetchedBatch], version: int) -> tuple[list[FetchedBatch], int]:
        """Batches of which everything is wanted, some of them in another form, and the offset after them. They are
        kept for others who want the same."""
        if all(batch.header.schema_id for batch in batches):
            return batches, batches[-1].end
        selection = self._bound()
        converted: list[FetchedBatch] = []
        for batch in batches:
            try:
                left = selection.apply(batch)
            except Exception:
                if not converted:
                    raise
                # As for a loss: what was made before it comes first, and the next read meets the error again.
                return converted, batch.base
            converted += left
        if selection.is_shared and self._order is None:
            self._reader.shared.keep((self.stream.id, shard), selection.wanted, converted, version)
        return converted, batches[-1].end

    def _bound(self) -> Selection:
        if self._selection is None:
            assert self._select is not None
            self._selection = self._select()
            self._selection.readers.add(self)
        return self._selection

    def _read_selected(self, selection: Selection, bytes_max: int) -> list[FetchedBatch]:
        """What the selection wants of the next batches, of any shard: about `bytes_max` of it, or what a moment's look
        has found. Batches without records say how far it looked."""
        deadline = self._clock.monotonic() + _LOOK_SECONDS
        passed = _Passed(self.stream.id)

        def is_enough(more: int = 0) -> bool:
            return passed.bytes + more >= bytes_max or self._clock.monotonic() >= deadline

        while self._ready and (passed.is_empty or not is_enough()):
            shared = self.shared(bytes_max - passed.bytes)
            if shared:
                passed.add_all(shared)
                continue
            if not self._ready:
                break
            shard = self._ready[0]
            try:
                if not self._look_alone(selection, shard, passed, is_enough):
                    continue
            except Exception as error:
                if not passed.is_empty:
                    # What was found before it comes first; the next read meets the error again.
                    break
                if isinstance(error, DataLoss):
                    raise self._pass_over(shard, error) from error.__cause__
                raise
            if selection.is_shared and not passed.is_empty:
                # Others wait for what was looked for here: what comes next may be somebody else's to look for.
                break
        return passed.close()

    def _look_alone(
        self, selection: Selection, shard: int, passed: "_Passed", is_enough: Callable[[int], bool]
    ) -> bool:
        """Look, unless somebody who wants the same is looking there: then what he has found can be had when it says no.
        Nobody looks for longer than a moment."""
        if self._order is not None:
            self._look(selection, shard, passed, is_enough)
            return True
        with self._reader.shared.looking((self.stream.id, shard), selection.wanted, self._offsets[shard]) as is_mine:
            if is_mine:
                self._look(selection, shard, passed, is_enough)
            return is_mine

    def _look(self, selection: Selection, shard: int, passed: "_Passed", is_enough: Callable[[int], bool]) -> None:
        """Let through what is wanted of the next batches of the first shard, and let the others have their turn. After
        an error it stands where it was met."""
        begin = self._offsets[shard]
        # What may have to be cut is read whole, and is nobody else's.
        part = selection.part if self._order is None else None
        looked = _Passed(self.stream.id)
        version = self._reader.shared.version
        # Behind that, somebody has looked.
        until = self._reader.shared.next_base((self.stream.id, shard), selection.wanted, begin)
        before = self._counted_now()
        try:
            for batch in self._reader.walk(
                self.stream, shard, begin, self._entries_looked, can_skip=self._can_skip, part=part, until=until
            ):
                allowed = self._allowed(shard, [batch])
                if not allowed:
                    return
                for piece in allowed:
                    self._sift(selection, piece, looked)
                    self._offsets[shard] = piece.end
                if self._is_done(shard) or self._offsets[shard] < batch.end or is_enough(looked.bytes):
                    self._entries_looked = max(self._entries_looked // 2, _ENTRIES_FIRST)
                    break
            else:
                self._entries_looked = min(2 * self._entries_looked, READ_ENTRIES_MAX)
        finally:
            found = looked.close()
            if found and self._order is None:
                opened, skipped, undecoded = map(int.__sub__, self._counted_now(), before)
                told = opened, skipped, undecoded
                self._reader.shared.keep((self.stream.id, shard), selection.wanted, found, version, told)
            passed.add_all(found)
        if self._offsets[shard] > begin:
            self._advance(shard, self._offsets[shard])
        else:
            self._rest(shard)

    def _counted_now(self) -> tuple[int, int, int]:
        return self.counts.opened, self.counts.skipped, self.counts.undecoded

    def _sift(self, selection: Selection, batch: FetchedBatch, passed: "_Passed") -> None:
        """Let through what is wanted of a batch."""
        if not batch.header.count or self._is_newer(selection, batch.header.schema_id):
            passed.add(batch)
        elif selection.can_skip_batch(batch):
            self.counts.skipped += 1
            passed.add(nothing(self.stream.id, batch.header.shard, batch.base, batch.end))
        else:
            selected = selection.apply(batch)
            self.counts.opened += 1
            for left in selected:
                passed.add(left)

    def _can_skip(self, entry: Entry, filters: Callable[[], bytes]) -> bool:
        selection = self._selection
        assert selection is not None
        if self._is_newer(selection, entry.schema_id) or not selection.can_skip(entry, filters):
            return False
        if entry.base >= self._counted.get(entry.shard, 0):
            self._counted[entry.shard] = entry.end
            self.counts.skipped += 1
        return True

    def _is_newer(self, selection: Selection, schema_id: int) -> bool:
        """Whether the stream got this schema after the one that is asked for."""
        asked = selection.view.schema_id
        if schema_id == asked or schema_id in self._known:
            return False
        versions = self._reader.versions(self.stream.id)
        if versions.get(schema_id, 0) > versions.get(asked, 0):
            return True
        self._known.add(schema_id)
        return False

    def _pass_over(self, shard: int, loss: DataLoss) -> DataLoss:
        """Go on behind what is lost; in a single order only as far as it is the shard's turn. What is to be told."""
        if isinstance(self._order, Sequenced):
            stop = self._order.stop(shard)
            if stop is not None and loss.last >= stop:
                loss = DataLoss(**{**loss.facts(), "last": stop - 1})
        self._advance(shard, loss.last + 1)
        return loss

    def _rest(self, shard: int) -> None:
        """Nothing to read in the first shard: a flush that adds to it is announced by `touch` after it can be read."""
        self._ready.popleft()
        self._is_ready[shard] = False

    def _advance(self, shard: int, offset: int) -> None:
        """The shard was read up to `offset`: let the others have their turn."""
        self._offsets[shard] = offset
        self._ready.popleft()
        if self._is_done(shard):
            self._is_ready[shard] = False
            self._open -= 1
        else:
            self._ready.append(shard)
        self._let_on()

    def _is_done(self, shard: int) -> bool:
        ends = self._ends
        # A bounded reader wants nothing of a shard that came later.
        return ends is not None and (shard >= len(ends) or self._offsets[shard] >= ends[shard])


def _padded(offsets: Sequence[int], shards: int) -> list[int]:
    return [*offsets, *[0] * (shards - len(offsets))]


class _Timeline:
    """The moments of one stream, as the ledger has them."""

    def __init__(self, reader: LogReader, stream: int) -> None:
        self.after: Callable[[int, int], Sequence[MomentRow]] = partial(reader.moments, stream)
        self.before: Callable[[int], MomentRow | None] = partial(reader.moment_before, stream)


class _Passed:
    """Batches as they come through a selection: those without records become one for each run of them."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._gaps: dict[int, tuple[int, int]] = {}
        self.batches: list[FetchedBatch] = []
        # What those that have records take.
        self.bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self.batches and not self._gaps

    def add(self, batch: FetchedBatch) -> None:
        shard = batch.header.shard
        gap = self._gaps.pop(shard, None)
        if not batch.header.count:
            self._gaps[shard] = (batch.base if gap is None else gap[0], batch.end)
            return
        if gap is not None:
            self.batches.append(nothing(self._stream, shard, *gap))
        self.batches.append(batch)
        self.bytes += len(batch.payload) + BATCH_OVERHEAD_BYTES

    def add_all(self, batches: Iterable[FetchedBatch]) -> None:
        for batch in batches:
            self.add(batch)

    def close(self) -> list[FetchedBatch]:
        for shard, gap in self._gaps.items():
            self.batches.append(nothing(self._stream, shard, *gap))
        return self.batches
