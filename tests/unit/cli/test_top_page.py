"""The page of `mainstem top`: what is on it, that it fits any terminal, and that names cannot act on it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from mainstem.cli.top_page import is_slow, page
from mainstem.core.histogram import Distribution
from mainstem.core.plain import age_text
from mainstem.hub.overview import Overview, pace
from mainstem.transport.port import ConnectionInfo, StreamInfo

NOW_US = 1_767_225_600_000_000
HOUR_US = 3_600_000_000
COUNTERS = {
    "started_us": NOW_US - 5 * HOUR_US,
    "connections": 2,
    "subscriptions": 1,
    "followers_slow": 0,
    "followers_blocked": 0,
    "append_bytes": 1_000,
    "records_pushed": 20,
    "bytes_pushed": 2_000,
    "flushes_applied": 10,
    "free_bytes": 5 * 10**9,
    "blocks": 3,
    "block_bytes": 3_000_000,
    "live_bytes": 2_000_000,
    "ledger_bytes": 70_000,
    "ledger_wal_bytes": 4_000_000,
    "snapshots": 2,
    "snapshot_us": NOW_US - HOUR_US,
}


def stream(id_: int, name: str, end: int, size: int = 0, **other) -> StreamInfo:
    return StreamInfo(id_, "0" * 32, name, 1, "crc32", 0, 86_400_000_000, NOW_US, (0,), (end,), size, 1, **other)


def client(id_: int, name: str = "billing", **other) -> ConnectionInfo:
    facts = {"appends": 0, "append_bytes": 0, "subscriptions": 1, "behind": 0, "behind_stream": "", "stalled_us": 0}
    return ConnectionInfo(id_, name, "127.0.0.1:5", NOW_US - HOUR_US, waiting=False, **{**facts, **other})


def overview(at: float = 0.0, *, streams=(), connections=(), histograms=None, server="mainstem 1.2.3", **counters):
    return Overview(at, NOW_US, server, {**COUNTERS, **counters}, histograms or {}, streams, connections)


def shown(now: Overview, earlier: Overview | None = None, width: int = 120, height: int | None = None, **other) -> str:
    return "\n".join(line.plain for line in page(now, pace(earlier, now), "mainstem://x:1", width, height, **other))


def test_a_whole_page():
    commits = [Distribution((0.001, 0.01), counts, 0.0) for counts in ((0, 0, 0), (98, 2, 0))]
    earlier = overview(
        10.0, streams=(stream(1, "clicks", 100), stream(2, "idle", 7)), histograms={"commit_seconds": commits[0]}
    )
    now = overview(
        12.0,
        streams=(stream(1, "clicks", 300, 5_000, oldest_us=NOW_US - 2 * HOUR_US), stream(2, "idle", 7, 9_000)),
        connections=(client(1, appends=10), client(2, "report", behind=20_000, behind_stream="clicks")),
        histograms={"commit_seconds": commits[1]},
        flushes_applied=30,
        append_bytes=5_000,
        records_pushed=420,
        seconds_until_full=3 * 86_400,
        followers_slow=1,
    )
    text = shown(now, earlier)
    lines = text.splitlines()
    assert lines[0] == "mainstem 1.2.3  mainstem://x:1  up 5h  00:00:00Z"
    assert "in 100 rec/s 2.0 kB/s  out 200 rec/s 0 B/s  flushes 10/s  commit p50 0.5 ms p99 5.5 ms" in text
    assert "1 slow follower, 0 blocked" in text
    assert (
        "free 5.0 GB  full in 3d  3 blocks: 3.0 MB, 2.0 MB live  ledger 70.0 kB + wal 4.0 MB  snapshot 1h old" in text
    )
    rows = [line.split() for line in lines]
    # By rate, then the slow client first.
    assert rows.index(["clicks", "1", "300", "100", "2.5", "kB", "5.0", "kB", "-", "1d", "2h"]) < next(
        index for index, row in enumerate(rows) if row[:1] == ["idle"]
    )
    assert lines[-2].split() == ["report", "127.0.0.1:5", "1h", "0", "1", "20,000", "clicks", "slow"]


def test_what_is_wrong_stands_out():
    now = overview(connections=(client(1, behind=5, stalled_us=7_000_000),), disk_full=1, upkeep_errors=2)
    lines = page(now, None, "x", 120, problem="no newer page: gone")
    styles = {line.plain: {str(span.style) for span in line.spans} | {str(line.style)} for line in lines}
    text = "\n".join(styles)
    assert "DISK FULL: appends are refused" in text
    assert "2 upkeep errors" in text
    assert "no newer page: gone" in text
    assert "bold red" in styles[next(line for line in styles if "takes nothing for 7s" in line)]


def test_the_first_page_has_no_rates_yet():
    text = shown(overview(streams=(stream(1, "clicks", 100),)))
    assert "in -  out -  flushes -" in text


def test_after_a_restart_there_are_no_rates():
    earlier = overview(10.0, streams=(stream(1, "clicks", 100),))
    now = overview(11.0, streams=(stream(1, "clicks", 5),), started_us=NOW_US)
    assert pace(earlier, now) is None
    assert "in -" in shown(now, earlier)


def test_without_anything():
    assert "no streams yet" in shown(overview())
    assert "nobody is connected" in shown(overview())


def test_an_old_server_and_a_folder_do_not_tell_who_is_connected():
    old = Overview(0.0, NOW_US, "", {"flushes_applied": 1, "connections": 3}, {}, (), None)
    assert "this server is older" in shown(old)
    folder = Overview(0.0, NOW_US, "", {"flushes_applied": 1}, {}, (), None)
    assert "ask it with --url" in shown(folder)


def test_who_is_slow():
    assert not is_slow(client(1, behind=10_000, stalled_us=4_900_000))
    assert is_slow(client(1, behind=10_001))
    assert is_slow(client(1, behind=1, stalled_us=5_000_000))


EVIL = "\x1b[2J\x1b]0;owned\x07evil\nCLIENT\r\u202e\ud800"


def test_names_cannot_act_on_the_terminal():
    now = overview(server=EVIL, connections=(client(1, EVIL, behind=3, behind_stream=EVIL),))
    lines = page(now, None, EVIL, 200, problem=EVIL)
    assert all(line.plain.isprintable() for line in lines)
    assert r"\x1b[2J" in lines[0].plain


@given(
    st.integers(1, 200),
    st.one_of(st.none(), st.integers(1, 60)),
    st.lists(st.tuples(st.text(max_size=60), st.integers(0, 10**15)), max_size=30),
    st.lists(st.tuples(st.text(max_size=60), st.integers(0, 10**9), st.integers(0, 10**12)), max_size=30),
)
def test_any_page_fits_any_terminal(width, height, streams, clients):
    now = overview(
        streams=tuple(stream(id_, name, end) for id_, (name, end) in enumerate(streams)),
        connections=tuple(
            client(id_, name, behind=behind, stalled_us=stalled) for id_, (name, behind, stalled) in enumerate(clients)
        ),
    )
    lines = page(now, None, "mainstem://127.0.0.1:7070", width, height)
    assert all(cell_len(line.plain) <= width for line in lines)
    assert height is None or len(lines) <= height


def test_a_small_terminal_keeps_what_matters_most():
    now = overview(
        streams=tuple(stream(number, f"stream-{number}", number) for number in range(50)),
        connections=tuple(client(number, f"client-{number}") for number in range(50)),
    )
    text = shown(now, width=50, height=30)
    assert "SHARDS" not in text
    assert "IN/S" in text
    assert text.count("more") == 2
    assert len(text.splitlines()) == 30


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.9, "59s"), (60, "1m"), (200, "3m 20s"), (3_600, "1h"), (90_000, "1d 1h"), (-5, "0s")],
)
def test_ages(seconds, text):
    assert age_text(seconds) == text
