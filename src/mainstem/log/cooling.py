"""Old entries become cold files: planned by the process that writes the log, made by anybody who sees its folder.

    plan      which entries, and under which numbers their files may be written        the log's own process
    make      read them, write `blocks/<number>-<word>.part`                            any process: a Spark task
    commit    check the file, give it its name, swap the entries in one flush           the log's own process

What a crash leaves: before the file has its name a part, behind it a file that no entry points to; the records are
where they were. The next start takes both away: what the ledger does not know was never swapped in. After the flush the
old bytes are dead and go as any others do. If others have changed an entry meanwhile, the flush changes nothing and the
file goes: it may hold what was erased.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, Protocol

from mainstem.core.clock import Clock
from mainstem.core.errors import Busy, DiskFull, InvalidRequest, Refused
from mainstem.core.events import Event
from mainstem.core.limits import COLD_FILE_BYTES_MIN, COLD_TASK_FILES_MAX, COLD_TASKS_MAX
from mainstem.core.statistics import summary
from mainstem.log import cold
from mainstem.log.blocks.base import BlockMissing, BlockStore
from mainstem.log.cold_plan import ColdRange, entries_of, plan_ranges
from mainstem.log.flush import Command, CoolEntries, Done, Outcome, Rejected
from mainstem.log.frame import COLD_BLOCK_FIRST, FrameDamaged
from mainstem.log.ledger.base import LedgerReader, StreamRow, barriers_of
from mainstem.transport.port import ColdFile, ColdPlan, ColdTask

logger = logging.getLogger("mainstem.log")

# How long a task may take from its plan to its commit. A part that is older was left by somebody.
_PLAN_SECONDS_MAX: Final = 6 * 3_600.0


class Committing(Protocol):
    """What is needed of the log: a way to commit, and by when bytes that are dead from now on should be gone."""

    def attempt(self, item: Command) -> Outcome: ...

    def rewrite_us(self) -> int: ...


class Cooling:
    """The part of the log's own process. Any thread."""

    def __init__(
        self,
        ledger: LedgerReader,
        blocks: BlockStore,
        committing: Committing,
        clock: Clock,
        identity: tuple[str, int, int],
        folder: str,
    ) -> None:
        self._ledger = ledger
        self._blocks = blocks
        self._committing = committing
        self._clock = clock
        self._log_uuid, self._epoch, self._writer_epoch = identity
        self._folder = folder
        self._lock = threading.Lock()
        # One file at a time: of two that come under one number the second finds the first.
        self._one_at_a_time = threading.Lock()
        # The first number of each task that may still be committed, its stream, and until when.
        self._planned: dict[int, tuple[int, float]] = {}
        # Above all that there are, though the clock was put back: a file is never written over.
        known = (*(row.id for row in ledger.list_blocks()), *blocks.list_cold())
        self._number_next = max(COLD_BLOCK_FIRST, *known, 0) + 1

    def plan(self, stream: StreamRow, before_us: int, bytes_min: int = COLD_FILE_BYTES_MIN) -> ColdPlan:
        """What there is to do for the records of a stream that are older than `before_us`. What was planned for it
        before, and is not committed, is void: whoever did that was killed, or is overtaken."""
        now = self._clock.monotonic()
        self._keep_plans(lambda planned, until: planned != stream.id and until > now)
        tasks = [
            ColdTask(stream.id, shard, *found, block=self._reserve(stream.id), bytes_min=bytes_min)
            for shard, found in islice(self._ranges(stream, before_us, bytes_min), COLD_TASKS_MAX)
        ]
        flush = self._ledger.applied().number
        return ColdPlan(self._folder, self._log_uuid, self._epoch, self._writer_epoch, flush, tuple(tasks))

    def _ranges(self, stream: StreamRow, before_us: int, bytes_min: int) -> Iterator[tuple[int, ColdRange]]:
        for shard in range(stream.shards):
            for found in self._ranges_of(stream, shard, before_us, bytes_min):
                yield shard, found

    def _ranges_of(self, stream: StreamRow, shard: int, before_us: int, bytes_min: int) -> Iterator[ColdRange]:
        entries = entries_of(self._ledger, stream.id, shard)
        # Looked up after the shard: a barrier that is set later stands behind it.
        barriers = barriers_of(self._ledger.load_generations(stream.id), shard)
        return plan_ranges(entries, barriers, before_us, bytes_min)

    def _reserve(self, stream: int) -> int:
        """Numbers for the files of one task: nobody else has them, and nobody had."""
        with self._lock:
            first = max(self._number_next, self._clock.now_us())
            self._number_next = first + COLD_TASK_FILES_MAX
            self._planned[first] = (stream, self._clock.monotonic() + _PLAN_SECONDS_MAX)
            return first

    def _is_planned(self, block: int) -> bool:
        return any(first <= block < first + COLD_TASK_FILES_MAX for first in self._planned)

    def forget(self, stream: int) -> None:
        """Something of a stream was erased: what was planned before holds it perhaps, and goes."""
        self._keep_plans(lambda planned, until: planned != stream)

    def _keep_plans(self, is_kept: Callable[[int, float], bool]) -> None:
        """Of the others, what was written goes as well."""
        with self._lock:
            self._planned = {first: plan for first, plan in self._planned.items() if is_kept(*plan)}
            for block in self._blocks.list_parts():
                if not self._is_planned(block):
                    self._blocks.remove_parts(block)

    def commit(self, file: ColdFile) -> int:
        """Swap the entries that a file was made of; how many there were. Refused, and the file gone, if they are not
        what they were; gone, too, if the log takes nothing now (Busy, DiskFull): plan again."""
        with self._lock:
            is_planned = self._is_planned(file.block)
        if not is_planned:
            raise Refused(f"cold file {file.block} was not planned by this process, or too long ago; plan again")
        with self._one_at_a_time:
            return self._commit(file)

    def _commit(self, file: ColdFile) -> int:
        command = self._command(file)
        if file.block in self._blocks.list_cold():
            raise Refused(f"cold file {file.block} is there already")
        try:
            self._blocks.adopt(file.block, file.part)
        except FileNotFoundError:
            raise Refused(
                f"cold file {file.block} went while it was committed: something was erased; plan again"
            ) from None
        try:
            # If this raises, the flush may be durable all the same: then the next start knows what the file is.
            outcome = self._committing.attempt(command)
        except (Busy, DiskFull):
            # But for these, which say that nothing was written; and a full disk needs the room.
            self._blocks.remove(file.block)
            raise
        if isinstance(outcome, Rejected):
            self._blocks.remove(file.block)
            raise outcome.error
        assert isinstance(outcome, Done)
        return outcome.rows

    def abandon(self, block: int) -> None:
        """What was written for a task and will not be committed goes."""
        with self._lock:
            self._planned.pop(block, None)
            for written in self._blocks.list_parts():
                if block <= written < block + COLD_TASK_FILES_MAX:
                    self._blocks.remove_parts(written)

    def _command(self, file: ColdFile) -> CoolEntries:
        """What is to be committed for a file, as the file itself says."""
        try:
            data = self._blocks.read_part(file.block, file.part, cold.FILE_BYTES_MAX)
            found = cold.parse(data, file.block)
        except BlockMissing:
            raise InvalidRequest(f"there is no cold file {file.block} to commit") from None
        except FrameDamaged as error:
            self._blocks.remove_parts(file.block)
            raise InvalidRequest(f"cold file {file.block} is not what was written: {error}; it is gone") from error
        header, frame = found.header, found.frame
        told = (header.log_uuid.hex(), frame.stream, frame.shard, found.base, found.base + frame.span, len(data))
        if told != (self._log_uuid, file.stream, file.shard, file.base, file.end, file.bytes):
            raise InvalidRequest(f"cold file {file.block} holds other records than it is said to")
        return CoolEntries(
            stream=file.stream,
            shard=file.shard,
            base=file.base,
            end=file.end,
            rows=file.rows,
            fingerprint=file.fingerprint,
            block=file.block,
            file_bytes=len(data),
            created_us=header.created_us,
            writer_epoch=header.writer_epoch,
            position=frame.position,
            length=frame.total_len,
            count=frame.count,
            schema_id=frame.schema_id,
            summary=summary(found.statistics),
            rewrite_us=self._committing.rewrite_us(),
        )


def sweep(blocks: BlockStore, known: Iterable[int]) -> int:
    """At a start, when the ledger agrees with the blocks: take away what was made and never swapped in; how many."""
    left = sorted(set(blocks.list_cold()).difference(known))
    parts = blocks.list_parts()
    for block in left:
        blocks.remove(block)
    for block in parts:
        blocks.remove_parts(block)
    if left or parts:
        logger.info(Event("cold files taken away that were never swapped in", files=len(left) + len(parts)))
    return len(left) + len(parts)
