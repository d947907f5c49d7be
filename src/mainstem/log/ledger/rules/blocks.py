"""Blocks: begun, sealed, to be rewritten soon, and forgotten when their file is gone."""

from mainstem.core.errors import Refused
from mainstem.log.flush import Done, ForgetBlock, HurryBlocks, OpenBlock, Outcome, SealBlock
from mainstem.log.ledger.base import BlockRow
from mainstem.log.ledger.pending import PendingRows


def begin(rows: PendingRows, command: OpenBlock) -> Outcome:
    row = BlockRow(command.block, command.writer_epoch, "open", 0, 0, command.created_us)
    rows.changes.blocks[command.block] = row
    return Done()


def seal(rows: PendingRows, command: SealBlock) -> Outcome:
    block = rows.changes.blocks.get(command.block) or rows.current.block(command.block)
    if block is None:
        # Its writer ended before a flush said that it is there: it holds nothing, and can be freed.
        block = BlockRow(command.block, 0, "open", 0, 0, rows.flush.time_us)
    rows.changes.blocks[block.id] = block._replace(state="sealed", bytes=command.bytes)
    return Done()


def hurry(rows: PendingRows, command: HurryBlocks) -> Outcome:
    for block in rows.current.ledger.dead_bytes(command.stream):
        rows.hurry_block(block, command.rewrite_us)
    return Done(command.stream)


def forget(rows: PendingRows, command: ForgetBlock) -> Outcome:
    row = rows.current.block(command.block)
    if row is None:
        return Done()
    if not row.dead_us:
        raise Refused(f"block {command.block} is in use")
    rows.changes.forgotten_blocks.append(command.block)
    return Done()
