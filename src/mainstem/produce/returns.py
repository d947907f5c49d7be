"""Returns: parcels that came back because a stream has more shards than they were made for.

The log refuses batches of an older generation, and with them whatever the producer had sent after them. Nothing of a
refused chunk is in the log: a chunk travels in one request, which is committed as a whole. So when everything in flight
has come to its end, what came back is split anew, over the shards of now, and sent under the next epoch, in the order
in which it was sent first.

A chunk of which a part was written all the same is never sent again: that part would be there twice, or the other would
be missing behind an acknowledgement. It has failed, and says so.
"""

import msgspec

from mainstem.core.errors import MainstemError, OutOfSequence, Refused, StaleGeneration, UnknownProducer
from mainstem.produce.chunk import Chunk, Parcel
from mainstem.transport.port import StreamInfo

# What the log says of a batch that was made for other shards, and of those that were sent after it.
_RETURNED = (StaleGeneration, OutOfSequence, UnknownProducer)


class Returns:
    """What came back since the producer's last epoch began. Called with the producer's lock held."""

    def __init__(self) -> None:
        self._parcels: list[Parcel] = []
        # Streams that have changed, with what the log said of them last.
        self._changed: dict[int, StaleGeneration] = {}

    def take(self, parcel: Parcel) -> bool:
        """Whether an answered parcel has to wait here: whether its errors are final is known when all are answered."""
        is_returned = False
        for chunk in parcel.chunks:
            error = chunk.error
            if error is not None:
                is_returned = is_returned or isinstance(error, _RETURNED)
                if isinstance(error, StaleGeneration) and error.shards:
                    self._changed[chunk.stream.id] = error
        if is_returned:
            self._parcels.append(parcel)
        return is_returned

    def sort_out(self) -> tuple[list[Parcel], list[Parcel]]:
        """Nothing is in flight: the parcels to ship again, in their order, and those whose errors are final."""
        parcels, self._parcels = sorted(self._parcels, key=lambda parcel: parcel.number), []
        again: list[Parcel] = []
        final: list[Parcel] = []
        for parcel in parcels:
            for chunk in parcel.chunks:
                if chunk.bases and isinstance(chunk.error, _RETURNED):
                    chunk.error = _torn(chunk, chunk.error)
            returned = [chunk for chunk in parcel.chunks if self._is_returned(chunk)]
            for chunk in returned:
                chunk.error = None
                chunk.stream = self._changed_stream(chunk.stream)
            (again if returned else final).append(parcel)
        self._changed.clear()
        return again, final

    def _is_returned(self, chunk: Chunk) -> bool:
        return isinstance(chunk.error, _RETURNED) and chunk.stream.id in self._changed

    def _changed_stream(self, stream: StreamInfo) -> StreamInfo:
        return changed(stream, self._changed[stream.id])


def _torn(chunk: Chunk, error: MainstemError) -> Refused:
    shards = ", ".join(map(str, sorted(chunk.bases)))
    return Refused(
        f"stream {chunk.stream.name!r}: of these records only those for shards {shards} were written: {error}"
    )


def changed(stream: StreamInfo, error: MainstemError | None) -> StreamInfo:
    """The stream with the shards that the log says it has."""
    if not isinstance(error, StaleGeneration) or error.generation <= stream.generation:
        return stream
    return msgspec.structs.replace(stream, shards=error.shards, generation=error.generation)
