"""The clients of a server as its operator sees them: who is connected, who is behind, who takes nothing.

Looked at from a thread beside the loop, without a lock: the numbers are plain and each is right by itself, though not
all of the same instant.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from mainstem.core.limits import (
    CONNECTION_INFO_BYTES_MAX,
    FOLLOWER_SLOW_RECORDS,
    FOLLOWER_SLOW_SECONDS,
    LIST_BYTES_MAX,
)
from mainstem.server.session import Session
from mainstem.transport.port import Answer, ConnectionInfo

# Shards that are looked at for one answer.
_SHARDS_MAX: Final = 50_000


class Followers(NamedTuple):
    """All subscriptions together. A slow follower is behind by more than `FOLLOWER_SLOW_RECORDS`, or blocked."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    slow: int
    blocked: int
    behind_max: int


def count_followers(sessions: Iterable[Session], now: float) -> Followers:
    count = slow = blocked = behind_max = 0
    for session in sessions:
        for subscription in tuple(session.subscriptions.values()):
            behind = subscription.behind()
            is_blocked = behind > 0 and subscription.stalled_seconds(now) >= FOLLOWER_SLOW_SECONDS
            count += 1
            blocked += is_blocked
            slow += is_blocked or behind > FOLLOWER_SLOW_RECORDS
            behind_max = max(behind_max, behind)
    return Followers(count, slow, blocked, behind_max)


def list_connections(sessions: Collection[Session], after: int, now: float) -> Answer:
    """Those with an id above `after`, as many as fit into one answer and do not take long to look at."""
    rest = sorted((session for session in sessions if session.id > after), key=lambda session: session.id)
    found: list[ConnectionInfo] = []
    shards = 0
    for session in rest:
        if len(found) >= _INFOS_MAX or shards > _SHARDS_MAX:
            break
        shards += sum(subscription.shards for subscription in tuple(session.subscriptions.values()))
        found.append(_described(session, now))
    return Answer(connections=tuple(found), more=len(found) < len(rest))


_INFOS_MAX: Final = LIST_BYTES_MAX // CONNECTION_INFO_BYTES_MAX


def _described(session: Session, now: float) -> ConnectionInfo:
    subscriptions = tuple(session.subscriptions.values())
    behind, stream, stalled = 0, "", 0.0
    for records, name, seconds in _delays(session, now):
        stalled = max(stalled, seconds)
        if records > behind:
            behind, stream = records, name
    return ConnectionInfo(
        id=session.id,
        client=session.client,
        address=session.address,
        connected_us=session.connected_us,
        appends=session.appends.count,
        append_bytes=session.appends.bytes,
        subscriptions=len(subscriptions),
        behind=behind,
        behind_stream=stream,
        stalled_us=round(stalled * 1_000_000),
        waiting=session.appends.has_waiting,
    )


def _delays(session: Session, now: float) -> Iterator[tuple[int, str, float]]:
    """Of each subscription that is behind: by how many records, of which stream, for how long it took nothing."""
    for subscription in tuple(session.subscriptions.values()):
        behind = subscription.behind()
        if behind:
            yield behind, subscription.stream_name, subscription.stalled_seconds(now)
