"""Mutated messages of the native protocol: what `MessageReader` makes of them is messages or `ProtocolError`.

Run it for as long as wanted with `python -m tests.fuzz.wire_fuzz SEED COUNT`; a failure names the case.
"""

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np

from mainstem.core.batch import BatchHeader
from mainstem.core.delivery import Delivery, Fingerprint
from mainstem.core.errors import ProtocolError
from mainstem.core.limits import MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX_BEFORE_HELLO
from mainstem.transport import wire
from mainstem.transport.counting import Count, NoteCountsCall, NoteVerifiedCall
from mainstem.transport.guarding import (
    CreateTokenCall,
    DeleteQuotaCall,
    DeleteRuleCall,
    ExplainAccessCall,
    ListAccessCall,
    Quota,
    RevokeTokenCall,
    Rule,
    Scope,
    SetQuotaCall,
    SetRuleCall,
)
from mainstem.transport.port import (
    AlterStreamCall,
    Answer,
    Call,
    ColdFile,
    ConnectionsCall,
    CoolCall,
    CreateStreamCall,
    DeleteStreamCall,
    EraseKeyCall,
    GetStreamCall,
    ListStreamsCall,
    MomentCall,
    OffsetsAtTimeCall,
    PlanColdCall,
    RunsCall,
    SchemaCall,
    SchemasCall,
    SetSchemaCall,
    StatisticsCall,
    StreamInfo,
    TrimStreamCall,
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
from mainstem.transport.wire import Kind, MessageReader, pack
from tests.fuzz.payload_fuzz import GROWTH_BYTES_MAX, ROWS, _resident_bytes

# Randomness is drawn for this many cases at once: drawing it singly would take longer than the cases.
_BLOCK = 4_096
# One in this many readers is past hello and takes messages of full size.
_LARGE_EVERY = 16

_SMALL = (0, 1, 2, 7, 8, 12, 15, 16, 17, 127, 128, 255, 256, 4_080, 4_096, 4_097, 65_535)
_LARGE = (1 << 20, (1 << 20) + 1, (24 << 20) - 4, (24 << 20) - 3, 24 << 20, 1 << 30, (1 << 31) - 1, 1 << 31)
_NUMBERS = np.array([*_SMALL, *_LARGE, (1 << 32) - 5, (1 << 32) - 1], np.uint32)


_Made = tuple[Kind, Any, list[bytes]]
_HEADER = BatchHeader(1, 0, 2, 1, 0, 0, 24, 24, 5, 77, 0, 0, 0, 1, 2)
_FORGED = f"mst_{'0' * 16}_{'0' * 64}"


def messages() -> list[bytes]:
    """A valid message of every kind and of every call, some of them large, some with payloads. A server where everybody
    may do everything carries them out, and loses nothing by it but what is in `fuzzed`."""
    info = StreamInfo(1, "ab" * 16, "x", 2, "crc32", 0, 10**12, 1, (0, 0), (5, 6), 100, 1)
    made: list[_Made] = [
        *_asking(calls("fuzzed", doomed="deleted", principal="mallory", action="read")),
        (Kind.WELCOME, wire.Welcome(1, "s", "l", 1, 5.0, 20.0, 1_000, 1_000), []),
        (Kind.ERROR, wire.WireError(400, "lost", {"first": 1}), []),
        (Kind.PING, None, []),
        (Kind.PONG, None, []),
        (Kind.ANSWER, Answer(streams=(info,), counters={"a": 1}), []),
        (Kind.APPEND, wire.Append([_HEADER] * 40, True, 1_000), [b"p" * 24] * 40),
        (Kind.APPENDED, wire.Appended([1, -1], {1: wire.WireError(301, "busy")}), []),
        (Kind.SUBSCRIBE, wire.Subscribe(1, [0], None, 1 << 20, "_offset > 3 AND key = 'k'", ["key", "_shard"], 0), []),
        (Kind.SUBSCRIBE, wire.Subscribe(1, [0, 0], None, 1 << 20, window_us=0, whole=True), []),
        (Kind.BATCHES, wire.Batches([(7, _HEADER)]), [b"p" * 24]),
        (Kind.BATCHES, wire.Batches([(7, _HEADER)], 1, 2, 3), [b"p" * 24]),
        (Kind.CREDIT, wire.Credit(1 << 16), []),
        (Kind.UNSUBSCRIBE, None, []),
        (Kind.END, None, []),
        (Kind.GOODBYE, wire.Goodbye("bye"), []),
    ]
    assert {kind for kind, _, _ in made} == set(Kind)
    return _packed(made)


def guarding_messages() -> list[bytes]:
    """The same of a client, about what it may not touch, and with a token that is none."""
    return _packed(_asking(calls("healthy", doomed="healthy", principal="root", action="all")))


def calls(stream: str, *, doomed: str, principal: str, action: str) -> list[Call]:
    """One of each at least. `doomed` is the stream that is deleted; what the principal is to be allowed is `action`."""
    rule = Rule("allow", "mallory", action)
    found: list[Call] = [
        CreateStreamCall(stream, 1, exist_ok=True),
        GetStreamCall(stream),
        GetStreamCall(stream, details=True),
        ListStreamsCall(),
        AlterStreamCall(stream, 10**9),
        SetSchemaCall(stream, ROWS.serialized, dry_run=True),
        SchemasCall(stream),
        SchemaCall(1),
        DeleteStreamCall(doomed),
        TrimStreamCall(stream, None, 1 << 40),
        EraseKeyCall(stream, b"k"),
        PlanColdCall(stream, 1 << 50, 0),
        CoolCall(stream, ColdFile(1, 0, 0, 10, 1, 7, 1 << 50, 100, 10, "../../x")),
        CoolCall(stream, abandon=1 << 50),
        OffsetsAtTimeCall(stream, 1),
        MomentCall(stream, 1 << 50, settle=True),
        RunsCall(stream, 0, 0, 1 << 40, 1, "1 = 1"),
        StatisticsCall(),
        ConnectionsCall(),
        JoinGroupCall(stream, 7, (stream,), held=((1, 0),), generation=1),
        JoinGroupCall("found", 7, (), "fuz*"),
        BeatGroupCall(stream, 7, 1, 1, ((1, 0),), ((1, 0, 1e6),)),
        LeaseGroupCall("spread", 7, (stream,), None, ((1, (0, 0)),), (1,), ((1, 5),), 3, patient=False),
        LeaveGroupCall(stream, 7),
        CommitCursorsCall(stream, 0, ((1, 0, 0),), 1),
        ListGroupsCall(),
        GetGroupCall(stream),
        ResetGroupCall(stream, ((1, 0, 0), (1, 1, 0))),
        DeleteGroupCall(stream),
        HoldGroupCall(stream, 1 << 30),
        CommitTransactionCall(7, 1, (CommitCursorsCall(stream, 0, ((1, 0, 0),)),)),
        CommitPartsCall(9, ((7, 1), (8, 1)), Delivery(1, "job", 1, Fingerprint(2, bytes(16)))),
        AbortTransactionCall(7),
        AbortDeliveryCall(stream, "job", 1, for_good=True),
        OpenWriterCall(stream),
        CreateTokenCall("0123456789abcdef", bytes(32), "mallory", (Scope(action),), 0, (rule,)),
        RevokeTokenCall("0123456789abcdef"),
        SetRuleCall(rule),
        DeleteRuleCall(Rule("allow", principal, "all")),
        SetQuotaCall(Quota(principal, "write_bytes", 1, "block")),
        DeleteQuotaCall(principal, "write_bytes"),
        ListAccessCall("token"),
        ExplainAccessCall(principal, "read", stream),
        NoteCountsCall(7, 0, "fuzz", 1_000_000, (Count(stream, 0, 1, 1),)),
        NoteVerifiedCall(stream, 1 << 50, 3),
    ]
    assert {type(call) for call in found} == set(get_args(Call))
    return found


def _asking(asked: Sequence[Call]) -> list[_Made]:
    """What a client may say."""
    return [
        *((Kind.CALL, call, []) for call in asked),
        (Kind.HELLO, wire.Hello(1, wire.VERSION, "fuzz", _FORGED), []),
        (Kind.APPEND, wire.Append([_HEADER], True, 1_000), [b"p" * 24]),
        (Kind.STAGE, wire.Stage([_HEADER], Staging(7, 0, 60.0)), [b"p" * 24]),
        (Kind.STAGE, wire.Stage([_HEADER], Staging(8, 0, 60.0), 0, CommitTransactionCall(8, 1)), [b"p" * 24]),
        (Kind.SUBSCRIBE, wire.Subscribe(1, [0, 0], None, 1 << 20), []),
        (Kind.MARK, wire.Mark(1), []),
        (Kind.SHARE, wire.Share(0.5), []),
    ]


def _packed(made: Sequence[_Made]) -> list[bytes]:
    return [b"".join(pack(kind, 3, content, payloads)) for kind, content, payloads in made]


class Mixed:
    """Messages, most of them mutated, one in so many as it is. One thread."""

    _whole_every = 8

    def __init__(self, seed: int, whole: Sequence[bytes], others: Sequence[bytes] = ()) -> None:
        self._random = random.Random(f"mixed {seed}")
        self._whole = whole
        self._mutated = Mutator(seed, [*whole, *others])

    def next(self) -> bytes:
        return self._mutated.next() if self._random.randrange(self._whole_every) else self._random.choice(self._whole)


class Mutator:
    """Hands out mutated messages, cheaply. One thread."""

    def __init__(self, seed: int, seeds: Sequence[bytes] | None = None) -> None:
        self._random = np.random.default_rng(seed)
        self._seeds = messages() if seeds is None else seeds
        self._drawn: list[tuple[int, int, int, int]] = []

    def next(self) -> bytes:
        """One message: mutated, cut, lengthened, wholly random, or well-formed and hostile."""
        if not self._drawn:
            self._draw()
        which, what, at, number = self._drawn.pop()
        seed = self._seeds[which % len(self._seeds)]
        if what < 7:
            changed = bytearray(seed)
            if what < 3:  # one byte anywhere
                changed[at % len(changed)] = number & 0xFF
            elif what < 5:  # a number of the prefix, where the lengths are
                position = (0, 4, 8, 12)[at & 3]
                changed[position : position + 4] = int(_NUMBERS[number % len(_NUMBERS)]).to_bytes(4, "little")
            else:  # a number anywhere in the header
                position = at % len(changed)
                changed[position : position + 4] = number.to_bytes(4, "little")
            return bytes(changed)
        if what == 7:
            return seed[: at % len(seed)]
        if what == 8:
            return seed + self._seeds[at % len(self._seeds)]
        if what == 9:
            return self._random.bytes(at % 200)
        if what == 10:
            return self._well_formed(at, number)
        # A right prefix with a wrong content.
        content = self._random.bytes(at % 64)
        return wire.PREFIX.pack(12 + len(content), number % 20, 0, 0, 1, len(content)) + content

    def _well_formed(self, at: int, number: int) -> bytes:
        """A message that can be read and asks for what nobody should."""
        few, large = number & 3, (0, 1, number, (1 << 63) - 1)[at >> 3 & 3]
        values = [int(value) for value in self._random.integers(0, 1 << 32, 6)]
        shard, count, schema, raw, crc, time_high = values
        header = BatchHeader(1 + few, shard, count, few, few, schema, raw, 9, crc, large, few, large, few, 1, time_high)
        text = self._random.bytes(at % 40).hex()
        made: tuple[Kind, Any, list[bytes]]
        match at % 11:
            case 8:
                made = (Kind.CALL, GetStreamCall("x" * (number % 700_000)), [])
            case 9:
                made = (Kind.CALL, ListStreamsCall(large), [])
            case 10:
                return self._too_much(at, number)
            case 0:
                where = text if at % 3 else "(" * (number % 20_000)
                asked = (where, [text] * few, few) if at % 2 else ()
                made = (Kind.SUBSCRIBE, wire.Subscribe(few, [large] * few, None, number, *asked), [])
            case 1:
                made = (Kind.SUBSCRIBE, wire.Subscribe(few, [0] * few, [large] * (at % 5), number), [])
            case 2:
                made = (Kind.CREDIT, wire.Credit(number), [])
            case 3:
                made = (Kind.APPEND, wire.Append([header], bool(few), -few), [b"payload 9"])
            case 4:
                made = (Kind.CALL, OffsetsAtTimeCall(text, -large), [])
            case 5:
                made = (Kind.CALL, CreateStreamCall(text[:2], number, text, large, exist_ok=True), [])
            case 6:
                made = (Kind.CALL, AlterStreamCall("fuzzed", -large), [])
            case _:
                made = (Kind.UNSUBSCRIBE, None, [])
        kind, content, payloads = made
        return b"".join(pack(kind, number & 7, content, payloads))

    def _too_much(self, at: int, number: int) -> bytes:
        """A hundred questions at once, or a length that is claimed and not sent."""
        if at & 16:
            return wire.PREFIX.pack(number % MESSAGE_BYTES_MAX, Kind.APPEND, 0, 0, 1, 12) + b"not all of it"
        call = (OffsetsAtTimeCall("fuzzed", 0), StatisticsCall(), GetStreamCall("fuzzed"))[number % 3]
        return b"".join(pack(Kind.CALL, number & 7, call)) * 100

    def _draw(self) -> None:
        columns = self._random.integers(0, (1 << 16, 12, 1 << 16, 1 << 32), (_BLOCK, 4), np.uint64)
        self._drawn = list(map(tuple, columns.tolist()))


def run(seed: int, count: int) -> dict[str, int]:
    """Feed `count` mutated messages to readers; how many were taken and refused, and the pace."""
    mutator = Mutator(seed)
    pieces = random.Random(seed)
    scratch = bytearray(MESSAGE_BYTES_MAX_BEFORE_HELLO)
    outcomes: Counter[str] = Counter()
    before, started = _resident_bytes(), time.perf_counter()
    taken = refused = 0
    for index in range(count):
        data = mutator.next()
        reader = MessageReader(scratch)
        if index % _LARGE_EVERY == 0:
            reader.allow_large()
        try:
            if index & 7:
                taken += len(reader.feed(data))
            else:
                cut = pieces.randrange(len(data) + 1)
                taken += len(reader.feed(data[:cut])) + len(reader.feed(data[cut:]))
        except ProtocolError:
            refused += 1
        except BaseException as error:
            error.add_note(f"wire fuzz: seed {seed}, case {index}: {data!r}")
            raise
        if len(reader.buffer()) > max(reader.bytes_max, len(scratch)):
            raise AssertionError(f"seed {seed}, case {index}: {len(reader.buffer())} bytes reserved for {data!r}")
        if index % 100_000 == 0:
            growth = _resident_bytes() - before
            assert growth < GROWTH_BYTES_MAX, f"seed {seed}, up to case {index}: memory grew by {growth} bytes"
    outcomes["taken"], outcomes["refused"] = taken, refused
    return {"cases": count, **outcomes, "per_second": int(count / (time.perf_counter() - started))}


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))
