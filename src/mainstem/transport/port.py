"""What producers, consumers and administration need of a log, wherever it is.

The embedded hub keeps this interface with the log in its own process, the remote hub over a connection; the client
libraries know nothing else.
"""

import re
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from mainstem.core.batch import U32, U63, Batch, FetchedBatch, TimeUs
from mainstem.core.errors import InvalidRequest, InvalidSetting, MainstemError
from mainstem.core.histogram import Distribution
from mainstem.core.kinds import render_duration
from mainstem.core.limits import MESSAGE_HEADER_BYTES_MAX
from mainstem.core.markup import cut, table
from mainstem.core.schema import Schema
from mainstem.transport.counting import CountingCall
from mainstem.transport.guarding import AccessCall, Explanation, Quota, Rule, TokenInfo
from mainstem.transport.sharing import (
    AbortDeliveryCall,
    AbortTransactionCall,
    BeatGroupCall,
    CommitCursorsCall,
    CommitPartsCall,
    Committed,
    CommitTransactionCall,
    DeleteGroupCall,
    GetGroupCall,
    GroupInfo,
    HoldGroupCall,
    JoinGroupCall,
    LeaseGroupCall,
    Leases,
    LeaveGroupCall,
    ListGroupsCall,
    Membership,
    OpenWriterCall,
    ResetGroupCall,
    Staging,
)

