"""Options of `format("mainstem")`: what they are called, what they may be, and what is meant by a name that is none."""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from mainstem.consume.places import offsets_at
from mainstem.core.cursor import Cursor
from mainstem.core.durations import microseconds
from mainstem.core.errors import InvalidCursor, InvalidSetting
from mainstem.core.kinds import render_duration
from mainstem.core.limits import GROUP_HOLD_US_DEFAULT, GROUP_HOLD_US_MAX
from mainstem.core.names import check_group_name, check_named_once, check_stream_name
from mainstem.spark.origin import Access
from mainstem.transport.port import Port, StreamInfo

# Where to begin, or to end: an end of the stream, a time, a cursor, or offsets by shard.
Place = Literal["earliest", "latest"] | datetime | Cursor | tuple[tuple[int, int], ...]
# As in Spark's source of Kafka: offsets that stand for the ends of a shard.
_EARLIEST: Final = -2
_LATEST: Final = -1

# Of both directions.
ACCESS_OPTIONS: Final = ("hub", "stream", "path", "token", "tokenFile", "ca", "certificate", "certificateKey")
READ_OPTIONS: Final = (
    *ACCESS_OPTIONS,
    *("columns", "where", "pushFilters", "includeMetadata", "onBad", "failOnDataLoss", "partitions"),
    *("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp"),
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "group", "holdRetention"),
)
_STREAMING_ONLY: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "group", "holdRetention")
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "pushFilters")
# What people write who come from elsewhere.
_MEANT: Final = {
    "kafka.bootstrap.servers": "hub",
    "server": "hub",
    "address": "hub",
    "url": "hub",
    "data": "hub",
    "folder": "hub",
    "subscribe": "stream",
    "topic": "stream",
    "kafka.group.id": "group",
    "groupid": "group",
    "minpartitions": "partitions",
    "numpartitions": "partitions",
    "includeheaders": "includeMetadata",
    "filter": "where",
    "select": "columns",
}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read was asked for. `starting`, `hold_us` None: not said."""

    access: Access
    stream: str
    columns: tuple[str, ...] | None
    where: str
    push_filters: bool
    metadata: bool
    on_bad: Literal["raise", "skip"]
    fail_on_data_loss: bool
    partitions: int | None
    starting: Place | None
    ending: Place | None
    rows_max: int | None
    bytes_max: int | None
    group: str
    hold_us: int | None


def read_options(given: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """The options of a read, of either kind if that is not known; InvalidSetting names the one that is wrong and what
    it may be."""
    options = Options(given, READ_OPTIONS)
    for name in () if streaming is None else _BATCH_ONLY if streaming else _STREAMING_ONLY:
        if options.get(name) is not None:
            kind = "spark.read, which ends" if streaming else "spark.readStream"
            raise InvalidSetting(f"option {name} is for {kind}")
    group = options.get("group") or ""
    if group:
        check_group_name(group)
    hold_us = options.hold("holdRetention")
    if hold_us and not group:
        raise InvalidSetting(
            'option holdRetention: retention is held by a group; name that of the query, as in .option("group", "lake")'
        )
    return ReadOptions(
        access=options.access(),
        stream=options.stream(),
        columns=_names(options.get("columns")),
        where=(options.get("where") or "").strip(),
        push_filters=options.boolean("pushFilters", False),
        metadata=options.boolean("includeMetadata", False),
        on_bad=cast('Literal["raise", "skip"]', options.choice("onBad", ("raise", "skip"))),
        fail_on_data_loss=options.boolean("failOnDataLoss", True),
        partitions=options.number("partitions"),
        starting=options.place("startingOffsets", "startingTimestamp"),
        ending=options.place("endingOffsets", "endingTimestamp"),
        rows_max=options.number("maxOffsetsPerTrigger"),
        bytes_max=options.number("maxBytesPerTrigger"),
        group=group,
        hold_us=hold_us,
    )


class Options:
    """What the user wrote, by names whose capitals do not matter. InvalidSetting for a name that is none of `known`."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        names = {name.lower(): name for name in known}
        self._given: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() not in names:
                raise InvalidSetting(_unknown(name, names))
            self._given[names[name.lower()]] = value

    def get(self, name: str) -> str | None:
        return self._given.get(name)

    def access(self) -> Access:
        hub = self._given.get("hub")
        if hub is None:
            raise InvalidSetting(
                'say where the stream is: .option("hub", "mainstem://127.0.0.1:7070") for a server, or a folder that '
                "all executors see"
            )
        return Access.to(
            hub,
            token=self._given.get("token", ""),
            token_file=self._given.get("tokenFile", ""),
            ca=self._given.get("ca", ""),
            certificate=self._given.get("certificate", ""),
            key=self._given.get("certificateKey", ""),
        )

    def stream(self) -> str:
        """By option, or as what `load` or `save` was given."""
        named, path = self._given.get("stream"), self._given.get("path")
        if named is not None and path is not None and named != path:
            raise InvalidSetting(f"option stream says {named!r}, and load or save was given {path!r}; say one of them")
        stream = named if named is not None else path
        if stream is None:
            raise InvalidSetting('say which stream: .option("stream", "orders"), or .load("orders")')
        return check_stream_name(stream, reserved=True)

    def boolean(self, name: str, default: bool) -> bool:
        value = self._given.get(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidSetting(f"option {name} is true or false, not {value!r}")
        return value.lower() == "true"

    def choice(self, name: str, values: tuple[str, ...]) -> str:
        value = self._given.get(name, values[0])
        if value not in values:
            raise InvalidSetting(f"option {name} is {' or '.join(values)}, not {value!r}")
        return value

    def number(self, name: str) -> int | None:
        value = self._given.get(name)
        if value is None:
            return None
        if not value.strip().isascii() or not value.strip().isdigit() or int(value) < 1:
            raise InvalidSetting(f"option {name} is a whole number from 1 on, not {value!r}")
        return int(value)

    def hold(self, name: str) -> int | None:
        """For how long: 0 for false, as long as is usual for true."""
        value = self._given.get(name)
        if value is None:
            return None
        if value.lower() in ("true", "false"):
            return GROUP_HOLD_US_DEFAULT if value.lower() == "true" else 0
        try:
            found = microseconds(value)
        except InvalidSetting:
            found = 0
        if not 0 < found <= GROUP_HOLD_US_MAX:
            most = render_duration(GROUP_HOLD_US_MAX / 1_000_000)
            raise InvalidSetting(f"option {name} is true, false or a time such as 3d, up to {most}, not {value!r}")
        return found

    def place(self, offsets: str, time: str) -> Place | None:
        by_offset, by_time = self._given.get(offsets), self._given.get(time)
        if by_offset is not None and by_time is not None:
            raise InvalidSetting(f"options {offsets} and {time} say two places; give one of them")
        if by_time is not None:
            return _moment(time, by_time)
        if by_offset is None:
            return None
        return _place(offsets, by_offset, self._given.get("stream") or self._given.get("path", ""))


def begin_of(port: Port, info: StreamInfo, place: Place) -> tuple[int, ...]:
    """By shard, where to begin in a stream as it is now: in shards that are not named, at their beginning."""
    return _resolved(port, info, place, info.starts)


def end_of(port: Port, info: StreamInfo, place: Place) -> tuple[int, ...]:
    """By shard, where to end: in shards that are not named, at their end."""
    return _resolved(port, info, place, info.ends)


def _resolved(port: Port, info: StreamInfo, place: Place, others: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(place, tuple):
        return tuple(offsets_at(port, place, info))
    found = list(others)
    for shard, offset in place:
        if shard >= info.shards:
            raise InvalidCursor(f"stream {info.name!r} has shards 0 to {info.shards - 1}; there is no shard {shard}")
        if offset > info.ends[shard]:
            raise InvalidCursor(
                f"offset {offset} of shard {shard} of stream {info.name!r}, which ends at {info.ends[shard]}"
            )
        found[shard] = {_EARLIEST: info.starts[shard], _LATEST: info.ends[shard]}.get(offset, offset)
    return tuple(found)


def _names(value: str | None) -> tuple[str, ...] | None:
    """`a,b`, or a JSON list for names that have commas in them."""
    if value is None:
        return None
    names = _listed(value)
    check_named_once("option columns", names)
    return names


def _listed(value: str) -> tuple[str, ...]:
    if value.lstrip().startswith("["):
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise InvalidSetting(f"option columns is names with commas between them, or a JSON list, not {value!r}")
        return tuple(found)
    return tuple(name.strip() for name in value.split(","))


def _moment(name: str, value: str) -> datetime:
    """ISO 8601 with a zone, or milliseconds since 1970 as Spark's source of Kafka takes them."""
    text = value.strip()
    try:
        if text.lstrip("-").isdigit():
            return datetime.fromtimestamp(int(text) / 1_000, UTC)
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise InvalidSetting(
            f"option {name} is a time such as 2026-01-31T12:00:00Z, or milliseconds since 1970, not {value!r}"
        ) from None
    if found.tzinfo is None:
        raise InvalidSetting(f"option {name}: a time needs a zone, for example {text}Z")
    return found


def _place(name: str, value: str, stream: str) -> Place:
    text = value.strip()
    if text in ("earliest", "latest"):
        return cast('Literal["earliest", "latest"]', text)
    if text.startswith("ms1:"):
        return Cursor.parse(text)
    try:
        found = _by_shard(json.loads(text), stream)
    except (ValueError, TypeError, AttributeError):
        raise InvalidSetting(
            f'option {name} is earliest, latest, a cursor (ms1:...), or offsets by shard such as {{"0": 120, "1": -2}} '
            f"(-2 the earliest, -1 the latest), not {value!r}"
        ) from None
    return found


def _by_shard(found: Any, stream: str) -> tuple[tuple[int, int], ...]:
    inner = found.get(stream) if stream else None
    places = {int(shard): offset for shard, offset in (inner if isinstance(inner, dict) else found).items()}
    if not places or any(
        shard < 0 or type(offset) is not int or offset < _EARLIEST for shard, offset in places.items()
    ):
        raise ValueError
    return tuple(sorted(places.items()))


def _unknown(name: str, names: Mapping[str, str]) -> str:
    meant = _MEANT.get(name.lower())
    near = difflib.get_close_matches(name.lower(), list(names), 1)
    guess = meant if meant in names.values() else names[near[0]] if near else None
    hint = f"; did you mean {guess}?" if guess else ""
    return (
        f"there is no option {name}{hint} Options: {', '.join(names.values())}"
        if hint
        else (f"there is no option {name}. Options: {', '.join(names.values())}")
    )
