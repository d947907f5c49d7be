"""The log as a whole: what it says of streams it does not have, and to those who read while it closes."""

import threading

import pytest

from mainstem.core.errors import Closed
from mainstem.log.log import Log, LogOptions, unknown_stream
from tests.unit.log.parts import append_values, make_stream


@pytest.mark.parametrize("name", ["orders", "a.b-c_d", "x" * 249])
def test_an_unknown_stream_is_told_with_the_command_that_makes_it(name):
    assert str(unknown_stream(name)).endswith(f"create it: mainstem stream create {name}")


@pytest.mark.parametrize("name", ["$(reboot)", "a\nb", "", "..", "_own", "x" * 600_000])
def test_what_cannot_be_a_stream_gets_no_command(name):
    said = str(unknown_stream(name))
    assert "create" not in said
    assert len(said) < 200


def test_who_reads_while_the_log_closes_is_told(tmp_path):
    """Not that SQLite lost its connection, and no file is opened again."""
    log = Log(tmp_path / "data", LogOptions(hot_tail_bytes=0))
    stream = make_stream(log)
    for _ in range(20):
        append_values(log, stream, b"x" * 1_000)
    row = log.reader.require_stream(stream)
    reads, errors = threading.Event(), []

    def read() -> None:
        try:
            while True:
                assert log.reader.read(row, 0, 3)
                reads.set()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert reads.wait(5)
    log.close()
    for thread in threads:
        thread.join(5)
    assert [type(error) for error in errors] == [Closed] * 3
    with pytest.raises(Closed):
        log._folder.blocks.read(1, 0, 64)
