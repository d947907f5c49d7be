"""Kafka's messages and producers: any bytes, sets of them, and compression that nobody undoes on the way."""

import json
import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Literal

import pytest

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.hub.hub import Hub
from mainstem.testing import planted
from mainstem.testing.server import ServerProcess
from tests.integration.mechanisms.rig import SlowLink, changed_servers, values

# K2: a message is bytes, and a flipped one is told.

BELIEVE_SENDERS = """
from mainstem.produce.gateway import Gateway
Gateway._check_payload = lambda *_: None
"""


ANY_BYTES = [random.Random(size).randbytes(size) for size in (0, 1, 2, 100, 4_095, 4_096, 65_536, 300_000, 1_000_000)]
FLIPPED = 4


def read_with_a_flip(path: Path) -> tuple[list[bytes], list[int]]:
    """One bit of the fifth value flipped on disk: what is read, and which are told to be lost."""
    with mainstem.open(path) as hub:
        hub.streams.create("orders")
        with hub.producer(compression=None) as producer:
            for value in ANY_BYTES:
                producer.send("orders", value).result(10)
        assert values(hub, "orders") == ANY_BYTES
    (block,) = (path / "blocks").iterdir()
    data = bytearray(block.read_bytes())
    data[data.index(ANY_BYTES[FLIPPED])] ^= 0x02
    block.write_bytes(data)
    found: list[bytes] = []
    lost: list[int] = []
    with mainstem.open(path, read_only=True) as hub, hub.consumer("orders", start="earliest", follow=False) as consumer:
        while True:
            try:
                found.extend(record.value or b"" for record in consumer)
                return found, lost
            except mainstem.DataLoss as loss:
                lost += range(loss.first, loss.last + 1)


@pytest.mark.mechanism("K2")
def test_k2(tmp_path):
    """Values from nothing to a megabyte come back as they were sent. One that was flipped on disk is told with its
    offset, and what follows is read. Without the checksum it is handed out as it is."""
    found, lost = read_with_a_flip(tmp_path / "checked")
    assert lost == [FLIPPED]
    assert found == ANY_BYTES[:FLIPPED] + ANY_BYTES[FLIPPED + 1 :]
    with planted.ignore_checksum():
        found, lost = read_with_a_flip(tmp_path / "control")
    assert lost == []
    assert len(found) == len(ANY_BYTES)
    assert ANY_BYTES[FLIPPED] not in found


def send_changed(hub: Hub) -> MainstemError | None:
    """A record between two others, changed by one bit after its checksum was computed; what the server says to it."""
    hub.streams.create("orders")
    with hub.producer(compression=None) as producer:
        append = producer._port.append

        def flip(batches, *rest):
            damaged = [type(b)(b.header, bytes(b.payload[:-1]) + bytes([b.payload[-1] ^ 1])) for b in batches]
            append(damaged, *rest)

        producer.send("orders", b"before").result(10)
        producer._port.append = flip  # type: ignore[method-assign]
        error = producer.send("orders", b"changed").exception(10)
        producer._port.append = append  # type: ignore[method-assign]
        producer.send("orders", b"after").result(10)
    return error


@pytest.mark.mechanism("K2")
def test_k2_a_broker_refuses_what_was_changed_on_the_way(tmp_path):
    """The checksum is computed by the sender, and checked before anything is written. A server that does not look
    acknowledges and stores it."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        error = send_changed(hub)
        assert isinstance(error, mainstem.InvalidPayload)
        assert "checksum" in str(error)
        assert values(hub, "orders") == [b"before", b"after"]
        assert hub.statistics()["batches_refused"] == 1
    with (
        changed_servers(BELIEVE_SENDERS),
        ServerProcess(tmp_path / "control") as server,
        mainstem.connect(server.url) as hub,
    ):
        assert send_changed(hub) is None
        assert hub.streams.get("orders").records == 3


# K3: sets are cheaper than singles.


def records_per_second(hub: Hub, stream: str, total: int, set_size: int) -> float:
    hub.streams.create(stream)
    value = b"v" * 200
    with hub.producer() as producer:
        producer.send(stream, value).result(10)
        began = time.perf_counter()
        for _ in range(total // set_size):
            producer.send_many(stream, [value] * set_size).result(10)
        took = time.perf_counter() - began
    assert hub.streams.get(stream).records == total + 1
    return total / took


@pytest.mark.mechanism("K3")
@pytest.mark.xdist_group("measure")
def test_k3_sets(tmp_path):
    """Sets of 200 are at least ten times as fast as the control, sets of one."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        singles = records_per_second(hub, "singles", 400, 1)
        sets = records_per_second(hub, "sets", 40_000, 200)
    assert sets >= 10 * singles


