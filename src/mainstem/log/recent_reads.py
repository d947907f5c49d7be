"""What was just read from blocks, so that many readers of the same place cost one read.

After Scribe's read proxy: who asks for bytes that somebody is fetching waits for them, and who comes a moment later
gets what was fetched. Bytes that an entry points to never change, so nothing here can be out of date.
"""

import bisect
import threading
from collections import OrderedDict
from collections.abc import Callable

from mainstem.core.batch import Buffer

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

    def read(self, block: int, position: int, length: int) -> Buffer:
        """The bytes; what the disk raises is raised to whoever asked it, and the next one asks it again."""
        place = (block, position, length)
        while True:
            with self._lock:
                found = self._find(place)
                if found is not None:
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

    def _find(self, place: Place) -> Buffer | None:
        found = self._kept.get(place)
        if found is not None:
            self._kept.move_to_end(place)
        return found

    def _keep(self, place: Place, data: bytes) -> None:
        if len(data) * 2 > self._bytes_max:
            return
        with self._lock:
            self._add(place, data)
            while self._bytes > self._bytes_max:
                self._drop(next(iter(self._kept)))

    def _add(self, place: Place, data: bytes) -> None:
        self._kept[place] = data
        self._bytes += len(data)

    def _drop(self, place: Place) -> None:
        self._bytes -= len(self._kept.pop(place))


class RecentBytes(RecentReads):
    """The same where it is the bytes of the block themselves that are kept: who wants a part of them gets it too."""

    def __init__(self, read: Callable[[int, int, int], bytes], bytes_max: int) -> None:
        super().__init__(read, bytes_max)
        # Of each block, (position, length) of what is kept, ascending.
        self._places: dict[int, list[tuple[int, int]]] = {}

    def known(self, block: int, position: int) -> int:
        """How many bytes from `position` on are there without a read, in one piece."""
        with self._lock:
            place = self._holding(block, position)
            return 0 if place is None else place[1] + place[2] - position

    def _holding(self, block: int, position: int) -> Place | None:
        """What is kept and holds this position; of several, the one that begins last."""
        places = self._places.get(block, [])
        index = bisect.bisect_left(places, (position + 1, 0)) - 1
        if index < 0 or places[index][0] + places[index][1] <= position:
            return None
        return (block, *places[index])

    def _find(self, place: Place) -> Buffer | None:
        found = super()._find(place)
        if found is not None:
            return found
        block, position, length = place
        whole = self._holding(block, position)
        if whole is None or whole[1] + whole[2] < position + length:
            return None
        self._kept.move_to_end(whole)
        at = position - whole[1]
        return memoryview(self._kept[whole])[at : at + length]

    def _add(self, place: Place, data: bytes) -> None:
        super()._add(place, data)
        bisect.insort(self._places.setdefault(place[0], []), place[1:])

    def _drop(self, place: Place) -> None:
        super()._drop(place)
        places = self._places[place[0]]
        del places[bisect.bisect_left(places, place[1:])]
        if not places:
            del self._places[place[0]]
