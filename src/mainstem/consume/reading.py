"""Reading record by record or batch by batch: what all consumers share, however they come to their next batch."""

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator

from mainstem.consume.record import Record, RecordBatch
from mainstem.core.durations import check_timeout
from mainstem.transport.port import EndReached


class Reading(ABC):
    """Yields what `_take` finds. Records come from the batch being taken apart, whose iterator knows how many of them
    are left."""

    def __init__(self) -> None:
        self._current: RecordBatch | None = None
        self._records: Iterator[Record] = iter(())

    @abstractmethod
    def _take(self, timeout: float | None) -> RecordBatch | None:
        """The rest of the batch being taken apart, else the next one; the position moves behind it. None if there was
        none in time, EndReached if there will be none."""

    def __iter__(self) -> Iterator[Record]:
        # Chained in C: a record costs no Python code of ours.
        return itertools.chain.from_iterable(self._record_lists())

    def __next__(self) -> Record:
        record = self.poll(None)
        if record is None:
            raise StopIteration
        return record

    def batches(self) -> Iterator[RecordBatch]:
        """Batches as they were written, each of one shard: the fast way."""
        while True:
            batch = self._next_batch(None)
            if batch is None:
                return
            yield batch

    def poll(self, timeout: float | None = 0.0) -> Record | None:
        """The next record, waiting at most `timeout` seconds (None: without end); None if there was none, or at the end
        of a consumer that does not follow."""
        while True:
            for record in self._records:
                return record
            batch = self._next_batch(timeout)
            if batch is None:
                return None
            self._take_apart(batch)

    def poll_batch(self, timeout: float | None = 0.0) -> RecordBatch | None:
        """The next batch, as `poll` does for records."""
        return self._next_batch(timeout)

    def _record_lists(self) -> Iterator[Iterator[Record]]:
        yield self._records
        while True:
            batch = self._next_batch(None)
            if batch is None:
                return
            self._take_apart(batch)
            yield self._records

    def _take_apart(self, batch: RecordBatch) -> None:
        self._records = batch.records()
        self._current = batch

    def _next_batch(self, timeout: float | None) -> RecordBatch | None:
        check_timeout(timeout)
        try:
            return self._take(timeout)
        except EndReached:
            return None

    def _leave_current(self) -> RecordBatch | None:
        """Leave the batch being taken apart; what is left of it, if anything."""
        batch, self._current = self._current, None
        assert batch is not None
        left = _left(self._records)
        self._records = iter(())
        return batch.last(left) if left else None

    def _is_between(self) -> bool:
        """Whether everything was yielded of the batch being taken apart."""
        return self._current is None or not _left(self._records)

    def _drop_current(self) -> None:
        """Yield nothing more of the batch being taken apart, also to who is iterating over its records."""
        deque(self._records, maxlen=0)
        self._current, self._records = None, iter(())

    def _last_yielded(self) -> int:
        """The offset of the record of the batch being taken apart that was yielded last; its first if none was."""
        assert self._current is not None
        offsets = self._current.offsets()
        return offsets[max(len(offsets) - _left(self._records) - 1, 0)]

    def _current_offset(self) -> int:
        """Where the batch being taken apart would go on."""
        assert self._current is not None
        left = _left(self._records)
        return self._current.offsets()[-left] if left else self._current.end


def _left(records: Iterator[Record]) -> int:
    """How many items a list iterator still has."""
    hint: int = records.__length_hint__()  # type: ignore[attr-defined]
    return hint
