"""`mainstem groups`: list, show, reset, hold and delete groups of readers."""

import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.cli import hubs
from mainstem.cli.exits import UsageProblem
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Data, Json
from mainstem.cli.printing import counted, print_json, print_table, time_text
from mainstem.cli.times import parse_time
from mainstem.core.cursor import Cursors
from mainstem.core.errors import InvalidCursor
from mainstem.core.kinds import render_duration
from mainstem.core.plain import age_text
from mainstem.core.settings import Loaded

if TYPE_CHECKING:
    from mainstem.hub.groups import ShardReset
    from mainstem.transport.sharing import GroupInfo

app = typer.Typer(help="List, show, reset, hold and delete groups of readers.", rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]
_PLACE = re.compile(r"([A-Za-z0-9._-]+):([0-9]+)=([0-9]+)", re.ASCII)


@app.command("list")
@with_settings("groups")
def list_(loaded: Loaded, data: Data = None, json: Json = False) -> None:
    """List all groups by name, with how far each is behind."""
    with hubs.reading(loaded, data) as hub:
        found = hub.groups.list()
    if json:
        print_json([_described(info) for info in found])
        return
    rows = [
        (
            info.name,
            ", ".join(info.streams),
            str(info.member_count),
            f"{info.records:,}",
            _seconds(info.seconds),
            render_duration(info.hold_seconds) if info.hold_seconds else "",
        )
        for info in found
    ]
    print_table(("group", "streams", "members", "behind", "for", "holds"), rows, right=("members", "behind", "for"))
    if not found:
        print("no groups yet; one begins when its first member reads: hub.consumer(..., group=NAME)", file=sys.stderr)


@app.command()
@with_settings("groups")
def show(loaded: Loaded, name: Name, data: Data = None, json: Json = False) -> None:
    """Show a group: its members, and where it stands in every shard."""
    with hubs.reading(loaded, data) as hub:
        info = hub.groups.get(name)
    if json:
        shards = [_shard(shard) for shard in info.shards]
        members = [{"id": f"{one.id:x}", "client": one.client, "shards": one.shards} for one in info.members]
        print_json({**_described(info), "member_list": members, "shards": shards, "advice": _advice(info)})
        return
    _print_group(info)