# A schema as it is stored and sent; `bytes` is the name of a field below.
Serialized = bytes


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream as users see it. `starts` and `ends` have one offset per shard: `start` to `end - 1` are there.

    `bytes` are those of records that can be read. `waiting_bytes` are still on disk though nobody can read them:
    trimmed, compacted away, erased, or copied elsewhere; `gone_by_us` is when the last of them will be off the disk,
    0 if there are none. `restored` has, for the newest epochs that a restore from a backup ended, where the shards
    ended in that backup; a list of streams leaves it out. `oldest_us` is about when the first record that can be read
    was written, as far as that was asked and is known, else 0.

    `schema` is the newest version of its schema; a stream without one has none, and a list leaves it out.
    `key` and `index` name columns of it; `compatibility` says what its next version must keep to. `generations` has,
    for each change of the number of shards, how many there are since, and where those that were there before ended; a
    list leaves it out. `statistics_bytes` are those of `bytes` by which readers know what they need not read, as far as
    that was asked. `missing` says of each shard how many offsets have no record, because it was compacted away or
    erased; empty if none is missing, and not counted for a stream that was only looked up, as producers and consumers
    do. `verified_through_us` is up to when the newest audits found every record where it belongs, in the tier that is
    verified least far, None if there was none or it was not asked for, and `windows_differing` how many windows after
    that are not as they should be.
    """

    id: int
    uuid: str
    name: str
    shards: int
    hash: str
    generation: int
    retention_us: int
    created_us: int
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    bytes: int
    epoch: int
    retention_bytes: int = 0
    cleanup: str = "delete"
    tombstone_us: int = 0
    waiting_bytes: int = 0
    gone_by_us: int = 0
    restored: tuple[tuple[int, tuple[int, ...]], ...] = ()
    oldest_us: int = 0
    schema_id: int = 0
    schema_bytes: Serialized = msgspec.field(default=b"", name="schema")
    schema_version: int = 0
    key: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    compatibility: str = "backward"
    generations: tuple[tuple[int, tuple[int, ...]], ...] = ()
    statistics_bytes: int = 0
    missing: tuple[int, ...] = ()
    verified_through_us: int | None = None
    windows_differing: int = 0

    @property
    def schema(self) -> Schema | None:
        """The newest version of its schema; its `arrow` is a pyarrow.Schema."""
        return Schema.parse(self.schema_bytes) if self.schema_bytes else None

    @property
    def records(self) -> int:
        """How many records can be read now."""
        return sum(self.shard_records)

    @property
    def shard_records(self) -> tuple[int, ...]:
        """The same of each shard."""
        missing = self.missing or (0,) * self.shards
        return tuple(
            max(0, end - start - gone) for start, end, gone in zip(self.starts, self.ends, missing, strict=True)
        )

    def __repr__(self) -> str:
        shards = "1 shard" if self.shards == 1 else f"{self.shards} shards"
        schema = f", schema version {self.schema_version}" if self.schema_id else ""
        return f"<StreamInfo {self.name}: {shards}, {self.records} records, {self.bytes:,} bytes{schema}>"

    def _repr_html_(self) -> str:
        schema = self.schema.names if self.schema else []
        facts = {
            "shards": self.shards,
            "records": self.records,
            "bytes": f"{self.bytes:,}",
            "columns": ", ".join(schema) or ("known" if self.schema_id else "key, value, headers, timestamp"),
            "key": ", ".join(self.key),
            "index": ", ".join(self.index),
            "cleanup": self.cleanup,
            "retention": render_duration(self.retention_us / 1_000_000) if self.retention_us else "no limit",
        }
        return table(f"stream {self.name}", ["", ""], [(name, cut(fact)) for name, fact in facts.items()])


# Administration: a request and its answer, the same over the wire and in process.


class CreateStreamCall(msgspec.Struct, frozen=True, tag="create"):
    """`uuid` is chosen by the caller, so that a repeated call is recognised as its own."""

    name: str
    shards: int = 1
    hash: str = "crc32"
    retention_us: int | None = None
    exist_ok: bool = False
    uuid: str = ""
    retention_bytes: int = 0
    cleanup: str = "delete"
    tombstone_us: int | None = None
    schema: bytes = b""
    key: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    compatibility: str = "backward"


class GetStreamCall(msgspec.Struct, frozen=True, tag="get"):
    """Answered with the stream; `auto_create` makes a missing one where the server's settings allow it. With `details`
    also what waits to be freed, which is looked up in the ledger, and up to when the stream was verified."""

    name: str
    auto_create: bool = False
    details: bool = False


class ListStreamsCall(msgspec.Struct, frozen=True, tag="list"):
    """Answered with the streams whose id is above `after`, in the order of their ids, as many as fit; `more` says
    whether others follow. `oldest` asks for the times of their first records too."""

    after: int = 0
    oldest: bool = False


class AlterStreamCall(msgspec.Struct, frozen=True, tag="alter"):
    """What is None stays as it is."""

    name: str
    retention_us: int | None = None
    retention_bytes: int | None = None
    cleanup: str | None = None
    tombstone_us: int | None = None
    shards: int | None = None


class SetSchemaCall(msgspec.Struct, frozen=True, tag="set_schema"):
    """The next version of a stream's schema, or its first, checked against those before it as `compatibility` says:
    None stands for what the stream has. Answered with the stream. With `dry_run` nothing is changed, and only its key
    and index are as they would be. The version that is the newest already stays the newest."""

    name: str
    schema: bytes
    compatibility: str | None = None
    dry_run: bool = False


class SchemasCall(msgspec.Struct, frozen=True, tag="schemas"):
    """Answered with the versions of a stream's schema above `after`, the oldest first, as many as fit; `more` says
    whether others follow."""

    name: str
    after: int = 0


class SchemaCall(msgspec.Struct, frozen=True, tag="schema"):
    """Answered with the schema of this id."""

    id: U63


class DeleteStreamCall(msgspec.Struct, frozen=True, tag="delete"):
    name: str


class TrimStreamCall(msgspec.Struct, frozen=True, tag="trim"):
    """Let go of what is older than `before_us`, or stands below `offset` in one shard or in every. Answered with the
    stream as it is afterwards."""

    name: str
    before_us: int | None = None
    offset: int | None = None
    shard: int | None = None


class EraseKeyCall(msgspec.Struct, frozen=True, tag="erase"):
    """Take away every record of one key that is there now. Answered with how many there were and when their bytes are
    off the disk."""

    name: str
    key: bytes


class ColdTask(msgspec.Struct, frozen=True):
    """Entries of a shard, `rows` of them for offsets `base` to `end - 1`, that may become cold files. These get numbers
    from `block` on. What has less than `bytes_min` as stored makes none."""

    stream: U63
    shard: U32
    base: U63
    end: U63
    rows: U63
    bytes: U63
    block: U63
    bytes_min: U63


class ColdPlan(msgspec.Struct, frozen=True):
    """Tasks for the log `log` in the folder `folder`, and what its files say of who has planned them."""

    folder: str
    log: str
    epoch: U32
    writer_epoch: U32
    flush: U63
    tasks: tuple[ColdTask, ...]


class ColdFile(msgspec.Struct, frozen=True):
    """A cold file that was written: which entries it was made of, how large it is, and the word in its name that tells
    it from others of its number."""

    stream: U63
    shard: U32
    base: U63
    end: U63
    rows: U63
    fingerprint: U32
    block: U63
    bytes: U63
    records: U63
    part: str


class PlanColdCall(msgspec.Struct, frozen=True, tag="plan_cold"):
    """Answered with what there is to do so that the records of a stream that are older than `before_us` are in cold
    files; `bytes_min`, as stored, are not worth one. Whoever asks sees the log's folder."""

    name: str
    before_us: TimeUs
    bytes_min: U63 | None = None


