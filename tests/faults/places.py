"""Where suites put their folders: in memory where only content matters, on disk where the disk is part of the test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_MEMORY = Path("/dev/shm")


@contextmanager
def temporary_folder(*, on_disk: bool = False, parent: Path | None = None) -> Iterator[Path]:
    """A folder for as long as the block lasts, under `parent` if given."""
    if parent is None and not on_disk and _MEMORY.is_dir():
        parent = _MEMORY
    with TemporaryDirectory(prefix="mainstem-", dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)
