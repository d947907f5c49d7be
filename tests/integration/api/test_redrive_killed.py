"""Redrives that are killed at any moment put every dead letter back once."""

import signal
import subprocess
import sys
import textwrap
from collections import Counter

import pyarrow as pa
import pytest

import mainstem
from mainstem.hub import redrive
from mainstem.testing.server import ServerProcess
from tests.integration.api.conftest import read_all

LETTERS = 400
RUN = textwrap.dedent(
    """
    import sys
    import mainstem
    from mainstem.hub import redrive

    redrive.PAGE_LETTERS = 20
    with mainstem.connect(sys.argv[1]) as hub:
        print("running", flush=True)
        hub.redrive("orders", dry_run=False)
    """
)


@pytest.mark.slow("starts a server and, again and again, a process that is killed")
def test_killed_redrives_repeat_nothing(tmp_path, monkeypatch):
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("orders", schema=pa.schema([("id", pa.int64())]))
        with hub.producer(on_bad="dead_letter") as producer:
            for number in range(LETTERS):
                producer.send("orders", {"id": number, "country": "DE"})
        hub.streams.set_schema("orders", pa.schema([("id", pa.int64()), ("country", pa.string())]))
        done: list[int] = []
        for after in (20, 60, 90, 140, 200):
            with subprocess.Popen([sys.executable, "-c", RUN, server.url], stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                process.stdout.readline()
                with hub.consumer("orders", start="earliest") as consumer:
                    for count, _ in enumerate(consumer, 1):
                        if count == after:
                            break
                process.send_signal(signal.SIGKILL)
            done.append(len(read_all(hub, "orders")))
        assert done[0] < LETTERS, "the first was killed before its end"
        hub.redrive("orders", dry_run=False)
        found = Counter(record.value["id"] for record in read_all(hub, "orders"))
        assert found == Counter(range(LETTERS))

        # The control: a run that does not look for what the one before it has put back repeats it.
        monkeypatch.setattr(redrive.Redrive, "_history", lambda run: (set(), []))
        hub.redrive("orders", dry_run=False)
        assert max(Counter(record.value["id"] for record in read_all(hub, "orders")).values()) == 2