class CoolCall(msgspec.Struct, frozen=True, tag="cool"):
    """A cold file that was planned is there: swap the entries that it was made of. `abandon`: take away what was
    written for a task, if it is not swapped in; its `block` says which."""

    name: str
    file: ColdFile | None = None
    abandon: U63 = 0


class OffsetsAtTimeCall(msgspec.Struct, frozen=True, tag="offsets_at_time"):
    """Answered with one offset per shard: the first record of that time or later, else the end."""

    name: str
    time_us: int


class MomentCall(msgspec.Struct, frozen=True, tag="moment"):
    """Answered with where the shards of a stream stood at the last moment that was noted up to a time: one offset per
    shard, none if no moment was. `settle`: note one now, if the stream has grown and the last is not of this
    instant."""

    name: str
    time_us: TimeUs
    settle: bool = False


class RunsCall(msgspec.Struct, frozen=True, tag="runs"):
    """Answered with what is stored of a shard from `first` to before `end`, as runs of about `run_bytes` at most, those
    left out of which the ledger knows that no record matches `where`; and with the log's folder, a word that is found
    there and its last flush, so that who sees that folder can read it himself. `offsets` says up to where was looked,
    `more` whether that is before `end`. DataLoss if what stands at `first` was trimmed. If `first` is `end`, the answer
    is one run without records, which tells how late the records of the shard were so far."""

    name: str
    shard: U32
    first: U63
    end: U63
    run_bytes: U63 = 0
    where: str = ""


class StatisticsCall(msgspec.Struct, frozen=True, tag="statistics"):
    """Answered with the server's counters and histograms."""


class ConnectionsCall(msgspec.Struct, frozen=True, tag="connections"):
    """Answered with the connections whose id is above `after`, in the order of their ids, as many as fit; `more` says
    whether others follow. Only to be asked of a server whose counters have `started_us`: an older one does not know
    this call and ends the connection."""

    after: int = 0


class SchemaInfo(msgspec.Struct, frozen=True):
    """A schema, and which version of a stream's it is since when; 0 where none was asked about."""

    id: int
    schema_bytes: bytes = msgspec.field(name="schema")
    version: int = 0
    created_us: int = 0

    @property
    def schema(self) -> Schema:
        """The schema; its `arrow` is a pyarrow.Schema."""
        return Schema.parse(self.schema_bytes)

    def __repr__(self) -> str:
        return f"<SchemaInfo version {self.version}: {self.schema!r}>"

    def _repr_html_(self) -> str:
        return f"<p>version {self.version}</p>{self.schema._repr_html_()}"


class ConnectionInfo(msgspec.Struct, frozen=True):
    """A client as the server sees it. `client` is what it calls itself, which may be anything; its appends are counted
    since it connected.

    `behind` says of the subscription that is furthest behind how many records it has still to get, of the stream
    `behind_stream`. `stalled_us` says for how long a subscription has had records to get and could not be sent any,
    because the client takes none. `waiting` says that its appends wait for the log.
    """

    id: int
    client: str
    address: str
    connected_us: int
    appends: int
    append_bytes: int
    subscriptions: int
    behind: int
    behind_stream: str
    stalled_us: int
    waiting: bool


Call = (
    CreateStreamCall
    | GetStreamCall
    | ListStreamsCall
    | AlterStreamCall
    | SetSchemaCall
    | SchemasCall
    | SchemaCall
    | DeleteStreamCall
    | TrimStreamCall
    | EraseKeyCall
    | PlanColdCall
    | CoolCall
    | OffsetsAtTimeCall
    | MomentCall
    | RunsCall
    | StatisticsCall
    | ConnectionsCall
    | JoinGroupCall
    | BeatGroupCall
    | LeaseGroupCall
    | LeaveGroupCall
    | CommitCursorsCall
    | ListGroupsCall
    | GetGroupCall
    | ResetGroupCall
    | DeleteGroupCall
    | HoldGroupCall
    | CommitTransactionCall
    | CommitPartsCall
    | AbortTransactionCall
    | AbortDeliveryCall
    | OpenWriterCall
    | AccessCall
    | CountingCall
)
# What a member asks for. Answered when there is something to say, not when it was carried out.
MembershipCall = JoinGroupCall | BeatGroupCall | LeaseGroupCall | LeaveGroupCall
# What is answered by the flush that it becomes a part of.
CommitCall = CommitCursorsCall | CommitTransactionCall | CommitPartsCall


