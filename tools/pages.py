"""Render the pages of docs/ that repeat what the code says: errors, settings, and the reference part of the commands.

python tools/pages.py           # write them anew
python tools/pages.py --check   # only say which are out of date
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from mainstem.cli.app import app
from mainstem.cli.exits import code_of
from mainstem.core import settings
from mainstem.core.errors import MainstemError
from mainstem.core.settings.reference import reference_markdown

DOCS = Path(__file__).parents[1] / "docs"
MARK = "<!-- Below this line: rendered by tools/pages.py from the commands themselves. -->\n"

ERRORS_HEAD = """\
# Errors

<!-- Rendered by tools/pages.py from src/mainstem/core/errors.py; change it there. -->

Every error is a `mainstem.MainstemError`; `except mainstem.MainstemError` catches all of them, and a class catches what
is of its kind, as the third column tells. `error.code` is the number that crosses the wire and never changes its
meaning; `error.retriable` says whether the same call may succeed later without a change on your side. Producers and
consumers retry by themselves what can be retried; what you see has come to its end.

A client that meets a code it does not know goes by its range: 1xx what was asked cannot work, 2xx the state of the log
does not allow it, 3xx try again after a pause, 4xx records are gone or damaged, 5xx used after its end, or a bug.

The last column is the exit code of `mainstem` commands that end with this error.

| code | error | is a | retriable | what it means | exit |
|---|---|---|---|---|---|
"""


def errors_page() -> str:
    return ERRORS_HEAD + "".join(_error_rows(MainstemError)) + _loss_markdown()


def _error_rows(kind: type[MainstemError]) -> Iterator[str]:
    meaning = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
    above = "" if kind is MainstemError else f"`{kind.__bases__[0].__name__}`"
    retriable = "yes" if kind.retriable else "no"
    yield f"| {kind.code} | `{kind.__name__}` | {above} | {retriable} | {meaning} | {int(code_of(kind('x')))} |\n"
    for below in sorted(kind.__subclasses__(), key=lambda found: found.code):
        yield from _error_rows(below)


def _loss_markdown() -> str:
    return """
`DataLoss` carries what is gone as fields: `stream`, `shard`, `first` and `last` (offsets) and `reason`, which is
exactly one of

- `"trimmed"`: the records are older than the stream's retention; the consumer was too slow, or its cursor too old;
- `"damaged"`: their bytes on disk are missing or not what was written; `path` and `position` name file and byte.

The consumer that raised it stands after the range: iterate again to go on.

`RecordTooLarge` names the limit: `record_bytes_max` is 8 MiB for the key, value and headers of a record together, or
less where a server is [set](settings.md) so; a key has at most 64 KiB, the headers of a record too, and there are at
most 256 of them.
"""


def commands_page(page: str) -> str:
    """The page with its reference part renewed; what stands above the mark is kept."""
    head, found, _ = page.partition(MARK)
    if not found:
        raise SystemExit(f"docs/cli.md has lost its line {MARK.strip()!r}")
    return head + MARK + "".join(_commands(typer.main.get_group(app), "mainstem"))


def _commands(group: Any, path: str) -> Iterator[str]:
    for name in group.list_commands(None):
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield _command(command, f"{path} {name}")


def _command(command: Any, path: str) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    usage = " ".join([path, *(argument.metavar for argument in arguments)])
    known = {setting.name for setting in settings.for_command(path.split()[1])} | {"config"}
    own = [option for option in options if option.name not in known]
    shared = [option.opts[0] for option in options if option not in own]
    lines = [f"\n## {usage}\n", f"{inspect.cleandoc(command.help)}\n"]
    rows = [*map(_argument_row, arguments), *map(_option_row, own)]
    if rows:
        lines += ["| | |", "|---|---|", *rows, ""]
    if shared:
        lines.append("[Settings](settings.md): " + ", ".join(f"`{flag}`" for flag in shared) + "\n")
    return "\n".join(lines)


def _argument_row(argument: Any) -> str:
    return f"| `{argument.metavar}` | {_help_cell(argument.help)} |"


def _option_row(option: Any) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = f" {option.metavar}" if option.metavar else ""
    default = ""
    if option.required:
        default = " Required."
    elif option.default not in (None, False) and not option.secondary_opts:
        default = f" Default: `{option.default}`."
    elif option.secondary_opts:
        default = f" Default: `{(option.opts if option.default else option.secondary_opts)[0]}`."
    return f"| `{names}{value}`".replace("|", "\\|").replace("\\|", "|", 1) + f" | {_help_cell(option.help)}{default} |"


def _help_cell(text: str) -> str:
    return text.replace("|", "\\|")


def pages() -> dict[str, str]:
    """Every rendered page by name."""
    return {
        "errors.md": errors_page(),
        "settings.md": reference_markdown(),
        "cli.md": commands_page((DOCS / "cli.md").read_text(encoding="utf-8")),
    }


def main(arguments: list[str]) -> int:
    stale = [
        name
        for name, text in pages().items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != text
    ]
    for name in stale:
        print(f"docs/{name} {'is out of date' if '--check' in arguments else 'written'}")
        if "--check" not in arguments:
            (DOCS / name).write_text(pages()[name], encoding="utf-8")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
