"""Crash clones: the data folder as a power cut could have left it, at every moment of a recorded run.

Problem. What survives a power cut is not a prefix of what was written: a write that was not synced may be there in
part, in any order, or not at all, and so may a new name in a folder. A test that kills a process sees none of this.

Idea, after ALICE and Pebble. `RecordingDisk` notes every operation of the log with the bytes that are durable by then.
Each one gives a `CrashPoint`: what is durable, and the *pieces* under way. A write of the log is written and synced in
one step, so its pieces are its 4 KiB pages; a new file is one piece, its name; a rename has its own. A *clone* is the
durable files and any subset of the pieces.

SQLite's files are SQLite's own and not synced at commits. In a clone they are whatever the worst disk makes of them
(`LEDGER_FAULTS`): as they are, an older copy, a WAL cut anywhere or with holes, no WAL, nothing at all, or a half-done
checkpoint. The log promises to come back from each of them, because the blocks have everything.

    recorder = RecordingDisk(folder, mark=lambda: len(acknowledged))
    with recorder.watching_ledger():
        log = Log(folder, disk=recorder)
        ...
    for point in recorder.points:
        for kept in point.subsets(random):
            point.build(clone, kept, LEDGER_FAULTS["wal_gone"](point, random), random)
"""

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from mainstem.core.batch import Buffer
from mainstem.log.disk import Disk, DiskFile
from mainstem.log.ledger.sqlite import SqliteLedger
from mainstem.testing.disk import DiskLayer, Operation

PAGE_BYTES: Final = 4_096
# Up to this many pieces every subset is tried; beyond it, samples of them.
PIECES_EXHAUSTIVE_MAX: Final = 10
SUBSETS_SAMPLED: Final = 1_000
# A file that is only renamed when it is whole is never read before: three pieces say as much as thirty.
_RENAMED_PIECES: Final = 3
_WAL_HEADER_BYTES: Final = 32
_WAL_FRAME_BYTES: Final = 24 + 4_096
_LEDGER = "ledger.db"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LedgerFiles:
    """SQLite's files as bytes; None where there is none."""

    db: bytes | None = None
    wal: bytes | None = None
    shm: bytes | None = None

    @classmethod
    def read(cls, folder: Path) -> "LedgerFiles":
        return cls(*(_bytes_of(folder / f"{_LEDGER}{suffix}") for suffix in ("", "-wal", "-shm")))

    def write(self, folder: Path) -> None:
        for suffix, content in (("", self.db), ("-wal", self.wal), ("-shm", self.shm)):
            if content is not None:
                (folder / f"{_LEDGER}{suffix}").write_bytes(content)


