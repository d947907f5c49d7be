"""A log at one moment, for its operator, and how it moves between two: what `mainstem top` shows."""

from collections.abc import Mapping
from typing import Final

import msgspec

from mainstem.core.clock import Clock
from mainstem.core.histogram import Distribution
from mainstem.transport.port import (
    Answer,
    Call,
    ConnectionInfo,
    ConnectionsCall,
    ListStreamsCall,
    Port,
    StatisticsCall,
    StreamInfo,
)

# Answers with connections that are asked for; who has more of them sees the oldest.
_CONNECTION_PAGES_MAX: Final = 10
_CALL_SECONDS: Final = 5.0


class Overview(msgspec.Struct, frozen=True):
    """What was there at `at` (seconds of a clock that never goes back) and `at_us` (the time of day).

    `connections` is None where they are not known: of a folder, and of a server that is too old to tell.
    """

    at: float
    at_us: int
    server: str
    counters: dict[str, int]
    histograms: dict[str, Distribution]
    streams: tuple[StreamInfo, ...]
    connections: tuple[ConnectionInfo, ...] | None

    @property
    def is_server(self) -> bool:
        return "started_us" in self.counters


class Rate(msgspec.Struct, frozen=True):
    """Per second."""

    records: float = 0.0
    bytes: float = 0.0


class Pace(msgspec.Struct, frozen=True):
    """What happened between two overviews, per second. What is not known is None; streams and connections are by id.

    `commits` is the distribution of the seconds of the commits in between.
    """

    seconds: float
    incoming: Rate
    outgoing: Rate | None
    flushes: float
    commits: Distribution | None
    streams: dict[int, Rate]
    appends: dict[int, float]


def look(port: Port, clock: Clock) -> Overview:
    """Ask for everything once. A server older than these calls is asked only what it knows."""
    statistics = _call(port, StatisticsCall())
    streams: list[StreamInfo] = []
    answer = _call(port, ListStreamsCall(oldest=True))
    streams += answer.streams
    while answer.more:
        answer = _call(port, ListStreamsCall(after=answer.streams[-1].id, oldest=True))
        streams += answer.streams
    is_known = "started_us" in statistics.counters
    return Overview(
        at=clock.monotonic(),
        at_us=clock.now_us(),
        server=statistics.server,
        counters=dict(statistics.counters),
        histograms=dict(statistics.histograms),
        streams=tuple(streams),
        connections=_connections(port) if is_known else None,
    )


def _connections(port: Port) -> tuple[ConnectionInfo, ...]:
    found: list[ConnectionInfo] = []
    for _ in range(_CONNECTION_PAGES_MAX):
        answer = _call(port, ConnectionsCall(after=found[-1].id if found else 0))
        found += answer.connections
        if not answer.more or not answer.connections:
            break
    return tuple(found)


def _call(port: Port, call: Call) -> Answer:
    return port.call(call, _CALL_SECONDS)


def pace(earlier: Overview | None, later: Overview) -> Pace | None:
    """How it went from one to the other; None without an earlier one, or if another process has begun since."""
    if earlier is None or _life(earlier) != _life(later) or later.at <= earlier.at:
        return None
    seconds = later.at - earlier.at
    before = {stream.id: stream for stream in earlier.streams}
    streams = {stream.id: _rate(before.get(stream.id), stream, seconds) for stream in later.streams}
    records = sum(rate.records for rate in streams.values())

    def counted(name: str) -> float:
        return max(0, later.counters.get(name, 0) - earlier.counters.get(name, 0)) / seconds

    has_counts = "append_bytes" in later.counters
    size = counted("append_bytes") if has_counts else sum(rate.bytes for rate in streams.values())
    commits = later.histograms.get("commit_seconds")
    return Pace(
        seconds=seconds,
        incoming=Rate(records, size),
        outgoing=Rate(counted("records_pushed"), counted("bytes_pushed")) if has_counts else None,
        flushes=counted("flushes_applied"),
        commits=None if commits is None else commits.since(earlier.histograms.get("commit_seconds")),
        streams=streams,
        appends=_appends(earlier, later, seconds),
    )


def _life(overview: Overview) -> int:
    return overview.counters.get("started_us", 0)


def _rate(before: StreamInfo | None, now: StreamInfo, seconds: float) -> Rate:
    if before is None:
        return Rate(sum(now.ends) / seconds, now.bytes / seconds)
    # Trimming and compaction take bytes away: what came in between is then not known from the size.
    return Rate((sum(now.ends) - sum(before.ends)) / seconds, max(0, now.bytes - before.bytes) / seconds)


def _appends(earlier: Overview, later: Overview, seconds: float) -> dict[int, float]:
    before: Mapping[int, int] = {found.id: found.appends for found in earlier.connections or ()}
    return {found.id: (found.appends - before.get(found.id, 0)) / seconds for found in later.connections or ()}
