"""Bytes that come in pieces and are wanted as one."""

from typing import Any

import pyarrow as pa

from mainstem.core.batch import Buffer


class Gathering:
    """The bytes that have come and that nobody is done with. Pieces that lie next to each other in one memory are one
    already and are not copied. One thread."""

    def __init__(self) -> None:
        self._pieces: list[Buffer] = []
        self.size = 0

    def add(self, piece: Buffer) -> None:
        self.size += len(piece)
        last = self._pieces[-1] if self._pieces else None
        together = _together(last, piece) if isinstance(last, memoryview) and isinstance(piece, memoryview) else None
        if together is None:
            self._pieces.append(piece)
        else:
            self._pieces[-1] = together

    def whole(self) -> pa.Buffer:
        """All of them."""
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return pa.py_buffer(self._pieces[0])

    def drop(self, count: int) -> None:
        """The first so many of the whole are done with."""
        (whole,) = self._pieces
        self._pieces = [memoryview(whole)[count:]] if count < self.size else []
        self.size -= count


def _together(first: memoryview, second: memoryview) -> memoryview | None:
    """Both in one, if that is how they lie in memory."""
    memory: Any = first.obj
    if memory is not second.obj or _address(first) + len(first) != _address(second):
        return None
    view = memoryview(memory)
    begin = _address(first) - _address(view)
    return view[begin : begin + len(first) + len(second)]


def _address(view: memoryview) -> int:
    return int(pa.py_buffer(view).address)
