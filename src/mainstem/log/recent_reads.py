"""What was just read from blocks, so that many readers of the same place cost one read.

After Scribe's read proxy: who asks for bytes that somebody is fetching waits for them, and who comes a moment later
gets what was fetched. Bytes that an entry points to never change, so nothing here can be out of date.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable

Place = tuple[int, int, int]


class RecentReads:
    """Bytes by (block, position, length), the most recently used within `bytes_max`. Any thread."""

    def __init__(self, read: Callable[[int, int, int], bytes], bytes_max: int) -> None:
        self._read = read
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[Place, bytes] = OrderedDict()
        # Each is held by who reads.
        self._under_way: dict[Place, threading.Lock] = {}
        self._lock = threading.Lock()

    def read(self, block: int, position: int, length: int) -> bytes:
        """The bytes; what the disk raises is raised to whoever asked it, and the next one asks it again."""
        place = (block, position, length)
        while True:
            with self._lock:
                found = self._kept.get(place)
                if found is not None:
                    self._kept.move_to_end(place)
                    return found
                under_way = self._under_way.get(place)
                if under_way is None:
                    under_way = self._under_way[place] = threading.Lock()
                    under_way.acquire()
                    break
            with under_way:
                pass
        try:
            data = self._read(block, position, length)
            self._keep(place, data)
            return data
        finally:
            with self._lock:
                self._under_way.pop(place).release()

    def _keep(self, place: Place, data: bytes) -> None:
        if len(data) * 2 > self._bytes_max:
            return
        with self._lock:
            self._kept[place] = data
            self._bytes += len(data)
            while self._bytes > self._bytes_max:
                self._bytes -= len(self._kept.popitem(last=False)[1])
