"""The embedded hub's port: its background thread outlives what goes wrong in it, and a failed open leaves nothing."""

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

import mainstem
from mainstem.consume.feed import Feed
from mainstem.core.batch import Batch, FetchedBatch
from mainstem.core.errors import DataLoss, FolderUnusable, InvalidPayload, MainstemError
from mainstem.hub import embedded
from mainstem.hub.embedded import FolderPort, LogPort, Pump
from mainstem.hub.local_subscription import LocalSubscription
from mainstem.log import retention
from mainstem.log.flush import CreateStream, DeleteStream, TrimShard
from mainstem.log.log import Log
from mainstem.log.upkeep import Upkeep, trimming, upkeep
from mainstem.transport.port import AppendResult, GetStreamCall
from tests.unit.log.parts import NOW_US, append_values, make_batch, make_stream


@pytest.fixture
def old_stream(tmp_path):
    """A folder with a stream of which all records are older than its retention."""
    log = Log(tmp_path / "data")
    stream = log.execute(CreateStream("ab" * 16, "old", 1, "crc32", 1_000_000, NOW_US)).stream
    append_values(log, stream, b"0", b"1")
    log.close()
    return tmp_path / "data"


class Scheduled:
    """An action, and that the pump has come to it."""

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error
        self.ran = threading.Event()

    def __call__(self) -> None:
        self.ran.set()
        if self._error is not None:
            raise self._error


def test_the_pump_outlives_an_action_that_fails(caplog):
    driven = Scheduled(OSError(5, "Input/output error"))
    pump = Pump(driven)
    for error in (StopIteration(), FolderUnusable("the disk failed"), None):
        action = Scheduled(error)
        pump.schedule(action, 0.0)
        assert action.ran.wait(5)
    assert driven.ran.wait(5)
    pump.close()
    said = [
        (record.levelno, bool(record.exc_info)) for record in caplog.records if "disk failed" in record.getMessage()
    ]
    assert said == [(logging.ERROR, False)]
    assert "StopIteration" in caplog.text


def test_a_stream_deleted_while_retention_decides_is_passed_over(tmp_path, monkeypatch):
    log = Log(tmp_path / "data")
    first, second = (
        log.execute(CreateStream(name * 32, name, 1, "crc32", 1_000_000, NOW_US)).stream for name in ("a", "b")
    )
    for stream in (first, second):
        append_values(log, stream, b"old")
    expired = retention.expired
    decided: list[TrimShard] = []

    def overtaken(ledger, now_us, holds):
        decided.extend(expired(ledger, now_us, holds))
        if len(decided) == 2:
            log.execute(DeleteStream(first, NOW_US))
        return decided

    monkeypatch.setattr(trimming, "expired", overtaken)
    for _ in log.upkeep.round():
        pass
    assert decided == [TrimShard(first, 0, 1), TrimShard(second, 0, 1)]
    assert log.reader.shard(second, 0).start == 1
    log.close()


