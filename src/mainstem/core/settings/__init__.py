"""Settings: one class that feeds the flags, the `MAINSTEM_*` variables, the TOML file and the reference page.

Each field of `Settings` carries its kind, its bounds, one sentence of help, an example and the commands that use it.
Everything else here is derived from that: `load` merges the four sources, `table` shows the result with the origin of
every value, `reference.reference_markdown` renders `docs/settings.md`. A new setting is one new field.

A value that is not allowed is an `InvalidSetting` that names the value, where it came from and what to write instead.
A `Settings` that exists is valid, however it was made.
"""

from mainstem.core.settings.relations import require_loopback
from mainstem.core.settings.setting import Setting
from mainstem.core.settings.settings import BY_NAME, SETTINGS, Settings, for_command
from mainstem.core.settings.sources import DEFAULT, Loaded, load, table

__all__ = [
    "BY_NAME",
    "DEFAULT",
    "SETTINGS",
    "Loaded",
    "Setting",
    "Settings",
    "for_command",
    "load",
    "require_loopback",
    "table",
]
