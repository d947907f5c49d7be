"""Hostile schemas, mutated and well-formed: a schema that all can be done with, or `InvalidSchema`, soon.

Run it for as long as wanted with `python -m tests.fuzz.schema_fuzz SEED COUNT`; a failure names the case.
"""

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable

import pyarrow as pa

from mainstem.core.errors import IncompatibleSchema, InvalidSchema
from mainstem.core.schema import Schema
from mainstem.registry.forms import as_schema
from mainstem.registry.promotion import promote
from mainstem.registry.review import reviewed
from mainstem.registry.rows import converter_of
from tests.fuzz.payload_fuzz import GROWTH_BYTES_MAX, ROWS, _damage, _resident_bytes

# The largest take tenths of a second; two cores share everything here.
CASE_SECONDS_MAX = 5.0
# An error may name a path of sixteen names, and two of them.
TEXT_CHARS_MAX = 10_000
# What may be a text, a name or JSON, and is none.
_BYTES = (
    b"\xff\xfe",
    b"\0",
    b"7\0",
    b'"\\ud800"',
    b"[" * 50_000,
    b"{" * 900,
    b"9" * 5_000,
    b"1e999999999",
    b"NaN",
    b"",
)
_METADATA = (b"default", b"aliases", b"doc", b"ARROW:extension:name", b"ARROW:extension:metadata", b"x" * 10_000)
_TYPES = (
    *(
        pa.null(),
        pa.float16(),
        pa.month_day_nano_interval(),
        pa.large_string(),
        pa.string_view(),
        pa.list_view(pa.int8()),
    ),
    *(
        pa.binary(0),
        pa.binary((1 << 28) - 1),
        pa.list_(pa.int8(), 0),
        pa.list_(pa.int8(), (1 << 31) - 1),
        pa.struct([]),
    ),
    *(
        pa.decimal128(38, -1_000),
        pa.decimal256(76, 1 << 30),
        pa.decimal128(1, -76),
        pa.decimal32(5, 2),
        pa.decimal128(9, 40),
    ),
    *(pa.dictionary(pa.int8(), pa.string()), pa.run_end_encoded(pa.int16(), pa.string()), pa.uuid(), pa.json_()),
    *(
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.map_(pa.list_(pa.int8()), pa.null()),
        pa.map_(pa.string(), pa.binary()),
    ),
    *(pa.timestamp("ns", "Nowhere/" + "x" * 10_000), pa.timestamp("s", "+99:99"), pa.time32("s"), pa.date64()),
)


