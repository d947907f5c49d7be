"""All settings: one field of `Settings` each."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mainstem.core import limits
from mainstem.core.kinds import (
    Address,
    AddressKind,
    BoolKind,
    BytesKind,
    ChoiceKind,
    DurationKind,
    FileKind,
    IntKind,
    Kind,
    PathKind,
    UrlKind,
    render_bytes,
)
from mainstem.core.settings.relations import check_relations
from mainstem.core.settings.setting import Setting, check

# The commands that run a server, and those that talk to one.
SERVER: Final = ("serve", "demo")
CLIENT: Final = (
    *("stream", "schema", "write", "tail", "find", "sql", "groups", "redrive", "top", "job", "bench"),
    *("token", "access", "quota"),
)


def _setting(kind: Kind, default: str, help: str, *, example: str, **facts: Any) -> Any:  # noqa: A002
    metadata = {"kind": kind, "help": help, "example": example, **facts}
    return dataclasses.field(default=kind.parse(default), metadata={"setting": metadata})


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
        commands=(*SERVER, "backup", "restore", "doctor"),
    )
    listen: Address | None = _setting(  # noqa: RUF009  # the default is immutable
        AddressKind(),
        "127.0.0.1:7070",
        "Where the native protocol is served. Elsewhere than on loopback it takes `tls_cert`, `tls_key` and a token.",
        example="127.0.0.1:7070",
        commands=SERVER,
    )
    http: Address | None = _setting(  # noqa: RUF009  # the default is immutable
        AddressKind(),
        "127.0.0.1:7071",
        "Where HTTP is served: health, metrics and the REST routes. Elsewhere than on loopback it takes `tls_cert`,"
        " `tls_key` and a token.",
        example="127.0.0.1:0",
        commands=SERVER,
    )
    tls_cert: Path | None = _setting(  # noqa: RUF009  # the default is immutable
        FileKind(),
        "off",
        "The certificate that the server shows, with those between it and its authority, in PEM format. With it the"
        " server speaks TLS only, HTTPS included. A new file is taken within a second, without a restart.",
        example="/etc/mainstem/server.crt",
        commands=SERVER,
    )
    tls_key: Path | None = _setting(  # noqa: RUF009  # the default is immutable
        FileKind(),
        "off",
        "The private key of `tls_cert`, in PEM format and not encrypted.",
        example="/etc/mainstem/server.key",
        commands=SERVER,
    )
    tls_client_ca: Path | None = _setting(  # noqa: RUF009  # the default is immutable
        FileKind(),
        "off",
        "The authority whose certificates say who a client is: the common name in one is the principal, if a rule names"
        " it.",
        example="/etc/mainstem/clients.crt",
        commands=SERVER,
    )
    metrics_streams_max: int = _setting(
        IntKind(),
        "100",
        "How many streams `/metrics` names, the largest first; the others are summed under the name `_other`.",
        example="1000",
        commands=SERVER,
        minimum=0,
        maximum=10_000,
    )
    http_counts: float = _setting(
        DurationKind(),
        "0s",
        "The length of the windows in which records that come by HTTP are counted, for `mainstem job run audit`; `0s`"
        " counts none. Producers of the native protocol count for themselves, with `counts=`.",
        example="1m",
        commands=SERVER,
        minimum=0.0,
        maximum=86_400.0,
    )
    kafka: Address | None = _setting(  # noqa: RUF009  # the default is immutable
        AddressKind(),
        "off",
        "Where the Kafka protocol is served. This version does not speak it, so only `off` is accepted.",
        example="off",
        commands=SERVER,
    )
    block_bytes: int = _setting(
        BytesKind(),
        render_bytes(limits.BLOCK_BYTES_DEFAULT),
        "A block is sealed and the next one begun when it has grown to this size.",
        example="256MB",
        commands=SERVER,
        minimum=limits.BLOCK_BYTES_MIN,
        maximum=limits.BLOCK_BYTES_MAX,
    )
    hot_tail_bytes: int = _setting(
        BytesKind(),
        "32MiB",
        "How much of the newest data is kept in memory for readers that follow.",
        example="256MB",
        commands=SERVER,
        minimum=1 * limits.MIB,
        maximum=64 * 1024 * limits.MIB,
    )
    snapshot_bytes: int = _setting(
        BytesKind(),
        "256MiB",
        "How much is written to blocks between two snapshots of the ledger. Less makes a damaged ledger quicker to"
        " rebuild and costs more writing.",
        example="1GB",
        commands=SERVER,
        minimum=1 * limits.MIB,
        maximum=1024 * 1024 * limits.MIB,
    )
    checkpoint_bytes: int = _setting(
        BytesKind(),
        "2MiB",
        "How large the ledger's write-ahead log grows between two checkpoints.",
        example="16MB",
        commands=SERVER,
        minimum=64 * limits.KIB,
        maximum=1024 * limits.MIB,
    )
    free_bytes_min: int = _setting(
        BytesKind(),
        render_bytes(limits.FREE_BYTES_MIN_DEFAULT),
        "With less free space on the disk appends are refused, until there is more again; reading, trimming and"
        " deleting go on. At most an eighth of the file system.",
        example="2GB",
        commands=SERVER,
        minimum=0,
        maximum=1024 * 1024 * limits.MIB,
    )
    ballast_bytes: int = _setting(
        BytesKind(),
        render_bytes(limits.BALLAST_BYTES_DEFAULT),
        "The size of the file that keeps room on the disk and is given up when there is no other, so that trimming and"
        " deleting still work. 0: none. At most a 32nd of the file system.",
        example="128MB",
        commands=SERVER,
        minimum=0,
        maximum=1024 * limits.MIB,
    )
    auto_create: bool = _setting(
        BoolKind(),
        "false",
        "Whether writing to a stream that does not exist creates it. Off, so that a misspelt name is an error.",
        example="true",
        commands=SERVER,
    )
    auto_create_shards: int = _setting(
        IntKind(),
        "1",
        "How many shards a stream created by writing to it gets.",
        example="4",
        commands=SERVER,
        minimum=1,
        maximum=limits.SHARDS_PER_STREAM_MAX,
    )
    retention: float = _setting(
        DurationKind(),
        "7d",
        "How long records are kept in streams that do not say it themselves.",
        example="30d",
        commands=SERVER,
        minimum=1.0,
        maximum=100 * 365 * 86_400.0,
    )
    upkeep_interval: float = _setting(
        DurationKind(),
        "30s",
        "How often the log looks for records that are too old and for blocks that can be freed.",
        example="5m",
        commands=SERVER,
        minimum=0.05,
        maximum=86_400.0,
    )
    upkeep_percent: int = _setting(
        IntKind(),
        "20",
        "For how much of the time the upkeep of the log may work: merging, compacting, rewriting, freeing.",
        example="50",
        commands=SERVER,
        minimum=1,
        maximum=100,
    )
    free_after: float = _setting(
        DurationKind(),
        "10m",
        "How long the file of a block stays after its last record is gone, for readers that are about to read it.",
        example="1m",
        commands=SERVER,
        minimum=0.0,
        maximum=30 * 86_400.0,
    )
    rewrite_after: float = _setting(
        DurationKind(),
        "24h",
        "How long trimmed and deleted records stay on disk, at most, beside others that are kept; then the others move"
        " to another block. Erased records do not wait.",
        example="1h",
        commands=SERVER,
        minimum=0.0,
        maximum=365 * 86_400.0,
    )
    record_bytes_max: int = _setting(
        BytesKind(),
        render_bytes(limits.RECORD_BYTES_MAX),
        "The largest record accepted: key, value and headers together.",
        example="1MB",
        commands=SERVER,
        minimum=1 * limits.KIB,
        maximum=limits.RECORD_BYTES_MAX,
    )
    connections_max: int = _setting(
        IntKind(),
        "1000",
        "How many clients may be connected at once. One more is refused and told to come back later.",
        example="200",
        commands=SERVER,
        minimum=1,
        maximum=100_000,
    )
    connects_per_second: int = _setting(
        IntKind(),
        "1000",
        "How many clients are let in each second, and twice as many at once after a rest. Others are told when to come "
        "back, so that not all come at the same moment when a server starts again.",
        example="50",
        commands=SERVER,
        minimum=1,
        maximum=1_000_000,
    )
    heartbeat: float = _setting(
        DurationKind(),
        "5s",
        "How often a connection without traffic shows that it is alive.",
        example="2s",
        commands=SERVER,
        minimum=0.05,
        maximum=3_600.0,
    )
    idle_timeout: float = _setting(
        DurationKind(),
        "15s",
        "A peer that is silent for longer is disconnected. At least twice the heartbeat.",
        example="30s",
        commands=SERVER,
        minimum=0.1,
        maximum=86_400.0,
    )
    drain_timeout: float = _setting(
        DurationKind(),
        "10s",
        "How long a server that is stopping lets requests finish before it closes connections.",
        example="30s",
        commands=SERVER,
        minimum=0.0,
        maximum=3_600.0,
    )
    group_heartbeat: float = _setting(
        DurationKind(),
        "3s",
        "How often a member of a group of readers shows that it lives.",
        example="1s",
        commands=SERVER,
        minimum=0.01,
        maximum=3_600.0,
    )
    group_session_timeout: float = _setting(
        DurationKind(),
        "8s",
        "A member that is silent for longer loses its shards to the others. At least twice the group_heartbeat.",
        example="30s",
        commands=SERVER,
        minimum=0.02,
        maximum=3_600.0,
    )
    group_revocation_timeout: float = _setting(
        DurationKind(),
        "30s",
        "How long a member that lives may keep a shard that another is to have, to finish and commit what it has read.",
        example="5m",
        commands=SERVER,
        minimum=0.01,
        maximum=3_600.0,
    )
    group_rebalance_interval: float = _setting(
        DurationKind(),
        "30s",
        "How often the loads of a group's members are compared, to move shards. Loads, trends and the advice on how "
        "many members there should be are averages of about as long.",
        example="10s",
        commands=SERVER,
        minimum=0.1,
        maximum=3_600.0,
    )
    url: str = _setting(
        UrlKind(),
        "mainstem://127.0.0.1:7070",
        "The server that client commands talk to.",
        example="mainstem://localhost:7070",
        commands=CLIENT,
    )
    token_file: Path | None = _setting(  # noqa: RUF009  # the default is immutable
        FileKind(),
        "off",
        "The file with the token that client commands show, read at every connection; `-` asks for the token. The"
        " variable MAINSTEM_TOKEN has the token itself.",
        example="~/.mainstem/token",
        commands=CLIENT,
    )
    tls_ca: Path | None = _setting(  # noqa: RUF009  # the default is immutable
        FileKind(),
        "off",
        "The authority that has signed the server's certificate, in PEM format; `off`: those that the system trusts.",
        example="/etc/mainstem/ca.crt",
        commands=CLIENT,
    )
    tls_client_cert: Path | None = _setting(  # noqa: RUF009  # the default is immutable
        FileKind(),
        "off",
        "The certificate that client commands show to a server with tls_client_ca, in PEM format. A token, if one is"
        " given, says who they are in its place.",
        example="~/.mainstem/billing.crt",
        commands=CLIENT,
    )
    tls_client_key: Path | None = _setting(  # noqa: RUF009  # the default is immutable
        FileKind(),
        "off",
        "The key of tls_client_cert, in PEM format and not encrypted.",
        example="~/.mainstem/billing.key",
        commands=CLIENT,
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
            check(setting, values[setting.name])
        check_relations(values, {})


def _specify(field: "dataclasses.Field[Any]") -> Setting:
    return Setting(name=field.name, default=field.default, **field.metadata["setting"])


SETTINGS: Final[tuple[Setting, ...]] = tuple(_specify(field) for field in dataclasses.fields(Settings))
BY_NAME: Final[Mapping[str, Setting]] = {setting.name: setting for setting in SETTINGS}


def for_command(command: str) -> tuple[Setting, ...]:
    """The settings that a command takes as flags, in the order of the reference page."""
    return tuple(setting for setting in SETTINGS if not setting.commands or command in setting.commands)
