"""/metrics: the format, what is in it, what it costs, and that it answers while the log does not."""

import asyncio
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.requests import Request

from mainstem.core.errors import Closed
from mainstem.core.kinds import Address
from mainstem.core.settings import Settings
from mainstem.log.flush import DeleteStream, TrimShard
from mainstem.log.log import Log
from mainstem.server import kafka_names
from mainstem.server.door import PASSER
from mainstem.server.http.listener import HttpListener
from mainstem.server.http.probes import Probes
from mainstem.server.metrics import (
    GROUP_METRICS,
    HISTOGRAM,
    KAFKA_METRICS,
    METRICS,
    OTHER_METRICS,
    STREAM_METRICS,
    Exposition,
    _labels,
)
from mainstem.server.sockets import address_of, bind
from mainstem.transport.sharing import GroupInfo
from tests.unit.log.parts import append_values, make_stream
from tests.unit.server.exposition import lint, parse
from tests.unit.server.parts import run, serving

# Counters that only a log with upkeep, or one that watches its disk, has.
SOMETIMES = {
    *("disk_full", "seconds_until_full", "appends_refused_full", "rows_dropped", "entries_merged"),
    *("records_compacted", "records_erased", "blocks_freed", "bytes_freed", "bytes_rewritten", "upkeep_errors"),
}


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path / "data")
    yield log
    log.close()


def exposition(log: Log, names_max: int = 100) -> Exposition:
    return Exposition(Settings(data=log.path, metrics_streams_max=names_max), "mainstem 1.2.3", log, log.counters)


def test_every_counter_of_a_server_is_in_the_table_and_the_page(tmp_path):
    """A new counter needs one line in METRICS."""

    async def test() -> None:
        async with serving(tmp_path) as rig:
            make_stream(rig.server.log)
            loop = asyncio.get_running_loop()
            counters = await loop.run_in_executor(None, rig.server.counters)
            sources = {metric.source for metric in METRICS if metric.kind != HISTOGRAM}
            assert set(counters) - sources == set()
            assert sources - set(counters) - SOMETIMES == set()
            assert {metric.source for metric in METRICS if metric.kind == HISTOGRAM} == set(rig.server.log.histograms())
            page = Exposition(rig.server.settings, "mainstem 1", rig.server.log, rig.server.counters)
            families = parse(await loop.run_in_executor(None, page.render))
            missing = {metric.name for metric in (*METRICS, *STREAM_METRICS, *OTHER_METRICS)} - set(families)
            assert missing <= {metric.name for metric in METRICS if metric.source in SOMETIMES}

    run(test)


def test_the_page_keeps_the_format_and_the_conventions(log):
    stream = make_stream(log, "orders", shards=2)
    append_values(log, stream, b"a", b"b", b"c", shard=1)
    log.execute(TrimShard(stream, 1, 2))
    families = parse(exposition(log).render())
    assert lint(families) == []
    assert families["mainstem_stream_shards"].value(stream="orders") == 2
    assert families["mainstem_stream_records"].value(stream="orders") == 1
    assert families["mainstem_stream_appended_records_total"].value(stream="orders") == 3
    assert families["mainstem_stream_trimmed_records_total"].value(stream="orders") == 2
    assert families["mainstem_stream_bytes"].value(stream="orders") > 0
    assert families["mainstem_flushes_total"].value() == 3
    assert families["mainstem_commit_seconds"].samples["mainstem_commit_seconds_count", ()] == 3
    assert families["mainstem_streams"].value() == 1
    assert families["process_resident_memory_bytes"].value() > 1e6
    assert families["mainstem_free_bytes"].value() > 0


def test_counters_that_are_only_sometimes_there_are_shown_when_they_are(log):
    counters = {**log.counters(), **dict.fromkeys(SOMETIMES, 7)}
    page = Exposition(Settings(data=log.path), "mainstem 1.2.3", log, lambda: counters).render()
    families = parse(page)
    assert lint(families) == []
    assert families["mainstem_disk_full"].value() == 7
    assert families["mainstem_upkeep_errors_total"].value() == 7
    # Not known: no alert may take it for a number.
    counters["seconds_until_full"] = -1
    page = Exposition(Settings(data=log.path), "mainstem 1.2.3", log, lambda: counters).render()
    assert "mainstem_seconds_until_full" not in parse(page)


def test_label_values_are_escaped(tmp_path):
    log = Log(tmp_path / 'a "quoted"\\n\nname')
    try:
        (family, *_) = parse(exposition(log).render()).values()
        ((_, labels),) = family.samples
        assert dict(labels)["data"].endswith(r"a \"quoted\"\\n\nname")
    finally:
        log.close()
    assert _labels({"path": "\udcff"}) == r'{path="\udcff"}'


