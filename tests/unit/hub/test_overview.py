"""An overview of a log, near and far, and of a server that is older than the question."""

from typing import Any

import pytest

import mainstem
from mainstem.core.clock import SYSTEM_CLOCK
from mainstem.core.errors import ProtocolError
from mainstem.hub.overview import Rate, look, pace
from mainstem.testing.clock import SimulatedClock
from mainstem.transport.port import Answer, Call, ConnectionsCall, ListStreamsCall, StatisticsCall, StreamInfo


class OldServer:
    """Knows statistics and streams, and ends the connection at anything else."""

    def call(self, call: Call, timeout: float | None = None) -> Answer:
        match call:
            case StatisticsCall():
                return Answer(counters={"flushes_applied": 3, "connections": 1})
            case ListStreamsCall():
                return Answer(streams=(stream(1, 5),) if not call.after else (stream(2, 6),), more=not call.after)
            case _:
                raise ProtocolError("call message with a header that cannot be read")


def stream(id_: int, end: int, size: int = 0) -> StreamInfo:
    return StreamInfo(id_, "0" * 32, f"s{id_}", 1, "crc32", 0, 1, 1, (0,), (end,), size, 1)


def test_an_old_server_is_asked_only_what_it_knows():
    old: Any = OldServer()
    found = look(old, SYSTEM_CLOCK)
    assert found.connections is None
    assert [info.name for info in found.streams] == ["s1", "s2"]
    with pytest.raises(ProtocolError):
        old.call(ConnectionsCall())


def test_of_a_log_in_this_process_and_of_its_folder(tmp_path):
    with mainstem.open(tmp_path / "data") as hub:
        hub.streams.create("orders", shards=2)
        hub.streams.create("empty")
        with hub.producer() as producer:
            producer.send("orders", b"x").result(10)
        near = hub.overview()
        with mainstem.open(tmp_path / "data", read_only=True) as reader:
            beside = reader.overview()
    for found in (near, beside):
        infos = {info.name: info for info in found.streams}
        assert infos["orders"].records == 1
        assert 0 <= found.at_us - infos["orders"].oldest_us < 60_000_000
        assert infos["empty"].oldest_us == 0
        assert found.counters["blocks"] == 1
        assert found.counters["free_bytes"] > 0
        assert found.counters["ledger_bytes"] > 0
        assert found.counters["flushes_applied"] == 3
        assert not found.is_server
    assert near.histograms["commit_seconds"].count == 3
    assert beside.histograms == {}


def test_rates_of_what_has_no_counters_come_from_the_streams():
    clock = SimulatedClock()
    old: Any = OldServer()
    earlier = look(old, clock)
    clock.advance(2)
    later = look(old, clock)
    later = type(later)(
        later.at, later.at_us, "", {"flushes_applied": 9}, {}, (stream(1, 25, 80), stream(3, 4, 10)), None
    )
    found = pace(earlier, later)
    assert found is not None
    assert found.streams == {1: Rate(10.0, 40.0), 3: Rate(2.0, 5.0)}
    assert found.incoming == Rate(12.0, 45.0)
    assert found.outgoing is None
    assert found.flushes == 3.0
    assert pace(None, later) is None
    assert pace(later, later) is None


def test_the_first_times_of_very_many_shards_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("mainstem.log.administration._OLDEST_SHARDS_MAX", 1)
    with mainstem.open(tmp_path / "data") as hub:
        for name in ("a", "b"):
            hub.streams.create(name)
            with hub.producer() as producer:
                producer.send(name, b"x").result(10)
        first, second = hub.overview().streams
        assert first.oldest_us
        assert not second.oldest_us
