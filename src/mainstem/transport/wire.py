"""The native protocol, without I/O: messages to bytes and back. docs/protocol.md is its specification.

A message: length u32 (bytes after this field), kind u8, reserved u8, reserved u16, id u32, header_len u32, then a
msgpack header of header_len bytes, then payloads. All integers little-endian. `id` ties an answer to its request, or
names a subscription. Payloads of batches follow each other in the order of the batch headers; their lengths are in
these headers.

Versions. Both sides say which they speak, and use the highest that both do; each speaks at least the one before its
own. Fields are only added, at the end of arrays or by name in maps, and who does not know one passes over it. So a side
must not send what the other would pass over and should not:

    2   `span` in batch headers; the calls trim and erase; limits by size and compaction in create and alter; what
        streams say of bytes that wait to be off the disk, and of restores
    3   rows: `schema_id` in batch headers; the calls set_schema, schemas and schema; schemas, keys and indexes in
        create; more shards in alter; what streams say of these; predicates, columns and a schema in subscribe, and
        counts in batches
    4   groups: the calls join_group, beat_group, lease_group, leave_group, commit_cursors, list_groups, get_group,
        reset_group and delete_group; transactions: stage, and the calls commit_transaction, abort_transaction and
        open_writer; order across shards: `window_us` in subscribe, the message mark, the call moment
    5   who may do what: the calls create_token, revoke_token, set_rule, delete_rule, set_quota, delete_quota,
        list_access and explain_access; the message share; ranges that a quota leaves out
    6   transactions of many clients: the calls commit_parts and abort_delivery, `job` and `number` in staging; where
        records lie: the call runs; auditing: the calls note_counts and note_verified; groups that hold retention: the
        call hold_group, and what groups say of it; readers of which no quota leaves anything out: `whole` in subscribe
"""

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Annotated, Any, Final

import msgspec

from mainstem.core.batch import U32, U63, BatchHeader, Buffer, TimeUs
from mainstem.core.errors import (
    DataLoss,
    MainstemError,
    ProtocolError,
    QuotaExceeded,
    SchemaMismatch,
    StaleGeneration,
    UndecodedRecords,
    from_wire,
)
from mainstem.core.limits import (
    APPEND_BATCHES_MAX,
    ERROR_TEXT_CHARS_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_BYTES_MAX_BEFORE_HELLO,
    MESSAGE_HEADER_BYTES_MAX,
    RECEIVE_BYTES_MAX,
    RECEIVE_SHARE_BYTES,
)
from mainstem.transport.counting import NoteCountsCall, NoteVerifiedCall
from mainstem.transport.guarding import AccessCall
from mainstem.transport.port import (
    AlterStreamCall,
    Answer,
    Call,
    CoolCall,
    CreateStreamCall,
    DeleteStreamCall,
    GetStreamCall,
    ListStreamsCall,
    MomentCall,
    OffsetsAtTimeCall,
    PlanColdCall,
    Query,
    RunsCall,
    SchemaCall,
    SchemasCall,
    SetSchemaCall,
    StatisticsCall,
)
from mainstem.transport.sharing import (
    AbortDeliveryCall,
    AbortTransactionCall,
    BeatGroupCall,
    CommitCursorsCall,
    CommitPartsCall,
    CommitTransactionCall,
    DeleteGroupCall,
    GetGroupCall,
    HoldGroupCall,
    JoinGroupCall,
    LeaseGroupCall,
    LeaveGroupCall,
    ListGroupsCall,
    OpenWriterCall,
    ResetGroupCall,
    Staging,
)

VERSION: Final = 6
VERSION_MIN: Final = 1
# Who speaks less would take the offsets of a batch that has a span for others.
VERSION_OF_SPANS: Final = 2
# And cannot read a batch that has a schema.
VERSION_OF_SCHEMAS: Final = 3
# And would not expect batches of a shard that was not there when it looked the stream up.
VERSION_OF_SHARDS: Final = 3
VERSION_OF_SHARING: Final = 4
# And would send in any order what is asked for in one.
VERSION_OF_ORDER: Final = 4
VERSION_OF_ACCESS: Final = 5
# And would leave out what a quota does not let through.
VERSION_OF_WHOLE: Final = 6

PREFIX = struct.Struct("<IBBHII")
PREFIX_BYTES: Final = PREFIX.size
_LENGTH_BYTES: Final = 4
# An incomplete message gets at least so much memory, or its whole length if that is less.
_PARTIAL_BYTES_MIN: Final = 4 << 10
# Room for an incomplete message grows by this factor: an eighth of what somebody makes us hold was sent, and a message
# of the usual megabyte is copied once.
_GROWTH: Final = 8


