"""A stream poured into an outlet, with a cursor that stands after what was taken."""

from collections.abc import Callable, Sequence

from mainstem.consume.consumer import Consumer
from mainstem.consume.cursor_file import CursorFile
from mainstem.consume.outlet import Outlet
from mainstem.consume.record import RecordBatch
from mainstem.consume.rendering import Render
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.cursor import Cursor
from mainstem.core.errors import DataLoss, IncompatibleSchema, UndecodedRecords

_POLL_SECONDS = 0.2
_SAVE_SECONDS = 1.0


class Tail:
    """Moves records from a consumer to an outlet until the end, the limit, the reader or the user stops it. One thread.

    The cursor file, if there is one, is written when `run` begins, so that one that cannot be written is known before a
    record is out; it is renewed every second and when `run` ends, however it ends.
    """

    def __init__(
        self,
        consumer: Consumer,
        outlet: Outlet,
        render: Render,
        *,
        follow: bool,
        limit: int | None = None,
        cursor_file: CursorFile | None = None,
        stopped: Callable[[], bool] = lambda: False,
        on_loss: Callable[[DataLoss | IncompatibleSchema | UndecodedRecords], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._consumer = consumer
        self._outlet = outlet
        self._render = render
        self._follow = follow
        self._left = limit
        self._file = cursor_file
        self._stopped = stopped
        self._on_loss = on_loss
        self._clock = clock
        # Per shard, the offset after the last record that was written, and after those that were not to be.
        self._offsets = list(consumer.cursor.offsets)
        # Where the last record that was written stands: the reader may not have taken it.
        self._last: tuple[int, int] | None = None
        self._saved_at = clock.monotonic()
        self.count = 0
        self.losses = 0

    def run(self) -> None:
        self._save()
        try:
            while not self._is_over():
                batch = self._next_batch()
                if batch is None or self._pour(batch):
                    self._offsets = list(self._consumer.cursor.offsets)
                self._maybe_save()
        finally:
            self._settle()
            self._save()

    @property
    def cursor(self) -> Cursor:
        """After the last record that was taken."""
        info = self._consumer.stream
        return Cursor(info.uuid, info.epoch, tuple(self._offsets))

    def _is_over(self) -> bool:
        if self._left == 0 or self._stopped() or not self._outlet.look():
            return True
        return not self._follow and _reached(self._consumer.cursor.offsets, self._consumer.stream.ends)

    def _next_batch(self) -> RecordBatch | None:
        try:
            return self._consumer.poll_batch(_POLL_SECONDS)
        except (DataLoss, IncompatibleSchema, UndecodedRecords) as loss:
            self.losses += 1
            self._on_loss(loss)
            return None

    def _pour(self, batch: RecordBatch) -> bool:
        """Write the records of a batch; whether all of them went out."""
        pieces = self._render(batch)
        if self._left is not None:
            del pieces[self._left :]
        taken = self._outlet.put(pieces)
        self.count += taken
        if self._left is not None:
            self._left -= taken
        if taken:
            last = batch.offsets()[taken - 1]
            self._offsets[batch.shard] = last + 1
            self._last = batch.shard, last
        return taken == batch.count

    def _settle(self) -> None:
        taken = self._outlet.settle()
        if not taken and self._last is not None:
            shard, offset = self._last
            self._offsets[shard] = offset
            self.count -= 1

    def _maybe_save(self) -> None:
        if self._clock.monotonic() - self._saved_at >= _SAVE_SECONDS:
            self._save()

    def _save(self) -> None:
        self._saved_at = self._clock.monotonic()
        if self._file is not None:
            self._file.save(self.cursor)


def _reached(offsets: Sequence[int], ends: Sequence[int]) -> bool:
    return all(offset >= end for offset, end in zip(offsets, ends, strict=True))
