"""The ledger in SQLite, with a checksum on every page.

Files: `ledger.db`, `ledger.db-wal`, `ledger.db-shm`. One process writes; others on the same machine may read, also
without the right to write in the folder, because the WAL files are kept when the writer stops.

SQLite never syncs on commit here: the blocks hold every flush, and recovery applies again what SQLite lost. It syncs
only around a checkpoint (synchronous=NORMAL), which is ours to start: before one, the chain of checksums of the WAL is
verified, because SQLite's page checksums do not cover the WAL and a checkpoint would give a flipped bit a valid one.
"""

from mainstem.log.ledger.sqlite.copies import (
    LedgerCopy,
    copy_ledger,
    format_without_wal,
    place_without_wal,
    read_copy,
)
from mainstem.log.ledger.sqlite.ledger import SqliteLedger
from mainstem.log.ledger.sqlite.reader import SqliteLedgerReader
from mainstem.log.ledger.sqlite.tables import LEDGER_FORMAT

__all__ = [
    "LEDGER_FORMAT",
    "LedgerCopy",
    "SqliteLedger",
    "SqliteLedgerReader",
    "copy_ledger",
    "format_without_wal",
    "place_without_wal",
    "read_copy",
]
