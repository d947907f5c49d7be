"""What the consumers of a group have in common, whether shards are read whole or spread."""

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from typing import ClassVar, Final, Literal, Self

from mainstem.consume.member import Member
from mainstem.consume.record import RecordBatch
from mainstem.consume.several import Lane, ReadOptions, Several
from mainstem.core.errors import InvalidSetting, MainstemError
from mainstem.core.names import check_group_name
from mainstem.transport.port import Port
from mainstem.transport.sharing import GetGroupCall, GroupShard

Commit = Literal["auto", "manual"]

COMMIT_SECONDS: Final = 30.0
# The same at the end: who closes, or is to hear of something else that went wrong, does not wait for long.
CLOSE_SECONDS: Final = 5.0
# How often it is looked whether the others have read the rest, by who has read its own to the end: the less often, the
# longer it waits.
_FINISH_SECONDS_MIN: Final = 0.01
_FINISH_SECONDS_MAX: Final = 0.2
_FINISH_SHARE: Final = 0.25


class MemberConsumer(Several[Lane]):
    """Reads its share of one or several streams. One thread."""

    _member: Member
    _elsewhere: ClassVar[Mapping[str, str]] = {
        "seek": "rewind() goes back to what was committed; hub.groups.reset sets a group elsewhere that has no members",
        "seek_shard": "hub.groups.reset sets a group elsewhere that has no members",
        "cursor": "the log keeps that of the group; positions says where this member would go on",
        "watermark": "it is of a consumer without a group, opened with ordering_window=...",
    }

    def __init__(self, port: Port, group: str, options: ReadOptions, commit: Commit) -> None:
        check_group_name(group)
        if commit not in ("auto", "manual"):
            raise InvalidSetting(f"commit must be 'auto' or 'manual', not {commit!r}")
        port.check_writable()
        super().__init__(port, options)
        self.group = group
        self._is_auto = commit == "auto"
        # What others have to read to its end, and since when that is so.
        self._left_to_others: tuple[frozenset[Hashable], float] | None = None
        # Since when it has nothing to read and looks what the others do.
        self._looks_since: float | None = None

    def on_news(self) -> None:
        """The member has heard something. Any thread."""
        self.wake()

    @property
    @abstractmethod
    def positions(self) -> dict[tuple[str, int], int]:
        """By stream and shard: where this member would go on, in what it has to read now."""

    def _take(self, timeout: float | None) -> RecordBatch | None:
        batch = super()._take(timeout)
        if batch is not None:
            self._looks_since = None
        return batch

    # The end.

    def _is_left_to_others(self, left: frozenset[Hashable]) -> bool:
        """Whether what is left can be left to the others who have it. They live if they have it still when one that is
        dead would be missed: then this member would have been given something of it."""
        now = self._clock.monotonic()
        if self._left_to_others is None or not left <= self._left_to_others[0]:
            self._left_to_others = left, now
        return not left or now - self._left_to_others[1] > self._member.session_timeout + self._member.heartbeat

    def _group_shards(self) -> list[GroupShard]:
        if self._looks_since is None:
            self._looks_since = self._clock.monotonic()
        found: list[GroupShard] = []
        while True:
            answer = self._port.call(GetGroupCall(self.group, len(found)))
            found += answer.groups[0].shards
            if not answer.more:
                return found

    def _awaited(self) -> Iterable[Lane]:
        """What has ended, too, because much is to be done then: commits, barriers, leases. Unless all of that is done,
        and it is looked now and then what the others do."""
        return self._turns if self._looks_since is None else super()._awaited()

    def _pause_max(self) -> float | None:
        if self._options.follow:
            return None
        if self._looks_since is None:
            return _FINISH_SECONDS_MAX
        waited = self._clock.monotonic() - self._looks_since
        return min(max(_FINISH_SHARE * waited, _FINISH_SECONDS_MIN), _FINISH_SECONDS_MAX)

    def close(self) -> None:
        """Commit what was yielded, unless that is up to the user, and leave the group. What was not committed is read
        again by whoever reads next."""
        self._close(is_clean=True)

    def abandon(self) -> None:
        """The same when something went wrong: what was yielded last is not committed, and if the rest cannot be, it is
        not that which is to be seen."""
        self._close(is_clean=False)

    def _close(self, *, is_clean: bool) -> None:
        if self._closed:
            return
        is_away = False
        try:
            if self._is_auto:
                self._commit_last(is_clean=is_clean)
        except MainstemError as error:
            is_away = error.retriable
            if is_clean:
                raise
        finally:
            self._end()
            self._member.leave(wait=not is_away)

    def _end(self) -> None:
        super()._end()
        # What was not yielded is read by others.
        self._drop_current()

    @abstractmethod
    def _commit_last(self, *, is_clean: bool) -> None:
        """Commit what was yielded, unless it ends by an error: then all but what was yielded last, because nobody knows
        what has become of that."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._close(is_clean=kind is None)

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        places = ", ".join(f"{stream}:{shard} at {at}" for (stream, shard), at in list(self.positions.items())[:8])
        return f"<{type(self).__name__} {self.group}: {places or 'nothing'}{state}>"
