"""Which log a client command works on: a server's, or the one in a folder."""

import dataclasses
import getpass
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import mainstem
from mainstem.cli.exits import UsageProblem
from mainstem.core.errors import FolderUnusable, MainstemError
from mainstem.core.log_lines import configure_logging
from mainstem.core.settings import DEFAULT, Loaded

if TYPE_CHECKING:
    from mainstem.hub.hub import Hub

CONNECT_SECONDS = 5.0
# Instead of a file with a token: ask for it.
_PROMPT = Path("-")

Data = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="FOLDER", help="Work on the log in this folder, in this process, instead of asking a server."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def reading(loaded: Loaded, data: str | None) -> "Iterator[Hub]":
    """A hub to read from. A folder may be written by another process meanwhile."""
    with _hub(loaded, data, read_only=True) as hub:
        yield hub


@contextmanager
def writing(loaded: Loaded, data: str | None, *, create: bool = False) -> "Iterator[Hub]":
    """A hub to write through. `create` makes a folder that is missing."""
    with _hub(loaded, data, read_only=False, create=create) as hub:
        yield hub


@contextmanager
def _hub(loaded: Loaded, data: str | None, *, read_only: bool, create: bool = False) -> "Iterator[Hub]":
    if data is not None and loaded.origins["url"].startswith("flag"):
        raise UsageProblem("--url and --data name two logs; give one of them")
    log_as_told(loaded)
    if data is None:
        with connected(loaded.settings.url, loaded) as hub:
            yield hub
        return
    if not create:
        _require_log(Path(data), read_only=read_only)
    with noted(f"folder {data}"), mainstem.open(data, read_only=read_only) as hub:
        yield hub


def source_options(loaded: Loaded, data: str | None) -> dict[str, str]:
    """The same log, as options of Spark's source."""
    if data is not None:
        return {"hub": str(Path(data).absolute())}
    settings = loaded.settings
    found = {"hub": settings.url}
    if settings.tls_ca is not None:
        found["ca"] = str(settings.tls_ca.absolute())
    if settings.tls_client_cert is not None and settings.tls_client_key is not None:
        found["certificate"] = str(settings.tls_client_cert.absolute())
        found["certificateKey"] = str(settings.tls_client_key.absolute())
    if settings.token_file == _PROMPT:
        raise UsageProblem("--token-file -: Spark connects again and again; put the token into a file")
    if settings.token_file is not None:
        found["tokenFile"] = str(settings.token_file.absolute())
    return found


def _require_log(folder: Path, *, read_only: bool) -> None:
    """Say how a log is begun where none is. One whose files are not all there is left to the hub."""
    from mainstem.log.folder import has_log, require_no_backup

    if not (has_log(folder) if read_only else folder.exists()):
        require_no_backup(folder)
        raise FolderUnusable(
            f"there is no log in {folder}; mainstem stream create NAME --data {folder} begins one there"
        )


@contextmanager
def connected(url: str, loaded: Loaded | None = None) -> "Iterator[Hub]":
    """A hub of the server at `url`, with the token, the certificate and the authority that the settings name."""
    given: dict[str, Any] = {}
    if loaded is not None:
        settings = loaded.settings
        given = {"ca": settings.tls_ca, "certificate": settings.tls_client_cert, "key": settings.tls_client_key}
        if loaded.settings.token_file == _PROMPT:
            given["token"] = _asked_token()
        else:
            given["token_file"] = loaded.settings.token_file
    with noted(url), mainstem.connect(url, timeout=CONNECT_SECONDS, **given) as hub:
        yield hub


def _asked_token() -> str:
    """From who sits at the terminal; where there is none, from the first line of standard input."""
    from mainstem.transport.credentials import TOKEN_BYTES_MAX

    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            found = getpass.getpass("token: ")
        except getpass.GetPassWarning:
            found = sys.stdin.buffer.readline(TOKEN_BYTES_MAX + 1).decode("ascii", errors="replace")
    if not found.strip():
        raise UsageProblem("--token-file -: no token was given")
    return found.strip()


@contextmanager
def noted(where: str) -> Iterator[None]:
    """Errors say which log they are about."""
    try:
        yield
    except MainstemError as error:
        if where not in str(error):
            error.add_note(where)
        raise


def log_as_told(loaded: Loaded) -> None:
    """Log lines of the hub on standard error; unless asked for more, only what is wrong."""
    settings = loaded.settings
    if loaded.origins["log_level"] == DEFAULT:
        settings = dataclasses.replace(settings, log_level="warning")
    configure_logging(settings)
