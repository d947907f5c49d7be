"""`/metrics`: what the server counts, in the text format 0.0.4 of Prometheus.

`METRICS` is the whole list: a counter of the server becomes a metric by one line in it, and a test fails for one that
has none. Streams are named up to a limit, the others are summed under `stream="_other"`, so that the number of series
is bounded whatever clients create.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mainstem.core.histogram import Distribution
from mainstem.core.limits import PENDING_BYTES_MAX
from mainstem.core.settings import Settings
from mainstem.log.ledger.base import StreamRow
from mainstem.log.log import Log
from mainstem.server import kafka_names
from mainstem.transport.sharing import GroupInfo

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# The name under which streams beyond the limit are summed. No stream is called so: user names begin otherwise.
OTHER: Final = "_other"

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"


class Metric(NamedTuple):
    """One metric: `source` is the counter or histogram it shows, times `scale`. `labels` stand behind its name."""

    name: str
    kind: str
    help: str
    source: str
    scale: float = 1.0
    labels: str = ""


_MICROSECONDS: Final = 1e-6

METRICS: Final = (
    # Writing.
    Metric("mainstem_flushes_total", COUNTER, "Flushes applied, since the log began.", "flushes_applied"),
    Metric(
        "mainstem_flushes_replayed",
        GAUGE,
        "Flushes that were applied again from the blocks when this process started.",
        "flushes_replayed",
    ),
    Metric(
        "mainstem_commit_seconds",
        HISTOGRAM,
        "Time of one flush, from the beginning of its write until it is applied.",
        "commit_seconds",
    ),
    Metric("mainstem_flush_bytes", HISTOGRAM, "Stored bytes of the batches in one flush.", "flush_bytes"),
    Metric("mainstem_written_bytes_total", COUNTER, "Bytes written to blocks by this process.", "bytes_written"),
    Metric("mainstem_pending_bytes", GAUGE, "Bytes of appends that wait for the next flush.", "pending_bytes"),
    Metric("mainstem_appends_total", COUNTER, "Append requests answered.", "appends"),
    Metric("mainstem_append_bytes_total", COUNTER, "Stored bytes of batches in answered appends.", "append_bytes"),
    Metric(
        "mainstem_appends_waiting",
        GAUGE,
        "Connections whose appends wait because the log has too much pending.",
        "appends_in_line",
    ),
    Metric(
        "mainstem_batches_repeated_total",
        COUNTER,
        "Batches that were sent again although they had arrived, and were stored once.",
        "batches_repeated",
    ),
    Metric(
        "mainstem_batches_transcoded_total",
        COUNTER,
        "Batches that were made into what several readers want.",
        "batches_transcoded",
    ),
    Metric(
        "mainstem_batches_transcoded_shared_total",
        COUNTER,
        "Times that a reader got such a batch made for another.",
        "batches_transcoded_shared",
    ),
    Metric("mainstem_transcoded_bytes", GAUGE, "Memory of batches that were made for readers.", "transcoded_bytes"),
    Metric("mainstem_batches_refused_total", COUNTER, "Batches refused at the door.", "batches_refused"),
    Metric(
        "mainstem_unknown_streams_total",
        COUNTER,
        "Requests for a stream that does not exist.",
        "unknown_streams",
    ),
    Metric(
        "mainstem_requests_forbidden_total",
        COUNTER,
        "Requests of clients that are not known, or may not do what they asked for.",
        "requests_forbidden",
    ),
    # Reading.
    Metric("mainstem_connections", GAUGE, "Clients connected now.", "connections"),
    Metric("mainstem_connections_total", COUNTER, "Clients that have connected.", "connections_total"),
    Metric(
        "mainstem_connections_refused_total",
        COUNTER,
        "Clients turned away because connections_max were there.",
        "connections_refused",
    ),
    Metric("mainstem_http_requests_total", COUNTER, "Requests over HTTP that were answered.", "http_requests"),
    Metric("mainstem_http_requests_failed_total", COUNTER, "Of these, with an error.", "http_requests_failed"),
    Metric("mainstem_http_tails", GAUGE, "Tails over HTTP now.", "http_tails"),
    Metric("mainstem_http_body_bytes", GAUGE, "Memory of bodies under way.", "http_body_bytes"),
    Metric("mainstem_http_answer_bytes", GAUGE, "Memory of answers under way.", "http_answer_bytes"),
    Metric("mainstem_receive_bytes", GAUGE, "Memory of incomplete large messages.", "receive_bytes"),
    Metric("mainstem_subscriptions", GAUGE, "Readers that are being pushed to.", "subscriptions"),
    Metric(
        "mainstem_followers_slow",
        GAUGE,
        "Readers more than 10,000 records behind the end, or blocked.",
        "followers_slow",
    ),
    Metric(
        "mainstem_followers_blocked",
        GAUGE,
        "Readers with records to get that have taken none for 5 seconds.",
        "followers_blocked",
    ),
    Metric(
        "mainstem_follower_behind_records",
        GAUGE,
        "Records that the reader furthest behind has still to get.",
        "follower_behind_records_max",
    ),
    Metric(
        "mainstem_batches_pushed_total",
        COUNTER,
        "Batches pushed to readers, from memory or from disk.",
        "batches_pushed_hot",
        labels='{source="hot"}',
    ),
    Metric("mainstem_batches_pushed_total", COUNTER, "", "batches_pushed_shared", labels='{source="shared"}'),
    Metric("mainstem_batches_pushed_total", COUNTER, "", "batches_pushed_disk", labels='{source="disk"}'),
    Metric("mainstem_records_pushed_total", COUNTER, "Records pushed to readers.", "records_pushed"),
    Metric("mainstem_pushed_bytes_total", COUNTER, "Stored bytes of batches pushed to readers.", "bytes_pushed"),
    Metric("mainstem_hot_tail_bytes", GAUGE, "Memory of the newest batches.", "hot_tail_bytes"),
    Metric("mainstem_block_reads_total", COUNTER, "Reads from blocks.", "block_reads"),
    Metric("mainstem_block_read_bytes_total", COUNTER, "Bytes read from blocks.", "block_read_bytes"),
    Metric("mainstem_shared_reads_bytes", GAUGE, "Memory of what readers share.", "shared_reads_bytes"),
    # Disk.
    Metric("mainstem_blocks", GAUGE, "Block files.", "blocks"),
    Metric("mainstem_block_bytes", GAUGE, "Bytes of all blocks.", "block_bytes"),
    Metric("mainstem_live_bytes", GAUGE, "Bytes in blocks that can be reached.", "live_bytes"),
    Metric("mainstem_ledger_bytes", GAUGE, "Size of the ledger's database file.", "ledger_bytes"),
    Metric("mainstem_ledger_wal_bytes", GAUGE, "Size of the ledger's write-ahead log.", "ledger_wal_bytes"),
    Metric("mainstem_snapshots", GAUGE, "Snapshots of the ledger.", "snapshots"),
    Metric(
        "mainstem_snapshot_timestamp_seconds",
        GAUGE,
        "When the newest snapshot of the ledger was taken; 0 if there is none.",
        "snapshot_us",
        _MICROSECONDS,
    ),
    Metric(
        "mainstem_snapshot_lag_bytes",
        GAUGE,
        "Bytes this process wrote to blocks after the newest snapshot.",
        "bytes_since_snapshot",
    ),
    Metric("mainstem_snapshot_errors_total", COUNTER, "Snapshots that failed.", "snapshot_errors"),
    Metric("mainstem_ledger_damaged", GAUGE, "1 from when damage of the ledger was noticed.", "ledger_damaged"),
    Metric("mainstem_free_bytes", GAUGE, "Room on the disk of the data folder.", "free_bytes"),
    Metric("mainstem_disk_full", GAUGE, "1 while appends are refused because the disk is full.", "disk_full"),
    Metric(
        "mainstem_seconds_until_full",
        GAUGE,
        "When the disk is full if it fills on as it did; absent if it does not fill.",
        "seconds_until_full",
    ),
    Metric(
        "mainstem_appends_refused_full_total",
        COUNTER,
        "Appends refused because the disk is full.",
        "appends_refused_full",
    ),
    # Groups and transactions.
    Metric("mainstem_groups", GAUGE, "Groups of readers.", "groups"),
    Metric("mainstem_groups_coordinated", GAUGE, "Groups of readers that have members now.", "groups_coordinated"),
    Metric("mainstem_groups_members", GAUGE, "Members of all groups together.", "group_members"),
    Metric("mainstem_transactions_open", GAUGE, "Transactions that are open.", "transactions_open"),
    Metric(
        "mainstem_transactions_staged_batches",
        GAUGE,
        "Batches of transactions that are not committed yet.",
        "transactions_staged_batches",
    ),
    Metric(
        "mainstem_transactions_staged_bytes",
        GAUGE,
        "Bytes of transactions that are not committed yet; they stay on the disk until these end.",
        "transactions_staged_bytes",
    ),
    Metric("mainstem_transactions_committed_total", COUNTER, "Transactions committed.", "transactions_committed"),
    Metric(
        "mainstem_transactions_aborted_total",
        COUNTER,
        "Transactions that ended without a commit, for whatever reason.",
        "transactions_aborted",
    ),
    Metric(
        "mainstem_transactions_timed_out_total",
        COUNTER,
        "Those of them whose time was over.",
        "transactions_timed_out",
    ),
    # Upkeep.
    Metric("mainstem_entries_dropped_total", COUNTER, "Rows of entries dropped behind a trim.", "rows_dropped"),
    Metric("mainstem_entries_merged_total", COUNTER, "Small entries merged into larger ones.", "entries_merged"),
    Metric("mainstem_records_compacted_total", COUNTER, "Records compacted away.", "records_compacted"),
    Metric("mainstem_records_erased_total", COUNTER, "Records erased by key.", "records_erased"),
    Metric("mainstem_blocks_freed_total", COUNTER, "Blocks taken off the disk.", "blocks_freed"),
    Metric("mainstem_freed_bytes_total", COUNTER, "Bytes of blocks taken off the disk.", "bytes_freed"),
    Metric(
        "mainstem_rewritten_bytes_total", COUNTER, "Bytes moved to free the blocks they were in.", "bytes_rewritten"
    ),
    Metric("mainstem_upkeep_errors_total", COUNTER, "Rounds of upkeep that failed.", "upkeep_errors"),
    # The process. This name is the same everywhere.
    Metric("process_start_time_seconds", GAUGE, "When the process started, since 1970.", "started_us", _MICROSECONDS),
)

# Per stream: the sums over its shards.
STREAM_METRICS: Final = (
    Metric("mainstem_stream_shards", GAUGE, "Shards of the stream.", "shards"),
    Metric("mainstem_stream_records", GAUGE, "Records that can be read.", "records"),
    Metric("mainstem_stream_bytes", GAUGE, "Bytes of the stream in blocks.", "bytes"),
    Metric("mainstem_stream_waiting_bytes", GAUGE, "Bytes nobody can read that are still on disk.", "waiting"),
    Metric("mainstem_stream_appended_records_total", COUNTER, "Sum of the ends of its shards.", "appended"),
    Metric("mainstem_stream_trimmed_records_total", COUNTER, "Sum of the starts of its shards.", "trimmed"),
)

# Per group of readers; as many are named as streams are, those first that are furthest behind.
GROUP_METRICS: Final = (
    Metric("mainstem_group_lag_records", GAUGE, "Records that the group has not read.", "records"),
    Metric("mainstem_group_lag_seconds", GAUGE, "Age of the first record that it has not read.", "seconds"),
    Metric("mainstem_group_members", GAUGE, "Members of the group.", "member_count"),
)

# The same, and offsets of shards, under the names that dashboards made for Kafka know.
KAFKA_METRICS: Final = tuple(Metric(name, GAUGE, text, "") for name, text in kafka_names.NAMES.items())

# What no counter holds: about the process, and constants to compare with.
OTHER_METRICS: Final = (
    Metric("mainstem_build_info", GAUGE, "1, with what is running as labels.", ""),
    Metric("mainstem_streams", GAUGE, "Streams.", ""),
    Metric("mainstem_pending_bytes_max", GAUGE, "Pending bytes from which on appends wait.", ""),
    Metric("mainstem_scrape_seconds", GAUGE, "Time it took to gather what stands above.", ""),
    Metric("process_cpu_seconds_total", COUNTER, "Time on a CPU, user and system.", ""),
    Metric("process_resident_memory_bytes", GAUGE, "Resident memory.", ""),
    Metric("process_virtual_memory_bytes", GAUGE, "Virtual memory.", ""),
    Metric("process_open_fds", GAUGE, "Open file descriptors.", ""),
    Metric("process_max_fds", GAUGE, "How many file descriptors may be open.", ""),
)


class Exposition:
    """Renders the page. One thread at a time, not the loop's: it asks the disk."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        log: Log,
        counters: Callable[[], Mapping[str, int]],
        groups: Callable[[], Sequence[GroupInfo]] = tuple,
    ) -> None:
        self._log = log
        self._groups = groups
        self._groups_max = settings.metrics_streams_max
        self._counters = counters
        self._info = {"version": name.removeprefix("mainstem "), "log": log.uuid, "data": str(settings.data)}
        self._streams = _StreamSums(settings.metrics_streams_max)

    def render(self) -> str:
        begun = time.perf_counter()
        page = _Page()
        page.add("mainstem_build_info", 1, _labels(self._info))
        counters = self._counters()
        histograms = self._log.histograms()
        for metric in METRICS:
            if metric.kind == HISTOGRAM:
                page.add_histogram(metric, histograms[metric.source])
            elif counters.get(metric.source, -1) >= 0:  # below 0: not known
                page.add(metric.name, counters[metric.source] * metric.scale, metric.labels)
        page.add("mainstem_pending_bytes_max", PENDING_BYTES_MAX)
        streams = self._add_streams(page)
        self._add_groups(page, streams)
        for name, value in _process_figures():
            page.add(name, value)
        page.add("mainstem_scrape_seconds", time.perf_counter() - begun)
        return page.text()

    def _add_streams(self, page: "_Page") -> list[StreamRow]:
        """And which are named."""
        named, other, count = self._streams.look(self._log)
        page.add("mainstem_streams", count)
        rows = [(_labels({"stream": stream.name}), row) for stream, row in named]
        if other is not None:
            rows.append((_labels({"stream": OTHER}), other))
        for metric in STREAM_METRICS:
            for labels, row in rows:
                page.add(metric.name, getattr(row, metric.source), labels)
        return [stream for stream, _ in named]

    def _add_groups(self, page: "_Page", streams: Sequence[StreamRow]) -> None:
        groups = sorted(self._groups(), key=lambda group: (-group.records, group.name))[: self._groups_max]
        for metric in GROUP_METRICS:
            for group in groups:
                page.add(metric.name, getattr(group, metric.source), _labels({"group": group.name}))
        for sample in kafka_names.samples(self._log, streams, groups):
            page.add(sample.name, sample.value, _labels(sample.labels))


