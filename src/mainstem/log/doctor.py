"""Examines a data folder and says what is wrong with it. Changes nothing, locks nothing, needs no right to write.

It may run beside the process that writes the folder. What is seen of a folder at work is never of one moment, so
whatever looks wrong is looked at again after a pause, and only what is wrong twice is told.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import FolderUnusable, LedgerDamaged
from mainstem.core.limits import BLOCK_BYTES_DEFAULT
from mainstem.log.block_check import BlockCheck
from mainstem.log.blocks.base import BlockMissing
from mainstem.log.blocks.local import LocalBlocks
from mainstem.log.disk import LocalDisk
from mainstem.log.finding import Commands, Finding, Severity
from mainstem.log.folder import FORMAT, has_log, parse_identity, require_no_backup
from mainstem.log.frame import FrameDamaged
from mainstem.log.ledger import wal
from mainstem.log.ledger.inspector import LedgerInspector, LedgerView, snapshot_number
from mainstem.log.ledger.sqlite import LEDGER_FORMAT, place_without_wal
from mainstem.log.recovery import Recovery
from mainstem.log.scan import BlockScanner
from mainstem.log.snapshots import Snapshots
from mainstem.log.space_check import SpaceCheck
from mainstem.log.surroundings import Surroundings

# How long to wait before what looks wrong is looked at again.
_PAUSE_SECONDS: Final = 0.3
_WAL_LOOKS: Final = 3
# While a process writes, a file that it makes under another name and renames is there for a while.
_LEFT_OVER_SECONDS: Final = 600
_KNOWN_NAMES: Final = re.compile(r"mainstem\.json|lock|ballast|ledger\.db(-wal|-shm)?|blocks|snapshots")
_LEFT_OVER_NAMES: Final = re.compile(r".*\.part(-wal|-shm)?|ledger-rebuilt\.db(-wal|-shm)?|damaged-[0-9]+")

# Called with what is being done, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Report:
    """The findings, worst first, and what was looked at."""

    findings: list[Finding] = field(default_factory=list)
    streams: int = 0
    records: int = 0
    blocks: int = 0
    block_bytes: int = 0
    live_bytes: int = 0
    dead_bytes: int = 0
    checked_bytes: int = 0
    free_bytes: int = 0
    seconds_until_full: float | None = None

    @property
    def worst(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.NOTE)

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)


def examine(
    path: Path,
    *,
    deep: bool = False,
    block_bytes: int = BLOCK_BYTES_DEFAULT,
    clock: Clock = SYSTEM_CLOCK,
    surroundings: Surroundings | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Look at everything in a data folder; `deep` reads every byte of every block."""
    require_no_backup(path)
    if not has_log(path):
        raise FolderUnusable(f"there is no log in {path}; name its folder with --data")
    try:
        doctor = Doctor(path, clock, surroundings or Surroundings.of(path), progress)
        return doctor.examine(deep=deep, block_bytes=block_bytes)
    except PermissionError as error:
        raise FolderUnusable(f"{error.filename or path} may not be read by this user") from error


