"""Who sends, as the log knows it: an id, an epoch, and the number of the next batch for each shard."""

import msgspec

from mainstem.core.batch import Batch
from mainstem.core.identity import new_producer_id


class Numbering:
    """Gives batches their sequence numbers, in the order in which it is asked. For one thread at a time."""

    def __init__(self) -> None:
        self.id = new_producer_id()
        self._epoch = 0
        self._next: dict[tuple[int, int], int] = {}

    def number(self, batch: Batch) -> Batch:
        header = batch.header
        shard = (header.stream, header.shard)
        sequence = self._next.get(shard, 0)
        self._next[shard] = sequence + 1
        numbered = msgspec.structs.replace(header, producer=self.id, producer_epoch=self._epoch, sequence=sequence)
        return Batch(numbered, batch.payload, batch.columns)

    def begin_epoch(self) -> None:
        """A batch has failed for good, so the numbers after it are void: nothing is in flight, all begin anew."""
        self._epoch += 1
        self._next.clear()
