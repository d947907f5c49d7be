"""What all administration over HTTP shares: JSON in, JSON out, and calls that are carried out aside."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mainstem.core.errors import InvalidSetting
from mainstem.core.limits import HTTP_CALL_BYTES_MAX
from mainstem.core.times import from_us
from mainstem.server.door import Visitor
from mainstem.server.http.bodies import Body, BodyBudget
from mainstem.server.http.problems import refusal

if TYPE_CHECKING:
    from mainstem.server.server import Server

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Administration:
    """The loop's thread; what waits for the disk is done aside, in the turn of who asks."""

    def __init__(self, server: "Server", budget: BodyBudget) -> None:
        self._server = server
        self._budget = budget

    async def _options(self, request: Request, visitor: Visitor, allowed: frozenset[str]) -> dict[str, Any]:
        """The object in a body; an empty body is an empty one."""
        media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if media_type not in ("application/json", "application/x-www-form-urlencoded"):
            raise refusal(415, f"a body of type {media_type[:60]!r}; send application/json")
        with Body(request, visitor, self._budget, self._server.clock, HTTP_CALL_BYTES_MAX) as body:
            text = await body.whole()
        try:
            fields = _decode_fields(text) if text.strip() else {}
            _check_once(text if fields else b"{}")
            # A schema is read by who minds a name that is there twice.
            given = {name: bytes(raw) if name == "schema" else _decode(raw) for name, raw in fields.items()}
        except InvalidSetting:
            raise
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise refusal(400, f"the body is not a JSON object: {error}") from None
        unknown = set(given) - allowed
        if unknown:
            raise InvalidSetting(f"there is no option {min(unknown)[:40]!r}; there are {', '.join(sorted(allowed))}")
        for name, raw in fields.items():
            if bytes(raw) == b"null":
                raise InvalidSetting(f"{name} is null; leave it out if it is to stay as it is, or as it is usual")
        return {name: whole(value) for name, value in given.items()}

    async def _aside(self, request: Request, work: Callable[[], Any], *, is_long: bool = False) -> Any:
        return await self._server.run_aside(request, work, is_long=is_long)


def _check_once(text: bytes) -> None:
    """One of two options that have the same name would be lost without a word."""
    names: list[str] = json.loads(text, object_pairs_hook=lambda pairs: [name for name, _ in pairs])
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InvalidSetting(f"{twice[:40]!r} is given twice")


def whole(value: Any) -> Any:
    """A number without a fraction is a whole one, however it is written."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def flag_of(given: Mapping[str, Any], name: str, default: bool) -> bool:
    """One of the options that is true or false."""
    found = given.get(name, default)
    if type(found) is not bool:
        raise InvalidSetting(f"{name} is true or false")
    return found


def json_answer(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    # With an end of line, for those who read it in a terminal.
    return Response(_encode(document) + b"\n", status, dict(headers or {}), "application/json")


def time_text(time_us: int) -> str | None:
    return from_us(time_us).isoformat().replace("+00:00", "Z") if time_us else None
