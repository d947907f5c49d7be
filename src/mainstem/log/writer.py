"""The open block and the layout of flushes in it: stage one of a commit. Decides nothing about offsets.

A full block is sealed with a footer: 48 bytes for each entry (stream, shard, base, span, position, length, all i64),
so that its batches and their offsets can be recovered without the ledger.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mainstem.core.batch import Batch
from mainstem.core.clock import Clock
from mainstem.core.limits import (
    COMMAND_BYTES_MAX,
    FLUSH_BATCHES_MAX,
    PAYLOAD_STORED_BYTES_MAX,
    PRODUCER_IDLE_US_MAX,
)
from mainstem.core.schema import Schema
from mainstem.log.blocks.base import BlockStore, BlockWriter
from mainstem.log.disk import is_out_of_space
from mainstem.log.flush import (
    PRODUCER_ID_MAX,
    Command,
    DescribeSchema,
    Flush,
    ForgetProducers,
    Item,
    OpenBlock,
    Replacement,
    SealBlock,
    StagedBatch,
    WholeTransaction,
    WrittenBatch,
    WrittenItem,
    WrittenReplacement,
    WrittenStaged,
    WrittenTransaction,
    encode_command,
)
from mainstem.log.frame import BlockHeader, FlushWriter, Place
from mainstem.log.ledger.base import Entry

_FOOTER_FIELDS = 6
# A footer is one frame; a block is sealed before its footer could outgrow it. When a block is asked whether it is full,
# the flush before is perhaps not applied and its entries not counted, and the flush to come adds its own.
_FOOTER_ENTRIES_MAX = PAYLOAD_STORED_BYTES_MAX // (8 * _FOOTER_FIELDS) - 2 * FLUSH_BATCHES_MAX
# What a flush adds to a block beside payloads and commands.
_FRAME_MARGIN = 512
# Producers that were idle too long are looked for once an hour, a part of them at a time, so that no commit has to look
# at all of them. A part is a range of ids, which are random.
_FORGET_PARTS = 64
_FORGET_EVERY_US = 3_600_000_000 // _FORGET_PARTS
assert COMMAND_BYTES_MAX < PAYLOAD_STORED_BYTES_MAX
assert _FOOTER_ENTRIES_MAX > 0
assert (PRODUCER_ID_MAX + 1) % _FORGET_PARTS == 0


@dataclass(frozen=True, slots=True)
class WriterIdentity:
    """Who writes: constant for one life of a process."""

    log_uuid: str
    ledger_epoch: int
    writer_epoch: int


class FlushFile:
    """Writes flushes to blocks, one after the other.

    One thread at a time writes, and one at a time, perhaps another, notes entries: `note_entries` belongs to applying
    a flush, `roll` and `seal` to the moments when nothing is being applied. A count of entries that is behind by the
    flush being applied is reckoned with in the limit. `on_block` is called when a block is there, durably, before
    anything is written to it. `schema` finds a schema that batches have by its id.
    """

    def __init__(
        self,
        blocks: BlockStore,
        identity: WriterIdentity,
        clock: Clock,
        block_bytes: int,
        block_max: int,
        on_block: Callable[[], None] = lambda: None,
        schema: Callable[[int], Schema | None] = lambda schema: None,
    ) -> None:
        self._blocks = blocks
        self._identity = identity
        self._clock = clock
        self._block_bytes = block_bytes
        self._block_next = block_max + 1
        self._on_block = on_block
        self._schema = schema
        # Schemas that the open block says already.
        self._described: set[int] = set()
        self._writer: BlockWriter | None = None
        self._footer = array("q")
        # Staged batches in the open block: each may become an entry of it, which the footer then lists.
        self._staged = 0
        # The block whose entries the footer lists: those of one that was abandoned may still be on their way.
        self._footer_block = 0
        self._to_seal: list[SealBlock] = []
        self._opened_block = 0
        self._producers_checked_us = clock.now_us()
        # The part to look at next; lives that are short begin with different ones.
        self._forget_part = identity.writer_epoch % _FORGET_PARTS
        self.bytes_written = 0
        # Of the last flush, or the last that was told to readers.
        self._time_us = 0

    def seal_later(self, block: int, size: int) -> None:
        """A block of an earlier life that will not grow: said in the next flush."""
        self._to_seal.append(SealBlock(block, size))

    def description_bytes(self, items: Sequence[Item]) -> dict[int, int]:
        """What saying each schema of these items takes in a block that does not say it yet. Any thread."""
        found = {schema: self._schema(schema) for schema in set(_schemas_of(items))}
        return {number: len(schema.serialized) for number, schema in found.items() if schema is not None}

    def is_full(self, size: int, schemas: Mapping[int, int]) -> bool:
        """Whether a flush of `size` payload bytes calls for a new block; `schemas` are the bytes of descriptions."""
        writer = self._writer
        if writer is None:
            return True
        if len(self._footer) >= (_FOOTER_ENTRIES_MAX - self._staged) * _FOOTER_FIELDS:
            return True
        size += sum(described for schema, described in schemas.items() if schema not in self._described)
        return writer.position + size + _FRAME_MARGIN > self._block_bytes and bool(self._footer or self._staged)

    @property
    def block(self) -> int:
        """The newest block: what is submitted now is written to it or to a later one. Any thread."""
        return self._block_next - 1

    def roll(self, flush: int, applied: int) -> None:
        """Seal the open block, if any, and open the next, which begins with flush `flush`."""
        self.seal(flush, applied)
        identity = self._identity
        header = BlockHeader(
            self._block_next,
            bytes.fromhex(identity.log_uuid),
            identity.writer_epoch,
            identity.ledger_epoch,
            flush,
            self._clock.now_us(),
        )
        writer = self._blocks.create(header)
        try:
            self._on_block()
        except OSError as error:
            writer.close()
            if is_out_of_space(error):
                self._blocks.remove(header.block)
            raise
        self._writer = writer
        self._footer_block = writer.block
        self._block_next += 1

    def seal(self, flush: int, applied: int) -> None:
        """End the open block with its footer. Everything written to it is durable and has been applied.

        Where there is no room for the footer the block goes without: only salvage reads it.
        """
        writer = self._writer
        if writer is None:
            return
        frames = FlushWriter(self._place(writer, flush - 1, applied), writer.position)
        content = self._footer.tobytes()
        assert len(content) <= PAYLOAD_STORED_BYTES_MAX, "a footer that could not be read back"
        frames.add_footer(content, len(self._footer) // _FOOTER_FIELDS, self._clock.now_us())
        self._append(writer, frames)
        writer.close()
        self._end_block(writer)

    def _append(self, writer: BlockWriter, frames: FlushWriter) -> None:
        """Append durably. If there is no room, the block ends here, and what was to be written is written nowhere."""
        try:
            writer.append(frames.buffers)
        except OSError as error:
            if is_out_of_space(error):
                self._abandon(writer)
            raise

    def _abandon(self, writer: BlockWriter) -> None:
        if self._opened_block == writer.block:
            writer.abandon()
            self._end_block(writer)
            return
        # Nothing but a header, and the ledger does not know it.
        self._writer = None
        writer.close()
        self._blocks.remove(writer.block)

    def _end_block(self, writer: BlockWriter) -> None:
        self._writer = None
        self._to_seal.append(SealBlock(writer.block, writer.position))
        self._described = set()
        # In this order: `note_entries` may run meanwhile.
        self._footer_block = 0
        self._footer = array("q")
        self._staged = 0

    def write(
        self,
        number: int,
        applied: int,
        items: Sequence[Item],
        checkpoint_begun: int,
        checkpoint_done: int,
    ) -> Flush:
        """Append one flush durably. The items come back in the order given, after the writer's own commands.

        If it raises because the disk is full, nothing has happened: the same number is written next, to a new block.
        """
        writer = self._writer
        assert writer is not None, "roll first"
        now_us = self.time_us()
        begin, read_late = writer.position, 0
        frames = FlushWriter(self._place(writer, number, applied), begin)
        written: list[WrittenItem] = []
        own = [*self._own_commands(writer.block, now_us), *self._descriptions(items)]
        for command in own:
            frames.add_command(encode_command(command), now_us)
            written.append(command)
        for item in items:
            if isinstance(item, StagedBatch):
                position = frames.add_staged(item.header, item.payload)
                written.append(WrittenStaged(WrittenBatch(item.header, position, frames.end - position)))
                self._staged += 1
                read_late += len(item.payload) if item.read_late else 0
            elif isinstance(item, Batch):
                position = frames.add_data(item.header, item.payload)
                written.append(WrittenBatch(item.header, position, frames.end - position))
            elif isinstance(item, Replacement):
                frames.add_command(encode_command(item.command), now_us)
                written.append(WrittenReplacement(item.command, tuple(_moved(frames, item))))
            elif isinstance(item, WholeTransaction):
                frames.add_command(encode_command(item.command), now_us)
                written.append(WrittenTransaction(item.command, tuple(_staged(frames, item))))
            else:
                frames.add_command(encode_command(item), now_us)
                written.append(item)
        commit = frames.add_commit(now_us, checkpoint_begun, checkpoint_done)
        self._append(writer, frames)
        if 2 * read_late > writer.position - begin:
            writer.let_go(begin)
        if own:
            self._note_own(writer.block, own)
        self.bytes_written += writer.position - frames.positions[0]
        return Flush(number, writer.block, commit, now_us, tuple(written))

    def time_us(self) -> int:
        """Now, but never before an earlier answer: no flush from here on has an earlier time."""
        self._time_us = max(self._time_us, self._clock.now_us())
        return self._time_us

    def _own_commands(self, block: int, now_us: int) -> list[Command]:
        own: list[Command] = []
        if self._opened_block != block:
            own.append(OpenBlock(block, self._identity.writer_epoch, now_us))
            own += self._to_seal
        if now_us - self._producers_checked_us > _FORGET_EVERY_US:
            size = (PRODUCER_ID_MAX + 1) // _FORGET_PARTS
            first = self._forget_part * size
            own.append(ForgetProducers(now_us - PRODUCER_IDLE_US_MAX, first, first + size - 1))
        return own

    def _descriptions(self, items: Sequence[Item]) -> Iterator[DescribeSchema]:
        """What says the schemas of these items that the block does not say yet."""
        new = {schema for schema in _schemas_of(items) if schema not in self._described}
        for schema in sorted(new):
            found = self._schema(schema)
            # One that does not exist is of a batch that will be refused.
            if found is not None:
                yield DescribeSchema(schema, found.serialized)

    def _note_own(self, block: int, written: Sequence[Command]) -> None:
        """The writer's own commands are durable: they are not said again."""
        if self._opened_block != block:
            self._opened_block = block
            self._to_seal = []
        for command in written:
            if isinstance(command, DescribeSchema):
                self._described.add(command.id)
            elif isinstance(command, ForgetProducers):
                self._producers_checked_us = command.before_us + PRODUCER_IDLE_US_MAX
                self._forget_part = (self._forget_part + 1) % _FORGET_PARTS

    def note_entries(self, entries: Sequence[Entry]) -> None:
        """Remember what the footer must list."""
        footer, block = self._footer, self._footer_block
        for entry in entries:
            if entry.block in (block, 0):
                footer.extend((entry.stream, entry.shard, entry.base, entry.span, entry.position, entry.length))

    def _place(self, writer: BlockWriter, flush: int, applied: int) -> Place:
        return Place(writer.block, self._identity.ledger_epoch, self._identity.writer_epoch, flush, applied)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _schemas_of(items: Sequence[Item]) -> Iterator[int]:
    """The schemas of the batches among these, but for those that have none."""
    for item in items:
        if isinstance(item, Batch):
            if item.header.schema_id:
                yield item.header.schema_id
        elif isinstance(item, Replacement | WholeTransaction):
            yield from (batch.header.schema_id for batch in item.batches if batch.header.schema_id)


def _moved(frames: FlushWriter, replacement: Replacement) -> Iterator[WrittenBatch]:
    for batch in replacement.batches:
        position = frames.add_moved(batch.base, batch.header, batch.payload)
        yield WrittenBatch(batch.header, position, frames.end - position)


def _staged(frames: FlushWriter, transaction: WholeTransaction) -> Iterator[WrittenBatch]:
    for batch in transaction.batches:
        position = frames.add_staged(batch.header, batch.payload)
        yield WrittenBatch(batch.header, position, frames.end - position)
