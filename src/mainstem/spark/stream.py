"""The streaming source: what a query reads next, micro-batch by micro-batch."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from mainstem.consume.places import offsets_of
from mainstem.consume.view import with_metadata
from mainstem.core.cursor import Cursor
from mainstem.core.errors import DataLoss, InvalidSetting, StreamDeleted
from mainstem.core.events import Event
from mainstem.core.predicate import Predicate
from mainstem.spark.generations import held_back
from mainstem.spark.group import QueryGroup
from mainstem.spark.options import ReadOptions, begin_of
from mainstem.spark.origin import opened
from mainstem.spark.progress import (
    INITIAL,
    QueryOffset,
    Range,
    Standing,
    gone_since,
    knows,
    moved_to,
    shared_out,
    was_reset,
    within_bytes,
)
from mainstem.spark.reading import (
    Partition,
    Shape,
    all_columns,
    batches_of,
    cores,
    for_spark,
    losses_for_spark,
    note_loss,
    parts_for,
    planned,
)
from mainstem.spark.slices import extents, runs_of, slices_of
from mainstem.transport.port import GetStreamCall, RunsCall, StreamInfo

logger = logging.getLogger("mainstem.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark asks of a streaming source. Its process lives as long as the query, that of a task does not."""

    def __init__(self, options: ReadOptions, schema: st.StructType) -> None:
        if options.group and options.access.data:
            raise InvalidSetting(
                f"option group: the progress of a query is kept by a server, and {options.access.data} is a folder. If "
                f"none has it yet, start one (mainstem serve --data {options.access.data}); its address is then the "
                "hub, as in mainstem://127.0.0.1:7070"
            )
        self._options = options
        info = self._look_up()
        self._shape = Shape.of(info, schema)
        if options.where:
            Predicate.parse(options.where).bind(with_metadata(all_columns(info)))
        # Whether the group was told if it shall hold retention. Once: whoever changes that meanwhile has the last word.
        self._has_held = options.hold_us is None
        # Of a query that ends: where the stream ended when it began.
        self._target: tuple[int, ...] | None = None
        # With failOnDataLoss=false, of the batch that was planned last: what was gone by then, and by shard where its
        # slices begin and end. The next end tells of it.
        self._lost: dict[Range, None] = {}
        self._planned: dict[int, tuple[int, int]] = {}

    # Offsets.

    def initialOffset(self) -> dict[str, Any]:
        """What it stands for is found once, by the first batch, and written into its end."""
        return dict(INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._look_up().ends

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = QueryOffset.from_json(start)
        info = self._look_up()
        if before is None:
            first, is_news = self._first(info), True
        else:
            at = replace(self._at(before, info), begins=None, lost=())
            first, is_news = self._published(info, at, before)
        found = self._next(info, first, is_limited=not isinstance(limit, ReadAllAvailable))
        is_told = not (found.lost or found.trimmed)
        if not is_news and is_told and found.offsets == first.offsets:
            return start
        return found.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        info = self._look_up()
        return QueryOffset(info.uuid, info.epoch, info.ends).to_json()

    def _first(self, info: StreamInfo) -> QueryOffset:
        """Where a query without a checkpoint begins: where its group stands, so that nothing is passed over if the
        checkpoint was lost; if it has none that reads the stream, where the options say."""
        options = self._options
        if not options.group:
            begins = self._chosen(info)
            return QueryOffset(info.uuid, info.epoch, begins, begins=begins)
        group = QueryGroup(opened(options.access), options.group)
        standing = group.standing(info)
        if standing is not None and options.starting is not None:
            logger.warning(
                Event(
                    "the query has no checkpoint, and its group has read the stream before: it goes on where the group "
                    "stands. The options say where a new group begins; mainstem groups reset moves this one",
                    group=options.group,
                    stream=info.name,
                )
            )
        standing = standing or group.stand(info, self._chosen(info))
        self._hold(group)
        first = QueryOffset(info.uuid, info.epoch, standing.offsets, begins=standing.offsets)
        return _standing_at(first, standing)

    def _chosen(self, info: StreamInfo) -> tuple[int, ...]:
        """Where the options say that a new query begins. Without a word neither end is right: the query may have run
        before, and have lost its checkpoint."""
        options = self._options
        if options.starting is None and info.records:
            group = f", and its group {options.group} has not read the stream yet" if options.group else ""
            raise InvalidSetting(
                f"nothing says where in stream {info.name!r} the query begins: it has no checkpoint{group}. Add "
                f'.option("startingOffsets", "earliest") for the {info.records:,} records that there are, or "latest" '
                "for those that come. If the query ran before and its checkpoint was lost, bring that back, or give "
                "the group as which it ran, or the offsets where it ended"
            )
        return tuple(begin_of(opened(options.access), info, options.starting or "latest"))

    def _at(self, before: QueryOffset, info: StreamInfo) -> QueryOffset:
        """The same place in the stream as it is now; an error says why it is none."""
        if before.stream != info.uuid:
            raise StreamDeleted(
                f"the checkpoint is of a stream {info.name!r} that was deleted; another has its name now. Use another "
                "checkpointLocation to read that"
            )
        offsets = tuple(offsets_of(Cursor(before.stream, before.epoch, before.offsets), info))
        return replace(before, epoch=info.epoch, offsets=offsets)

    def _published(self, info: StreamInfo, first: QueryOffset, before: QueryOffset) -> tuple[QueryOffset, bool]:
        """The place from which the next batch begins, known to the group; whether the checkpoint has to be told of it,
        also without rows: somebody has moved the query there, or it is another group that the query is now."""
        if not self._options.group:
            return replace(first, published=None, group=None), False
        group = QueryGroup(opened(self._options.access), self._options.group)
        standing = group.stand(info, first.offsets)
        self._hold(group)
        known = before if knows(before, standing) else None
        if known is None and before.group is not None:
            logger.warning(
                Event(
                    "the checkpoint is of another group, or of this one before it was deleted; the query goes on where "
                    "the checkpoint is",
                    group=self._options.group,
                    checkpoint=before.group[0],
                )
            )
        since = known or _standing_at(first, standing)
        while not was_reset(since, standing):
            now = standing
            if standing.offsets != first.offsets:
                now = group.publish(info, first.offsets, standing)
            if now.generation == standing.generation:
                return _standing_at(first, now), known is None
            # It was reset the moment before, which is not to be undone.
            standing = now
        place = moved_to(since, first.offsets, standing)
        moved = QueryOffset(info.uuid, info.epoch, place, begins=place)
        return _standing_at(moved, standing), True

    def _hold(self, group: QueryGroup) -> None:
        if not self._has_held and self._options.hold_us is not None:
            group.hold(self._options.hold_us)
        self._has_held = True

    def _next(self, info: StreamInfo, first: QueryOffset, *, is_limited: bool) -> QueryOffset:
        """The end of the next batch: as much as there is, and as may be."""
        lost, trimmed = [*self._lost], gone_since(self._planned, info.starts)
        self._lost, self._planned = {}, {}
        begins = list(first.offsets)
        for shard, start in enumerate(info.starts):
            if begins[shard] < start:
                loss = DataLoss(stream=info.name, shard=shard, first=begins[shard], last=start - 1)
                if self._options.fail_on_data_loss:
                    raise for_spark(loss)
                note_loss(loss)
                lost.append((shard, begins[shard], start - 1))
                begins[shard] = start
        there = info.ends if self._target is None else self._bounded(info)
        # Whoever takes a batch as one need not ask which of two shards had the older record of a key.
        ends = tuple(map(max, begins, held_back(begins, there, info.generations)))
        if is_limited and self._options.bytes_max is not None:
            ends = self._within_bytes(info, begins, ends, self._options.bytes_max)
        if is_limited and self._options.rows_max is not None:
            ends = shared_out(begins, ends, self._options.rows_max)
        found = replace(first, offsets=ends, lost=tuple(lost), trimmed=trimmed)
        return replace(found, begins=tuple(begins)) if lost or first.begins is not None else found

    def _bounded(self, info: StreamInfo) -> tuple[int, ...]:
        assert self._target is not None
        # Shards that came since are not of what there was to read.
        target = (*self._target, *(0,) * (info.shards - len(self._target)))
        return tuple(map(min, target, info.ends))

    def _within_bytes(
        self, info: StreamInfo, begins: Sequence[int], ends: Sequence[int], bytes_max: int
    ) -> tuple[int, ...]:
        """Each shard by its share of the records that wait."""
        waiting = [max(0, end - begin) for begin, end in zip(begins, ends, strict=True)]
        port, total = opened(self._options.access), sum(waiting)
        found = list(begins)
        for shard, count in enumerate(waiting):
            share = bytes_max * count // max(1, total)
            if count and share:
                call = RunsCall(info.name, shard, begins[shard], ends[shard], max(1, share // 4))
                # What was trimmed this moment is told when the batch is planned.
                on_loss = None if self._options.fail_on_data_loss else _pass_over
                runs = (run for run, _ in runs_of(port, call, on_loss))
                with losses_for_spark():
                    found[shard] = within_bytes(begins[shard], ends[shard], runs, share)
        return tuple(found) if found != list(begins) else shared_out(begins, ends, 1)

    # Batches.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options, port = self._options, opened(self._options.access)
        info = self._look_up()
        before, after = QueryOffset.from_json(start), QueryOffset.from_json(end)
        if after is None:
            return planned((), options, options.where)
        first = after.begins if after.begins is not None or before is None else before.offsets
        self._at(after, info)
        with losses_for_spark():
            slices = slices_of(
                port,
                options.access,
                info,
                first,
                after.offsets,
                where=options.where,
                parts=options.partitions or parts_for(info.bytes, cores()),
                on_loss=None if options.fail_on_data_loss else self._note_loss,
            )
        if not options.fail_on_data_loss:
            self._planned = extents(slices)
        return planned(slices, options, options.where)

    def _note_loss(self, loss: DataLoss) -> None:
        note_loss(loss)
        self._lost[loss.shard, loss.first, loss.last] = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Partition)
        return batches_of(partition, self._shape, self._options)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Spark says this one batch late, and of the last batch never: see `latestOffset`, which publishes instead."""

    def stop(self) -> None:
        """Ports are closed with the process."""

    def _look_up(self) -> StreamInfo:
        return opened(self._options.access).call(GetStreamCall(self._options.stream)).streams[0]


def _standing_at(offset: QueryOffset, standing: Standing) -> QueryOffset:
    return replace(offset, published=standing.offsets, generation=standing.generation, group=standing.group)


def _pass_over(loss: DataLoss) -> None:
    """Another tells of it."""
