"""Sharing streams: what members of groups, those who look after them, and transactions ask of a log."""

from typing import Annotated

import msgspec

from mainstem.core.batch import U32, U63
from mainstem.core.delivery import Delivery, Job
from mainstem.core.limits import DELIVERY_JOB_CHARS_MAX

# Groups. A unit is (stream, shard), a place (stream, shard, offset); streams by their ids.


class JoinGroupCall(msgspec.Struct, frozen=True, tag="join_group"):
    """Become a member of a group, under an id that was just drawn: streams by name, or those that a pattern finds.
    `starts` says, by stream and shard, where the group begins where it has not read yet. Who was a member before says
    in which units it stands, and by which generation. Answered with its membership when there is something to hold, at
    last after a heartbeat; Fenced if it must draw another id."""

    group: str
    member: U63
    streams: tuple[str, ...] = ()
    pattern: str | None = None
    starts: tuple[tuple[U63, tuple[U63, ...]], ...] = ()
    held: tuple[tuple[U63, U32], ...] = ()
    generation: U63 = 0
    client: str = ""


class BeatGroupCall(msgspec.Struct, frozen=True, tag="beat_group"):
    """A member lives, has acted on the membership of this version and stands in `held`; `rates` are bytes per second.
    Answered when its membership changes, at last after a heartbeat. Fenced: it is no member, and has to join anew."""

    group: str
    member: U63
    generation: U63
    version: U63
    held: tuple[tuple[U63, U32], ...] = ()
    rates: tuple[tuple[U63, U32, float], ...] = ()


class LeaseGroupCall(msgspec.Struct, frozen=True, tag="lease_group"):
    """Be a member of a group that spreads its streams batch by batch: join, show that one lives, say what is done, and
    ask for more, all by this one call. `held` are the leases that the member goes on with, all others of its are given
    to others; of those in `done`, as (lease, offset), it has read up to there. Answered when that is durable, or when
    there is one of the `wanted` leases, at last after a heartbeat; at once if it is not `patient`."""

    group: str
    member: U63
    streams: tuple[str, ...] = ()
    pattern: str | None = None
    starts: tuple[tuple[U63, tuple[U63, ...]], ...] = ()
    held: tuple[U63, ...] = ()
    done: tuple[tuple[U63, U63], ...] = ()
    wanted: U32 = 0
    patient: bool = True
    client: str = ""


class LeaveGroupCall(msgspec.Struct, frozen=True, tag="leave_group"):
    """A member goes; others get what it had."""

    group: str
    member: U63


class CommitCursorsCall(msgspec.Struct, frozen=True, tag="commit_cursors"):
    """A member, or member 0 where nobody owns these shards, has read up to these places; all or nothing. `generation`
    is the newest of the group that it knew when it had."""

    group: str
    member: U63
    offsets: tuple[tuple[U63, U32, U63], ...]
    generation: U63 | None = None


class ListGroupsCall(msgspec.Struct, frozen=True, tag="list_groups"):
    """Answered with the groups after this name, in the order of their names, without their shards, as many as fit."""

    after: str = ""


class GetGroupCall(msgspec.Struct, frozen=True, tag="get_group"):
    """Answered with the group and its shards after the first `after`, as many as fit; `more` says whether others
    follow."""

    name: str
    after: U63 = 0


class ResetGroupCall(msgspec.Struct, frozen=True, tag="reset_group"):
    """Set cursors of a group that has no members."""

    name: str
    offsets: tuple[tuple[U63, U32, U63], ...]


class DeleteGroupCall(msgspec.Struct, frozen=True, tag="delete_group"):
    """Forget a group that has no members."""

    name: str


class HoldGroupCall(msgspec.Struct, frozen=True, tag="hold_group"):
    """Keep what a group has not read so long beyond retention; 0: no longer. Answered with the group."""

    name: str
    hold_us: U63


class Membership(msgspec.Struct, frozen=True, array_like=True):
    """What a member shall hold from now on: `hold`, those that are new to it at `cursors`. It commits what it has read
    of `let_go` and lets them go; what it has beside these is lost to it. A lower version than was seen says nothing.
    `passed` has, for streams that got more shards, the generation up to which it may read."""

    generation: U63
    version: U63
    hold: tuple[tuple[U63, U32], ...]
    cursors: tuple[tuple[U63, U32, U63], ...]
    let_go: tuple[tuple[U63, U32], ...]
    passed: tuple[tuple[U63, U63], ...]
    heartbeat: float
    session_timeout: float


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """The offsets from `first` to before `end` of a shard are one member's to read. Streams by their ids."""

    number: U63
    stream: U63
    shard: U32
    first: U63
    end: U63


