"""Planted bugs: in force inside their block, in children too, and gone after it."""

import subprocess

import pytest

from mainstem.core.errors import ProtocolError
from mainstem.log.log import Log
from mainstem.testing import planted
from mainstem.transport.wire import MessageReader
from tests.faults.script import TINY

UNKNOWN_KIND = b"\x0c\0\0\0\xff\0\0\0\0\0\0\0\0\0\0\0"


def feed():
    MessageReader(bytearray(1 << 16)).feed(UNKNOWN_KIND)


def test_a_bug_lasts_as_long_as_its_block():
    with pytest.raises(ProtocolError):
        feed()
    with planted.trust_messages():
        assert planted.active() == ("trust_messages",)
        with pytest.raises(AssertionError):
            feed()
    assert planted.active() == ()
    with pytest.raises(ProtocolError):
        feed()


@pytest.mark.parametrize("name", planted.BUGS)
def test_every_bug_is_taken_back(name, tmp_path):
    with planted.BUGS[name]():
        assert planted.active() == (name,)
    Log(tmp_path / "data", TINY).close()
    with pytest.raises(ProtocolError):
        feed()


def test_children_have_the_bugs_of_their_parent():
    program = ["json.tool", "--help"]
    assert "planted" not in " ".join(planted.command(*program))
    with planted.skip_lock(), planted.skip_dedupe():
        command = planted.command(*program)
    assert command[2:4] == ["mainstem.testing.planted", "skip_lock,skip_dedupe"]
    child = subprocess.run(command, capture_output=True, check=False, text=True)
    assert child.returncode == 0, child.stderr
    assert "usage" in child.stdout
