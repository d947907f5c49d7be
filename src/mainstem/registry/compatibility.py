"""Compatibility: which schema may follow which.

    backward   readers with the new schema read the rows of the old one (the default)
    forward    readers with the old schema read the rows of the new one
    full       both
    none       anything goes; what cannot be read is found out when it is read

A new schema is compared with the newest one before it; with `_transitive` behind a mode, with all of them. Whatever the
mode but none, a field never comes back with a type in which the rows of any earlier version could not be read.

A type may become one that has every value of the old one, exactly: nothing is ever rounded, cut or parsed. A field may
have another name if it keeps the old one as an alias; both schemas are at hand when rows are read, so a rename works
for old and for new readers.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from mainstem.core.errors import IncompatibleSchema, InvalidSetting
from mainstem.core.limits import ERROR_TEXT_CHARS_MAX
from mainstem.core.matching import matched
from mainstem.core.plain import one_line
from mainstem.core.schema import Schema, aliases_of, default_of
from mainstem.registry.review import reviewed
from mainstem.registry.types import is_list, is_nested, type_text

_TRANSITIVE: Final = "_transitive"
MODES: Final = (
    "backward",
    "forward",
    "full",
    "none",
    "backward_transitive",
    "forward_transitive",
    "full_transitive",
)
# How much of a message the violations take; the rest are counted.
_TEXT_CHARS_MAX: Final = ERROR_TEXT_CHARS_MAX - 200


class Violation(NamedTuple):
    """One thing that readers or writers could not live with."""

    path: str  # of the field, as in items[].price
    rule: str  # added, nullable, type or alias
    text: str  # what is wrong, and what would be allowed


def check(new: Schema, old: Sequence[Schema], mode: str) -> None:
    """IncompatibleSchema if `new` may not follow the versions before it, oldest first; the message has every reason.
    InvalidSchema if it makes no sense by itself."""
    reviewed(new)
    if found := violations(new, old, mode):
        raise IncompatibleSchema(_message(found, mode))


def violations(new: Schema, old: Sequence[Schema], mode: str) -> list[Violation]:
    """Everything that speaks against `new` after these versions, oldest first; each thing once."""
    check_mode(mode)
    if mode == "none" or not old:
        return []
    is_transitive = mode.endswith(_TRANSITIVE)
    direction = mode.removesuffix(_TRANSITIVE)
    found: dict[Violation, None] = {}
    for distance, earlier in enumerate(reversed(old)):
        everything = is_transitive or distance == 0
        if direction in ("backward", "full"):
            found.update(dict.fromkeys(_Reading(everything, is_old_reader=False).of(new, earlier)))
        if direction in ("forward", "full"):
            found.update(dict.fromkeys(_Reading(everything, is_old_reader=True).of(earlier, new)))
    return list(found)


def check_mode(mode: str) -> None:
    if mode not in MODES:
        raise InvalidSetting(f"compatibility is one of {', '.join(MODES)}, not {one_line(repr(mode), 40)}")


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether a plain type has every value of another, exactly."""
    types = pa.types
    if old == new:
        return True
    if types.is_integer(old):
        return _holds_integer(old, new)
    if types.is_decimal(old):
        more_scale = new.scale - old.scale if types.is_decimal(new) else -1
        return bool(more_scale >= 0 and new.precision - old.precision >= more_scale)
    if types.is_string(old) or types.is_fixed_size_binary(old):
        return bool(types.is_binary(new))
    if types.is_timestamp(old):  # a zone is only how a moment is shown, but to have none is another meaning
        has_same_meaning = types.is_timestamp(new) and (old.tz is None) == (new.tz is None)
        return bool(has_same_meaning and (old.unit == new.unit or _is_finer(old.unit, new.unit)))
    if types.is_duration(old):  # one may be as long as its 64 bits go, which is too many of any finer unit
        return False
    if types.is_time(old):
        return bool(types.is_time(new)) and _UNITS.index(new.unit) > _UNITS.index(old.unit)
    if types.is_float32(old):
        return bool(types.is_float64(new))
    return bool(types.is_date32(old) and types.is_date64(new))


_UNITS: Final = ("s", "ms", "us", "ns")
# How many digits the largest value of an integer has, and how many bits a float keeps.
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}
_MANTISSA: Final = {32: 24, 64: 53}


def _is_finer(old: str, new: str) -> bool:
    # Not nanoseconds: they end in the year 2262.
    return new != "ns" and _UNITS.index(new) > _UNITS.index(old)


