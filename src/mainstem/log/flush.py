"""The flush: one numbered, atomic step of the log, and the commands it may carry beside batches.

Everything that changes the ledger is in a flush, so that replaying the flushes of the blocks in order gives the same
ledger. Commands therefore hold every value that is chosen from outside (times, UUIDs); applying one chooses nothing.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from mainstem.core.batch import Batch, BatchHeader, FetchedBatch
from mainstem.core.errors import MainstemError

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


class NoteUpkeep(msgspec.Struct, frozen=True, tag="note_upkeep"):
    """Up to these offsets a shard need not be looked at again by the merger and by compaction."""

    stream: int
    shard: int
    merged: int = 0
    compacted: int = 0


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
    | NoteUpkeep
    | HurryBlocks
    | ForgetBlock
    | ForgetStream
    | BeginEpoch
    | ChangeAccess
)

encode_command = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def decode_command(payload: bytes | memoryview) -> Command:
    return _decoder.decode(payload)


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """A batch of a flush and where its frame lies."""

    header: BatchHeader
    position: int
    length: int


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


# What is handed to a flush, and the same when it is written.
Item = Batch | Command | Replacement
WrittenItem = WrittenBatch | Command | WrittenReplacement


@dataclass(frozen=True, slots=True)
class Flush:
    """What one commit frame makes true: items in the order of their frames."""

    number: int
    block: int
    commit_position: int
    time_us: int
    items: tuple[WrittenItem, ...]


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


Outcome = Appended | Rejected | Done
