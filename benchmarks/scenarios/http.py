"""HTTP with nothing but the standard library: rows in and out, as lines of JSON and as Arrow, and idle tails."""

from __future__ import annotations

import http.client
import io
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import Stopwatch, check, rss_bytes, run_child, scratch
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
ROWS = 50_000  # in one request
REQUESTS = 40
TABLE_ROWS = 240_000  # in one request, in batches of a quarter
TABLE_REQUESTS = 60
COLUMNS = 8
TAILS = 500
TAILS_BEFORE = 50
RECORDS = f"/streams/{product.STREAM}/records"


def run_post(settings: Settings, *, kind: str, connections: int = 1) -> Metrics:
    count = settings.count(REQUESTS if kind == NDJSON else TABLE_REQUESTS)
    with scratch(settings.data, "http") as folder, product.Server(folder, http=True) as server:
        asked: dict[str, Any] = {"kind": kind, "count": count, "connections": connections}
        took = run_child("benchmarks.scenarios.http:post", address=server.http, pid=server.pid, **asked)
    return _metrics(took)


def run_get(settings: Settings, *, kind: str) -> Metrics:
    count = settings.count(REQUESTS if kind == NDJSON else TABLE_REQUESTS)
    with scratch(settings.data, "http") as folder, product.Server(folder, http=True) as server:
        run_child("benchmarks.scenarios.http:post", address=server.http, kind=kind, count=count, pid=server.pid)
        took = run_child("benchmarks.scenarios.http:get", address=server.http, kind=kind, count=count, pid=server.pid)
    return _metrics(took)


def run_tails(settings: Settings) -> Metrics:
    with scratch(settings.data, "http") as folder, product.Server(folder, http=True) as server:
        found = run_child("benchmarks.scenarios.http:idle", address=server.http, pid=server.pid)
    return {"kb_per_tail": float(found["kb_per_tail"])}


def _metrics(took: dict[str, Any]) -> Metrics:
    return {
        "rows_per_s": took["rows"] / took["wall_s"],
        "mb_per_s": took["bytes"] / 1e6 / took["wall_s"],
        "rows_per_cpu_s": took["rows"] / took["server_cpu_s"],
        "server_cores": took["server_cpu_s"] / took["wall_s"],
    }


def post(talk: Talk, address: str, kind: str, count: int, pid: int, connections: int = 1) -> dict[str, float]:
    schema, body, rows = _lines() if kind == NDJSON else _tables()
    connection = _connect(address)
    _ask(connection, "PUT", f"/streams/{product.STREAM}", json.dumps({"schema": schema}).encode(), "application/json")
    turns = iter(range(count))

    def take_turns() -> None:
        own = _connect(address)
        for _ in turns:
            _ask(own, "POST", RECORDS, body, kind)

    settle()
    watch = Stopwatch([pid])
    with ThreadPoolExecutor(connections) as pool:
        for sent in [pool.submit(take_turns) for _ in range(connections)]:
            sent.result()
    took = watch.stop()
    info = json.loads(_ask(connection, "GET", f"/streams/{product.STREAM}"))
    check(info["records"] == count * rows, f"{info['records']:,} rows are there, {count * rows:,} were sent")
    return {**took, "rows": count * rows, "bytes": count * len(body)}


def get(talk: Talk, address: str, kind: str, count: int, pid: int) -> dict[str, float]:
    _, body, rows = _lines() if kind == NDJSON else _tables()
    connection = _connect(address)
    buffer = memoryview(bytearray(1 << 20))
    settle()
    watch = Stopwatch([pid])
    connection.request("GET", RECORDS, headers={"Accept": kind})
    response = connection.getresponse()
    size = ends = 0
    while taken := response.readinto(buffer):
        size += taken
        ends += bytes(buffer[:taken]).count(b"\n") if kind == NDJSON else 0
    took = watch.stop()
    if kind == NDJSON:
        check(ends == count * rows, f"{ends:,} lines came, {count * rows:,} rows were sent")
    else:
        check(size > 0.99 * count * len(body), f"{size:,} bytes came, {count * len(body):,} were sent")
    return {**took, "rows": count * rows, "bytes": size}


