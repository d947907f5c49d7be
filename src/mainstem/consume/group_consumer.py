"""A consumer that shares its streams with the other members of a group.

Which shards it reads changes while it reads: the coordinator says so, and the consumer acts on it when the next record
or batch is asked for, between two of them. What it has yielded is committed when the next is asked for, or when the
user says so. A shard that it is asked for is committed first and then let go; one that was taken away, because nobody
heard of this member for too long, cannot be committed any more: the ledger refuses it, and the user hears Fenced.

A member that was away, or whose coordinator was, joins anew. If nobody has committed in a shard meanwhile, it goes on
where it stands: then whatever another may have read there has had no effect on the group, and cannot have any more. It
does so too if the group stands where a commit of its own was to bring it, whose answer was lost with the server.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from mainstem.cluster.events import Subscription as Wanted
from mainstem.consume.member import Member, News, Unit, Wishes
from mainstem.consume.member_consumer import CLOSE_SECONDS, COMMIT_SECONDS, Commit, MemberConsumer
from mainstem.consume.part import Part, Restored
from mainstem.consume.places import Start, check_places
from mainstem.consume.record import Record, RecordBatch
from mainstem.consume.several import ReadOptions, list_streams, names_wanted
from mainstem.core.cursor import Cursors
from mainstem.core.errors import (
    Fenced,
    InvalidCursor,
    InvalidRequest,
    MainstemError,
    StreamDeleted,
    UnknownGroup,
    UnknownStream,
)
from mainstem.transport.port import Answer, GetStreamCall, Port
from mainstem.transport.sharing import CommitCursorsCall, GroupShard

# How long records of one batch are yielded without a look at anything else; and how many at once, however fast it goes.
_PIECE_SECONDS: Final = 0.05
_PIECE_MAX: Final = 1 << 16
# How many session timeouts long it is waited to hear why a commit was refused.
_DOUBT_SESSIONS: Final = 2
# What the ledger says to a member that is none any more; the group itself may have been deleted meanwhile.
_NO_MEMBER: Final = (Fenced, UnknownGroup)


class _Flight:
    """A commit that is under way, of a member that had acted on this."""

    def __init__(self, offsets: Mapping[Unit, int], member: tuple[int, int]) -> None:
        self.offsets = offsets
        self.member = member
        self.result: Answer | MainstemError | None = None
        self.is_over = threading.Event()


class GroupConsumer(MemberConsumer[Part]):
    """Reads its share of one or several streams. One thread; use it as a context manager, or call `close`.

    `for record in consumer`, `for batch in consumer.batches()` and `consumer.poll(timeout)` may be mixed. The group
    begins where `start` says, and goes on where it has committed. With `commit="auto"` what was yielded is committed
    when the next is asked for, and when the consumer is closed; if its block ends in an exception, all but what was
    yielded last. With `commit="manual"` only `commit` does it, or a transaction. Fenced says that a shard was lost to
    another member before what was read of it could be committed; that member reads it again. The next call goes on.

    With `follow=False` reading ends when the group has come to where the streams ended when the consumer was opened:
    what this one does not hold is left to others if they live, which takes a session timeout to know.
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
        self._names = streams
        self._wanted = Wanted(frozenset(streams), pattern)
        for name in streams or names_wanted(port, self._wanted):
            self._add(Part(port, name, options))
        # Of each unit that is held, the group's cursor as it was given or committed last.
        self._committed: dict[Unit, int] = {}
        # Of each of them, where commits were to bring it that were sent and of which nothing was heard since.
        self._tried: defaultdict[Unit, set[int]] = defaultdict(set)
        # Units that are asked for, and are let go when what was read of them is committed.
        self._asked: set[Unit] = set()
        # Units that were lost before what was read of them was committed.
        self._lost: list[Unit] = []
        # Whether it is to be looked which streams are still there; and one that is read by its name and is not.
        self._may_be_deleted = False
        self._deleted: str | None = None
        # Names of those that a pattern found, and that are gone.
        self._gone: set[str] = set()
        self._flight: _Flight | None = None
        # What was yielded last: the unit, and its first offset.
        self._in_hand: tuple[Unit, int] | None = None
        # The transaction that is to move the group's cursor, until it is over.
        self._advancing = 0
        self._news_seen: tuple[int, int] = (0, 0)
        self._looked_at = self._clock.monotonic()
        self._ends = {
            (part.stream.id, shard): end
            for part in self._lanes.values()
            for shard, end in enumerate(part.final or ())
            if end
        }
        starts = tuple((part.stream.id, part.offsets_at(start)) for part in self._turns)
        self._member = Member(port, Wishes(group, streams, pattern, starts), self)
        self._member.start()

    def read_bytes(self) -> Mapping[Unit, int]:
        """How many bytes were read of each unit so far. Any thread."""
        parts = tuple(self._lanes.items())
        return {(stream, shard): count for stream, part in parts for shard, count in dict(part.read_bytes).items()}

    # Positions.

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        """By stream and shard: where this member would go on, in what it holds now."""
        if self._closed:
            return {}
        return {(self._lanes[unit[0]].stream.name, unit[1]): self._position(unit) for unit in self._committed}

    def commit(self, positions: Mapping[tuple[str, int], int] | None = None) -> None:
        """Move the group's cursor behind what was yielded; with `positions`, which this consumer had before, only up to
        there. Fenced if a shard of it was lost to another member: then nothing was committed, unless the server was
        killed before it could say so; what is still held can be, by another call. InvalidCursor if there is no such
        place, or it was not read yet.

        Who keeps what it reads, and writes it down now and then, notes `positions` when it has gathered enough, and
        commits them when that is written.
        """
        self._check_open()
        self._check_not_advancing()
        self._commit_all(None if positions is None else self._places(positions))

    def _places(self, positions: Mapping[tuple[str, int], int]) -> dict[Unit, int]:
        check_places(positions)
        ids = {part.stream.name: id_ for id_, part in self._lanes.items()}
        places: dict[Unit, int] = {}
        for (stream, shard), at in positions.items():
            if stream in self._gone:
                continue
            if stream not in ids:
                raise InvalidCursor(
                    f"this consumer does not read {stream!r}; it reads {', '.join(ids) or 'nothing yet'}"
                )
            unit = ids[stream], shard
            self._check_place(unit, stream, at)
            places[unit] = at
        return places

    def _check_place(self, unit: Unit, stream: str, at: int) -> None:
        shard, part = unit[1], self._lanes[unit[0]]
        if unit in self._committed:
            if at > self._position(unit):
                raise InvalidCursor(
                    f"offset {at} of shard {shard} of {stream!r} was not read yet: this consumer stands at "
                    f"{self._position(unit)}"
                )
        elif shard >= part.stream.shards:
            raise InvalidCursor(f"stream {stream!r} has no shard {shard}; it has 0 to {part.stream.shards - 1}")

    def rewind(self) -> None:
        """Go back to where the group stands: what was yielded and not committed comes again."""
        self._check_open()
        self._advancing = 0
        changed = self._changed()
        self._drop_current()
        for unit in changed:
            self._lanes[unit[0]].hold(unit[1], self._committed[unit])
        self._let_go_of_asked()

    def begin_advance(self, transaction: int) -> CommitCursorsCall | None:
        """For a transaction that is to move the group's cursor: how far, if at all."""
        self._check_open()
        if self._advancing != transaction:
            self._check_not_advancing()
        if self._is_auto:
            raise InvalidRequest('a transaction moves the cursor of a consumer that was opened with commit="manual"')
        self._hear_news()
        try:
            self._tell_lost()
        except Fenced:
            # What else was read for this transaction has had no effect either.
            self.rewind()
            raise
        changed = self._changed()
        if not changed:
            return None
        self._advancing = transaction
        return self._commit_call(changed)

    def _check_not_advancing(self) -> None:
        """Who commits after what a transaction has read, and before its end, would have it refused, and its records
        passed over."""
        if self._advancing:
            raise InvalidRequest(
                f"transaction {self._advancing:x} moves the cursor of this consumer and is not over; "
                "commit or abort it first"
            )

    def end_advance(self, cursors: CommitCursorsCall) -> None:
        """The transaction was committed."""
        self._advancing = 0
        moved = {(stream, shard): offset for stream, shard, offset in cursors.offsets}
        self._committed.update((unit, at) for unit, at in moved.items() if unit in self._committed)
        self._let_go_of_asked()

    def doubt(self) -> None:
        """Whether the transaction was committed is not known, and it may still be on its way. As another member this
        one is told where the group stands, and from then on the ledger refuses what comes from the one it was."""
        self._advancing = 0
        for unit in tuple(self._committed):
            self._drop(unit)
        self._join_anew()

    def _commit_all(self, offsets: Mapping[Unit, int] | None = None, seconds: float = COMMIT_SECONDS) -> None:
        self._end_flight(seconds)
        while True:
            self._hear_news()
            self._tell_lost()
            changed = self._changed() if offsets is None else self._still_held(offsets)
            if not changed:
                break
            state = self._news_seen
            self._note_tried(changed)
            try:
                self._port.call(self._commit_call(changed), seconds)
            except _NO_MEMBER as error:
                self._await_news(error, state, seconds)
                continue
            except StreamDeleted:
                self._may_be_deleted = True
                continue
            self._note_committed(changed)
            break
        self._let_go_of_asked()

    def _position(self, unit: Unit) -> int:
        """The offset after what was yielded last of a unit."""
        stream, shard = unit
        part, current = self._lanes[stream], self._current
        if current is not None and current.shard == shard and current.stream == part.stream.name:
            return self._current_offset()
        return part.position(shard)

    def _changed(self) -> dict[Unit, int]:
        """What was read and is not committed."""
        positions = {unit: self._position(unit) for unit in self._committed}
        return {unit: at for unit, at in positions.items() if at != self._committed[unit]}

    def _still_held(self, offsets: Mapping[Unit, int]) -> dict[Unit, int]:
        return {unit: at for unit, at in offsets.items() if at > self._committed.get(unit, at)}

    def _commit_call(self, offsets: Mapping[Unit, int]) -> CommitCursorsCall:
        places = tuple((*unit, at) for unit, at in offsets.items())
        return CommitCursorsCall(self.group, self._member.id, places, self._member.generation)

    def _tell_lost(self) -> None:
        if self._may_be_deleted:
            self._forget_deleted()
        if self._lost:
            lost, self._lost = self._lost, []
            named = ", ".join(f"shard {shard} of stream {self._name(stream)!r}" for stream, shard in lost[:3])
            more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
            raise Fenced(
                f"{named}{more}: lost to another member of group {self.group!r} before what was read was committed; "
                "it is read again there. This consumer goes on with what it has"
            )

    def _name(self, stream: int) -> str:
        part = self._lanes.get(stream)
        return str(stream) if part is None else part.stream.name

    # Reading.

    def poll(self, timeout: float | None = 0.0) -> Record | None:
        self._look_between()
        return super().poll(timeout)

    def _record_lists(self) -> Iterator[Iterator[Record]]:
        """The records of a batch in pieces that take a moment each: between them it is looked after the membership."""
        count = 1
        while True:
            begun = self._clock.monotonic()
            yield islice(self._records, count)
            took = self._clock.monotonic() - begun
            if took < _PIECE_SECONDS / 2:
                count = min(2 * count, _PIECE_MAX)
            elif took > _PIECE_SECONDS:
                count = max(1, int(count * _PIECE_SECONDS / took))
            self._look_between()
            if self._current is None or self._current_offset() == self._current.end:
                batch = self._next_batch(None)
                if batch is None:
                    return
                self._take_apart(batch)

    def _look_between(self) -> None:
        """The same as before a batch, now and then, between the records of one."""
        if self._is_look_due():
            self._check_open()
            self._looked_at = self._clock.monotonic()
            self._keep_up()

    def _is_look_due(self) -> bool:
        return self._current is not None and self._clock.monotonic() >= self._looked_at + _PIECE_SECONDS

    def _take(self, timeout: float | None) -> RecordBatch | None:
        batch = super()._take(timeout)
        if batch is not None:
            self._in_hand = self._unit_of(batch), batch.offset
        return batch

    def _unit_of(self, batch: RecordBatch) -> Unit:
        stream = next(id_ for id_, part in self._lanes.items() if part.stream.name == batch.stream)
        return stream, batch.shard

    def _look_after(self) -> None:
        self._in_hand = None
        self._keep_up()

    def _keep_up(self) -> None:
        """Hear what was said meanwhile, and have committed what was yielded."""
        self._hear_commit()
        self._hear_news()
        self._tell_lost()
        if self._deleted is not None:
            raise StreamDeleted(f"stream {self._deleted!r} was deleted; open a consumer of the others, or of a new one")
        if self._is_auto and self._flight is None:
            self._commit_soon()

    def _next_in_turn(self) -> RecordBatch | None:
        try:
            return super()._next_in_turn()
        except Restored:
            self._begin_anew()
            return None
        except StreamDeleted:
            self._may_be_deleted = True
            if self._names:
                raise
            return None

    def _commit_soon(self) -> None:
        """Have committed what was yielded, without waiting for it."""
        changed = self._changed()
        if not changed:
            return
        flight = self._flight = _Flight(changed, self._news_seen)
        self._note_tried(changed)

        def done(result: Answer | MainstemError) -> None:
            flight.result = result
            flight.is_over.set()
            if isinstance(result, MainstemError):
                self.wake()

        try:
            self._port.ask(self._commit_call(changed), COMMIT_SECONDS, done)
        except MainstemError as error:
            done(error)

    def _note_tried(self, offsets: Mapping[Unit, int]) -> None:
        """A commit of these is about to be sent. Not that of a user, who relies on what is said of it: there another
        member that came to the same place must not be taken for this one."""
        if self._is_auto:
            for unit, at in offsets.items():
                self._tried[unit].add(at)

    def _note_committed(self, offsets: Mapping[Unit, int]) -> None:
        self._committed.update(offsets)
        for unit in offsets:
            self._tried.pop(unit, None)

    def _was_committed_here(self, unit: Unit, offset: int) -> bool:
        """Whether the group is where a commit of this member was to bring it, of which it has heard nothing: then it
        was applied, by a server that died before it said so."""
        return offset in self._tried.get(unit, ()) and self._position(unit) >= offset

    def _hear_commit(self) -> None:
        flight = self._flight
        if flight is None or flight.result is None:
            return
        self._flight = None
        result = flight.result
        if isinstance(result, _NO_MEMBER):
            self._await_news(result, flight.member)
        elif isinstance(result, StreamDeleted):
            self._may_be_deleted = True
        elif isinstance(result, MainstemError):
            if not result.retriable:
                raise result
        else:
            held = {unit: at for unit, at in flight.offsets.items() if unit in self._committed}
            self._note_committed({unit: max(at, self._committed[unit]) for unit, at in held.items()})

    def _end_flight(self, seconds: float) -> None:
        if self._flight is not None:
            self._port.wait(self._flight.is_over, seconds)
            self._hear_commit()

    # Membership.

    def _hear_news(self) -> None:
        news = self._member.news()
        if news is not None:
            self._act(news)

    def _await_news(
        self, error: Fenced | UnknownGroup, state: tuple[int, int], seconds: float = COMMIT_SECONDS
    ) -> None:
        """A commit was refused: something has happened to this member that it may not have heard of yet."""
        deadline = self._clock.monotonic() + min(seconds, _DOUBT_SESSIONS * self._member.session_timeout)
        while self._news_seen == state:
            self._woken.clear()
            self._hear_news()
            if self._news_seen != state:
                return
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise error
            self._port.wait(self._woken, min(left, 1.0))

    def _act(self, news: News) -> None:
        """Hold what the news say, and nothing else."""
        membership = news.membership
        hold, let_go = set(membership.hold), set(membership.let_go)
        given = {(stream, shard): offset for stream, shard, offset in membership.cursors}
        mine = set(self._committed)
        self._asked = mine & let_go
        if self._is_auto:
            self._commit_asked()
        for unit in mine - hold - let_go:
            self._lose(unit)
        for unit in hold:
            if unit not in given or given[unit] == self._committed.get(unit):
                continue
            if unit in self._committed:
                if self._was_committed_here(unit, given[unit]):
                    self._note_committed({unit: given[unit]})
                    continue
                self._lose(unit)
            self._hold(unit, given[unit])
        passed = dict(membership.passed)
        for stream, part in self._lanes.items():
            part.allow(passed.get(stream, 0))
        self._news_seen = news.member, membership.version
        self._drop_committed()
        for stream, shard in self._asked:
            # What is committed later must come to an end.
            self._lanes[stream].pause(shard)
        self._member.act(news, tuple(self._committed))

    def _commit_asked(self) -> None:
        """Before units are let go, what was read of them is committed. If they were taken meanwhile, news are to come:
        then nothing is to be lost but what those say."""
        changed = {unit: at for unit, at in self._changed().items() if unit in self._asked}
        if not changed:
            return
        if self._flight is not None:
            self._port.wait(self._flight.is_over, COMMIT_SECONDS)
        self._note_tried(changed)
        try:
            self._port.call(self._commit_call(changed))
        except _NO_MEMBER:
            return
        except StreamDeleted:
            self._may_be_deleted = True
            return
        self._note_committed(changed)

    def _drop_committed(self) -> bool:
        """Let go of what is asked for and committed; whether there was something."""
        changed = self._changed()
        ready = [unit for unit in self._asked if unit not in changed]
        for unit in ready:
            self._drop(unit)
        return bool(ready)

    def _let_go_of_asked(self) -> None:
        if self._asked and self._drop_committed():
            self._member.stand(tuple(self._committed))

    def _hold(self, unit: Unit, offset: int) -> None:
        stream, shard = unit
        if stream not in self._lanes:
            self._find_part(stream)
        if stream in self._lanes:
            self._lanes[stream].hold(shard, offset)
            self._committed[unit] = offset
            self._gone.discard(self._lanes[stream].stream.name)

    def _find_part(self, stream: int) -> None:
        """A stream that came after this consumer and fits its pattern."""
        for info in list_streams(self._port):
            if info.id == stream:
                try:
                    self._add(Part(self._port, info.name, self._options))
                except UnknownStream:
                    return  # it was deleted meanwhile: that is news, too

    def _lose(self, unit: Unit) -> None:
        self._may_be_deleted = True
        if self._position(unit) != self._committed[unit]:
            self._lost.append(unit)
        self._drop(unit)

    def _drop(self, unit: Unit) -> None:
        if self._current is not None and self._unit_of(self._current) == unit:
            self._drop_current()
        del self._committed[unit]
        self._tried.pop(unit, None)
        self._asked.discard(unit)
        self._lanes[unit[0]].drop(unit[1])

    def _begin_anew(self) -> None:
        """The log was restored from a backup: the group goes on where that says it was."""
        for part in self._lanes.values():
            part.adopt(self._port.call(GetStreamCall(part.stream.name)).streams[0])
        self._committed.clear()
        self._tried.clear()
        self._join_anew()

    def _join_anew(self) -> None:
        """Nothing is held any more: be a new member."""
        self._drop_current()
        self._asked.clear()
        self._lost.clear()
        self._flight = None
        self._news_seen = (0, 0)
        self._member.join_anew()

    def _forget_deleted(self) -> None:
        """What was read of a stream that is gone needs no commit, and nobody else has it."""
        there = {info.id for info in list_streams(self._port)}
        self._may_be_deleted = False
        self._lost = [unit for unit in self._lost if unit[0] in there]
        for stream, part in [(id_, part) for id_, part in self._lanes.items() if id_ not in there]:
            for unit in [unit for unit in self._committed if unit[0] == stream]:
                self._drop(unit)
            if self._current is not None and self._current.stream == part.stream.name:
                self._drop_current()
            if self._names:
                self._deleted = part.stream.name
            else:
                self._gone.add(part.stream.name)
                self._remove(part)

    # The end.

    def _is_finished(self) -> bool:
        if self._options.follow:
            return False
        if not self._news_seen[1]:
            # Whose pattern has found nothing need not be a member to know that there is nothing to read.
            return not self._lanes
        if any(part.waits_at_barrier for part in self._turns):
            # Only a commit takes the group over it, and who asks for the next record may not have made it.
            return not self._is_auto
        if not all(part.is_at_end for part in self._turns):
            return False
        shards = {(shard.stream_id, shard.shard): shard for shard in self._group_shards()}
        left = [unit for unit, end in self._ends.items() if not self._is_done(unit, end, shards.get(unit))]
        owners = frozenset((unit, shards[unit].member) for unit in left if unit in shards)
        others = {0, self._member.id}
        if len(owners) < len(left) or any({shards[unit].next_member, owner} & others for unit, owner in owners):
            self._left_to_others = None
            return False
        return self._is_left_to_others(owners)

    def _is_done(self, unit: Unit, end: int, shard: GroupShard | None) -> bool:
        """Whether a unit is read to its end."""
        if unit in self._committed:
            return True
        if shard is None:
            return unit[0] not in self._lanes
        return shard.offset >= end

    def _commit_last(self, *, is_clean: bool) -> None:
        # News that come meanwhile may ask for the shard of what was yielded last: nothing is committed because of them.
        self._is_auto = is_clean
        if self._flight is not None or self._lost or self._changed():
            self._commit_all(None if is_clean else self._before_hand(), CLOSE_SECONDS)

    def _before_hand(self) -> dict[Unit, int]:
        """What was read, without what was yielded last: nobody knows what has become of that."""
        changed = self._changed()
        if self._in_hand is not None:
            unit, first = self._in_hand
            current = self._current
            if current is not None:
                first = self._last_yielded()
            if unit in changed:
                changed[unit] = min(changed[unit], first)
        return changed
