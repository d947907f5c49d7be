"""Random schemas, rows of them, and schemas that may follow them; each made from one source of randomness."""

import json
import math
import random
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa

from mainstem.core.schema import Schema, aliases_of, default_of, described
from mainstem.registry.compatibility import widens
from mainstem.registry.texts import UNITS_PER_SECOND, json_texts
from mainstem.registry.types import is_list

PLAIN = (
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.binary(3), pa.date32(), pa.date64()),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Berlin")),
    *(pa.timestamp("us"), pa.duration("s"), pa.duration("us"), pa.duration("ns")),
    *(pa.decimal128(5, 2), pa.decimal128(20, 0), pa.decimal128(38, 10), pa.decimal256(60, 5)),
)
NAMES = ("a", "b", "c", "d", "e f", "ü", "type", "default", "items", "x-y", "1st", "_x2D")
FLOATS = (0.0, -0.0, 0.1, 1.0, 1e300, 5e-324, -1e-7, 123456789.123, math.nan, math.inf, -math.inf)
LETTERS = "abc äöü€😀\n\t\"\\\x00\x1f,'\u2028{}"


def schema(rng: random.Random, depth: int = 2) -> Schema:
    return Schema(pa.schema([with_default(rng, field) for field in fields(rng, depth)]))


def fields(rng: random.Random, depth: int) -> list[pa.Field]:
    return [_field(rng, name, depth) for name in rng.sample(NAMES, rng.randint(1, 4))]


def _field(rng: random.Random, name: str, depth: int) -> pa.Field:
    return pa.field(name, kind(rng, depth), nullable=rng.random() < 0.7)


def kind(rng: random.Random, depth: int) -> pa.DataType:
    shape = rng.randrange(8) if depth else 7
    if shape == 0:
        return pa.struct([with_default(rng, part) for part in fields(rng, depth - 1)])
    if shape == 1:
        return pa.list_(_field(rng, "item", depth - 1))
    if shape == 2:
        return pa.list_(_field(rng, "item", depth - 1), rng.randint(1, 3))
    if shape == 3:
        return pa.map_(rng.choice([pa.string(), pa.int32()]), _field(rng, "value", depth - 1))
    return rng.choice(PLAIN)


def batch(rng: random.Random, arrow: pa.Schema) -> pa.RecordBatch:
    """Some rows, sometimes as a slice of more."""
    rows = [{field.name: value(rng, field) for field in arrow} for _ in range(rng.randint(0, 6))]
    return pa.RecordBatch.from_pylist(rows, schema=arrow).slice(rng.choice([0, 0, 1, 2]))


def value(rng: random.Random, field: pa.Field) -> Any:
    """A value that Arrow takes; times as numbers."""
    if field.nullable and rng.random() < 0.2:
        return None
    kind = field.type
    return _nested_value(rng, kind) if kind.num_fields else _plain_value(rng, kind)


