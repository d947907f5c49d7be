"""Hostile appends and schemas for a stream of rows: messages that can be read, with contents that must not be believed.

Batches of rows with mutated bodies under right checksums, under schemas that are not theirs, with statistics and spans
that only the server gives, in times that are not in them; JSON that is none; schemas from `schema_fuzz`.
"""

import random
import struct
from collections.abc import Iterator
from typing import Any

import msgspec.structs

from mainstem.core import layouts, payload
from mainstem.core.batch import BatchHeader
from mainstem.core.checksum import crc32c
from mainstem.core.limits import MESSAGE_HEADER_BYTES_MAX
from mainstem.transport import wire
from mainstem.transport.port import CreateStreamCall, SchemaCall, SchemasCall, SetSchemaCall
from mainstem.transport.wire import Kind, pack
from tests.fuzz.payload_fuzz import _NUMBERS, ROWS, Case, _encoded, _mutate, _rows
from tests.fuzz.schema_fuzz import HostileSchemas

# No text, half of a pair, a number that no one can hold, and what is nested without end.
_JSON = (
    *(b"", b"null", b"[]", b"{", b'"\xff"', b'{"id": "\xff\xfe"}', b'{"id": 1, "id": 2}', b'{"text": "\\ud800"}'),
    *(b'{"id": 1e999999}', b'{"id": ' + b"9" * 5_000 + b"}", b'{"items": ' + b"[" * 3_000, b'{"id": NaN}', b"{}\n{}"),
    *(b'{"vector": [1, 2]}', b'{"labels": {"a": [1e40]}}', b'{"day": "2026-02-31"}', b'{"unknown": 1}', b'{"id": 7}'),
)


class HostileRows:
    """Hands out messages against one stream of rows. One thread. `schema_id` is that of ROWS, `others` are more ids."""

    def __init__(self, rng: random.Random, stream: int, schema_id: int, others: tuple[int, ...]) -> None:
        self._rng = rng
        self._stream = stream
        self._schema_id = schema_id
        self._others = others
        self._schemas = HostileSchemas(rng)
        self._cases = [
            case
            for layout in (0, layouts.HAS_KEY | layouts.HAS_HEADERS | layouts.HAS_TIMESTAMP)
            for case in _encoded(_rows(layout, 5), layouts.shape_of(layout, ROWS), ROWS)
        ]
        self._broken = list(broken_rows())

    def next(self) -> bytes:
        makers = (self._damaged, self._damaged, self._crafted, self._lying, self._lying, self._json, self._schema)
        return b"".join(pack(*self._rng.choice(makers)()))

    def _damaged(self) -> tuple[Any, ...]:
        """A body that was changed, with the checksum that it has now."""
        return self._append(_mutate(self._rng, self._rng.choice(self._cases)), self._schema_id)

    def _crafted(self) -> tuple[Any, ...]:
        """A message of the right shape with a column that breaks what Arrow takes for granted."""
        return self._append(self._rng.choice(self._broken), self._schema_id)

    def _lying(self) -> tuple[Any, ...]:
        """A valid body under a header that says something else."""
        rng = self._rng
        number = min(rng.choice(_NUMBERS), (1 << 32) - 1)
        lie: dict[str, Any] = rng.choice(
            (
                {"schema_id": rng.choice((0, number, *self._others))},
                {"statistics": rng.randbytes(rng.choice((1, 40, 5_000)))},
                {"span": number},
                {"transaction": number},
                {"shard": number},
                {"generation": number},
                {"time_low": number},
                {"time_high": -number},
                {"time_low": -(1 << 62), "time_high": 1 << 62},
                {"payload_crc": number},
                {"producer": 0},
                {"sequence": number},
                {},
            )
        )
        return self._append(rng.choice(self._cases), self._schema_id, **lie)

    def _json(self) -> tuple[Any, ...]:
        """Records without a schema: some that fit, most do not."""
        rng = self._rng
        values: list[bytes | None] = [rng.choice((*_JSON, None)) for _ in range(rng.choice((1, 3, 60, 3_000)))]
        keys = [b"k"] * len(values) if rng.random() < 0.5 else None
        batch = layouts.build(values, keys, None, None)
        layout = layouts.layout_of(batch.schema)
        return self._append(rng.choice(_encoded(batch, layouts.SHAPES[layout], None)), 0)

    def _schema(self) -> tuple[Any, ...]:
        rng = self._rng
        schema = self._schemas.next()[: MESSAGE_HEADER_BYTES_MAX - 10_000]
        name, uuid = f"hostile-{rng.randrange(20)}", rng.randbytes(16).hex()
        few = tuple(rng.choice(("id", "a", "d", "", "\0", "x" * 300)) for _ in range(3))
        calls = (
            SetSchemaCall("rows", schema, rng.choice((None, "none", "full", "x")), dry_run=True),
            SetSchemaCall(name, schema, "none"),
            CreateStreamCall(name, uuid=uuid, schema=schema, exist_ok=True),
            CreateStreamCall(
                f"{name}-keyed", uuid=uuid, schema=schema, key=few[:1], index=few[1:], compatibility="none"
            ),
            SchemaCall(_bounded(rng.choice(_NUMBERS), 64)),
            SchemasCall("rows", _bounded(rng.choice(_NUMBERS), 64)),
        )
        return Kind.CALL, rng.randrange(1, 100), rng.choice(calls)

    def _append(self, case: Case, schema: int, **lie: Any) -> tuple[Any, ...]:
        header = BatchHeader(
            self._stream,
            0,
            _bounded(case.count, 32),
            _bounded(case.encoding, 8),
            _bounded(case.layout, 8),
            schema,
            _bounded(case.raw_len, 32),
            len(case.payload),
            crc32c(case.payload),
            self._rng.randrange(1, 1 << 62),
            0,
            0,
            0,
            *_times(case),
        )
        header = msgspec.structs.replace(header, **lie)
        return Kind.APPEND, self._rng.randrange(1, 100), wire.Append([header], True, 1_000), [case.payload]


