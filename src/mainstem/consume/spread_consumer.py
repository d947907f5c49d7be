"""A consumer that shares its streams batch by batch with the other members of a group.

The coordinator leases it ranges of offsets, of any shard, about a megabyte at a time. A range is read by a *lane* of
its own; several are under way, so that the next is there when one is done. What is done is told with the next request,
and the group's cursor in a shard is where everything before it is done, whoever did it.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from mainstem.cluster.events import Subscription as Wanted
from mainstem.consume.consumer import Start
from mainstem.consume.group_consumer import Commit
from mainstem.consume.lessee import Lessee
from mainstem.consume.member import Unit, Wishes
from mainstem.consume.part import Part, Restored
from mainstem.consume.record import RecordBatch
from mainstem.consume.several import ReadOptions, Several, list_streams, names_wanted
from mainstem.core.cursor import Cursors
from mainstem.core.errors import Fenced, InvalidRequest, InvalidSetting, StreamDeleted, UnknownStream
from mainstem.core.names import check_group_name
from mainstem.transport.port import Port
from mainstem.transport.sharing import CommitCursorsCall, GetGroupCall, Lease

# Leases that are being read at a time: one, and those that are on their way meanwhile.
_LEASES: Final = 3
_COMMIT_SECONDS: Final = 30.0
_FINISH_SECONDS: Final = 0.1
_ALL_GENERATIONS: Final = (1 << 62) - 1


class _Lane(Part):
    """Reads one lease after the other, of one stream."""

    lease: Lease | None = None

    def begin(self, lease: Lease) -> None:
        self.lease = lease
        # In a stream that is spread no order is kept that more shards could break.
        self.allow(_ALL_GENERATIONS)
        self.final = tuple(lease.end if shard == lease.shard else 0 for shard in range(lease.shard + 1))
        self.hold(lease.shard, lease.first)

    def end(self) -> None:
        if self.lease is not None:
            self.drop(self.lease.shard)
            self.lease = None


class SpreadConsumer(Several[_Lane]):
    """Reads its share of one or several streams, batch by batch. One thread; use it as a context manager, or `close`.

    As a GroupConsumer, but for this: members do not own shards, so there may be more members than shards, and a shard
    is read as fast as all of them together can; records of a shard, and of a key, are read by several at a time, in no
    order. With `commit="manual"`, Fenced by `commit` says that something was given to others meanwhile; they read it
    again. A transaction cannot move the cursor of such a group.
    """

    def __init__(
        self,
        port: Port,
        group: str,
        streams: tuple[str, ...],
        pattern: str | None,
        start: Start | Cursors,
        options: ReadOptions,
        commit: Commit = "auto",
    ) -> None:
        check_group_name(group)
        if commit not in ("auto", "manual"):
            raise InvalidSetting(f"commit must be 'auto' or 'manual', not {commit!r}")
        port.check_writable()
        super().__init__(port, options)
        self.group = group
        self._is_auto = commit == "auto"
        wanted = Wanted(frozenset(streams), pattern)
        # Lanes that nobody needs now, by stream.
        self._free: defaultdict[int, list[_Lane]] = defaultdict(list)
        names = streams or tuple(names_wanted(port, wanted))
        parts = [self._new_lane(name) for name in names]
        self._ends = {(part.stream.id, shard): end for part in parts for shard, end in enumerate(part.final or ())}
        starts = tuple((part.stream.id, part.offsets_at(start)) for part in parts)
        for part in parts:
            self._free[part.stream.id].append(part)
        # Lanes by the numbers of their leases; the one of what was yielded last, and where that began.
        self._reading: dict[int, _Lane] = {}
        self._in_hand: tuple[_Lane, int] | None = None
        # By lease, how far it is done.
        self._done: dict[int, int] = {}
        self._is_lost = False
        self._member = Lessee(
            port, Wishes(group, streams, pattern, starts), self, wanted=_LEASES, patient=options.follow
        )
        self._member.start()

    def _new_lane(self, name: str) -> _Lane:
        lane = _Lane(self._port, name, self._options)
        if lane.stream.key or lane.stream.cleanup != "delete":
            raise InvalidRequest(
                f"stream {name!r} has a key: its records are in order only where shards are read whole; "
                "leave out spread=True"
            )
        return lane

    # What its member asks of it, in any thread.

    def on_news(self) -> None:
        self.wake()

    def read_bytes(self) -> Mapping[Unit, int]:
        return {}

    # Positions.

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        """By stream and shard: where this member would go on, in what it has to read now."""
        found: dict[tuple[str, int], int] = {}
        for lane in tuple(self._reading.values()):
            assert lane.lease is not None
            place, at = (lane.stream.name, lane.lease.shard), self._position(lane)
            found[place] = min(found.get(place, at), at)
        return found

    def commit(self, positions: Mapping[tuple[str, int], int] | None = None) -> None:
        """Count what was yielded as done. Fenced if some of it was given to others meanwhile, who read it again."""
        self._check_open()
        if positions is not None:
            raise InvalidRequest("positions say little where shards are spread; leave them, or spread=True, out")
        self._note_done()
        self._member.settle(_COMMIT_SECONDS)
        self._hear_news()
        if self._is_lost:
            self._is_lost = False
            raise Fenced(
                f"something that was read is another member's of group {self.group!r} now, before it was committed; it "
                "is read again there. This consumer goes on with what it has"
            )

    def rewind(self) -> None:
        """Go back to what was committed: what was yielded and not committed comes again, as far as it is still this
        member's."""
        self._check_open()
        self._hear_news()
        self._drop_current()
        for number, lane in self._reading.items():
            assert lane.lease is not None
            lane.hold(lane.lease.shard, self._done.get(number, lane.lease.first))

    def begin_advance(self) -> CommitCursorsCall | None:
        """A transaction asks how far this has read: there is no such place."""
        raise InvalidRequest("a transaction moves the cursor of a group that reads whole shards; leave out spread=True")

    def end_advance(self, cursors: CommitCursorsCall) -> None:
        """There is none to end."""

    def doubt(self) -> None:
        """Nor one whose end nobody knows."""

    def _position(self, lane: _Lane) -> int:
        """The offset after what was yielded last of a lane's lease."""
        assert lane.lease is not None
        if self._current is not None and self._in_hand is not None and self._in_hand[0] is lane:
            return self._current_offset()
        return min(lane.position(lane.lease.shard), lane.lease.end)

    def _note_done(self) -> None:
        """All that was yielded is done."""
        self._done.update((number, self._position(lane)) for number, lane in self._reading.items())
        self._end_lanes()

    def _end_lanes(self) -> None:
        self._member.progress(self._done)
        for number, lane in list(self._reading.items()):
            assert lane.lease is not None
            if self._done.get(number, 0) >= lane.lease.end:
                self._let_go(number)

    def _let_go(self, number: int) -> None:
        lane = self._reading.pop(number)
        self._turns.remove(lane)
        if self._in_hand is not None and self._in_hand[0] is lane:
            self._in_hand = None
            self._drop_current()
        lane.end()
        self._free[lane.stream.id].append(lane)

    # Reading.

    def _look_after(self) -> None:
        self._in_hand = None
        self._hear_news()
        if self._is_auto:
            self._note_done()

    def _hear_news(self) -> None:
        leases = self._member.leases()
        for number in self._member.taken_lost():
            lane = self._reading.get(number)
            if lane is None or self._position(lane) > self._done.get(number, 0):
                self._is_lost = True
        for number in [number for number in self._reading if number not in leases]:
            self._let_go(number)
        for number, lease in leases.items():
            if number not in self._reading and self._done.get(number, 0) < lease.end:
                lane = self._lane_of(lease.stream)
                if lane is not None:
                    lane.begin(lease)
                    self._reading[number] = lane
                    self._turns.append(lane)
        self._done = {number: at for number, at in self._done.items() if number in leases}

    def _lane_of(self, stream: int) -> _Lane | None:
        if self._free[stream]:
            return self._free[stream].pop()
        for info in list_streams(self._port):
            if info.id == stream:
                try:
                    return self._new_lane(info.name)
                except UnknownStream:
                    break
        return None  # it was deleted, of which the coordinator will hear

    def _next_in_turn(self) -> RecordBatch | None:
        for _ in range(len(self._turns)):
            lane = self._turns[0]
            try:
                batch = lane.take_nowait()
            except (StreamDeleted, Restored):
                # The coordinator hears of it too, and has other leases then.
                self._turns.rotate(-1)
                continue
            if batch is not None:
                # What is begun is read to its end first: so that it is done.
                self._in_hand = lane, batch.offset
                return batch
            self._turns.rotate(-1)
        return None

    def _is_finished(self) -> bool:
        if self._options.follow or self._reading or self._member.leases():
            return False
        if self._member.others:
            return True
        shards = self._port.call(GetGroupCall(self.group)).groups[0].shards if self._member.is_known else ()
        at = {(shard.stream_id, shard.shard): shard.offset for shard in shards}
        return self._member.is_known and all(at.get(unit, 0) >= end for unit, end in self._ends.items())

    def _pause_max(self) -> float | None:
        return None if self._options.follow else _FINISH_SECONDS

    # The end.

    def close(self) -> None:
        """Commit what was yielded, unless that is up to the user, and leave the group."""
        self._close(is_clean=True)

    def abandon(self) -> None:
        """The same when something went wrong: what was yielded last is not committed."""
        self._close(is_clean=False)

    def _close(self, *, is_clean: bool) -> None:
        if self._closed:
            return
        try:
            if self._is_auto:
                if not is_clean:
                    self._step_back()
                self._note_done()
                self._member.settle(_COMMIT_SECONDS)
        finally:
            self._end()
            self._member.leave()

    def _step_back(self) -> None:
        """As if what was yielded last had not been: nobody knows what has become of that."""
        if self._in_hand is not None:
            lane, first = self._in_hand
            if self._current is not None:
                first = self._last_yielded()
            self._drop_current()
            assert lane.lease is not None
            lane.hold(lane.lease.shard, first)

    def __enter__(self) -> "SpreadConsumer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._close(is_clean=kind is None)

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        places = ", ".join(f"{stream}:{shard} at {at}" for (stream, shard), at in list(self.positions.items())[:8])
        return f"<SpreadConsumer {self.group}: {places or 'nothing'}{state}>"
