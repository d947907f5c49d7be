"""What a job has done and is doing, as files next to its table: one manifest for each load.

    <table>/_mainstem/<job>/start.json      where the first run began, which counts until a load is done
    <table>/_mainstem/<job>/000001.json     the first load of the job, the second, ...
    <table>/_mainstem/<job>/lock            held while a run writes
    <table>/_mainstem/attempts/<attempt>    there while an attempt may write files and be committed

A manifest is written three times, each time as a whole: *planned* (from where to where), *written* (the files are
there), *done* (the table has them). The table's own log decides which loads it has: a load's number is the version of
the job's transaction there, committed together with the load's files. So what a kill leaves is always one of these:

- a manifest whose number the table has: it is done, whatever it says;
- one manifest above that: its attempt is given up, its files are deleted, and the load is planned anew.

Jobs that write no table, `compact` and `audit`, keep theirs in a folder of the user's (`notes_folder`). There the log
decides what of the last manifest is done.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from mainstem.core.errors import TableUnusable
from mainstem.core.identity import new_stream_uuid
from mainstem.log.disk import LocalDisk
from mainstem.spark.jobs.part_files import WrittenFile

NOTES: Final = "_mainstem"
ATTEMPTS: Final = f"{NOTES}/attempts"
_DISK: Final = LocalDisk()


class TierCount(msgspec.Struct, frozen=True):
    """What an audit found in one tier: records that should be there and that are, in all windows that were compared, in
    how many of these the two differ, and a checksum of what is in each. A table is counted in one of its versions."""

    tier: str
    expected: int
    seen: int
    differing: int
    crc32c: int
    table_version: int = -1


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One load. `start` and `end` are cursors of the stream; `rows_read` are records, `rows_written` rows of the table.
    Times are in microseconds since 1970."""

    job: str
    stream: str
    number: int
    attempt: str
    state: Literal["planned", "written", "done"]
    start: str
    end: str
    planned_us: int
    rows_read: int = 0
    rows_written: int = 0
    rows_deleted: int = 0
    # Records that were no rows and were passed over, and ranges that were gone: shard, first, the one after the last.
    undecoded: int = 0
    lost: tuple[tuple[int, int, int], ...] = ()
    files: tuple[WrittenFile, ...] = ()
    table_version: int = -1
    done_us: int = 0
    # Of `compact`: ranges that others had changed meanwhile, or that could not be read.
    ranges_left: int = 0
    # Of `audit`: what is in each tier, up to when all of it agrees, and how many windows after that do not.
    tiers: tuple[TierCount, ...] = ()
    verified_through_us: int = 0
    windows_differing: int = 0
    # And the tables that it was about, and those that count no more.
    tables: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    # Of `replay`: what says that it is the same one.
    recipe: str = ""
    # Of `replay --replace`: the version of the table that its rows are to be compared with; -1 once they were.
    compare_with: int = -1
    # Of jobs that are of keys: records that have none and were passed over.
    without_key: int = 0
    # Of `replay --into`: a checksum of the rows, whatever their order; of floating-point numbers it has nothing.
    checksum: str = ""

    @property
    def bytes_written(self) -> int:
        return sum(file.bytes for file in self.files)


class Beginning(msgspec.Struct, frozen=True):
    """Where the first run began: the start that was asked for, as text, and the cursor that it was; empty if it is a
    time that had not come yet."""

    asked: str
    start: str


_Note = TypeVar("_Note", Manifest, Beginning)