def broken_rows() -> Iterator[Case]:
    """Rows of the right shape in which the offsets of a column, nested ones too, or the bytes of a text are wrong."""
    rows = _rows(0, 5)
    message = rows.serialize().to_pybytes()
    items, labels, place = (rows.column(name) for name in ("items", "labels", "place"))
    parts = (rows.column("text"), items, items.values.field(0), labels, labels.items, place.field(1))
    for part in parts:
        right = part.buffers()[1].to_pybytes()[: 4 * (len(part) + 1)]
        numbers = list(struct.unpack(f"<{len(part) + 1}i", right))
        for wrong in (numbers[::-1], [*numbers[:-1], 1 << 30], [-1, *numbers[1:]], [number + 1 for number in numbers]):
            yield _with(message, right, struct.pack(f"<{len(part) + 1}i", *wrong))
    for text in (b"na\xff\xfeve", b"\xed\xa0\x80abc", b"naive\xc3"):
        yield _with(message, "naïve".encode(), text)


def _with(message: bytes, right: bytes, wrong: bytes) -> Case:
    assert right in message
    assert len(right) == len(wrong)
    changed = message.replace(right, wrong)
    return Case(payload.RAW, 0, 5, len(changed), changed, ROWS)


def _bounded(number: int, bits: int) -> int:
    return min(max(number, 0), (1 << bits) - 1)


def _times(case: Case) -> tuple[int, int]:
    """Those that the batch has; what is damaged has none."""
    try:
        batch = payload.check(case.encoding, case.layout, case.count, case.raw_len, case.payload, schema=case.schema)
        times = payload.time_range(batch) if case.schema is None else payload.row_time_range(batch)
    except Exception:  # the server's to judge
        times = None
    return times or (1_700_000_000_000_000, 1_700_000_000_000_000)