def _plain_value(rng: random.Random, kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_boolean(kind):
        return rng.random() < 0.5
    if types.is_integer(kind):
        bits = kind.bit_width - types.is_signed_integer(kind)
        low, high = -(1 << bits) if types.is_signed_integer(kind) else 0, (1 << bits) - 1
        return rng.choice([low, high, 0, rng.randint(low, high)])
    if types.is_floating(kind):
        number = rng.choice([*FLOATS, rng.uniform(-1e6, 1e6)])
        is_wide = kind.bit_width == 32 and math.isfinite(number) and abs(number) > 3e38
        return 1.5 if is_wide else struct.unpack("f", struct.pack("f", number))[0] if kind.bit_width == 32 else number
    if types.is_string(kind):
        return "".join(rng.choices(LETTERS, k=rng.randint(0, 6)))
    if types.is_fixed_size_binary(kind):
        return rng.choice([rng.randbytes(kind.byte_width), b"x" * kind.byte_width])
    if types.is_binary(kind):
        return rng.choice([rng.randbytes(rng.randint(0, 6)), b'plain "text"', b""])
    if types.is_decimal(kind):
        top = 10**kind.precision - 1
        return Decimal(f"{rng.choice([0, top, -top, rng.randint(-top, top)])}E{-kind.scale}")
    return _time(rng, kind)


def _time(rng: random.Random, kind: pa.DataType) -> int:
    if pa.types.is_date(kind):
        return rng.randint(-700_000, 2_900_000) * (1 if pa.types.is_date32(kind) else 86_400_000)
    if pa.types.is_time(kind):
        return rng.randrange(86_400 * UNITS_PER_SECOND[kind.unit])
    # Within what nanoseconds can count, so that a schema may follow which counts them finer.
    bound = 9_000_000_000 * UNITS_PER_SECOND[kind.unit]
    return rng.choice([0, -1, rng.randint(-bound, bound), rng.randint(-9, 9) * UNITS_PER_SECOND[kind.unit]])


def _nested_value(rng: random.Random, kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {part.name: value(rng, part) for part in kind}
    if pa.types.is_map(kind):
        keys = {_plain_value(rng, kind.key_type): None for _ in range(rng.randint(0, 3))}
        return [(key, value(rng, kind.item_field)) for key in keys]
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else rng.randint(0, 3)
    return [value(rng, kind.value_field) for _ in range(size)]


def with_default(rng: random.Random, field: pa.Field) -> pa.Field:
    if rng.random() < 0.5:
        return field
    text = json_texts(pa.array([value(rng, field)], field.type))[0].as_py()
    default = ... if text == "null" or len(text) > 200 else json.loads(text)
    doc = rng.choice(["", "what it is for"])
    return described(field, default=default, doc=doc, aliases=rng.choice([(), (f"{field.name}_before",)]))


# What may follow


def follower(rng: random.Random, old: Schema) -> Schema:
    """A schema that may follow in mode backward."""
    return Schema(pa.schema(_followers(rng, list(old.arrow))))


def _followers(rng: random.Random, parts: list[pa.Field]) -> list[pa.Field]:
    found = [_follower(rng, part) for part in parts if rng.random() < 0.8]
    for name in rng.sample(["new", "newer"], rng.randint(0 if found else 1, 2)):
        part = with_default(rng, _field(rng, name, 1))
        found.append(part if default_of(part)[0] else part.with_nullable(True))
    rng.shuffle(found)
    return found


def _follower(rng: random.Random, part: pa.Field) -> pa.Field:
    name = rng.choice([part.name, part.name, f"{part.name} renamed"])
    aliases = [*aliases_of(part), *([part.name] if name != part.name else [])]
    return described(_wider(rng, part).with_name(name), aliases=tuple(aliases))


def _wider(rng: random.Random, part: pa.Field) -> pa.Field:
    is_nullable = part.nullable or rng.random() < 0.5
    return pa.field(part.name, _wider_type(rng, part.type), nullable=is_nullable)


def _wider_type(rng: random.Random, kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(_followers(rng, list(kind)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _wider(rng, kind.item_field))
    if is_list(kind):
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else -1
        return pa.list_(_wider(rng, kind.value_field), rng.choice([-1, size]))
    return rng.choice([other for other in PLAIN if widens(kind, other)])


# Comparing


def plain(value: pa.Scalar) -> Any:
    """A value in a form that compares: times as the numbers they are, NaN equal to itself, 0.0 different from -0.0."""
    if not value.is_valid:
        return None
    kind = value.type
    if pa.types.is_struct(kind):
        return {part.name: plain(value[part.name]) for part in kind}
    if pa.types.is_map(kind):
        return [[plain(entry["key"]), plain(entry["value"])] for entry in value.values]
    if kind.num_fields:
        return [plain(each) for each in value.values]
    if pa.types.is_temporal(kind):
        return value.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).as_py()
    return repr(value.as_py()) if pa.types.is_floating(kind) else value.as_py()


def rows(batch: pa.RecordBatch) -> list[Any]:
    return [plain(value) for value in batch.to_struct_array()]
