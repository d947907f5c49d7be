"""Parts that several processes write: when their time begins, and how they are let go."""

from typing import Any

import pyarrow as pa
import pytest

import mainstem
from mainstem.core.errors import ConnectionLost, MainstemError, Refused
from mainstem.core.limits import TRANSACTION_SECONDS_MAX
from mainstem.produce.parts import Part, PartWritten, abort_parts
from mainstem.produce.transaction import ABORT_SECONDS


class Recording:
    """A port that remembers how what is staged begins."""

    def __init__(self, port) -> None:
        self._port = port
        self.staged: list[float] = []

    def __getattr__(self, name: str):
        return getattr(self._port, name)

    def stage(self, staging, batches, timeout, done) -> None:
        self.staged.append(staging.seconds)
        self._port.stage(staging, batches, timeout, done)


def test_the_time_of_a_part_begins_with_what_is_staged_first(tmp_path):
    """A task may work for long before it has its first row."""
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("orders", schema={"id": "int64"})
        port = Recording(hub._port)
        part = Part(port)
        part.send_batch("orders", pa.table({"id": [1]}))
        part.finish()
        # Not a moment less.
        assert port.staged == [TRANSACTION_SECONDS_MAX]


class Refusing:
    """A port whose every call goes wrong."""

    def __init__(self, error: MainstemError) -> None:
        self._error = error
        self.timeouts: list[float] = []

    def call(self, call, timeout=None):
        self.timeouts.append(timeout)
        raise self._error


@pytest.mark.parametrize(
    ("error", "calls"), [(ConnectionLost("away"), 1), (Refused("it is being committed"), 100)], ids=["away", "refused"]
)
def test_parts_are_let_go_as_long_as_somebody_answers(error, calls):
    port: Any = Refusing(error)
    abort_parts(port, [PartWritten(0, 0), *(PartWritten(number, 1) for number in range(100))])
    assert port.timeouts == [ABORT_SECONDS] * calls
