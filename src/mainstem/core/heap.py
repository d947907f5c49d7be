"""The heap of the C library: how much of what was freed a process keeps for itself."""

import ctypes
from typing import Final

from mainstem.core.limits import MIB

# Parameters of mallopt, as glibc numbers them.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
# The largest piece that comes from the heap, which is also the most that glibc allows, and how much of the heap's end
# may be free before it is given back.
_PIECE_BYTES_MAX: Final = 32 * MIB
_KEPT_BYTES_MAX: Final = 64 * MIB


def keep_freed_memory() -> None:
    """Have this process use memory again that it has freed, instead of giving it back and asking for other.

    Messages of megabytes come and go hundreds of times a second. Each time the kernel finds and clears their pages
    anew, which was a fifth of a server's CPU when it takes rows in bulk. Only for processes that are ours: servers, and
    workers of Spark. Where there is no glibc nothing is done.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _PIECE_BYTES_MAX)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES_MAX)
