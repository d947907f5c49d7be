"""Rows in and out over HTTP."""

import base64
import gzip
import io
import json

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import mainstem
from tests.integration.http.client import NDJSON, Client

SCHEMA = {"id": "int64", "name": "string"}
ROWS = [{"id": 1, "name": "a"}, {"id": 2, "name": "ü"}, {"id": 3, "name": None}]
ARROW = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"


def lines(rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def arrow(table: pa.Table, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_rows_are_durable_when_answered_and_come_back_as_posted(client: Client, server):
    client.create("flat", schema=SCHEMA)
    answer = client.post("flat", lines(ROWS))
    assert (answer.status, answer.json()) == (
        200,
        {
            "stream": "flat",
            "records": 3,
            "offsets": [{"shard": 0, "first": 0, "last": 2}],
            "dead": 0,
            "duplicate": False,
        },
    )
    read = client.get("/streams/flat/records")
    assert read.rows() == ROWS
    assert read.headers["content-type"] == NDJSON
    with mainstem.connect(server.url) as hub, hub.consumer("flat", start="earliest", follow=False) as consumer:
        assert [record.value for record in consumer] == ROWS


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", json.dumps(ROWS).encode()),
        ("application/json; charset=utf-8", json.dumps(ROWS, indent=2).encode()),
        ("text/csv", "id,name\n1,a\n2,ü\n3,\n".encode()),
        (ARROW, arrow(pa.table({"id": [1, 2, 3], "name": ["a", "ü", None]}))),
        (
            ARROW,
            arrow(
                pa.table({"name": ["a", "ü", None], "id": pa.array([1, 2, 3], pa.int32())}),
                pa.ipc.IpcWriteOptions(compression="zstd"),
            ),
        ),
        (NDJSON, b"\xef\xbb\xbf" + lines(ROWS).replace(b"\n", b"\r\n\n").rstrip()),
    ],
    ids=["json", "json_indented", "csv", "arrow", "arrow_cast_and_compressed", "ndjson_with_mark_and_empty_lines"],
)
def test_every_format_in(client: Client, kind, body, request):
    name = "in_" + request.node.callspec.id
    client.create(name, schema=SCHEMA)
    answer = client.post(name, body, kind)
    assert (answer.status, answer.json().get("records")) == (200, 3), answer
    assert client.get(f"/streams/{name}/records").rows() == ROWS


def test_every_format_out(client: Client):
    client.create("out", schema=SCHEMA)
    client.post("out", lines(ROWS))
    table = pa.table({"id": [1, 2, 3], "name": ["a", "ü", None]})
    for query in ("", "?limit=10"):
        path = f"/streams/out/records{query}"
        assert client.get(path, accept="application/json").json() == ROWS
        assert client.get(path, accept="text/csv").body.decode() == '"id","name"\n1,"a"\n2,"ü"\n3,\n'
        assert pa.ipc.open_stream(client.get(path, accept=ARROW).body).read_all().equals(table)
        found = pa.parquet.read_table(io.BytesIO(client.get(path, accept=PARQUET).body))
        assert found.to_pylist() == ROWS
        assert client.get(path, accept="text/*;q=0.5, application/json;q=0.9").json() == ROWS
    answer = client.get("/streams/out/records", accept="image/png")
    assert (answer.status, answer.json()["title"]) == (406, "InvalidRequest")


def test_a_stream_without_a_schema_has_whole_records(client: Client):
    client.create("plain")
    records = [
        {"key": "k", "value": "text"},
        {"key": None, "value": {"base64": base64.b64encode(b"\xff\x00").decode()}},
        {"key": "t", "value": None, "headers": {"h": "1"}, "timestamp": "2026-01-31T12:00:00Z"},
    ]
    assert client.post("plain", lines(records[:1] * 2)).json()["records"] == 2
    assert client.post("plain", lines(records)).json()["records"] == 3
    rows = client.get("/streams/plain/records").rows()
    assert [(row["key"], row["value"], row["headers"]) for row in rows] == [
        ("k", "text", None),
        ("k", "text", None),
        ("k", "text", None),
        (None, {"base64": "/wA="}, None),
        ("t", None, {"h": "1"}),
    ]
    assert rows[-1]["timestamp"].startswith("2026-01-31T12:00:00")
    # What is read can be posted again.
    client.create("copy")
    assert client.post("copy", lines(rows)).json()["records"] == 5
    assert client.get("/streams/copy/records").rows() == rows