class Doctor:
    """One examination of one folder. One thread, used once."""

    def __init__(self, path: Path, clock: Clock, surroundings: Surroundings, progress: Progress) -> None:
        self._path = path
        self._clock = clock
        self._surroundings = surroundings
        self._progress = progress
        self._commands = Commands(path)
        disk = LocalDisk()
        self._ledger_path = path / "ledger.db"
        self._blocks = LocalBlocks(path / "blocks", disk)
        self._snapshots = Snapshots(path / "snapshots", disk)
        self._log_uuid: str | None = None
        self._ledger: LedgerInspector | None = None
        self._view: LedgerView | None = None
        self._check: BlockCheck | None = None
        self._report = Report()

    def examine(self, *, deep: bool, block_bytes: int) -> Report:
        try:
            self._add(self._identity())
            self._add(self._writer())
            self._say("ledger")
            self._add(self._look_at_ledger())
            self._examine_blocks(deep=deep)
            self._add(self._next_start())
            self._say("snapshots")
            self._add(self._snapshot_files())
            self._add(self._left_over())
            space = SpaceCheck(self._surroundings, self._view, self._commands, self._clock.now_us(), block_bytes)
            self._add(space.findings())
            self._report.free_bytes = self._surroundings.free_bytes
            self._report.seconds_until_full = space.seconds_until_full
            self._count()
        finally:
            self._blocks.close()
            if self._ledger is not None:
                self._ledger.close()
        self._report.findings.sort(key=lambda finding: -finding.severity)
        return self._report

    def _add(self, findings: Iterable[Finding]) -> None:
        self._report.findings += findings

    def _say(self, what: str) -> None:
        self._progress(what, 0, 0)

    def _count(self) -> None:
        report, view = self._report, self._view
        if view is None:
            return
        report.streams = sum(not row.deleted_us for row in view.streams.values())
        alive = {row.id for row in view.streams.values() if not row.deleted_us}
        report.records = sum(total.records for (stream, _), total in view.shard_sums.items() if stream in alive)
        report.blocks = len(view.blocks)
        report.live_bytes = sum(row.live_bytes for row in view.blocks.values()) - view.deleted_bytes
        report.dead_bytes = view.waiting_bytes

    # Whose folder it is.

    def _identity(self) -> Iterator[Finding]:
        name = "mainstem.json"
        try:
            identity = parse_identity((self._path / name).read_bytes())
            problem = "" if identity else "it is damaged"
        except FileNotFoundError:
            identity, problem = None, "it is missing"
        if identity is not None:
            version, self._log_uuid, _ = identity
            if version > FORMAT:
                what = f"the folder has format {version}, this program reads up to {FORMAT}; use a newer Mainstem"
                yield Finding(Severity.WARNING, "format-newer", what, "mainstem version", name)
            return
        self._log_uuid = self._uuid_of_blocks()
        code = "identity-missing" if problem == "it is missing" else "identity-damaged"
        if self._log_uuid is not None:
            what = f"{problem}; the blocks say which log this is, and the next start writes it anew"
            yield Finding(Severity.WARNING, code, what, self._commands.serve(), name)
        else:
            what = f"{problem}, and no block says which log this is"
            yield Finding(Severity.DAMAGE, code, what, self._commands.restore(), name)

    def _uuid_of_blocks(self) -> str | None:
        for block in self._block_numbers():
            try:
                return BlockScanner(self._blocks, block).header().log_uuid.hex()
            except (FrameDamaged, BlockMissing, OSError):
                continue
        return None

    def _block_numbers(self) -> list[int]:
        return self._blocks.list() if (self._path / "blocks").exists() else []

    def _writer(self) -> Iterator[Finding]:
        if self._surroundings.writer is not None:
            what = f"process {self._surroundings.writer} writes this folder; what it is doing now is not judged"
            yield Finding(Severity.NOTE, "writer", what, f"ps -fp {self._surroundings.writer}", "lock")

    # The ledger.

    def _look_at_ledger(self) -> list[Finding]:
        findings: list[Finding] = []
        for _ in range(2):
            findings = list(self._ledger_findings())
            if not any(finding.severity for finding in findings):
                break
            self._clock.sleep(_PAUSE_SECONDS)
        return findings

    def _ledger_findings(self) -> Iterator[Finding]:
        self._forget_ledger()
        if not self._ledger_path.exists():
            if self._block_numbers():
                yield self._ledger_damage("ledger-missing", "it is missing; the blocks hold everything that was in it")
            return
        yield from self._wal_findings()
        try:
            self._ledger = LedgerInspector(self._ledger_path)
            self._ledger.check_pages()
            version = self._ledger.format()
            if version > LEDGER_FORMAT:
                self._forget_ledger()
                what = f"it has format {version}, this program reads up to {LEDGER_FORMAT}; use a newer Mainstem"
                yield Finding(Severity.WARNING, "ledger-newer", what, "mainstem version", "ledger.db")
                return
            if version < LEDGER_FORMAT:
                what = f"it has format {version}; the next start makes it format {LEDGER_FORMAT}"
                yield Finding(Severity.NOTE, "ledger-older", what, self._commands.serve(), "ledger.db")
            found = self._ledger.log_uuid()
            self._view = self._ledger.look()
        except (LedgerDamaged, ValueError) as error:
            self._forget_ledger()
            reason = str(error).removeprefix("ledger.db: ").split("; start the process")[0]
            yield self._ledger_damage("ledger-damaged", f"it cannot be trusted: {reason}")
            return
        if self._log_uuid is not None and found != self._log_uuid:
            self._forget_ledger()
            yield self._ledger_damage("ledger-foreign", f"it is the ledger of log {found}, not of {self._log_uuid}")
            return
        for what in _contradictions(self._view):
            yield self._ledger_damage("ledger-rows", what)

    def _forget_ledger(self) -> None:
        ledger, self._ledger, self._view = self._ledger, None, None
        if ledger is not None:
            ledger.close()

    def _wal_findings(self) -> Iterator[Finding]:
        """A WAL that grows or begins anew while it is read looks damaged; one that is, is so at the same byte."""
        path = self._ledger_path.with_name("ledger.db-wal")
        seen: set[tuple[bytes, int]] = set()
        for look in range(_WAL_LOOKS):
            if look:
                self._clock.sleep(_PAUSE_SECONDS / _WAL_LOOKS)
            begin = wal.read_header(path)
            try:
                damaged_at = wal.verify(path).damaged_at
            except OSError:  # the disk does not give it
                damaged_at = 0
            if damaged_at is None or begin != wal.read_header(path):
                return
            seen.add((begin, damaged_at))
        if len(seen) == 1:
            what = "it is damaged; no record is lost, for the blocks hold what it held"
            yield Finding(Severity.DAMAGE, "wal-damaged", what, self._commands.rebuild(), path.name, seen.pop()[1])

    def _ledger_damage(self, code: str, what: str) -> Finding:
        return Finding(Severity.DAMAGE, code, what, self._commands.rebuild(), "ledger.db")

    # The blocks.

    def _examine_blocks(self, *, deep: bool) -> None:
        if not (self._path / "blocks").exists():
            return
        check = BlockCheck(self._blocks, self._ledger, self._view, self._log_uuid, self._commands)
        self._check = check
        self._say("blocks")
        self._add(check.files())
        self._add(check.unknown())
        self._add(check.place())
        if not deep:
            self._add(check.sampled())
        chosen = check.to_walk(deep=deep)
        total = sum(map(check.size, chosen))
        for block in chosen:
            self._add(self._walk(check, block, total))
            self._report.checked_bytes += check.size(block)
        self._report.block_bytes = sum(map(check.size, (*self._block_numbers(), *self._blocks.list_cold())))

    def _walk(self, check: BlockCheck, block: int, total: int) -> list[Finding]:
        before = self._report.checked_bytes
        findings: list[Finding] = []
        for _ in range(2):
            findings = list(check.walked(block, lambda done: self._progress("bytes", before + done, total)))
            if not findings:
                break
            self._clock.sleep(_PAUSE_SECONDS)
        return findings

    # What a start would make of it.

    def _next_start(self) -> Iterator[Finding]:
        """Only where nobody writes: the ledger of a writer at work is ahead of its file and behind its block."""
        if self._view is None or self._ledger is None or self._surroundings.writer is not None:
            return
        if self._log_uuid is None or not (self._path / "blocks").exists():
            return
        place = self._view.applied
        recovery = Recovery(self._ledger_path, self._snapshots, self._blocks, self._log_uuid, self._ledger.epoch())
        try:
            in_file = place_without_wal(self._ledger_path).number
            report = wal.verify(self._ledger_path.with_name("ledger.db-wal"))
            wal_frames = report.last_commit_frame or int(report.has_restarted)
            count = recovery.judge(place, in_file, self._ledger.wal_base(), wal_frames)
        except LedgerDamaged as error:
            if not self._has_moved():
                # An older copy, or what a kill in the middle of a checkpoint leaves.
                what = f"the next start makes it anew, without a loss: {error}"
                yield Finding(Severity.WARNING, "ledger-outdated", what, self._commands.rebuild(), "ledger.db")
            return
        except FolderUnusable as error:
            if not self._has_moved():
                yield Finding(Severity.DAMAGE, "start-refused", str(error), self._commands.restore())
            return
        except OSError:
            return  # the file that the disk does not give is told already
        if count and not self._has_moved():
            what = f"flushes {place.number + 1} to {place.number + count} are in the blocks and not in the ledger; "
            what += "the next start applies them"
            yield Finding(Severity.NOTE, "flushes-to-apply", what, self._commands.serve(), "ledger.db")

    def _has_moved(self) -> bool:
        """Whether somebody writes after all, whom the system does not show us."""
        self._clock.sleep(_PAUSE_SECONDS)
        try:
            fresh = LedgerInspector(self._ledger_path)
        except LedgerDamaged:
            return False
        try:
            return self._view is None or fresh.applied() != self._view.applied
        finally:
            fresh.close()

    # Other files.

    def _snapshot_files(self) -> Iterator[Finding]:
        if not (self._path / "snapshots").exists():
            return
        newest, numbers = 0, self._snapshots.numbers()
        for number in numbers:
            path = self._snapshots.path(number)
            file = f"snapshots/{path.name}"
            try:
                found = snapshot_number(path)
                problem = "" if found == number else f"it is of flush {found}"
            except LedgerDamaged as error:
                problem = str(error).split("; start the process")[0]
            if not problem:
                newest = max(newest, number)
            elif path.exists():
                what = f"this copy of the ledger cannot be used: {problem}"
                yield Finding(Severity.WARNING, "snapshot-damaged", what, self._commands.remove(file), file)
        # One that went meanwhile has made room for a newer one.
        if all(self._snapshots.path(number).exists() for number in numbers):
            yield from self._rebuildable(newest)

    def _rebuildable(self, snapshot: int) -> Iterator[Finding]:
        """Blocks that are gone held flushes; a ledger can be made anew only from a copy that has them."""
        gap = None if self._check is None else self._check.gap_after(snapshot)
        if gap is not None:
            what = f"flushes {gap[0]} to {gap[1]} are in no copy of the ledger and in no block: "
            what += "the ledger could not be made anew if it were lost"
            yield Finding(Severity.WARNING, "snapshot-lacking", what, self._commands.backup(), "snapshots")

    def _left_over(self) -> Iterator[Finding]:
        for folder in ("", "blocks", "snapshots"):
            base = self._path / folder
            for path in sorted(base.iterdir()) if base.is_dir() else ():
                file = str(path.relative_to(self._path))
                if _LEFT_OVER_NAMES.fullmatch(path.name):
                    if self._is_old(path):
                        what = "left over from an earlier start or stop; the log does not use it"
                        yield Finding(Severity.NOTE, "left-over", what, self._commands.remove(file), file)
                elif not _is_known(folder, path.name):
                    what = "no file of a log; the log does not use it"
                    yield Finding(Severity.NOTE, "stray-file", what, self._commands.show(file), file)

    def _is_old(self, path: Path) -> bool:
        if self._surroundings.writer is None:
            return True
        try:
            return self._clock.now_us() / 1e6 - path.stat().st_mtime > _LEFT_OVER_SECONDS
        except FileNotFoundError:
            return False