class Kind(IntEnum):
    HELLO = 1
    WELCOME = 2
    ERROR = 3
    PING = 4
    PONG = 5
    CALL = 6
    ANSWER = 7
    APPEND = 8
    APPENDED = 9
    SUBSCRIBE = 10
    BATCHES = 11
    CREDIT = 12
    UNSUBSCRIBE = 13
    END = 14
    GOODBYE = 15
    STAGE = 16
    MARK = 17
    SHARE = 18


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first message of a client: the versions it speaks, who it is."""

    version_min: int
    version_max: int
    client: str
    token: str = ""

    def __repr__(self) -> str:
        """Without the token, which no log and no error may show."""
        return f"Hello({self.version_min}, {self.version_max}, {self.client!r})"


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    """The server's answer: the version both use from now on, the log, how often to say something."""

    version: int
    server: str
    log: str
    epoch: int
    heartbeat: float
    idle_timeout: float
    message_bytes_max: int
    record_bytes_max: int


class WireError(msgspec.Struct, frozen=True, array_like=True):
    """An error: of the request with the message's id, or, with id 0, of the connection."""

    code: int
    message: str
    facts: dict[str, Any] = {}


class Nothing(msgspec.Struct, frozen=True, array_like=True):
    """The header of messages that say everything by their kind."""


class Append(msgspec.Struct, frozen=True, array_like=True):
    """Batches to append. `acknowledge` false: no answer. `timeout_ms`: for how long the sender wants an answer."""

    batches: list[BatchHeader]
    acknowledge: bool = True
    timeout_ms: U32 = 0


class Stage(msgspec.Struct, frozen=True, array_like=True):
    """Batches of a transaction, to be written and not to be seen. `timeout_ms` as in append; answered with appended,
    with 0 for each batch that is durable. With `commit` they are all that it has, and it is committed: answered as that
    call is. From version 4 on."""

    batches: list[BatchHeader]
    staging: Staging
    timeout_ms: U32 = 0
    commit: CommitTransactionCall | None = None


class Share(msgspec.Struct, frozen=True, array_like=True):
    """Which share of its records a client should keep, from 0 to 1, because they are more than its quota; it answers
    with the same once it does. Who keeps more is slowed down. From version 5 on."""

    share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]


class Appended(msgspec.Struct, frozen=True, array_like=True):
    """One result per batch: its base offset, or -1 and an error."""

    bases: list[int]
    errors: dict[int, WireError] = {}


class Subscribe(msgspec.Struct, frozen=True, array_like=True):
    """Push this stream from these offsets, one per shard, as far as credit reaches. `id` names the subscription.

    From version 3 on: only rows for which `where` is true, only these columns, as rows of this schema; see Query. From
    version 4 on: no shard further ahead of the others than `window_us`, and with 0 in a single order; marks then come
    between the batches. From version 6 on: the `whole` of it, also where a quota would leave a part out.
    """

    stream: U63
    offsets: list[U63]
    ends: list[U63] | None
    credit: U32
    where: str = ""
    columns: list[str] | None = None
    schema_id: U32 = 0
    window_us: U63 | None = None
    whole: bool = False

    @property
    def query(self) -> Query | None:
        """What is asked for beside everything as it is stored; None if nothing is."""
        columns = None if self.columns is None else tuple(self.columns)
        query = Query(self.where, columns, self.schema_id)
        return None if query.is_as_stored else query


class Batches(msgspec.Struct, frozen=True, array_like=True):
    """Pushed batches: (base, header) pairs. Where a predicate is in force also how many batches were opened and skipped
    for it since the message before, and how many records were no rows."""

    batches: list[tuple[U63, BatchHeader]]
    opened: U63 = 0
    skipped: U63 = 0
    undecoded: U63 = 0


class Credit(msgspec.Struct, frozen=True, array_like=True):
    """The reader took this many bytes: that many more may be pushed."""

    bytes: U32


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """Nothing that was stored before this time comes after it."""

    time_us: TimeUs


class Goodbye(msgspec.Struct, frozen=True, array_like=True):
    """The server is about to close the connection."""

    reason: str


