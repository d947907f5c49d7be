"""Convoys: the small parcels of several producers of one hub travel as one batch.

What a batch costs on its way, in the hub, in the server and in its ledger, hardly depends on how many records it has:
a hundred producers with a record each now and then would keep a server busy with batches of one. So parcels of a few
records wait, while a convoy is on its way, for the next one. It numbers its batches itself, as a producer does, and
tells each of those who sent with it what became of its own.

There is one convoy on its way at a time, with at most one chunk for a stream. So nothing is behind a batch that fails,
and whoever was in it may send again in any way. A producer whose parcels are aboard sends nothing past them. If records
are refused for what they are, each goes again alone, so that one who sends what must not be harms nobody else.
"""

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from mainstem.core.batch import Batch
from mainstem.core.clock import Clock
from mainstem.core.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidPayload,
    InvalidRecord,
    InvalidSchema,
    MainstemError,
    RecordTooLarge,
    SchemaMismatch,
)
from mainstem.core.identity import RANDOMNESS
from mainstem.core.layouts import FEW
from mainstem.core.limits import APPEND_BATCHES_MAX, KIB, SHARDS_PER_STREAM_MAX
from mainstem.produce.chunk import Chunk, Parcel
from mainstem.produce.numbering import Numbering
from mainstem.transport.port import AppendResult, Port
from mainstem.transport.retry import Randomness

# What is larger is worth a batch of its own.
_PARCEL_BYTES_MAX: Final = 8 * KIB
# Of one stream in a convoy.
_BYTES_MAX: Final = 64 * KIB
# Records of one batch have one time, that of sending: only what was sent at about the same time travels together.
_MOMENT_US: Final = 20_000
# In a crowd convoys leave no sooner than this after each other: one costs the same with three riders and with twenty.
_CROWD: Final = 3
_PAUSE_SECONDS: Final = 0.006
_NOBODY: Final = 0


# What a server says of records themselves: of those of one rider, and nobody else should suffer for it.
_OF_RECORDS: Final = (InvalidPayload, InvalidRecord, InvalidSchema, RecordTooLarge, SchemaMismatch)


class _Rider(NamedTuple):
    parcel: Parcel
    answered: Callable[[Parcel], None]
    # Whether it takes nobody along, because it was refused in company.
    goes_alone: bool = False

    @property
    def chunk(self) -> Chunk:
        return self.parcel.chunks[0]


class _Carriage:
    """What goes to one stream: one chunk made of those of all riders."""

    def __init__(self, first: _Rider) -> None:
        self.riders = [first]
        self.chunk: Chunk | None = None
        # Places of its batches among those of the convoy.
        self.begin = self.end = 0
        self._size = first.parcel.size

    def takes(self, rider: _Rider) -> bool:
        """Whether the rider can go in the same batches; if so, it does."""
        first, other = self.riders[0].chunk, rider.chunk
        self._size += rider.parcel.size
        if (
            self._size > _BYTES_MAX
            or rider.goes_alone
            or self.riders[0].goes_alone
            or abs(other.created_us - first.created_us) > _MOMENT_US
            or other.stream.generation != first.stream.generation
            or other.rows is not first.rows
            or (other.keys is None) != (first.keys is None)
        ):
            return False
        self.riders.append(rider)
        return True

    def close(self) -> Chunk:
        """The records of all, in the order in which they came aboard."""
        chunks = [rider.chunk for rider in self.riders]
        first = chunks[0]
        created_us = max(chunk.created_us for chunk in chunks)
        self.chunk = whole = Chunk(first.stream, created_us, first.parcel, _NOBODY, first.rows)
        whole.values = [value for chunk in chunks for value in chunk.values[: chunk.count]]
        if first.keys is not None:
            whole.keys = [key for chunk in chunks for key in (chunk.keys or ())[: chunk.count]]
        whole.seal()
        return whole

    def arrive(self, shards: Sequence[int], results: Sequence[AppendResult]) -> list[_Rider]:
        """Say what became of the batches, to each rider what concerns its records; the riders of whom nothing was
        written because somebody's records were refused. A server does not say whose."""
        whole = self.chunk
        if whole is None or not shards:
            return []  # it could not be encoded, and all know
        errors: dict[int, MainstemError] = {}
        for shard, result in zip(shards, results, strict=True):
            if isinstance(result, MainstemError):
                errors[shard] = result
            else:
                whole.bases[shard] = result
        first = 0
        for rider in self.riders:
            rider.chunk.carry(whole, first, errors)
            first += rider.chunk.count
        refused = [] if len(self.riders) == 1 else [rider for rider in self.riders if _is_refused(rider.chunk)]
        for rider in refused:
            rider.chunk.error = None
        return refused

    def fail(self, error: MainstemError) -> None:
        for rider in self.riders:
            rider.chunk.error = error


