"""A consumer that shares its streams batch by batch with the other members of a group.

The coordinator leases it ranges of offsets, of any shard, about a megabyte at a time. A range is read by a *lane* of
its own; several are under way, so that the next is there when one is done. What is done is told with the next request,
and the group's cursor in a shard is where everything before it is done, whoever did it.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping
from operator import length_hint
from typing import Final

from mainstem.cluster.events import Subscription as Wanted
from mainstem.consume.lessee import Lessee
from mainstem.consume.member import Unit, Wishes
from mainstem.consume.member_consumer import CLOSE_SECONDS, COMMIT_SECONDS, Commit, MemberConsumer
from mainstem.consume.part import Part, Restored
from mainstem.consume.places import Start
from mainstem.consume.record import RecordBatch
from mainstem.consume.several import ReadOptions, list_streams
from mainstem.core.cursor import Cursors
from mainstem.core.errors import Fenced, InvalidRequest, StreamDeleted, UnknownStream
from mainstem.core.limits import SPREAD_LEASES_MAX
from mainstem.transport.port import Port, StreamInfo
from mainstem.transport.sharing import CommitCursorsCall, Lease

# Leases that are being read at a time: one, and those that are on their way meanwhile.
_LEASES: Final = 3
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


class SpreadConsumer(MemberConsumer[_Lane]):
    """Reads its share of one or several streams, batch by batch. One thread; use it as a context manager, or `close`.

    As a GroupConsumer, but for this: members do not own shards, so there may be more members than shards, and a shard
    is read as fast as all of them together can; records of a shard, and of a key, are read by several at a time, in no
    order. What a member has that asks for no record for 30 s is given to others. With `commit="manual"`, 16 ranges may
    be read and not committed; then nothing more comes, and who does not follow hears InvalidRequest. Fenced by `commit`
    says that something was given to others meanwhile; they read it again. A transaction cannot move the cursor of such
    a group.
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
        super().__init__(port, group, options, commit)
        wanted = Wanted(frozenset(streams), pattern)
        # Lanes that nobody needs now, by stream.
        self._free: defaultdict[int, list[_Lane]] = defaultdict(list)
        # A pattern passes over streams that cannot be spread, as the coordinator does; who names one is told.
        names = streams or [
            info.name for info in list_streams(port) if wanted.wants(info.name) and not _has_order(info)
        ]
        parts = [self._new_lane(name) for name in names]
        # Streams that are read by their names; and where reading ends if it does not follow.
        self._named = {part.stream.id: part.stream.name for part in parts if streams}
        self._ends = {
            (part.stream.id, shard): end for part in parts for shard, end in enumerate(part.final or ()) if end
        }
        starts = tuple((part.stream.id, part.offsets_at(start)) for part in parts)
        for part in parts:
            self._free[part.stream.id].append(part)
        # Lanes by the numbers of their leases; the one of what was yielded last, and where that began.
        self._reading: dict[int, _Lane] = {}
        self._in_hand: tuple[_Lane, int] | None = None
        # By lease, how far it is done.
        self._done: dict[int, int] = {}
        self._is_lost = False
        # How often it was looked what there is to read.
        self._looks = 0
        self._member: Lessee = Lessee(
            port,
            Wishes(group, streams, pattern, starts),
            self,
            wanted=_LEASES,
            patient=options.follow,
            place=self._place,
        )
        self._member.start()

    def _new_lane(self, name: str) -> _Lane:
        lane = _Lane(self._port, name, self._options)
        if _has_order(lane.stream):
            raise InvalidRequest(
                f"stream {name!r} has a key: its records are in order only where shards are read whole; "
                "leave out spread=True"
            )
        return lane

    def read_bytes(self) -> Mapping[Unit, int]:
        """Nobody asks how fast it reads. Any thread."""
        return {}

    def _place(self) -> Hashable:
        """Something that is another when the next record was asked for since. Any thread."""
        return self._looks, length_hint(self._records)

    # Positions.

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        """By stream and shard: where this member would go on, in what it has to read now."""
        found: dict[tuple[str, int], int] = {}
        for lane in () if self._closed else tuple(self._reading.values()):
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
        self._member.settle(COMMIT_SECONDS)
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

    def begin_advance(self, transaction: int) -> CommitCursorsCall | None:
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
        self._looks += 1
        leases = self._member.leases()
        for number in self._member.taken_lost():
            lane = self._reading.get(number)
            if lane is None:
                self._is_lost |= number in self._done
            else:
                assert lane.lease is not None
                self._is_lost |= self._position(lane) > self._done.get(number, lane.lease.first)
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
                    return _Lane(self._port, info.name, self._options)
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
        if not self._is_auto:
            self._ask_beyond_commits()
        others = self._member.others
        if self._options.follow or others is None:
            return False
        if not self._is_read():
            self._left_to_others = None
            return False
        left = self._left()
        if others:
            return self._is_left_to_others(left)
        # What nobody has is about to come, unless it is behind what this one has read and the user has to commit.
        return not left or bool(self._reading)

    def _is_read(self) -> bool:
        """Whether all was yielded that this member has, and is committed if that is not up to the user."""
        leases = self._member.leases()
        if self._is_auto:
            return not leases
        return all(number in self._reading for number in leases) and all(lane.is_at_end for lane in self._turns)

    def _ask_beyond_commits(self) -> None:
        """What was read and is not committed keeps nobody from more, up to what a member may have at a time."""
        self._member.want(_LEASES + sum(lane.is_at_end for lane in self._turns))
        if not self._options.follow and len(self._reading) >= SPREAD_LEASES_MAX and self._is_read():
            raise InvalidRequest(
                f"{len(self._reading)} ranges were read and not committed, which is as much as one member may have of "
                f"group {self.group!r}; there may be more to read: call commit() now and then"
            )

    def _left(self) -> frozenset[Unit]:
        """Where the group has not come to the end yet."""
        if not self._ends:
            return frozenset()
        at = {(shard.stream_id, shard.shard): shard.offset for shard in self._group_shards()}
        if not at.keys() >= self._ends.keys():
            self._forget_deleted()
        return frozenset(unit for unit, end in self._ends.items() if at.get(unit, 0) < end)

    def _forget_deleted(self) -> None:
        """There is nothing to read of a stream that is gone; who named it is told, once."""
        there = {info.id for info in list_streams(self._port)}
        for unit in [unit for unit in self._ends if unit[0] not in there]:
            del self._ends[unit]
            if unit[0] in self._named:
                name = self._named.pop(unit[0])
                raise StreamDeleted(f"stream {name!r} was deleted; open a consumer of the others, or of a new one")

    def _commit_last(self, *, is_clean: bool) -> None:
        if not is_clean:
            self._step_back()
        self._note_done()
        self._member.settle(CLOSE_SECONDS)

    def _step_back(self) -> None:
        """As if what was yielded last had not been: nobody knows what has become of that."""
        if self._in_hand is not None:
            lane, first = self._in_hand
            if self._current is not None:
                first = self._last_yielded()
            self._drop_current()
            assert lane.lease is not None
            lane.hold(lane.lease.shard, first)


def _has_order(stream: StreamInfo) -> bool:
    return bool(stream.key) or stream.cleanup != "delete"
