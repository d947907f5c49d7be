"""The interface of a block store, kept by local files now and by object storage later."""

from collections.abc import Sequence
from typing import Protocol

from mainstem.core.batch import Buffer
from mainstem.log.frame import BlockHeader


class BlockMissing(Exception):
    """No such block in this store."""


class BlockWriter(Protocol):
    """The one open block of a writer. One thread."""

    block: int
    position: int

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Add bytes at `position`; durable when this returns. After an OSError nothing is written here again."""
        ...

    def let_go(self, position: int) -> None:
        """What was appended from there on is not read soon: memory is better used for other things."""
        ...

    def abandon(self) -> None:
        """Close it after an append for which there was no room: the block ends at `position`, without a footer."""
        ...

    def close(self) -> None: ...


class BlockStore(Protocol):
    """Blocks by number. Any thread may read."""

    def create(self, header: BlockHeader) -> BlockWriter:
        """A new block that begins with `header`, durable. If there is no room for it, nothing of it is left."""
        ...

    def read(self, block: int, position: int, length: int) -> bytes:
        """Up to `length` bytes, fewer only at the block's end. BlockMissing if there is no such block."""
        ...

    def size(self, block: int) -> int: ...

    def sync(self, block: int) -> None:
        """Make everything that can be read of this block durable."""
        ...

    def list(self) -> Sequence[int]:
        """The numbers of all blocks that are the journal, ascending; cold ones are not. Only recovery asks: garbage is
        never decided by listing."""
        ...

    def list_cold(self) -> Sequence[int]:
        """The numbers of all cold blocks, ascending."""
        ...

    def list_parts(self) -> Sequence[int]:
        """The numbers of cold blocks that were written and not adopted."""
        ...

    def write_part(self, block: int, content: Sequence[Buffer]) -> str:
        """A cold block that nobody sees before it is adopted, and a word that tells it from others of this number: a
        task that is tried again never writes where the first try has written. Any process may write one."""
        ...

    def read_part(self, block: int, part: str, bytes_max: int) -> bytes:
        """The same, up to so many bytes. BlockMissing if there is none."""
        ...

    def adopt(self, block: int, part: str) -> None:
        """What was written is the block from now on, durably."""
        ...

    def remove_parts(self, block: int) -> None:
        """Take away what was written under this number and is not adopted; if there is nothing, that is fine."""
        ...

    def remove(self, block: int) -> None:
        """Take a block away for good, and free its room; one that is not there is fine. Who reads it next gets
        BlockMissing."""
        ...

    def where(self, block: int) -> str:
        """What to call this block in a message to a person."""
        ...

    def close(self) -> None: ...
