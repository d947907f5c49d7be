"""The flush: one numbered, atomic step of the log, and the commands it may carry beside batches.

Everything that changes the ledger is in a flush, so that replaying the flushes of the blocks in order gives the same
ledger. Commands therefore hold every value that is chosen from outside (times, UUIDs); applying one chooses nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from mainstem.core.batch import Batch, BatchHeader, FetchedBatch
from mainstem.core.delivery import Delivery
from mainstem.core.errors import MainstemError
from mainstem.core.statistics import summary

# Ids are drawn from these at random.
PRODUCER_ID_MAX: Final = (1 << 63) - 1


class CreateStream(msgspec.Struct, frozen=True, tag="create"):
    """A new stream of generation 0. Of sizes and times, 0 is: no limit.

    `schema` and `fingerprint` are those of the first version of its schema; without one they are empty.
    """

    uuid: str
    name: str
    shards: int
    hash: str
    retention_us: int
    created_us: int
    retention_bytes: int = 0
    cleanup: str = "delete"
    tombstone_us: int = 0
    schema: bytes = b""
    fingerprint: bytes = b""
    key: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    compatibility: str = "backward"


class AlterStream(msgspec.Struct, frozen=True, tag="alter"):
    """New values for what may change; None leaves a value as it is. More `shards` begin a new generation: where each
    shard ends at this moment is its barrier."""

    stream: int
    retention_us: int | None = None
    retention_bytes: int | None = None
    cleanup: str | None = None
    tombstone_us: int | None = None
    shards: int | None = None
    compatibility: str | None = None


class SetSchema(msgspec.Struct, frozen=True, tag="set_schema"):
    """The next version of a stream's schema. `version` must be the present one + 1: whoever checked the schema against
    an older one is refused. None leaves a value as it is; `key` and `index` change where columns got another name."""

    stream: int
    schema: bytes
    fingerprint: bytes
    version: int
    created_us: int
    compatibility: str | None = None
    key: tuple[str, ...] | None = None
    index: tuple[str, ...] | None = None


class DescribeSchema(msgspec.Struct, frozen=True, tag="describe_schema"):
    """A schema of batches in this block, said before the first of them, so that the block can be read without the
    ledger. Changes nothing."""

    id: int
    schema: bytes


class DeleteStream(msgspec.Struct, frozen=True, tag="delete"):
    """The stream takes no more writes and its name is free."""

    stream: int
    deleted_us: int


class TrimShard(msgspec.Struct, frozen=True, tag="trim"):
    """Readers see nothing below `before` any more."""

    stream: int
    shard: int
    before: int


class OpenBlock(msgspec.Struct, frozen=True, tag="open_block"):
    """The first command of every block: from here on the ledger knows it."""

    block: int
    writer_epoch: int
    created_us: int


class SealBlock(msgspec.Struct, frozen=True, tag="seal_block"):
    """A block that got its footer and will not grow."""

    block: int
    bytes: int


class ForgetProducers(msgspec.Struct, frozen=True, tag="forget_producers"):
    """Producers last seen before this time are forgotten, of those with ids from `first` to `last`."""

    before_us: int
    first: int = 0
    last: int = PRODUCER_ID_MAX


class DropEntries(msgspec.Struct, frozen=True, tag="drop"):
    """Up to `limit` rows of a shard go that lie wholly below its start, or any if the stream was deleted.

    Their bytes should be off the disk by `rewrite_us`, even if more than half of their block is still in use.
    """

    stream: int
    shard: int
    limit: int
    rewrite_us: int


class ReplaceEntries(msgspec.Struct, frozen=True, tag="replace"):
    """The rows of offsets `base` to `end - 1` of a shard make room for others, whose frames follow this command.

    `rows` and `fingerprint` say which rows those were; if there are others now, nothing is changed. `entries` has for
    each new row how many offsets it covers and how many of the frames are its: none, if no record of them is left.
    `merged` and `compacted`: up to here the shard need not be looked at again. `rewrite_us`: see DropEntries, 0 for
    no hurry.
    """

    stream: int
    shard: int
    base: int
    end: int
    rows: int
    fingerprint: int
    entries: tuple[tuple[int, int], ...]
    merged: int = 0
    compacted: int = 0
    rewrite_us: int = 0

    @property
    def frames(self) -> int:
        return sum(frames for _, frames in self.entries)


class CoolEntries(msgspec.Struct, frozen=True, tag="cool"):
    """The rows of offsets `base` to `end - 1` of a shard make room for one, whose records are in a cold block: the file
    of `file_bytes` bytes is there, durably, before this is said. `rows`, `fingerprint`, `rewrite_us`: see
    ReplaceEntries.

    What follows from the frame of the records is carried along: applying this opens no file. `summary` is that of its
    statistics.
    """

    stream: int
    shard: int
    base: int
    end: int
    rows: int
    fingerprint: int
    block: int
    file_bytes: int
    created_us: int
    writer_epoch: int
    position: int
    length: int
    count: int
    schema_id: int
    summary: bytes = b""
    rewrite_us: int = 0


class NoteUpkeep(msgspec.Struct, frozen=True, tag="note_upkeep"):
    """Up to these offsets a shard need not be looked at again by the merger and by compaction."""

    stream: int
    shard: int
    merged: int = 0
    compacted: int = 0


class NoteMoment(msgspec.Struct, frozen=True, tag="note_moment"):
    """Where the shards of a stream end before this flush is noted, if they have grown since it was last."""

    stream: int


class HurryBlocks(msgspec.Struct, frozen=True, tag="hurry_blocks"):
    """Everything of this stream that nothing points to any more should be off the disk by this time."""

    stream: int
    rewrite_us: int


class ForgetBlock(msgspec.Struct, frozen=True, tag="forget_block"):
    """The file of a block in which nothing was alive is gone."""

    block: int


class ForgetStream(msgspec.Struct, frozen=True, tag="forget_stream"):
    """A deleted stream has no rows and no bytes on disk any more."""

    stream: int


class ChangeAccess(msgspec.Struct, frozen=True, tag="access"):
    """Rows that say who may do what: kind, name and value of each; without a value the row goes. The log keeps them and
    does not know what they mean."""

    rows: tuple[tuple[str, str, bytes], ...]


class BeginEpoch(msgspec.Struct, frozen=True, tag="begin_epoch"):
    """The log was restored from a backup: what was written after that is not in it, and what comes now is other."""

    epoch: int
    created_us: int


# A place in a shard: stream, shard, offset.
Position = tuple[int, int, int]


class AssignShards(msgspec.Struct, frozen=True, tag="assign"):
    """Other owners for shards of a group, as (stream, shard, member), 0 for nobody; shards that are not named keep
    theirs. The group comes into being with its first one. `generation` must be the present one + 1, which is 1 for a
    new group: a coordinator that does not know what another has done is refused.

    A shard that the group never had gets its cursor: the offset in `starts`, else where the shard starts.
    """

    group: str
    generation: int
    assigned: tuple[tuple[int, int, int], ...]
    time_us: int
    starts: tuple[Position, ...] = ()


class CommitCursors(msgspec.Struct, frozen=True, tag="commit_cursors"):
    """A member of a group has read so far, in all of these shards or none. It must own each of them; member 0 may
    commit in shards that nobody owns. Cursors never go back.

    `generation` is the newest that the member knew when it had read so far: in a shard that it got later, after another
    had it, it may not commit what it read before. None asks for no such check.
    """

    group: str
    member: int
    offsets: tuple[Position, ...]
    time_us: int
    generation: int | None = None


class ResetGroup(msgspec.Struct, frozen=True, tag="reset_group"):
    """Other cursors for a group without members, in any direction. Begins a generation."""

    group: str
    offsets: tuple[Position, ...]
    time_us: int


class DeleteGroup(msgspec.Struct, frozen=True, tag="delete_group"):
    """A group without members goes, with its cursors."""

    group: str


class HoldGroup(msgspec.Struct, frozen=True, tag="hold_group"):
    """What a group has not read is kept from retention, for so long at most; 0: no more."""

    group: str
    hold_us: int


class StagedFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A staged batch: where its frame lies, and what its entry will say of it. `summary` is that of its statistics."""

    block: int
    position: int
    length: int
    stream: int
    shard: int
    count: int
    generation: int
    schema_id: int
    time_high: int
    summary: bytes = b""

    @classmethod
    def of(cls, header: BatchHeader, block: int, position: int, length: int) -> "StagedFrame":
        return cls(
            block,
            position,
            length,
            header.stream,
            header.shard,
            header.count,
            header.generation,
            header.schema_id,
            header.time_high,
            summary(header.statistics),
        )


