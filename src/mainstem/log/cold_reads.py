"""What was just read from cold blocks, as batches: who reads on does not open the same file for each of them."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import InvalidSchema
from mainstem.core.schema import Schema
from mainstem.log import cold
from mainstem.log.blocks.base import BlockStore
from mainstem.log.contents import Contents
from mainstem.log.frame import FrameDamaged
from mainstem.log.ledger.base import Entry, LedgerReader, StreamRow
from mainstem.log.replacement import Making, batches_of

# Made for somebody who waits for them, and opened at once, or sent.
_MAKING: Final = Making(compression=None, is_described=False)


class ColdReads:
    """Batches of cold blocks, the most recently used within `bytes_max`. Any thread. Who asks for a block that
    somebody opens waits for that. A block never changes, so nothing here can be out of date."""

    def __init__(
        self,
        read: Callable[[int, int, int], bytes],
        blocks: BlockStore,
        ledger: LedgerReader,
        bytes_max: int,
    ) -> None:
        self._read = read
        self._blocks = blocks
        self._ledger = ledger
        self._bytes_max = bytes_max
        self._kept: OrderedDict[int, tuple[Sequence[FetchedBatch], int]] = OrderedDict()
        self._bytes = 0
        # Each is held by who opens the block.
        self._under_way: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()

    def read(self, stream: StreamRow, entry: Entry) -> Sequence[FetchedBatch]:
        """All batches of an entry's block, in order. FrameDamaged if they are not what was written there."""
        block = entry.block
        while True:
            with self._lock:
                found = self._kept.get(block)
                if found is not None:
                    self._kept.move_to_end(block)
                    return found[0]
                under_way = self._under_way.get(block)
                if under_way is None:
                    under_way = self._under_way[block] = threading.Lock()
                    under_way.acquire()
                    break
            with under_way:
                pass
        try:
            batches = self._open(stream, entry)
            self._keep(block, batches)
            return batches
        finally:
            with self._lock:
                self._under_way.pop(block).release()

    def _open(self, stream: StreamRow, entry: Entry) -> Sequence[FetchedBatch]:
        size = self._blocks.size(entry.block)
        if size > cold.FILE_BYTES_MAX:
            raise FrameDamaged(0, f"{size} bytes are more than a cold block can have")
        opened = cold.parse(self._read(entry.block, 0, size), entry.block)
        frame = opened.frame
        told = (frame.stream, frame.shard, opened.base, frame.span, frame.count, frame.position, frame.total_len)
        if told != (*entry[:5], entry.position, entry.length):
            raise FrameDamaged(frame.position, "a cold block of other records")
        records = cold.records_in(opened, Contents.of(stream, self._schema))
        return tuple(batches_of(entry.stream, entry.shard, records, _MAKING))

    def _schema(self, number: int) -> Schema:
        found = self._ledger.load_schema(number)
        if found is None:
            raise InvalidSchema(f"no schema has id {number}")
        return found

    def _keep(self, block: int, batches: Sequence[FetchedBatch]) -> None:
        size = sum(batch.header.stored_len for batch in batches)
        if size > self._bytes_max:
            return
        with self._lock:
            self._kept[block] = (batches, size)
            self._bytes += size
            while self._bytes > self._bytes_max:
                self._bytes -= self._kept.popitem(last=False)[1][1]
