"""Schemas that follow each other, and what a row of one of them is in another: the model for suites that change them.

It knows types by their texts and values as Python has them, and nothing of Arrow. A field of the reader is found in the
row by its name, else by one of its own aliases, else by an alias that the writer's field has; what is not found has the
default, else null; so has what is null and must not be.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

Row = dict[str, Any]

# Of each type, those that hold all its values.
WIDER: dict[str, tuple[str, ...]] = {
    "bool": (),
    "int8": ("int16", "int64", "float32", "decimal(8, 2)"),
    "int16": ("int32", "int64", "float64"),
    "int32": ("int64", "float64", "decimal(15, 3)"),
    "int64": ("decimal(21, 2)",),
    "uint8": ("int16", "uint32"),
    "uint32": ("int64",),
    "float32": ("float64",),
    "float64": (),
    "decimal(8, 2)": ("decimal(12, 4)",),
    "decimal(12, 4)": (),
    "decimal(15, 3)": ("decimal(21, 4)",),
    "decimal(21, 2)": (),
    "decimal(21, 4)": (),
    "string": ("binary",),
    "binary": (),
    "date32": ("date64",),
    "date64": (),
    "timestamp[s, UTC]": ("timestamp[ms, UTC]",),
    "timestamp[ms, UTC]": ("timestamp[us, UTC]",),
    "timestamp[us, UTC]": (),
    "list<int16>": ("list<int32>",),
    "list<int32>": (),
    "struct<a: int16, b: string>": ("struct<a: int32, b: string, c: int64>",),
    "struct<a: int32, b: string, c: int64>": (),
}
# Those that new fields have.
_FIRST = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "float32", "decimal(8, 2)", "string", "date32"),
    *("timestamp[s, UTC]", "list<int16>", "struct<a: int16, b: string>"),
)
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_FIELDS_MAX = 7


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: str
    is_nullable: bool = True
    default: Any = None
    aliases: tuple[str, ...] = ()

    def described(self) -> dict[str, Any]:
        found: dict[str, Any] = {"type": self.kind, "nullable": self.is_nullable, "aliases": list(self.aliases)}
        return found if self.default is None else {**found, "default": as_json(self.default)}


@dataclass(frozen=True, slots=True)
class Version:
    """A schema: `name` and `number`, which never change, and fields that come and go."""

    fields: tuple[Field, ...]

    @staticmethod
    def first(rng: random.Random) -> "Version":
        return Version(tuple(Field(f"f{n}", rng.choice(_FIRST), n > 0) for n in range(rng.randrange(2, 5))))

    def described(self) -> dict[str, Any]:
        own = {"name": {"type": "string", "nullable": False}, "number": {"type": "int64", "nullable": False}}
        return {**own, **{field.name: field.described() for field in self.fields}}

    def signature(self) -> tuple[str, ...]:
        """What a reader sees of it: a name for each column."""
        return tuple(field.name for field in self.fields)

    def row(self, rng: random.Random) -> Row:
        """Values for all fields that may change."""
        return {
            field.name: None if field.is_nullable and rng.random() < 0.15 else value_of(field.kind, rng)
            for field in self.fields
        }

    def promoted(self, row: Row, writer: "Version") -> Row:
        """What a row of another version is in this one."""
        return {field.name: _found(field, row, writer) for field in self.fields}

    def changed(self, rng: random.Random, number: int) -> "Version":
        """The next version, in one or two respects. It may be one that the log has to refuse."""
        fields = list(self.fields)
        for _ in range(rng.choice((1, 1, 2))):
            rng.choice((_add, _add, _remove, _widen, _widen, _rename, _allow_null, _reorder))(fields, rng, number)
        return Version(tuple(fields))


def _add(fields: list[Field], rng: random.Random, number: int) -> None:
    if len(fields) >= _FIELDS_MAX:
        return
    # Now and then a name that was there before, perhaps with another type.
    name = f"f{number + 10}" if rng.random() < 0.7 else f"f{rng.randrange(6)}"
    if any(name in (field.name, *field.aliases) for field in fields):
        return
    kind = rng.choice(_FIRST)
    has_default = rng.random() < 0.5 and not kind.startswith(("list", "struct"))
    default = value_of(kind, rng) if has_default else None
    fields.insert(rng.randrange(len(fields) + 1), Field(name, kind, default is None or rng.random() < 0.5, default))


def _remove(fields: list[Field], rng: random.Random, number: int) -> None:
    if len(fields) > 1:
        fields.pop(rng.randrange(len(fields)))


def _widen(fields: list[Field], rng: random.Random, number: int) -> None:
    at = rng.randrange(len(fields))
    wider = WIDER[fields[at].kind]
    if wider:
        fields[at] = replace(fields[at], kind=rng.choice(wider))


def _rename(fields: list[Field], rng: random.Random, number: int) -> None:
    at = rng.randrange(len(fields))
    field = fields[at]
    if any(other.name == f"r{number}" for other in fields):
        return
    fields[at] = replace(field, name=f"r{number}", aliases=(*field.aliases, field.name))


def _allow_null(fields: list[Field], rng: random.Random, number: int) -> None:
    at = rng.randrange(len(fields))
    fields[at] = replace(fields[at], is_nullable=True)


def _reorder(fields: list[Field], rng: random.Random, number: int) -> None:
    rng.shuffle(fields)


def _found(field: Field, row: Row, writer: Version) -> Any:
    names = {was.name: was for was in writer.fields}
    was = names.get(field.name)
    if was is None:
        was = next((names[alias] for alias in field.aliases if alias in names), None)
    if was is None:
        was = next((other for other in writer.fields if field.name in other.aliases), None)
    # A name that was gone for a while may come back as a field that is never null, and find nulls from before.
    if was is None or (row[was.name] is None and not field.is_nullable):
        return plain(field.default, field.kind)
    return plain(row[was.name], field.kind)


# Values.


def value_of(kind: str, rng: random.Random) -> Any:
    number = rng.randrange(100)
    match kind.split("(", maxsplit=1)[0].split("<", maxsplit=1)[0].split("[", maxsplit=1)[0]:
        case "bool":
            return number % 2 == 0
        case "float32" | "float64":
            return number / 4 - 5
        case "decimal":
            return Decimal(number) / 4
        case "string":
            return f"é{number}"
        case "binary":
            return f"é{number}".encode()
        case "date32" | "date64":
            return date(2026, 1, 1) + timedelta(days=number)
        case "timestamp":
            return _EPOCH + timedelta(seconds=number)
        case "list":
            return [rng.randrange(50), None, number][: rng.randrange(4)]
        case "struct":
            whole = {"a": number, "b": None if number % 5 == 0 else f"b{number}"}
            return {**whole, "c": number} if "c:" in kind else whole
        case _:
            return number - (0 if kind.startswith("u") else 50)


def plain(value: Any, kind: str) -> Any:
    """A value of this type such that values of any width are equal if they mean the same."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float | Decimal):
        return Fraction(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return [plain(item, "") for item in value]
    if isinstance(value, dict):
        return {name: plain(value.get(name), "") for name in ("a", "b", "c") if f"{name}:" in kind}
    return value


def as_json(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value


def to_json(row: Row) -> bytes:
    return json.dumps({name: as_json(value) for name, value in row.items()}).encode()


# Predicates.

Condition = tuple[str, Callable[[Row], bool | None]]


def condition(version: Version, rng: random.Random, depth: int = 2) -> Condition:
    """A predicate on the fields of a version, and what it says of a row of it: true, false or unknown."""
    if depth and rng.random() < 0.5:
        (left, says_left), (right, says_right) = (condition(version, rng, depth - 1) for _ in range(2))
        if rng.random() < 0.5:
            return f"({left} AND {right})", lambda row: _and(says_left(row), says_right(row))
        return f"({left} OR NOT {right})", lambda row: _not(_and(_not(says_left(row)), says_right(row)))
    field = rng.choice(version.fields)
    literals = list(_literals(field.kind, rng))
    if not literals or rng.random() < 0.2:
        return f'"{field.name}" IS NULL', lambda row: row[field.name] is None
    (text, value), (_, other) = literals
    if rng.random() < 0.2:
        texts = f"{text}, {literals[1][0]}"
        return f'"{field.name}" IN ({texts})', lambda row: _known(row[field.name], lambda it: it in (value, other))
    sign, compare = rng.choice(_SIGNS)
    return f'"{field.name}" {sign} {text}', lambda row: _known(row[field.name], lambda it: compare(it, value))


_SIGNS: tuple[tuple[str, Callable[[Any, Any], bool]], ...] = (
    ("=", lambda a, b: bool(a == b)),
    ("<>", lambda a, b: bool(a != b)),
    ("<", lambda a, b: bool(a < b)),
    (">=", lambda a, b: bool(a >= b)),
)


def _literals(kind: str, rng: random.Random) -> Iterator[tuple[str, Any]]:
    """Two constants to compare a column with, as text and as a value; none for types that are not compared."""
    if kind == "bool" or kind.startswith(("list", "struct")):
        return
    for _ in range(2):
        value = value_of(kind, rng)
        if isinstance(value, datetime):
            text = f"TIMESTAMP '{value.strftime('%Y-%m-%d %H:%M:%S')}Z'"
        elif isinstance(value, date):
            text = f"DATE '{value}'"
        elif isinstance(value, bytes | str):
            text = f"'{as_json(value)}'"
        else:
            text = str(value)
        yield text, plain(value, kind)


def _known(value: Any, says: Callable[[Any], bool]) -> bool | None:
    return None if value is None else says(value)


def _and(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value