_HEADERS: Final[dict[Kind, type]] = {
    Kind.HELLO: Hello,
    Kind.WELCOME: Welcome,
    Kind.ERROR: WireError,
    Kind.PING: Nothing,
    Kind.PONG: Nothing,
    Kind.CALL: Call,  # type: ignore[dict-item]
    Kind.ANSWER: Answer,
    Kind.APPEND: Append,
    Kind.APPENDED: Appended,
    Kind.SUBSCRIBE: Subscribe,
    Kind.BATCHES: Batches,
    Kind.CREDIT: Credit,
    Kind.UNSUBSCRIBE: Nothing,
    Kind.END: Nothing,
    Kind.GOODBYE: Goodbye,
    Kind.STAGE: Stage,
    Kind.MARK: Mark,
    Kind.SHARE: Share,
}
assert set(_HEADERS) == set(Kind)
_DECODERS: Final[list[msgspec.msgpack.Decoder[Any] | None]] = [
    msgspec.msgpack.Decoder(_HEADERS[Kind(kind)]) if kind in set(Kind) else None for kind in range(256)
]
encode_header = msgspec.msgpack.Encoder().encode
# Header sizes of what never carries batches: a hostile length is refused before it is buffered.
_BATCH_KINDS: Final = frozenset((Kind.APPEND, Kind.BATCHES, Kind.STAGE))


def version_needed(call: Call) -> int:
    """The lowest version whose servers know all of this call. Earlier ones pass over fields that they do not know, and
    would do something else than was asked."""
    match call:
        case GetStreamCall() | ListStreamsCall() | DeleteStreamCall() | OffsetsAtTimeCall() | StatisticsCall():
            return 1
        case MomentCall():
            return VERSION_OF_ORDER
        case RunsCall() | PlanColdCall() | CoolCall() | NoteCountsCall() | NoteVerifiedCall() | CommitPartsCall():
            return 6
        case HoldGroupCall() | AbortDeliveryCall():
            return 6
        case SetSchemaCall() | SchemasCall() | SchemaCall():
            return 3
        case CreateStreamCall(schema=b"", key=(), index=(), compatibility="backward"):
            return 1 if (call.retention_bytes, call.cleanup, call.tombstone_us) == (0, "delete", None) else 2
        case AlterStreamCall(shards=None):
            return 1 if (call.retention_bytes, call.cleanup, call.tombstone_us) == (None, None, None) else 2
        case CreateStreamCall() | AlterStreamCall():
            return 3
        case JoinGroupCall() | BeatGroupCall() | LeaseGroupCall() | LeaveGroupCall() | CommitCursorsCall():
            return 4
        case ListGroupsCall() | GetGroupCall() | ResetGroupCall() | DeleteGroupCall():
            return 4
        case CommitTransactionCall() | AbortTransactionCall() | OpenWriterCall():
            return 4
        case _:
            return VERSION_OF_ACCESS if isinstance(call, AccessCall) else 2


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message as it came: its header decoded, its payloads copied out of the receive buffer."""

    kind: int
    id: int
    header: Any
    payloads: list[bytes]


def pack(kind: Kind, id: int, header: Any = None, payloads: Sequence[Buffer] = ()) -> list[Buffer]:  # noqa: A002
    """The buffers of one message; payloads are not copied."""
    encoded = encode_header(Nothing() if header is None else header)
    return pack_encoded(kind, id, encoded, payloads)


def pack_encoded(kind: Kind, id: int, encoded: bytes, payloads: Sequence[Buffer]) -> list[Buffer]:  # noqa: A002
    """Like `pack`, with a header that was encoded before: the same push goes to many subscribers."""
    assert len(encoded) <= MESSAGE_HEADER_BYTES_MAX, f"{kind.name.lower()} header of {len(encoded)} bytes"
    size = PREFIX_BYTES - _LENGTH_BYTES + len(encoded) + sum(len(payload) for payload in payloads)
    return [PREFIX.pack(size, kind, 0, 0, id, len(encoded)) + encoded, *payloads]


_WITH_FACTS: Final = (DataLoss, QuotaExceeded, SchemaMismatch, StaleGeneration, UndecodedRecords)


def wire_error(error: MainstemError, chars_max: int = ERROR_TEXT_CHARS_MAX) -> WireError:
    """The error as it is sent: its text may repeat what a peer said, at any length, and is cut."""
    facts = error.facts() if isinstance(error, _WITH_FACTS) else {}
    text = str(error)
    return WireError(error.code, text if len(text) <= chars_max else f"{text[: chars_max - 1]}…", facts)


def error_from(wire: WireError) -> MainstemError:
    try:
        return from_wire(wire.code, wire.message, wire.facts)
    except TypeError:
        return ProtocolError(f"the peer sent an error that cannot be read: {wire.message}")


class ReceiveBudget:
    """Memory for incomplete messages of all connections together. One thread.

    Whoever finds it used up waits in line and is not read meanwhile. Enough for one message is kept back for the first
    in line: it can always go on to the end of its message, gives everything back, and the next one is first. So nobody
    waits for somebody who waits; one who could go on and does not is the business of a deadline.
    """

    def __init__(self, bytes_max: int = RECEIVE_BYTES_MAX, reserve: int = MESSAGE_BYTES_MAX) -> None:
        assert reserve < bytes_max
        self._bytes_max = self._left = bytes_max
        self._reserve = reserve
        # In the order in which they came, with what each needs to go on.
        self._waiting: dict[MessageReader, int] = {}
        # The one that may use what is kept back, until its message is complete.
        self._first: MessageReader | None = None

    @property
    def used(self) -> int:
        """What incomplete messages have beyond their shares."""
        return self._bytes_max - self._left

    def take(self, reader: "MessageReader", count: int) -> bool:
        """Whether the reader has `count` bytes more now; if not, `have_room` tells it later."""
        if (self._waiting and reader is not self._first) or not self._is_granted(reader, count):
            self._waiting[reader] = count
            return False
        self._left -= count
        return True

    def give(self, reader: "MessageReader", count: int) -> None:
        """The reader's message is complete or given up: it has no more than these, and waits for nothing."""
        self._left += count
        self._waiting.pop(reader, None)
        if reader is self._first:
            self._first = None
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            reader, count = next(iter(self._waiting.items()))
            if not self._is_granted(reader, count):
                return
            del self._waiting[reader]
            self._left -= count
            reader.have_room(count)

    def _is_granted(self, reader: "MessageReader", count: int) -> bool:
        if reader is not self._first and self._left - count < self._reserve:
            if self._first is not None:
                return False
            self._first = reader
        assert count <= self._left
        return True


