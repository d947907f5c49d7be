"""Data folders as values: taken from disk once, put back as often as a suite wants to damage them."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mainstem.log.log import Log, LogOptions
from mainstem.testing.crash import LedgerFiles
from tests.faults.places import temporary_folder
from tests.faults.script import TINY, Script, State, play


@dataclass(frozen=True, slots=True)
class FolderImage:
    """Every file of a data folder, by its path in it."""

    files: dict[str, bytes]

    @classmethod
    def take(cls, folder: Path) -> "FolderImage":
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return cls({str(path.relative_to(folder)): path.read_bytes() for path in paths})

    def put(self, folder: Path) -> None:
        """Into an empty or absent folder."""
        for name in ("blocks", "snapshots"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)

    def with_file(self, name: str, content: bytes) -> "FolderImage":
        return FolderImage({**self.files, name: content})

    def without(self, *prefixes: str) -> "FolderImage":
        return FolderImage({name: content for name, content in self.files.items() if not name.startswith(prefixes)})

    def with_ledger(self, files: LedgerFiles) -> "FolderImage":
        contents = {"ledger.db": files.db, "ledger.db-wal": files.wal, "ledger.db-shm": files.shm}
        kept = self.without("ledger.db").files
        return FolderImage({**kept, **{name: content for name, content in contents.items() if content is not None}})

    @property
    def blocks(self) -> list[str]:
        return sorted(name for name in self.files if name.endswith(".block"))

    @property
    def snapshots(self) -> list[str]:
        return sorted(name for name in self.files if name.startswith("snapshots/"))


@dataclass(frozen=True, slots=True)
class Session:
    """A folder after a clean close, what it must hold, and the ledger's files after each step on the way."""

    image: FolderImage
    state: State
    ledgers: tuple[LedgerFiles, ...]


@lru_cache(maxsize=4)
def session(seed: int, steps: int, options: LogOptions = TINY) -> Session:
    """Play the script of a seed to its end, in two lives of the writer."""
    script = Script(seed, steps, others=True)
    state = State()
    ledgers: list[LedgerFiles] = []
    with temporary_folder() as folder:
        path = folder / "data"
        for part in (script.steps[: steps // 2], script.steps[steps // 2 :]):
            log = Log(path, options)
            play(log, part, state, lambda: ledgers.append(LedgerFiles.read(path)))
            log.close()
        return Session(FolderImage.take(path), state, tuple(ledgers))