class GroupCursors(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a member of a group has come: see CommitCursors."""

    group: str
    member: int
    offsets: tuple[Position, ...]
    generation: int | None = None


class OpenWriter(msgspec.Struct, frozen=True, tag="open_writer"):
    """Whoever wrote transactions under this name is replaced: the next epoch of it begins."""

    name: str
    time_us: int


class CommitTransaction(msgspec.Struct, frozen=True, tag="commit_transaction"):
    """Staged batches get their offsets and cursors move, all of it or nothing.

    `batches` is how many its client has staged; if these are not all of them, it is refused. One that was committed
    before gets its offsets again. `writer` and `epoch` are those of its writer, if it has a name.

    A small one is staged and committed in one flush: then `frames` says how many staged frames stand right behind the
    command, and `staged` is empty.

    `delivery` says which numbered write of a job it is, if it is one: a number that the ledger knows changes nothing.
    """

    id: int
    batches: int
    staged: tuple[StagedFrame, ...]
    cursors: tuple[GroupCursors, ...]
    time_us: int
    writer: str = ""
    epoch: int = 0
    frames: int = 0
    delivery: Delivery | None = None


class ForgetTransactions(msgspec.Struct, frozen=True, tag="forget_transactions"):
    """The first `limit` of the transactions that ended before this time are forgotten, all writers last seen before
    another, and all deliveries of jobs last seen before a third."""

    before_us: int
    limit: int
    writers_before_us: int
    jobs_before_us: int = 0


Command = (
    CreateStream
    | AlterStream
    | SetSchema
    | DescribeSchema
    | DeleteStream
    | TrimShard
    | OpenBlock
    | SealBlock
    | ForgetProducers
    | DropEntries
    | ReplaceEntries
    | CoolEntries
    | NoteUpkeep
    | NoteMoment
    | HurryBlocks
    | ForgetBlock
    | ForgetStream
    | BeginEpoch
    | AssignShards
    | CommitCursors
    | ResetGroup
    | DeleteGroup
    | HoldGroup
    | OpenWriter
    | CommitTransaction
    | ForgetTransactions
    | ChangeAccess
)


def large_command_bytes(command: Command) -> int:
    """About how large a command is that can be large, so that not too many are in one flush; 0 for others."""
    match command:
        case AssignShards():
            return 32 * (len(command.assigned) + len(command.starts))
        case CommitCursors() | ResetGroup():
            return 32 * len(command.offsets)
        case CommitTransaction():
            cursors = sum(len(each.offsets) for each in command.cursors)
            return sum(72 + len(frame.summary) for frame in command.staged) + 32 * cursors
    return 0


encode_command = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def decode_command(payload: bytes | memoryview) -> Command:
    return _decoder.decode(payload)


class StagedBatch(Batch, frozen=True, gc=False):
    """A batch of a transaction that is not committed yet: durable, and of no effect. One of a large transaction is
    `read_late`: nobody will ask for it soon."""

    read_late: bool = False


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """A batch of a flush and where its frame lies."""

    header: BatchHeader
    position: int
    length: int


@dataclass(frozen=True, slots=True)
class WrittenStaged:
    """A staged batch of a flush and where its frame lies."""

    batch: WrittenBatch


@dataclass(frozen=True, slots=True)
class Replacement:
    """Batches to store anew, with the command that says what they replace. They are in the order of their offsets."""

    command: ReplaceEntries
    batches: tuple[FetchedBatch, ...]


@dataclass(frozen=True, slots=True)
class WrittenReplacement:
    """The same, when its frames lie where they lie."""

    command: ReplaceEntries
    frames: tuple[WrittenBatch, ...]


@dataclass(frozen=True, slots=True)
class WholeTransaction:
    """All batches of a transaction, with the command that commits it."""

    command: CommitTransaction
    batches: tuple[StagedBatch, ...]


@dataclass(frozen=True, slots=True)
class WrittenTransaction:
    """The same, when its frames lie where they lie."""

    command: CommitTransaction
    frames: tuple[WrittenBatch, ...]


# What is handed to a flush, and the same when it is written.
Item = Batch | Command | Replacement | WholeTransaction
WrittenItem = WrittenBatch | WrittenStaged | Command | WrittenReplacement | WrittenTransaction


@dataclass(frozen=True, slots=True)
class Flush:
    """What one commit frame makes true: items in the order of their frames. `notes_moments`: see rules/moments.py."""

    number: int
    block: int
    commit_position: int
    time_us: int
    items: tuple[WrittenItem, ...]
    notes_moments: bool = True


@dataclass(frozen=True, slots=True)
class Appended:
    """The batch stands at offsets `base` onward; `duplicate` if it stood there already."""

    base: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """The item changed nothing."""

    error: MainstemError


@dataclass(frozen=True, slots=True)
class Done:
    """The command was carried out; `stream` is the id it created or touched, `rows` how many rows it took away."""

    stream: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Staged:
    """The batch is durable at this place of a block."""

    block: int
    position: int
    length: int


@dataclass(frozen=True, slots=True)
class Assigned:
    """The owners are noted. `cursors` has that of the group, as of now, in every shard that was given to somebody."""

    generation: int
    cursors: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class WriterOpened:
    """Transactions of this writer have this epoch from now on."""

    epoch: int


@dataclass(frozen=True, slots=True)
class TransactionCommitted:
    """The transaction is committed: in each shard, as (stream, shard, base, count), its records stand from `base` on in
    the order in which they were staged. `duplicate` if it was committed before."""

    offsets: tuple[tuple[int, int, int, int], ...]
    duplicate: bool = False


Outcome = Appended | Rejected | Done | Staged | Assigned | WriterOpened | TransactionCommitted


def only_outcome(result: Sequence[Outcome] | MainstemError) -> Outcome | MainstemError:
    """What became of a single item: the error, if it was rejected or its flush failed."""
    if isinstance(result, MainstemError):
        return result
    outcome = result[0]
    return outcome.error if isinstance(outcome, Rejected) else outcome
