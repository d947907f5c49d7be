"""What batches were turned into, so that many readers who want the same cost one turning.

After Scribe's read proxy, which turns rows into columns once for all readers of a region. What a batch becomes depends
on its bytes and on what is asked; both are in the key, so nothing here can be out of date.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

from mainstem.core.batch import FetchedBatch
from mainstem.core.limits import BATCH_OVERHEAD_BYTES

Key = tuple[Hashable, ...]


# What is left of a batch.
Selected = Sequence[FetchedBatch]


class Transcoded:
    """Batches by what they were made of, the most recently used within `bytes_max`. Any thread.

    Who asks for what another thread is making waits for it.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[Key, Selected] = OrderedDict()
        self._under_way: dict[Key, threading.Event] = {}
        self._lock = threading.Lock()
        # How often something was made, and how often it was there already.
        self.made = 0
        self.shared = 0

    def get(self, key: Key, make: Callable[[], Selected]) -> Selected:
        """What is kept under this key, else what `make` makes; if that raises, the next one who asks tries again."""
        while True:
            with self._lock:
                found = self._kept.get(key)
                if found is not None:
                    self._kept.move_to_end(key)
                    self.shared += 1
                    return found
                arrived = self._under_way.get(key)
                if arrived is None:
                    self._under_way[key] = threading.Event()
                    break
            arrived.wait()
        try:
            made = make()
            self._keep(key, made)
            return made
        finally:
            with self._lock:
                self._under_way.pop(key).set()

    def _keep(self, key: Key, made: Selected) -> None:
        size = _bytes(made)
        with self._lock:
            self.made += 1
            if size * 2 > self._bytes_max:
                return
            self._kept[key] = made
            self._bytes += size
            while self._bytes > self._bytes_max:
                self._bytes -= _bytes(self._kept.popitem(last=False)[1])

    @property
    def bytes(self) -> int:
        return self._bytes


def _bytes(made: Selected) -> int:
    return BATCH_OVERHEAD_BYTES + sum(len(batch.payload) + BATCH_OVERHEAD_BYTES for batch in made)
