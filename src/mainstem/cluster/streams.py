"""The streams of a group: which shards can be read, and which barriers the group has passed.

When a stream gets more shards, the records of a key may go on in another one. Nobody in the group gets what stands
behind a barrier, in any shard, before the group's cursors have passed the barriers of all shards: so new shards are
given out only then, and whoever reads an old one waits at its barrier until it hears that the group has passed.
"""

from collections.abc import Iterable, Iterator, Mapping

from mainstem.cluster.assignment import Unit
from mainstem.cluster.events import SharedStream, Subscription


class GroupStreams:
    """Streams by id, and how many of the changes of each are passed. Cursors only rise, so what is passed stays so."""

    def __init__(self) -> None:
        self._streams: dict[int, SharedStream] = {}
        self._passed: dict[int, int] = {}

    def __contains__(self, unit: Unit) -> bool:
        stream = self._streams.get(unit.stream)
        return stream is not None and unit.shard < stream.shards

    def replace(self, streams: Iterable[SharedStream]) -> None:
        self._streams = {stream.id: stream for stream in streams}
        self._passed = {id: self._passed.get(id, 0) for id in self._streams}  # noqa: A001

    def wanted_by(self, subscription: Subscription) -> frozenset[int]:
        return frozenset(stream.id for stream in self._streams.values() if subscription.wants(stream.name))

    def readable(self) -> Iterator[Unit]:
        """Units that can be given out."""
        for stream in self._streams.values():
            changes, passed = stream.changes, self._passed[stream.id]
            shards = len(changes[passed].barriers) if passed < len(changes) else stream.shards
            for shard in range(shards):
                yield Unit(stream.id, shard)

    def pass_barriers(self, cursors: Mapping[Unit, int], streams: Iterable[int]) -> set[int]:
        """Those of these streams in which the group, now that it stands there, has come over a barrier."""
        return {id for id in streams if id in self._streams and self._pass(self._streams[id], cursors)}  # noqa: A001

    def passed(self, streams: Iterable[int]) -> tuple[tuple[int, int], ...]:
        """Of these streams that have barriers: the generation up to which the group has passed them."""
        return tuple((id, self._generation(id)) for id in sorted(streams) if self._streams[id].changes)  # noqa: A001

    def ids(self) -> list[int]:
        return list(self._streams)

    def _pass(self, stream: SharedStream, cursors: Mapping[Unit, int]) -> bool:
        before = self._passed[stream.id]
        for change in stream.changes[before:]:
            if any(cursors.get(Unit(stream.id, s), 0) < barrier for s, barrier in enumerate(change.barriers)):
                break
            self._passed[stream.id] += 1
        return self._passed[stream.id] > before

    def _generation(self, stream: int) -> int:
        passed = self._passed[stream]
        changes = self._streams[stream].changes
        return changes[passed - 1].generation if passed else changes[0].generation - 1
