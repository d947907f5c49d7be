"""What was made of something and may be wanted again, kept while there is room for it.

`functools.lru_cache` counts. What is made of schemas is to be weighed: of one of five columns it is a few kilobytes, of
the widest there can be it is megabytes, and whoever may set schemas may set thousands.
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, ParamSpec, TypeVar

from mainstem.core.limits import KEPT_BYTES_MAX

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Asked = ParamSpec("Asked")

_MISSING: Final[Any] = object()
# What anything takes beside its size.
_OVERHEAD_BYTES: Final = 512


class Kept(Generic[Key, Value]):
    """Values by their keys, each with the size that it is said to have. If all of them are over `bytes_max`, those go
    that were not asked for the longest. Any thread."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0

    def get(self, key: Key, default: Value) -> Value:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return default
            self._kept.move_to_end(key)
            return found[0]

    def add(self, key: Key, value: Value, size: int) -> None:
        """Keep a value, unless it alone is too much."""
        size += _OVERHEAD_BYTES
        with self._lock:
            _, before = self._kept.pop(key, (None, 0))
            self._kept[key] = value, size
            self.bytes += size - before
            while self.bytes > self._bytes_max:
                self.bytes -= self._kept.popitem(last=False)[1][1]

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self.bytes = 0


def kept(size_of: Callable[Asked, int]) -> Callable[[Callable[Asked, Value]], Callable[Asked, Value]]:
    """Like `functools.lru_cache`, for functions whose results have about the size that `size_of` says of the arguments,
    which are given by place."""

    def decorate(make: Callable[Asked, Value]) -> Callable[Asked, Value]:
        cache: Kept[Any, Value] = Kept()

        @functools.wraps(make)
        def get(*asked: Asked.args, **named: Asked.kwargs) -> Value:
            found = cache.get(asked, _MISSING)
            if found is _MISSING:
                found = make(*asked, **named)
                cache.add(asked, found, size_of(*asked, **named))
            return found

        return get

    return decorate