class _StreamSum(NamedTuple):
    """What is shown of one stream."""

    shards: int
    records: int
    bytes: int
    waiting: int
    appended: int
    trimmed: int


class _StreamSums:
    """Which streams are named, and what the others come to. One thread at a time.

    A stream that was named stays named while it exists. What was counted of the others never falls, though they may be
    deleted or be named from now on: a counter that falls would look like a restart.
    """

    def __init__(self, names_max: int) -> None:
        self._names_max = names_max
        self._named: set[int] = set()
        self._counted: dict[int, tuple[int, int]] = {}
        self._other_appended = 0
        self._other_trimmed = 0

    def look(self, log: Log) -> tuple[list[tuple[StreamRow, _StreamSum]], _StreamSum | None, int]:
        """Named streams, the sum of the others if there are any, and how many there are."""
        streams = {row.id: row for row in log.ledger.list_streams() if not row.deleted_us}
        sums = _summed(log, streams)
        self._choose(sums)
        others = [(stream, row) for stream, row in sums.items() if stream not in self._named]
        named = sorted(((streams[stream], sums[stream]) for stream in self._named), key=lambda pair: pair[0].name)
        return named, self._sum_of(others), len(sums)

    def _choose(self, sums: Mapping[int, _StreamSum]) -> None:
        self._named &= sums.keys()
        room = self._names_max - len(self._named)
        if room > 0:
            rest = sorted(sums.keys() - self._named, key=lambda stream: (-sums[stream].bytes, stream))
            self._named.update(rest[:room])

    def _sum_of(self, others: list[tuple[int, _StreamSum]]) -> _StreamSum | None:
        counted, self._counted = self._counted, {}
        for stream, row in others:
            appended, trimmed = counted.get(stream, (0, 0))
            self._other_appended += row.appended - appended
            self._other_trimmed += row.trimmed - trimmed
            self._counted[stream] = (row.appended, row.trimmed)
        if not others and not self._other_appended:
            return None
        rows = [row for _, row in others]
        return _StreamSum(
            sum(row.shards for row in rows),
            sum(row.records for row in rows),
            sum(row.bytes for row in rows),
            sum(row.waiting for row in rows),
            self._other_appended,
            self._other_trimmed,
        )


