"""`mainstem token`: make, list and revoke the tokens that say who somebody is."""

import os
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from mainstem.cli import hubs
from mainstem.cli.exits import UsageProblem
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Data, Json
from mainstem.cli.printing import print_json, print_table, time_text
from mainstem.core.clock import SYSTEM_CLOCK
from mainstem.core.kinds import parse_duration
from mainstem.core.settings import Loaded
from mainstem.transport.guarding import TokenInfo

app = typer.Typer(help="Make, list and revoke tokens.", rich_markup_mode=None)

Principal = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Whose it is: a name for a person or a program.")]


@app.command()
@with_settings("token")
def create(
    loaded: Loaded,
    principal: Principal,
    admin: Annotated[
        bool, typer.Option("--admin", help="Allow the principal everything. The first token must be such a one.")
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="ACTION:STREAM", help="Allow the principal this, as in read:orders or write:sensors.*"),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="ACTION:STREAM", help="Let this token be used for this only, whatever is allowed."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION|TIME", help="When it is over: in 30d, or at 2027-01-31T12:00:00Z.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the token there, for its owner alone, and show only its id."),
    ] = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """Make a token and print it. It is stored nowhere: whoever loses it needs another one.

    From the first token on, nobody can do anything that no rule allows.
    """
    target = None if to is None else _new_file(Path(to))
    try:
        with hubs.writing(loaded, data, create=True) as hub:
            made = hub.access.create_token(
                principal, admin=admin, allow=allow or (), scopes=scope or (), expires=_expiry(expires)
            )
    except BaseException:
        if target is not None:
            os.close(target)
            Path(str(to)).unlink()
        raise
    if target is not None:
        with os.fdopen(target, "w") as file:
            file.write(f"{made.secret}\n")
    if json:
        shown = {} if to is not None else {"token": made.secret}
        print_json({"id": made.id, "principal": made.principal, **shown})
    elif to is not None:
        print(made.id)
    else:
        print(made.secret)
        print(f"token {made.id} of {made.principal}; it is shown this once", file=sys.stderr)


@app.command("list")
@with_settings("token")
def list_(loaded: Loaded, data: Data = None, json: Json = False) -> None:
    """List all tokens: whose they are and until when, never what they are."""
    with hubs.reading(loaded, data) as hub:
        found = hub.access.tokens()
    if json:
        print_json([_described(token) for token in found])
        return
    rows = [
        (
            token.id,
            token.principal,
            _state(token),
            " ".join(scope.text for scope in token.scopes) or "no restriction",
            _short(token.created_us),
            _short(token.expires_us) if token.expires_us else "never",
        )
        for token in found
    ]
    print_table(("token", "principal", "state", "scope", "created", "expires"), rows)


@app.command()
@with_settings("token")
def revoke(
    loaded: Loaded,
    id: Annotated[str, typer.Argument(metavar="ID", help="As `token list` shows it.")],  # noqa: A002
    data: Data = None,
) -> None:
    """Revoke a token. Connections that were opened with it end within seconds."""
    if id.startswith("mst_"):
        raise UsageProblem("name a token by its id, not by the token itself: mainstem token list shows the ids")
    with hubs.writing(loaded, data) as hub:
        hub.access.revoke_token(id)


def _new_file(path: Path) -> int:
    """A file that only its owner can read, and that was not there."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageProblem(f"--to {path}: there is such a file already") from None


def _expiry(text: str | None) -> datetime | timedelta | None:
    if text is None:
        return None
    try:
        return timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError):
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageProblem(f"--expires {text}: use a duration (30d) or a time (2027-01-31T12:00:00Z)") from None
    if found.tzinfo is None:
        raise UsageProblem(f"--expires {text}: the time needs a zone; {found.isoformat()}Z is UTC")
    return found


def _state(token: TokenInfo) -> str:
    if token.revoked_us:
        return "revoked"
    return "over" if token.expires_us and token.expires_us <= SYSTEM_CLOCK.now_us() else "valid"


def _short(time_us: int) -> str:
    return time_text(time_us)[:19].replace("T", " ")


def _described(token: TokenInfo) -> dict[str, object]:
    return {
        "id": token.id,
        "principal": token.principal,
        "state": _state(token),
        "scopes": [scope.text for scope in token.scopes],
        "created": time_text(token.created_us),
        "expires": time_text(token.expires_us) if token.expires_us else None,
        "revoked": time_text(token.revoked_us) if token.revoked_us else None,
    }