class MessageReader:
    """Cuts a byte stream into messages. Sans I/O; one connection. After a ProtocolError it is not used again.

    Bytes are received straight into the buffer this hands out (`buffer`, `received`), so that a large message is not
    assembled from many pieces. Between messages the buffer is the `scratch` of the caller, shared by all its
    connections: an idle connection holds no memory. At most one message is buffered, and never more than the limit in
    force: small until the peer has said hello. Its memory is at most eight times what arrived, whatever length was
    claimed; above a share that everybody has it comes from `budget`. `on_wait(True)` says that there is none now:
    `buffer` must not be used until `on_wait(False)`.
    """

    def __init__(
        self,
        scratch: bytearray,
        budget: "ReceiveBudget | None" = None,
        on_wait: Callable[[bool], None] = lambda waits: None,
    ) -> None:
        assert MESSAGE_BYTES_MAX_BEFORE_HELLO <= len(scratch) <= RECEIVE_SHARE_BYTES
        self._budget = budget or ReceiveBudget()
        self._on_wait = on_wait
        self.bytes_max = MESSAGE_BYTES_MAX_BEFORE_HELLO
        self._scratch = scratch
        self._partial: bytearray | None = None
        self._filled = 0
        # The length of the incomplete message, or of its prefix while that is incomplete.
        self._total = 0
        # What it has of the budget, and whether it waits for more.
        self._taken = 0
        self._waits = False
        # Counts messages that did not arrive whole; who looks now and then sees whether it is still the same one.
        self._partials = 0

    def allow_large(self) -> None:
        """The peer is known: messages may have their full size from now on."""
        self.bytes_max = MESSAGE_BYTES_MAX

    @property
    def incomplete(self) -> int:
        """A number for the message that is incomplete now, another one for each; 0 if there is none."""
        return self._partials if self._partial is not None else 0

    def buffer(self) -> memoryview:
        """Where the next bytes go."""
        if self._partial is None:
            return memoryview(self._scratch)
        return memoryview(self._partial)[self._filled :]

    def received(self, count: int) -> list[Message]:
        """Take `count` bytes put into `buffer()`; the messages that are complete now."""
        if self._partial is None:
            return self._parse(memoryview(self._scratch)[:count])
        self._filled += count
        if self._filled < len(self._partial):
            return []
        if self._filled < self._total:
            self._grow()
            return []
        whole = self._partial
        self.release()
        return self._parse(memoryview(whole))

    def release(self) -> None:
        """Give the memory of an incomplete message back; the connection is gone, or the message complete."""
        self._partial, self._filled = None, 0
        if self._taken or self._waits:
            taken, self._taken, self._waits = self._taken, 0, False
            self._budget.give(self, taken)

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes that are already somewhere: for tests and tools."""
        messages: list[Message] = []
        view = memoryview(data)
        while view:
            room = self.buffer()
            assert room, "it waits for memory"
            count = min(len(room), len(view))
            room[:count] = view[:count]
            messages += self.received(count)
            view = view[count:]
        return messages

    def _parse(self, data: memoryview) -> list[Message]:
        messages: list[Message] = []
        at, end = 0, len(data)
        while end - at >= PREFIX_BYTES:
            length, kind, zero, zeros, id_, header_len = PREFIX.unpack_from(data, at)
            self._check_prefix(length, kind, zero | zeros, header_len)
            total = length + _LENGTH_BYTES
            if end - at < total:
                self._keep(data[at:], total)
                return messages
            messages.append(_message(kind, id_, data[at + PREFIX_BYTES : at + total], header_len))
            at += total
        if at < end:
            self._keep(data[at:], PREFIX_BYTES)
        return messages

    def _keep(self, rest: memoryview, total: int) -> None:
        """Wait for the rest of a message."""
        size = len(rest)
        partial = bytearray(min(total, RECEIVE_SHARE_BYTES, max(2 * size, _PARTIAL_BYTES_MIN)))
        partial[:size] = rest
        self._partial, self._filled, self._total = partial, size, total
        self._partials += 1
        if size == len(partial):
            self._grow()

    def _grow(self) -> None:
        """Room for several times what has arrived, up to the end of the message."""
        size = min(self._total, _GROWTH * self._filled)
        need = max(0, size - RECEIVE_SHARE_BYTES) - self._taken
        if not need or self._budget.take(self, need):
            self._taken += need
            self._enlarge(size)
        else:
            self._waits = True
            self._on_wait(True)

    def have_room(self, count: int) -> None:
        """From the budget: what this reader waits for is there."""
        self._waits = False
        self._taken += count
        self._enlarge(RECEIVE_SHARE_BYTES + self._taken)
        self._on_wait(False)

    def _enlarge(self, size: int) -> None:
        assert self._partial is not None
        larger = bytearray(size)
        larger[: self._filled] = self._partial
        self._partial = larger

    def _check_prefix(self, length: int, kind: int, zeros: int, header_len: int) -> None:
        if _DECODERS[kind] is None or zeros:
            raise ProtocolError(f"message of unknown kind {kind}; is the other side speaking the Mainstem protocol?")
        if length + _LENGTH_BYTES > self.bytes_max:
            raise ProtocolError(f"message of {length} bytes; at most {self.bytes_max} are allowed here")
        if header_len > MESSAGE_HEADER_BYTES_MAX or header_len > length - (PREFIX_BYTES - _LENGTH_BYTES):
            raise ProtocolError(f"message header of {header_len} bytes in a message of {length}")


def _message(kind: int, id_: int, body: memoryview, header_len: int) -> Message:
    decoder = _DECODERS[kind]
    assert decoder is not None
    try:
        header = decoder.decode(body[:header_len])
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ProtocolError(f"{Kind(kind).name.lower()} message with a header that cannot be read: {error}") from None
    if kind not in _BATCH_KINDS:
        if len(body) != header_len:
            raise ProtocolError(f"{Kind(kind).name.lower()} message with {len(body) - header_len} bytes too many")
        return Message(kind, id_, header, [])
    return Message(kind, id_, header, _payloads(kind, header, body[header_len:]))


def _payloads(kind: int, header: Any, body: memoryview) -> list[bytes]:
    batches = header.batches if kind in (Kind.APPEND, Kind.STAGE) else [pair[1] for pair in header.batches]
    if len(batches) > APPEND_BATCHES_MAX:
        raise ProtocolError(f"{len(batches)} batches in one message; at most {APPEND_BATCHES_MAX} are allowed")
    payloads: list[bytes] = []
    at = 0
    for batch in batches:
        if batch.stored_len < 0 or batch.stored_len > len(body) - at:
            raise ProtocolError("a batch claims more bytes than its message has")
        payloads.append(bytes(body[at : at + batch.stored_len]))
        at += batch.stored_len
    if at != len(body):
        raise ProtocolError(f"{len(body) - at} bytes of the message belong to no batch")
    return payloads
