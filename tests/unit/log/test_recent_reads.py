"""Many readers of one place: one read; what fails is tried again; memory is bounded."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mainstem.log.recent_reads import RecentReads


class Blocks:
    """Gives bytes that say where they are from, when it is let."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.go = threading.Event()
        self.go.set()
        self.failures: list[Exception] = []

    def read(self, block: int, position: int, length: int) -> bytes:
        self.asked.append((block, position, length))
        assert self.go.wait(10)
        if self.failures:
            raise self.failures.pop()
        return b"%d %d" % (block, position) + bytes(length)


def test_twenty_at_once_are_one_read():
    blocks = Blocks()
    blocks.go.clear()
    reads = RecentReads(blocks.read, 1_000)
    with ThreadPoolExecutor(20) as pool:
        found = [pool.submit(reads.read, 1, 2, 3) for _ in range(20)]
        while not blocks.asked:
            pass
        blocks.go.set()
        assert {one.result(10) for one in found} == {b"1 2\0\0\0"}
    assert blocks.asked == [(1, 2, 3)]
    assert reads.read(1, 2, 3) == b"1 2\0\0\0"
    assert len(blocks.asked) == 1


def test_what_was_not_used_for_longest_goes_first():
    blocks = Blocks()
    reads = RecentReads(blocks.read, 1_000)
    for position in (1, 2, 3):
        reads.read(1, position, 300)
    reads.read(1, 1, 300)
    reads.read(1, 4, 300)
    before = len(blocks.asked)
    reads.read(1, 1, 300)
    reads.read(1, 4, 300)
    assert len(blocks.asked) == before
    reads.read(1, 2, 300)
    assert len(blocks.asked) == before + 1


def test_what_would_fill_it_is_passed_on_and_not_kept():
    blocks = Blocks()
    reads = RecentReads(blocks.read, 1_000)
    reads.read(1, 0, 600)
    reads.read(1, 0, 600)
    assert len(blocks.asked) == 2


def test_a_read_that_fails_is_raised_once_and_tried_again():
    blocks = Blocks()
    blocks.failures = [OSError("broken")]
    reads = RecentReads(blocks.read, 1_000)
    with pytest.raises(OSError, match="broken"):
        reads.read(1, 0, 10)
    assert bytes(reads.read(1, 0, 10)).startswith(b"1 0")
