"""A data folder whose stream has a million entries, made without a million flushes.

One record is written the ordinary way; then the ledger gets an entry for every further offset, all pointing at that
record's frame. A frame does not say its offset, so each entry reads back as a record of its own: the ledger a reader
searches, and the search itself, are those of a stream that was really written one record at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from apsw import SQLITE_CHECKPOINT_TRUNCATE

import mainstem
from mainstem.log.ledger.base import Changes
from mainstem.log.ledger.sqlite import SqliteLedger

if TYPE_CHECKING:
    from benchmarks.child import Talk


def build(talk: Talk, folder: str, stream: str, count: int) -> dict[str, int]:
    with mainstem.open(folder) as hub:
        hub.streams.create(stream)
        with hub.producer() as producer:
            producer.send(stream, bytes(100)).result()
    ledger = SqliteLedger(Path(folder) / "ledger.db")
    first = ledger.entries_from(1, 0, 0, 1)[0]
    # Merged, so that the server leaves the rows as they are.
    shard = ledger.load_shard(1, 0)._replace(next=count, stable=count, merged=count)
    changes = Changes(ledger.applied())
    changes.shards[1, 0] = shard
    changes.entries = [first._replace(base=base) for base in range(1, count)]
    ledger.store(changes)
    ledger.checkpoint()
    # The WAL of a million rows is longer than that of any log, and would be looked through at every checkpoint.
    ledger._db.wal_checkpoint(mode=SQLITE_CHECKPOINT_TRUNCATE)
    ledger.close()
    return {"entries": count}
