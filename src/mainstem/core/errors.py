"""Every error a user can meet, under one root, with a stable code for the wire.

    MainstemError
    ├── InvalidRequest          what the caller asked for can never work as asked; do not retry
    │   ├── InvalidName, InvalidSetting, InvalidCursor, InvalidPayload, InvalidRecord, RecordTooLarge
    │   ├── UnknownStream, StreamExists, StreamDeleted
    │   ├── InvalidSchema (IncompatibleSchema), SchemaMismatch, InvalidPredicate
    │   ├── UnknownGroup
    │   └── ProtocolError
    ├── Refused                 the log keeps its promises by saying no
    │   ├── OutOfSequence, UnknownProducer, ProducerFenced
    │   ├── Fenced, GroupBusy, TransactionAborted (UnknownTransaction, WriterForgotten), DeliveryRefused
    │   ├── ReadOnly, FolderLocked, FolderUnusable (LedgerDamaged)
    │   ├── BackupUnusable
    │   ├── Unauthenticated, Forbidden, LeftOut
    │   └── MissingRequirement, TableUnusable
    ├── Retriable               the same call may succeed later
    │   ├── StaleGeneration, Busy, BufferFull, DiskFull, QuotaExceeded
    │   └── Unavailable         the other side cannot be reached or is stopping
    │       └── ConnectionLost, ServerStopping, DeadlineExceeded
    ├── DataLoss                a range of records is gone or damaged; says which, reading may go on after it
    ├── UndecodedRecords        a range of records are no rows of the schema; says which, reading may go on after it
    ├── Closed                  this hub, producer or consumer was closed by its owner
    ├── ForkedHub               a hub used in a child process made by fork
    └── InternalError           our bug, or a server newer than this client

The code ranges tell a client that does not know an error what to do: 1xx never retry, 2xx refused by the log's state,
3xx retry after a pause, 4xx data, 5xx our side.
"""

from typing import Any, ClassVar


class MainstemError(Exception):
    """The root. `retriable` says whether the same call may succeed later without a change by the caller."""

    code: ClassVar[int] = 500
    retriable: ClassVar[bool] = False


class InvalidRequest(MainstemError):
    """What was asked can never work as asked."""

    code = 100


class InvalidName(InvalidRequest):
    """A stream name that is not allowed."""

    code = 101


class InvalidSetting(InvalidRequest, ValueError):
    """A setting, option or argument with a value that is not allowed."""

    code = 102


class InvalidCursor(InvalidRequest):
    """A cursor that is malformed, or belongs to another stream or another life of the log."""

    code = 103


class InvalidPayload(InvalidRequest):
    """A batch whose bytes are not what their header says, or whose columns are not accepted."""

    code = 104


class InvalidRecord(InvalidRequest, TypeError):
    """A record whose key, value, headers or timestamp have a type that is not accepted."""

    code = 105


class RecordTooLarge(InvalidRequest):
    """A record or batch over its limit; the message names the limit."""

    code = 106


class UnknownStream(InvalidRequest):
    """No stream has this name; the message says how to create it."""

    code = 110


class StreamExists(InvalidRequest):
    """A stream of this name exists already."""

    code = 111


class StreamDeleted(InvalidRequest):
    """The stream was deleted while it was being written or read."""

    code = 112


class InvalidSchema(InvalidRequest):
    """A schema that cannot be one; the message names the field."""

    code = 113


class IncompatibleSchema(InvalidSchema):
    """A schema that readers or writers of the versions before it could not live with; the message names the field."""

    code = 114


class SchemaMismatch(InvalidRequest, TypeError):
    """A row that does not fit the schema of its stream. `path` is the field that does not."""

    code = 115

    def __init__(self, message: str = "", *, path: str = "") -> None:
        super().__init__(message)
        self.path = path

    def facts(self) -> dict[str, Any]:
        """What crosses the wire beside the message."""
        return {"path": self.path}


class InvalidPredicate(InvalidRequest, ValueError):
    """A WHERE expression that cannot be understood, has no meaning for these columns, or is over a limit."""

    code = 116


class UnknownGroup(InvalidRequest):
    """No group of readers has this name; it comes into being when its first member reads."""

    code = 117


