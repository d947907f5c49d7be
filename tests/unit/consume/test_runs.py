"""The plan of a read, while the stream it is of is trimmed."""

from typing import Any

import pytest

import mainstem
from mainstem.consume.runs import Runs
from mainstem.core.errors import DataLoss
from mainstem.log.flush import DropEntries
from mainstem.transport.port import RunsCall


class Trimming:
    """The log's reader, whose stream is trimmed right after it first said where the shard begins."""

    def __init__(self, hub: Any, offset: int) -> None:
        self._reader = hub._port.log.reader
        self._hub = hub
        self._offset: int | None = offset

    def __getattr__(self, name: str):
        return getattr(self._reader, name)

    def shard(self, stream: int, shard: int):
        found = self._reader.shard(stream, shard)
        offset, self._offset = self._offset, None
        if offset is not None:
            self._hub.streams.trim("s", offset=offset)
            # And upkeep comes at once.
            self._hub._port.log.execute(DropEntries(stream, shard, 1_000, 0))
        return found


@pytest.mark.parametrize("offset", [40, 100], ids=["a part", "all of it"])
def test_what_is_trimmed_between_two_looks_is_told(tmp_path, offset):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("s")
        with hub.producer() as producer:
            for _ in range(10):
                producer.send_many("s", [b"value"] * 10)
                producer.flush()
        port: Any = hub._port
        trimming: Any = Trimming(hub, offset)
        runs = Runs(port._administration.require, trimming, port._selections, tmp_path)
        call = RunsCall("s", 0, 20, 100)
        with pytest.raises(DataLoss) as lost:
            runs.handle(call)
        assert (lost.value.first, lost.value.last) == (20, offset - 1)
        # From there on there is the rest.
        answer = runs.handle(RunsCall("s", 0, offset, 100))
        assert sum(run.records for run in answer.runs) == 100 - offset
