"""Writing parts into a folder that nobody serves: batches go into files, and whoever commits copies them into the log.

Only one process writes a log. So others that see its folder stage beside it (log/staging.py), and the one that commits
has the log for that moment.
"""

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from mainstem.core.batch import Batch
from mainstem.core.delivery import Delivery
from mainstem.core.errors import FolderLocked, InvalidSchema, MainstemError
from mainstem.core.limits import MIB, TRANSACTION_SECONDS_MAX
from mainstem.hub.embedded import FolderPort, LogPort
from mainstem.log import staging
from mainstem.log.batcher import Outcomes
from mainstem.log.contents import Contents, is_worth_statistics
from mainstem.log.folder import FolderLock
from mainstem.log.staging import StagedFile, StagingFile
from mainstem.produce import parts
from mainstem.transport.port import Answer, AppendDone
from mainstem.transport.sharing import CommitPartsCall, Staging

Held = TypeVar("Held")
# How long a folder is waited for: another job may commit to it just now.
_LOCK_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.02
# What is copied at a time.
_COPIED_BYTES: Final = 16 * MIB


class FolderStagingPort(FolderPort):
    """A folder that is read, and staged beside. `finish` or `abandon` the file; one part at a time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path
        self._file: StagingFile | None = None

    def begin(self, job: str, number: int, *, is_opened: bool = False) -> None:
        """What is staged from now on is of this delivery of a job: see StagingFile."""
        self._file = StagingFile(self._path, job, number, is_opened=is_opened)

    def finish(self) -> StagedFile:
        assert self._file is not None
        return self._file.finish()

    def abandon(self) -> None:
        assert self._file is not None
        self._file.abandon()

    def check_writable(self) -> None:
        return None

    def schedule(self, action: Callable[[], None], delay: float = 0.0) -> None:
        """Nothing is under way between two calls: what a producer would look after later, it need not."""

    def stage(self, staging: Staging, batches: Sequence[Batch], timeout: float, done: AppendDone) -> None:
        assert self._file is not None
        try:
            self._file.add([self._described(batch) for batch in batches])
        except OSError as error:
            failed = MainstemError(f"{self._path}: {error.strerror or error}")
            done([failed] * len(batches))
            return
        done([0] * len(batches))

    def _described(self, batch: Batch) -> Batch:
        """With statistics, as an embedded hub makes them: whoever commits only copies."""
        if is_worth_statistics(batch.header):
            row = self._ledger.load_stream(batch.header.stream)
            try:
                if row is not None:
                    return Contents.of(row, self._schemas.get).described(batch)
            except InvalidSchema:
                pass  # whoever commits is told
        return batch


def commit_files(path: Path, files: Sequence[StagedFile], delivery: Delivery | None = None) -> Answer:
    """Copy staged files into the log and make them visible together, in this order. See produce.parts.commit_parts."""
    port = _log(path)
    try:
        part = secrets.randbits(62) + 1
        batches = _copy(port, part, path, files)
        call = CommitPartsCall(secrets.randbits(62) + 1, ((part, batches),) if batches else (), delivery)
        return Answer() if not batches and delivery is None else port.call(call)
    finally:
        port.close()


def has_delivery(path: Path, stream: int, job: str, number: int) -> bool:
    """See produce.parts.has_delivery."""
    port = _log(path)
    try:
        return parts.has_delivery(port, stream, job, number)
    finally:
        port.close()


def check_free(path: Path) -> None:
    """FolderLocked if another process writes the folder, and does not only commit to it."""
    _patiently(path, lambda: FolderLock(path)).release()


def _log(path: Path) -> LogPort:
    return _patiently(path, lambda: LogPort(path))


def _patiently(path: Path, take: Callable[[], Held]) -> Held:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return take()
        except FolderLocked as error:
            if time.monotonic() >= deadline:
                raise FolderLocked(
                    f"{error}. Spark writes to a folder that no other process writes; where one does, let a server "
                    f"have it (mainstem serve --data {path}) and write through that: option hub=mainstem://host:7070"
                ) from None
        time.sleep(_LOOK_SECONDS)


def _copy(port: LogPort, part: int, path: Path, files: Sequence[StagedFile]) -> int:
    """Stage what is in files, as one part; how many batches that were."""
    copied = _Copying(port, part)
    for file in files:
        for batch in staging.read(path, file):
            copied.add(batch)
    return copied.finish()


class _Copying:
    """Batches on their way into the log, some MiB at a time and two such pieces at once."""

    def __init__(self, port: LogPort, part: int) -> None:
        self._port = port
        self._part = part
        self._batches: list[Batch] = []
        self._bytes = self._count = self._index = 0
        self._under_way: list[tuple[threading.Event, list[Outcomes | MainstemError]]] = []

    def add(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._bytes += len(batch.payload)
        self._count += 1
        if self._bytes >= _COPIED_BYTES:
            self._stage()

    def finish(self) -> int:
        if self._batches:
            self._stage()
        self._wait(0)
        return self._count

    def _stage(self) -> None:
        batches, self._batches, self._bytes = self._batches, [], 0
        event, results = threading.Event(), list[Outcomes | MainstemError]()
        self._port.log.stage(
            self._part,
            self._index,
            batches,
            partial(_note, event, results),
            timeout=TRANSACTION_SECONDS_MAX,
            patience=time.monotonic() + TRANSACTION_SECONDS_MAX,
        )
        self._index += 1
        self._under_way.append((event, results))
        self._wait(1)

    def _wait(self, left: int) -> None:
        while len(self._under_way) > left:
            event, results = self._under_way.pop(0)
            self._port.wait(event, None)
            if isinstance(results[0], MainstemError):
                raise results[0]


def _note(event: threading.Event, results: list[Outcomes | MainstemError], result: Outcomes | MainstemError) -> None:
    results.append(result)
    event.set()
