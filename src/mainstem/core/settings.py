"""Settings: one class that feeds the flags, the `MAINSTEM_*` variables, the TOML file and the reference page.

Each field of `Settings` carries its kind, its bounds, one sentence of help, an example and the commands that use it.
Everything else here is derived from that: `load` merges the four sources, `table` shows the result with the origin of
every value, `reference_markdown` renders `docs/settings.md`. A new setting is one new field.

A value that is not allowed is an `InvalidSetting` that names the value, where it came from and what to write instead.
A `Settings` that exists is valid, however it was made.
"""

import dataclasses
import difflib
import ipaddress
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mainstem.core import limits
from mainstem.core.errors import InvalidSetting
from mainstem.core.kinds import (
    Address,
    AddressKind,
    BoolKind,
    BytesKind,
    ChoiceKind,
    DurationKind,
    IntKind,
    Kind,
    PathKind,
    UrlKind,
    expand_home,
    render_bytes,
    render_duration,
)

PREFIX: Final = "MAINSTEM_"
CONFIG_VARIABLE: Final = "MAINSTEM_CONFIG"
CONFIG_NAME: Final = "mainstem.toml"
CONFIG_BYTES_MAX: Final = 1 * limits.MIB
MASK: Final = "********"
DEFAULT: Final = "default"

# Variables with our prefix that are not settings. Name: what it does.
OTHER_VARIABLES: Final[Mapping[str, str]] = {
    CONFIG_VARIABLE: "the TOML file to read, like `--config`",
    "MAINSTEM_DEBUG": "1: the command line shows where in the code an error arose",
}

