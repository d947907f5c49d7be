"""Groups of readers, as the ledger knows them: who owns which shard, and how far each was read.

Decides nothing: what may be changed is decided when a command is applied. Checked here is only what no ledger should
have to look at: names, ids, and how much is asked for at a time.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mainstem.core.clock import Clock
from mainstem.core.errors import InvalidRequest, MainstemError, UnknownGroup
from mainstem.core.limits import GROUP_CHANGE_UNITS_MAX, GROUP_MEMBERS_MAX
from mainstem.core.names import check_group_name
from mainstem.log.batcher import Outcomes, Submission
from mainstem.log.flush import (
    PRODUCER_ID_MAX,
    AssignShards,
    Command,
    CommitCursors,
    DeleteGroup,
    Done,
    HoldGroup,
    Position,
    ResetGroup,
)
from mainstem.log.ledger.base import GroupRow, GroupShardRow, LedgerReader, ShardKey

Answer = Callable[[Outcomes | MainstemError], None]


class KnownGroup(NamedTuple):
    """A group, and every shard that it ever read."""

    row: GroupRow
    shards: dict[ShardKey, GroupShardRow]


class Groups:
    """The groups of one log. Any thread. `assign` and `commit` do not wait: they answer like an append does."""

    def __init__(
        self,
        ledger: LedgerReader,
        submit: Callable[[Submission], None],
        execute: Callable[[Command], Done],
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._submit = submit
        self._execute = execute
        self._clock = clock

    def names(self) -> list[str]:
        return [row.name for row in self._ledger.list_groups()]

    def find(self, name: str) -> KnownGroup | None:
        """None if there is no such group. Its shards may have been changed since the group was looked up."""
        row = self._ledger.group_named(name)
        return None if row is None else KnownGroup(row, dict(self._ledger.list_group_shards(row.id)))

    def get(self, name: str) -> KnownGroup:
        """The same; UnknownGroup if there is none."""
        known = self.find(name)
        if known is None:
            raise UnknownGroup(f"there is no group {name[:100]!r}; it comes into being when its first member reads")
        return known

    def assign(
        self,
        name: str,
        generation: int,
        assigned: Sequence[tuple[int, int, int]],
        done: Answer,
        *,
        starts: Sequence[Position] = (),
    ) -> None:
        """Note owners of shards, as (stream, shard, member); `done` gets `Assigned`, or `Rejected` with Fenced if the
        group is not at the generation before this one. See AssignShards."""
        _check(name, assigned, "owners")
        _check(name, starts, "cursors")
        _check_number(generation, "a generation of a group")
        command = AssignShards(name, generation, tuple(assigned), self._clock.now_us(), tuple(starts))
        self._submit(Submission((command,), done))

    def commit(
        self,
        name: str,
        member: int,
        offsets: Sequence[Position],
        done: Answer,
        *,
        generation: int | None = None,
    ) -> None:
        """Move cursors; `done` gets `Done`, or `Rejected` with Fenced, InvalidCursor, or what is wrong with a stream:
        then none of them has moved. See CommitCursors."""
        _check(name, offsets, "cursors")
        _check_number(member, "the id of a member")
        _check_number(generation or 0, "a generation of a group")
        command = CommitCursors(name, member, tuple(offsets), self._clock.now_us(), generation)
        self._submit(Submission((command,), done))

    def reset(self, name: str, offsets: Sequence[Position]) -> None:
        """Set cursors anywhere, and wait for it. GroupBusy if somebody owns a shard of the group."""
        _check(name, offsets, "cursors")
        self._execute(ResetGroup(name, tuple(offsets), self._clock.now_us()))

    def delete(self, name: str) -> None:
        """Forget a group and its cursors, and wait for it. GroupBusy if somebody owns a shard of it."""
        check_group_name(name)
        self._execute(DeleteGroup(name))

    def hold(self, name: str, hold_us: int) -> None:
        """Keep what the group has not read from retention, for so long at most, and wait for it; 0: no more."""
        check_group_name(name)
        self._execute(HoldGroup(name, hold_us))


def group_is_full(name: str) -> InvalidRequest:
    """What who would be one member too many hears."""
    return InvalidRequest(f"group {name!r} has {GROUP_MEMBERS_MAX} members, which is the limit")


def _check(name: str, places: Sequence[tuple[int, int, int]], what: str) -> None:
    check_group_name(name)
    if len(places) > GROUP_CHANGE_UNITS_MAX:
        raise InvalidRequest(f"{len(places)} {what} at once; up to {GROUP_CHANGE_UNITS_MAX} can be changed in one step")
    for place in places:
        if not all(0 <= number <= PRODUCER_ID_MAX for number in place):
            raise InvalidRequest(f"{place} is no shard of a stream and a number from 0 to 2^63 - 1")


def _check_number(number: int, what: str) -> None:
    if not 0 <= number <= PRODUCER_ID_MAX:
        raise InvalidRequest(f"{number} cannot be {what}")