SEND_AND_END = """
    import os, sys, mainstem
    hub = mainstem.open(sys.argv[1])
    hub.streams.create("orders")
    producer = hub.producer(linger=60)
    for number in range(5000):
        producer.send("orders", b"%d" % number)
    if sys.argv[2] == "clean":
        producer.close()
    os._exit(0)
"""


@pytest.mark.mechanism("K3")
def test_k3_a_clean_end_loses_nothing(tmp_path):
    """Closed, everything gathered is there. Ended without a word, it is gone: that is what closing is for."""
    for how, expected in (("clean", 5_000), ("abrupt", 0)):
        path = tmp_path / how
        subprocess.run([sys.executable, "-c", textwrap.dedent(SEND_AND_END), str(path), how], check=True, timeout=30)
        with mainstem.open(path, read_only=True) as hub:
            assert len(values(hub, "orders")) == expected


# K13: compressed by the producer, stored as it came, expanded by the consumer.


def event(number: int) -> bytes:
    found = {
        "type": ("view", "click", "purchase")[number % 3],
        "user": f"user-{number % 997:06d}",
        "page": f"/products/category-{number % 13}/item-{number % 211}",
        "referrer": "https://www.example.com/search?query=something",
        "agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36",
        "session": f"{number * 2654435761 % 2**32:08x}",
        "at": 1_770_000_000_000 + 37 * number,
    }
    return json.dumps(found).encode()


EVENTS = [event(number) for number in range(20_000)]


def shares(path: Path, compression: Literal["zstd", "lz4"] | None) -> tuple[float, float, float]:
    """Bytes over the link and on disk as a share of the raw ones, and the server's seconds of processor time."""
    raw = sum(map(len, EVENTS))
    with (
        ServerProcess(path) as server,
        SlowLink(server.address) as link,
        mainstem.connect(f"mainstem://{link.address}") as hub,
    ):
        hub.streams.create("events")
        before = hub.statistics()["bytes_written"]
        wire, seconds = link.requests_bytes, processor_seconds(server.pid)
        sent: list[bytes] = []
        with hub.producer(compression=compression) as producer:
            append = producer._port.append

            def remember(batches, *rest):
                sent.extend(bytes(batch.payload) for batch in batches)
                append(batches, *rest)

            producer._port.append = remember  # type: ignore[method-assign]
            for first in range(0, len(EVENTS), 200):
                producer.send_many("events", EVENTS[first : first + 200])
            producer.flush()
            producer._port.append = append  # type: ignore[method-assign]
        seconds = processor_seconds(server.pid) - seconds
        wire = link.requests_bytes - wire
        disk = hub.statistics()["bytes_written"] - before
        with hub.consumer("events", start="earliest", follow=False) as consumer:
            batches = list(consumer.batches())
        assert [bytes(batch._fetched.payload) for batch in batches] == sent
        assert [value for batch in batches for value in batch.values()] == EVENTS
    return wire / raw, disk / raw, seconds


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.mechanism("K13")
@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_k13(tmp_path, compression):
    """Events in sets of 200: at most a third of the bytes on the wire and on disk, stored as they were sent, and no
    more work for the server. Without compression it is all of them."""
    wire, disk, seconds = shares(tmp_path / "compressed", compression)
    assert max(wire, disk) <= 1 / 3
    wire, disk, seconds_plain = shares(tmp_path / "control", None)
    assert min(wire, disk) > 0.9
    # The kernel counts in hundredths of a second.
    assert seconds <= 1.2 * seconds_plain + 0.03
