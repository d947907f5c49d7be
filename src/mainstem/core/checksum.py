"""crc32c of any buffer."""

from google_crc32c import extend, value

from mainstem.core.batch import Buffer


def crc32c(data: Buffer) -> int:
    """The checksum of `data`. google-crc32c takes only `bytes`; other buffers are copied, at memory speed."""
    return int(value(data if type(data) is bytes else bytes(data)))


def crc32c_extended(before: int, data: bytes) -> int:
    """The checksum of what `before` is the checksum of, followed by `data`; 0 is that of nothing."""
    return int(extend(before, data))
