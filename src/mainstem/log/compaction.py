"""Compaction: of every key only the newest record stays. And erasure: of one key none does. Decides only.

Compaction goes through a shard in two steps. First it learns the newest offset of every key in what was written since
the last time, as many keys as memory allows. Then it goes through the whole shard and leaves out every record of which
it knows a newer one of the same key. A record without a value, a tombstone, stays for a while, so that readers learn
that its key is gone; then it goes too. Records without a key stay.
"""

import hashlib
from itertools import repeat
from typing import Final

import numpy as np
import pyarrow as pa

from mainstem.core.limits import KIB
from mainstem.log.replacement import Records

# Keys whose newest offset is remembered at a time; what was written after them waits for the next round.
_KEYS_MAX: Final = 200_000
# A longer key is known by its digest, so that memory is bounded.
_KEY_BYTES: Final = 32
_DIGEST_BYTES: Final = 16
# A shard is compacted when as much was written since as there is of the rest, but not for less than this, unless it
# has waited for long.
_DIRTY_BYTES_MIN: Final = 64 * KIB
DIRTY_SECONDS_MAX: Final = 600.0

_Key = bytes | int


class KeyIndex:
    """The newest offset of every key that was written from one offset to another."""

    def __init__(self, keys_max: int = _KEYS_MAX) -> None:
        self._newest: dict[_Key | None, int] = {}
        self._keys_max = keys_max
        # Everything before this offset, from where learning began, was learnt.
        self.end = 0

    @property
    def is_full(self) -> bool:
        return len(self._newest) >= self._keys_max

    def learn(self, records: Records) -> None:
        self._newest.update(zip(_keys(records), records.offsets.tolist(), strict=True))
        self._newest.pop(None, None)
        self.end = records.stop

    def kept(self, records: Records, tombstones_over: int) -> np.ndarray:
        """Which records stay: no newer one is known, and it is not a tombstone before that offset."""
        newest = self._newest
        count = len(records.offsets)
        # One call of the dictionary for each record; everything else by column.
        known = np.fromiter(map(newest.get, _keys(records), repeat(-1)), np.int64, count)
        kept: np.ndarray = known <= records.offsets
        is_over: np.ndarray = records.offsets < min(tombstones_over, self.end)
        kept &= ~(tombstones(records) & is_over)
        return kept


def tombstones(records: Records) -> np.ndarray:
    """Which records say that their key is gone. Rows never do: what does has no schema."""
    if records.schema_id:
        return np.zeros(len(records.offsets), bool)
    found: np.ndarray = _present(records, "key") & ~_present(records, "value")
    return found


def is_due(dirty_bytes: int, clean_bytes: int, waited_seconds: float) -> bool:
    """Whether a shard should be compacted, of which so many bytes were not yet."""
    if not dirty_bytes:
        return False
    return dirty_bytes >= max(clean_bytes, _DIRTY_BYTES_MIN) or waited_seconds >= DIRTY_SECONDS_MAX


def without_key(records: Records, key: bytes) -> np.ndarray:
    """Which records are not of this key."""
    keys = records.keys
    if keys is None:
        return np.ones(len(records.offsets), bool)
    return np.fromiter((found != key for found in keys.to_pylist()), bool, len(records.offsets))


def _keys(records: Records) -> list[_Key | None]:
    """The key of every record as the index knows it."""
    column = records.keys
    if column is None:
        return [None] * len(records.offsets)
    return [key if key is None or len(key) <= _KEY_BYTES else _digest(key) for key in column.to_pylist()]


def _present(records: Records, name: str) -> np.ndarray:
    column: pa.Array | None = records.columns.get(name)
    if column is None:
        return np.zeros(len(records.offsets), bool)
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), bool)


def _digest(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest(), "little")
