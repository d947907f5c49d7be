"""Flags of a command that come from the settings, so that a new setting is a new flag without a line here."""

import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from mainstem.core import settings
from mainstem.core.kinds import BoolKind, ChoiceKind
from mainstem.core.settings import Loaded, Setting

Command = Callable[..., int | None]

_CONFIG = typer.Option("--config", metavar="FILE", help="The TOML file with settings.")


def with_settings(command: str) -> Callable[[Command], Command]:
    """Give a command the flags of its settings and `--config`; it is called with what was loaded from all sources.

    The first parameter of the decorated function takes the `Loaded`; the others are its own arguments and options.
    """
    chosen = settings.for_command(command)

    def decorate(function: Command) -> Command:
        loaded_name, *own = inspect.signature(function, eval_str=True).parameters.values()

        def called(**given: Any) -> int | None:
            config = given.pop("config")
            flags = {setting.name: given.pop(setting.name) for setting in chosen}
            loaded = settings.load(flags, os.environ, None if config is None else Path(config))
            return function(loaded, **given)

        parameters = [*own, *map(_flag, chosen), _parameter("config", Annotated[str | None, _CONFIG])]
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        called.__name__ = function.__name__
        called.__doc__ = function.__doc__
        assert loaded_name.annotation is Loaded, f"{function.__name__} must take the loaded settings first"
        return called

    return decorate


def given_flags(command: str, loaded: Loaded) -> Iterator[tuple[Setting, str]]:
    """The settings of a command that were given as flags, with the text that gives the same value again."""
    for setting in settings.for_command(command):
        if loaded.origins[setting.name].startswith("flag"):
            yield setting, setting.kind.render(getattr(loaded.settings, setting.name))


def spell_out(arguments: Iterable[str]) -> list[str]:
    """`--auto-create` alone means `--auto-create true`: every other setting takes a value, and so does the parser."""
    words = list(arguments)
    switches = {setting.flag for setting in settings.SETTINGS if isinstance(setting.kind, BoolKind)}
    for place, word in enumerate(words):
        follows = words[place + 1] if place + 1 < len(words) else ""
        if word in switches and not _is_boolean(follows):
            words[place] = f"{word}=true"
    return words


def _is_boolean(text: str) -> bool:
    try:
        BoolKind().parse(text)
    except ValueError:
        return False
    return True


def _flag(setting: Setting) -> inspect.Parameter:
    kind = setting.kind
    metavar = "|".join(kind.choices) if isinstance(kind, ChoiceKind) else kind.name.upper()
    default = "" if setting.secret else f"; default {setting.default_text}"
    option = typer.Option(
        setting.flag,
        metavar=metavar,
        help=f"{setting.help} ({setting.variable}{default})",
        show_default=False,
    )
    return _parameter(setting.name, Annotated[str | None, option])


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
