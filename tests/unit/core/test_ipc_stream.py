"""Arrow streams from outside, taken apart before pyarrow sees them."""

import io

import pyarrow as pa
import pytest

from mainstem.core.errors import InvalidPayload, MainstemError
from mainstem.core.ipc_stream import IpcReader

TABLE = pa.table(
    {
        "id": list(range(500)),
        "name": [None if number % 7 == 0 else f"n{number}" for number in range(500)],
        "tags": [["a", "b"][: number % 3] for number in range(500)],
        "at": pa.array([{"x": number, "y": "v"} for number in range(500)]),
        "_key": pa.array([b"k"] * 500, pa.binary()),
    }
)


def stream(table: pa.Table, compression: str | None = None, rows: int = 100) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


def read(data: bytes, step: int) -> pa.Table:
    reader = IpcReader()
    batches = [batch for at in range(0, len(data), step) for batch in reader.feed(data[at : at + step])]
    reader.finish()
    return pa.Table.from_batches(batches)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("step", [1 << 20, 1000, 7])
def test_whatever_pieces_it_comes_in(compression, step):
    assert read(stream(TABLE, compression), step).equals(TABLE)


def test_a_stream_may_lack_its_end_but_not_a_part():
    whole = stream(TABLE)
    assert read(whole[:-8], 1000).equals(TABLE)
    for cut in (0, 3, 8, 100, len(whole) - 9, len(whole) // 2):
        with pytest.raises(InvalidPayload):
            read(whole[:cut], 1000)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pa.table({"a": pa.array(["x"]).dictionary_encode()}), "dictionary|cast"),
        (pa.table({"a": pa.array(["x"], pa.large_string())}), "cast"),
        (pa.table({"a": pa.array(["x"], pa.string_view())}), "cast|string_view"),
        (pa.table({"_key": pa.array(["x"])}), "_key"),
        (pa.table({"a": pa.nulls(1)}), "null"),
    ],
    ids=["dictionary", "large", "view", "envelope", "null"],
)
def test_what_is_not_taken_says_what_is(table, words):
    with pytest.raises(MainstemError, match=words):
        read(stream(table), 1 << 20)


def test_another_format_is_recognised():
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    for data in (sink.getvalue(), b"nonsense" * 10, b"\xff\xff\xff\xff\xff\xff\xff\x7f"):
        with pytest.raises(InvalidPayload):
            read(data, 1 << 20)


def test_every_byte_changed_is_an_error_or_rows():
    whole = stream(TABLE.select(["id", "name"]).slice(0, 20))
    for at in range(len(whole)):
        for value in (0, 0x7F, 0xFF, whole[at] ^ 1):
            data = whole[:at] + bytes([value]) + whole[at + 1 :]
            try:
                read(data, 1 << 20).validate(full=True)
            except MainstemError:
                continue
            except ValueError as error:
                assert "at least one" in str(error)  # noqa: PT017  # no batch is left: the stream ended early