_encode_call = msgspec.msgpack.Encoder().encode
_decode_call = msgspec.msgpack.Decoder(Call).decode


def checked(call: Call) -> Call:
    """The call, or InvalidSetting if a field is not of its type: the caller is told, before the wire or the log."""
    try:
        encoded = _encode_call(call)
        decoded: Call = _decode_call(encoded)
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidSetting(_in_words(call, str(error))) from None
    if len(encoded) > MESSAGE_HEADER_BYTES_MAX:
        raise InvalidRequest(f"a call of {len(encoded)} bytes; at most {MESSAGE_HEADER_BYTES_MAX} are allowed")
    return decoded


def _in_words(call: Call, error: str) -> str:
    """The codec's "Expected `str`, got `null` - at `$.name`" in the words of the caller."""
    field = re.search(r"`\$\.(\w+)`", error)
    if field is None:
        return error
    given = getattr(call, field[1], None)
    expected = re.search(r"Expected `([^`]+)`", error)
    kind = _KINDS.get(expected[1], expected[1]) if expected else "something else"
    return f"{field[1]} must be {kind}, not {given!r}"[:_WORDS_MAX]


_KINDS: Final = {"str": "text", "int": "a whole number", "bool": "True or False"}
_WORDS_MAX: Final = 200


class Erasure(msgspec.Struct, frozen=True):
    """What an erasure did: how many records are gone for every reader, and when their last bytes are off the disk."""

    records: int
    gone_by_us: int


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Records of a shard that stand next to each other: offsets `first` to before `end`, so many `records` in so many
    `bytes` of blocks, none of them later than `time_high_us`."""

    first: int
    end: int
    records: int
    bytes: int
    time_high_us: int


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call returns; only the fields of its kind are set."""

    streams: tuple[StreamInfo, ...] = ()
    offsets: tuple[int, ...] = ()
    counters: dict[str, int] = {}
    more: bool = False
    erased: "Erasure | None" = None
    histograms: dict[str, Distribution] = {}
    connections: tuple[ConnectionInfo, ...] = ()
    server: str = ""
    schemas: tuple[SchemaInfo, ...] = ()
    membership: Membership | None = None
    groups: tuple[GroupInfo, ...] = ()
    committed: tuple[Committed, ...] = ()
    writer_epoch: int = 0
    leases: Leases | None = None
    tokens: tuple[TokenInfo, ...] = ()
    rules: tuple[Rule, ...] = ()
    quotas: tuple[Quota, ...] = ()
    explanation: Explanation | None = None
    # Whether this call has made the stream.
    created: bool = False
    # Whether what this call asks for had been done before.
    repeated: bool = False
    runs: tuple[Run, ...] = ()
    # Of the log: where it is on its machine, the word of who writes it, and the number of the last flush applied.
    folder: str = ""
    word: str = ""
    flush: int = 0
    cold: ColdPlan | None = None


# Told what came of a call, from any thread; it must not block.
Answered = Callable[[Answer | MainstemError], None]

AppendResult = int | MainstemError
AppendDone = Callable[[Sequence[AppendResult]], None]


