"""`mainstem access`: rules that say who may do what, and why."""

from typing import Annotated, Literal

import typer

from mainstem.cli import hubs
from mainstem.cli.exits import ExitCode, UsageProblem
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Data, Json
from mainstem.cli.printing import print_json, print_table, time_text
from mainstem.core.settings import Loaded

app = typer.Typer(help="Set, list and explain the rules of who may do what.", rich_markup_mode=None)

Principal = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Who; * in quotes is everybody who is known.")]
ActionName = Annotated[
    str,
    typer.Argument(metavar="ACTION", help="read, write, create, alter, delete, describe, group, admin, or all."),
]
Pattern = Annotated[
    str,
    typer.Argument(metavar="STREAM", help="A name; * in it, in quotes, stands for any characters. All if left out."),
]


@app.command()
@with_settings("access")
def allow(loaded: Loaded, principal: Principal, action: ActionName, stream: Pattern = "*", data: Data = None) -> None:
    """Allow a principal to do something to streams."""
    with hubs.writing(loaded, data) as hub:
        hub.access.allow(principal, action, stream)


@app.command()
@with_settings("access")
def deny(loaded: Loaded, principal: Principal, action: ActionName, stream: Pattern = "*", data: Data = None) -> None:
    """Deny a principal to do something to streams, whatever other rules allow."""
    with hubs.writing(loaded, data) as hub:
        hub.access.deny(principal, action, stream)


@app.command()
@with_settings("access")
def delete(
    loaded: Loaded,
    effect: Annotated[str, typer.Argument(metavar="allow|deny", help="Which kind of rule.")],
    principal: Principal,
    action: ActionName,
    stream: Pattern = "*",
    data: Data = None,
) -> None:
    """Delete a rule, as `access list` shows it."""
    with hubs.writing(loaded, data) as hub:
        hub.access.delete_rule(_effect(effect), principal, action, stream)


@app.command("list")
@with_settings("access")
def list_(loaded: Loaded, data: Data = None, json: Json = False) -> None:
    """List all rules."""
    with hubs.reading(loaded, data) as hub:
        found = hub.access.rules()
    if json:
        print_json(
            [
                {
                    "effect": rule.effect,
                    "principal": rule.principal,
                    "action": rule.action,
                    "stream": rule.pattern,
                    "created": time_text(rule.created_us),
                }
                for rule in found
            ]
        )
        return
    rows = [
        (rule.effect, rule.principal, rule.action, rule.pattern, time_text(rule.created_us)[:19].replace("T", " "))
        for rule in found
    ]
    print_table(("rule", "principal", "action", "stream", "created"), rows)


@app.command()
@with_settings("access")
def explain(
    loaded: Loaded,
    principal: Principal,
    action: ActionName,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="A stream; the log as a whole if left out.")] = "",
    data: Data = None,
    json: Json = False,
) -> int:
    """Say whether a principal may do something, and by which rule. The exit code is 0 if it may, and 1 if not."""
    with hubs.reading(loaded, data) as hub:
        found = hub.access.explain(principal, action, stream)
    if json:
        print_json({"allowed": found.is_allowed, "reason": found.reason, "rule": found.rule or None})
    else:
        print(f"{'yes' if found.is_allowed else 'no'}: {found.reason}")
    return ExitCode.OK if found.is_allowed else ExitCode.FAILURE


def _effect(text: str) -> Literal["allow", "deny"]:
    if text == "allow":
        return "allow"
    if text == "deny":
        return "deny"
    raise UsageProblem(f"{text}: a rule begins with allow or deny")
