"""The heap of the C library: how much of what was freed a process keeps for itself."""

import ctypes
from typing import Final

from mainstem.core.limits import MIB

# Parameters of mallopt, as glibc numbers them.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
# The largest piece that comes from the heap, which is also the most that glibc allows, and how much of the heap's end
# may be free before it is given back.
_PIECE_BYTES_MAX: Final = 32 * MIB
_KEPT_BYTES_MAX: Final = 64 * MIB
# Heaps: glibc makes up to eight for every core, each of which keeps what was freed in it, also in its middle.
_HEAPS_MAX: Final = 2


def keep_freed_memory() -> None:
    """Have this process use memory again that it has freed, instead of giving it back and asking for other.

    Messages of megabytes come and go hundreds of times a second. Each time the kernel finds and clears their pages
    anew, which was a fifth of a server's CPU when it takes rows in bulk. Only for processes that are ours: servers, and
    workers of Spark. Where there is no glibc nothing is done.

    What is kept can be as much as was ever used at one time; see `give_back_freed_memory`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, _HEAPS_MAX)
        mallopt(_MMAP_THRESHOLD, _PIECE_BYTES_MAX)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES_MAX)


def give_back_freed_memory() -> None:
    """Give all of it to the kernel. 10 ms for 100 MiB, in which threads wait that need memory."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