def idle(talk: Talk, address: str, pid: int) -> dict[str, float]:
    _ask(_connect(address), "PUT", f"/streams/{product.STREAM}", b'{"shards": 4}', "application/json")
    kept = _tails(address, TAILS_BEFORE)
    before = rss_bytes(pid)
    kept += _tails(address, TAILS)
    return {"kb_per_tail": (rss_bytes(pid) - before) / TAILS / 1024}


def _tails(address: str, count: int) -> list[socket.socket]:
    host, _, port = address.rpartition(":")
    head = f"GET {RECORDS} HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n\r\n".encode()
    tails = []
    for _ in range(count):
        tails.append(socket.create_connection((host, int(port)), 10))
        tails[-1].sendall(head)
    for tail in tails:
        heard = b""
        while b"id: " not in heard:
            heard += tail.recv(1 << 16)
    time.sleep(1)
    return tails


def _connect(address: str) -> http.client.HTTPConnection:
    host, _, port = address.rpartition(":")
    return http.client.HTTPConnection(host, int(port), timeout=60)


def _ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None, kind: str = NDJSON
) -> bytes:
    connection.request(method, path, body, {"Content-Type": kind})
    response = connection.getresponse()
    answer = response.read()
    check(response.status < 300, f"{method} {path}: {response.status} {answer[:300]!r}")
    return answer


def _lines() -> tuple[dict[str, str], bytes, int]:
    """Rows of four columns, about 100 bytes each."""
    lines = [
        json.dumps({"id": n, "name": f"customer {n % 1000}", "amount": n / 7, "at": "2026-01-31T12:00:00Z"})
        for n in range(ROWS)
    ]
    schema = {"id": "int64", "name": "string", "amount": "float64", "at": "timestamp"}
    return schema, ("\n".join(lines) + "\n").encode(), ROWS


def _tables() -> tuple[dict[str, str], bytes, int]:
    """Columns of numbers; half of them do not compress."""
    import pyarrow as pa

    random = np.random.default_rng(5)
    columns = [random.random(TABLE_ROWS) if n % 2 else random.integers(0, 100, TABLE_ROWS) for n in range(COLUMNS)]
    table = pa.table({f"c{n}": column for n, column in enumerate(columns)})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=TABLE_ROWS // 4)
    return {f"c{n}": "float64" if n % 2 else "int64" for n in range(COLUMNS)}, sink.getvalue(), TABLE_ROWS


SCENARIO = Scenario(
    name="http",
    title="HTTP, one connection unless it says two, http.client",
    cases=(
        ours("post NDJSON", lambda settings: run_post(settings, kind=NDJSON), f"{ROWS:,} rows of 95 bytes a request"),
        ours("post Arrow", lambda settings: run_post(settings, kind=ARROW), "15 MB of numbers a request"),
        ours(
            "post Arrow, two at once",
            lambda settings: run_post(settings, kind=ARROW, connections=2),
            "15 MB of numbers a request; one is written while the next comes in",
        ),
        ours("get NDJSON", lambda settings: run_get(settings, kind=NDJSON), "the whole stream in one request"),
        ours("get Arrow", lambda settings: run_get(settings, kind=ARROW), "the whole stream in one request"),
        ours("idle tails", run_tails, f"{TAILS} of a stream of 4 shards"),
    ),
    shown=("rows_per_s", "mb_per_s", "rows_per_cpu_s", "server_cores", "kb_per_tail"),
    targets=(
        Target("post NDJSON", "rows_per_s", 200_000),
        Target("post Arrow, two at once", "mb_per_s", 300),
        Target("get NDJSON", "rows_per_s", 500_000),
        Target("get Arrow", "mb_per_s", 500),
        Target("idle tails", "kb_per_tail", 50, at_most=True),
    ),
)
