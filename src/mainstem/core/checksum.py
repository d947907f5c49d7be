"""crc32c of any buffer."""

from google_crc32c import value

from mainstem.core.batch import Buffer


def crc32c(data: Buffer) -> int:
    """The checksum of `data`. google-crc32c takes only `bytes`; other buffers are copied, at memory speed."""
    return int(value(data if type(data) is bytes else bytes(data)))
