"""The page of `mainstem top`: an overview as lines that fit a terminal, whatever its size and whatever clients say."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from mainstem.cli.printing import counted, time_text
from mainstem.core.kinds import render_duration
from mainstem.core.limits import FOLLOWER_SLOW_RECORDS, FOLLOWER_SLOW_SECONDS
from mainstem.core.plain import age_text, one_line, size_text
from mainstem.hub.overview import Overview, Pace, Rate
from mainstem.transport.port import ConnectionInfo, StreamInfo

_UNKNOWN: Final = "-"
_GAP: Final = "  "
# The first column keeps at least so many cells when others have to go.
_NAME_CELLS_MIN: Final = 12
_NAME_CELLS_MAX: Final = 48
_PLAIN, _BOLD, _DIM, _BAD, _WARN = "", "bold", "dim", "bold red", "yellow"
# A disk that is full before this time is up stands out.
_FULL_SOON_SECONDS: Final = 24 * 3600


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table. Where there is no room the one with the lowest `worth` goes first; the first one stays."""

    title: str
    worth: int
    is_right: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one line, and how it looks."""

    cells: tuple[str, ...]
    style: str = _PLAIN


STREAM_COLUMNS: Final = (
    Column("STREAM", 9, is_right=False),
    Column("SHARDS", 2),
    Column("RECORDS", 6),
    Column("IN/S", 8),
    Column("BYTES/S", 5),
    Column("SIZE", 7),
    Column("WAITING", 1),
    Column("KEPT", 3),
    Column("OLDEST", 4),
)
CONNECTION_COLUMNS: Final = (
    Column("CLIENT", 9, is_right=False),
    Column("ADDRESS", 6, is_right=False),
    Column("SINCE", 2),
    Column("APPENDS/S", 5),
    Column("SUBS", 3),
    Column("BEHIND", 8),
    Column("OF STREAM", 1, is_right=False),
    Column("STATE", 7, is_right=False),
)


def page(
    now: Overview, pace: Pace | None, where: str, width: int, height: int | None = None, problem: str = ""
) -> list[Text]:
    """The lines, at most `height` if that is given, none wider than `width`. `problem` is why it is not newer."""
    lines = [*_head(now, where, problem, width), *_wrapped(_totals(now, pace), width), *_wrapped(_disk(now), width)]
    streams = [_stream_row(now, info, pace) for info in _by_rate(now, pace)]
    clients = [_connection_row(now, found, pace) for found in _by_trouble(now, pace)]
    # The head, a blank line and a title for each table; the rest is shared, most of it for streams.
    room = None if height is None else max(0, height - len(lines) - 4)
    client_room = None if room is None else min(len(clients), max(room // 3, room - len(streams)))
    stream_room = None if room is None or client_room is None else room - max(client_room, 1)
    lines += [Text(), *_table(STREAM_COLUMNS, streams, width, stream_room, "no streams yet")]
    lines += [Text(), *_table(CONNECTION_COLUMNS, clients, width, client_room, _no_clients(now))]
    return lines if height is None else lines[: max(1, height)]


# Lines of words.


Words = list[tuple[str, str]]


def _head(now: Overview, where: str, problem: str, width: int) -> Iterator[Text]:
    name = one_line(now.server) or "mainstem"
    words: Words = [(name if now.is_server else "folder", _BOLD), (one_line(where), _PLAIN)]
    if now.is_server:
        words.append((f"up {age_text((now.at_us - now.counters['started_us']) / 1e6)}", _PLAIN))
    words.append((f"{time_text(now.at_us)[11:19]}Z", _DIM))
    yield from _wrapped(words, width)
    if problem:
        yield from _wrapped([(one_line(problem), _BAD)], width)


def _totals(now: Overview, pace: Pace | None) -> Words:
    counters = now.counters
    words: Words = [(f"in {_rate_text(pace.incoming if pace else None)}", _PLAIN)]
    if now.is_server:
        words.append((f"out {_rate_text(pace.outgoing if pace else None)}", _PLAIN))
    words.append((f"flushes {_per_second(pace.flushes if pace else None)}", _PLAIN))
    commits = pace.commits if pace is not None else None
    if commits is not None:
        middle, high = (_seconds_text(commits.quantile(share)) for share in (0.5, 0.99))
        words.append((f"commit p50 {middle} p99 {high}", _PLAIN))
    if now.is_server:
        words.append((f"pending {size_text(counters.get('pending_bytes', 0))}", _PLAIN))
        words.append((counted(counters["connections"], "client"), _PLAIN))
        words.append((counted(counters["subscriptions"], "subscription"), _PLAIN))
        slow, blocked = counters["followers_slow"], counters["followers_blocked"]
        words.append((f"{counted(slow, 'slow follower')}, {blocked} blocked", _BAD if slow else _PLAIN))
    return words


def _disk(now: Overview) -> Words:
    found = now.counters
    words: Words = []
    if "free_bytes" in found:
        words.append((f"free {size_text(found['free_bytes'])}", _PLAIN))
    if found.get("disk_full"):
        words.append(("DISK FULL: appends are refused", _BAD))
    left = found.get("seconds_until_full", -1)
    if left >= 0:
        words.append((f"full in {age_text(left)}", _BAD if left < _FULL_SOON_SECONDS else _PLAIN))
    if "blocks" in found:
        size, live = found["block_bytes"], found["live_bytes"]
        words.append((f"{counted(found['blocks'], 'block')}: {size_text(size)}, {size_text(live)} live", _PLAIN))
    if "ledger_bytes" in found:
        words.append(
            (f"ledger {size_text(found['ledger_bytes'])} + wal {size_text(found['ledger_wal_bytes'])}", _PLAIN)
        )
    if "snapshots" in found:
        taken = found["snapshot_us"]
        words.append((f"snapshot {age_text((now.at_us - taken) / 1e6)} old" if taken else "no snapshot yet", _PLAIN))
    if found.get("upkeep_errors"):
        words.append((counted(found["upkeep_errors"], "upkeep error"), _BAD))
    return words


def _wrapped(words: Words, width: int) -> Iterator[Text]:
    """Words side by side, in as many lines as they need; one that is wider than a line is cut."""
    line = Text()
    for text, style in words:
        if line and cell_len(line.plain) + len(_GAP) + cell_len(text) > width:
            yield line
            line = Text()
        line.append(_GAP if line else "").append(_cut(text, width), style)
    if line:
        yield line


# Tables.


def _by_rate(now: Overview, pace: Pace | None) -> list[StreamInfo]:
    rates = pace.streams if pace else {}
    return sorted(now.streams, key=lambda info: (-rates.get(info.id, Rate()).records, -info.bytes, info.name))


def _stream_row(now: Overview, info: StreamInfo, pace: Pace | None) -> Row:
    rate = pace.streams.get(info.id, Rate()) if pace else None
    cells = (
        one_line(info.name),
        str(info.shards),
        f"{info.records:,}",
        _UNKNOWN if rate is None else f"{rate.records:,.0f}",
        _UNKNOWN if rate is None else size_text(rate.bytes),
        size_text(info.bytes),
        size_text(info.waiting_bytes) if info.waiting_bytes else _UNKNOWN,
        render_duration(info.retention_us / 1e6) if "delete" in info.cleanup else info.cleanup,
        age_text((now.at_us - info.oldest_us) / 1e6) if info.oldest_us else _UNKNOWN,
    )
    return Row(cells, _PLAIN if rate is None or rate.records else _DIM)


def is_slow(found: ConnectionInfo) -> bool:
    """Whether one of its subscriptions is a slow follower."""
    return found.behind > FOLLOWER_SLOW_RECORDS or found.stalled_us >= FOLLOWER_SLOW_SECONDS * 1e6


def _by_trouble(now: Overview, pace: Pace | None) -> list[ConnectionInfo]:
    appends = pace.appends if pace else {}
    found = now.connections or ()
    return sorted(found, key=lambda one: (not is_slow(one), -one.behind, -appends.get(one.id, 0.0), one.id))


def _connection_row(now: Overview, found: ConnectionInfo, pace: Pace | None) -> Row:
    state, style = "", _PLAIN
    if found.waiting:
        state, style = "waits to append", _WARN
    if is_slow(found):
        stalled = found.stalled_us / 1e6
        state = f"takes nothing for {age_text(stalled)}" if stalled >= FOLLOWER_SLOW_SECONDS else "slow"
        style = _BAD
    rate = pace.appends.get(found.id) if pace else None
    cells = (
        one_line(found.client) or _UNKNOWN,
        one_line(found.address),
        age_text((now.at_us - found.connected_us) / 1e6),
        _UNKNOWN if rate is None else f"{rate:,.0f}",
        str(found.subscriptions),
        f"{found.behind:,}" if found.subscriptions else _UNKNOWN,
        one_line(found.behind_stream),
        state,
    )
    return Row(cells, style)


def _no_clients(now: Overview) -> str:
    if now.connections is not None:
        return "nobody is connected"
    if now.server or now.counters.get("connections") is not None:
        return "this server is older than this command and does not tell who is connected"
    return "who is connected is known to a server only; ask it with --url"


def _table(columns: Sequence[Column], rows: Sequence[Row], width: int, room: int | None, empty: str) -> Iterator[Text]:
    if not rows:
        yield Text(_cut(empty, width), _DIM)
        return
    shown = rows if room is None or len(rows) <= room else rows[: max(0, room - 1)]
    widths = _fitting(columns, shown, width)
    for row in (Row(tuple(column.title for column in columns), _BOLD), *shown):
        cells = [
            _fill(row.cells[place], size, is_right=columns[place].is_right) for place, size in widths.items() if size
        ]
        yield Text(_cut(_GAP.join(cells).rstrip(), width), row.style)
    if len(shown) < len(rows):
        yield Text(_cut(f"and {len(rows) - len(shown):,} more", width), _DIM)


def _fitting(columns: Sequence[Column], rows: Sequence[Row], width: int) -> dict[int, int]:
    """Cells for each column by its place, those that do not fit left out."""
    widths = {
        place: max(cell_len(column.title), *(cell_len(row.cells[place]) for row in rows), 0)
        if rows
        else cell_len(column.title)
        for place, column in enumerate(columns)
    }
    natural = widths[0]
    widths[0] = min(natural, _NAME_CELLS_MIN)
    for place in sorted(range(1, len(columns)), key=lambda place: columns[place].worth):
        if _total(widths) <= width:
            break
        del widths[place]
    widths[0] = min(natural, _NAME_CELLS_MAX, max(1, widths[0] + width - _total(widths)))
    return widths


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def _fill(text: str, size: int, *, is_right: bool) -> str:
    text = _cut(text, size)
    pad = " " * (size - cell_len(text))
    return pad + text if is_right else text + pad


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…" if width > 1 else "…"[:width]


# Numbers.


def _rate_text(rate: Rate | None) -> str:
    return _UNKNOWN if rate is None else f"{rate.records:,.0f} rec/s {size_text(rate.bytes)}/s"


def _per_second(rate: float | None) -> str:
    return _UNKNOWN if rate is None else f"{rate:,.0f}/s"


def _seconds_text(seconds: float | None) -> str:
    if seconds is None:
        return _UNKNOWN
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