# Kubernetes gives every pod such variables for a Service called "mainstem"; refusing them would refuse to start there.
_KUBERNETES_VARIABLE: Final = re.compile(
    r"MAINSTEM_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


# -------------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known about one field of `Settings`. `commands` empty means every command."""

    name: str
    kind: Kind
    default: Any
    help: str
    example: str
    commands: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    secret: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def default_text(self) -> str:
        return self.kind.render(self.default)

    @property
    def bounds_text(self) -> str:
        """`64 KiB to 4 GiB`, `at least 1s`, or nothing."""
        low = None if self.minimum is None else self.kind.render(self.minimum)
        high = None if self.maximum is None else self.kind.render(self.maximum)
        if low is not None and high is not None:
            return f"{low} to {high}"
        return f"at least {low}" if low is not None else f"at most {high}" if high is not None else ""

    def parse(self, raw: object) -> Any:
        """The checked value of a text or TOML value. ValueError says what is wrong."""
        value = self.kind.parse(raw)
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Refuse a value of the wrong type or out of bounds. ValueError says what is wrong."""
        self.kind.check(value)
        below = self.minimum is not None and value < self.minimum
        above = self.maximum is not None and value > self.maximum
        # NaN is neither below nor above anything, and not equal to itself.
        if below or above or value != value:
            raise ValueError(f"it is out of bounds ({self.bounds_text})")

    def shown(self, value: Any) -> str:
        """The value as people may see it."""
        return MASK if self.secret else self.kind.render(value)


def _setting(kind: Kind, default: str, help: str, *, example: str, **facts: Any) -> Any:  # noqa: A002
    metadata = {"kind": kind, "help": help, "example": example, **facts}
    return dataclasses.field(default=kind.parse(default), metadata={"setting": metadata})


_SERVER: Final = ("serve", "demo")
_CLIENT: Final = ("stream", "schema", "write", "tail", "find", "redrive", "top", "bench")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set. Immutable, valid, safe to share between threads.

    Sizes are in bytes, durations in seconds, an address that is off is None. What belongs to one producer, consumer or
    stream is an option of that call, not a setting.
    """

    data: Path = _setting(  # noqa: RUF009  # the default is immutable
        PathKind(),
        "./data",
        "The folder that holds the log. It is created if it does not exist; one process writes it at a time.",
        example="/var/lib/mainstem",
        commands=(*_SERVER, "backup", "restore", "doctor"),
    )
    listen: Address | None = _setting(  # noqa: RUF009  # the default is immutable
        AddressKind(),
        "127.0.0.1:7070",
        "Where the native protocol is served. Loopback only, as there is no TLS and there are no tokens yet.",
        example="127.0.0.1:7070",
        commands=_SERVER,
    )
    http: Address | None = _setting(  # noqa: RUF009  # the default is immutable
        AddressKind(),
        "127.0.0.1:7071",
        "Where HTTP is served: health, metrics and the REST routes. Loopback only, for the same reason.",
        example="127.0.0.1:0",
        commands=_SERVER,
    )
    metrics_streams_max: int = _setting(
        IntKind(),
        "100",
        "How many streams `/metrics` names, the largest first; the others are summed under the name `_other`.",
        example="1000",
        commands=_SERVER,
        minimum=0,
        maximum=10_000,
    )
    kafka: Address | None = _setting(  # noqa: RUF009  # the default is immutable
        AddressKind(),
        "off",
        "Where the Kafka protocol is served. This version does not speak it, so only `off` is accepted.",
        example="off",
        commands=_SERVER,
    )
    block_bytes: int = _setting(
        BytesKind(),
        render_bytes(limits.BLOCK_BYTES_DEFAULT),
        "A block is sealed and the next one begun when it has grown to this size.",
        example="256MB",
        commands=_SERVER,
        minimum=limits.BLOCK_BYTES_MIN,
        maximum=limits.BLOCK_BYTES_MAX,
    )
    hot_tail_bytes: int = _setting(
        BytesKind(),
        "32MiB",
        "How much of the newest data is kept in memory for readers that follow.",
        example="256MB",
        commands=_SERVER,
        minimum=1 * limits.MIB,
        maximum=64 * 1024 * limits.MIB,
    )
    snapshot_bytes: int = _setting(
        BytesKind(),
        "256MiB",
        "How much is written to blocks between two snapshots of the ledger. Less makes a damaged ledger quicker to"
        " rebuild and costs more writing.",
        example="1GB",
        commands=_SERVER,
        minimum=1 * limits.MIB,
        maximum=1024 * 1024 * limits.MIB,
    )
    checkpoint_bytes: int = _setting(
        BytesKind(),
        "2MiB",
        "How large the ledger's write-ahead log grows between two checkpoints.",
        example="16MB",
        commands=_SERVER,
        minimum=64 * limits.KIB,
        maximum=1024 * limits.MIB,
    )
    free_bytes_min: int = _setting(
        BytesKind(),
        render_bytes(limits.FREE_BYTES_MIN_DEFAULT),
        "With less free space on the disk appends are refused, until there is more again; reading, trimming and"
        " deleting go on. At most an eighth of the file system.",
        example="2GB",
        commands=_SERVER,
        minimum=0,
        maximum=1024 * 1024 * limits.MIB,
    )
    ballast_bytes: int = _setting(
        BytesKind(),
        render_bytes(limits.BALLAST_BYTES_DEFAULT),
        "The size of the file that keeps room on the disk and is given up when there is no other, so that trimming and"
        " deleting still work. 0: none. At most a 32nd of the file system.",
        example="128MB",
        commands=_SERVER,
        minimum=0,
        maximum=1024 * limits.MIB,
    )
    auto_create: bool = _setting(
        BoolKind(),
        "false",
        "Whether writing to a stream that does not exist creates it. Off, so that a misspelt name is an error.",
        example="true",
        commands=_SERVER,
    )
    auto_create_shards: int = _setting(
        IntKind(),
        "1",
        "How many shards a stream created by writing to it gets.",
        example="4",
        commands=_SERVER,
        minimum=1,
        maximum=limits.SHARDS_PER_STREAM_MAX,
    )
    retention: float = _setting(
        DurationKind(),
        "7d",
        "How long records are kept in streams that do not say it themselves.",
        example="30d",
        commands=_SERVER,
        minimum=1.0,
        maximum=100 * 365 * 86_400.0,
    )
    upkeep_interval: float = _setting(
        DurationKind(),
        "30s",
        "How often the log looks for records that are too old and for blocks that can be freed.",
        example="5m",
        commands=_SERVER,
        minimum=0.05,
        maximum=86_400.0,
    )
    upkeep_percent: int = _setting(
        IntKind(),
        "20",
        "For how much of the time the upkeep of the log may work: merging, compacting, rewriting, freeing.",
        example="50",
        commands=_SERVER,
        minimum=1,
        maximum=100,
    )
    free_after: float = _setting(
        DurationKind(),
        "10m",
        "How long the file of a block stays after its last record is gone, for readers that are about to read it.",
        example="1m",
        commands=_SERVER,
        minimum=0.0,
        maximum=30 * 86_400.0,
    )
    rewrite_after: float = _setting(
        DurationKind(),
        "24h",
        "How long trimmed and deleted records stay on disk, at most, beside others that are kept; then the others move"
        " to another block. Erased records do not wait.",
        example="1h",
        commands=_SERVER,
        minimum=0.0,
        maximum=365 * 86_400.0,
    )
    record_bytes_max: int = _setting(
        BytesKind(),
        render_bytes(limits.RECORD_BYTES_MAX),
        "The largest record accepted: key, value and headers together.",
        example="1MB",
        commands=_SERVER,
        minimum=1 * limits.KIB,
        maximum=limits.RECORD_BYTES_MAX,
    )
    connections_max: int = _setting(
        IntKind(),
        "1000",
        "How many clients may be connected at once. One more is refused and told to come back later.",
        example="200",
        commands=_SERVER,
        minimum=1,
        maximum=100_000,
    )
    heartbeat: float = _setting(
        DurationKind(),
        "5s",
        "How often a connection without traffic shows that it is alive.",
        example="2s",
        commands=_SERVER,
        minimum=0.05,
        maximum=3_600.0,
    )
    idle_timeout: float = _setting(
        DurationKind(),
        "15s",
        "A peer that is silent for longer is disconnected. At least twice the heartbeat.",
        example="30s",
        commands=_SERVER,
        minimum=0.1,
        maximum=86_400.0,
    )
    drain_timeout: float = _setting(
        DurationKind(),
        "10s",
        "How long a server that is stopping lets requests finish before it closes connections.",
        example="30s",
        commands=_SERVER,
        minimum=0.0,
        maximum=3_600.0,
    )
    url: str = _setting(
        UrlKind(),
        "mainstem://127.0.0.1:7070",
        "The server that client commands talk to.",
        example="mainstem://localhost:7070",
        commands=_CLIENT,
    )
    log_format: str = _setting(
        ChoiceKind("text", "json"),
        "text",
        "How log lines are written to standard error.",
        example="json",
    )
    log_level: str = _setting(
        ChoiceKind("debug", "info", "warning", "error"),
        "info",
        "The least important log lines to write.",
        example="debug",
    )

    def __post_init__(self) -> None:
        values = {setting.name: getattr(self, setting.name) for setting in SETTINGS}
        for setting in SETTINGS:
            _checked(setting, values[setting.name])
        _check_relations(values, {})


def _specify(field: "dataclasses.Field[Any]") -> Setting:
    return Setting(name=field.name, default=field.default, **field.metadata["setting"])


SETTINGS: Final[tuple[Setting, ...]] = tuple(_specify(field) for field in dataclasses.fields(Settings))
BY_NAME: Final[Mapping[str, Setting]] = {setting.name: setting for setting in SETTINGS}


def for_command(command: str) -> tuple[Setting, ...]:
    """The settings that a command takes as flags, in the order of the reference page."""
    return tuple(setting for setting in SETTINGS if not setting.commands or command in setting.commands)


def require_loopback(address: Address, name: str = "listen", origin: str = "") -> None:
    """Refuse to listen where other machines could connect.

    A host name other than `localhost` is refused too: what it means is decided elsewhere and can change.
    """
    if address.host.lower() == "localhost" or _is_loopback(address.host):
        return
    raise InvalidSetting(
        f"{name} = {str(address)!r}{_from(origin)} would let other machines connect, and this version has neither TLS"
        f" nor tokens to protect the log from them. Listen on 127.0.0.1:{address.port} and reach it from elsewhere"
        " through an SSH tunnel or a proxy that authenticates."
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_relations(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """What several settings must agree on, and what this version cannot do yet."""
    for name in ("listen", "http"):
        if values[name] is not None:
            require_loopback(values[name], name, origins.get(name, ""))
    if values["kafka"] is not None:
        raise InvalidSetting(
            f"kafka = {str(values['kafka'])!r}{_from(origins.get('kafka', ''))}: this version does not speak the Kafka"
            " protocol. Leave the setting out, or set it to 'off'."
        )
    _check_ports(values, origins)
    _check_silence(values, origins)


def _check_ports(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    address = values["listen"]
    if address is not None and address.port != 0 and address == values["http"]:
        raise InvalidSetting(
            f"listen{_from(origins.get('listen', ''))} and http{_from(origins.get('http', ''))} are both {address}."
            " Give each its own port, or turn one off."
        )


def _check_silence(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    # One late heartbeat must not look like a dead peer.
    heartbeat, idle = values["heartbeat"], values["idle_timeout"]
    if idle < 2 * heartbeat:
        raise InvalidSetting(
            f"idle_timeout = {render_duration(idle)!r}{_from(origins.get('idle_timeout', ''))} is less than twice the"
            f" heartbeat of {render_duration(heartbeat)}{_from(origins.get('heartbeat', ''))}: healthy peers would be"
            f" dropped. Set idle_timeout to at least {render_duration(2 * heartbeat)}, or lower heartbeat."
        )


def _from(origin: str) -> str:
    return f" ({origin})" if origin else ""


# --------------------------------------------------------------------------------------------------------- loading


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
        values[name], origins[name] = _parsed(BY_NAME[name], given, origin), origin
    _check_relations(values, origins)
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


def _parsed(setting: Setting, given: object, origin: str) -> Any:
    try:
        return setting.parse(given)
    except ValueError as error:
        raise _invalid(setting, given, origin, error) from None


def _checked(setting: Setting, value: Any) -> None:
    try:
        setting.check(value)
    except ValueError as error:
        raise _invalid(setting, value, "", error) from None


def _invalid(setting: Setting, given: object, origin: str, problem: ValueError) -> InvalidSetting:
    # A value may be anything a file holds; its text is cut so that the message stays readable.
    shown = MASK if setting.secret else repr(str(given))[:120]
    what = f"{setting.kind.article} {setting.kind.name}"
    return InvalidSetting(
        f"{setting.name} = {shown}{_from(origin)} is not {what} that can be used: {problem}."
        f" Write {setting.kind.form.replace('`', '')}; for example {setting.example}."
    )


# -------------------------------------------------------------------------------------------------- reference page

_REFERENCE_INTRO: Final = """\
# Settings

<!-- Rendered from src/mainstem/core/settings.py by reference_markdown(); change it there. -->

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
    ("The server", _SERVER),
    ("Client commands", _CLIENT),
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
