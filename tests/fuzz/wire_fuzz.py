"""Mutated messages of the native protocol: what `MessageReader` makes of them is messages or `ProtocolError`.

Run it for as long as wanted with `python -m tests.fuzz.wire_fuzz SEED COUNT`; a failure names the case.
"""

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mainstem.core.batch import BatchHeader
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
    ColdFile,
    ConnectionsCall,
    CoolCall,
    CreateStreamCall,
    DeleteStreamCall,
    EraseKeyCall,
    GetStreamCall,
    ListStreamsCall,
    OffsetsAtTimeCall,
    PlanColdCall,
    RunsCall,
    StatisticsCall,
    StreamInfo,
    TrimStreamCall,
)
from mainstem.transport.sharing import (
    CommitCursorsCall,
    CommitTransactionCall,
    DeleteGroupCall,
    HoldGroupCall,
    JoinGroupCall,
    OpenWriterCall,
    Staging,
)
from mainstem.transport.wire import Kind, MessageReader, pack
from tests.fuzz.payload_fuzz import GROWTH_BYTES_MAX, _resident_bytes

# Randomness is drawn for this many cases at once: drawing it singly would take longer than the cases.
_BLOCK = 4_096
# One in this many readers is past hello and takes messages of full size.
_LARGE_EVERY = 16

_SMALL = (0, 1, 2, 7, 8, 12, 15, 16, 17, 127, 128, 255, 256, 4_080, 4_096, 4_097, 65_535)
_LARGE = (1 << 20, (1 << 20) + 1, (24 << 20) - 4, (24 << 20) - 3, 24 << 20, 1 << 30, (1 << 31) - 1, 1 << 31)
_NUMBERS = np.array([*_SMALL, *_LARGE, (1 << 32) - 5, (1 << 32) - 1], np.uint32)


def messages() -> list[bytes]:
    """A valid message of every kind, some of them large, some with payloads."""
    header = BatchHeader(1, 0, 2, 1, 0, 0, 24, 24, 5, 77, 0, 0, 0, 1, 2)
    info = StreamInfo(1, "ab" * 16, "x", 2, "crc32", 0, 10**12, 1, (0, 0), (5, 6), 100, 1)
    calls = [
        GetStreamCall("fuzzed"),
        ListStreamsCall(),
        OffsetsAtTimeCall("fuzzed", 1),
        StatisticsCall(),
        AlterStreamCall("fuzzed", 10**9),
        CreateStreamCall("fuzzed", 1, exist_ok=True),
        DeleteStreamCall("deleted"),
    ]
    made = [
        (Kind.HELLO, wire.Hello(1, 1, "fuzz"), []),
        (Kind.WELCOME, wire.Welcome(1, "s", "l", 1, 5.0, 20.0, 1_000, 1_000), []),
        (Kind.ERROR, wire.WireError(400, "lost", {"first": 1}), []),
        (Kind.PING, None, []),
        (Kind.PONG, None, []),
        *((Kind.CALL, call, []) for call in calls),
        (Kind.ANSWER, Answer(streams=(info,), counters={"a": 1}), []),
        (Kind.APPEND, wire.Append([header], True, 1_000), [b"p" * 24]),
        (Kind.APPEND, wire.Append([header] * 40, True, 1_000), [b"p" * 24] * 40),
        (Kind.APPENDED, wire.Appended([1, -1], {1: wire.WireError(301, "busy")}), []),
        (Kind.SUBSCRIBE, wire.Subscribe(1, [0, 0], None, 1 << 20), []),
        (Kind.SUBSCRIBE, wire.Subscribe(1, [0], None, 1 << 20, "_offset > 3 AND key = 'k'", ["key", "_shard"], 0), []),
        (Kind.BATCHES, wire.Batches([(7, header)]), [b"p" * 24]),
        (Kind.BATCHES, wire.Batches([(7, header)], 1, 2, 3), [b"p" * 24]),
        (Kind.CREDIT, wire.Credit(1 << 16), []),
        (Kind.UNSUBSCRIBE, None, []),
        (Kind.END, None, []),
        (Kind.GOODBYE, wire.Goodbye("bye"), []),
    ]
    return [b"".join(pack(kind, 3, content, payloads)) for kind, content, payloads in made]


def guarding_messages() -> list[bytes]:
    """Valid messages about who may do what, of groups and of transactions, and tokens that are none."""
    header = BatchHeader(1, 0, 2, 1, 0, 0, 24, 24, 5, 77, 0, 0, 0, 1, 2)
    rule = Rule("allow", "mallory", "all")
    calls = [
        CreateTokenCall("0123456789abcdef", bytes(32), "mallory", (Scope("all"),), 0, (rule,)),
        RevokeTokenCall("0123456789abcdef"),
        SetRuleCall(rule),
        DeleteRuleCall(Rule("allow", "root", "all")),
        SetQuotaCall(Quota("root", "write_bytes", 1, "block")),
        DeleteQuotaCall("root", "write_bytes"),
        ListAccessCall("token"),
        ExplainAccessCall("root", "read", "healthy"),
        ConnectionsCall(),
        DeleteStreamCall("healthy"),
        TrimStreamCall("healthy", None, 1 << 40),
        EraseKeyCall("healthy", b"k"),
        RunsCall("healthy", 0, 0, 1 << 40, 1, "1 = 1"),
        PlanColdCall("healthy", 1 << 50, 0),
        CoolCall("healthy", ColdFile(1, 0, 0, 10, 1, 7, 1 << 50, 100, 10, "../../x")),
        CoolCall("healthy", abandon=1 << 50),
        NoteCountsCall(7, 0, "fuzz", 1_000_000, (Count("healthy", 0, 1, 1),)),
        NoteVerifiedCall("healthy", 1 << 50, 3),
        JoinGroupCall("healthy", 7, ("healthy",)),
        CommitCursorsCall("healthy", 0, ((1, 0, 5),)),
        HoldGroupCall("healthy", 1 << 50),
        DeleteGroupCall("healthy"),
        OpenWriterCall("healthy"),
        CommitTransactionCall(7, 1),
    ]
    token = f"mst_{'0' * 16}_{'0' * 64}"
    made: list[tuple[Kind, Any, list[bytes]]] = [
        *((Kind.CALL, call, []) for call in calls),
        (Kind.HELLO, wire.Hello(1, wire.VERSION, "fuzz", token), []),
        (Kind.APPEND, wire.Append([header], True, 1_000), [b"p" * 24]),
        (Kind.STAGE, wire.Stage([header], Staging(7, 0, 60.0)), [b"p" * 24]),
        (Kind.STAGE, wire.Stage([header], Staging(8, 0, 60.0), 0, CommitTransactionCall(8, 1)), [b"p" * 24]),
        (Kind.SUBSCRIBE, wire.Subscribe(1, [0, 0], None, 1 << 20), []),
        (Kind.MARK, wire.Mark(1), []),
        (Kind.SHARE, wire.Share(0.5), []),
    ]
    return [b"".join(pack(kind, 3, content, payloads)) for kind, content, payloads in made]


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