class ProtocolError(InvalidRequest):
    """The peer sent something that is not the native protocol, or not a version this side speaks."""

    code = 120


class Refused(MainstemError):
    """The state of the log does not allow it."""

    code = 200


class OutOfSequence(Refused):
    """A batch whose sequence number is not the next one of its producer."""

    code = 201


class UnknownProducer(Refused):
    """A producer the log does not remember went on with a sequence above 0."""

    code = 202


class ProducerFenced(Refused):
    """A newer epoch of the same producer exists."""

    code = 203


class ReadOnly(Refused):
    """A write through a hub that only reads."""

    code = 205


class FolderLocked(Refused):
    """Another process writes this data folder."""

    code = 206


class FolderUnusable(Refused):
    """The data folder cannot be trusted or understood as it is; the message says what is wrong and what to do."""

    code = 207


class LedgerDamaged(FolderUnusable):
    """The ledger's files are not what was written. Starting again rebuilds them from the blocks."""

    code = 208


class BackupUnusable(Refused):
    """A backup that is damaged, of another log, or newer than what is to be saved; the message names the file."""

    code = 209


class Fenced(Refused):
    """Somebody else has taken over: another member of the group the shard, another hub the name of the writer, or
    another coordinator the group. What was asked has not happened."""

    code = 210


class GroupBusy(Refused):
    """The group has members; stop them first."""

    code = 211


class TransactionAborted(Refused):
    """The transaction was aborted, or its time was over. Nothing of it can be read; do its work again in a new one."""

    code = 212


class UnknownTransaction(TransactionAborted):
    """A transaction that is not open: the log was started again since, which aborts it, or not all of it arrived.
    Nothing of it can be read, unless it was committed so long ago that the log has forgotten it."""

    code = 213


class WriterForgotten(TransactionAborted):
    """The name of the transaction's writer was not used for so long that the log has forgotten it. Nothing of it can be
    read; do its work again in a new one, which takes the name anew."""

    code = 214


class DeliveryRefused(Refused):
    """A numbered write of a job that does not follow what the log has of this job: it came before with other rows, is
    older than what is remembered, or some before it are missing. Nothing was written; the message says what to do."""

    code = 215


class Unauthenticated(Refused):
    """Who asks is not known: no token, one that is not valid any more, or none of this log. The message says what to
    do; it never holds the token."""

    code = 220


class Forbidden(Refused):
    """Who asks is known and may not do this. The message names the rule that says so, or that none allows it."""

    code = 221


class LeftOut(Refused):
    """The record was left out: its writer is over a quota of which a share is kept, and it is not of that share."""

    code = 222


class MissingRequirement(Refused):
    """Something that Mainstem does not bring along is missing on this machine, or too old; the message says how to get
    it."""

    code = 230


class TableUnusable(Refused):
    """A table that a job cannot write as asked: it is another kind of table, another run writes it, or somebody else
    changed it meanwhile. The message says which, and what to do."""

    code = 240


class Retriable(MainstemError):
    """The same call may succeed later."""

    code = 300
    retriable = True


class StaleGeneration(Retriable):
    """The stream's shards changed. `generation` and `shards` are those of now, 0 if that was not said; a producer sends
    again by itself."""

    code = 303

    def __init__(self, message: str = "", *, generation: int = 0, shards: int = 0) -> None:
        super().__init__(message)
        self.generation, self.shards = generation, shards

    def facts(self) -> dict[str, Any]:
        """What crosses the wire beside the message."""
        return {"generation": self.generation, "shards": self.shards}


class Busy(Retriable):
    """More is waiting to be written than the limit allows."""

    code = 301


class BufferFull(Retriable):
    """The producer's buffer is full and the caller chose not to wait."""

    code = 302


class DiskFull(Retriable):
    """The disk under the log is full: nothing is appended until there is room again. Reading and trimming go on."""

    code = 304


class QuotaExceeded(Retriable):
    """What there is for one principal, or for all, is used up for now. `retry_after` is how many seconds until there is
    more."""

    code = 305

    def __init__(self, message: str = "", *, retry_after: float = 0.0, limit: int = 0) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        # Where it is of what can be held at one time, how much that is; it is not sent.
        self.limit = limit

    def facts(self) -> dict[str, Any]:
        """What crosses the wire beside the message."""
        return {"retry_after": self.retry_after}


