"""Erasing: every record of one key goes at once, for whoever reads, and soon from the disk."""

from collections.abc import Sequence
from typing import Final

from mainstem.core.errors import DataLoss, Refused
from mainstem.log.compaction import without_key
from mainstem.log.flush import HurryBlocks
from mainstem.log.ledger.base import Entry, ShardRow, StreamRow
from mainstem.log.replacement import Upshot
from mainstem.log.upkeep.freeing import Freeing
from mainstem.log.upkeep.thinning import leave, pieces
from mainstem.log.upkeep.trimming import Trimming
from mainstem.log.upkeep.work import Work

# How often the same entries are tried to be replaced, before that is given up: others may be at them in the same flush.
_REFUSED_MAX: Final = 8


class Erasing:
    """Erases keys, in the thread of whoever asks for it."""

    def __init__(self, work: Work, trimming: Trimming, freeing: Freeing) -> None:
        self._work = work
        self._trimming = trimming
        self._freeing = freeing

    def erase(self, stream: StreamRow, key: bytes) -> int:
        """Take every record of one key away that is there now; how many. Then no reader can see one any more."""
        rows = [self._work.commits.shard((stream.id, shard)) for shard in range(stream.shards)]
        try:
            erased = sum(self._erase_in(stream, shard, row, key) for shard, row in enumerate(rows))
            # Copies from before a merge, and what was compacted away before, are in the same hurry.
            self._work.execute(HurryBlocks(stream.id, self._work.clock.now_us()))
        finally:
            # Also where nothing was found: compaction takes records from the disk and leaves them in memory. By the
            # flush above all that was there before it is in memory, if it ever comes there.
            for shard, row in enumerate(rows):
                self._work.commits.forget_hot((stream.id, shard), row.stable)
        self._trimming.note_erased(stream.id)
        self._work.counts["records_erased"] += erased
        self._freeing.due = 0.0
        return erased

    def _erase_in(self, stream: StreamRow, shard: int, row: ShardRow, key: bytes) -> int:
        """The same for one shard, as it was at this moment, on the disk; how many."""
        erased = 0
        contents = self._work.contents(stream)
        upshot = Upshot(self._work.clock.now_us())
        # What was trimmed a moment ago may be of this key too.
        self._trimming.drop_now(stream, (stream.id, shard))
        offset, refused = row.start, _Refusals(stream.name, shard)
        while offset < row.stable:
            for entries, groups in pieces(self._work, stream, shard, offset, row.stable):
                if groups is None:
                    raise DataLoss(
                        f"stream {stream.name!r} shard {shard}: records {entries[0].base} to {entries[-1].end - 1} "
                        "cannot be read, so it is not known whether they are of this key; run mainstem doctor",
                        stream=stream.name,
                        shard=shard,
                        first=entries[0].base,
                        last=entries[-1].end - 1,
                        reason="damaged",
                    )
                try:
                    erased += leave(self._work, entries, groups, contents, lambda r: without_key(r, key), upshot)
                except Refused as error:
                    if self._work.commits.has_failed():
                        raise
                    refused.note(entries, error)
                    break  # the entries were merged or compacted meanwhile: look at them as they are now
                offset = entries[-1].end
            else:
                break
        return erased


class _Refusals:
    """How often the same entries of a shard could not be replaced. Whoever replaced them first has changed them; if
    nobody has, trying on would never end."""

    def __init__(self, stream: str, shard: int) -> None:
        self._stream = stream
        self._shard = shard
        self._entries: list[Entry] = []
        self._count = 0

    def note(self, entries: Sequence[Entry], error: Refused) -> None:
        """Refused once more; raises it if that was too often."""
        self._count = self._count + 1 if self._entries == list(entries) else 1
        self._entries = list(entries)
        if self._count >= _REFUSED_MAX:
            raise Refused(
                f"stream {self._stream!r} shard {self._shard}: records {entries[0].base} to {entries[-1].end - 1} "
                f"cannot be stored anew, so what is to be erased of them is still there: {error}"
            ) from error
