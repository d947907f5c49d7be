"""What an examination of a data folder finds: what is wrong, how bad it is, where, and the one command to run next."""

import shlex
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path


class Severity(IntEnum):
    """How bad a finding is. Notes are normal; a warning will hurt; damage is bytes that are not what was written."""

    NOTE = 0
    WARNING = 1
    DAMAGE = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` never changes its meaning. `file` is a path in the data folder, `position` a byte of it."""

    severity: Severity
    code: str
    what: str
    command: str = ""
    file: str = ""
    position: int | None = None

    @property
    def where(self) -> str:
        return self.file if self.position is None else f"{self.file} at byte {self.position}"


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands that findings name, for one data folder."""

    folder: Path

    def serve(self) -> str:
        return f"mainstem serve --data {self._quoted()}"

    def rebuild(self) -> str:
        return f"mainstem doctor --rebuild --data {self._quoted()}"

    def look(self) -> str:
        return f"mainstem doctor --data {self._quoted()}"

    def deep(self) -> str:
        return f"mainstem doctor --deep --data {self._quoted()}"

    def restore(self) -> str:
        return f"mainstem restore BACKUP --data {self._quoted('.restored')}"

    def backup(self) -> str:
        return f"mainstem backup BACKUP --data {self._quoted()}"

    def salvage(self, file: str) -> str:
        block = shlex.quote(str(self.folder / file))
        return f"mainstem doctor --salvage {block} --output {shlex.quote(Path(file).stem + '.parquet')}"

    def remove(self, file: str) -> str:
        path = self.folder / file
        return f"{'rm -r' if path.is_dir() else 'rm'} {shlex.quote(str(path))}"

    def show(self, file: str) -> str:
        return f"ls -l {shlex.quote(str(self.folder / file))}"

    def move_away(self, file: str) -> str:
        return f"mv {shlex.quote(str(self.folder / file))} {shlex.quote(Path(file).name + '.foreign')}"

    def shorten(self, stream: str) -> str:
        return f"mainstem stream alter {shlex.quote(stream)} --retention DURATION --data {self._quoted()}"

    def _quoted(self, ending: str = "") -> str:
        return shlex.quote(str(self.folder) + ending)