def test_streams_beyond_the_limit_are_summed(log):
    streams = [make_stream(log, f"s{number}") for number in range(5)]
    for number, stream in enumerate(streams):
        append_values(log, stream, *[b"x" * 100] * (number + 1))
    families = parse(exposition(log, names_max=2).render())
    records = families["mainstem_stream_records"]
    names = {dict(labels)["stream"] for _, labels in records.samples}
    assert names == {"s4", "s3", "_other"}
    assert records.value(stream="_other") == 1 + 2 + 3
    assert families["mainstem_streams"].value() == 5
    assert parse(exposition(log, names_max=0).render())["mainstem_stream_records"].value(stream="_other") == 15


def test_what_was_counted_of_the_others_never_falls(log):
    """Deleting one of them, or naming it from now on, must not look like a restart."""
    first, second, third = (make_stream(log, name) for name in ("first", "second", "third"))
    append_values(log, first, *[b"x" * 100] * 9)
    append_values(log, second, b"x", b"x")
    append_values(log, third, b"x")
    page = exposition(log, names_max=1)

    def appended(name: str) -> float:
        return parse(page.render())["mainstem_stream_appended_records_total"].value(stream=name)

    assert (appended("first"), appended("_other")) == (9, 3)
    # A larger one does not push the named one out.
    append_values(log, third, *[b"x" * 100] * 20)
    assert (appended("first"), appended("_other")) == (9, 23)
    log.execute(DeleteStream(second, 1))
    assert appended("_other") == 23
    log.execute(DeleteStream(first, 1))
    assert (appended("third"), appended("_other")) == (21, 23)
    append_values(log, third, b"x")
    assert (appended("third"), appended("_other")) == (22, 23)


@pytest.mark.slow("creates a thousand streams")
def test_a_page_of_a_thousand_streams_is_gathered_quickly(log):
    for number in range(1_000):
        make_stream(log, f"stream-{number}", shards=2)
    streams = [row.id for row in log.ledger.list_streams()]
    for stream in streams[:200]:
        append_values(log, stream, b"x")
    page = exposition(log)
    seconds = min(_timed(page) for _ in range(10))
    print(f"{seconds * 1000:.2f} ms")
    assert seconds < 0.010 * 5


def _timed(page: Exposition) -> float:
    begun = time.perf_counter()
    assert len(page.render()) > 10_000
    return time.perf_counter() - begun


