"""Mutated payloads against `payload.check` and `verify`: a valid batch or `InvalidPayload`, in bounded memory.

Run it for as long as wanted with `python -m tests.fuzz.payload_fuzz SEED COUNT`; a failure names the case's seed.
"""

import json
import random
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa

from mainstem.core import layouts, payload
from mainstem.core.errors import InvalidPayload
from mainstem.core.message import inspect
from mainstem.core.schema import Schema

# Above this the process has reserved something for a number that was only claimed.
GROWTH_BYTES_MAX = 256 << 20

# Numbers that have hurt parsers: around zero, around powers of two, and the largest of each width.
_NUMBERS = tuple(
    number
    for power in (0, 3, 4, 6, 7, 8, 15, 16, 26, 30, 31, 32, 40, 61, 62, 63, 64)
    for number in ((1 << power) - 8, (1 << power) - 1, 1 << power, (1 << power) + 1)
    if number >= 0
)


# Every kind of column: one buffer of values, offsets, parts as many as the records, more, or fewer.
ROWS = Schema(
    pa.schema(
        [
            ("id", pa.int64()),
            ("flag", pa.bool_()),
            ("text", pa.string()),
            ("price", pa.decimal128(20, 3)),
            ("digest", pa.binary(5)),
            ("day", pa.date32()),
            ("items", pa.list_(pa.struct([("sku", pa.string()), ("count", pa.int16())]))),
            ("labels", pa.map_(pa.string(), pa.list_(pa.float32()))),
            ("vector", pa.list_(pa.float64(), 3)),
            ("place", pa.struct([("x", pa.float32()), ("near", pa.list_(pa.bool_()))])),
        ]
    )
)


@dataclass(frozen=True, slots=True)
class Case:
    """One payload with its header, as `payload.check` takes them."""

    encoding: int
    layout: int
    count: int
    raw_len: int
    payload: bytes
    schema: Schema | None = None


def run(seed: int, count: int) -> dict[str, int]:
    """Check `count` mutated payloads; return how many of them were refused, how many were valid, and the pace."""
    seeds = _seeds()
    before, peak = _resident_bytes(), pa.default_memory_pool().max_memory()
    outcomes: Counter[str] = Counter()
    started = time.perf_counter()
    for index in range(count):
        randomness = random.Random((seed << 32) + index)
        case = _mutate(randomness, randomness.choice(seeds))
        try:
            outcomes["valid" if _survives(case) else "refused"] += 1
        except BaseException as error:
            error.add_note(f"payload fuzz: seed {seed}, case {index}: {case}")
            raise
        if index % 1_000 == 0:
            growth = max(_resident_bytes() - before, pa.default_memory_pool().max_memory() - peak)
            assert growth < GROWTH_BYTES_MAX, f"seed {seed}, up to case {index}: memory grew by {growth} bytes"
    seconds = time.perf_counter() - started
    return {"cases": count, **outcomes, "per_second": int(count / seconds)}


def _survives(case: Case) -> bool:
    """Whether the payload is valid. One that is must stand everything that is done with batches."""
    if case.schema is not None:
        return _row_survives(case)
    is_verified = _is_verified(case)
    try:
        batch = payload.check(case.encoding, case.layout, case.count, case.raw_len, case.payload)
    except InvalidPayload:
        assert not is_verified, "`verify` accepts what `check` refuses"
        return False
    assert is_verified, "`verify` refuses what `check` accepts"
    assert batch.num_rows == case.count
    wide = layouts.widen(batch, case.layout, 1)
    assert wide.schema.equals(layouts.FULL_SCHEMA)
    assert wide.slice(1).num_rows == case.count - 1
    batch.take(pa.array([0, case.count - 1])).serialize()
    if case.count <= 16:
        # Dates beyond the year 9999 are valid timestamps that Python's datetime cannot show.
        wide.drop_columns(["timestamp"]).to_pylist()
    return True


def _row_survives(case: Case) -> bool:
    try:
        batch = payload.check(case.encoding, case.layout, case.count, case.raw_len, case.payload, schema=case.schema)
    except InvalidPayload:
        return False
    assert batch.num_rows == case.count
    payload.record_sizes(batch)
    assert batch.slice(1).num_rows == case.count - 1
    taken = batch.take(pa.array([0, case.count - 1]))
    taken.serialize()
    # Dates and decimals may be any bits; the rest can be shown.
    taken.drop_columns([name for name in ("day", "price", "_timestamp") if name in batch.schema.names]).to_pylist()
    return True


def _is_verified(case: Case) -> bool:
    try:
        payload.verify(case.encoding, case.layout, case.count, case.raw_len, case.payload)
    except InvalidPayload:
        return False
    return True


def _seeds() -> list[Case]:
    """Valid payloads in every layout and encoding, with few and with many records."""
    cases = []
    for layout in range(8):
        for count in (1, 5, 40):
            cases += _encoded(_batch(layout, count), layouts.SHAPES[layout], None)
    for layout in (0, layouts.HAS_KEY | layouts.HAS_HEADERS | layouts.HAS_TIMESTAMP):
        for count in (1, 5, 40):
            cases += _encoded(_rows(layout, count), layouts.shape_of(layout, ROWS), ROWS)
    for case in cases:
        assert _survives(case), case
    return cases


