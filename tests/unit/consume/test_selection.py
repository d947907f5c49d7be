"""The selection: what matches is left, what is left stands where it stood, and what cannot match is not looked at."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from mainstem.consume.record import RecordBatch
from mainstem.consume.selection import Selection, halves
from mainstem.consume.selections import Selections
from mainstem.consume.view import View
from mainstem.core import layouts, payload, statistics
from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import IncompatibleSchema, InvalidPredicate, InvalidSetting, RecordTooLarge, SchemaMismatch
from mainstem.core.limits import PAYLOAD_RAW_BYTES_MAX
from mainstem.core.schema import METADATA_COLUMNS, Schema, described
from mainstem.registry.rows import converter_of
from mainstem.transport.port import Query
from tests.unit.consume.rows import (
    SCHEMA,
    SCHEMA_ID,
    covers,
    fetched,
    numbered,
    read,
    records_of,
    rows_of,
    select,
    stream_row,
    view,
)
from tests.unit.log.parts import NOW_US, encode_batch


class Place(NamedTuple):
    """A row of the ledger, as far as it is asked."""

    shard: int = 0
    base: int = 0
    end: int = 100
    time_high: int = NOW_US
    schema_id: int = SCHEMA_ID
    statistics: bytes = b""


def test_only_matching_rows_are_left():
    found = select(numbered(100, base=500), "id >= 510 AND name = 'n3'")
    assert [offset for offset, _ in found] == list(range(513, 600, 10))
    assert found[0][1] == {"id": 513, "name": "n3", "amount": 256.5}


def test_a_batch_that_matches_throughout_stays_as_it_is():
    batch = numbered(10)
    assert list(Selection(view(), "id < 100").apply(batch)) == [batch]


def test_where_nothing_matches_only_the_offsets_are_left():
    batch = numbered(10, base=30)
    (left,) = Selection(view(), "id < 0").apply(batch)
    assert (left.base, left.end, left.header.count, left.payload) == (30, 40, 0, b"")


def test_columns_are_given_in_the_order_they_were_asked_in():
    through = view(["amount", "_offset", "id"])
    batch = numbered(4, base=6)
    (left,) = Selection(through).apply(batch)
    seen = RecordBatch("orders", left, 6, None, through).to_arrow()
    assert seen.schema.names == ["amount", "_offset", "id"]
    assert seen.to_pydict() == {"amount": [3.0, 3.5, 4.0, 4.5], "_offset": [6, 7, 8, 9], "id": [6, 7, 8, 9]}


def test_only_metadata_may_be_asked_for():
    assert select(numbered(3, base=5), through=view(["_shard", "_offset"])) == [
        (offset, {"_shard": 2, "_offset": offset}) for offset in (5, 6, 7)
    ]


@pytest.mark.parametrize(
    "asked", [["_shard"], ["_offset"], ["_timestamp"], ["_key"], ["_headers"], [*METADATA_COLUMNS]]
)
@pytest.mark.parametrize(
    "where", ["", "id >= 7", "amount >= 3.5", "_offset >= 7", "_key >= '7'", "name = 'n7' OR TRUE"]
)
def test_only_metadata_where_something_else_is_tested(where, asked):
    schema = Schema(pa.schema([("new", pa.bool_()), *SCHEMA.arrow]))
    schemas = {SCHEMA_ID: SCHEMA, 8: schema}
    rows = [{"id": n, "name": f"n{n}", "amount": n / 2} for n in range(5, 9)]
    beside: dict[str, Any] = {"headers": [None, {"h": b"x"}, None, None], "times": [None, NOW_US + 1, None, None]}
    for batch in (
        rows_of(rows, base=5),
        rows_of(rows, base=5, **beside),
        rows_of(rows, base=5, distances=[0, 1, 2, 3], span=6, **beside),
        json_batch(*rows, base=5),
    ):
        for through in (
            View(SCHEMA, SCHEMA_ID, columns=asked, key=["id"]),
            View(schema, 8, columns=asked, key=["id"], schema_of=schemas.__getitem__),
        ):
            found = select(batch, where, through)
            offsets = [5, 6, 7, 8] if not where or "TRUE" in where else [7, 8]
            assert [offset for offset, _ in found] == offsets
            for offset, value in found:
                assert list(value) == asked
                assert value.get("_offset", offset) == offset
                assert value.get("_key", b"%d" % offset) == b"%d" % offset


def test_a_predicate_may_use_columns_that_are_not_given():
    assert select(numbered(10), "id = 4", view(["name"])) == [(4, {"name": "n4"})]


@pytest.mark.parametrize(
    ("where", "matches"),
    [
        ("TRUE", True),
        ("1 = 1", True),
        ("NOT FALSE", True),
        ("now() > TIMESTAMP '2020-01-01'", True),
        ("CASE WHEN TRUE THEN TRUE END", True),
        ("FALSE", False),
        ("1 = 2", False),
        ("NULL = 1", False),
    ],
)
def test_a_predicate_without_columns_is_true_of_all_or_none(where, matches):
    for batch, through in (
        (numbered(3, base=5), view()),
        (numbered(3, base=5), view(["name"])),
        (numbered(3, base=5), view(["_offset"])),
        (json_batch({"id": 1}, None, {"id": 3}, base=5), view()),
        (records_of([b"a", b"b", b"c"], base=5), View(None)),
    ):
        assert [offset for offset, _ in select(batch, where, through)] == ([5, 6, 7] if matches else [])


def watch_columns(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """A list that grows by the names of the columns whenever some are decoded."""
    decoded: list[set[str]] = []
    decode_columns = payload.decode_columns

    def watched(*args: Any) -> pa.RecordBatch:
        decoded.append(set(args[-1]))
        return decode_columns(*args)

    monkeypatch.setattr(payload, "decode_columns", watched)
    return decoded


def test_only_what_is_needed_is_decoded(monkeypatch):
    """The columns of the predicate first; the others only where a row matches."""
    decoded = watch_columns(monkeypatch)
    selection = Selection(view(["amount"]), "id = 9999")
    first, second = numbered(5_000), numbered(5_000, base=5_000)
    assert first.header.encoding == second.header.encoding == payload.LZ4_BUFFERS
    selection.apply(first)
    assert decoded == [{"id"}]
    selection.apply(second)
    assert decoded[1:] == [{"id"}, {"amount"}]


@pytest.mark.parametrize("count", [10, 200])
def test_what_is_compressed_together_or_not_at_all_is_decoded_once(monkeypatch, count):
    decoded = watch_columns(monkeypatch)
    opened: list[int] = []
    read_message = payload._read

    def watched(*args: Any) -> pa.RecordBatch:
        opened.append(1)
        return read_message(*args)

    monkeypatch.setattr(payload, "_read", watched)
    batch = numbered(count)
    assert batch.header.encoding == (payload.RAW if count == 10 else payload.LZ4)
    (left,) = Selection(view(["amount"]), "id = 3 OR id = 4").apply(batch)
    assert (decoded, opened) == ([], [1])
    assert [offset for offset, _ in read([left], view(["amount"]))] == [3, 4]


def test_a_batch_with_gaps_keeps_its_offsets():
    rows = [{"id": n, "name": "x", "amount": 0.0} for n in (10, 14, 19)]
    batch = rows_of(rows, base=10, distances=[0, 4, 9], span=12)
    assert [offset for offset, _ in select(batch)] == [10, 14, 19]
    assert [offset for offset, _ in select(batch, "id > 10")] == [14, 19]
    assert [offset for offset, _ in select(batch, "_offset < 15", view(["id"]))] == [10, 14]


def test_metadata_in_predicates():
    batch = rows_of(
        [{"id": n} for n in range(3)],
        base=40,
        keys=[b"a", b"b", None],
        headers=[{"tenant": b"t1"}, None, {"tenant": b"t2"}],
        times=[NOW_US, NOW_US + 5, None],
    )
    for where, expected in {
        "_shard = 2": [40, 41, 42],
        "_offset = 41": [41],
        "_key = 'a'": [40],
        "_key IS NULL": [42],
        "_headers['tenant'] = 't2'": [42],
        "_timestamp > timestamp '2026-01-01 00:00:00'": [41],
    }.items():
        assert [offset for offset, _ in select(batch, where)] == expected, where


def test_the_key_of_rows_is_made_of_their_columns():
    through = view(key=["id"])
    assert [offset for offset, _ in select(numbered(5), "_key = '3'", through)] == [3]
    asked = view(["_key"], key=["id"])
    assert select(numbered(2), "", asked) == [(0, {"_key": b"0"}), (1, {"_key": b"1"})]


def test_records_without_a_schema():
    batch = records_of(
        [b"v0", b"v1", None],
        base=9,
        keys=[b"a", None, b"c"],
        headers=[{"h": b"1"}, {"h": b"2"}, None],
        timestamps=[NOW_US, NOW_US + 1, NOW_US + 2],
    )
    assert select(batch, "value = 'v1'", View(None)) == [(10, b"v1")]
    assert select(batch, "key = 'c'", View(None)) == [(11, None)]
    assert select(batch, "headers['h'] = '1'", View(None, columns=["key"])) == [(9, None)]
    through = View(None, columns=["_key", "timestamp"])
    (left,) = Selection(through, "_offset = 9").apply(batch)
    seen = RecordBatch("raw", left, 9, None, through)
    assert seen.to_arrow().to_pylist() == [{"_key": b"a", "timestamp": next(seen.records()).timestamp}]
    assert next(seen.records()).headers is None


def test_a_filter_on_headers_decodes_no_value(monkeypatch):
    decoded = watch_columns(monkeypatch)
    selection = Selection(View(None), "headers['tenant'] = 't3'")
    batch = records_of([b"x" * 1000] * 100, headers=[{"tenant": b"t1"}] * 100)
    assert batch.header.encoding == payload.LZ4_BUFFERS
    selection.apply(batch)
    assert decoded == [{"headers"}]


def test_unknown_columns_are_named():
    with pytest.raises(InvalidSetting, match=r"no column 'amuont'; did you mean 'amount'\? The columns are id, name"):
        view(["amuont"])
    with pytest.raises(InvalidSetting, match="at least one"):
        view([])
    with pytest.raises(InvalidSetting, match="twice"):
        view(["id", "id"])
    with pytest.raises(InvalidPredicate, match="amuont"):
        Selection(view(), "amuont > 1")


# Other schemas.

OLD = Schema(pa.schema([("id", pa.int32()), ("title", pa.string())]))
NEW = Schema(
    pa.schema(
        [
            ("id", pa.int64()),
            described(pa.field("name", pa.string()), aliases=("title",)),
            described(pa.field("amount", pa.float64()), default=1.5),
        ]
    )
)
SCHEMAS = {3: OLD, 4: NEW}


def test_rows_of_an_older_schema_are_promoted():
    through = View(NEW, 4, schema_of=SCHEMAS.__getitem__)
    batch = rows_of([{"id": n, "title": f"t{n}"} for n in range(5)], schema=OLD, schema_id=3)
    assert select(batch, "name = 't2' AND amount = 1.5", through) == [(2, {"id": 2, "name": "t2", "amount": 1.5})]
    asked = View(NEW, 4, columns=["amount"], schema_of=SCHEMAS.__getitem__)
    assert select(batch, "id = 2", asked) == [(2, {"amount": 1.5})]


def test_rows_of_a_newer_schema_come_as_the_reader_knows_them():
    through = View(OLD, 3, schema_of=SCHEMAS.__getitem__)
    newer = Schema(pa.schema([("id", pa.int32()), ("title", pa.string()), ("more", pa.bool_())]))
    batch = rows_of([{"id": 1, "title": "a", "more": True}], schema=newer, schema_id=9)
    through = View(OLD, 3, schema_of={**SCHEMAS, 9: newer}.__getitem__)
    assert select(batch, "id = 1", through) == [(0, {"id": 1, "title": "a"})]


def test_an_impossible_promotion_is_said_with_its_place_and_only_to_who_wants_the_column():
    other = Schema(pa.schema([("id", pa.string()), ("title", pa.string())]))
    through = View(OLD, 3, schema_of={9: other}.__getitem__)
    batch = rows_of([{"id": "a", "title": "n"}] * 2, schema=other, schema_id=9, base=40)
    for where in ("", "id = 1"):
        (left,) = Selection(through, where).apply(batch)
        said = r"stream 'orders' shard 2: rows 40 to 41 .* 'id' is string .* int32"
        with pytest.raises(IncompatibleSchema, match=said):
            RecordBatch("orders", left, 40, None, through).undecoded()
    titles = View(OLD, 3, columns=["title"], schema_of={9: other}.__getitem__)
    assert select(batch, "title = 'n'", titles) == [(40, {"title": "n"}), (41, {"title": "n"})]


def test_rows_in_a_selection_of_bytes_are_refused():
    with pytest.raises(SchemaMismatch, match="got a schema after this consumer was opened"):
        Selection(View(None), "key = 'x'").apply(numbered(3))


# JSON.


def json_batch(*values: object, base: int = 0) -> FetchedBatch:
    return records_of([None if value is None else json.dumps(value).encode() for value in values], base)


def test_json_is_rows():
    batch = json_batch({"id": 1, "name": "a"}, {"id": 2}, None, base=70)
    assert select(batch, "id >= 1") == [
        (70, {"id": 1, "name": "a", "amount": None}),
        (71, {"id": 2, "name": None, "amount": None}),
    ]
    assert [offset for offset, _ in select(batch, "id IS NULL")] == [72]


def test_only_a_tombstone_has_no_value():
    """A row whose columns are all null is a row, whether it was stored as one or as JSON."""
    empty = {"id": None, "name": None, "amount": None}
    batch = json_batch({}, {"id": 1}, None, {"name": None}, None, {"id": 2}, base=40)
    expected = [(40, empty), (41, {**empty, "id": 1}), (42, None), (43, empty), (44, None), (45, {**empty, "id": 2})]
    assert read([batch], view()) == expected
    assert select(batch, "id IS NULL OR id > 0") == expected
    assert select(batch, "id IS NULL") == [expected[at] for at in (0, 2, 3, 4)]
    assert select(batch, "_offset >= 43") == expected[3:]
    assert select(batch, "_offset = 40 OR _offset = 41") == expected[:2]
    assert read([rows_of([empty, {**empty, "id": 1}], base=40)], view()) == expected[:2]
    assert select(rows_of([empty, {**empty, "id": 1}], base=40), "id IS NULL") == expected[:1]
    part = RecordBatch("orders", batch, 42, 45, view()).slice(1, 3)
    assert part.values() == [empty, None]


def test_a_tombstone_is_one_for_several_readers_too():
    selection = Selections(lambda schema_id: SCHEMA).get(stream_row(1), Query("", None, SCHEMA_ID))
    readers = [type("Reader", (), {})() for _ in range(2)]
    selection.readers.update(readers)
    batch = json_batch({}, None, {"id": 1}, {"id": "x"})
    found = read(selection.apply(batch), view())
    assert [value for _, value in found] == [{"id": None, "name": None, "amount": None}, None, found[2][1], None]
    assert found[2][1]["id"] == 1


def test_json_of_which_little_becomes_much_is_not_made_at_once():
    wide = Schema(pa.schema([(f"c{place}", pa.int64()) for place in range(1_000)]))
    view = View(wide, SCHEMA_ID)
    assert view.decode(json_batch(*[{}] * 100)).columns.num_columns == 1_000
    batch = json_batch(*[{}] * 40_000, base=7)
    with pytest.raises(RecordTooLarge, match="made of JSON at once"):
        view.decode(batch)
    assert not view.fits_at_once(batch)
    pieces = halves(batch)
    assert covers(pieces, batch)
    assert all(map(view.fits_at_once, pieces))
    selection = Selection(View(wide, SCHEMA_ID, columns=["c7", "_offset"]), "_offset IN (7, 20006, 20007, 40006)")
    selected = selection.apply(batch)
    assert covers(selected, batch)
    assert [offset for offset, _ in read(selected, selection.view)] == [7, 20_006, 20_007, 40_006]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [b"{}"] * 3),
        (pa.list_(pa.struct([("a", pa.int64()), ("b", pa.int64())])), [b'{"c": [{}, null,{},{}]}', b"{}"]),
        (pa.map_(pa.string(), pa.struct([("a", pa.int64())])), [b'{"c": {"x":{},"y":null, "z" : {}}}']),
        (pa.map_(pa.string(), pa.list_(pa.struct([("a", pa.int64())]))), [b'{"c":{"x":[{},{}],"y":null}}']),
    ],
    ids=["plain", "list", "map", "map of lists"],
)
def test_how_large_json_may_become_is_bounded_without_looking(kind, values):
    converter = converter_of(Schema(pa.schema([("c", kind)])))
    column = pa.array(values, pa.binary())
    assert 0 < converter.json_size(column) <= converter.json_size_max(len(values), sum(map(len, values)))


@pytest.mark.parametrize(
    ("where", "offsets"),
    [
        ("id > 1", [1, 2, 3]),
        ("id IS NULL", [1, 2]),
        ("_offset = 2", [2]),
        ("_offset <> 2 AND id > 1", [1, 3]),
        ("_offset = 2 OR id = 4", [1, 2, 3]),
        ("_key = 'k2' AND id > 0", [2]),
        ("_key IS NULL AND id > 0", []),
        ("_timestamp < TIMESTAMP '2000-01-01T00:00:00Z' AND id > 0", []),
    ],
)
def test_what_is_no_row_is_for_the_reader_unless_it_cannot_be_meant(where, offsets):
    values = [json.dumps(value).encode() for value in ({"id": 1}, {"id": "one"}, [1], {"id": 4})]
    batch = records_of(values, keys=[b"k0", b"k1", b"k2", b"k3"])
    left = Selection(view(), where).apply(batch)
    assert covers(left, batch)
    assert [offset for offset, _ in read(left, view())] == offsets
    found = [RecordBatch("orders", piece, piece.base, None, view()) for piece in left]
    assert sum(len(piece.undecoded()) for piece in found) == len({1, 2}.intersection(offsets))


def test_without_a_predicate_what_is_no_row_is_passed_on():
    batch = json_batch({"id": 1}, {"id": "one"}, {"id": "two"}, {"id": 4}, base=20)
    through = view(["id"])
    left = Selection(through).apply(batch)
    assert covers(left, batch)
    assert [(piece.base, piece.header.schema_id) for piece in left] == [(20, SCHEMA_ID), (21, 0), (23, SCHEMA_ID)]
    seen = RecordBatch("orders", left[1], 21, None, through)
    assert [(row.index, row.path) for row in seen.undecoded()] == [(0, "id"), (1, "id")]
    assert [record.undecoded for record in seen.records()] == [b'{"id": "one"}', b'{"id": "two"}']


def test_what_grows_beyond_a_payload_comes_in_pieces():
    long = "x" * 1000
    schema = Schema(
        pa.schema([("id", pa.int64()), described(pa.field("text", pa.string()), default=long)]),
    )
    old = Schema(pa.schema([("id", pa.int64())]))
    batch = rows_of([{"id": n} for n in range(30_000)], schema=old, schema_id=3)
    through = View(schema, 4, schema_of={3: old}.__getitem__)
    left = Selection(through, "id <> 5").apply(batch)
    assert len(left) > 2
    assert covers(left, batch)
    assert all(piece.header.raw_len <= PAYLOAD_RAW_BYTES_MAX for piece in left)
    assert sum(piece.header.count for piece in left) == 29_999


LISTS = Schema(pa.schema([("id", pa.int64()), ("v", pa.list_(pa.int64()))]))


def lists(kind: pa.DataType, *lengths: int) -> tuple[FetchedBatch, View]:
    """Rows of lists of small numbers in an older schema, and a reader of the newer one."""
    old = Schema(pa.schema([("id", pa.int64()), ("v", pa.list_(kind))]))
    column = pa.ListArray.from_arrays(
        pa.array(np.cumsum((0, *lengths)), pa.int32()), pa.array(np.ones(sum(lengths), kind.to_pandas_dtype()))
    )
    arrow = layouts.shape_of(0, old).schema
    rows = pa.RecordBatch.from_arrays([pa.array(range(len(lengths)), pa.int64()), column], schema=arrow)
    return fetched(encode_batch(rows, old, schema_id=3)), View(LISTS, 4, schema_of={3: old}.__getitem__)


def lengths_of(batches: Sequence[FetchedBatch], through: View) -> list[tuple[int, int]]:
    """The offset of every record, and how long its list is."""
    seen = [RecordBatch("orders", batch, batch.base, None, through) for batch in batches if batch.header.count]
    return [
        (offset, length)
        for part in seen
        for offset, length in zip(part.offsets(), pc.list_value_length(part.to_arrow()["v"]).to_pylist(), strict=True)
    ]


def test_a_row_may_be_larger_for_its_reader_than_for_its_writer():
    batch, through = lists(pa.int32(), 1, 1_500_000, 1)
    left = Selection(through, "id > 0", schema_of=through._schema_of).apply(batch)
    assert covers(left, batch)
    assert {piece.header.schema_id for piece in left} == {4}
    assert lengths_of(left, through) == [(1, 1_500_000), (2, 1)]


@pytest.mark.parametrize("columns", [None, ["v"]])
@pytest.mark.parametrize("where", ["id > 0", "id >= 0", ""])
def test_what_is_too_large_for_a_payload_leaves_as_it_is_stored(columns, where):
    batch, whole = lists(pa.int8(), 1, 2_500_000, 2, 3)
    through = View(LISTS, 4, columns=columns, schema_of=whole._schema_of)
    left = Selection(through, where, schema_of=whole._schema_of, compression="lz4").apply(batch)
    assert covers(left, batch)
    expected = [(0, 1), (1, 2_500_000), (2, 2), (3, 3)]
    assert lengths_of(left, through) == (expected[1:] if where == "id > 0" else expected)


def test_sharing_fails_for_nobody_who_could_read_alone(monkeypatch):
    selections = Selections({4: LISTS}.__getitem__)
    selection = selections.get(stream_row(1), Query("", None, 4))
    readers = [type("Reader", (), {})() for _ in range(2)]
    selection.readers.update(readers)
    large = records_of([b'{"v":[%s]}' % b",".join([b"1"] * length) for length in (1, 2_500_000, 2)])
    assert selection.apply(large) == [large]

    def fail(*args: object) -> None:
        raise SchemaMismatch("the reader may find this himself")

    other = records_of([b'{"v":[1]}'])
    with monkeypatch.context() as patched:
        patched.setattr(View, "decode", fail)
        assert selection.apply(other) == (other,)


# What need not be opened.


def is_skipped(where: str) -> tuple[bool, bool]:
    """Whether a place with rows 0 to 99, of names n0 to n9, can be skipped, and whether filters were asked for that."""
    known = statistics.collect(whole(numbered(100), SCHEMA), index=["name"], columns=[])
    asked: list[int] = []

    def filters() -> bytes:
        asked.append(1)
        return known

    skipped = Selection(view(), where).can_skip(Place(statistics=statistics.summary(known)), filters)
    return skipped, bool(asked)


def whole(batch: FetchedBatch, schema: Schema) -> pa.RecordBatch:
    header = batch.header
    return payload.decode(header.encoding, header.layout, header.count, header.raw_len, batch.payload, schema)


@pytest.mark.parametrize(
    ("where", "skipped", "asked"),
    [
        ("id = 50", False, False),
        ("id = 100", True, False),
        ("id < 0 OR amount > 60", True, False),
        ("name = 'n3'", False, True),
        ("name = 'n55'", True, True),
        ("name = 'zz'", True, False),
        ("name IN ('n55', 'n66')", True, True),
        ("name LIKE '%5'", False, False),
        ("_offset >= 100", True, False),
        ("_shard = 1", True, False),
        ("_timestamp > timestamp '2027-01-01 00:00:00'", True, False),
        ("_key = 'x'", False, False),
    ],
)
def test_places_that_cannot_match_are_skipped(where, skipped, asked):
    assert is_skipped(where) == (skipped, asked)


def test_without_statistics_only_the_place_is_known():
    selection = Selection(view(), "id = 1000 AND _offset < 50")
    assert not selection.can_skip(Place(), bytes)
    assert selection.can_skip(Place(base=50), bytes)


def test_statistics_that_cannot_be_read_say_nothing():
    """Neither the summary nor the filters, wherever a byte of them is another."""
    known = statistics.collect(whole(numbered(100), SCHEMA), index=["name"], times=(NOW_US, NOW_US))
    summary = statistics.summary(known)
    selection = Selection(view(), "name = 'n3' OR (id = 7 AND _timestamp > '2020-01-01')")
    for damaged in (b"\2" + bytes(15), b"\1", b"\xff" * 40, summary[:-8]):
        assert not selection.can_skip(Place(statistics=damaged), lambda: known)
        assert not selection.can_skip(Place(statistics=summary), partial(bytes, damaged))
    for at in range(len(summary)):
        for byte in (0, 1, 2, 3, 4, 5, 8, 31, 255):
            other = summary[:at] + bytes((byte,)) + summary[at + 1 :]
            # Whatever they say now: nothing of it is an error.
            selection.can_skip(Place(statistics=other), partial(bytes, other + known[len(other) :]))
    place = Selection(view(), "id = 7 AND _offset >= 100")
    assert place.can_skip(Place(statistics=b"\2" + bytes(15)), bytes)


def test_statistics_of_an_older_schema_count_where_values_are_the_same():
    """A column that only got another name is known; one that became wider, or has nulls filled, is not."""
    old = Schema(pa.schema([("id", pa.int32()), ("title", pa.string()), ("flag", pa.string())]))
    new = Schema(
        pa.schema(
            [
                ("id", pa.int64()),
                described(pa.field("name", pa.string()), aliases=("title",)),
                described(pa.field("flag", pa.string(), nullable=False), default="zz"),
            ]
        )
    )
    batch = rows_of([{"id": 1, "title": "a", "flag": None}, {"id": 2, "title": "b", "flag": "f"}], schema=old)
    known = statistics.collect(whole(batch, old), index=["title"])
    through = View(new, 9, schema_of={3: old}.__getitem__)
    place = Place(schema_id=3, statistics=statistics.summary(known))

    def is_old_skipped(where: str) -> bool:
        return Selection(through, where, schema_of={3: old}.__getitem__).can_skip(place, lambda: known)

    assert is_old_skipped("name = 'x'")
    assert not is_old_skipped("name = 'a'")
    assert not is_old_skipped("flag = 'zz'")
    assert not is_old_skipped("id = 1")


def test_records_without_a_schema_are_known_by_key_and_time():
    known = statistics.collect(None, key=pa.array([b"a", b"c"]), times=(NOW_US, NOW_US + 10))
    place = Place(schema_id=0, statistics=statistics.summary(known))
    for where, skipped in {
        "key = 'a'": False,
        "key = 'b'": True,
        "_key = 'b'": True,
        "timestamp < timestamp '2026-01-01 00:00:00'": True,
        "value = 'x'": False,
    }.items():
        assert Selection(View(None), where).can_skip(place, lambda: known) is skipped, where


# Sharing.


def test_who_wants_the_same_has_the_same_selection():
    selections = Selections(lambda schema_id: SCHEMA)
    query = Query("id > 3", None, SCHEMA_ID)
    selection = selections.get(stream_row(1), query)
    assert selections.get(stream_row(1), query) is selection
    assert selections.get(stream_row(2), query) is not selection


def test_json_is_converted_for_several_readers_only():
    selections = Selections(lambda schema_id: SCHEMA)
    selection = selections.get(stream_row(1), Query("", None, SCHEMA_ID))
    batch = json_batch({"id": 1}, {"id": 2})
    readers = [type("Reader", (), {})() for _ in range(2)]
    selection.readers.add(readers[0])
    assert not selection.needs(batch.header)
    assert selection.apply(batch) == (batch,)
    selection.readers.add(readers[1])
    assert selection.needs(batch.header)
    (left,) = selection.apply(batch)
    assert left.header.schema_id == SCHEMA_ID
    assert [value["id"] for _, value in read([left], view())] == [1, 2]
    assert not selection.needs(numbered(1).header)