@pytest.mark.parametrize("text", ['{"x":1.00000000000000000001}', "123456789012345678901234567890", "[1.10, true]"])
def test_a_value_that_is_json_keeps_its_digits(client: Client, text):
    client.ask("PUT", "/streams/digits", {})
    end = client.get("/streams/digits").json()["ends"][0]
    for body, kind in ((f'{{"value": {text}}}', NDJSON), (f'[{{"value":{text}, "key": "k"}}]', "application/json")):
        assert client.post("digits", body.encode(), kind).status == 200
    rows = client.get(f"/streams/digits/records?where=_offset+%3E%3D+{end}").rows()
    assert [row["value"] for row in rows] == [text, text]


def test_objects_without_a_schema_are_kept_as_they_are(client: Client):
    client.create("objects")
    assert client.post("objects", b'{"a": 1}\n {"b": [2]}\n').json()["records"] == 2
    assert [row["value"] for row in client.get("/streams/objects/records").rows()] == ['{"a": 1}', '{"b": [2]}']


@pytest.mark.parametrize(
    ("kind", "body", "place", "what"),
    [
        (NDJSON, b'{"id": 1, "name": "a"}\n\n{"id": "x", "name": "b"}\n', ("line", 3), "SchemaMismatch"),
        (NDJSON, b'{"id": 1, "name": "a"}\n{"id": 2,\n', ("line", 2), "SchemaMismatch"),
        ("application/json", b'[{"id": 1}, {"id": 2, "other": 1}]', ("row", 2), "SchemaMismatch"),
        ("text/csv", b"id,name\n1,a\nx,b\n", ("line", 3), "SchemaMismatch"),
        ("text/csv", b"id,name\n1,a\n2\n", ("line", 3), "InvalidRecord"),
    ],
    ids=["type", "no_json", "json_unknown_column", "csv_type", "csv_short"],
)
def test_one_bad_row_is_told_with_its_line_and_nothing_is_written(client: Client, kind, body, place, what, request):
    name = "bad_" + request.node.callspec.id
    client.create(name, schema=SCHEMA)
    answer = client.post(name, body, kind)
    problem = answer.json()
    assert (answer.status, answer.headers["content-type"]) == (422, "application/problem+json")
    assert (problem["title"], problem.get(place[0])) == (what, place[1]), problem
    assert client.get(f"/streams/{name}").json()["records"] == 0


def test_bad_rows_become_dead_letters_if_asked(client: Client):
    client.create("letters", schema=SCHEMA)
    body = b'{"id": 1, "name": "a"}\n{"id": "x", "name": "b"}\n{"id": 3, "name": "c"}\n'
    answer = client.post("letters", body, query="?on_bad=dead_letter")
    assert (answer.status, answer.json()["records"], answer.json()["dead"]) == (200, 2, 1)
    assert [row["id"] for row in client.get("/streams/letters/records").rows()] == [1, 3]
    (letter,) = client.get("/streams/letters.dead/records").rows()
    assert letter["value"] == '{"id": "x", "name": "b"}'
    assert "int64" in letter["headers"]["dead.error"]


def test_reading_says_how_to_go_on(client: Client):
    client.create("pages", schema=SCHEMA, key="id", shards=3)
    client.post("pages", lines({"id": number, "name": "n"} for number in range(1000)))
    found: list[int] = []
    path = "/streams/pages/records?limit=170&columns=id"
    while True:
        answer = client.get(path)
        found += [row["id"] for row in answer.rows()]
        path = answer.headers["link"].partition(">")[0][1:]
        if answer.headers["mainstem-end"] == "true":
            break
    assert sorted(found) == list(range(1000))
    assert client.get(path).rows() == []
    client.post("pages", lines([{"id": 1000, "name": "n"}]))
    assert client.get(path).rows() == [{"id": 1000}]
    # Without a limit too.
    whole = client.get("/streams/pages/records")
    assert len(whole.rows()) == 1001
    assert client.get(whole.headers["link"].partition(">")[0][1:]).body == b""