def _holds_integer(old: pa.DataType, new: pa.DataType) -> bool:
    is_signed = pa.types.is_signed_integer(old)
    bits = old.bit_width - is_signed
    if pa.types.is_integer(new):
        is_new_signed = pa.types.is_signed_integer(new)
        return bool((is_new_signed or not is_signed) and bits <= new.bit_width - is_new_signed)
    if pa.types.is_floating(new):
        return bool(bits <= _MANTISSA.get(new.bit_width, 0))
    if pa.types.is_decimal(new):
        digits = _DIGITS[old.bit_width] + (bits == 64)
        return bool(new.scale >= 0 and new.precision - new.scale >= digits)
    return False


class _Reading:
    """Compares a reader's schema with a writer's; `everything`: not only types, but also what is there or null."""

    def __init__(self, everything: bool, is_old_reader: bool) -> None:
        self._everything = everything
        self._is_old_reader = is_old_reader

    def of(self, reader: Schema, writer: Schema) -> Iterator[Violation]:
        return self._fields("", list(reader.arrow), list(writer.arrow))

    def _fields(self, path: str, readers: list[pa.Field], writers: list[pa.Field]) -> Iterator[Violation]:
        for reader, writer in matched(readers, writers):
            where = f"{path}.{reader.name}" if path else reader.name
            if writer is not None:
                yield from self._field(where, reader, writer)
                yield from self._aliases(where, reader, writer)
            elif self._everything and not reader.nullable and not default_of(reader)[0]:
                yield Violation(where, "added", self._missing())

    def _missing(self) -> str:
        if self._is_old_reader:
            return "is gone, but readers of the old schema need it: it is never null and has no default; keep it"
        return "is new, never null and has no default, so rows from before lack it; give it one, or let it be null"

    def _field(self, path: str, reader: pa.Field, writer: pa.Field) -> Iterator[Violation]:
        if self._everything and writer.nullable and not reader.nullable:
            if self._is_old_reader:
                yield Violation(
                    path, "nullable", "may now be null, which readers of the old schema do not take; keep it not null"
                )
            else:
                yield Violation(
                    path, "nullable", "may no longer be null, but rows from before may hold nulls; let it be null"
                )
        yield from self._type(path, reader.type, writer.type)

    def _type(self, path: str, reader: pa.DataType, writer: pa.DataType) -> Iterator[Violation]:
        types = pa.types
        if types.is_struct(reader) and types.is_struct(writer):
            yield from self._fields(path, list(reader), list(writer))
        elif is_list(reader) and is_list(writer) and fits_list(writer, reader):
            yield from self._field(f"{path}[]", reader.value_field, writer.value_field)
        elif types.is_map(reader) and types.is_map(writer):
            yield from self._type(f"{path}.key", reader.key_type, writer.key_type)
            yield from self._field(f"{path}.value", reader.item_field, writer.item_field)
        elif is_nested(reader) or is_nested(writer) or not widens(writer, reader):
            yield Violation(path, "type", self._retyped(reader, writer))

    def _retyped(self, reader: pa.DataType, writer: pa.DataType) -> str:
        ours, theirs = (one_line(type_text(kind), 60) for kind in (reader, writer))
        if self._is_old_reader:
            return (
                f"is now {theirs}, which readers of the old schema cannot read as {ours}; keep {ours}{_or_from(reader)}"
            )
        return (
            f"was {theirs} and cannot be read as {ours}; keep {theirs}{_or_to(writer)}, or add a field of another name"
        )

    def _aliases(self, path: str, reader: pa.Field, writer: pa.Field) -> Iterator[Violation]:
        """A name under which older rows know the field must stay one of its names."""
        if self._is_old_reader or not self._everything:
            return
        names = {reader.name, *aliases_of(reader)}
        for name in (writer.name, *aliases_of(writer)):
            if name not in names:
                text = f"no longer has the name {name!r}, under which older rows know it; keep it as an alias"
                yield Violation(path, "alias", text)


def fits_list(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether lists of one type may be lists of another, as far as their lengths go."""
    return bool(pa.types.is_list(new) or (pa.types.is_fixed_size_list(old) and old.list_size == new.list_size))


_EXAMPLES: Final = (
    *(pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.decimal128(20, 0), pa.binary(), pa.date64()),
)


def _or_to(old: pa.DataType) -> str:
    return _alternatives([kind for kind in _EXAMPLES if kind != old and widens(old, kind)])


def _or_from(new: pa.DataType) -> str:
    return _alternatives([kind for kind in _EXAMPLES if kind != new and widens(kind, new)])


def _alternatives(kinds: list[pa.DataType]) -> str:
    return "".join(f", or {type_text(kind)}" for kind in kinds[:4])


def _message(found: list[Violation], mode: str) -> str:
    texts: list[str] = []
    for violation in found:
        text = f"{one_line(violation.path, 100)!r} {violation.text}"
        if texts and sum(map(len, texts)) + len(text) > _TEXT_CHARS_MAX:
            texts.append(f"and {len(found) - len(texts)} more")
            break
        texts.append(text)
    return f"the schema is not {mode} compatible with those before it: {'; '.join(texts)}"