@app.command()
@with_settings("groups")
def reset(
    loaded: Loaded,
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            metavar="earliest|latest|TIME|CURSOR|STREAM:SHARD=OFFSET,...",
            help="Where it goes on: a time such as 2026-01-31T12:00:00Z, how long ago (15m), a cursor, or offsets.",
        ),
    ],
    stream: Annotated[
        list[str] | None,
        typer.Option("--stream", metavar="STREAM", help="Only this one of its streams; may be given again."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without it, only say what would change.")] = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """Let a group go on from somewhere else. It must have no members.

    Without --yes nothing is changed: what would be is printed.
    """
    place = _place(to)
    with hubs.writing(loaded, data) as hub:
        try:
            changes = hub.groups.reset(name, place, streams=stream or None, dry_run=not yes)
        except InvalidCursor as error:
            # What is said of cursors elsewhere, to begin anew, is what this is for.
            raise UsageProblem(f"--to: {error}") from None
    if json:
        shown = [
            {"stream": one.stream, "shard": one.shard, "before": one.before, "after": one.after} for one in changes
        ]
        print_json({"group": name, "done": yes, "shards": shown})
        return
    _print_changes(changes)
    sys.stdout.flush()  # it stands before the sum also where both go to one file
    again = sum(max(one.records, 0) for one in changes)
    passed = sum(max(-one.records, 0) for one in changes)
    verb = "are" if yes else "would be"
    print(
        f"{counted(again, 'record')} {verb} read again, {counted(passed, 'record')} {verb} passed over", file=sys.stderr
    )
    if not yes:
        print("nothing was changed; --yes does it", file=sys.stderr)


@app.command()
@with_settings("groups")
def hold(
    loaded: Loaded,
    name: Name,
    longer: Annotated[
        str,
        typer.Option("--for", metavar="DURATION", help="How much longer than retention says, as in 3d; up to 30d."),
    ] = "7d",
    off: Annotated[bool, typer.Option("--off", help="Keep nothing for it any longer.")] = False,
    data: Data = None,
) -> None:
    """Keep what a group has not read, beyond the retention of its streams.

    What it has read goes as ever. What it has not goes at last when the time is over, or when the disk is full. A Spark
    query that was given holdRetention asks for it again when it is started.
    """
    with hubs.writing(loaded, data) as hub:
        info = hub.groups.hold(name, None if off else longer)
    print(_holding(info), file=sys.stderr)


@app.command()
@with_settings("groups")
def delete(
    loaded: Loaded,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data: Data = None,
) -> None:
    """Forget a group and where it stood. It must have no members."""
    if not yes:
        if not sys.stdin.isatty():
            raise UsageProblem("deleting a group needs --yes where nobody can be asked")
        typer.confirm(f"forget group {name} and where it stands?", abort=True)
    with hubs.writing(loaded, data) as hub:
        hub.groups.delete(name)
    print(f"group {name} is gone", file=sys.stderr)


def _place(text: str) -> Any:
    """Where to, as `hub.groups.reset` takes it."""
    if text in ("earliest", "latest"):
        return text
    if text.startswith("ms1:"):
        try:
            return Cursors.parse(text)
        except InvalidCursor as error:
            raise UsageProblem(f"--to: {error}") from None
    if "=" in text:
        places: dict[tuple[str, int], int] = {}
        for part in text.split(","):
            match = _PLACE.fullmatch(part.strip())
            if match is None:
                raise UsageProblem(f"--to {part}: offsets are given as STREAM:SHARD=OFFSET")
            place = match[1], int(match[2])
            if place in places:
                raise UsageProblem(f"--to {part}: shard {place[1]} of {place[0]} has an offset already")
            places[place] = int(match[3])
        return places
    found: datetime = parse_time("--to", text, "earliest, latest, offsets")
    return found


def _described(info: "GroupInfo") -> dict[str, Any]:
    return {
        "group": info.name,
        "streams": list(info.streams),
        "members": info.member_count,
        "spread": info.spread,
        "lag_records": info.records,
        "lag_seconds": round(info.seconds, 3),
        "trend_records_per_second": info.trend,
        "catch_up_seconds": info.catch_up_seconds,
        "hold_seconds": info.hold_seconds,
        "held_records": info.held_records,
        "generation": info.generation,
        "created": time_text(info.created_us),
    }


def _shard(shard: Any) -> dict[str, Any]:
    return {
        "stream": shard.stream,
        "shard": shard.shard,
        "offset": shard.offset,
        "end": shard.end,
        "lag_records": shard.records,
        "lag_seconds": round(shard.seconds, 3),
        "member": f"{shard.member:x}" if shard.member else None,
        "committed": time_text(shard.committed_us) if shard.committed_us else None,
    }


def _advice(info: "GroupInfo") -> dict[str, Any] | None:
    advice = info.advice
    if advice is None:
        return None
    return {
        "members": advice.members,
        "confidence": advice.confidence,
        "member_records_per_second": advice.capacity,
    }


def _print_group(info: "GroupInfo") -> None:
    how = ", spread" if info.spread else ""
    print(f"group {info.name}: {counted(info.member_count, 'member')}{how}, generation {info.generation}")
    oldest = f", the oldest for {_seconds(info.seconds)}" if info.records else ""
    print(f"behind by {counted(info.records, 'record')}{oldest}; {_trend(info)}")
    if info.hold_seconds:
        print(_holding(info))
    if info.advice is not None:
        able = f", each able to read {info.advice.capacity:,.0f} records/s" if info.advice.capacity else ""
        print(f"advice: {counted(info.advice.members, 'member')} (confidence {info.advice.confidence}{able})")
    names = {member.id: member.client or f"{member.id:x}" for member in info.members}
    rows = [
        (
            shard.stream,
            str(shard.shard),
            f"{shard.offset:,}",
            f"{shard.end:,}",
            f"{shard.records:,}",
            _seconds(shard.seconds),
            _owner(shard.member, names, info),
        )
        for shard in info.shards
    ]
    columns = ("stream", "shard", "offset", "end", "behind", "for", "member")
    print_table(columns, rows, right=("shard", "offset", "end", "behind", "for"))


def _holding(info: "GroupInfo") -> str:
    if not info.hold_seconds:
        return f"nothing is kept for group {info.name} beyond retention"
    held = f"{counted(info.held_records, 'record')} now" if info.held_records else "none now"
    longer = render_duration(info.hold_seconds)
    return f"holds retention: unread records are kept up to {longer} longer, {held}; `groups hold --off` ends it"


def _owner(member: int, names: Mapping[int, str], info: "GroupInfo") -> str:
    if not member:
        return "all" if info.spread else "nobody"
    return names.get(member, f"{member:x}")


def _trend(info: "GroupInfo") -> str:
    if not info.records:
        return "it has read everything"
    if info.trend is None:
        return "whether it catches up is known after a second look"
    if info.catch_up_seconds is None:
        return f"falling behind by {info.trend:,.1f} records/s" if info.trend > 0 else "standing still"
    return f"catching up by {-info.trend:,.1f} records/s, done in {_seconds(info.catch_up_seconds)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}s" if 0 < seconds < 60 else age_text(seconds)


def _print_changes(changes: "Sequence[ShardReset]") -> None:
    rows = [(one.stream, str(one.shard), f"{one.before:,}", f"{one.after:,}", f"{one.records:+,}") for one in changes]
    print_table(("stream", "shard", "from", "to", "again"), rows, right=("shard", "from", "to", "again"))