def _encoded(batch: pa.RecordBatch, shape: layouts.Shape, schema: Schema | None) -> list[Case]:
    """The batch in every encoding."""
    message = batch.serialize()
    layout, count = shape.layout, batch.num_rows
    cases = [Case(payload.RAW, layout, count, message.size, message.to_pybytes(), schema)]
    for codec in payload._CODECS.values():
        whole = codec.codec.compress(message, asbytes=True)
        cases.append(Case(codec.whole, layout, count, message.size, whole, schema))
        packed = payload._compress_buffers(batch, codec, shape)
        raw_len = inspect(packed, shape, codec.flatbuffer_id, count)
        cases.append(Case(codec.by_buffer, layout, count, raw_len, packed.to_pybytes(), schema))
    return cases


def _rows(layout: int, count: int) -> pa.RecordBatch:
    rows = [
        {
            "id": i,
            "flag": i % 3 == 0 if i % 4 else None,
            "text": "naïve" * (i % 3),
            "price": None if i % 5 == 1 else i,
            "digest": b"12345",
            "day": i,
            "items": [{"sku": "s", "count": i}] * (i % 3) if i % 4 else None,
            "labels": [("l", [1.0] * (i % 2))],
            "vector": [1.0, 2.0, float(i)],
            "place": {"x": 1.0, "near": [True, None]} if i % 3 else None,
            "_key": b"k%d" % i,
            "_headers": [("h", b"v")] if i % 2 else None,
            "_timestamp": 1_700_000_000_000_000 + i,
        }
        for i in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=layouts.shape_of(layout, ROWS).schema)


def _batch(layout: int, count: int) -> pa.RecordBatch:
    rows = range(count)
    # Starting with a present key, header and time keeps the layout from being narrowed.
    batch = layouts.build(
        [None if i % 7 == 3 else b"value %d" % i * (i % 4) for i in rows],
        [None if i % 3 == 1 else b"key %d" % i for i in rows] if layout & layouts.HAS_KEY else None,
        [[None, {}][i % 2] if i % 4 else {"naïve": b"1", "n": None} for i in rows]
        if layout & layouts.HAS_HEADERS
        else None,
        [1_700_000_000_000_000 + i for i in rows] if layout & layouts.HAS_TIMESTAMP else None,
    )
    assert layouts.layout_of(batch.schema) == layout
    return batch


def _mutate(randomness: random.Random, case: Case) -> Case:
    if randomness.random() < 0.1:
        return _lie(randomness, case)
    codec = payload._CODEC_OF[case.encoding]
    if codec is None or case.encoding == codec.by_buffer or randomness.random() < 0.2:
        changed = _damage(randomness, case.payload)
        raw_len = len(changed) if case.encoding == payload.RAW else case.raw_len
        return Case(case.encoding, case.layout, case.count, raw_len, changed, case.schema)
    # Damage inside a compressed payload would only show that decompression notices; this one gets behind it.
    changed = _damage(randomness, payload._message(case.encoding, case.raw_len, case.payload).to_pybytes())
    packed = codec.codec.compress(changed, asbytes=True)
    return Case(case.encoding, case.layout, case.count, len(changed), packed, case.schema)


def _lie(randomness: random.Random, case: Case) -> Case:
    """The same payload under a header that says something else."""
    fields = {"encoding": case.encoding, "layout": case.layout, "count": case.count, "raw_len": case.raw_len}
    name = randomness.choice(list(fields))
    if randomness.random() < 0.5:
        fields[name] += randomness.randint(-9, 9)
    else:
        fields[name] = randomness.choice(_NUMBERS)
    return Case(**fields, payload=case.payload, schema=case.schema)


def _damage(randomness: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(randomness.choice((1, 1, 1, 2, 3))):
        if len(changed) < 16:
            break
        # Most of what can go wrong is in the metadata, the first few hundred bytes.
        at = randomness.randrange(min(len(changed) - 8, randomness.choice((64, 400, 800, len(changed)))))
        randomness.choice(_DAMAGES)(randomness, changed, at)
    return bytes(changed)


def _flip(randomness: random.Random, data: bytearray, at: int) -> None:
    data[at] ^= 1 << randomness.randrange(8)


def _put_number(randomness: random.Random, data: bytearray, at: int) -> None:
    width, code = randomness.choice(((1, "<B"), (2, "<H"), (4, "<I"), (8, "<Q")))
    number = randomness.choice(_NUMBERS) & ((1 << 8 * width) - 1)
    struct.pack_into(code, data, at - at % width, number)


def _add_to_number(randomness: random.Random, data: bytearray, at: int) -> None:
    width, code = randomness.choice(((1, "<B"), (2, "<H"), (4, "<I"), (8, "<Q")))
    at -= at % width
    number = struct.unpack_from(code, data, at)[0] + randomness.randint(-17, 17)
    struct.pack_into(code, data, at, number & ((1 << 8 * width) - 1))


def _copy_number(randomness: random.Random, data: bytearray, at: int) -> None:
    source = randomness.randrange(len(data) - 8) & ~7
    at &= ~7
    data[at : at + 8] = data[source : source + 8]


def _cut(randomness: random.Random, data: bytearray, at: int) -> None:
    del data[at : at + randomness.choice((1, 4, 8, 64, len(data)))]


def _grow(randomness: random.Random, data: bytearray, at: int) -> None:
    data[at:at] = randomness.randbytes(randomness.choice((1, 4, 8, 64)))


_DAMAGES = 2 * (_flip,) + 3 * (_put_number,) + 2 * (_add_to_number,) + (_copy_number, _cut, _grow)


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096
    except FileNotFoundError:  # not Linux: only what pyarrow holds is known
        return int(pa.total_allocated_bytes())


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))
