"""What tests of jobs share: tables read back, runs that are cut short, and what is left of them."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from mainstem.core.checksum import crc32c
from mainstem.spark.jobs.manifest import Manifest

# Every step between which a run can be killed, in their order.
STEPS = ("settled", "planned", "prepared", "write", "wrote", "written", "committed", "done")


class CutShort(BaseException):
    """Ends a run at once, as a kill does: nothing on the way may catch it and tidy up."""


def cut_at(step: str, number: int = 1) -> Callable[[str, int, int], None]:
    """Ends a run when a step comes for the `number`-th time."""
    seen = 0

    def on_step(name: str, done: int, total: int) -> None:
        nonlocal seen
        if name == step:
            seen += 1
            if seen == number:
                raise CutShort(step)

    return on_step


def table_of(folder: Path) -> pa.Table:
    """Everything in a Delta table."""
    return pa.table(DeltaTable(str(folder)).to_pyarrow_table())


def check_files(loads: Iterable[Manifest], *folders: Path) -> None:
    """Every file that the manifests of these loads name is in one of the folders, with its rows, bytes and checksum."""
    files = [file for load in loads for file in load.files]
    assert files
    for file in files:
        (path,) = (folder / file.path for folder in folders if (folder / file.path).exists())
        content = path.read_bytes()
        rows = len(pq.read_table(pa.BufferReader(content)))
        assert (file.rows, file.bytes, file.crc32c) == (rows, len(content), crc32c(content)), path


def strays(folder: Path) -> list[str]:
    """Parquet files in a table's folder that the table knows nothing of, now or before; what is left of attempts."""
    known = {Path(uri).name for uri in DeltaTable(str(folder)).file_uris()}
    for entry in (folder / "_delta_log").glob("*.json"):
        known |= {path.name for path in folder.rglob("*.parquet") if path.name in entry.read_text()}
    left = [path.name for path in folder.rglob("*.parquet") if path.name not in known]
    return [*left, *(path.name for path in (folder / "_mainstem" / "attempts").glob("*"))]