def _summed(log: Log, streams: Mapping[int, StreamRow]) -> dict[int, _StreamSum]:
    starts, ends, sizes, missing = (dict.fromkeys(streams, 0) for _ in range(4))
    for (stream, shard), row in log.written_shards().items():
        if stream in streams:
            missing[stream] += log.ledger.missing_records(stream, shard)
            starts[stream] += row.start
            ends[stream] += row.stable
            sizes[stream] += row.bytes
    dead = log.ledger.dead_totals()
    return {
        stream: _StreamSum(
            streams[stream].shards,
            max(0, ends[stream] - starts[stream] - missing[stream]),
            sizes[stream],
            dead.get(stream, 0),
            ends[stream],
            starts[stream],
        )
        for stream in streams
    }


class _Page:
    """Lines of the text format. All samples of one metric stand together, below its help and type."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, name: str, value: float, labels: str = "") -> None:
        self._lines.setdefault(name, []).append(f"{name}{labels} {_number(value)}")

    def add_histogram(self, metric: Metric, found: Distribution) -> None:
        lines = self._lines.setdefault(metric.name, [])
        reached = 0
        for bound, count in zip((*map(_number, found.bounds), "+Inf"), found.counts, strict=True):
            reached += count
            lines.append(f'{metric.name}_bucket{{le="{bound}"}} {reached}')
        lines += [f"{metric.name}_sum {_number(found.total)}", f"{metric.name}_count {reached}"]

    def text(self) -> str:
        return "".join(f"{line}\n" for name, lines in self._lines.items() for line in (*_HEADS[name], *lines))


def _heads(metrics: Iterable[Metric]) -> dict[str, tuple[str, str]]:
    # The first line of a name has the help for all.
    return {
        metric.name: (f"# HELP {metric.name} {_escaped(metric.help)}", f"# TYPE {metric.name} {metric.kind}")
        for metric in metrics
        if metric.help
    }


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _labels(values: Mapping[str, str]) -> str:
    pairs = (f'{name}="{_quoted(value)}"' for name, value in values.items())
    return "{" + ",".join(pairs) + "}"


def _quoted(text: str) -> str:
    # A path may hold bytes that are no text; the page is UTF-8 all the same.
    return _escaped(text).replace('"', r"\"").encode("utf-8", "backslashreplace").decode("utf-8")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


_HEADS: Final = _heads((*METRICS, *STREAM_METRICS, *GROUP_METRICS, *KAFKA_METRICS, *OTHER_METRICS))


def _process_figures() -> Iterator[tuple[str, float]]:
    """What the kernel says about this process. Where there is no /proc, less."""
    yield "process_cpu_seconds_total", time.process_time()
    try:
        pages = Path("/proc/self/statm").read_text().split()
        descriptors = len(os.listdir("/proc/self/fd"))
    except OSError:
        return
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    yield "process_resident_memory_bytes", int(pages[1]) * page_bytes
    yield "process_virtual_memory_bytes", int(pages[0]) * page_bytes
    yield "process_open_fds", descriptors
    yield "process_max_fds", os.sysconf("SC_OPEN_MAX")
