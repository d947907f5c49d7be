"""`mainstem config`: every setting, its value, and where the value comes from."""

from typing import Annotated

import typer

from mainstem.cli.hubs import Json


def config(
    file: Annotated[str | None, typer.Option("--config", metavar="FILE", help="The TOML file with settings.")] = None,
    json: Json = False,
) -> None:
    """Show every setting and where its value comes from.

    That is a variable, a TOML file, or the default. Flags of other commands come on top of it.
    """
    import os
    from pathlib import Path

    from mainstem.cli.printing import print_json, print_table
    from mainstem.core import settings
    from mainstem.core.redaction import redacted

    loaded = settings.load({}, os.environ, None if file is None else Path(file))
    rows = [(name, redacted(value), origin) for name, value, origin in settings.table(loaded)]
    if json:
        print_json({name: {"value": value, "origin": origin} for name, value, origin in rows})
    else:
        print_table(("setting", "value", "origin"), rows)
