"""The streams of a log as its groups know them: how many shards, which barriers, whether they have an order."""

from collections.abc import Iterator

from mainstem.cluster.events import SharedStream, StreamChange
from mainstem.log.ledger.base import LedgerReader, StreamRow


class SharedStreams:
    """All streams that there were at the last look. One thread."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger
        # What of the rows can change for groups, as it was at the last look.
        self._rows: list[tuple[int, int, bool]] = []
        self._streams: dict[int, SharedStream] = {}

    def __iter__(self) -> Iterator[SharedStream]:
        return iter(self._streams.values())

    def get(self, stream: int) -> SharedStream | None:
        return self._streams.get(stream)

    def look(self) -> bool:
        """Whether there are other streams than before, or more shards."""
        rows = [row for row in self._ledger.list_streams() if not row.deleted_us]
        now = [(row.id, row.shards, _has_order(row)) for row in rows]
        if now == self._rows:
            return False
        self._rows = now
        known = self._streams
        self._streams = {
            row.id: shared
            if (shared := known.get(row.id)) is not None
            and (shared.shards, shared.has_order) == (row.shards, _has_order(row))
            else self._as_shared(row)
            for row in rows
        }
        return True

    def _as_shared(self, row: StreamRow) -> SharedStream:
        generations = self._ledger.load_generations(row.id)[: row.generation] if row.generation else ()
        changes = [
            StreamChange(number, generation.shards, tuple(generation.barriers))
            for number, generation in enumerate(generations, 1)
        ]
        return SharedStream(row.id, row.name, row.shards, tuple(changes), _has_order(row), row.created_us)


def _has_order(row: StreamRow) -> bool:
    return bool(row.key) or row.cleanup != "delete"
