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
from mainstem.core.limits import GROUPS_MAX, LIST_BYTES_MAX
from mainstem.log.ledger.base import GroupRow, GroupShardRow, LedgerReader, ShardKey
from mainstem.transport.port import Answer
from mainstem.transport.sharing import GroupAdvice, GroupInfo, GroupMember, GroupShard

# A group and a shard in an answer at most, beside names of streams, which are as long as they are.
_GROUP_BYTES: Final = 512
_SHARD_BYTES: Final = 192
# A group is looked at no more often than this for its advice: rates are averages.
_ADVICE_SECONDS: Final = 5.0
# Times of this many shards are looked up for one list.
_LISTED_SHARDS_MAX: Final = 4_096


class Owners(NamedTuple):
    """What the coordinator knows of a group: its members, their names, who shall have which unit, and bytes per second
    of each."""

    members: tuple[int, ...] = ()
    clients: Mapping[int, str] = {}
    targets: Mapping[Unit, int] = {}
    weights: Mapping[Unit, float] = {}


class _Watched:
    """What is remembered of one group between looks."""

    def __init__(self) -> None:
        self.lag = Lag()
        self.advisor = Advisor()
        self.advised_at = float("-inf")
        self.advice: GroupAdvice | None = None
        # Bytes of records, as of the last look: how fast they are written, and how large they are.
        self.written: tuple[float, int] | None = None


class GroupReports:
    """Reports on the groups of one ledger. Any thread. The trend is that between looks, so the first has none."""

    def __init__(self, ledger: LedgerReader, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
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
        )

    def _shard(self, key: ShardKey, at: GroupShardRow, owners: Owners, now_us: int) -> GroupShard | None:
        stream, shard = key
        row = self._ledger.load_stream(stream)
        if row is None or row.deleted_us:
            return None
        end = self._ledger.load_shard(stream, shard).stable
        since = self._unread_since(key, at.offset, end)
        seconds = 0.0 if since is None else max(now_us - since, 0) / 1_000_000
        next_member = owners.targets.get(Unit(stream, shard), 0)
        return GroupShard(
            row.name, stream, shard, at.offset, end, seconds, at.committed_us, at.owner, next_member=next_member
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
            Behind(shard.offset, shard.end, now_us - round(shard.seconds * 1_000_000) if shard.records else None)
            for shard in shards
        ]
        with self._lock:
            watched = self._watched.get(name)
            if watched is None:
                if len(self._watched) >= GROUPS_MAX:
                    self._watched.clear()
                watched = self._watched[name] = _Watched()
            if now >= watched.advised_at + _ADVICE_SECONDS and owners.members:
                watched.advised_at = now
                watched.advice = self._advise(watched, shards, owners, now)
            return watched.lag.observe(behind, now, now_us), watched.advice if owners.members else None

    def _advise(
        self, watched: _Watched, shards: Sequence[GroupShard], owners: Owners, now: float
    ) -> GroupAdvice | None:
        """By what is written and unread, in bytes: the ledger knows the size of a shard and how many offsets it has."""
        total = backlog = 0.0
        for shard in shards:
            row = self._ledger.load_shard(shard.stream_id, shard.shard)
            per_record = row.bytes / max(row.stable - row.start, 1)
            total += row.stable * per_record
            backlog += shard.records * per_record
        before, watched.written = watched.written, (now, round(total))
        if before is None or now <= before[0]:
            return None
        rate = max(total - before[1], 0.0) / (now - before[0])
        loads = [
            MemberLoad(
                sum(
                    owners.weights.get(Unit(shard.stream_id, shard.shard), 0.0)
                    for shard in shards
                    if shard.member == member
                ),
                any(shard.records for shard in shards if shard.member == member),
            )
            for member in owners.members
        ]
        advice = watched.advisor.observe(rate, backlog, loads, len(shards))
        return GroupAdvice(advice.members, advice.confidence, advice.capacity)


def _load(shards: Sequence[GroupShard], owners: Owners) -> MemberLoad:
    """What a member does that owns these."""
    rate = sum(owners.weights.get(Unit(shard.stream_id, shard.shard), 0.0) for shard in shards)
    return MemberLoad(rate, any(shard.records for shard in shards))
