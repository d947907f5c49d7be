"""Admission: what a client sent is checked here, once, before it may reach the disk.

The client made the bytes and the server stores the same bytes, so everything a reader will rely on is proven now: the
checksum, the Arrow message, the number of records, the range of their times, the limits of a record. What is to be known
of a batch without reading it is found out here too, while it is open.
"""

from collections.abc import Callable

import pyarrow as pa

from mainstem.core import payload
from mainstem.core.batch import TIME_US_MAX, TIME_US_MIN, Batch, BatchHeader
from mainstem.core.checksum import crc32c
from mainstem.core.errors import InvalidPayload, InvalidRequest, MainstemError, StreamDeleted, UnknownStream
from mainstem.core.layouts import HAS_HEADERS, HAS_KEY
from mainstem.core.limits import KEY_BYTES_MAX
from mainstem.log.contents import Contents, SchemaOf, is_worth_statistics, no_schema
from mainstem.log.ledger.base import StreamRow
from mainstem.produce.admission import check_batches, check_keyed, has_keys


class Gateway:
    """Says no to batches that must not be stored. One thread. `stream_of` looks a stream up by id, `schema_of` a schema."""

    def __init__(
        self, stream_of: Callable[[int], StreamRow | None], record_bytes_max: int, schema_of: SchemaOf = no_schema
    ) -> None:
        self._stream_of = stream_of
        self._schema_of = schema_of
        self._record_bytes_max = record_bytes_max
        self.unknown_streams = 0
        self.refused = 0

    def admit(self, header: BatchHeader, data: bytes, *, acknowledge: bool) -> Batch | MainstemError:
        """The batch, safe to store, or why not. What will be acknowledged may be repeated and so needs a number."""
        try:
            row = self._check_place(header)
            if (header.producer == 0) == acknowledge:
                raise InvalidRequest("a batch has a producer id and a sequence exactly if it is to be acknowledged")
            batch = self._check_payload(row, header, data)
        except MainstemError as error:
            self.refused += 1
            return error
        if is_worth_statistics(header):
            header = Contents.of(row, self._schema_of).with_statistics(header, batch)
        return Batch(header, data)

    def _check_place(self, header: BatchHeader) -> StreamRow:
        row = self._stream_of(header.stream)
        if row is None:
            self.unknown_streams += 1
            raise UnknownStream(f"no stream has id {header.stream}; look it up by name again")
        if row.deleted_us:
            raise StreamDeleted(f"stream {row.name!r} was deleted")
        if header.shard >= row.shards:
            raise InvalidRequest(f"stream {row.name!r} has {row.shards} shards; there is no shard {header.shard}")
        if header.schema_id or header.transaction or header.statistics or header.span:
            raise InvalidRequest("schema_id, transaction, statistics and span are the server's to give")
        return row

    def _check_payload(self, row: StreamRow, header: BatchHeader, data: bytes) -> pa.RecordBatch | None:
        """The batch, safe to use; None of a small one that did not have to be opened."""
        if crc32c(data) != header.payload_crc:
            raise InvalidPayload("the payload was changed on the way: its checksum does not match")
        # In a payload that is not longer than the longest key no key is too long.
        has_long_key = header.layout & HAS_KEY and header.raw_len > KEY_BYTES_MAX
        if header.layout & HAS_HEADERS or has_long_key or row.compacts:
            batch = self._check_records(row, header, data)
            times = payload.time_range(batch)
        elif is_worth_statistics(header):
            batch = self._opened(header, data)
            times = payload.time_range(batch)
        else:
            batch = None
            times = payload.verify(
                header.encoding, header.layout, header.count, header.raw_len, data, self._record_bytes_max
            )
        times = times or (header.time_high, header.time_high)
        if header.time_low < TIME_US_MIN or header.time_high > TIME_US_MAX:
            raise InvalidPayload(
                f"times are {header.time_low} to {header.time_high} microseconds since 1970; a time is in the years 1 "
                "to 9999"
            )
        if times != (header.time_low, header.time_high):
            raise InvalidPayload(
                f"times are {times[0]} to {times[1]}, the header says {header.time_low} to {header.time_high}"
            )
        return batch

    def _check_records(self, row: StreamRow, header: BatchHeader, data: bytes) -> pa.RecordBatch:
        """Check keys and headers too, by whole columns."""
        batch = self._opened(header, data)
        check_batches(row.name, (batch,))
        check_keyed(row.name, row.cleanup, has_keys(batch))
        return batch

    def _opened(self, header: BatchHeader, data: bytes) -> pa.RecordBatch:
        return payload.check(header.encoding, header.layout, header.count, header.raw_len, data, self._record_bytes_max)
