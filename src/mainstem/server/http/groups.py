"""Groups of readers over HTTP: how far they are, setting them elsewhere, and reading for one without a library.

Who reads with `GET /streams/{name}/records?group=billing` begins where the group stands, and says with
`POST /groups/billing/commit` how far it has come. It is no member: that is for groups that no member reads. The group's
generation, which the answer to the first has and the second gives back, says whether the group was reset between them.
"""

from concurrent.futures import Future
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mainstem.core.cursor import Cursor
from mainstem.core.errors import InvalidSetting, UnknownGroup
from mainstem.core.names import check_group_name
from mainstem.hub.groups import Groups, ShardReset, To
from mainstem.server.door import Visitor
from mainstem.server.http.administration import Administration, flag_of, json_answer, time_text, whole
from mainstem.server.http.port import ServerPort
from mainstem.server.http.problems import understood
from mainstem.server.http.reads import GENERATION_FIRST, start_of
from mainstem.transport.port import GetStreamCall, StreamInfo
from mainstem.transport.sharing import CommitCursorsCall, GroupInfo, GroupShard, ListGroupsCall

_RESET: Final = frozenset(("to", "offsets", "streams", "dry_run"))
_BEGIN_SECONDS: Final = 30.0
_COMMIT: Final = frozenset(("stream", "cursor", "generation"))


class GroupRoutes(Administration):
    """Administration of groups. The loop's thread."""

    async def list_all(self, request: Request, visitor: Visitor, name: str) -> Response:
        after = request.query_params.get("after", "")
        port = ServerPort(self._server, visitor)
        answer = await self._aside(request, lambda: port.call(ListGroupsCall(after)), is_long=True)
        found = {"groups": [group_json(info) for info in answer.groups]}
        headers = {"link": f'</groups?after={answer.groups[-1].name}>; rel="next"'} if answer.more else {}
        return json_answer(found, headers=headers)

    async def get(self, request: Request, visitor: Visitor, name: str) -> Response:
        groups = self._groups(visitor)
        info: GroupInfo = await self._aside(request, lambda: groups.get(name), is_long=True)
        members = [
            {"id": f"{member.id:x}", "client": member.client, "shards": member.shards} for member in info.members
        ]
        advice = msgspec.to_builtins(info.advice) if info.advice is not None else None
        shards = [_shard_json(shard) for shard in info.shards]
        return json_answer({**group_json(info), "members": members, "advice": advice, "shards": shards})

    async def reset(self, request: Request, visitor: Visitor, name: str) -> Response:
        given = await self._options(request, visitor, _RESET)
        to, streams = self._to(given), _names_of(given.get("streams"))
        is_dry = flag_of(given, "dry_run", True)
        groups = self._groups(visitor)
        with understood():
            changes = await self._aside(
                request, lambda: groups.reset(name, to, streams=streams, dry_run=is_dry), is_long=True
            )
        return json_answer({"dry_run": is_dry, "shards": [_reset_json(change) for change in changes]})

    async def commit(self, request: Request, visitor: Visitor, name: str) -> Response:
        check_group_name(name)
        given = await self._options(request, visitor, _COMMIT)
        if not isinstance(given.get("stream"), str) or not isinstance(given.get("cursor"), str):
            raise InvalidSetting('say of which stream and how far: {"stream": "orders", "cursor": "ms1:..."}')
        generation = given.get("generation")
        if "generation" in given and not _are_counts(generation):
            raise InvalidSetting("generation is a whole number, as the header Mainstem-Group-Generation has it")
        cursor, port = Cursor.parse(given["cursor"]), ServerPort(self._server, visitor)
        with understood():
            info = await self._aside(request, lambda: port.call(GetStreamCall(given["stream"])).streams[0])
            places = tuple((info.id, shard, offset) for shard, offset in enumerate(_checked(cursor, info).offsets))
            call = CommitCursorsCall(name, 0, places, generation)
            await self._aside(request, lambda: self._commit(port, call))
        return Response(status_code=204)

    async def delete(self, request: Request, visitor: Visitor, name: str) -> Response:
        groups = self._groups(visitor)
        await self._aside(request, lambda: groups.delete(name), is_long=True)
        return Response(status_code=204)

    def _commit(self, port: ServerPort, call: CommitCursorsCall) -> None:
        """A group comes into being when its first reader has come somewhere."""
        try:
            port.call(call)
        except UnknownGroup:
            begun: Future[object] = Future()
            self._server.log.groups.assign(call.group, GENERATION_FIRST, (), begun.set_result)
            # Whatever became of it, also if others were faster: the next answer tells.
            begun.result(_BEGIN_SECONDS)
            port.call(call)

    def _groups(self, visitor: Visitor) -> Groups:
        return Groups(ServerPort(self._server, visitor))

    def _to(self, given: dict[str, Any]) -> To:
        if ("to" in given) == ("offsets" in given):
            raise InvalidSetting('say where to go on: {"to": "earliest"}, or {"offsets": [...]}')
        if "offsets" in given:
            return _offsets_of(given["offsets"])
        if not isinstance(given["to"], str):
            raise InvalidSetting(
                "to is earliest, latest, a cursor, a time (2026-01-31T12:00:00Z) or how long ago (15m)"
            )
        return start_of(given["to"], self._server.clock.now_us(), "to")


def group_json(info: GroupInfo) -> dict[str, Any]:
    """A group as it is shown in a list."""
    return {
        "name": info.name,
        "generation": info.generation,
        "created": time_text(info.created_us),
        "changed": time_text(info.changed_us),
        "streams": info.streams,
        "records": info.records,
        "seconds": info.seconds,
        "member_count": info.member_count,
        "spread": info.spread,
        "trend": info.trend,
        "catch_up_seconds": info.catch_up_seconds,
        "hold_seconds": info.hold_seconds,
        "held_records": info.held_records,
    }


def _shard_json(shard: GroupShard) -> dict[str, Any]:
    return {
        "stream": shard.stream,
        "shard": shard.shard,
        "offset": shard.offset,
        "end": shard.end,
        "records": shard.records,
        "seconds": shard.seconds,
        "committed": time_text(shard.committed_us),
        "member": f"{shard.member:x}" if shard.member else None,
    }


def _reset_json(change: ShardReset) -> dict[str, Any]:
    return {"stream": change.stream, "shard": change.shard, "before": change.before, "after": change.after}


def _checked(cursor: Cursor, info: StreamInfo) -> Cursor:
    if cursor.stream != info.uuid or cursor.epoch != info.epoch or len(cursor.offsets) > info.shards:
        raise InvalidSetting(f"the cursor is not one of stream {info.name!r} as it is now")
    return cursor


def _names_of(given: Any) -> list[str] | None:
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise InvalidSetting("streams is a list of names")
    return given


def _are_counts(*numbers: object) -> bool:
    return all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)


def _offsets_of(given: Any) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for each in given if isinstance(given, list) else [None]:
        match {name: whole(value) for name, value in each.items()} if isinstance(each, dict) else each:
            case {"stream": str(stream), "shard": int(shard), "offset": int(offset), **rest} if (
                not rest and _are_counts(shard, offset)
            ):
                found[stream, shard] = offset
            case _:
                raise InvalidSetting('offsets is a list of {"stream": "orders", "shard": 0, "offset": 120}')
    return found