def notes_folder(given: str | Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Where a job keeps its manifests that has no table to keep them in: `given`, else with other state of the user."""
    if given is not None:
        return Path(given)
    state = environment.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "mainstem"


class Manifests:
    """The manifests of one job in one folder, which is its table or has its tables. One thread; changed only while
    `locked`."""

    def __init__(self, place: Path, name: str) -> None:
        self._place = place
        self.folder = place / NOTES / name

    def marker(self, attempt: str) -> Path:
        """What says that an attempt may still write."""
        return self._place / ATTEMPTS / attempt

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else runs this job on this table meanwhile. The lock is the process's: a kill lets go of it."""
        try:
            _DISK.make_dirs(self.folder)
            fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise TableUnusable(
                f"manifests cannot be kept in {self.folder}: {error.strerror}; name a folder that this user can write"
            ) from None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TableUnusable(
                    f"another run of this job writes {self._place} now; wait until it has ended, then run this one"
                ) from None
            yield
        finally:
            os.close(fd)

    def get(self, number: int) -> Manifest | None:
        """The manifest of a load; None if there is none."""
        return _read(self._path(number), Manifest, "the log of the table, or of the stream, says what is done")

    def beginning(self) -> Beginning | None:
        """Where the first run began; None if there was none."""
        return _read(self._start, Beginning, "if no load is done, the job begins at the start that it is given")

    def begin_at(self, beginning: Beginning) -> None:
        """Keep where the first run begins, instead of what was kept before."""
        _write(self._start, beginning)

    def all(self) -> Iterator[Manifest]:
        """Every manifest, oldest first."""
        for number in self._numbers():
            if (found := self.get(number)) is not None:
                yield found

    def last(self) -> Manifest | None:
        """The newest one; None if there is none."""
        numbers = self._numbers()
        return self.get(numbers[-1]) if numbers else None

    def _numbers(self) -> list[int]:
        stems = (path.stem for path in self.folder.glob("*.json")) if self.folder.is_dir() else iter(())
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def begin(self, manifest: Manifest) -> Manifest:
        """Plan a load under an attempt of its own."""
        begun = msgspec.structs.replace(manifest, attempt=new_stream_uuid(), state="planned")
        _write(self._path(begun.number), begun)
        marker = self.marker(begun.attempt)
        _DISK.make_dirs(marker.parent)
        marker.touch()
        return begun

    def advance(self, manifest: Manifest) -> None:
        """Say more of a load that was begun. Before it is said to be done, what its attempt left beside its files goes:
        what a merge has used up, and what tasks wrote that were done twice."""
        if manifest.state == "done":
            self.end(manifest.attempt, [file.path for file in manifest.files])
        _write(self._path(manifest.number), manifest)

    def settle(self, number: int, now_us: int, kept: Iterable[str] = ()) -> None:
        """After a kill: the table has the first `number` loads. Finish what it has, give up what it has not, but for
        files that are `kept`."""
        have = self.get(number)
        if have is not None and have.state == "written":
            self.advance(msgspec.structs.replace(have, state="done", done_us=now_us))
        begun = self.get(number + 1)
        if begun is not None:
            self.give_up(begun, kept)

    def give_up(self, begun: Manifest, kept: Iterable[str] = ()) -> None:
        """Nothing of a load that was begun is done: its files go, and its number is free. Those stay that are `kept`,
        because a table names them that does not decide about the load."""
        self.end(begun.attempt, kept)
        self._path(begun.number).unlink()

    def stop(self, attempt: str) -> None:
        """An attempt writes no more, and commits nothing."""
        self.marker(attempt).unlink(missing_ok=True)

    def end(self, attempt: str, kept: Iterable[str]) -> None:
        """An attempt writes no more, and its files go but for those of its load. Names alone say which: no two files
        have the same."""
        self.stop(attempt)
        names = {path.rpartition("/")[2] for path in kept}
        for path in self._place.rglob(f"{attempt}-*.parquet"):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.json"

    @property
    def _start(self) -> Path:
        return self.folder / "start.json"


def require_marker(marker: Path, place: Path) -> None:
    """TableUnusable if an attempt was given up by another run, which has taken its marker away."""
    if not marker.exists():
        raise TableUnusable(
            f"a load of {place} was given up by another run of this job before it was committed; wait until that has "
            "ended, then run this one again"
        )


def _read(path: Path, kind: type[_Note], hint: str) -> _Note | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise TableUnusable(f"{path} is no manifest ({error}); remove it: {hint}") from None


def _write(path: Path, note: Manifest | Beginning) -> None:
    part = path.with_suffix(".part")
    _DISK.write_new(part, [msgspec.json.format(msgspec.json.encode(note), indent=1)])
    _DISK.replace(part, path)
