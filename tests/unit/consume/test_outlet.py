"""The outlet: how many pieces a reader took, to the last one."""

import os
import threading

import pytest

from mainstem.consume.outlet import Outlet


@pytest.fixture
def pipe():
    read, write = os.pipe()
    ends = {read, write}
    yield read, write, ends
    for fd in ends:
        os.close(fd)


def close(ends, fd):
    ends.discard(fd)
    os.close(fd)


def test_a_reader_that_stops_after_a_few_pieces(pipe):
    """It asks for far more than a piece each time, as `head` does, and gets one."""
    read, write, ends = pipe
    got: list[bytes] = []

    def reader():
        got.extend(os.read(read, 65_536) for _ in range(3))
        close(ends, read)

    thread = threading.Thread(target=reader)
    thread.start()
    outlet = Outlet(write, exact=True)
    taken = outlet.put([b"%d\n" % number for number in range(1_000)])
    thread.join()
    untaken = 0 if outlet.settle() else 1
    assert got == [b"0\n", b"1\n", b"2\n"]
    assert outlet.is_gone
    assert taken - untaken == 3


def test_a_piece_the_reader_left_half_read_was_not_taken(pipe):
    read, write, ends = pipe
    outlet = Outlet(write, exact=True)
    assert outlet.put([b"piece"]) == 1
    assert os.read(read, 2) == b"pi"
    close(ends, read)
    assert not outlet.settle()


def test_a_long_piece_cut_off_was_not_taken(pipe):
    read, write, ends = pipe
    thread = threading.Thread(target=lambda: (os.read(read, 10_000), close(ends, read)))
    thread.start()
    outlet = Outlet(write, exact=True)
    assert outlet.put([b"x" * 100_000, b"y"]) == 0
    thread.join()


def test_everything_is_taken_by_a_patient_reader(pipe):
    read, write, ends = pipe
    pieces = [os.urandom(size) for size in (1, 4_096, 4_097, 50_000, 0, 7)]
    got = bytearray()

    def reader():
        while data := os.read(read, 1_000):
            got.extend(data)

    thread = threading.Thread(target=reader)
    thread.start()
    outlet = Outlet(write, exact=True)
    assert outlet.put(pieces) == len(pieces)
    assert outlet.settle()
    outlet.close()
    close(ends, write)
    thread.join()
    assert bytes(got) == b"".join(pieces)


def test_a_request_to_stop_is_heard_while_the_reader_sleeps(pipe):
    _, write, _ = pipe
    outlet = Outlet(write, exact=True, stopped=lambda: True)
    assert outlet.put([b"one", b"two"]) == 0


def test_without_exactness_what_was_written_counts(pipe, tmp_path):
    read, write, ends = pipe
    assert Outlet(write).put([b"a", b"b"]) == 2
    assert os.read(read, 10) == b"ab"
    close(ends, read)
    outlet = Outlet(write)
    assert not outlet.look()
    assert outlet.put([b"a"]) == 0
    with (tmp_path / "file").open("wb") as file:
        outlet = Outlet(file.fileno(), exact=True)
        assert not outlet.is_exact
        assert outlet.put([b"a", b"b"]) == 2
        assert outlet.settle()
