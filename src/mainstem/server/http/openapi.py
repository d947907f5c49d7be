"""The OpenAPI document, made of the table of routes, and the page that shows it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mainstem.log.administration import RETENTION_BYTES_MAX
from mainstem.registry.types import TYPE_NAMES
from mainstem.server.http.problems import MEDIA_TYPE
from mainstem.server.http.routes import CURSOR, NAME, NEW_STREAM_NAME, ROUTES, START, STREAM_NAME, Row

_TEXT: Final[dict[str, Any]] = {"type": "string"}
_COUNT: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1}
_NAMES: Final = {"type": "array", "items": _TEXT}
_NAME_OR_NAMES: Final = {"oneOf": [_TEXT, _NAMES]}
# From a second to centuries, and from nothing on.
_RETENTION: Final = {
    **_TEXT,
    "pattern": r"^([1-9][0-9]{6,15}us|[1-9][0-9]{3,12} ?ms|[1-9][0-9]{0,4}(\.[0-9]{1,3})? ?(s|m|h|d))$",
}
_DURATION: Final = {**_TEXT, "pattern": r"^([0-9]{1,15}us|[0-9]{1,5}(\.[0-9]{1,3})? ?(ms|s|m|h|d))$"}
_TIME: Final = {"type": ["string", "null"], "format": "date-time"}


def _object(properties: dict[str, Any], required: Sequence[str] = (), *, closed: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        found["required"] = list(required)
    if closed:
        found["additionalProperties"] = False
    return found


_LIFE: Final[dict[str, Any]] = {
    "retention": {**_RETENTION, "description": "How long records are kept, such as `7d`."},
    "retention_bytes": {
        **_COUNT,
        "maximum": RETENTION_BYTES_MAX,
        "description": "How large the stream may grow; 0: however large.",
    },
    "cleanup": {**_TEXT, "enum": ["delete", "compact", "compact,delete"]},
    "tombstones": {**_DURATION, "description": "How long a compacted stream keeps deletions."},
    "shards": {"type": "integer", "minimum": 1, "maximum": 4096},
}
_SCHEMA: Final = {"$ref": "#/components/schemas/Schema"}
_TYPE: Final = {"$ref": "#/components/schemas/Type"}
_COMPATIBILITY: Final = {
    "type": "string",
    "enum": [
        "backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive", "none",
    ],
}  # fmt: skip
_PLACE: Final = {
    **_TEXT,
    "pattern": START,
    "description": "`earliest`, `latest`, a cursor, a time (`2026-01-31T12:00:00Z`), how long ago (`15m`).",
}
_OFFSET: Final = _object(
    {"stream": _TEXT, "shard": _COUNT, "offset": _COUNT}, ["stream", "shard", "offset"], closed=True
)
_RESET: Final = {
    "streams": {**_NAMES, "description": "Only these of its streams."},
    "dry_run": {"type": "boolean", "default": True},
}
_SCHEMAS: Final[dict[str, Any]] = {
    "Status": _object({"status": _TEXT, "reason": _TEXT, "disk": _TEXT}, ["status"]),
    "Problem": _object(
        {
            "type": _TEXT,
            "title": _TEXT,
            "status": {"type": "integer"},
            "detail": _TEXT,
            "code": {"type": "integer", "description": "The code of the native protocol; see docs/errors.md."},
            "retriable": {"type": "boolean"},
        },
        ["type", "title", "status", "detail", "code", "retriable"],
    ),
    "Schema": {
        "description": 'Names and types, such as {"id": "int64", "at": "timestamp"}, or an Avro record schema.',
        "anyOf": [
            {"type": "object", "minProperties": 1, "additionalProperties": _TYPE},
            _object({"type": {"const": "record"}, "name": _TEXT, "fields": {"type": "array"}}, ["type", "fields"]),
        ],
        "examples": [{"id": "int64", "name": "string", "at": "timestamp"}],
    },
    "Type": {
        "description": "The name of a type, an object for a struct or with a `type` and more, a list of one type.",
        "anyOf": [
            {**_TEXT, "enum": list(TYPE_NAMES)},
            {**_TEXT, "minLength": 1, "description": "One with parts, such as `decimal(10, 2)` or `list<string>`."},
            {"type": "object", "minProperties": 1},
            {"type": "array", "items": _TYPE, "minItems": 1, "maxItems": 1},
        ],
    },
    "Stream": _object(
        {
            "name": _TEXT,
            "id": _COUNT,
            "uuid": _TEXT,
            **dict.fromkeys(("shards", "generation", "records", "bytes", "retention_bytes"), _COUNT),
            **dict.fromkeys(("schema_version", "waiting_bytes"), _COUNT),
            "hash": _TEXT,
            "starts": {"type": "array", "items": _COUNT},
            "ends": {"type": "array", "items": _COUNT},
            "retention": {"type": ["string", "null"]},
            "cleanup": _TEXT,
            "tombstones": _TEXT,
            "created": _TIME,
            "gone_by": _TIME,
            "key": _NAMES,
            "index": _NAMES,
            "compatibility": _TEXT,
            "schema": _SCHEMA,
        },
        ["name", "id", "uuid", "shards", "records", "bytes", "starts", "ends"],
    ),
    "StreamList": _object(
        {"streams": {"type": "array", "items": {"$ref": "#/components/schemas/Stream"}}}, ["streams"]
    ),
    "StreamOptions": _object(
        {
            **_LIFE,
            "schema": _SCHEMA,
            "key": _NAME_OR_NAMES,
            "index": _NAME_OR_NAMES,
            "compatibility": _COMPATIBILITY,
            "hash": {**_TEXT, "enum": ["crc32", "murmur2"]},
        },
        closed=True,
    )
    | {"dependentRequired": {"key": ["schema"], "index": ["schema"]}},
    "StreamChanges": _object(dict(_LIFE), closed=True),
    "Trim": {
        "oneOf": [
            _object({"before": {**_TEXT, "format": "date-time"}, "shard": _COUNT}, ["before"], closed=True),
            _object({"offset": _COUNT, "shard": _COUNT}, ["offset"], closed=True),
        ]
    },
    "Erase": _object(
        {
            "key": {
                "description": 'A text, a whole number, {"base64": ...}, or the values of the key columns.',
                "oneOf": [
                    _TEXT,
                    {"type": "integer"},
                    _object({"base64": {**_TEXT, "format": "byte"}}, ["base64"], closed=True),
                    {"type": "array", "minItems": 1},
                ],
            }
        },
        ["key"],
        closed=True,
    ),
    "Erasure": _object({"records": _COUNT, "gone_by": _TIME}, ["records", "gone_by"]),
    "SchemaList": _object(
        {
            "schemas": {
                "type": "array",
                "items": _object({"version": _COUNT, "id": _COUNT, "created": _TIME, "schema": _SCHEMA}, ["version"]),
            }
        },
        ["schemas"],
    ),
    "SchemaChange": _object(
        {"schema": _SCHEMA, "compatibility": _COMPATIBILITY, "dry_run": {"type": "boolean"}}, ["schema"], closed=True
    ),
    "GroupList": _object({"groups": {"type": "array", "items": {"$ref": "#/components/schemas/Group"}}}, ["groups"]),
    "Group": _object(
        {
            "name": _TEXT,
            "generation": _COUNT,
            "created": _TIME,
            "changed": _TIME,
            "streams": _NAMES,
            "records": {**_COUNT, "description": "How many are unread."},
            "seconds": {"type": "number", "description": "The age of the first that is unread."},
            "member_count": _COUNT,
            "spread": {"type": "boolean", "description": "Whether members share shards, batch by batch."},
            "trend": {"type": ["number", "null"], "description": "How many more are unread each second."},
            "catch_up_seconds": {"type": ["number", "null"]},
            "hold_seconds": {
                "type": "number",
                "description": "How much longer than retention says what is unread is kept; 0 if it is not.",
            },
            "held_records": {**_COUNT, "description": "How many are there only because of that."},
            "members": {
                "type": "array",
                "items": _object({"id": _TEXT, "client": _TEXT, "shards": _COUNT}, ["id", "client", "shards"]),
            },
            "advice": {
                "oneOf": [
                    {"type": "null"},
                    _object({"members": _COUNT, "confidence": _TEXT, "capacity": {"type": ["number", "null"]}}),
                ]
            },
            "shards": {"type": "array", "items": {"$ref": "#/components/schemas/GroupShard"}},
        },
        ["name", "streams", "records", "seconds", "member_count"],
    ),
    "GroupShard": _object(
        {
            "stream": _TEXT,
            **dict.fromkeys(("shard", "offset", "end", "records"), _COUNT),
            "seconds": {"type": "number"},
            "committed": _TIME,
            "member": {"type": ["string", "null"]},
        },
        ["stream", "shard", "offset", "end", "records"],
    ),
    "Reset": {
        "oneOf": [
            _object({"to": _PLACE, **_RESET}, ["to"], closed=True),
            _object({"offsets": {"type": "array", "items": _OFFSET}, **_RESET}, ["offsets"], closed=True),
        ]
    },
    "ResetResult": _object(
        {
            "dry_run": {"type": "boolean"},
            "shards": {
                "type": "array",
                "items": _object(
                    {"stream": _TEXT, **dict.fromkeys(("shard", "before", "after"), _COUNT)},
                    ["stream", "shard", "before", "after"],
                ),
            },
        },
        ["dry_run", "shards"],
    ),
    "Commit": _object(
        {
            "stream": _TEXT,
            "cursor": {
                **_TEXT,
                "pattern": CURSOR,
                "description": "As `Mainstem-Cursor` or the id of an event says it.",
            },
            "generation": {
                **_COUNT,
                "description": "As `Mainstem-Group-Generation` said it when that was read: after a reset of the group "
                "nothing is committed.",
            },
        },
        ["stream", "cursor"],
        closed=True,
    ),
    "Written": _object(
        {
            "stream": _TEXT,
            "records": _COUNT,
            "offsets": {
                "type": "array",
                "items": _object({"shard": _COUNT, "first": _COUNT, "last": _COUNT}, ["shard", "first", "last"]),
            },
            "dead": _COUNT,
            "duplicate": {"type": "boolean"},
            "left_out": _COUNT,
            "share": {"type": "number"},
        },
        ["stream", "records", "offsets", "dead", "duplicate"],
    ),
}


# How a client says who it is.
_WHO: Final = {"token": {"type": "http", "scheme": "bearer"}, "certificate": {"type": "mutualTLS"}}


def document(version: str) -> dict[str, Any]:
    """The OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for row in ROUTES:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Mainstem", "version": version, "description": "Streams over HTTP."},
        "paths": paths,
        "components": {"schemas": _SCHEMAS, "securitySchemes": _WHO},
    }


