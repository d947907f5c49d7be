"""Erasing: every record of one key goes at once, for whoever reads, and soon from the disk."""

from mainstem.core.errors import DataLoss, Refused
from mainstem.log.compaction import without_key
from mainstem.log.flush import HurryBlocks
from mainstem.log.ledger.base import StreamRow
from mainstem.log.upkeep.freeing import Freeing
from mainstem.log.upkeep.thinning import leave, pieces
from mainstem.log.upkeep.trimming import Trimming
from mainstem.log.upkeep.work import Work


class Erasing:
    """Erases keys, in the thread of whoever asks for it."""

    def __init__(self, work: Work, trimming: Trimming, freeing: Freeing) -> None:
        self._work = work
        self._trimming = trimming
        self._freeing = freeing

    def erase(self, stream: StreamRow, key: bytes) -> int:
        """Take every record of one key away that is there now; how many. Then no reader can see one any more."""
        erased = 0
        contents = self._work.contents(stream)
        upshot = self._work.upshot(erases=True)
        for shard in range(stream.shards):
            row = self._work.commits.shard((stream.id, shard))
            # What was trimmed a moment ago may be of this key too.
            self._trimming.drop_now(stream, (stream.id, shard))
            offset = row.start
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
                    except Refused:
                        break  # the entries were merged or compacted meanwhile: look at them as they are now
                    offset = entries[-1].end
                else:
                    break
        # Copies from before a merge, and what was compacted away before, are in the same hurry.
        self._work.execute(HurryBlocks(stream.id, self._work.clock.now_us()))
        self._trimming.note_erased(stream.id)
        self._work.counts["records_erased"] += erased
        self._freeing.due = 0.0
        return erased