def test_upkeep_comes_back_after_it_failed(tmp_path, monkeypatch, caplog):
    turns: list[int] = []
    again = threading.Event()

    def fail(_: Upkeep) -> None:
        turns.append(1)
        if len(turns) > 2:
            again.set()
        # What is ours needs no place in the code; what is a bug does.
        raise RuntimeError("out of cheese") if len(turns) % 2 else mainstem.Unavailable("no bread")

    monkeypatch.setattr(upkeep, "_ROUND_SECONDS", 0.001)
    monkeypatch.setattr(upkeep, "_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(Upkeep, "round", fail)
    with mainstem.open(tmp_path / "data") as hub:
        assert again.wait(5)
        hub.streams.create("works")
        assert hub.statistics()["upkeep_errors"] >= 2
    said = {
        record.getMessage(): bool(record.exc_info)
        for record in caplog.records
        if "upkeep failed" in record.getMessage()
    }
    assert sorted(said.values()) == [False] * (len(said) // 2) + [True] * (len(said) - len(said) // 2)


def test_a_folder_opens_though_nothing_can_be_trimmed(old_stream, monkeypatch):
    """The disk is full: what is there can still be read."""
    monkeypatch.setattr(upkeep, "_ROUND_SECONDS", 0.001)

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("mainstem.log.blocks.local.LocalBlocks.create", fail)
        with mainstem.open(old_stream, read_only=False) as hub:
            assert hub.streams.get("old").ends == (2,)
            with hub.consumer("old", start="earliest", follow=False) as consumer:
                assert [record.value for record in consumer] == [b"0", b"1"]
    with mainstem.open(old_stream, read_only=False) as hub:
        deadline = time.monotonic() + 5
        while hub.streams.get("old").starts != (2,):
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_upkeep_that_hangs_holds_up_no_calls(tmp_path, monkeypatch):
    begun, may_end = threading.Event(), threading.Event()

    def hang(_: Upkeep) -> Iterator[None]:
        begun.set()
        may_end.wait()
        yield

    monkeypatch.setattr(upkeep, "_ROUND_SECONDS", 0.001)
    monkeypatch.setattr(Upkeep, "round", hang)
    with mainstem.open(tmp_path / "data") as hub:
        assert begun.wait(5)
        hub.streams.create("works")
        with hub.producer() as producer:
            assert producer.send("works", b"v").result(5) == (0, 0)
        may_end.set()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0


@pytest.mark.parametrize("what", ["mainstem.hub.embedded.Pump", "mainstem.log.log.SqliteLedgerReader"])
def test_an_open_that_fails_late_leaves_the_folder_free(old_stream, monkeypatch, what):
    def fail(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    before = open_files()
    with monkeypatch.context() as patched:
        patched.setattr(what, fail)
        with pytest.raises((RuntimeError, MainstemError), match="new thread"):
            LogPort(old_stream)
    assert open_files() == before
    LogPort(old_stream).close()


def test_a_reader_of_a_stream_that_is_deleted_while_it_subscribes_is_told(tmp_path, monkeypatch):
    port = LogPort(tmp_path / "data")
    port.log.execute(CreateStream("ab" * 16, "s", 1, "crc32", 10**15, NOW_US))
    info = port._administration.find("s").streams[0]
    subscription = LocalSubscription

    def overtaken(*args):
        made = subscription(*args)
        port.log.execute(DeleteStream(info.id, NOW_US))
        return made

    monkeypatch.setattr(embedded, "LocalSubscription", overtaken)
    with pytest.raises(mainstem.StreamDeleted):
        port.subscribe(info, [0], None, 1)
    assert port._subscriptions == {}
    port.close()


@pytest.mark.parametrize("kind", [LogPort, FolderPort])
def test_a_subscription_that_failed_stays_so(tmp_path, monkeypatch, kind):
    """But for a loss, after which reading goes on."""
    with mainstem.open(tmp_path / "data") as hub:
        hub.streams.create("s")
        with hub.producer() as producer:
            producer.send("s", b"a").result(5)
    port = kind(tmp_path / "data")
    try:
        info = port.call(GetStreamCall("s")).streams[0]
        subscription = port.subscribe(info, [0], None, 1)
        errors: list[Exception] = [DataLoss(stream="s", shard=0, first=0, last=0, reason="damaged"), OSError("a")]
        read = Feed.read

        def fail(feed: Feed, bytes_max: int) -> list[FetchedBatch]:
            if errors:
                raise errors.pop(0)
            return read(feed, bytes_max)

        monkeypatch.setattr(Feed, "read", fail)
        with pytest.raises(DataLoss):
            subscription.next(0)
        for _ in range(3):
            with pytest.raises(OSError, match="a"):
                subscription.next(0)
        again = port.subscribe(info, [0], None, 1).next(0)
        assert again is not None
        assert again.end == 1
    finally:
        port.close()


def test_a_large_batch_of_a_schema_that_nobody_knows_is_refused_by_the_log(tmp_path):
    """Nothing can be known of it; that is not what its sender is told."""
    port = LogPort(tmp_path / "data")
    try:
        stream = make_stream(port.log)
        sound = make_batch([b"x"] * 2_000, stream=stream)
        strange = Batch(msgspec.structs.replace(sound.header, schema_id=9), sound.payload)
        results: list[AppendResult] = []
        done = threading.Event()

        def take(found: Sequence[AppendResult]) -> None:
            results.extend(found)
            done.set()

        port.append([strange, sound], 10, take)
        assert port.wait(done, 10)
        assert isinstance(results[0], InvalidPayload)
        assert results[1] == 0
    finally:
        port.close()