def _operation(row: Row) -> dict[str, Any]:
    problem = {
        "description": "A problem.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    answer: dict[str, Any] = {"description": row.summary}
    if row.gives:
        answer["content"] = {kind: {"schema": dict(schema)} for kind, schema in row.gives.items()}
    responses: dict[str, Any] = {str(row.status): answer}
    for status in row.other:
        responses[str(status)] = answer if status < 300 or row.is_open else problem
    if not row.is_open or row.action:
        responses["default"] = problem
    operation: dict[str, Any] = {"operationId": _operation_id(row), "summary": row.summary, "responses": responses}
    parameters: list[dict[str, Any]] = [
        {
            "name": each.name,
            "in": each.place,
            "description": each.text,
            "required": each.is_required,
            "schema": dict(each.schema),
        }
        for each in row.parameters
    ]
    if "{name}" in row.path:
        pattern = STREAM_NAME if row.path.startswith("/streams") else NAME
        if row.handler == "create_stream":
            pattern = NEW_STREAM_NAME
        text = {"type": "string", "pattern": pattern, "maxLength": 249}
        parameters.insert(0, {"name": "name", "in": "path", "required": True, "schema": text})
    if parameters:
        operation["parameters"] = parameters
    if row.takes:
        content = {kind: {"schema": dict(schema)} for kind, schema in row.takes.items()}
        # Without a body a stream is created, or changed, as it is; and no rows are no rows.
        needed = any(schema.keys() & {"required", "oneOf"} for schema in map(_resolved, row.takes.values()))
        operation["requestBody"] = {"content": content, "required": needed and row.handler != "post_records"}
    if row.action:
        operation["x-action"] = row.action
        # Or nothing, as long as nobody has to be known.
        operation["security"] = [{name: []} for name in _WHO] + [{}]
    return operation


def _resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _SCHEMAS[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return found


def _operation_id(row: Row) -> str:
    return "healthz" if row.path == "/healthz" else row.handler


PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Mainstem over HTTP</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
  details { border: 1px solid #ddd; border-radius: 4px; margin: .4rem 0; padding: .4rem .8rem; }
  summary { cursor: pointer; }
  code, pre { font: 13px/1.4 ui-monospace, monospace; }
  pre { background: #f6f6f6; padding: .6rem; overflow: auto; }
  .method { display: inline-block; width: 4.5rem; font-weight: 600; }
  table { border-collapse: collapse; } td { padding: .1rem .8rem .1rem 0; vertical-align: top; }
  @media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd; } pre { background: #252525; }
    details { border-color: #444; } }
</style>
<h1>Mainstem over HTTP</h1>
<p>The same as a document: <a href="/openapi.json">openapi.json</a>.</p>
<main id="routes"></main>
<script>
  const make = (tag, text, parent) => {
    const found = document.createElement(tag);
    if (text) found.textContent = text;
    parent.append(found);
    return found;
  };
  fetch("/openapi.json").then(answer => answer.json()).then(api => {
    const main = document.getElementById("routes");
    for (const [path, methods] of Object.entries(api.paths)) for (const [method, route] of Object.entries(methods)) {
      const box = make("details", "", main), head = make("summary", "", box);
      make("span", method.toUpperCase(), head).className = "method";
      make("code", path, head);
      make("p", route.summary, box);
      const table = make("table", "", box);
      for (const each of route.parameters || []) {
        const row = make("tr", "", table);
        make("code", each.name, make("td", "", row));
        make("td", each.in, row);
        make("td", each.description || "", row);
      }
      const body = route.requestBody;
      if (body) make("p", "takes " + Object.keys(body.content).join(", "), box);
      for (const [status, answer] of Object.entries(route.responses))
        make("p", status + ": " + Object.keys(answer.content || {"nothing": 0}).join(", "), box);
    }
    make("h2", "Documents", main);
    for (const [name, schema] of Object.entries(api.components.schemas)) {
      const box = make("details", "", main);
      make("summary", name, box);
      make("pre", JSON.stringify(schema, null, 2), box);
    }
  });
</script>
</html>
"""
