"""Streams that Mainstem writes itself, such as `_audit`: made when the first record comes."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mainstem.core import layouts, payload
from mainstem.core.batch import Batch, BatchHeader
from mainstem.core.checksum import crc32c
from mainstem.core.errors import StreamExists
from mainstem.core.identity import new_stream_uuid
from mainstem.log.batcher import Submission
from mainstem.log.flush import CreateStream, Rejected
from mainstem.log.log import Waiter

if TYPE_CHECKING:
    from mainstem.log.log import Log

_COMPRESSION: Final = "lz4"


class OwnStream:
    """One stream of one shard, without a schema. Any thread but those that commit."""

    def __init__(self, log: "Log", name: str, retention_us: int, retention_bytes: int) -> None:
        assert name.startswith("_"), "other names belong to users"
        self._log = log
        self._name = name
        self._retention_us = retention_us
        self._retention_bytes = retention_bytes

    def append(self, values: Sequence[bytes], keys: Sequence[bytes]) -> None:
        """Durable when this returns; raises what went wrong."""
        now_us = self._log.clock.now_us()
        encoded = payload.encode(layouts.build(list(values), list(keys)), _COMPRESSION)
        sizes = (encoded.raw_len, len(encoded.payload), crc32c(encoded.payload))
        header = BatchHeader(
            self._stream(), 0, len(values), encoded.encoding, encoded.layout, 0, *sizes, 0, 0, 0, 0, now_us, now_us
        )
        waiter = Waiter()
        self._log.batcher.submit(Submission((Batch(header, encoded.payload),), waiter.set))
        (outcome,) = waiter.wait(self._log.batcher)
        if isinstance(outcome, Rejected):
            raise outcome.error

    def _stream(self) -> int:
        row = self._log.ledger.stream_named(self._name)
        if row is None:
            with contextlib.suppress(StreamExists):
                now_us = self._log.clock.now_us()
                kept = (self._retention_us, now_us, self._retention_bytes)
                command = CreateStream(new_stream_uuid(), self._name, 1, "crc32", *kept)
                return self._log.execute(command).stream
            row = self._log.ledger.stream_named(self._name)
            assert row is not None
        return row.id