@dataclass(frozen=True, slots=True)
class Durable:
    """A file of which `size` bytes are durable. `content` may have grown since."""

    content: bytes | bytearray
    size: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Something that a power cut may keep or take: bytes of a file, or, with `target`, its new name.

    `files` is what is in a folder that gets a new name, by the names they have then.
    """

    path: str
    position: int = 0
    data: bytes = b""
    target: str = ""
    files: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """One moment of a run. `mark` is what the test had been told by then; `ledgers` holds all states up to now."""

    number: int
    what: str
    mark: int
    files: dict[str, Durable]
    pieces: tuple[Piece, ...]
    # Names that were removed without a sync: they may come back.
    removed: dict[str, Durable]
    ledgers: Sequence[LedgerFiles]
    # The state after this operation, where SQLite is the one that works.
    ledger_next: LedgerFiles | None = None

    @property
    def ledger(self) -> LedgerFiles:
        return self.ledgers[-1]

    def subsets(self, rng: random.Random) -> Iterator[tuple[bool, ...]]:
        """Which pieces are kept: every way up to `PIECES_EXHAUSTIVE_MAX` of them, else samples, none and all first."""
        count = len(self.pieces)
        if count <= PIECES_EXHAUSTIVE_MAX:
            yield from itertools.product((False, True), repeat=count)
            return
        yield (False,) * count
        yield (True,) * count
        for _ in range(SUBSETS_SAMPLED - 2):
            chance = rng.random()
            yield tuple(rng.random() < chance for _ in range(count))

    def build(self, folder: Path, kept: Sequence[bool], ledger: LedgerFiles, rng: random.Random) -> None:
        """Make the clone in `folder`, which must be empty or absent."""
        for name in ("blocks", "snapshots"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        contents = {path: bytes(file.content[: file.size]) for path, file in self.files.items()}
        contents |= {path: bytes(file.content) for path, file in self.removed.items() if rng.random() < 0.5}
        for piece in itertools.compress(self.pieces, kept):
            _keep(contents, piece)
        # Some file systems make a file as long as it was to become, with zeros where nothing was written.
        if rng.random() < 0.3:
            _extend(contents, self.pieces)
        for path, content in contents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        ledger.write(folder)


def _keep(contents: dict[str, bytes], piece: Piece) -> None:
    if piece.files:
        for path in [path for path in contents if path.startswith(f"{piece.path}/")]:
            del contents[path]
        contents.update(piece.files)
        return
    if piece.target:
        contents.pop(piece.path, None)
        contents[piece.target] = piece.data
        return
    before = contents.get(piece.path, b"").ljust(piece.position, b"\0")
    contents[piece.path] = before[: piece.position] + piece.data + before[piece.position + len(piece.data) :]


def _extend(contents: dict[str, bytes], pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        if piece.path in contents:
            contents[piece.path] = contents[piece.path].ljust(piece.position + len(piece.data), b"\0")


@dataclass
class _State:
    files: dict[str, Durable] = field(default_factory=dict)
    removed: dict[str, Durable] = field(default_factory=dict)
    # Of files to which a write failed: what it was to write.
    torn: dict[str, tuple[Piece, ...]] = field(default_factory=dict)


class RecordingDisk(DiskLayer):
    """A disk that remembers what was durable before each operation. Any thread; operations of threads are put in line.

    What is in the folder at the start counts as durable: a clone can be recorded in turn, for a crash in recovery.
    `mark` is asked at each point for a number that says how far the test is, such as the acknowledgements it has got.
    """

    def __init__(self, folder: Path, mark: Callable[[], int] = lambda: 0, inner: Disk | None = None) -> None:
        super().__init__(inner)
        self.points: list[CrashPoint] = []
        self._folder = folder
        self._mark = mark
        self._state = _State(_durable_files(folder))
        self._ledgers: list[LedgerFiles] = [LedgerFiles.read(folder)]
        self._contents: dict[bytes, bytes] = {}
        self._lock = threading.RLock()

    # What the log does.

    def create(self, path: Path) -> Any:
        with self._lock:
            self._add_point(f"create {path.name}", (Piece(self._name(path)),))
            file = super().create(path)
            self._state.files[self._name(path)] = Durable(bytearray(), 0)
            return file

    def write(self, path: Path, file: DiskFile, buffers: Sequence[Buffer], position: int) -> None:
        with self._lock:
            name = self._name(path)
            data = b"".join(buffers)
            pieces = tuple(_pages(name, position, data))
            self._add_point(f"write {len(data)} bytes at {position} of {path.name}", pieces)
            try:
                super().write(path, file, buffers, position)
            except OSError:
                # Any of it may have reached the disk, and may be found there as long as nobody cuts it off.
                self._state.torn[name] = pieces
                raise
            content = self._state.files[name].content
            assert isinstance(content, bytearray)
            assert len(content) == position, "a block only grows"
            content += data
            self._state.files[name] = Durable(content, len(content))

    def truncate(self, path: Path, file: DiskFile, size: int) -> None:
        with self._lock:
            self._add_point(f"truncate {path.name}", ())
            super().truncate(path, file, size)
            self._state.torn.pop(self._name(path), None)

    def replace(self, source: Path, target: Path) -> None:
        with self._lock:
            content = source.read_bytes()
            name, new = self._name(source), self._name(target)
            size = max(PAGE_BYTES, -(-len(content) // _RENAMED_PIECES))
            self._add_point(
                f"replace {target.name}", (*_pages(name, 0, content, size), Piece(name, data=content, target=new))
            )
            super().replace(source, target)
            self._state.files[new] = Durable(content, len(content))
            # The folder is durable now: what was removed from it before stays removed.
            self._state.removed = {}

    def replace_folder(self, source: Path, target: Path) -> None:
        with self._lock:
            name, new = self._name(source), self._name(target)
            contents = {str(path.relative_to(source)): path.read_bytes() for path in _files_in(source)}
            named = {f"{new}/{path}": content for path, content in contents.items()}
            parts = (Piece(f"{name}/{path}", data=content) for path, content in contents.items())
            self._add_point(f"replace {target.name}", (*parts, Piece(name, target=new, files=named)))
            super().replace_folder(source, target)
            self._state.files |= {path: Durable(content, len(content)) for path, content in named.items()}
            self._state.removed = {}

    def perform(self, operation: Operation, act: Callable[[], T]) -> T:
        if operation.kind == "sync":
            with self._lock:
                self._add_point(f"sync {operation.path.name}", ())
        return act()

    # What SQLite does.

    @contextmanager
    def watching_ledger(self) -> Iterator[None]:
        """Take a point at every commit, checkpoint and upgrade of this folder's ledger."""
        store, checkpoint, upgrade = SqliteLedger.store, SqliteLedger.checkpoint, SqliteLedger.upgrade
        SqliteLedger.store = self._watched(store, "commit")  # type: ignore[method-assign]
        SqliteLedger.checkpoint = self._watched(checkpoint, "checkpoint")  # type: ignore[method-assign]
        SqliteLedger.upgrade = self._watched(upgrade, "upgrade")  # type: ignore[method-assign]
        try:
            yield
        finally:
            SqliteLedger.store, SqliteLedger.checkpoint = store, checkpoint  # type: ignore[method-assign]
            SqliteLedger.upgrade = upgrade  # type: ignore[method-assign]

    def _watched(self, method: Callable[..., T], what: str) -> Callable[..., T]:
        def watched(ledger: SqliteLedger, *args: Any) -> T:
            if ledger.path != self._folder / _LEDGER:
                return method(ledger, *args)
            with self._lock:
                self._note_ledger()
                before = len(self._ledgers)
                # Acknowledgements come after this: the mark is taken before it, the state after it is SQLite's own.
                mark = self._mark()
                result = method(ledger, *args)
                after = self._read_ledger()
                self._add_point(what, (), ledger_next=after, ledger_count=before, mark=mark)
                self._ledgers.append(after)
                return result

        return watched

    def _note_ledger(self) -> None:
        found = self._read_ledger()
        if found != self._ledgers[-1]:
            self._ledgers.append(found)

    def _read_ledger(self) -> LedgerFiles:
        found = LedgerFiles.read(self._folder)
        return LedgerFiles(*(self._shared(content) for content in (found.db, found.wal, found.shm)))

    def _shared(self, content: bytes | None) -> bytes | None:
        """Equal contents are kept once: the database file changes only at checkpoints."""
        return None if content is None else self._contents.setdefault(content, content)

    # Points.

    def _add_point(
        self,
        what: str,
        pieces: tuple[Piece, ...],
        *,
        ledger_next: LedgerFiles | None = None,
        ledger_count: int | None = None,
        mark: int | None = None,
    ) -> None:
        if ledger_next is None:
            self._note_ledger()
        self._notice_removed()
        self.points.append(
            CrashPoint(
                number=len(self.points),
                what=what,
                mark=self._mark() if mark is None else mark,
                files=dict(self._state.files),
                pieces=(*itertools.chain.from_iterable(self._state.torn.values()), *pieces),
                removed=dict(self._state.removed),
                ledgers=_Prefix(self._ledgers, ledger_count or len(self._ledgers)),
                ledger_next=ledger_next,
            )
        )

    def _notice_removed(self) -> None:
        for name in [name for name in self._state.files if not (self._folder / name).exists()]:
            self._state.removed[name] = self._state.files.pop(name)
            self._state.torn.pop(name, None)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._folder))


