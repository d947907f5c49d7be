"""The key of a row: bytes made of one or several of its columns, the same for one row and for a column of them.

    text, bytes      as they are, text as UTF-8
    whole numbers    as decimal text
    several columns  each part behind its length, u32 big-endian, one after the other

A row has no key if one of its key columns is null.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.errors import SchemaMismatch
from mainstem.core.limits import KEY_FIELDS_MAX
from mainstem.core.schema import Schema, check_named

_LENGTH_BYTES: Final = 4
# How a whole number of at most 64 bits is written in a key, and nothing else.
WHOLE_NUMBER: Final = re.compile(rb"0|-?[1-9][0-9]{0,19}")


def check_key_fields(schema: Schema, fields: Sequence[str]) -> None:
    """Whether rows of this schema can have these columns as their key; InvalidSchema says which cannot."""
    check_named(schema, fields, "key", KEY_FIELDS_MAX, can_be_key, "use text, bytes or whole numbers")


def can_be_key(kind: pa.DataType) -> bool:
    """Whether values of this type have one way to be written as the bytes of a key."""
    types = pa.types
    is_bytes = types.is_string(kind) or types.is_binary(kind) or types.is_fixed_size_binary(kind)
    return bool(is_bytes or types.is_integer(kind))


def is_number(schema: pa.Schema, fields: Sequence[str]) -> bool:
    """Whether the key of these rows is one whole number."""
    return len(fields) == 1 and pa.types.is_integer(schema.field(fields[0]).type)


def key_column(batch: pa.RecordBatch, fields: Sequence[str]) -> pa.BinaryArray:
    """The key of every row, null where there is none. The columns are of types that can be keys."""
    parts = [_bytes_of(batch.column(name)) for name in fields]
    if len(parts) == 1:
        return parts[0]
    joined = [array for part in parts for array in (_lengths_of(part), part)]
    # The last says what stands between them: nothing. Where one of them is null the whole is.
    return pc.binary_join_element_wise(*joined, _empties(batch.num_rows))


def key_of(row: Mapping[str, Any], fields: Sequence[str]) -> bytes | None:
    """The key of one row; None if it has none. SchemaMismatch for a value that cannot be part of a key."""
    if len(fields) == 1:
        return key_part(row.get(fields[0]), fields[0])
    parts = bytearray()
    for name in fields:
        part = key_part(row.get(name), name)
        if part is None:
            return None
        parts += len(part).to_bytes(_LENGTH_BYTES, "big") + part
    return bytes(parts)


def key_part(value: Any, name: str) -> bytes | None:
    """What a value of a key column adds to the key."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise SchemaMismatch(f"column {name!r}: {value[:40]!r} is not Unicode text", path=name) from None
    if value is None:
        return None
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        if int(value).bit_length() > 64:
            raise SchemaMismatch(f"column {name!r} has no number of {int(value).bit_length()} bits", path=name)
        return b"%d" % value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise SchemaMismatch(
        f"column {name!r} is part of the key, which is text, bytes or whole numbers, not {type(value).__name__}",
        path=name,
    )


def check_key(key: bytes, schema: Schema, fields: Sequence[str]) -> None:
    """Whether a row of this schema can have this key; SchemaMismatch names the column that cannot have its part."""
    parts = [key] if len(fields) == 1 else _parts_of(key)
    if len(parts) != len(fields):
        raise SchemaMismatch(f"the key is made of {', '.join(fields)}: give the values of all of them")
    for part, name in zip(parts, fields, strict=True):
        kind = schema.field(name).type
        if not _can_have(kind, part):
            shown = part[:40].decode(errors="backslashreplace")
            raise SchemaMismatch(f"key column {name!r} is {kind} and cannot be {shown!r}", path=name)


def _parts_of(key: bytes) -> list[bytes]:
    """What several columns have added to a key; nothing if it was not made of several."""
    parts: list[bytes] = []
    at = 0
    while at < len(key):
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(key[at:begin], "big")
        parts.append(key[begin:at])
    return parts if at == len(key) else []


def _can_have(kind: pa.DataType, part: bytes) -> bool:
    """Whether a column can have a value that is written as these bytes in a key."""
    if pa.types.is_integer(kind):
        is_signed = pa.types.is_signed_integer(kind)
        end = 1 << (kind.bit_width - 1 if is_signed else kind.bit_width)
        return WHOLE_NUMBER.fullmatch(part) is not None and (-end if is_signed else 0) <= int(part) < end
    if pa.types.is_fixed_size_binary(kind):
        return len(part) == int(kind.byte_width)
    return _is_text(part) if pa.types.is_string(kind) else True


def _is_text(part: bytes) -> bool:
    try:
        part.decode()
    except UnicodeDecodeError:
        return False
    return True


def _bytes_of(column: pa.Array) -> pa.BinaryArray:
    kind = column.type
    if pa.types.is_binary(kind):
        return column
    return (column.cast(pa.string()) if pa.types.is_integer(kind) else column).cast(pa.binary())


def _lengths_of(part: pa.BinaryArray) -> pa.BinaryArray:
    """The length of every value, as the bytes that stand before it."""
    count = len(part)
    ends = np.frombuffer(part.buffers()[1], np.int32, count + 1, 4 * part.offset) if count else np.zeros(1, np.int32)
    lengths = pa.py_buffer(np.diff(ends).astype(">u4"))
    places = pa.py_buffer(np.arange(0, _LENGTH_BYTES * (count + 1), _LENGTH_BYTES, dtype=np.int32))
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, places, lengths])


def _empties(count: int) -> pa.BinaryArray:
    # Not a scalar: making one imports pandas where that is installed.
    places = pa.py_buffer(np.zeros(count + 1, np.int32))
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, places, pa.py_buffer(b"")])
