"""Streams and schemas over HTTP: JSON in, JSON out, the same options by the same names as in Python."""

import base64
from datetime import datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from mainstem.core.errors import InvalidSetting
from mainstem.core.kinds import render_duration
from mainstem.hub.hub import Streams
from mainstem.registry.forms import to_type_map
from mainstem.server.door import Visitor
from mainstem.server.http.administration import Administration, flag_of, json_answer, time_text
from mainstem.server.http.port import ServerPort
from mainstem.server.http.problems import HttpRefusal, understood
from mainstem.transport.port import ListStreamsCall, SchemaInfo, StreamInfo

_CREATE: Final = frozenset(
    (
        "shards",
        "schema",
        "key",
        "index",
        "compatibility",
        "retention",
        "retention_bytes",
        "cleanup",
        "tombstones",
        "hash",
    )
)
_ALTER: Final = frozenset(("retention", "retention_bytes", "cleanup", "tombstones", "shards"))


class StreamRoutes(Administration):
    """Administration of streams. The loop's thread."""

    def _streams(self, visitor: Visitor) -> Streams:
        return Streams(ServerPort(self._server, visitor))

    async def list_all(self, request: Request, visitor: Visitor, name: str) -> Response:
        after = request.query_params.get("after", "0")
        if not (after.isascii() and after.isdecimal() and len(after) < 19):
            raise InvalidSetting(f"after is the id of a stream, not {after[:40]!r}")
        answer = await self._aside(
            request, lambda: ServerPort(self._server, visitor).call(ListStreamsCall(after=int(after)))
        )
        found: dict[str, Any] = {"streams": [stream_json(info) for info in answer.streams]}
        headers = {}
        if answer.more:
            headers["link"] = f'</streams?after={answer.streams[-1].id}>; rel="next"'
        return json_answer(found, headers=headers)

    async def get(self, request: Request, visitor: Visitor, name: str) -> Response:
        return json_answer(
            stream_json(await self._aside(request, lambda: self._streams(visitor).get(name), is_long=True))
        )

    async def create(self, request: Request, visitor: Visitor, name: str) -> Response:
        options = await self._options(request, visitor, _CREATE)

        def create() -> tuple[StreamInfo, bool]:
            known = self._server.log.ledger.stream_named(name)
            try:
                info = self._streams(visitor).create(name, exist_ok=True, **options)
            except InvalidSetting as error:
                # Of one that is there it is refused for what that has.
                raise error if known is None else HttpRefusal(409, error) from None
            return info, known is None or info.id != known.id

        info, is_new = await self._aside(request, create)
        return json_answer(stream_json(info), 201 if is_new else 200)

    async def alter(self, request: Request, visitor: Visitor, name: str) -> Response:
        options = await self._options(request, visitor, _ALTER)
        with understood():
            info = await self._aside(request, lambda: self._streams(visitor).alter(name, **options))
        return json_answer(stream_json(info))

    async def delete(self, request: Request, visitor: Visitor, name: str) -> Response:
        await self._aside(request, lambda: self._streams(visitor).delete(name))
        return Response(status_code=204)

    async def trim(self, request: Request, visitor: Visitor, name: str) -> Response:
        given = await self._options(request, visitor, frozenset(("before", "offset", "shard")))
        before = None if "before" not in given else _time_of(given.pop("before"))
        with understood():
            info = await self._aside(
                request, lambda: self._streams(visitor).trim(name, before=before, **given), is_long=True
            )
        return json_answer(stream_json(info))

    async def erase(self, request: Request, visitor: Visitor, name: str) -> Response:
        given = await self._options(request, visitor, frozenset(("key",)))
        if "key" not in given:
            raise InvalidSetting('say which key: {"key": ...}')
        key = _key_of(given["key"])
        erased = await self._aside(request, lambda: self._streams(visitor).erase(name, key), is_long=True)
        return json_answer({"records": erased.records, "gone_by": time_text(erased.gone_by_us)})

    async def schemas(self, request: Request, visitor: Visitor, name: str) -> Response:
        found = await self._aside(request, lambda: self._streams(visitor).schemas(name))
        return json_answer({"schemas": [schema_json(info) for info in found]})

    async def set_schema(self, request: Request, visitor: Visitor, name: str) -> Response:
        given = await self._options(request, visitor, frozenset(("schema", "compatibility", "dry_run")))
        if "schema" not in given:
            raise InvalidSetting('give the schema: {"schema": {"id": "int64", "name": "string"}}')
        schema, is_dry = given["schema"], flag_of(given, "dry_run", False)
        info = await self._aside(
            request,
            lambda: self._streams(visitor).set_schema(
                name, schema, compatibility=given.get("compatibility"), dry_run=is_dry
            ),
        )
        return json_answer(stream_json(info))


def stream_json(info: StreamInfo) -> dict[str, Any]:
    """A stream as it is shown."""
    found: dict[str, Any] = {
        "name": info.name,
        "id": info.id,
        "uuid": info.uuid,
        "shards": info.shards,
        "hash": info.hash,
        "generation": info.generation,
        "records": info.records,
        "bytes": info.bytes,
        "starts": info.starts,
        "ends": info.ends,
        "retention": render_duration(info.retention_us / 1_000_000) if info.retention_us else None,
        "retention_bytes": info.retention_bytes,
        "cleanup": info.cleanup,
        "tombstones": render_duration(info.tombstone_us / 1_000_000),
        "created": time_text(info.created_us),
        "key": info.key,
        "index": info.index,
        "compatibility": info.compatibility,
        "schema_version": info.schema_version,
        "waiting_bytes": info.waiting_bytes,
        "gone_by": time_text(info.gone_by_us),
    }
    if info.schema is not None:
        found["schema"] = to_type_map(info.schema)
    return found


def schema_json(info: SchemaInfo) -> dict[str, Any]:
    return {
        "version": info.version,
        "id": info.id,
        "created": time_text(info.created_us),
        "schema": to_type_map(info.schema),
    }


def _time_of(text: Any) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise InvalidSetting(f"before is a time such as 2026-01-31T12:00:00Z, not {text!r:.60}") from None


def _key_of(given: Any) -> Any:
    if isinstance(given, dict) and given.keys() == {"base64"}:
        try:
            return base64.b64decode(given["base64"], validate=True)
        except (TypeError, ValueError):
            raise InvalidSetting("key: a field of base64 that is not base64") from None
    if isinstance(given, list):
        return tuple(given)
    if isinstance(given, str | int) and not isinstance(given, bool):
        return given
    raise InvalidSetting('key is a text, a whole number, {"base64": ...}, or a list of the values of its columns')