def _contradictions(view: LedgerView) -> Iterator[str]:
    """Rows that do not agree with each other."""
    yield from view.flaws
    for (stream, shard), row in view.shards.items():
        where = f"stream {stream} shard {shard}"
        total = view.shard_sums.get((stream, shard))
        owner = view.streams.get(stream)
        if owner is None or shard >= owner.shards:
            yield f"{where}: there is a row for it and no such shard"
            continue
        if not 0 <= row.start <= row.stable <= row.next:
            yield f"{where}: it starts at {row.start}, is readable to {row.stable} and ends at {row.next}"
        if (total.bytes if total else 0) != row.bytes:
            yield f"{where}: its entries have {total.bytes if total else 0} bytes, its row says {row.bytes}"
        if total is not None and total.end != row.next:
            yield f"{where}: its entries end at {total.end}, its row says {row.next}"
        # The rows of a deleted stream go from the front, whatever its start.
        if not owner.deleted_us and row.start < row.next and (total is None or total.first > row.start):
            yield f"{where}: offsets {row.start} to {(total.first if total else row.next) - 1} have no entry"
    for stream, shard in view.shard_sums.keys() - view.shards.keys():
        yield f"stream {stream} shard {shard}: it has entries and no row"
    for block in view.block_sums.keys() - view.blocks.keys():
        yield f"entries point into block {block}, which has no row"
    for block, known in view.blocks.items():
        found = view.block_sums[block].bytes if block in view.block_sums else 0
        if found != known.live_bytes:
            yield f"block {block}: entries have {found} bytes in it, its row says {known.live_bytes}"


def _is_known(folder: str, name: str) -> bool:
    pattern = {"blocks": r"[0-9]{16}\.(block|parquet)", "snapshots": r"ledger-[0-9]{16}\.db"}.get(folder)
    return bool(re.fullmatch(pattern, name) if pattern else _KNOWN_NAMES.fullmatch(name))
