"""Ctrl-C in the thread that commits: the record's fate may be unknown to the caller, the log must not suffer."""

import subprocess
import sys

import mainstem
from mainstem.consume.selection import Selected, Selection
from mainstem.core.batch import FetchedBatch

PROGRAM = """
import os, signal, sys, threading, time
import mainstem

hub = mainstem.open(sys.argv[1])
hub.streams.create("s")
producer = hub.producer()
producer.send("s", b"first").result()
stop = threading.Event()

def interrupt():
    for _ in range(200):
        time.sleep(0.003)
        os.kill(os.getpid(), signal.SIGINT)
    stop.set()

def main():
    acked = interrupts = 0
    threading.Thread(target=interrupt).start()
    while True:
        try:
            while not stop.is_set():
                producer.send("s", b"x" * 100).result()
                acked += 1
            return acked, interrupts
        except KeyboardInterrupt:
            interrupts += 1

acked, interrupts = main()
signal.signal(signal.SIGINT, signal.SIG_IGN)
shard, offset = producer.send("s", b"last").result(10)
hub.close()
with mainstem.open(sys.argv[1]) as hub, hub.consumer("s", start="earliest", follow=False) as consumer:
    offsets = [record.offset for record in consumer]
assert offsets == list(range(offset + 1)), (len(offsets), offset)
assert len(offsets) >= acked + 2 and interrupts > 20, (len(offsets), acked, interrupts)
"""


def test_interrupts_while_committing_harm_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "data")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_reader_that_was_interrupted_goes_on_where_it_was(tmp_path, monkeypatch):
    """Ctrl-C in the middle of a look for matches: what it had found, of this shard and of others, comes again."""
    apply = Selection.apply
    calls = 0

    def interrupted(selection: Selection, fetched: FetchedBatch) -> Selected:
        nonlocal calls
        calls += 1
        if calls in (7, 20, 33):
            raise KeyboardInterrupt
        return apply(selection, fetched)

    with mainstem.open(tmp_path / "data") as hub, hub.producer() as producer:
        hub.streams.create("s", shards=4)
        for number in range(40):
            producer.send("s", b"%d" % number, key=b"%d" % number).result()
        monkeypatch.setattr(Selection, "apply", interrupted)
        seen: list[tuple[int, int]] = []
        interrupts = 0
        with hub.consumer("s", start="earliest", follow=False, where="value IS NOT NULL") as consumer:
            while True:
                try:
                    while (record := consumer.poll()) is not None:
                        seen.append((record.shard, record.offset))
                    break
                except KeyboardInterrupt:
                    interrupts += 1
        assert interrupts == 3
        assert len(seen) == len(set(seen)) == 40


def test_the_main_thread_of_a_forked_child_is_the_one_that_forked():
    script = """
import os, signal, threading
from mainstem.core.interrupts import DeferredInterrupt

def child():
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append("handled"))
    with DeferredInterrupt():
        os.kill(os.getpid(), signal.SIGINT)
        seen.append("step")
    os._exit(0 if seen == ["step", "handled"] else 1)

def fork():
    pid = os.fork()
    if not pid:
        child()
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

thread = threading.Thread(target=fork)
thread.start()
thread.join()
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=False, timeout=30).returncode == 0
