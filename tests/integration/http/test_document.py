"""Requests made from the OpenAPI document, right and wrong: what is answered is what the document says.

Values are made of the document's own schemas, by `made`. A request that fits may be refused for what it means, never
for its form alone with a status that nobody announced; one that does not fit is refused. Nothing fails in the server.
"""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy

from mainstem.server.http.openapi import document
from mainstem.testing.server import ServerProcess
from tests.integration.http.client import Answer, Client

DOCUMENT = document("0")
OPERATIONS = [(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods]
# What exists, beside what a schema would make up: a document says how a name looks, not which there are.
STREAMS, GROUPS = st.sampled_from(["made", "typed", "nowhere"]), st.sampled_from(["readers", "nobody"])
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.http) as found:
        found.create("typed", schema={"id": "int64", "name": "string"}, key="id")
        found.post("typed", b'{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n')
        yield found


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    found = schema.get("$ref")
    return DOCUMENT["components"]["schemas"][found.rpartition("/")[2]] if found else schema


def made(schema: dict[str, Any]) -> SearchStrategy[Any]:
    """Values that a schema of this document allows."""
    schema = resolved(schema)
    if "oneOf" in schema and "properties" not in schema:
        return st.one_of([made(each) for each in schema["oneOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "string" if "pattern" in schema:
            return st.from_regex(schema["pattern"], fullmatch=True).filter(lambda text: len(text) < 250)
        case "string":
            return st.text(max_size=schema.get("maxLength", 20))
        case "integer":
            return st.integers(schema.get("minimum", -5), schema.get("maximum", 1 << 40))
        case "number":
            return st.floats(allow_nan=False, allow_infinity=False)
        case "boolean":
            return st.booleans()
        case "array":
            return st.lists(made(schema.get("items", {})), max_size=3)
        case "object" if "properties" in schema:
            properties = {name: made(each) for name, each in schema["properties"].items()}
            required = {name: properties.pop(name) for name in schema.get("required", ())}
            found = st.fixed_dictionaries(required, optional=properties)
            return found.filter(lambda value: is_valid(schema, value)) if "oneOf" in schema else found
    return JSON_VALUES


def is_valid(schema: dict[str, Any], value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]}).is_valid(value))


def ask(client: Client, method: str, path: str, data: DataObject, body: Any = None) -> Answer:
    """A request of an operation, whose parameters fit."""
    operation = DOCUMENT["paths"][path][method]
    query, headers = {}, {}
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            known = STREAMS if path.startswith("/streams") else GROUPS
            name = data.draw(known | made(parameter["schema"]))
            path = path.replace("{name}", quote(name, safe=""))
        elif parameter["in"] == "query" and data.draw(st.integers(0, 3)) == 0:
            value = data.draw(made(parameter["schema"]))
            query[parameter["name"]] = json.dumps(value) if isinstance(value, bool) else value
    if body is not None:
        headers["content_type"] = "application/json"
        body = json.dumps(body).encode()
    return client.ask(method.upper(), path + ("?" + urlencode(query) if query else ""), body, **headers)


def check(method: str, path: str, answer: Answer) -> None:
    """The answer is one of those that the document announces."""
    said = DOCUMENT["paths"][path][method]["responses"]
    assert answer.status < 500, answer
    response = said.get(str(answer.status)) or said["default"]
    if answer.status == 204:
        assert answer.body == b""
        return
    kind = answer.headers["content-type"].partition(";")[0]
    assert kind in response["content"], (answer, list(response["content"]))
    if kind.endswith("json") and kind != "application/x-ndjson":
        schema = {**response["content"][kind]["schema"], "components": DOCUMENT["components"]}
        jsonschema.Draft202012Validator(schema).validate(json.loads(answer.body))


LONG = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)


@pytest.mark.slow("asks a server for much, of every operation")
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_what_fits_the_document_is_answered_as_it_says(client: Client, method, path):
    takes = DOCUMENT["paths"][path][method].get("requestBody", {}).get("content", {})

    @LONG
    @given(st.data())
    def test(data: DataObject) -> None:
        body = data.draw(made(takes["application/json"]["schema"])) if takes else None
        check(method, path, ask(client, method, path, data, body))

    test()


@pytest.mark.slow("asks a server for much, of every operation")
@pytest.mark.parametrize(
    ("method", "path"), [(m, p) for m, p in OPERATIONS if "requestBody" in DOCUMENT["paths"][p][m]]
)
def test_bodies_that_do_not_fit_are_refused(client: Client, method, path):
    schema = resolved(DOCUMENT["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"])
    # An empty body says nothing.
    wrong = JSON_VALUES.filter(lambda value: not is_valid(schema, value) and not _says_nothing(value))

    @LONG
    @given(st.data())
    def test(data: DataObject) -> None:
        answer = ask(client, method, path, data, data.draw(wrong))
        check(method, path, answer)
        assert 400 <= answer.status < 500, answer

    test()


def _says_nothing(value: Any) -> bool:
    return value is None or value in ([], {})


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_parameters_that_do_not_fit_are_refused(client: Client, method, path):
    strict = [
        parameter["name"]
        for parameter in DOCUMENT["paths"][path][method].get("parameters", ())
        if parameter["in"] == "query" and parameter["schema"].keys() & {"enum", "minimum", "pattern", "default"}
    ]
    for name in strict:
        asked = path.replace("{name}", "typed") + f"?{name}=not+a+number%2C+no+name"
        answer = client.ask(method.upper(), asked, b"[]" if method == "post" else None)
        check(method, path, answer)
        assert 400 <= answer.status < 500, answer


@pytest.mark.parametrize("path", DOCUMENT["paths"])
def test_other_methods_are_refused(client: Client, path):
    known = {method.upper() for method in DOCUMENT["paths"][path]}
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS"} - known:
        answer = client.ask(method, path.replace("{name}", "typed"))
        assert (answer.status, set(answer.headers["allow"].split(", ")) - {"HEAD"}) == (405, known)


def test_every_kind_of_rows_that_the_document_names_is_there(client: Client):
    kinds = DOCUMENT["paths"]["/streams/{name}/records"]["get"]["responses"]["200"]["content"]
    client.create("kinds")
    for kind in kinds:
        answer = client.ask("HEAD", "/streams/kinds/records", accept=kind)
        assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, kind)
