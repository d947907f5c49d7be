"""Admission: what a client sent is checked here, once, before it may reach the disk.

The client made the bytes and the server stores the same bytes, so everything a reader will rely on is proven now: the
checksum, the Arrow message, the number of records, the range of their times.
"""

from collections.abc import Callable

from mainstem.core import payload
from mainstem.core.batch import Batch, BatchHeader
from mainstem.core.checksum import crc32c
from mainstem.core.errors import InvalidPayload, InvalidRequest, MainstemError, StreamDeleted, UnknownStream
from mainstem.log.ledger.base import StreamRow


class Gateway:
    """Says no to batches that must not be stored. One thread. `stream_of` looks a stream up by id."""

    def __init__(self, stream_of: Callable[[int], StreamRow | None], record_bytes_max: int) -> None:
        self._stream_of = stream_of
        self._record_bytes_max = record_bytes_max
        self.unknown_streams = 0
        self.refused = 0

    def admit(self, header: BatchHeader, data: bytes, *, acknowledge: bool) -> Batch | MainstemError:
        """The batch, safe to store, or why not. What will be acknowledged may be repeated and so needs a number."""
        try:
            self._check_place(header)
            if (header.producer == 0) == acknowledge:
                raise InvalidRequest("a batch has a producer id and a sequence exactly if it is to be acknowledged")
            self._check_payload(header, data)
        except MainstemError as error:
            self.refused += 1
            return error
        return Batch(header, data)

    def _check_place(self, header: BatchHeader) -> None:
        row = self._stream_of(header.stream)
        if row is None:
            self.unknown_streams += 1
            raise UnknownStream(f"no stream has id {header.stream}; look it up by name again")
        if row.deleted_us:
            raise StreamDeleted(f"stream {row.name!r} was deleted")
        if header.shard >= row.shards:
            raise InvalidRequest(f"stream {row.name!r} has {row.shards} shards; there is no shard {header.shard}")
        if header.schema_id or header.transaction or header.statistics:
            raise InvalidRequest("schema_id, transaction and statistics are the server's to give")

    def _check_payload(self, header: BatchHeader, data: bytes) -> None:
        if crc32c(data) != header.payload_crc:
            raise InvalidPayload("the payload was changed on the way: its checksum does not match")
        times = payload.verify(
            header.encoding, header.layout, header.count, header.raw_len, data, self._record_bytes_max
        )
        times = times or (header.time_high, header.time_high)
        if times != (header.time_low, header.time_high):
            raise InvalidPayload(
                f"times are {times[0]} to {times[1]}, the header says {header.time_low} to {header.time_high}"
            )
