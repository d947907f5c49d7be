"""`mainstem config`: every setting, its value, and where the value comes from."""

from typing import Annotated

import typer

from mainstem.cli.hubs import Json


def config(
    file: Annotated[str | None, typer.Option("--config", metavar="FILE", help="The TOML file with settings.")] = None,
    json: Json = False,
) -> None:
    """Show the value in force of every setting, and where it comes from: a variable, a file, or the default."""
    import os
    from pathlib import Path

    from mainstem.cli.printing import print_json, print_table
    from mainstem.core import settings

    loaded = settings.load({}, os.environ, None if file is None else Path(file))
    rows = settings.table(loaded)
    if json:
        print_json({name: {"value": value, "origin": origin} for name, value, origin in rows})
    else:
        print_table(("setting", "value", "origin"), rows)
