"""Ctrl-C in the thread that commits: the record's fate may be unknown to the caller, the log must not suffer."""

import subprocess
import sys

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