class Leases(msgspec.Struct, frozen=True, array_like=True):
    """All that a member has to read, and those of `done` that were not its own any more. `others` says whether other
    members have something to read."""

    leases: tuple[Lease, ...]
    lost: tuple[U63, ...]
    others: bool
    heartbeat: float
    session_timeout: float


class GroupShard(msgspec.Struct, frozen=True):
    """Where a group stands in a shard: `offset` is what it reads next, `end` where the shard ends. `member` owns it, 0
    if nobody does; `next_member` shall have it. `seconds` is the age of the first record that is unread. What is before
    `start` is there no more."""

    stream: str
    stream_id: int
    shard: int
    offset: int
    end: int
    seconds: float
    committed_us: int
    member: int
    next_member: int = 0
    start: int = 0

    @property
    def records(self) -> int:
        """How many records are unread, of those that are there."""
        return max(0, self.end - max(self.offset, self.start))


class GroupMember(msgspec.Struct, frozen=True):
    """A member: the id that it drew, what its program calls itself, and how many shards it owns."""

    id: int
    client: str
    shards: int


class GroupAdvice(msgspec.Struct, frozen=True):
    """How many members the group should have, for what is written now and what is unread. `capacity` is how many
    records per second one of them was seen to manage, None if none was ever at its limit: then the confidence is "low",
    and the advice is to leave it at that."""

    members: int
    confidence: str
    capacity: float | None = None


class GroupInfo(msgspec.Struct, frozen=True):
    """A group as users see it. `records` are unread, the oldest of them for `seconds`. `trend` is how many more there
    are each second, below 0 if it catches up, in `catch_up_seconds`; None where that is not known, or never. So many
    members as `member_count` says read now, batch by batch if they `spread` shards; a list of groups leaves out who
    they are, and the shards. What is unread is kept up to `hold_seconds` longer than retention says, if that is not 0:
    now `held_records` of them."""

    name: str
    generation: int
    created_us: int
    changed_us: int
    streams: tuple[str, ...]
    records: int
    seconds: float
    member_count: int = 0
    trend: float | None = None
    catch_up_seconds: float | None = None
    members: tuple[GroupMember, ...] = ()
    shards: tuple[GroupShard, ...] = ()
    advice: GroupAdvice | None = None
    spread: bool = False
    hold_seconds: float = 0.0
    held_records: int = 0

    def __repr__(self) -> str:
        return (
            f"<GroupInfo {self.name}: {', '.join(self.streams)}, {self.member_count} members, {self.records} records "
            f"behind>"
        )


# Transactions.


class Staging(msgspec.Struct, frozen=True, array_like=True):
    """Which part of a transaction batches are. Parts count from 0; the first begins the transaction, which ends by
    itself after `seconds`. `writer` is the name under which it is written, if it has one, and `epoch` that of the
    name. `job` and `number` say for which delivery it is, if for one; from version 6 on."""

    transaction: U63
    index: U32
    seconds: float
    writer: str = ""
    epoch: U63 = 0
    job: Annotated[str, msgspec.Meta(max_length=DELIVERY_JOB_CHARS_MAX)] = ""
    number: U63 = 0


class CommitTransactionCall(msgspec.Struct, frozen=True, tag="commit_transaction"):
    """Make all of a transaction visible, of which so many batches were staged, and move cursors, or do neither.
    Answered with where its records stand. Repeated, it has the same answer."""

    transaction: U63
    batches: U32
    cursors: tuple[CommitCursorsCall, ...] = ()
    writer: str = ""
    epoch: U63 = 0


class CommitPartsCall(msgspec.Struct, frozen=True, tag="commit_parts"):
    """Make visible what several clients have staged, each as a transaction of its own, together and in this order:
    `parts` has the id of each and how many batches were staged in it. They become one transaction of the id
    `transaction`. Answered with where its records stand. `delivery` says which numbered write of a job it is: one that
    was made before changes nothing, lets go of the parts and is answered as `repeated`."""

    transaction: U63
    parts: tuple[tuple[U63, U32], ...]
    delivery: Delivery | None = None


class AbortTransactionCall(msgspec.Struct, frozen=True, tag="abort_transaction"):
    """Let go of what was staged."""

    transaction: U63


class AbortDeliveryCall(msgspec.Struct, frozen=True, tag="abort_delivery"):
    """Let go of all that was staged in a stream for this delivery of a job and for those before it, whoever did. With
    `for_good` none of it can be staged any more: what comes late is refused."""

    name: str
    job: Job
    number: U63
    for_good: bool = False


class OpenWriterCall(msgspec.Struct, frozen=True, tag="open_writer"):
    """Write transactions under this name from now on; whoever did before is fenced. Answered with the epoch."""

    name: str


class Committed(msgspec.Struct, frozen=True, array_like=True):
    """Records of a transaction in one shard: `count` of them from `base` on. Streams by their ids."""

    stream: int
    shard: int
    base: int
    count: int
