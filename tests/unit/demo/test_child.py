"""A server process is awaited, stopped and killed; what is no server is told apart and does not stay behind."""

import os
import signal
import sys

import pytest

from mainstem.demo import child
from mainstem.demo.child import NotReady, ServerChild

READY = """print('ready {"data": "127.0.0.1:1"}', flush=True)"""


def python(code):
    return [sys.executable, "-c", f"import os, signal, sys, time\n{code}"]


def test_a_child_tells_its_addresses_and_stops_with_its_code(tmp_path):
    code = f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n{READY}\ntime.sleep(60)"
    server = ServerChild(python(f"print('a line', file=sys.stderr)\n{code}"), tmp_path / "log")
    assert server.addresses == {"data": "127.0.0.1:1"}
    assert server.exit_code is None
    assert server.stop() == 7
    assert (tmp_path / "log").read_text() == "a line\n"


def test_a_child_that_does_not_stop_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "STOP_SECONDS_MAX", 0.05)
    server = ServerChild(
        python(f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{READY}\ntime.sleep(60)"), tmp_path / "log"
    )
    assert server.stop() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("code", "message", "seconds"),
    [
        ("sys.exit(3)", "ended with 3 before it was ready", 30),
        ("print('red', flush=True); time.sleep(60)", "said b'red.n' instead of ready", 30),
        ("time.sleep(60)", "not ready within 0.5 s", 0.5),
    ],
)
def test_what_does_not_become_ready_is_gone(tmp_path, monkeypatch, code, message, seconds):
    monkeypatch.setattr(child, "READY_SECONDS_MAX", seconds)
    begin = "open('pid', 'w').write(str(os.getpid()))"
    with pytest.raises(NotReady, match=message):
        ServerChild(python(f"{begin}; {code}"), tmp_path / "log", cwd=tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
