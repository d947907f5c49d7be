"""Groups as operators see them: where each stands, how far it is behind, whether it catches up."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from mainstem.cluster.advice import Advisor, MemberLoad
from mainstem.cluster.assignment import Unit
from mainstem.cluster.lag import Behind, Lag, LagReport
from mainstem.core.clock import Clock
from mainstem.core.errors import UnknownGroup
from mainstem.core.limits import GROUP_MEMBERS_MAX, GROUPS_MAX, LIST_BYTES_MAX
from mainstem.log.ledger.base import GroupRow, GroupShardRow, LedgerReader, ShardKey
from mainstem.log.retention import due
from mainstem.transport.port import Answer
from mainstem.transport.sharing import GroupAdvice, GroupInfo, GroupMember, GroupShard

# A group and a shard in an answer at most, beside names of streams, which are as long as they are.
_GROUP_BYTES: Final = 512
_SHARD_BYTES: Final = 192
# A look begins a new period, for rates and advice, if the last one began this part of the averaged time ago.
_PERIODS: Final = 6
# A member is the bottleneck if what is unread of its shards was waiting for this part of a period, at both its ends.
_WAITING_SHARE: Final = 0.2
# Times of this many shards are looked up for one list.
_LISTED_SHARDS_MAX: Final = 4_096


class Owners(NamedTuple):
    """What the coordinator knows of a group: its members, their names, and who shall have which unit."""

    members: tuple[int, ...] = ()
    clients: Mapping[int, str] = {}
    targets: Mapping[Unit, int] = {}
    # Who owns the shards of a group that spreads them: nobody whom users know.
    spread_by: int = 0


class _Done(NamedTuple):
    """How far the shards of a member were read when that was last seen to have changed."""

    at: float
    offsets: Mapping[Unit, int]


class _Watched:
    """What is remembered of one group between looks."""

    def __init__(self, seconds: float) -> None:
        self.lag = Lag(seconds)
        self.advisor = Advisor()
        self.advice: GroupAdvice | None = None
        # When the period began, where shards ended then, and for how long the unread of each member had been waiting.
        self.began_at: float | None = None
        self.ends: Mapping[Unit, int] = {}
        self.waiting: Mapping[int, float] = {}
        self.done: dict[int, _Done] = {}


class GroupReports:
    """Reports on the groups of one ledger. Any thread. The trend, and with it the advice, is that between looks, over
    about so many seconds: the first look has none."""

    def __init__(self, ledger: LedgerReader, clock: Clock, seconds: float = 30.0) -> None:
        self._ledger = ledger
        self._clock = clock
        self._seconds = seconds
        self.period = seconds / _PERIODS
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}

    def list(self, after: str = "", owners: Mapping[str, Owners] | None = None) -> Answer:
        """The groups after this name, without their shards."""
        rows = sorted((row for row in self._ledger.list_groups() if row.name > after), key=lambda row: row.name)
        found: list[GroupInfo] = []
        size = looked = 0
        for row in rows:
            info = self._describe(row, (owners or {}).get(row.name))
            looked += len(info.shards)
            size += _GROUP_BYTES + sum(map(len, info.streams))
            if found and (size > LIST_BYTES_MAX or looked > _LISTED_SHARDS_MAX):
                return Answer(groups=tuple(found), more=True)
            found.append(msgspec.structs.replace(info, shards=(), members=(), advice=None))
        return Answer(groups=tuple(found))

    def get(self, name: str, after: int = 0, owners: Owners | None = None) -> Answer:
        """One group, and its shards after the first `after`; UnknownGroup if there is none."""
        row = self._ledger.group_named(name)
        if row is None:
            raise UnknownGroup(f"there is no group {name[:100]!r}; it comes into being when its first member reads")
        info = self._describe(row, owners)
        shown = tuple(islice(info.shards, after, after + LIST_BYTES_MAX // _SHARD_BYTES))
        is_more = after + len(shown) < len(info.shards)
        return Answer(groups=(msgspec.structs.replace(info, shards=shown),), more=is_more)

    def look(self, name: str, owners: Owners) -> None:
        """Look at a group, so that whoever asks next hears of trend and advice."""
        row = self._ledger.group_named(name)
        if row is not None:
            self._describe(row, owners)

    def forget(self, name: str) -> None:
        """The group was deleted."""
        with self._lock:
            self._watched.pop(name, None)

    def _describe(self, row: GroupRow, owners: Owners | None) -> GroupInfo:
        owners = owners or Owners()
        now_us = self._clock.now_us()
        places = sorted(self._ledger.list_group_shards(row.id), key=lambda place: place[0])
        shards = [found for key, at in places if (found := self._shard(key, at, owners, now_us)) is not None]
        report, advice = self._observe(row.name, shards, owners, now_us)
        counts = Counter(shard.member for shard in shards)
        members = tuple(GroupMember(id_, owners.clients.get(id_, ""), counts[id_]) for id_ in sorted(owners.members))
        return GroupInfo(
            name=row.name,
            generation=row.generation,
            created_us=row.created_us,
            changed_us=row.changed_us,
            streams=tuple(dict.fromkeys(shard.stream for shard in shards)),
            records=report.records,
            seconds=report.seconds,
            member_count=len(members),
            trend=report.trend,
            catch_up_seconds=report.catch_up_seconds,
            members=members,
            shards=tuple(shards),
            advice=advice,
            spread=bool(owners.spread_by),
            hold_seconds=row.hold_us / 1_000_000,
            held_records=self._held(shards, now_us) if row.hold_us else 0,
        )

    def _held(self, shards: Sequence[GroupShard], now_us: int) -> int:
        """How many unread records retention would have let go by now."""
        found = 0
        for stream in {shard.stream_id for shard in shards}:
            row = self._ledger.load_stream(stream)
            starts = {} if row is None else due(self._ledger, row, now_us)
            mine = [shard for shard in shards if shard.stream_id == stream]
            found += sum(max(0, starts.get(each.shard, 0) - max(each.offset, each.start)) for each in mine)
        return found

    def _shard(self, key: ShardKey, at: GroupShardRow, owners: Owners, now_us: int) -> GroupShard | None:
        stream, shard = key
        row = self._ledger.load_stream(stream)
        if row is None or row.deleted_us:
            return None
        there = self._ledger.load_shard(stream, shard)
        end = there.stable
        since = self._unread_since(key, max(at.offset, there.start), end)
        seconds = 0.0 if since is None else max(now_us - since, 0) / 1_000_000
        next_member = owners.targets.get(Unit(stream, shard), 0)
        owner = 0 if at.owner == owners.spread_by else at.owner
        return GroupShard(
            *(row.name, stream, shard, at.offset, end, seconds, at.committed_us, owner, next_member), start=there.start
        )

    def _unread_since(self, key: ShardKey, offset: int, end: int) -> int | None:
        """About when the first unread record was written: the ledger knows the times of batches."""
        if offset >= end:
            return None
        entries = self._ledger.entries_from(*key, offset, 1)
        return entries[0].time_high if entries else None

    def _observe(
        self, name: str, shards: Sequence[GroupShard], owners: Owners, now_us: int
    ) -> tuple[LagReport, GroupAdvice | None]:
        now = self._clock.monotonic()
        behind = [
            Behind(
                shard.end - shard.records,
                shard.end,
                now_us - round(shard.seconds * 1_000_000) if shard.records else None,
            )
            for shard in shards
        ]
        with self._lock:
            watched = self._watched.get(name)
            if watched is None:
                if len(self._watched) >= GROUPS_MAX:
                    self._watched.clear()
                watched = self._watched[name] = _Watched(self._seconds)
            if watched.began_at is None or now >= watched.began_at + self.period:
                self._end_period(watched, shards, owners, now)
            return watched.lag.observe(behind, now, now_us), watched.advice if owners.members else None

    def _end_period(self, watched: _Watched, shards: Sequence[GroupShard], owners: Owners, now: float) -> None:
        """By what is written, unread and done, in records."""
        began_at, ends = watched.began_at, watched.ends
        watched.began_at = now
        watched.ends = {Unit(shard.stream_id, shard.shard): shard.end for shard in shards}
        before, watched.waiting = watched.waiting, _waiting(shards)
        # Those who spread share everything: each does as much as the others.
        readers = (0,) if owners.spread_by else owners.members
        loads = [
            MemberLoad(
                self._rate_of(watched, member, [shard for shard in shards if shard.member == member], now),
                min(before.get(member, 0.0), watched.waiting.get(member, 0.0)) >= _WAITING_SHARE * self.period,
            )
            for member in readers
        ]
        watched.done = {member: done for member, done in watched.done.items() if member in readers}
        units = len(shards)
        if owners.spread_by and owners.members:
            each = MemberLoad(loads[0].rate / len(owners.members), loads[0].is_bottleneck)
            loads, units = [each] * len(owners.members), GROUP_MEMBERS_MAX
        if began_at is None or not owners.members:
            return
        written = sum(end - ends.get(unit, end) for unit, end in watched.ends.items())
        backlog = sum(shard.records for shard in shards)
        advice = watched.advisor.observe(written / (now - began_at), backlog, loads, units)
        watched.advice = GroupAdvice(advice.members, advice.confidence, advice.capacity)

    def _rate_of(self, watched: _Watched, member: int, shards: Sequence[GroupShard], now: float) -> float:
        """Records per second since the last time that this member was seen to have committed something; 0 if it has
        not. Who commits rarely is measured rarely, and rightly."""
        offsets = {Unit(shard.stream_id, shard.shard): shard.offset for shard in shards}
        last = watched.done.get(member)
        done = 0 if last is None else sum(max(at - last.offsets.get(unit, at), 0) for unit, at in offsets.items())
        if last is None or done or offsets.keys() != last.offsets.keys():
            watched.done[member] = _Done(now, offsets)
        return 0.0 if last is None or now <= last.at else done / (now - last.at)


def _waiting(shards: Sequence[GroupShard]) -> dict[int, float]:
    """By member, for how many seconds the oldest unread record of its shards has been waiting."""
    found: dict[int, float] = {}
    for shard in shards:
        found[shard.member] = max(found.get(shard.member, 0.0), shard.seconds)
    return found