class Unavailable(Retriable):
    """The other side cannot be reached now."""

    code = 310


class ConnectionLost(Unavailable):
    """The connection broke or could not be made."""

    code = 311


class ServerStopping(Unavailable):
    """The server is draining and will close."""

    code = 312


class DeadlineExceeded(Unavailable, TimeoutError):
    """The time allowed is over. For a send the outcome is unknown, not lost."""

    code = 313


class DataLoss(MainstemError):
    """Records `first` to `last` of one shard cannot be read. Raised once; the reader then stands after them.

    `reason` is "trimmed" or "damaged"; for damage `path` and `position` name the bytes.
    """

    code = 400

    def __init__(
        self,
        message: str = "",
        *,
        stream: str = "",
        shard: int = 0,
        first: int = 0,
        last: int = 0,
        reason: str = "trimmed",
        path: str = "",
        position: int = 0,
        detail: str = "",
    ) -> None:
        if not message:
            why = f"{reason}: {detail}" if detail else reason
            message = f"stream {stream!r} shard {shard}: records {first} to {last} are gone ({why}"
            message += f", {path} at byte {position})" if path else ")"
            message += "; reading goes on after them if you call the consumer again"
        super().__init__(message)
        self.stream, self.shard, self.first, self.last = stream, shard, first, last
        self.reason, self.path, self.position = reason, path, position

    def facts(self) -> dict[str, Any]:
        """What crosses the wire beside the message."""
        names = ("stream", "shard", "first", "last", "reason", "path", "position")
        return {name: getattr(self, name) for name in names}


class UndecodedRecords(MainstemError):
    """Records `first` to `last` of one shard are no rows of the stream's schema: clients sent them as bytes, or they
    are from before it had one. Raised once; the reader then stands after them. `path` is the first field that does not
    fit, empty if they are no JSON objects at all. In jobs with one row for each key, also a record without one.
    """

    code = 401

    def __init__(
        self,
        message: str = "",
        *,
        stream: str = "",
        shard: int = 0,
        first: int = 0,
        last: int = 0,
        path: str = "",
        reason: str = "",
    ) -> None:
        if not message:
            which = f"record {first} is no row" if first == last else f"records {first} to {last} are no rows"
            message = f"stream {stream!r} shard {shard}: {which} of its schema ("
            message += f"column {path!r}: {reason}" if path else reason
            message += "); reading goes on after it if you call the consumer again, or opens with on_bad='skip'"
        super().__init__(message)
        self.stream, self.shard, self.first, self.last = stream, shard, first, last
        self.path, self.reason = path, reason

    def facts(self) -> dict[str, Any]:
        """What crosses the wire beside the message."""
        return {name: getattr(self, name) for name in ("stream", "shard", "first", "last", "path", "reason")}


class Closed(MainstemError):
    """Used after its owner closed it."""

    code = 501


class ForkedHub(MainstemError):
    """Used in a child made by fork: open a hub of its own there."""

    code = 502


class InternalError(MainstemError):
    """Something that should not happen; please report it."""

    code = 599


def _by_code() -> dict[int, type[MainstemError]]:
    table: dict[int, type[MainstemError]] = {}
    waiting = [MainstemError]
    while waiting:
        kind = waiting.pop()
        assert kind.code not in table, f"two errors share code {kind.code}: {kind} and {table[kind.code]}"
        table[kind.code] = kind
        waiting.extend(kind.__subclasses__())
    return table


BY_CODE = _by_code()


def from_wire(code: int, message: str, facts: dict[str, Any] | None = None) -> MainstemError:
    """The error a peer sent. An unknown code keeps its meaning as far as its range tells."""
    kind = BY_CODE.get(code)
    if kind in (DataLoss, QuotaExceeded, SchemaMismatch, StaleGeneration, UndecodedRecords):
        return kind(message, **(facts or {}))
    if kind is None:
        kind = Retriable if 300 <= code < 400 else InternalError
    return kind(message)
