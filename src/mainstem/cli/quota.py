"""`mainstem quota`: how much each principal may write, read and hold."""

from typing import Annotated, Any, get_args

import typer

from mainstem.cli import hubs
from mainstem.cli.exits import UsageProblem
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Data, Json
from mainstem.cli.printing import print_json, print_table
from mainstem.core.kinds import parse_bytes, render_bytes
from mainstem.core.settings import Loaded
from mainstem.transport import guarding

app = typer.Typer(help="Set, list and delete quotas.", rich_markup_mode=None)

_MEASURES = get_args(guarding.Measure)
_MODES = ("limit", "block", "sample")

Principal = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="Who; * in quotes is each that has none of its own.")
]
Measure = Annotated[str, typer.Argument(metavar="MEASURE", help=f"One of {', '.join(_MEASURES)}.")]


@app.command("set")
@with_settings("quota")
def set_(
    loaded: Loaded,
    principal: Principal,
    measure: Measure,
    limit: Annotated[
        str, typer.Argument(metavar="LIMIT", help="How much; bytes as in 5MB. For a second, or at a time.")
    ],
    mode: Annotated[
        str, typer.Option(metavar="|".join(_MODES), help="What is over it waits, is refused, or a share of it is kept.")
    ] = "limit",
    data: Data = None,
) -> None:
    """Set a quota, in the place of the one that the principal had for the same."""
    if mode not in _MODES:
        raise UsageProblem(f"--mode {mode}: use one of {', '.join(_MODES)}")
    named, amount = _measure(measure), _limit(measure, limit)
    with hubs.writing(loaded, data) as hub:
        hub.access.set_quota(principal, named, amount, mode=mode)  # type: ignore[arg-type]


@app.command("list")
@with_settings("quota")
def list_(loaded: Loaded, data: Data = None, json: Json = False) -> None:
    """List all quotas."""
    with hubs.reading(loaded, data) as hub:
        found = hub.access.quotas()
    if json:
        print_json(
            [
                {"principal": quota.principal, "measure": quota.measure, "limit": quota.limit, "mode": quota.mode}
                for quota in found
            ]
        )
        return
    rows = [
        (
            quota.principal,
            quota.measure,
            render_bytes(quota.limit) if quota.measure.endswith("_bytes") else str(quota.limit),
            quota.mode,
        )
        for quota in found
    ]
    print_table(("principal", "measure", "limit", "mode"), rows, right=("limit",))


@app.command()
@with_settings("quota")
def delete(loaded: Loaded, principal: Principal, measure: Measure, data: Data = None) -> None:
    """Delete a quota."""
    named = _measure(measure)
    with hubs.writing(loaded, data) as hub:
        hub.access.delete_quota(principal, named)


def _measure(text: str) -> Any:
    if text not in _MEASURES:
        raise UsageProblem(f"{text}: use one of {', '.join(_MEASURES)}")
    return text


def _limit(measure: str, text: str) -> int:
    if not measure.endswith("_bytes"):
        if not (text.isascii() and text.isdecimal()):
            raise UsageProblem(f"{text} is no limit for {measure}: use a whole number")
        return int(text)
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise UsageProblem(f"{text} is no limit for {measure}: {error}") from None
