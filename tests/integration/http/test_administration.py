"""Streams and schemas over HTTP, and the document that says what there is."""

import json
import re
from typing import Any
from urllib.request import urlopen

import jsonschema  # type: ignore[import-untyped]
import pytest

import mainstem
from mainstem.server.http.routes import ROUTES
from tests.integration.http.client import Client

SCHEMA = {"id": "int64", "name": "string"}


def test_a_stream_from_its_creation_to_its_end(client: Client, server):
    options = {"schema": SCHEMA, "key": "id", "shards": 2, "retention": "3d"}
    created = client.ask("PUT", "/streams/life", options)
    assert created.status == 201
    assert (created.json()["shards"], created.json()["key"], created.json()["retention"]) == (2, ["id"], "3d")
    assert created.json()["schema"] == SCHEMA
    # Again it is there, and has what is said; or it has not.
    assert client.ask("PUT", "/streams/life", options).status == 200
    assert client.ask("PUT", "/streams/life", {"shards": 2.0}).status == 200
    assert client.ask("PUT", "/streams/life", {"shards": 3}).json()["title"] == "InvalidSetting"
    assert client.ask("PATCH", "/streams/life", {"retention": "1d", "shards": 4}).json()["shards"] == 4
    assert client.get("/streams/life").json()["retention"] == "1d"
    assert "life" in [stream["name"] for stream in client.get("/streams").json()["streams"]]
    client.post("life", b'{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n')
    assert client.ask("POST", "/streams/life/erase", {"key": 1}).json()["records"] == 1
    assert client.ask("POST", "/streams/life/erase", {"key": {"base64": "Mg=="}}).json()["records"] == 1
    assert client.ask("DELETE", "/streams/life").status == 204
    assert client.get("/streams/life").status == 404
    with mainstem.connect(server.url) as hub, pytest.raises(mainstem.UnknownStream):
        hub.streams.get("life")


def test_schemas(client: Client):
    client.create("typed", schema=SCHEMA)
    wider = {**SCHEMA, "note": {"type": "string", "default": ""}}
    dry = client.ask("PUT", "/streams/typed/schema", {"schema": wider, "dry_run": True})
    assert (dry.status, client.get("/streams/typed").json()["schema_version"]) == (200, 1)
    assert client.ask("PUT", "/streams/typed/schema", {"schema": wider}).json()["schema_version"] == 2
    versions = client.get("/streams/typed/schemas").json()["schemas"]
    assert [(each["version"], list(each["schema"])) for each in versions] == [
        (1, ["id", "name"]),
        (2, ["id", "name", "note"]),
    ]
    answer = client.ask("PUT", "/streams/typed/schema", {"schema": {"id": "string"}})
    assert (answer.status, answer.json()["title"]) == (409, "IncompatibleSchema")
    twice = client.ask("PUT", "/streams/typed/schema", b'{"schema": {"a": "int64", "a": "string"}}')
    assert (twice.status, twice.json()["title"]) == (422, "InvalidSchema")


