"""crc32c of any buffer."""

from typing import Final

import numpy as np
from google_crc32c import extend, value

from mainstem.core.batch import Buffer

# From this size on a copy costs more than a way around it: fresh memory is slow.
_COPIED_BYTES_MAX: Final = 16 << 10


def crc32c(data: Buffer) -> int:
    """The checksum of `data`. google-crc32c takes only `bytes` and arrays; other buffers are shown to it as an array,
    small ones copied."""
    if type(data) is bytes:
        return int(value(data))
    if len(data) <= _COPIED_BYTES_MAX or not memoryview(data).c_contiguous:
        return int(value(bytes(data)))
    return int(value(np.frombuffer(data, np.uint8)))


def crc32c_extended(before: int, data: Buffer) -> int:
    """The checksum of what `before` is the checksum of, followed by `data`; 0 is that of nothing."""
    if type(data) is bytes:
        return int(extend(before, data))
    if len(data) <= _COPIED_BYTES_MAX or not memoryview(data).c_contiguous:
        return int(extend(before, bytes(data)))
    return int(extend(before, np.frombuffer(data, np.uint8)))
