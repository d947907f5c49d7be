"""Heads of requests, which come before anybody knows who asks: how much of them is kept, and how much is read."""

import re
from typing import Final

import h11
from h11._receivebuffer import ReceiveBuffer

from mainstem.core.limits import HTTP_HEAD_BYTES_MAX, HTTP_HEAD_LINES_MAX, HTTP_HEADS_BYTES_MAX

_END: Final = re.compile(rb"\n\r?\n")


class HeadBudget:
    """What unfinished heads hold together, beyond a small share each. The loop's thread."""

    def __init__(self, bytes_max: int = HTTP_HEADS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.used = 0

    def change(self, before: int, after: int) -> bool:
        """Whether somebody who had `before` bytes has `after` now."""
        if after > before and self.used + after - before > self._bytes_max:
            return False
        self.used += after - before
        return True


class HeadBuffer(ReceiveBuffer):
    """What h11 has received, and of which it makes no head that is too large. By itself it minds that only while a head
    is not complete, and every line of a few bytes becomes objects of some hundred."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        end = _END.search(self._data, self._multiple_lines_search)
        if end is not None and (
            end.end() > HTTP_HEAD_BYTES_MAX or self._data.count(b"\n", 0, end.end()) > HTTP_HEAD_LINES_MAX
        ):
            raise h11.RemoteProtocolError("a head that is too large", error_status_hint=431)
        return super().maybe_extract_lines()
