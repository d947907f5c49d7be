"""A streaming query as a group: where it stands is published, so that it has a lag, can be reset, and holds retention.

Nobody is a member: Spark alone decides which task reads what, and its checkpoint is what counts. The group is a view of
it, and a lever: whoever resets the group moves the query.
"""

import logging
from collections.abc import Sequence

from mainstem.core.errors import Fenced, InvalidCursor, UnknownGroup
from mainstem.core.events import Event
from mainstem.core.identity import RANDOMNESS
from mainstem.transport.port import Port, StreamInfo
from mainstem.transport.sharing import (
    CommitCursorsCall,
    GetGroupCall,
    GroupInfo,
    GroupShard,
    HoldGroupCall,
    JoinGroupCall,
    LeaveGroupCall,
)

logger = logging.getLogger("mainstem.spark")

_CLIENT = "spark"


class QueryGroup:
    """The group of one query, of one stream. One thread."""

    def __init__(self, port: Port, name: str) -> None:
        self._port = port
        self._name = name

    def standing(self, info: StreamInfo) -> tuple[tuple[int, ...], int] | None:
        """Where the group stands in each shard, and its generation; None if it does not read the stream yet."""
        try:
            group, shards = self._get()
        except UnknownGroup:
            return None
        offsets = {shard.shard: shard.offset for shard in shards if shard.stream_id == info.id}
        if not offsets:
            return None
        return tuple(offsets.get(shard, 0) for shard in range(info.shards)), group.generation

    def begin(self, info: StreamInfo, offsets: Sequence[int]) -> int:
        """Make the group, at these offsets, where it is not yet; its generation."""
        member = RANDOMNESS.getrandbits(62) + 1
        starts = ((info.id, tuple(offsets)),)
        self._port.call(JoinGroupCall(self._name, member, (info.name,), None, starts, client=_CLIENT))
        self._port.call(LeaveGroupCall(self._name, member))
        return self._get()[0].generation

    def publish(self, info: StreamInfo, offsets: Sequence[int]) -> None:
        """The query has everything before these offsets, durably."""
        places = tuple((info.id, shard, offset) for shard, offset in enumerate(offsets))
        try:
            self._port.call(CommitCursorsCall(self._name, 0, places))
        except (InvalidCursor, Fenced) as error:
            # The query goes by its checkpoint, which is older than the group, or somebody else reads as this group.
            logger.warning(Event("progress of the query is not published", group=self._name, reason=error))

    def hold(self, hold_us: int) -> None:
        """Keep what the query has not read from retention, for so long at most."""
        self._port.call(HoldGroupCall(self._name, hold_us))

    def _get(self) -> tuple[GroupInfo, list[GroupShard]]:
        shards: list[GroupShard] = []
        while True:
            answer = self._port.call(GetGroupCall(self._name, len(shards)))
            group = answer.groups[0]
            shards += group.shards
            if not answer.more:
                return group, shards
