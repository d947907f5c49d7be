"""What a data folder takes on disk, in numbers for an operator: the same for who writes it and who only looks."""

import os
from pathlib import Path

from mainstem.log.blocks.base import BlockMissing
from mainstem.log.folder import Folder
from mainstem.log.ledger.base import LedgerReader


def folder_figures(folder: Folder, ledger: LedgerReader) -> dict[str, int]:
    """Blocks, ledger, snapshots and room left. Asks the ledger once and the file system a few times; any thread."""
    totals = ledger.block_totals()
    snapshots = folder.snapshots.numbers()
    return {
        "blocks": totals.blocks,
        "block_bytes": totals.bytes + sum(_block_size(folder, block) for block in totals.growing),
        "live_bytes": totals.live_bytes,
        "ledger_bytes": _size_of(folder.ledger),
        "ledger_wal_bytes": _size_of(folder.ledger.with_name(folder.ledger.name + "-wal")),
        "snapshots": len(snapshots),
        "snapshot_us": _written_us(folder.snapshots.path(snapshots[0])) if snapshots else 0,
        "free_bytes": _free_bytes(folder.path),
    }


def _block_size(folder: Folder, block: int) -> int:
    try:
        return folder.blocks.size(block)
    except BlockMissing:
        return 0


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # being replaced, or not there yet


def _written_us(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns // 1_000
    except OSError:
        return 0  # a newer one has come meanwhile


def _free_bytes(path: Path) -> int:
    """What this user may still write there."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