class HostileSchemas:
    """Hands out serialized schemas that nobody should be asked to keep, and some that are valid. One thread."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        rich = pa.field("a", pa.int64(), metadata={b"default": b"7", b"aliases": b'["b", "c"]', b"doc": b"why"})
        self._seeds = [
            schema.serialize().to_pybytes() for schema in (ROWS.arrow, pa.schema([rich, ("d", pa.string())]))
        ]

    def next(self) -> bytes:
        rng = self._rng
        if rng.random() < 0.5:
            return _damage(rng, rng.choice(self._seeds))
        if rng.random() < 0.05:
            return rng.randbytes(rng.randrange(300))
        return pa.schema(rng.choice(_MAKERS)(rng)).serialize().to_pybytes()


def _deep(rng: random.Random) -> list[pa.Field]:
    kind = rng.choice(_TYPES)
    for _ in range(rng.choice((2, 14, 15, 16, 17, 60, 130))):
        kind = rng.choice((pa.list_(kind), pa.struct([("x", kind)]), pa.map_(pa.string(), kind)))
    return [pa.field("deep", kind)]


def _bushy(rng: random.Random) -> list[pa.Field]:
    """Every level twice as many as the one above."""
    kind = pa.int8()
    for _ in range(rng.randrange(13)):
        kind = pa.struct([("a", kind), ("b", kind)])
    return [pa.field("bush", kind)]


def _many(rng: random.Random) -> list[pa.Field]:
    return [pa.field(f"f{number}", rng.choice(_TYPES[-8:])) for number in range(rng.choice((10, 1_999, 2_001, 6_000)))]


def _named(rng: random.Random) -> list[pa.Field]:
    names = ("", "\0", "x" * 255, "x" * 256, "n" * 200_000, "_offset", "_key", "a", "a", "ä" * 255, "\n'\"\\", "a.b[]")
    return [pa.field(name, pa.int8()) for name in rng.sample(names, rng.randrange(1, 4))]


def _lying(rng: random.Random) -> list[pa.Field]:
    """Metadata that is not what it is called."""
    fields = []
    for name in "abc":
        metadata = {key: _metadata(rng) for key in rng.sample(_METADATA, 2)}
        kind = rng.choice((pa.int64(), pa.string(), *_TYPES))
        fields.append(pa.field(name, kind, _may_be_null(rng, kind), metadata))
    return fields


def _may_be_null(rng: random.Random, kind: pa.DataType) -> bool:
    return bool(pa.types.is_null(kind)) or rng.random() < 0.5


def _metadata(rng: random.Random) -> bytes:
    some = [f"n{number}" for number in range(rng.choice((1, 50, 2_000, 2_001, 20_000)))]
    known = rng.choice(
        (7, "7", None, [], {}, ["a"], ["b", "b"], [7], ["x" * 300], {"x": [1]}, 1e300, some, "1e99", some)
    )
    return rng.choice((*_BYTES, json.dumps(known).encode(), json.dumps(known).encode()))


def _odd(rng: random.Random) -> list[pa.Field]:
    kinds = rng.sample(_TYPES, rng.randrange(4))
    return [pa.field(f"o{number}", kind, _may_be_null(rng, kind)) for number, kind in enumerate(kinds)]


_MAKERS: tuple[Callable[[random.Random], list[pa.Field]], ...] = (_deep, _bushy, _many, _named, _lying, _lying, _odd)


def run(seed: int, count: int) -> dict[str, int]:
    """Look at `count` schemas; how many were refused, how many were valid, and the pace."""
    before, peak = _resident_bytes(), pa.default_memory_pool().max_memory()
    outcomes: Counter[str] = Counter()
    started = time.perf_counter()
    for index in range(count):
        given = HostileSchemas(random.Random(f"schemas {seed} {index}")).next()
        begun = time.process_time()
        try:
            outcomes["valid" if _survives(given) else "refused"] += 1
            took = time.process_time() - begun
            assert took < CASE_SECONDS_MAX, f"took {took:.1f} s"
        except BaseException as error:
            error.add_note(f"schema fuzz: seed {seed}, case {index}: {given[:2_000]!r}")
            raise
        if index % 100 == 0:
            growth = max(_resident_bytes() - before, pa.default_memory_pool().max_memory() - peak)
            assert growth < GROWTH_BYTES_MAX, f"seed {seed}, up to case {index}: memory grew by {growth} bytes"
    return {"cases": count, **outcomes, "per_second": int(count / (time.perf_counter() - started))}


def _survives(given: bytes) -> bool:
    """Whether it is a schema. One that is must stand everything that is done with schemas."""
    is_refused_here = _is_refused_as_arrow(given)
    try:
        schema = reviewed(Schema.parse(given))
    except InvalidSchema as error:
        if len(str(error)) > TEXT_CHARS_MAX:
            raise AssertionError(f"many words: {len(str(error))} characters") from error
        return False
    assert not is_refused_here, "what is refused as an object is taken as bytes"
    assert Schema.parse(schema.serialized) == schema == reviewed(schema)
    repr(schema), schema._repr_html_()
    converter = converter_of(schema)
    rows, bad = converter.from_json(pa.array([b"{}", None, b'{"a": 1}'] * 10, pa.binary()))
    assert rows.num_rows == 30
    assert all(len(str(row)) < TEXT_CHARS_MAX for row in bad)
    promoted = Schema(pa.schema([pa.field("another", pa.int64()), *list(schema.arrow)[:1_000]]))
    try:
        assert promote(converter.build([converter.nothing]), schema, promoted).num_rows == 1
    except IncompatibleSchema:  # what is never null is null here
        assert any(not field.nullable for field in schema.arrow)
    return True


def _is_refused_as_arrow(given: bytes) -> bool:
    """The same, for those who hold the schema as an object of Arrow's."""
    try:
        arrow = pa.ipc.read_schema(pa.py_buffer(given))
        arrow.names  # noqa: B018  # bytes that are no text are told now
    except (pa.ArrowException, OSError, ValueError):
        return False
    try:
        as_schema(arrow)
    except InvalidSchema:
        return True
    except UnicodeDecodeError:  # names inside of it: Arrow's own error, of an object that nothing can be asked
        return False
    return False


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))
