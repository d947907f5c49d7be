"""Up to when audits found everything of each stream: what is in `_verified`, read once and remembered."""

import contextlib
import threading

import msgspec

from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import DataLoss
from mainstem.log.contents import Contents, offsets_of
from mainstem.log.ledger.base import LedgerReader, StreamRow
from mainstem.log.reader import LogReader
from mainstem.transport.counting import VERIFIED_STREAM, Verified, worst


class VerifiedStreams:
    """What the newest audits of each stream found in its tiers. Any thread. A look reads what came since the last one.

    Whoever may look a stream up is told that of it: nobody needs a right to `_verified`, which has all streams."""

    def __init__(self, ledger: LedgerReader, reader: LogReader) -> None:
        self._ledger = ledger
        self._reader = reader
        self._lock = threading.Lock()
        # The id of `_verified`, 0 if there was none, and the offset to read next.
        self._id = self._next = 0
        # The newest record of each tier of a stream, by the stream's name and uuid, with its offset.
        self._newest: dict[tuple[str, str], dict[str, tuple[int, Verified]]] = {}

    def of(self, stream: StreamRow) -> Verified | None:
        """None if there was no audit of the stream, or if what it found was trimmed since."""
        kept = self._ledger.stream_named(VERIFIED_STREAM)
        if kept is None:
            return None
        with self._lock:
            self._catch_up(kept)
            newest = dict(self._newest.get((stream.name, stream.uuid), {}))
            for tier, found in self._newest.get((stream.name, ""), {}).items():
                newest[tier] = max(found, newest.get(tier, found), key=_offset)
        return worst((tier, said) for tier, (_, said) in newest.items())

    def _catch_up(self, kept: StreamRow) -> None:
        if kept.id != self._id:
            self._id, self._next = kept.id, 0
            self._newest.clear()
        while True:
            try:
                batches = self._reader.read(kept, 0, self._next)
            except DataLoss as loss:
                self._next = loss.last + 1
                continue
            if not batches:
                self._forget_before(self._reader.shard(kept.id, 0).start)
                return
            for batch in batches:
                self._take(batch)
                self._next = batch.end

    def _forget_before(self, start: int) -> None:
        for key, tiers in list(self._newest.items()):
            left = {tier: found for tier, found in tiers.items() if _offset(found) >= start}
            if left:
                self._newest[key] = left
            else:
                del self._newest[key]

    def _take(self, batch: FetchedBatch) -> None:
        if not batch.header.count or batch.header.schema_id:
            return
        rows = Contents().decode(batch.header, batch.payload)
        for offset, value in zip(offsets_of(batch, rows).tolist(), rows.column("value").to_pylist(), strict=True):
            # Who has the folder can write anything there.
            with contextlib.suppress(msgspec.MsgspecError):
                said = _decode(value or b"")
                tiers = self._newest.setdefault((said.stream, said.uuid), {})
                tiers.update(dict.fromkeys(said.named, (offset, said)))


def _offset(found: tuple[int, Verified]) -> int:
    return found[0]


_decode = msgspec.json.Decoder(Verified).decode
