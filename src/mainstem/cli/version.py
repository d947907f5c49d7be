"""`mainstem version`: what is installed."""

from typing import Annotated

import typer

from mainstem.cli.hubs import Json


def _print_short(is_wanted: bool) -> None:
    if is_wanted:
        import mainstem

        print(f"mainstem {mainstem.__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_short, help="Print the version and end.")
    ] = False,
) -> None:
    """The options of `mainstem` itself; those of a command stand behind its name."""


def version(json: Json = False) -> None:
    """Print the versions of Mainstem and of what it builds on."""
    import platform
    from importlib import metadata

    import mainstem
    from mainstem.cli.printing import print_json

    found = {"mainstem": mainstem.__version__, "python": platform.python_version()}
    found |= {name: metadata.version(name) for name in ("pyarrow", "apsw", "uvloop", "msgspec")}
    if json:
        print_json(found)
        return
    print(f"mainstem {found.pop('mainstem')}")
    print(", ".join(f"{name} {number}" for name, number in found.items()))
