"""Where Spark writes to: the parts of tasks, and what becomes of them.

Tasks stage what they write, so that nobody sees it; the driver commits what all of them have staged, in one step. Where
there is a server, parts are staged there (produce/parts.py). Where the destination is a folder that nobody serves, each
task writes a file beside the log, which the driver copies into it (hub/folder_staging.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from mainstem.core.delivery import Delivery
from mainstem.core.limits import MIB
from mainstem.hub import folder_staging
from mainstem.hub.folder_staging import FolderStagingPort, check_free, commit_files
from mainstem.log import staging
from mainstem.log.staging import StagedFile
from mainstem.produce.options import ProducerOptions
from mainstem.produce.parts import Part, PartWritten, abort_delivery, abort_parts, commit_parts, has_delivery
from mainstem.produce.producer import Headers
from mainstem.spark.origin import Access, opened
from mainstem.transport.port import Answer, GetStreamCall, Port, StreamInfo

# A task sends large batches, and some of them while it waits for none.
_OPTIONS: Final = ProducerOptions(batch_bytes=8 * MIB, buffer_bytes=48 * MIB)

Staged = PartWritten | StagedFile


class PartWriter(Protocol):
    """What one task writes. End it by `finish` or by `abort`."""

    def send_batch(self, stream: str, data: pa.Table, *, shard: int | None = None) -> None: ...

    def send_tombstone(
        self, stream: str, key: bytes, headers: Headers, time_us: int, *, shard: int | None = None
    ) -> None: ...

    def finish(self) -> Staged: ...

    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Destination:
    """A stream of a log. Can be pickled: it is the same for driver and tasks."""

    access: Access
    stream: str
    # Whether deliveries are opened before parts of them are begun.
    is_opened: bool = False

    def check_free(self) -> None:
        """FolderLocked if it is a folder that another process writes."""
        if self.access.data:
            check_free(Path(self.access.data))

    def look_up(self) -> StreamInfo:
        """The stream as it is now; UnknownStream if there is none."""
        return self._port().call(GetStreamCall(self.stream)).streams[0]

    def opened(self, job: str, number: int) -> "Destination":
        """The same for one delivery, to which nothing can be added once it is discarded for good."""
        if self.access.data:
            staging.open_delivery(Path(self.access.data), job, number)
        return replace(self, is_opened=True)

    def begin(self, job: str, number: int) -> PartWriter:
        """A part of a delivery."""
        if self.access.data:
            return _FilePart(Path(self.access.data), job, number, is_opened=self.is_opened)
        return Part(self._port(), job, number, options=_OPTIONS)

    def commit(self, staged: Sequence[Staged], delivery: Delivery | None) -> Answer:
        """Make parts visible together, in this order."""
        if self.access.data:
            return commit_files(
                Path(self.access.data), [each for each in staged if isinstance(each, StagedFile)], delivery
            )
        return commit_parts(self._port(), [each for each in staged if isinstance(each, PartWritten)], delivery)

    def has(self, job: str, number: int) -> bool:
        """Whether this delivery of a job was made, whatever it had."""
        stream = self.look_up().id
        if self.access.data:
            return folder_staging.has_delivery(Path(self.access.data), stream, job, number)
        return has_delivery(self._port(), stream, job, number)

    def discard(self, staged: Sequence[Staged]) -> None:
        """Let parts go that nobody commits, or that are committed. What is missed here ends by its age."""
        if self.access.data:
            for each in staged:
                if isinstance(each, StagedFile):
                    staging.discard(Path(self.access.data), each)
        else:
            abort_parts(self._port(), [each for each in staged if isinstance(each, PartWritten)])

    def discard_up_to(self, job: str, number: int, *, for_good: bool = False) -> None:
        """What tasks that were lost have left of a job's deliveries goes. `for_good`: nobody delivers them again."""
        if self.access.data:
            staging.discard_up_to(Path(self.access.data), job, number)
        else:
            abort_delivery(self._port(), self.stream, job, number, for_good=for_good)

    def _port(self) -> Port:
        return opened(self.access)


class _FilePart:
    """A part in a file of the log's folder."""

    def __init__(self, folder: Path, job: str, number: int, *, is_opened: bool) -> None:
        self._port = FolderStagingPort(folder)
        self._port.begin(job, number, is_opened=is_opened)
        self._part = Part(self._port, options=_OPTIONS)

    def send_batch(self, stream: str, data: pa.Table, *, shard: int | None = None) -> None:
        self._part.send_batch(stream, data, shard=shard)

    def send_tombstone(
        self, stream: str, key: bytes, headers: Headers, time_us: int, *, shard: int | None = None
    ) -> None:
        self._part.send_tombstone(stream, key, headers, time_us, shard=shard)

    def finish(self) -> StagedFile:
        try:
            self._part.finish()
            return self._port.finish()
        finally:
            self._port.close()

    def abort(self) -> None:
        self._port.abandon()
        self._port.close()