@pytest.mark.parametrize(
    ("method", "path", "body", "title"),
    [
        ("PUT", "/streams/odd", {"shard": 2}, "InvalidSetting"),
        ("PUT", "/streams/odd", {"shards": "two"}, "InvalidSetting"),
        ("PUT", "/streams/odd", {"shards": 2.5}, "InvalidSetting"),
        ("PATCH", "/streams/odd", {"retention": None}, "InvalidSetting"),
        ("PUT", "/streams/odd", {"schema": None}, "InvalidSetting"),
        ("PUT", "/streams/odd", {"retention": 7}, "InvalidSetting"),
        ("PUT", "/streams/odd", {"schema": "int64"}, "InvalidSchema"),
        ("PUT", "/streams/odd", b"[]", "InvalidRequest"),
        ("PUT", "/streams/odd", b'{"shards": 1, "shards": 2}', "InvalidSetting"),
        ("PUT", "/streams/odd", b"{", "InvalidRequest"),
        ("PUT", "/streams/odd", {"key": [1]}, "InvalidSetting"),
        ("PATCH", "/streams/nowhere", {"shards": 2}, "UnknownStream"),
        ("POST", "/streams/nowhere/trim", {"before": "yesterday"}, "InvalidSetting"),
        ("POST", "/streams/nowhere/trim", {"offset": -1}, "InvalidSetting"),
        ("POST", "/streams/nowhere/erase", {}, "InvalidSetting"),
        ("POST", "/streams/nowhere/erase", {"key": True}, "InvalidSetting"),
        ("GET", "/streams?after=x", None, "InvalidSetting"),
    ],
)
def test_what_cannot_be_done(client: Client, method, path, body, title):
    answer = client.ask(method, path, body)
    assert (answer.json()["title"], answer.status >= 400) == (title, True), answer


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/streams/misspelt?shards=4", {}),
        ("POST", "/streams/misspelt/records?onbad=dead_letter", None),
        ("POST", "/streams/misspelt/records?on_bad=raise&on_bad=dead_letter", None),
        ("GET", "/streams?befor=7", None),
        ("DELETE", "/streams/misspelt?dry_run=true", None),
    ],
)
def test_parameters_that_are_not_there_are_refused(client: Client, method, path, body):
    answer = client.ask(method, path, body)
    assert (answer.status, answer.json()["title"]) == (400, "InvalidSetting"), answer
    name = path.partition("?")[2].partition("=")[0]
    assert name in answer.json()["detail"]


def test_the_document_is_valid_and_has_every_route(client: Client):
    document = client.get("/openapi.json").json()
    assert {(row.method.lower(), row.path) for row in ROUTES} == {
        (method, path) for path, methods in document["paths"].items() for method in methods
    }
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    ids = [route["operationId"] for methods in document["paths"].values() for route in methods.values()]
    assert len(set(ids)) == len(ids)
    # Whoever adds a route says which right it needs; probes need none.
    assert {row.path for row in ROUTES if not row.action} == {"/livez", "/healthz", "/readyz"}


def test_answers_are_what_the_document_says(client: Client):
    document = client.get("/openapi.json").json()
    client.create("shown", schema=SCHEMA)
    asked: list[tuple[str, str, Any]] = [
        ("GET", "/streams", None),
        ("GET", "/streams/shown", None),
        ("PUT", "/streams/shown", {}),
        ("PATCH", "/streams/shown", {"retention": "1d"}),
        ("POST", "/streams/shown/records", b'{"id": 1, "name": "a"}\n'),
        ("GET", "/streams/shown/schemas", None),
        ("PUT", "/streams/shown/schema", {"schema": SCHEMA}),
        ("POST", "/streams/shown/erase", {"key": "x"}),
        ("POST", "/streams/shown/trim", {"offset": 0}),
        ("GET", "/readyz", None),
        ("GET", "/streams/nowhere", None),
        ("POST", "/streams/shown/records", b'{"id": "x"}\n'),
        ("GET", "/streams/shown/find", None),
        ("DELETE", "/streams/shown", None),
    ]
    for method, path, body in asked:
        answer = client.ask(method, path, body)
        route = document["paths"][re.sub("/(shown|nowhere)", "/{name}", path)][method.lower()]
        said = route["responses"].get(str(answer.status)) or route["responses"]["default"]
        if answer.status == 204:
            assert not answer.body
            continue
        content = said["content"][answer.headers["content-type"].partition(";")[0]]
        schema = {**content["schema"], "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(json.loads(answer.body))


def test_the_page_brings_everything_it_needs(client: Client, server):
    answer = client.get("/docs")
    page = answer.body.decode()
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page)
    with urlopen(f"http://{server.http}/livez") as answered:
        assert json.loads(answered.read()) == {"status": "ok"}
