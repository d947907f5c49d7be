"""A streaming query as a group: where it stands is published, so that it has a lag, can be reset, and holds retention.

Nobody is a member: Spark alone decides which task reads what, and its checkpoint is what counts. The group is a view of
it, and a lever: whoever resets the group moves the query.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from mainstem.core.errors import Fenced, InvalidCursor, UnknownGroup
from mainstem.core.events import Event
from mainstem.core.identity import RANDOMNESS
from mainstem.spark.progress import Standing
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
# How long it may take until a group is made, and the ledger has noted that nobody owns its shards.
_LEAVE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.02


class QueryGroup:
    """The group of one query, of one stream. One thread."""

    def __init__(self, port: Port, name: str) -> None:
        self._port = port
        self._name = name

    def standing(self, info: StreamInfo) -> Standing | None:
        """Where the group stands; None if it does not read the stream yet."""
        try:
            group, shards = self._get()
        except UnknownGroup:
            return None
        mine = {shard.shard: shard for shard in shards if shard.stream_id == info.id}
        if not mine:
            return None
        offsets = tuple(mine[shard].offset if shard in mine else 0 for shard in range(info.shards))
        # Of all that changes a group only a reset does so at the time at which it moves cursors. Of several since the
        # last look, this is the last one.
        reset = frozenset(shard.shard for shard in mine.values() if shard.committed_us == group.changed_us)
        return Standing(offsets, group.generation, reset, (group.name, group.created_us))

    def stand(self, info: StreamInfo, offsets: Sequence[int]) -> Standing:
        """Where the group stands, which is made at these offsets if it does not read the stream yet."""
        return self.standing(info) or self._begin(info, offsets)

    def publish(self, info: StreamInfo, offsets: Sequence[int], known: Standing) -> Standing:
        """The query has everything before these offsets, durably. Where the group stands then: elsewhere, if it was not
        as it is `known` any more, because it was reset meanwhile, or if it may not be set there."""
        places = tuple((info.id, shard, offset) for shard, offset in enumerate(offsets))
        try:
            self._port.call(CommitCursorsCall(self._name, 0, places, known.generation))
        except (InvalidCursor, Fenced) as error:
            found = self.stand(info, offsets)
            if found.generation == known.generation:
                # The query goes by its checkpoint, which is older than the group, or somebody else reads as this group.
                logger.warning(Event("progress of the query is not published", group=self._name, reason=error))
            return found
        return replace(known, offsets=tuple(offsets))

    def hold(self, hold_us: int) -> None:
        """Keep what the query has not read from retention, for so long at most."""
        self._port.call(HoldGroupCall(self._name, hold_us))

    def _begin(self, info: StreamInfo, offsets: Sequence[int]) -> Standing:
        deadline = time.monotonic() + _LEAVE_SECONDS
        starts = ((info.id, tuple(offsets)),)
        while True:
            member = RANDOMNESS.getrandbits(62) + 1
            try:
                self._port.call(JoinGroupCall(self._name, member, (info.name,), None, starts, client=_CLIENT))
                break
            except Fenced:
                # A group of this name that was deleted the moment before is only now forgotten.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_LOOK_SECONDS)
        self._port.call(LeaveGroupCall(self._name, member))
        # That it has left begins a generation, which is not to be taken for a reset later.
        group, shards = self._get()
        while any(shard.member for shard in shards) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            group, shards = self._get()
        return Standing(tuple(offsets), group.generation, frozenset(), (group.name, group.created_us))

    def _get(self) -> tuple[GroupInfo, list[GroupShard]]:
        shards: list[GroupShard] = []
        while True:
            answer = self._port.call(GetGroupCall(self._name, len(shards)))
            group = answer.groups[0]
            shards += group.shards
            if not answer.more:
                return group, shards