async def get(address: str, path: str) -> tuple[str, str]:
    """Head and body of an answer."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = (await reader.read()).decode()
    finally:
        writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return head, body


async def listening(gather, test) -> None:
    sockets = bind(Address("127.0.0.1", 0))
    probes = Probes(SimpleNamespace(is_ready=True, is_disk_full=False, damage=""), gather)
    handlers = {"/livez": probes.livez, "/healthz": probes.livez, "/readyz": probes.readyz, "/metrics": probes.metrics}

    async def app(scope, receive, send) -> None:
        response = await handlers[scope["path"]](Request(scope), PASSER, "")
        await response(scope, receive, send)

    listener = HttpListener(sockets, app, 100)
    task = asyncio.ensure_future(listener.serve())
    try:
        await test(address_of(sockets))
    finally:
        listener.stop()
        await task
        probes.close()


def test_over_http(tmp_path):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            make_stream(rig.server.log)
            page = Exposition(rig.server.settings, rig.server.name, rig.server.log, rig.server.counters)

            async def ask(address: str) -> None:
                head, body = await get(address, "/metrics")
                assert head.startswith("HTTP/1.1 200")
                assert "content-type: text/plain; version=0.0.4; charset=utf-8" in head.lower().splitlines()
                assert parse(body)["mainstem_stream_shards"].value(stream="orders") == 1
                assert (await get(address, "/readyz"))[1] == '{"status":"ready"}'

            await listening(page.render, ask)

    run(test)


def test_a_page_that_takes_long_holds_up_nothing_and_is_gathered_once(tmp_path):
    go_on = threading.Event()
    gathered = []

    def gather() -> str:
        gathered.append(1)
        assert go_on.wait(20)
        return "up 1\n"

    async def test() -> None:
        async def ask(address: str) -> None:
            asked = [asyncio.ensure_future(get(address, "/metrics")) for _ in range(5)]
            while not gathered:  # noqa: ASYNC110  # a thread begins
                await asyncio.sleep(0.001)
            # One goes away: the others get their page all the same.
            gone = asked.pop()
            gone.cancel()
            await asyncio.wait((gone,))
            assert (await get(address, "/healthz"))[1] == '{"status":"ok"}'
            await asyncio.sleep(0.1)
            go_on.set()
            assert {body for _, body in await asyncio.gather(*asked)} == {"up 1\n"}
            assert len(gathered) <= 2

        await listening(gather, ask)

    run(test)


@pytest.mark.parametrize("error", [Closed("the log is closed\n"), OSError(5, "Input/output error")])
def test_a_page_that_cannot_be_gathered(error):
    def gather() -> str:
        raise error

    async def test() -> None:
        async def ask(address: str) -> None:
            head, body = await get(address, "/metrics")
            assert head.startswith("HTTP/1.1 503")
            assert body.count("\n") == 1
            assert "losed" in body or "Input/output" in body

        await listening(gather, ask)

    run(test)


def test_a_page_while_the_disk_hangs(tmp_path, monkeypatch):
    """Just then an operator looks."""
    hung, go_on = threading.Event(), threading.Event()

    async def test() -> None:
        async with serving(tmp_path) as rig:
            rig.on_close.append(go_on.set)
            log = rig.server.log
            make_stream(log)
            write = log._file.write

            def hang(*arguments):
                hung.set()
                assert go_on.wait(20)
                return write(*arguments)

            monkeypatch.setattr(log._file, "write", hang)
            thread = threading.Thread(target=make_stream, args=(log, "second"))
            thread.start()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, hung.wait)
            page = Exposition(rig.server.settings, rig.server.name, log, rig.server.counters)
            families = parse(await asyncio.wait_for(loop.run_in_executor(None, page.render), 5))
            assert families["mainstem_streams"].value() == 1
            go_on.set()
            await loop.run_in_executor(None, thread.join)

    run(test)


def test_the_names_of_the_table_are_those_of_the_operations_guide():
    guide = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    names = {metric.name for metric in (*METRICS, *STREAM_METRICS, *GROUP_METRICS, *KAFKA_METRICS, *OTHER_METRICS)}
    assert {name for name in names if f"`{name}`" not in guide} == set()


def test_lag_under_the_names_that_dashboards_for_kafka_ask_for(log):
    orders, clicks = make_stream(log, "orders", shards=2), make_stream(log, "clicks")
    append_values(log, orders, b"a", b"b", b"c", shard=0)
    append_values(log, orders, b"d", shard=1)
    log.execute(TrimShard(orders, 0, 1))
    owners = [(orders, 0, 7), (orders, 1, 7), (clicks, 0, 7)]
    log.groups.assign("billing", 1, owners, lambda outcome: None)
    log.groups.commit("billing", 7, [(orders, 0, 2)], lambda outcome: None)
    make_stream(log, "later")  # whatever waits is committed with it
    page = Exposition(
        Settings(data=log.path),
        "mainstem 1",
        log,
        log.counters,
        lambda: [GroupInfo("billing", 1, 1, 1, ("orders",), 2, 0.0, 1), GroupInfo("gone", 1, 1, 1, (), 0, 0.0)],
    )
    families = parse(page.render())
    assert {metric.name for metric in KAFKA_METRICS} <= set(families)
    lag, sums = families["kafka_consumergroup_lag"], families["kafka_consumergroup_lag_sum"]
    assert lag.value(consumergroup="billing", topic="orders", partition="0") == 1
    assert lag.value(consumergroup="billing", topic="orders", partition="1") == 1
    assert sums.value(consumergroup="billing", topic="orders") == 2
    assert sums.value(consumergroup="billing", topic="clicks") == 0
    offsets = families["kafka_consumergroup_current_offset"]
    assert offsets.value(consumergroup="billing", topic="orders", partition="0") == 2
    assert families["kafka_consumergroup_members"].value(consumergroup="billing") == 1
    assert families["kafka_topic_partitions"].value(topic="orders") == 2
    assert families["kafka_topic_partition_current_offset"].value(topic="orders", partition="0") == 3
    assert families["kafka_topic_partition_oldest_offset"].value(topic="orders", partition="0") == 1


def test_single_shards_are_told_of_up_to_a_limit(log, monkeypatch):
    monkeypatch.setattr(kafka_names, "_SHARDS_MAX", 3)
    make_stream(log, "one", shards=2)
    make_stream(log, "two", shards=2)
    families = parse(exposition(log).render())
    assert len(families["kafka_topic_partition_current_offset"].samples) == 3
    assert len(families["kafka_topic_partitions"].samples) == 2
