"""The one deterministic function that turns a flush into ledger rows.

Used for every commit and for every replay after a crash, against any backend: same flushes, same rows. It recognises
repeated batches, gives offsets, and refuses what breaks a rule; it does no I/O but loading rows it needs. What an item
does to the rows is in `rules`, one noun per module.
"""

from collections.abc import Callable
from typing import Any

from mainstem.core.errors import MainstemError, Refused
from mainstem.log.flush import (
    AlterStream,
    AssignShards,
    BeginEpoch,
    ChangeAccess,
    CommitCursors,
    CommitTransaction,
    CoolEntries,
    CreateStream,
    DeleteGroup,
    DeleteStream,
    DescribeSchema,
    DropEntries,
    Flush,
    ForgetBlock,
    ForgetProducers,
    ForgetStream,
    ForgetTransactions,
    HoldGroup,
    HurryBlocks,
    NoteMoment,
    NoteUpkeep,
    OpenBlock,
    OpenWriter,
    Outcome,
    Rejected,
    ResetGroup,
    SealBlock,
    SetSchema,
    TrimShard,
    WrittenBatch,
    WrittenItem,
    WrittenReplacement,
    WrittenStaged,
    WrittenTransaction,
)
from mainstem.log.ledger.base import Changes
from mainstem.log.ledger.current import CurrentRows
from mainstem.log.ledger.pending import PendingRows
from mainstem.log.ledger.rules import (
    access,
    blocks,
    cooling,
    epochs,
    groups,
    moments,
    producers,
    replacement,
    schemas,
    shards,
    streams,
    transactions,
)
from mainstem.log.ledger.rules.appends import Appends

# What carries out which command. Batches are not commands: see Appends.
_RULES: dict[type, Callable[[PendingRows, Any], Outcome]] = {
    CreateStream: streams.create,
    AlterStream: streams.alter,
    DeleteStream: streams.delete,
    ForgetStream: streams.forget,
    SetSchema: schemas.set_next,
    DescribeSchema: schemas.describe,
    TrimShard: shards.trim,
    DropEntries: shards.drop,
    NoteUpkeep: shards.note,
    NoteMoment: moments.note,
    WrittenReplacement: replacement.replace,
    CoolEntries: cooling.cool,
    OpenBlock: blocks.begin,
    SealBlock: blocks.seal,
    HurryBlocks: blocks.hurry,
    ForgetBlock: blocks.forget,
    ForgetProducers: producers.forget,
    BeginEpoch: epochs.begin,
    AssignShards: groups.assign,
    CommitCursors: groups.commit,
    ResetGroup: groups.reset,
    DeleteGroup: groups.delete,
    HoldGroup: groups.hold,
    WrittenStaged: transactions.stage,
    OpenWriter: transactions.open_writer,
    CommitTransaction: transactions.commit,
    WrittenTransaction: transactions.commit_whole,
    ForgetTransactions: transactions.forget,
    ChangeAccess: access.change,
}


class Applier(CurrentRows):
    """Applies flushes to one ledger, keeping the rows it touches often in memory. One thread.

    A flush that fails to store leaves the applier unusable (`store` raised), and the process starts again from the
    blocks.
    """

    def apply(self, flush: Flush) -> tuple[Changes, list[Outcome]]:
        """Store the flush's changes and say what became of each item."""
        assert flush.number == self.applied + 1, f"flush {flush.number} after {self.applied}"
        changes, outcomes = changes_of(flush, self)
        self._ledger.store(changes)
        self._remember(changes)
        return changes, outcomes


def changes_of(flush: Flush, current: CurrentRows) -> tuple[Changes, list[Outcome]]:
    """What a flush changes of the current rows, and what becomes of each of its items."""
    rows = PendingRows(current, flush)
    appends = Appends(rows)
    outcomes = [_take(item, rows, appends) for item in flush.items]
    appends.close()
    if flush.notes_moments:
        moments.note_due(rows)
    return rows.finish(), outcomes


def _take(item: WrittenItem, rows: PendingRows, appends: Appends) -> Outcome:
    try:
        if isinstance(item, WrittenBatch):
            appended = appends.append(item)
            if appended.duplicate:
                rows.waste((item,))
            return appended
        # A command finds the shards as the batches before it have left them.
        appends.close()
        return _RULES[type(item)](rows, item)
    except MainstemError as error:
        if isinstance(item, WrittenBatch):
            rows.waste((item,))
        elif isinstance(item, WrittenReplacement):
            rows.waste(item.frames)
            if item.frames and isinstance(error, Refused):
                # What overtook it may have been an erasure: then here is a copy of what was erased.
                rows.hurry_block(rows.flush.block, rows.flush.time_us)
        return Rejected(error)
