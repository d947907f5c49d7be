"""The table of results: one row per chunk, and what has been done for the code as it is now."""

import csv
import hashlib
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATH = ROOT / "docs" / "results" / "faults.csv"
# A change of any of these makes earlier results those of other code.
CODE = ("src/mainstem", "tests/faults", "tests/fuzz")


@dataclass(frozen=True, slots=True)
class Row:
    """One chunk of one suite."""

    commit: str
    date: str
    suite: str
    seed: int
    trials: int
    acknowledged: int
    lost: int
    duplicated: int
    findings: int
    worst_seconds: float
    seconds: float


COLUMNS = [field.name for field in fields(Row)]


class Results:
    """The table on disk. One process appends; a row that is there is never changed."""

    def __init__(self, path: Path = PATH) -> None:
        self._path = path

    def rows(self) -> list[Row]:
        if not self._path.exists():
            return []
        with self._path.open(newline="") as file:
            return [_row(values) for values in csv.DictReader(file)]

    def of(self, commit: str, suite: str) -> list[Row]:
        return [row for row in self.rows() if row.commit == commit and row.suite == suite]

    def append(self, row: Row) -> None:
        is_new = not self._path.exists()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(asdict(row))


def _row(values: dict[str, str]) -> Row:
    kinds = {field.name: field.type for field in fields(Row)}
    return Row(**{name: kinds[name](values[name]) for name in COLUMNS})  # type: ignore[operator]


def code_version() -> str:
    """The last commit that changed the code under test; with a digest behind it where files differ from that."""
    commit = _git("log", "-1", "--format=%h", "--", *CODE).strip()
    if not _git("status", "--porcelain", "--", *CODE).strip():
        return commit
    digest = hashlib.sha256()
    for path in _files():
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return f"{commit}+{digest.hexdigest()[:8]}"


def _files() -> Iterator[Path]:
    for folder in CODE:
        yield from sorted(path for path in (ROOT / folder).rglob("*.py"))


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=ROOT, check=True, capture_output=True, text=True).stdout
