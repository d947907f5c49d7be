"""How long the disk of a data folder lasts, and what about its place will hurt."""

from collections.abc import Iterator
from typing import Final

from mainstem.core.limits import FREE_BYTES_MIN_DEFAULT
from mainstem.core.plain import size_text
from mainstem.core.times import from_us
from mainstem.log.finding import Commands, Finding, Severity
from mainstem.log.ledger.base import BlockRow
from mainstem.log.ledger.inspector import LedgerView
from mainstem.log.surroundings import Surroundings, is_of_network
from mainstem.log.upkeep.pace import Pace

_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US
_MINUTE_US: Final = 60_000_000
_SOON_SECONDS: Final = 86_400
_STREAMS_SHOWN: Final = 3

_IN_MEMORY: Final = frozenset(("tmpfs", "ramfs"))
_LAYERED: Final = frozenset(("overlay", "aufs"))


class SpaceCheck:
    """Findings about the disk. `seconds_until_full` is None for a log that does not grow."""

    def __init__(
        self,
        surroundings: Surroundings,
        view: LedgerView | None,
        commands: Commands,
        now_us: int,
        block_bytes: int,
    ) -> None:
        self._surroundings = surroundings
        self._view = view
        self._commands = commands
        self._now_us = now_us
        self._block_bytes = block_bytes
        blocks = list(view.blocks.values()) if view is not None else []
        oldest_us = min((row.created_us for row in blocks), default=now_us)
        # What was written within less than an hour says little about the days to come.
        self._is_settled = now_us - oldest_us >= _HOUR_US
        rate = _bytes_per_second(blocks, _reach(view), now_us)
        self.seconds_until_full = surroundings.free_bytes / rate if rate > 0 else None

    def findings(self) -> Iterator[Finding]:
        yield from self._place()
        yield from self._space()
        yield from self._retention()

    def _space(self) -> Iterator[Finding]:
        free, until = self._surroundings.free_bytes, self.seconds_until_full
        rate = "the log is not growing" if until is None else f"full in about {_days(until)} at the present rate"
        shown = f"{size_text(free)} of {size_text(self._surroundings.total_bytes)} are free; {rate}{self._waiting()}"
        shorten = self._give_back()
        if free < FREE_BYTES_MIN_DEFAULT:
            yield Finding(Severity.WARNING, "space-low", shown, shorten)
        elif until is not None and until < _SOON_SECONDS and self._is_settled:
            yield Finding(Severity.WARNING, "space-short", shown, shorten)
        else:
            yield Finding(Severity.NOTE, "space", shown)
        if FREE_BYTES_MIN_DEFAULT <= free < 2 * self._block_bytes:
            what = f"two blocks of {size_text(self._block_bytes)} (block_bytes) do not fit into what is free"
            yield Finding(Severity.WARNING, "block-bytes", what, f"{self._commands.serve()} --block-bytes 16MiB")

    def _waiting(self) -> str:
        """How much is on the disk that nobody can read any more, and until when at the usual pace."""
        view = self._view
        if view is None or not view.waiting_bytes:
            return ""
        # Entries of deleted streams get their date when upkeep comes to them.
        rows = [row for row in view.blocks.values() if row.dead_us or row.rewrite_us or view.deleted_bytes]
        when = from_us(Pace().gone_by_us(rows, self._now_us)).isoformat(timespec="minutes").replace("+00:00", "Z")
        return f"; {size_text(view.waiting_bytes)} wait to be freed, until {when} at the latest if the log is open"

    def _give_back(self) -> str:
        """What gives the most space back: on a full disk, upkeep frees what waits without delay."""
        name, size = self._largest_stream()
        if self._view is None or self._view.waiting_bytes < max(size, 1):
            return self._commands.shorten(name)
        return self._commands.serve() if self._surroundings.writer is None else self._commands.look()

    def _retention(self) -> Iterator[Finding]:
        """Streams that will not have let go of anything when the disk is full."""
        until, view = self.seconds_until_full, self._view
        if until is None or view is None or not self._is_settled:
            return
        begun = {stream for (stream, _), row in view.shards.items() if row.next}
        trimmed = {stream for (stream, _), row in view.shards.items() if row.start}
        long = [
            row
            for row in view.streams.values()
            if row.id in begun - trimmed and not row.deleted_us and row.deletes and row.retention_us / 1e6 > until
        ]
        if long:
            names = ", ".join(repr(row.name) for row in long[:_STREAMS_SHOWN])
            more = f" and {len(long) - _STREAMS_SHOWN} more" if len(long) > _STREAMS_SHOWN else ""
            what = f"the disk is full before the retention of {names}{more} lets anything go"
            yield Finding(Severity.WARNING, "retention-long", what, self._commands.shorten(long[0].name))

    def _place(self) -> Iterator[Finding]:
        kind, is_temporary = self._surroundings.file_system, self._surroundings.is_temporary
        severity = Severity.NOTE if is_temporary else Severity.WARNING
        elsewhere = "mainstem serve --data /var/lib/mainstem"
        if kind in _IN_MEMORY:
            what = f"the folder is in memory ({kind}): nothing of it survives a restart of the machine"
            yield Finding(severity, "folder-in-memory", what, elsewhere)
        elif kind in _LAYERED:
            what = f"the folder is in a container's own layer ({kind}): it goes with the container; use a volume"
            yield Finding(severity, "folder-in-container", what, elsewhere)
        elif is_of_network(kind):
            what = f"the folder is on a network ({kind}): the ledger needs a local disk"
            yield Finding(Severity.WARNING, "folder-remote", what, elsewhere)

    def _largest_stream(self) -> tuple[str, int]:
        view = self._view
        if view is None:
            return "STREAM", 0
        sizes: dict[str, int] = {}
        for (stream, _), row in view.shards.items():
            owner = view.streams.get(stream)
            if owner is not None and not owner.deleted_us:
                sizes[owner.name] = sizes.get(owner.name, 0) + row.bytes
        return max(sizes.items(), key=lambda item: item[1], default=("STREAM", 0))


def _reach(view: LedgerView | None) -> dict[int, int]:
    """How far each block is written: a block that grows has no size in its row yet."""
    if view is None:
        return {}
    reach = {block: total.end_position for block, total in view.block_sums.items()}
    reach[view.applied.block] = max(reach.get(view.applied.block, 0), view.applied.commit_position)
    return reach


def _bytes_per_second(blocks: list[BlockRow], reach: dict[int, int], now_us: int) -> float:
    """How fast the log grows: by the blocks of the last hour, else of the last day, else not."""
    for window in (_HOUR_US, _DAY_US):
        recent = [row for row in blocks if row.created_us > now_us - window]
        if recent:
            # A log that is younger than the window has grown for its age; seconds are too few to tell.
            age = now_us - min(row.created_us for row in recent)
            is_young = len(recent) == len(blocks)
            seconds = (max(age, _MINUTE_US) if is_young else window) / 1e6
            return sum(max(row.bytes, reach.get(row.id, 0)) for row in recent) / seconds
    return 0.0


def _days(seconds: float) -> str:
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} minutes"
    if seconds < 2 * 86_400:
        return f"{seconds / 3600:.0f} hours"
    if seconds < 3 * 365 * 86_400:
        return f"{seconds / 86_400:.0f} days"
    return f"{seconds / (365 * 86_400):.0f} years"