class Query(msgspec.Struct, frozen=True):
    """What a reader wants of a stream: the rows for which `where` is true, all if it is empty; these columns, all if
    that is None; as rows of this schema, 0 for records without one. It is `whole` if nothing of that may be left out: a
    quota that keeps a share slows its reader down instead."""

    where: str = ""
    columns: tuple[str, ...] | None = None
    schema_id: int = 0
    whole: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it wants everything."""
        return not self.where and self.columns is None

    @property
    def is_as_stored(self) -> bool:
        """Whether it wants everything, in the form in which it is stored."""
        return self.is_plain and not self.schema_id


class ReadCounts(msgspec.Struct):
    """How many batches were opened for a query, how many were passed over because no row of theirs could match, and how
    many records were no rows of the schema and so could not match."""

    opened: int = 0
    skipped: int = 0
    undecoded: int = 0

    def add(self, opened: int, skipped: int, undecoded: int) -> None:
        self.opened += opened
        self.skipped += skipped
        self.undecoded += undecoded


class Subscription(Protocol):
    """Batches of one stream on their way to one reader, in order within each shard. One thread at a time."""

    counts: ReadCounts

    def next(self, timeout: float | None) -> FetchedBatch | None:
        """The next batch; None when `timeout` seconds passed without one. Raises DataLoss once per lost range, then
        goes on after it; EndReached when all shards stand at their `ends`; EpochChanged, from then on, when the
        log has another epoch than `stream` said."""
        ...

    def next_nowait(self) -> FetchedBatch | None:
        """The same for a reader that must not wait: WouldWait if the disk has to be asked first."""
        ...

    def call_when_ready(self, call: Callable[[], None]) -> None:
        """Call once, from any thread, when there may be something to take; at once if there is. It must not block. Who
        is called takes first and asks again: only the last call that was asked for comes."""
        ...

    def watermark(self) -> int:
        """Of an ordered subscription, the time before which nothing will come after what `next` gave last; 0 if none is
        known."""
        ...

    def close(self) -> None: ...


class WouldWait(Exception):
    """Whoever asked must not wait: let another thread do the `work`, then ask again. What `next_nowait` says is
    outstanding is begun once, however often it is said."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__("this has to wait")
        self.work = work


class EpochChanged(Exception):
    """The log was restored from a backup under this subscription: the reader looks its position up anew."""


class EndReached(Exception):
    """Every shard of a bounded subscription has been delivered."""


class Port(Protocol):
    """A log, near or far. Any thread. Records over `record_bytes_max` are refused before they are handed over."""

    @property
    def record_bytes_max(self) -> int: ...

    # Whether the values in every batch are looked at by the other side before it takes them.
    checks_values: bool

    @property
    def write_share(self) -> float:
        """Which share of the records that are written should be kept: below 1 while a quota is exceeded."""
        ...

    def call(self, call: Call, timeout: float | None = None) -> Answer:
        """Administration; raises what went wrong, after at most `timeout` seconds where the log is far."""
        ...

    def ask(self, call: Call, timeout: float, done: Answered) -> None:
        """The same for who does not wait. It is asked once: what can be tried again is up to the caller."""
        ...

    def schema(self, schema: int) -> Schema:
        """The schema of this id; InvalidSchema if there is none. One that was seen is never asked for again."""
        ...

    def schema_at_hand(self, schema: int) -> Schema | None:
        """The schema of this id, if it was seen; nobody is asked."""
        ...

    def append(self, batches: Sequence[Batch], timeout: float, done: AppendDone) -> None:
        """Append all, retrying until `timeout` seconds are over. `done` gets a base offset or an error per batch, in
        order, from any thread; it must not block."""
        ...

    def stage(self, staging: Staging, batches: Sequence[Batch], timeout: float, done: AppendDone) -> None:
        """Write batches of a transaction, which nobody sees before it is committed. `done` gets 0 or an error for each:
        they have no place yet."""
        ...

    def commit_whole(
        self, staging: Staging, batches: Sequence[Batch], call: CommitTransactionCall, timeout: float
    ) -> Answer:
        """Write all batches of a transaction and commit it, and wait for that: one way there and back, and one flush,
        where `stage` and the call would be two. At most as many batches as one append may have."""
        ...

    def can_take(self) -> bool:
        """Whether `append_unacknowledged` would find someone to hand over to now."""
        ...

    def append_unacknowledged(self, batches: Sequence[Batch]) -> bool:
        """Hand over without an answer; False if it could not even be handed over."""
        ...

    def subscribe(
        self,
        stream: StreamInfo,
        offsets: Sequence[int],
        ends: Sequence[int] | None,
        prefetch_bytes: int,
        query: Query | None = None,
        window_us: int | None = None,
    ) -> Subscription:
        """Deliver from `offsets` on, one per shard, up to `ends` if given, at most `prefetch_bytes` ahead. With a query
        only what it asks for, in batches that cover the same offsets. With a window shards come no further apart than
        that much time; with one of 0 in a single order."""
        ...

    def schedule(self, action: Callable[[], None], delay: float = 0.0) -> None:
        """Run a short action soon in the hub's own thread."""
        ...

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        """Wait until the hub sets `event`, helping it along where that is faster."""
        ...

    def check_usable(self) -> None:
        """Raise if this hub was closed, or belongs to the parent of a forked process."""
        ...

    def check_writable(self) -> None:
        """Raise ReadOnly if this hub only reads."""
        ...

    def close(self) -> None:
        """Let go of the log or the connection; whoever waits is told. Again: nothing happens."""
        ...
