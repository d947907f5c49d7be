"""Up to when audits found everything of each stream: what is in `_verified`, read once and remembered."""

import contextlib
import threading

import msgspec

from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import DataLoss
from mainstem.log.contents import Contents, offsets_of
from mainstem.log.ledger.base import LedgerReader, StreamRow
from mainstem.log.reader import LogReader
from mainstem.transport.counting import VERIFIED_STREAM, Verified


class VerifiedStreams:
    """What the newest audit of each stream found. Any thread. A look reads what came since the last one.

    Whoever may look a stream up is told that of it: nobody needs a right to `_verified`, which has all streams."""

    def __init__(self, ledger: LedgerReader, reader: LogReader) -> None:
        self._ledger = ledger
        self._reader = reader
        self._lock = threading.Lock()
        # The id of `_verified`, 0 if there was none, and the offset to read next.
        self._id = self._next = 0
        # The newest record of each stream by name and uuid, with its offset.
        self._newest: dict[tuple[str, str], tuple[int, Verified]] = {}

    def of(self, stream: StreamRow) -> Verified | None:
        """None if there was no audit of the stream, or if what it found was trimmed since."""
        kept = self._ledger.stream_named(VERIFIED_STREAM)
        if kept is None:
            return None
        with self._lock:
            self._catch_up(kept)
            keys = (stream.name, stream.uuid), (stream.name, "")
            found = [self._newest[key] for key in keys if key in self._newest]
        return max(found, key=lambda each: each[0])[1] if found else None

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
                start = self._reader.shard(kept.id, 0).start
                self._newest = {key: found for key, found in self._newest.items() if found[0] >= start}
                return
            for batch in batches:
                self._take(batch)
                self._next = batch.end

    def _take(self, batch: FetchedBatch) -> None:
        if not batch.header.count or batch.header.schema_id:
            return
        rows = Contents().decode(batch.header, batch.payload)
        for offset, value in zip(offsets_of(batch, rows).tolist(), rows.column("value").to_pylist(), strict=True):
            # Who has the folder can write anything there.
            with contextlib.suppress(msgspec.MsgspecError):
                said = _decode(value or b"")
                self._newest[said.stream, said.uuid] = offset, said


_decode = msgspec.json.Decoder(Verified).decode
