"""Files of batches that are to become visible later: written by processes that do not write the log, in its folder.

Layout: `staging/<job>/<number>/<part>`. A file is a run of batches, each as the length of its header u32, the length of
its payload u32, the header as msgpack, the payload; all as they will stand in a block. Whoever writes the log copies
them into it and deletes the files; until then they are nobody's, and what is old is deleted by whoever opens the log.

A file need not be durable: what it holds counts only once it is in a block, and a file that a power cut has shortened
is recognised by the length that its writer told, or by a checksum.
"""

import contextlib
import os
import shutil
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from mainstem.core.batch import Batch, BatchHeader
from mainstem.core.checksum import crc32c
from mainstem.core.errors import TransactionAborted

FOLDER: Final = "staging"
# What nobody has touched for so long was left behind: a job whose tasks last longer than this goes through a server.
STAGED_SECONDS_MAX: Final = 24 * 3600
_REMOVALS_MAX: Final = 10
_LENGTHS: Final = struct.Struct("<II")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(BatchHeader).decode


class StagedFile(NamedTuple):
    """A file that is complete: where it is inside the log's folder, how large, and of how many batches."""

    name: str
    bytes: int
    batches: int


def open_delivery(folder: Path, job: str, number: int) -> None:
    """Make a place for files whose writers say that there is one already: once it is discarded they come too late."""
    _place(folder, job, number).mkdir(parents=True, exist_ok=True)


class StagingFile:
    """A file being written. One thread. With `is_opened` its delivery was opened before, and TransactionAborted says
    that it is over."""

    def __init__(self, folder: Path, job: str, number: int, *, is_opened: bool = False) -> None:
        self._folder = folder
        path = _place(folder, job, number) / uuid.uuid4().hex
        self._name = str(path.relative_to(folder))
        if not is_opened:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._file = open(path, "xb", buffering=0)  # noqa: SIM115  # closed by `finish` or `abandon`
        except FileNotFoundError:
            raise TransactionAborted(
                f"delivery {number} of {job!r} was aborted, or has ended: what comes now is late, and was not kept"
            ) from None
        self._bytes = self._batches = 0

    def add(self, batches: list[Batch]) -> None:
        for batch in batches:
            header = _encode(batch.header)
            buffers = [_LENGTHS.pack(len(header), len(batch.payload)) + header, batch.payload]
            size = sum(map(len, buffers))
            if os.writev(self._file.fileno(), buffers) != size:
                raise OSError(f"{self._file.name} could not be written whole; is the disk full?")
            self._bytes += size
            self._batches += 1

    def finish(self) -> StagedFile:
        self._file.close()
        return StagedFile(self._name, self._bytes, self._batches)

    def abandon(self) -> None:
        self._file.close()
        discard(self._folder, StagedFile(self._name, 0, 0))


def read(folder: Path, staged: StagedFile) -> Iterator[Batch]:
    """The batches of a file, each checked; TransactionAborted if it is not what was written."""
    try:
        with open(folder / staged.name, "rb") as file:
            if os.fstat(file.fileno()).st_size != staged.bytes:
                raise ValueError("its length differs")
            for _ in range(staged.batches):
                header_len, payload_len = _LENGTHS.unpack(file.read(_LENGTHS.size))
                header = _decode(file.read(header_len))
                payload = file.read(payload_len)
                if len(payload) != header.stored_len or crc32c(payload) != header.payload_crc:
                    raise ValueError("a checksum differs")
                yield Batch(header, payload)
    except (OSError, ValueError, struct.error) as error:
        raise TransactionAborted(
            f"{folder / staged.name}, which a task has written, cannot be read ({error}); nothing was written to the "
            "stream. Run the job again"
        ) from error


def discard(folder: Path, staged: StagedFile) -> None:
    """Delete a file. Its folder stays for others of its delivery."""
    with contextlib.suppress(OSError):
        (folder / staged.name).unlink(missing_ok=True)


def discard_up_to(folder: Path, job: str, number: int) -> None:
    """Delete what is left of a job's deliveries up to this number."""
    home = _place(folder, job, number).parent
    for path in _listed(home):
        if path.name.isdigit() and int(path.name) <= number:
            _remove(path)
    with contextlib.suppress(OSError):
        home.rmdir()


def collect(folder: Path, now_us: int) -> None:
    """Delete what nobody has written to for too long."""
    before = now_us / 1_000_000 - STAGED_SECONDS_MAX
    for home in _listed(folder / FOLDER):
        for path in _listed(home):
            if all(_changed(each) < before for each in (path, *_listed(path))):
                shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            home.rmdir()


def _place(folder: Path, job: str, number: int) -> Path:
    return folder / FOLDER / _safe(job) / str(number)


def _remove(path: Path) -> None:
    """A folder and what is in it, also if a file comes while that is looked at: then there is one to look at again."""
    for _ in range(_REMOVALS_MAX):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return


def _listed(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _safe(job: str) -> str:
    """The name of a job as that of a folder: a UUID as it is, anything else by another one that follows from it."""
    return job if job.replace("-", "").isalnum() else uuid.uuid5(uuid.NAMESPACE_OID, job).hex
