"""The reference page, rendered from the settings."""

from typing import Final

from mainstem.core.kinds import BoolKind, IntKind
from mainstem.core.settings.setting import Setting
from mainstem.core.settings.settings import CLIENT, SERVER, SETTINGS

_REFERENCE_INTRO: Final = """\
# Settings

<!-- Rendered from src/mainstem/core/settings by tools/pages.py; change it there. -->

Every setting can be given in three ways; the first that is given wins:

1. a flag: `mainstem serve --block-bytes 256MB`
2. a variable: `MAINSTEM_BLOCK_BYTES=256MB`
3. a TOML file: `block_bytes = "256MB"`

The file is the one named by `--config`, else by the variable `MAINSTEM_CONFIG`, else `mainstem.toml` in the working
directory if there is one. A name that is not known, in the file or as a `MAINSTEM_*` variable, is an error, so that a
misspelt setting is never silently ignored. (The variables that Kubernetes sets for a service called `mainstem`, such as
`MAINSTEM_SERVICE_HOST`, are left alone.) `mainstem config` shows the value in force of every setting and where it came
from.
"""

_REFERENCE_SECTIONS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("The server", SERVER),
    ("Client commands", CLIENT),
    ("Every command", ()),
)


def reference_markdown() -> str:
    """The page `docs/settings.md`, complete."""
    parts = [_REFERENCE_INTRO, *(_section_markdown(*section) for section in _REFERENCE_SECTIONS)]
    return "\n".join([*parts, _kinds_markdown(), _file_markdown()])


def _section_of(setting: Setting) -> tuple[str, ...]:
    """The first section whose commands the setting serves."""
    if not setting.commands:
        return ()
    return next(commands for _, commands in _REFERENCE_SECTIONS if set(commands) & set(setting.commands))


def _section_markdown(title: str, commands: tuple[str, ...]) -> str:
    lines = [f"## {title}\n"]
    if commands:
        lines.append("Used by " + ", ".join(f"`mainstem {command}`" for command in commands) + ".\n")
    lines.extend(_setting_markdown(setting, commands) for setting in SETTINGS if _section_of(setting) == commands)
    return "\n".join(lines)


def _setting_markdown(setting: Setting, commands: tuple[str, ...]) -> str:
    also = [command for command in setting.commands if command not in commands]
    rows = [
        ("flag, variable", f"`{setting.flag}`, `{setting.variable}`"),
        ("kind", f"{setting.kind.name}: {setting.kind.form}"),
        ("default", f"`{setting.default_text}`"),
        ("bounds", setting.bounds_text),
        ("example", f"`{setting.example}`"),
        ("also used by", ", ".join(f"`mainstem {command}`" for command in also)),
        ("secret", "yes: it is never shown" if setting.secret else ""),
    ]
    table_lines = ["| | |", "|---|---|", *(f"| {label} | {text} |" for label, text in rows if text)]
    return "\n".join([f"### {setting.name}\n", f"{setting.help}\n", *table_lines, ""])


def _kinds_markdown() -> str:
    return """\
## How values are written

- **Sizes**: `kB`, `MB`, `GB`, `TB` are powers of 1000; `KiB`, `MiB`, `GiB`, `TiB` are powers of 1024; a number without
  a unit is bytes. Upper and lower case are the same.
- **Durations**: a number with `us`, `ms`, `s`, `m` (minutes), `h` or `d`, as in `250ms` or `1.5h`. The unit is
  needed.
- **Addresses**: `host:port`, for IPv6 `[::1]:7070`. Port 0 takes any free port; `off` does not listen at all.
- **Booleans**: `true` or `false` (also `yes`, `no`, `on`, `off`, `1`, `0`).
- **Paths** are relative to the working directory, wherever they are written; `~` is the home folder.
- In the TOML file whole numbers and booleans may be written without quotes; everything else is text in quotes.
"""


def _file_markdown() -> str:
    lines = ["## A file with every default\n", "```toml"]
    lines.extend(_toml_line(setting) for setting in SETTINGS if not setting.secret)
    return "\n".join([*lines, "```", ""])


def _toml_line(setting: Setting) -> str:
    bare = isinstance(setting.kind, BoolKind | IntKind)
    return f"{setting.name} = {setting.default_text if bare else chr(34) + setting.default_text + chr(34)}"
