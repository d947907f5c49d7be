"""Where values come from: flags, variables, a TOML file, and the defaults."""

import difflib
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mainstem.core import limits
from mainstem.core.errors import InvalidSetting
from mainstem.core.kinds import expand_home, render_bytes
from mainstem.core.settings.relations import check_relations
from mainstem.core.settings.setting import PREFIX, parsed
from mainstem.core.settings.settings import BY_NAME, SETTINGS, Settings

CONFIG_VARIABLE: Final = "MAINSTEM_CONFIG"
CONFIG_NAME: Final = "mainstem.toml"
CONFIG_BYTES_MAX: Final = 1 * limits.MIB
DEFAULT: Final = "default"

# Variables with our prefix that are not settings. Name: what it does.
OTHER_VARIABLES: Final[Mapping[str, str]] = {
    CONFIG_VARIABLE: "the TOML file to read, like `--config`",
    "MAINSTEM_TOKEN": "the token that clients show, if neither a token nor a `token_file` is given",
    "MAINSTEM_DEBUG": "1: the command line shows where in the code an error arose",
}

# Kubernetes gives every pod such variables for a Service called "mainstem"; refusing them would refuse to start there.
_KUBERNETES_VARIABLE: Final = re.compile(
    r"MAINSTEM_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings in force, and for each where its value came from. `config_path` is the file read, if any."""

    settings: Settings
    origins: dict[str, str]
    config_path: Path | None = None


def load(flags: Mapping[str, str | None], environ: Mapping[str, str], config_path: Path | None = None) -> Loaded:
    """Merge flags over variables over the file over the defaults.

    `flags` is keyed by setting name; None is a flag that was not given. `config_path` is the value of `--config`;
    without it the file is the one `MAINSTEM_CONFIG` names, else `mainstem.toml` in the working directory if there is
    one. A name that is not known, in any of them, is an error: a misspelt setting must not be silently ignored.
    """
    path, path_origin = _find_config(environ, config_path)
    raw: dict[str, tuple[object, str]] = {}
    if path is not None:
        raw.update(_from_file(path, path_origin))
    raw.update(_from_environ(environ))
    raw.update(_from_flags(flags))
    values = {setting.name: setting.default for setting in SETTINGS}
    origins = dict.fromkeys(values, DEFAULT)
    for name, (given, origin) in raw.items():
        values[name], origins[name] = parsed(BY_NAME[name], given, origin), origin
    check_relations(values, origins)
    return Loaded(Settings(**values), origins, path)


def table(loaded: Loaded) -> list[tuple[str, str, str]]:
    """(name, value, origin) of every setting, secrets masked: what `mainstem config` prints."""
    return [
        (setting.name, setting.shown(getattr(loaded.settings, setting.name)), loaded.origins[setting.name])
        for setting in SETTINGS
    ]


def _find_config(environ: Mapping[str, str], config_path: Path | None) -> tuple[Path | None, str]:
    if config_path is not None:
        return config_path, "flag --config"
    if CONFIG_VARIABLE in environ:
        return _config_of_variable(environ[CONFIG_VARIABLE]), f"variable {CONFIG_VARIABLE}"
    here = Path(CONFIG_NAME)
    return (here, "the working directory") if here.is_file() else (None, "")


def _config_of_variable(text: str) -> Path:
    try:
        return expand_home(text)
    except ValueError as error:
        raise InvalidSetting(f"{CONFIG_VARIABLE} = {text!r}: {error}. Write the whole path of a TOML file.") from None


def _from_file(path: Path, path_origin: str) -> Iterator[tuple[str, tuple[object, str]]]:
    origin = f"file {path}"
    for key, given in _read_toml(path, path_origin).items():
        if key not in BY_NAME:
            raise _unknown(f"{key!r} in {path}", key, BY_NAME)
        yield key, (given, origin)


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[str, tuple[object, str]]]:
    names = {setting.variable: setting.name for setting in SETTINGS}
    for variable in sorted(environ):
        if variable in names:
            yield names[variable], (environ[variable], f"variable {variable}")
        elif _is_unknown_variable(variable):
            raise _unknown(f"the variable {variable}", variable, [*names, *OTHER_VARIABLES])


def _is_unknown_variable(variable: str) -> bool:
    if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
        return False
    return _KUBERNETES_VARIABLE.fullmatch(variable) is None


def _from_flags(flags: Mapping[str, str | None]) -> Iterator[tuple[str, tuple[object, str]]]:
    for name, given in flags.items():
        if name not in BY_NAME:
            flag = "--" + name.replace("_", "-")
            raise _unknown(f"the flag {flag}", flag, [setting.flag for setting in SETTINGS])
        if given is not None:
            yield name, (given, f"flag {BY_NAME[name].flag}")


def _unknown(what: str, name: str, valid: Collection[str]) -> InvalidSetting:
    # Without what they all begin with, which would make strangers look alike.
    bare = {_bare(candidate): candidate for candidate in valid}
    closest = difflib.get_close_matches(_bare(name), bare, n=1, cutoff=0.5)
    hint = f"Did you mean {bare[closest[0]]}?" if closest else f"The valid names are: {', '.join(sorted(valid))}."
    return InvalidSetting(f"{what} is not a setting. {hint}")


def _bare(name: str) -> str:
    return name.removeprefix(PREFIX).removeprefix("--")


def _read_toml(path: Path, path_origin: str) -> dict[str, object]:
    where = f"the config file {path} (named by {path_origin})"
    try:
        with path.open("rb") as file:
            content = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidSetting(
            f"{where} cannot be read: {error.strerror}. Check the path and its permissions."
        ) from error
    if len(content) > CONFIG_BYTES_MAX:
        raise InvalidSetting(f"{where} is larger than {render_bytes(CONFIG_BYTES_MAX)}. Is it the right file?")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidSetting(f"{where} is not UTF-8 text (byte {error.start}). Is it the right file?") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidSetting(f"{where} is not valid TOML: {error}. Text values need quotes.") from error
