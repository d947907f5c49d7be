"""Pieces that are wanted as one: the same bytes, and not copied where they lie next to each other."""

import random

import numpy as np
import pyarrow as pa

from mainstem.core.gathering import Gathering


def test_pieces_next_to_each_other_are_one_without_a_copy():
    memory = np.arange(100, dtype=np.uint8)
    view = memory.data
    gathering = Gathering()
    for begin, end in ((10, 30), (30, 31), (31, 60)):
        gathering.add(view[begin:end])
    whole = gathering.whole()
    assert (whole.size, gathering.size) == (50, 50)
    assert whole.address == pa.py_buffer(memory).address + 10
    gathering.drop(25)
    gathering.add(view[60:70])
    assert gathering.whole().address == pa.py_buffer(memory).address + 35
    assert gathering.whole().to_pybytes() == bytes(range(35, 70))


def test_others_are_joined():
    memory = memoryview(bytes(range(50)))
    gathering = Gathering()
    # A gap, another memory, and an overlap.
    for piece in (memory[:5], memory[6:10], memoryview(b"other"), memory[10:20], memory[15:20], b"plain"):
        gathering.add(piece)
    found = bytes([*range(5), *range(6, 10)]) + b"other" + bytes([*range(10, 20), *range(15, 20)]) + b"plain"
    assert gathering.whole().to_pybytes() == found


def test_whatever_is_added_and_dropped_is_what_is_left():
    rng = random.Random(5)
    memory = np.frombuffer(rng.randbytes(20_000), np.uint8).data
    for _ in range(100):
        gathering, expected, at = Gathering(), b"", 0
        for _ in range(rng.randint(1, 30)):
            size = rng.randint(0, 50)
            piece = memory[at : at + size] if rng.random() < 0.7 else rng.randbytes(size)
            at += size if isinstance(piece, memoryview) else 0
            gathering.add(piece)
            expected += bytes(piece)
            if rng.random() < 0.3:
                assert gathering.whole().to_pybytes() == expected
                count = rng.randint(0, len(expected))
                gathering.drop(count)
                expected = expected[count:]
            assert gathering.size == len(expected)
        assert gathering.whole().to_pybytes() == expected
