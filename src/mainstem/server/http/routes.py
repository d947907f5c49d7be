"""The routes, in one table: what each asks for, what it answers, and which right it needs.

Whoever adds a route adds a row, and with it the right and the documentation: the application and the OpenAPI document
are both made of this table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mainstem.produce.posting import READERS
from mainstem.server.http.renderings import EVENTS, RENDERINGS


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a request may say beside its body."""

    name: str
    text: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    place: str = "query"
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One route. `action` is the right it needs, on the stream that its path names if it names one; "" needs none."""

    method: str
    path: str
    action: str
    handler: str
    summary: str
    parameters: Sequence[Parameter] = ()
    takes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    gives: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    status: int = 200
    other: Sequence[int] = ()
    # Whether Host and Origin do not matter: probes come from anywhere. With an action it is open where nobody has to be
    # known, and then they do matter; else whoever asks for it shows a token.
    is_open: bool = False

    @property
    def is_named(self) -> bool:
        """Whether it is about one stream or group; else it is about all."""
        return "{name}" in self.path


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


# What groups may be called, and streams; those with `_` in front are the log's own.
NAME: Final = "^[a-zA-Z0-9._-]{1,249}$"
STREAM_NAME: Final = r"^\.{0,2}[a-zA-Z0-9_][a-zA-Z0-9._-]*$"
NEW_STREAM_NAME: Final = r"^(\.{1,2}[a-zA-Z0-9_]|[a-zA-Z0-9])[a-zA-Z0-9._-]*$"
# Without its checksum, and without the calendar.
_CURSOR: Final = "ms1:[0-9a-f]{32}:[0-9]{1,10}:([0-9]{1,19}(,[0-9]{1,19})*)?:[0-9a-f]{8}"
_DATE: Final = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_HOUR: Final = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME: Final = rf"{_DATE}T{_HOUR}(:[0-5][0-9](\.[0-9]{{1,6}})?)?(Z|[+-]{_HOUR})"
_AGO: Final = r"[0-9]{1,12}us|[0-9]{1,5}(\.[0-9]{1,3})? ?(ms|s|m|h|d)"
CURSOR: Final = f"^{_CURSOR}$"
# Where reading may begin.
START: Final = f"^(earliest|latest|{_CURSOR}|{_TIME}|{_AGO})$"
_JSON: Final = "application/json"
_ID: Final = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
_ROWS: Final[dict[str, Any]] = {
    # What is not JSON is bytes, of which a schema says nothing.
    "application/x-ndjson": {"description": "A JSON object a line."},
    "application/json": {"type": "array", "items": {"type": "object"}},
    "text/csv": {"description": "The first line names the columns."},
    "application/vnd.apache.arrow.stream": {"description": "An Arrow IPC stream."},
    "application/vnd.apache.parquet": {"description": "A Parquet file."},
    EVENTS: {"type": "string", "description": "One record an event; its id is a cursor."},
}
_NO_ROW: Final = {
    "description": "Anything else is no row: it is refused with 422, or a dead letter if `on_bad` says so."
}
_TAKEN: Final = {
    kind: _ROWS.get(kind, _ROWS["application/x-ndjson"])
    if kind != _JSON
    else {"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}, _NO_ROW]}
    for kind in READERS
}
_PAGE: Final = {kind: _ROWS[kind] for kind in RENDERINGS}

_SOME_TEXT: Final = {"type": "string", "minLength": 1}
_WHERE: Final = Parameter(
    "where", "Only records for which this SQL expression is true, such as `amount > 100`.", _SOME_TEXT
)
_READ_PARAMETERS: Final = (
    Parameter(
        "columns",
        "Only these columns, divided by commas; `_shard`, `_offset`, `_timestamp`, `_key` and "
        "`_headers` are there too.",
        _SOME_TEXT,
    ),
    Parameter(
        "from",
        "`earliest` (the default), `latest` (the default of events), a cursor, a time "
        "(`2026-01-31T12:00:00Z`) or how long ago (`15m`).",
        {"type": "string", "pattern": START},
    ),
    Parameter(
        "limit",
        "At most so many records. The answer may have fewer and says where to go on.",
        {"type": "integer", "minimum": 0, "maximum": 1 << 31},
    ),
    Parameter(
        "metadata",
        "Also `_shard`, `_offset`, `_timestamp`, `_key` and `_headers` of every record.",
        {"type": "boolean", "default": False},
    ),
    Parameter(
        "group",
        "Begin where this group of readers stands; where it has not read the stream, as `from` says.",
        {"type": "string", "pattern": NAME},
    ),
    Parameter(
        "on_bad",
        "Records that are no rows of the schema end the answer, or are passed over.",
        {"type": "string", "enum": ["raise", "skip"], "default": "raise"},
    ),
)

ROUTES: Final = (
    Row("GET", "/livez", "", "livez", "Whether the process answers.", gives={_JSON: _ref("Status")}, is_open=True),
    Row("GET", "/healthz", "", "livez", "The same, by its older name.", gives={_JSON: _ref("Status")}, is_open=True),
    Row(
        "GET",
        "/readyz",
        "",
        "readyz",
        "Whether the server takes clients.",
        gives={_JSON: _ref("Status")},
        other=(503,),
        is_open=True,
    ),
    Row(
        "GET",
        "/metrics",
        "describe",
        "metrics",
        "What the server counts, for Prometheus.",
        gives={"text/plain": {"type": "string"}},
        other=(503,),
        is_open=True,
    ),
    Row("GET", "/openapi.json", "describe", "openapi", "This document.", gives={_JSON: {"type": "object"}}),
    Row(
        "GET", "/docs", "describe", "docs", "A page that shows this document.", gives={"text/html": {"type": "string"}}
    ),
    Row(
        "GET",
        "/streams",
        "describe",
        "list_streams",
        "The streams, as many as fit; `Link` says where others are.",
        parameters=(Parameter("after", "Only those with a larger id.", _ID),),
        gives={_JSON: _ref("StreamList")},
    ),
    Row("GET", "/streams/{name}", "describe", "get_stream", "One stream as it is now.", gives={_JSON: _ref("Stream")}),
    Row(
        "PUT",
        "/streams/{name}",
        "create",
        "create_stream",
        "Create a stream; one that is there already must have everything that is said here.",
        takes={_JSON: _ref("StreamOptions")},
        gives={_JSON: _ref("Stream")},
        status=201,
        other=(200, 409, 422),
    ),
    Row(
        "PATCH",
        "/streams/{name}",
        "alter",
        "alter_stream",
        "Change what can change; what is left out stays.",
        takes={_JSON: _ref("StreamChanges")},
        gives={_JSON: _ref("Stream")},
    ),
    Row("DELETE", "/streams/{name}", "delete", "delete_stream", "Delete a stream.", status=204),
    Row(
        "POST",
        "/streams/{name}/trim",
        "delete",
        "trim_stream",
        "Let go of the records before a time, or below an offset.",
        takes={_JSON: _ref("Trim")},
        gives={_JSON: _ref("Stream")},
        other=(422,),
    ),
    Row(
        "POST",
        "/streams/{name}/erase",
        "delete",
        "erase_key",
        "Take away every record of one key.",
        takes={_JSON: _ref("Erase")},
        gives={_JSON: _ref("Erasure")},
        other=(422,),
    ),
    Row(
        "GET",
        "/streams/{name}/schemas",
        "describe",
        "list_schemas",
        "The versions of a stream's schema.",
        gives={_JSON: _ref("SchemaList")},
    ),
    Row(
        "PUT",
        "/streams/{name}/schema",
        "alter",
        "set_schema",
        "Give a stream the next version of its schema.",
        takes={_JSON: _ref("SchemaChange")},
        gives={_JSON: _ref("Stream")},
        other=(409, 422),
    ),
    Row(
        "GET",
        "/groups",
        "group",
        "list_groups",
        "The groups of readers, as many as fit; `Link` says where others are.",
        parameters=(Parameter("after", "Only those whose name comes later."),),
        gives={_JSON: _ref("GroupList")},
    ),
    Row(
        "GET",
        "/groups/{name}",
        "group",
        "get_group",
        "One group: its members, where it stands in every shard, and how far behind it is.",
        gives={_JSON: _ref("Group")},
    ),
    Row("DELETE", "/groups/{name}", "group", "delete_group", "Forget a group that has no members.", status=204),
    Row(
        "POST",
        "/groups/{name}/reset",
        "group",
        "reset_group",
        "Let a group without members go on from somewhere else. By default it is only said what that would do.",
        takes={_JSON: _ref("Reset")},
        gives={_JSON: _ref("ResetResult")},
        other=(409, 422),
    ),
    Row(
        "POST",
        "/groups/{name}/commit",
        "group",
        "commit_cursor",
        "Who reads for a group without being a member says how far it has come. The group is made if there is none.",
        takes={_JSON: _ref("Commit")},
        status=204,
        other=(409, 422),
    ),
    Row(
        "POST",
        "/streams/{name}/records",
        "write",
        "post_records",
        "Write rows; answered when they are durable. One that does not fit is answered with its line, and nothing is "
        "written, unless `on_bad=dead_letter`.",
        parameters=(
            Parameter(
                "on_bad",
                "`dead_letter` keeps rows that do not fit in `<stream>.dead`, with the reason.",
                {"type": "string", "enum": ["raise", "dead_letter"], "default": "raise"},
            ),
            Parameter(
                "Idempotency-Key",
                "A request with a key that was used within 7 days writes nothing and is answered like the first one.",
                {"type": "string", "pattern": "[^ \t]", "maxLength": 255},
                "header",
            ),
        ),
        takes=_TAKEN,
        gives={_JSON: _ref("Written")},
        other=(413, 415, 422, 503),
    ),
    Row(
        "GET",
        "/streams/{name}/records",
        "read",
        "read_records",
        "Read rows to the end of the stream, or to a limit; or follow it, as events.",
        parameters=(_WHERE, *_READ_PARAMETERS, Parameter("Last-Event-ID", "Where events go on.", place="header")),
        gives={**_PAGE, EVENTS: _ROWS[EVENTS]},
        other=(406, 410, 422),
    ),
    Row(
        "GET",
        "/streams/{name}/find",
        "read",
        "find_records",
        "The records for which `where` is true; batches in which none can be are not read.",
        parameters=(replace(_WHERE, is_required=True), *_READ_PARAMETERS),
        gives=_PAGE,
        other=(406, 410, 422),
    ),
)