class Convoy:
    """What the producers of one hub that have the same options send together. Any thread comes aboard; the rest is for
    the hub's."""

    def __init__(self, port: Port, clock: Clock, compression: str | None, randomness: Randomness = RANDOMNESS) -> None:
        self._port = port
        self._clock = clock
        self._compression = compression
        self._numbering = Numbering()
        self._members: weakref.WeakSet[object] = weakref.WeakSet()
        self._waiting: deque[_Rider] = deque()
        # Whether a departure is to come by itself; whether one is on its way.
        self._is_called = False
        self._is_away = False
        self._has_failed = False
        self._departed = 0.0
        # Records without a key go to one shard after the other, a convoy each.
        self._sticky = int(randomness.uniform(0, SHARDS_PER_STREAM_MAX))

    def join(self, member: object) -> None:
        self._members.add(member)

    def leave(self, member: object) -> None:
        self._members.discard(member)

    def suits(self, parcel: Parcel) -> bool:
        """Whether a sealed parcel is better off in a convoy: it is small and plain, and there is company."""
        if len(parcel.chunks) != 1 or parcel.size > _PARCEL_BYTES_MAX or len(self._members) < 2:
            return False
        return parcel.chunks[0].is_plain and parcel.chunks[0].count < FEW and self._port.write_share >= 1.0

    def board(self, parcel: Parcel, answered: Callable[[Parcel], None]) -> None:
        """Take it along; `answered` is called when its fate is known."""
        self._waiting.append(_Rider(parcel, answered))
        if not self._is_away and not self._is_called:
            self._is_called = True
            self._port.schedule(self._depart)

    def _depart(self) -> None:
        self._is_called = False
        if self._is_away or not self._waiting:
            return
        self._departed = self._clock.monotonic()
        # From now on whoever comes aboard is found when this one has arrived.
        self._is_away = True
        if self._has_failed:
            self._has_failed = False
            self._numbering.begin_epoch()
        self._sticky += 1
        carriages, late = self._fill()
        batches: list[Batch] = []
        for carriage in carriages:
            try:
                whole = carriage.close()
                # A server looks through a few plain records by itself, and goes to Arrow with what is compressed.
                encoded = whole.encode(self._sticky, None if whole.count < FEW else self._compression)
            except Exception as error:  # noqa: BLE001  # whatever it is, the others must not wait for ever
                carriage.fail(_told(error))
                encoded = []
            carriage.begin = len(batches)
            batches += [self._numbering.number(batch) for batch in encoded]
            carriage.end = len(batches)
        for rider in late:
            rider.chunk.error = DeadlineExceeded("not sent within its delivery_timeout")
            rider.answered(rider.parcel)
        shards = [batch.header.shard for batch in batches]

        def arrived(results: Sequence[AppendResult]) -> None:
            self._arrive(carriages, shards, results)

        if batches:
            deadline = min(rider.parcel.deadline for carriage in carriages for rider in carriage.riders)
            self._port.append(batches, max(0.0, deadline - self._clock.monotonic()), arrived)
        else:
            arrived(())

    def _fill(self) -> tuple[list[_Carriage], list[_Rider]]:
        """Who goes now, by stream, and those for whom it is too late. Who does not fit in waits for the next one, and
        so does everybody behind it that goes to the same stream."""
        now = self._clock.monotonic()
        carriages: dict[int, _Carriage] = {}
        full: set[int] = set()
        stay: list[_Rider] = []
        late: list[_Rider] = []
        shards = 0
        for _ in range(len(self._waiting)):
            rider = self._waiting.popleft()
            info = rider.chunk.stream
            if rider.parcel.deadline <= now:
                late.append(rider)
            elif info.id in full:
                stay.append(rider)
            elif (carriage := carriages.get(info.id)) is not None:
                if not carriage.takes(rider):
                    full.add(info.id)
                    stay.append(rider)
            elif shards + info.shards <= APPEND_BATCHES_MAX or not carriages:
                carriages[info.id] = _Carriage(rider)
                shards += info.shards
            else:
                full.add(info.id)
                stay.append(rider)
        self._waiting.extendleft(reversed(stay))
        return list(carriages.values()), late

    def _arrive(self, carriages: Sequence[_Carriage], shards: Sequence[int], results: Sequence[AppendResult]) -> None:
        self._has_failed = any(isinstance(result, MainstemError) for result in results)
        again: list[_Rider] = []
        for carriage in carriages:
            places = slice(carriage.begin, carriage.end)
            again += [rider._replace(goes_alone=True) for rider in carriage.arrive(shards[places], results[places])]
        self._waiting.extendleft(reversed(again))
        riders = [rider for carriage in carriages for rider in carriage.riders]
        waits_again = {id(rider.parcel) for rider in again}
        for rider in riders:
            if id(rider.parcel) not in waits_again:
                rider.answered(rider.parcel)
        try:
            self._port.check_usable()
        except MainstemError as error:
            # No turn will come any more.
            self._fail_all(error)
            return
        pause = self._departed + _PAUSE_SECONDS - self._clock.monotonic() if len(riders) >= _CROWD else 0.0
        self._is_called = True
        self._is_away = False
        self._port.schedule(self._depart, max(0.0, pause))

    def _fail_all(self, error: MainstemError) -> None:
        while self._waiting:
            rider = self._waiting.popleft()
            rider.chunk.error = error
            rider.answered(rider.parcel)


def _is_refused(chunk: Chunk) -> bool:
    return isinstance(chunk.error, _OF_RECORDS) and not chunk.bases


def _told(error: Exception) -> MainstemError:
    if isinstance(error, MainstemError):
        return error
    return InternalError(f"the records could not be encoded: {type(error).__name__}: {error}")