def test_where_columns_and_times(client: Client):
    client.create("asked", schema=SCHEMA)
    client.post("asked", lines({"id": number, "name": f"n{number % 3}"} for number in range(100)))
    answer = client.get("/streams/asked/records?where=name%20%3D%20%27n1%27%20AND%20id%20%3E%2090&columns=id,_offset")
    assert answer.rows() == [{"id": number, "_offset": number} for number in (91, 94, 97)]
    assert len(client.get("/streams/asked/records?from=1h").rows()) == 100
    assert client.get("/streams/asked/records?from=latest").rows() == []
    assert client.get("/streams/asked/records?from=2999-01-01T00:00:00Z").rows() == []
    (row,) = client.get("/streams/asked/records?limit=1&metadata=true").rows()
    assert set(row) == {"id", "name", "_shard", "_offset", "_timestamp", "_key", "_headers"}
    found = client.get("/streams/asked/find?where=id%20%3D%2042")
    assert found.rows() == [{"id": 42, "name": "n0"}]
    assert found.headers["mainstem-batches"].startswith("opened=")


@pytest.mark.parametrize(
    ("query", "status", "title"),
    [
        ("?where=id+%3D", 422, "InvalidPredicate"),
        ("?where=nothing+%3D+1", 422, "InvalidPredicate"),
        ("?columns=nothing", 422, "InvalidSetting"),
        ("?limit=-1", 400, "InvalidSetting"),
        ("?limit=%D9%A3", 400, "InvalidSetting"),
        ("?from=yesterday", 400, "InvalidSetting"),
        ("?from=2026-02-30T12:00:00Z", 422, "InvalidSetting"),
        ("?from=ms1:nonsense", 422, "InvalidCursor"),
        ("?form=latest", 400, "InvalidSetting"),
        ("?limit=1&limit=2", 400, "InvalidSetting"),
    ],
)
def test_what_cannot_be_asked(client: Client, query, status, title):
    client.ask("PUT", "/streams/misread", {"schema": SCHEMA})
    answer = client.get("/streams/misread/records" + query)
    assert (answer.status, answer.json()["title"], answer.json()["retriable"]) == (status, title, False)


def test_problems_have_the_codes_of_the_native_protocol(client: Client):
    answer = client.get("/streams/nowhere/records")
    assert (answer.status, answer.json()["code"], answer.json()["type"]) == (
        404,
        mainstem.UnknownStream.code,
        "urn:mainstem:error:unknown-stream",
    )
    assert client.post("nowhere", b"{}\n").status == 404
    assert client.get("/nowhere").status == 404
    assert client.ask("DELETE", "/streams").headers["allow"] == "GET, HEAD"
    assert client.post("nowhere", b"", "image/png").status == 415
    assert client.get("/streams/bad%20name").json()["code"] == mainstem.InvalidName.code


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_bodies_may_be_compressed(client: Client, encoding):
    client.create(f"packed_{encoding}", schema=SCHEMA)
    body = lines({"id": number, "name": "n" * 100} for number in range(20_000))
    packed = gzip.compress(body) if encoding == "gzip" else pa.Codec("zstd").compress(body, asbytes=True)
    answer = client.post(f"packed_{encoding}", packed, content_encoding=encoding)
    assert (answer.status, answer.json().get("records")) == (200, 20_000), answer
    assert client.post(f"packed_{encoding}", packed[:-9], content_encoding=encoding).status == 400
    assert client.post(f"packed_{encoding}", b"nonsense", content_encoding=encoding).status == 400
    assert client.post(f"packed_{encoding}", packed, content_encoding="br").status == 415


def test_rows_with_a_large_body_keep_their_order(client: Client):
    client.create("large", schema=SCHEMA)
    body = lines({"id": number, "name": "x" * 60} for number in range(100_000))
    assert client.post("large", body).json()["records"] == 100_000
    answer = client.get("/streams/large/records?columns=id", accept=ARROW)
    ids = pa.ipc.open_stream(answer.body).read_all().column("id")
    assert ids.to_pylist() == list(range(100_000))


def test_lost_records_are_a_problem_with_the_place_to_go_on(client: Client):
    client.create("trimmed", schema=SCHEMA)
    for number in range(3):
        client.post("trimmed", lines([{"id": number, "name": "n"}]))
    before = client.get("/streams/trimmed/records?limit=1").headers["mainstem-cursor"]
    assert client.ask("POST", "/streams/trimmed/trim", {"offset": 2}).status == 200
    answer = client.get(f"/streams/trimmed/records?from={before}")
    problem = answer.json()
    assert (answer.status, problem["title"], problem["first"], problem["last"]) == (410, "DataLoss", 1, 1)
    assert client.get(f"/streams/trimmed/records?from={problem['cursor']}").rows() == [{"id": 2, "name": "n"}]


