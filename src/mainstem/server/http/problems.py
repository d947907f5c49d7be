"""Problems: every error as RFC 9457 says it, with the code of the native protocol.

    {"type": "urn:mainstem:error:unknown-stream", "title": "UnknownStream", "status": 404, "detail": "...",
     "code": 110, "retriable": false, ...}

Beside these a problem has what the error knows: the field that does not fit, the offsets that are gone. What only HTTP
can get wrong (a method, a type of body) is an InvalidRequest with a status of its own.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from starlette.responses import Response

from mainstem.core import errors
from mainstem.core.errors import InvalidRequest, MainstemError, ProtocolError, Unauthenticated
from mainstem.core.limits import ERROR_TEXT_CHARS_MAX, HTTP_HEAD_BYTES_MAX, HTTP_HEAD_LINES_MAX

MEDIA_TYPE: Final = "application/problem+json"
_encode = msgspec.json.Encoder().encode

# The nearest class of an error decides.
_STATUS: Final[dict[type[MainstemError], int]] = {
    MainstemError: 500,
    errors.InvalidRequest: 400,
    errors.RecordTooLarge: 413,
    # What is said right and means nothing; a document can tell what is said wrong, which is 400.
    errors.InvalidCursor: 422,
    errors.InvalidPredicate: 422,
    errors.InvalidSchema: 422,
    errors.InvalidRecord: 422,
    errors.SchemaMismatch: 422,
    errors.UnknownStream: 404,
    errors.UnknownGroup: 404,
    errors.StreamExists: 409,
    errors.StreamDeleted: 410,
    errors.IncompatibleSchema: 409,
    errors.Refused: 409,
    errors.ReadOnly: 403,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.QuotaExceeded: 429,
    errors.FolderUnusable: 503,
    errors.Retriable: 503,
    errors.DiskFull: 507,
    errors.DeadlineExceeded: 504,
    errors.DataLoss: 410,
    errors.UndecodedRecords: 422,
    errors.Closed: 503,
}
_RETRY_SECONDS: Final = 1


# Advice for programs in Python and at the terminal, and what there is instead of it over HTTP.
_SAID_ELSEWHERE: Final = {
    "; --format lines takes it as it is": "",
    "as str(consumer.cursor) gives it": "as the header Mainstem-Cursor has it",
    "the text that str(consumer.cursor) gave": "the text that the header Mainstem-Cursor had",
    "; reading goes on after them if you call the consumer again": "; reading goes on after them",
    "; reading goes on after it if you call the consumer again, or opens with on_bad='skip'": (
        "; on_bad=skip passes over what is no row"
    ),
}


class HttpRefusal(Exception):
    """An answer that is an error, with a status that the error alone would not have."""

    def __init__(
        self, status: int, error: MainstemError, headers: Mapping[str, str] | None = None, **facts: Any
    ) -> None:
        super().__init__(str(error))
        self.status, self.error, self.headers, self.facts = status, error, dict(headers or {}), facts


def refusal(status: int, detail: str, **headers: str) -> HttpRefusal:
    """What only HTTP can get wrong."""
    return HttpRefusal(status, InvalidRequest(detail), {name.replace("_", "-"): text for name, text in headers.items()})


@contextmanager
def understood() -> Iterator[None]:
    """What was asked was said right: what is refused in here is refused for what it means."""
    try:
        yield
    except InvalidRequest as error:
        if status_of(error) != 400:
            raise
        raise HttpRefusal(422, error) from None


def head_too_large() -> HttpRefusal:
    """What follows it on the connection is not read."""
    error = ProtocolError(
        f"the head of a request is at most {HTTP_HEAD_BYTES_MAX} bytes and {HTTP_HEAD_LINES_MAX} lines; this one has "
        "more"
    )
    return HttpRefusal(431, error, {"connection": "close"})


def status_of(error: MainstemError) -> int:
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def problem_of(error: MainstemError, status: int | None = None, **more: Any) -> dict[str, Any]:
    """The document that says what went wrong."""
    name = type(error).__name__
    facts: Any = getattr(error, "facts", dict)
    return {
        "type": "urn:mainstem:error:" + re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower(),
        "title": name,
        "status": status or status_of(error),
        "detail": _said(error)[:ERROR_TEXT_CHARS_MAX],
        "code": error.code,
        "retriable": error.retriable,
        **{fact: value for fact, value in facts().items() if value not in ("", None)},
        **more,
    }


def _said(error: MainstemError) -> str:
    text = str(error)
    for advice, instead in _SAID_ELSEWHERE.items():
        text = text.replace(advice, instead)
    return text


def answer(error: MainstemError | HttpRefusal, *, closes: bool = False, **more: Any) -> Response:
    """The response that says what went wrong. `closes`: and the connection ends."""
    headers: dict[str, str] = {}
    if isinstance(error, HttpRefusal):
        headers, more = dict(error.headers), {**error.facts, **more}
    found, status = (error.error, error.status) if isinstance(error, HttpRefusal) else (error, status_of(error))
    if found.retriable:
        # Whole seconds, as HTTP has them; who was told how long waits at least that.
        headers.setdefault("retry-after", str(max(_RETRY_SECONDS, math.ceil(getattr(found, "retry_after", 0)))))
        if getattr(found, "retry_after", None) == 0:
            # Nobody knows how long: the same is said in both places.
            more.setdefault("retry_after", _RETRY_SECONDS)
    if isinstance(found, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    if closes:
        headers["connection"] = "close"
    return Response(_encode(problem_of(found, status, **more)) + b"\n", status, headers, MEDIA_TYPE)
