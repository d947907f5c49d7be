"""The flush: one numbered, atomic step of the log, and the commands it may carry beside batches.

Everything that changes the ledger is in a flush, so that replaying the flushes of the blocks in order gives the same
ledger. Commands therefore hold every value that is chosen from outside (times, UUIDs); applying one chooses nothing.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from mainstem.core.batch import BatchHeader
from mainstem.core.errors import MainstemError

# Ids are drawn from these at random.
PRODUCER_ID_MAX: Final = (1 << 63) - 1


class CreateStream(msgspec.Struct, frozen=True, tag="create"):
    """A new stream of generation 0."""

    uuid: str
    name: str
    shards: int
    hash: str
    retention_us: int
    created_us: int


class AlterStream(msgspec.Struct, frozen=True, tag="alter"):
    """New values for what may change; None leaves a value as it is."""

    stream: int
    retention_us: int | None = None


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


Command = CreateStream | AlterStream | DeleteStream | TrimShard | OpenBlock | SealBlock | ForgetProducers

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
class Flush:
    """What one commit frame makes true: items in the order of their frames."""

    number: int
    block: int
    commit_position: int
    time_us: int
    items: tuple[WrittenBatch | Command, ...]


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
    """The command was carried out; `stream` is the id it created or touched."""

    stream: int = 0


Outcome = Appended | Rejected | Done
