"""Writing together: several processes write parts, one of them makes all parts visible at once.

A part is staged like a transaction of its own: durable, numbered by nobody, seen by nobody. What is handed from whoever
wrote it to whoever commits is two numbers. A part that nobody commits ends by its time.
"""

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from mainstem.core.delivery import Delivery, Fingerprint
from mainstem.core.errors import MainstemError, Refused, TransactionAborted, UnknownTransaction
from mainstem.core.limits import TRANSACTION_SECONDS_MAX
from mainstem.produce.options import ProducerOptions
from mainstem.produce.producer import Headers, Producer
from mainstem.produce.transaction import ABORT_SECONDS, StagingPort, quietly
from mainstem.transport.port import Answer, Port
from mainstem.transport.sharing import AbortDeliveryCall, AbortTransactionCall, CommitPartsCall, Staging


class PartWritten(NamedTuple):
    """A part that is durable: its id, and of how many batches it is."""

    id: int
    batches: int


class Part:
    """Tables on their way into one part, for the delivery `number` of a `job`. One thread. End it by `finish` or by
    `abort`; it ends by itself `seconds` after its first records were written."""

    def __init__(
        self,
        port: Port,
        job: str = "",
        number: int = 0,
        *,
        options: ProducerOptions | None = None,
        seconds: float = TRANSACTION_SECONDS_MAX,
    ) -> None:
        self.id = _drawn()
        self._port = port
        self._staging = StagingPort(port, holds=False)
        # They begin with what is staged first: the rows before it may take long to come.
        self._staging.begin(Staging(self.id, 0, seconds, job=job, number=number), lambda: seconds)
        self._producer = Producer(self._staging, options or ProducerOptions())

    def send_batch(self, stream: str, data: Any, *, shard: int | None = None) -> None:
        """Add a table: see Producer.send_batch."""
        self._producer.send_batch(stream, data, shard=shard)

    def send_tombstone(
        self, stream: str, key: bytes, headers: Headers, time_us: int, *, shard: int | None = None
    ) -> None:
        """Add a tombstone, after what was added before: see Producer.send."""
        self._producer.send(stream, None, key=key, headers=headers, timestamp=time_us, shard=shard)

    def finish(self) -> PartWritten:
        """Wait until all of it is durable; raises what went wrong."""
        self._producer.close()
        return PartWritten(self.id, self._staging.batches)

    def abort(self) -> None:
        """Let go of what was written, as far as that can be said to the log."""
        quietly(lambda: self._producer.abandon(0.0))
        abort_parts(self._port, [PartWritten(self.id, self._staging.batches)])


def commit_parts(port: Port, parts: Sequence[PartWritten], delivery: Delivery | None = None) -> Answer:
    """Make parts visible together, in this order. The answer says where their records stand, or that this delivery was
    made before: then these parts are let go. Refused, nothing has happened."""
    written = tuple((part.id, part.batches) for part in parts if part.batches)
    if not written and delivery is None:
        return Answer()
    return port.call(CommitPartsCall(_drawn(), written, delivery))


def has_delivery(port: Port, stream: int, job: str, number: int) -> bool:
    """Whether the log has this delivery of a job to a stream, whatever came with it. It is asked to commit it with a
    part that nobody has written: either it says that it has made this delivery, or nothing happens."""
    delivery = Delivery(stream, job, number, Fingerprint(0, b""), accept=True)
    try:
        return port.call(CommitPartsCall(_drawn(), ((_drawn(), 1),), delivery)).repeated
    except (UnknownTransaction, TransactionAborted):
        return False


def _drawn() -> int:
    return secrets.randbits(62) + 1


def abort_parts(port: Port, parts: Sequence[PartWritten]) -> None:
    """Let parts go that nobody will commit; what cannot be told to the log ends by its time. A log that is away is
    waited for once, however many parts there are."""
    for part in parts:
        if part.batches:
            try:
                port.call(AbortTransactionCall(part.id), ABORT_SECONDS)
            except Refused:
                # This one is being committed.
                continue
            except MainstemError:
                return


def abort_delivery(port: Port, stream: str, job: str, number: int, *, for_good: bool = False) -> None:
    """Let all parts go that were written to a stream for a job's deliveries up to this number, also by those who cannot
    say so any more. With `for_good` none of them can be written again. What cannot be told to the log ends by its
    time."""
    quietly(lambda: port.call(AbortDeliveryCall(stream, job, number, for_good)))