def test_streams_and_requests_with_nothing_in_them(client: Client):
    client.create("nothing", schema=SCHEMA)
    assert client.post("nothing", b"").json()["records"] == 0
    assert client.post("nothing", b"[]", "application/json").json() == {**client.post("nothing", b"\n\n").json()}
    assert client.post("nothing", b"", "application/json").status == 422
    assert client.post("nothing", b"5", "application/json").json()["row"] == 1
    for query in ("", "?limit=5", "?limit=0"):
        path = f"/streams/nothing/records{query}"
        assert client.get(path).body == b""
        assert client.get(path, accept="application/json").json() == []
        assert client.get(path, accept="text/csv").body == b'"id","name"\n'
        assert pa.ipc.open_stream(client.get(path, accept=ARROW).body).read_all().num_rows == 0
        assert pa.parquet.read_table(io.BytesIO(client.get(path, accept=PARQUET).body)).num_rows == 0
    client.post("nothing", lines(ROWS))
    answer = client.get("/streams/nothing/records?limit=0")
    assert (answer.body, answer.headers["mainstem-end"]) == (b"", "false")
    browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    assert client.get("/streams/nothing/records", accept=browser).rows() == ROWS


def test_what_belongs_to_a_record_beside_its_row(client: Client):
    client.create("beside", schema=SCHEMA)
    given = {"id": 1, "name": "a", "_key": "k", "_headers": {"h": "1"}, "_timestamp": "2026-01-31T12:00:00Z"}
    assert client.post("beside", lines([given])).json()["records"] == 1
    (row,) = client.get("/streams/beside/records?metadata=true").rows()
    assert (row["_key"], row["_headers"], row["_timestamp"][:19]) == ("k", {"h": "1"}, "2026-01-31T12:00:00")
    # What is read with it can be posted again.
    client.create("again", schema=SCHEMA)
    assert client.post("again", lines([row])).json()["records"] == 1
    assert client.get("/streams/again/records?metadata=true").rows() == [row]


@pytest.mark.parametrize("key", [["id"], ["id", "name"]], ids=["one", "two"])
def test_the_key_of_columns_is_not_another(client: Client, key):
    name = f"keyed-{len(key)}"
    client.create(name, schema=SCHEMA, key=key)
    client.post(name, lines(ROWS))
    (row, *_) = client.get(f"/streams/{name}/records?metadata=true").rows()
    assert client.post(name, lines([row])).json()["records"] == 1
    for body, kind in ((lines([row, {**row, "_key": "7"}]), NDJSON), (b"id,name,_key\n1,a,1\n1,a,7\n", "text/csv")):
        answer = client.post(name, body, kind)
        assert (answer.status, answer.json()["title"]) == (422, "InvalidRecord")
        assert f"made of {', '.join(key)}, and the one that is given is another" in answer.json()["detail"]
    assert answer.json()["line"] == (3 if len(key) == 1 else 2)
    assert client.get(f"/streams/{name}").json()["records"] == len(ROWS) + 1


def test_records_over_the_limit_of_the_server(tmp_path):
    from mainstem.testing.server import ServerProcess

    with (
        ServerProcess(tmp_path / "data", "--http", "127.0.0.1:0", "--record-bytes-max", "10000") as server,
        Client(server.http) as client,
    ):
        client.create("small", schema=SCHEMA)
        client.create("bytes")
        row = {"id": 1, "name": "x" * 20_000}
        table = pa.table({"id": [1], "name": ["x" * 20_000]})
        for answer in (
            client.post("small", lines([row])),
            client.post("small", json.dumps([row]).encode(), "application/json"),
            client.post("small", arrow(table), ARROW),
            client.post("bytes", lines([{"value": "x" * 20_000}])),
            client.post("bytes", lines([{"value": "x" * 20_000, "headers": {"h": "1"}}])),
        ):
            assert (answer.status, answer.json()["title"]) == (413, "RecordTooLarge"), answer


def test_lines_that_are_objects_only_together_are_no_rows(client: Client):
    client.create("halves")
    for first in (b'{"value": "a"', b'{"a": [{"x": 1}', b'{"a": 1}, {"b": 2}'):
        answer = client.post("halves", first + b'\n"key": "b"}, {"value": "c"}\n')
        assert (answer.status, answer.json()["line"]) == (422, 1)
    answer = client.post("halves", b'{"a": [{"x": 1}\n{"y": 2}]}\n{"p": 1},{"q": 2}\n')
    assert (answer.status, answer.json()["line"]) == (422, 1)
    assert client.post("halves", b'{"a": [{"x": 1}, {"y": 2}]}\n{"p": 1}\n').json()["records"] == 2