class _Prefix(Sequence[Any]):
    """The first `count` items of a list that grows: no copy per point."""

    def __init__(self, items: list[Any], count: int) -> None:
        self._items = items
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        assert isinstance(index, int)
        return self._items[index + self._count if index < 0 else index]


def _durable_files(folder: Path) -> dict[str, Durable]:
    paths = [folder / "mainstem.json", *folder.glob("blocks/*.block"), *folder.glob("snapshots/*.db")]
    paths += folder.glob("blocks/*.parquet")
    paths += [path for kept in folder.glob("before-format-*") for path in _files_in(kept)]
    contents = {str(path.relative_to(folder)): bytearray(path.read_bytes()) for path in paths if path.exists()}
    return {name: Durable(content, len(content)) for name, content in contents.items()}


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _pages(path: str, position: int, data: bytes, page_bytes: int = PAGE_BYTES) -> Iterator[Piece]:
    """The pieces of a write: one for each page of the file it touches."""
    at = 0
    while at < len(data):
        size = page_bytes - (position + at) % page_bytes
        yield Piece(path, position + at, data[at : at + size])
        at += size


# ------------------------------------------------------------------------------------------------- SQLite's files

LedgerFault = Callable[[CrashPoint, random.Random], LedgerFiles]


def _as_is(point: CrashPoint, rng: random.Random) -> LedgerFiles:
    return point.ledger


def _next(point: CrashPoint, rng: random.Random) -> LedgerFiles:
    return point.ledger_next or point.ledger


def _older(point: CrashPoint, rng: random.Random) -> LedgerFiles:
    return rng.choice(point.ledgers)


def _older_db(point: CrashPoint, rng: random.Random) -> LedgerFiles:
    return LedgerFiles(rng.choice(point.ledgers).db, point.ledger.wal)


def _wal_gone(point: CrashPoint, rng: random.Random) -> LedgerFiles:
    return LedgerFiles(_next(point, rng).db)


def _absent(point: CrashPoint, rng: random.Random) -> LedgerFiles:
    return LedgerFiles()


def _wal_cut(point: CrashPoint, rng: random.Random) -> LedgerFiles:
    """At the end of a frame, or anywhere."""
    files = point.ledger if point.ledger_next is None or rng.random() < 0.5 else point.ledger_next
    wal = files.wal or b""
    frames = max(0, len(wal) - _WAL_HEADER_BYTES) // _WAL_FRAME_BYTES
    whole = _WAL_HEADER_BYTES + rng.randint(0, frames) * _WAL_FRAME_BYTES
    return LedgerFiles(files.db, wal[: whole if rng.random() < 0.5 else rng.randint(0, len(wal))], files.shm)


def _wal_holes(point: CrashPoint, rng: random.Random) -> LedgerFiles:
    """Pages of a WAL that was not synced, kept in any order."""
    wal = bytearray(point.ledger.wal or b"")
    for at in range(0, len(wal), PAGE_BYTES):
        if rng.random() < 0.2:
            wal[at : at + PAGE_BYTES] = bytes(len(wal[at : at + PAGE_BYTES]))
    return LedgerFiles(point.ledger.db, bytes(wal), point.ledger.shm)


def _half_checkpoint(point: CrashPoint, rng: random.Random) -> LedgerFiles:
    """Pages of the database from before and after; the WAL whole, or, as a second fault, cut or gone."""
    before, after = point.ledger, point.ledger_next
    if after is None or after.db is None:
        return before
    old, mixed = before.db or b"", bytearray(after.db)
    for at in range(0, len(mixed), PAGE_BYTES):
        if rng.random() < 0.5 and at + PAGE_BYTES <= len(old):
            mixed[at : at + PAGE_BYTES] = old[at : at + PAGE_BYTES]
    wal = before.wal or b""
    return LedgerFiles(bytes(mixed), rng.choice((wal, wal[: rng.randint(0, len(wal))], b"", None)))


LEDGER_FAULTS: Final[dict[str, LedgerFault]] = {
    "as_is": _as_is,
    "next": _next,
    "older": _older,
    "older_db": _older_db,
    "wal_gone": _wal_gone,
    "wal_cut": _wal_cut,
    "wal_holes": _wal_holes,
    "half_checkpoint": _half_checkpoint,
    "absent": _absent,
}


def _bytes_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
