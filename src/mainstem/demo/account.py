"""What was acknowledged and what was read, as rows of numbers, and the comparison of the two."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

# One record: where it stands, who wrote it, which of that writer's records in the stream it is, its checksum; of an
# order also when it was sent, and for how much.
ROW: Final = np.dtype(
    [
        ("stream", "u1"),
        ("known", "u1"),
        ("shard", "<u2"),
        ("writer", "<u2"),
        ("crc", "<u4"),
        ("offset", "<u8"),
        ("number", "<u8"),
        ("time_us", "<u8"),
        ("cents", "<u4"),
    ]
)
Rows = npt.NDArray[Any]
_Keys = npt.NDArray[np.uint64]


class Fault(StrEnum):
    """What can be wrong with records that were read back."""

    MISSING = "missing"
    DOUBLED = "doubled"
    SWAPPED = "swapped"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Finding:
    """How often something is wrong, and the first place."""

    fault: Fault
    count: int
    example: str

    def __str__(self) -> str:
        return f"{self.count:,} {'record is' if self.count == 1 else 'records are'} {self.fault.value}: {self.example}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a comparison. `unsure` were sent, never answered, and are there all the same: allowed."""

    acknowledged: int
    read: int
    unsure: int
    findings: tuple[Finding, ...]

    @property
    def is_good(self) -> bool:
        return not self.findings


def compare(acknowledged: Rows, read: Rows, streams: Sequence[str]) -> Verdict:
    """Whether every acknowledged record was read, once, unchanged, and each writer's records in the order it sent them.

    `read` has the rows in the order they were read.
    """
    sure = acknowledged[acknowledged["known"] == 1]
    findings = [
        _missing(sure, read, streams),
        _doubled(read, streams),
        _swapped(read, streams),
        _changed(sure, read, streams),
    ]
    unsure = int(np.count_nonzero(~np.isin(_identity(read), _identity(sure))))
    return Verdict(len(sure), len(read), unsure, tuple(found for found in findings if found is not None))


def plant(read: Rows, fault: Fault) -> Rows:
    """What was read, with one fault in the middle; unchanged if there is too little to break."""
    lanes = _lane(read)
    middle = len(read) // 2
    lane = np.flatnonzero(lanes == lanes[middle]) if len(read) else lanes
    if len(lane) < 2:
        return read
    if fault is Fault.MISSING:
        return np.delete(read, middle)
    if fault is Fault.DOUBLED:
        return np.insert(read, middle, read[middle])
    broken = read.copy()
    if fault is Fault.CHANGED:
        broken["crc"][middle] ^= 1
        return broken
    # Two records of one writer in one shard, next to each other.
    place = len(lane) // 2
    first, second = lane[place - 1], lane[place]
    broken[[first, second]] = broken[[second, first]]
    return broken


def found_again(rows: Rows, read: Rows) -> npt.NDArray[np.bool_]:
    """Which of these were read."""
    return np.isin(_identity(rows), _identity(read))


def _missing(sure: Rows, read: Rows, streams: Sequence[str]) -> Finding | None:
    return _finding(Fault.MISSING, sure[~found_again(sure, read)], streams, "acknowledged, not there")


def _doubled(read: Rows, streams: Sequence[str]) -> Finding | None:
    _, first = np.unique(_identity(read), return_index=True)
    again = np.ones(len(read), dtype=bool)
    again[first] = False
    return _finding(Fault.DOUBLED, read[again], streams, "read more than once")


def _swapped(read: Rows, streams: Sequence[str]) -> Finding | None:
    """Within one lane (a writer in a shard) the numbers must rise."""
    order = np.argsort(_lane(read), kind="stable")
    rows = read[order]
    lanes = _lane(rows)
    falls = (lanes[1:] == lanes[:-1]) & (rows["number"][1:] < rows["number"][:-1])
    return _finding(Fault.SWAPPED, rows[1:][falls], streams, "read after a later one of the same writer")


def _changed(sure: Rows, read: Rows, streams: Sequence[str]) -> Finding | None:
    """The same record at another place, or with other bytes, than was acknowledged."""
    keys, where = np.unique(_identity(read), return_index=True)
    if not len(keys):
        return None
    found = np.minimum(np.searchsorted(keys, _identity(sure)), len(keys) - 1)
    there = keys[found] == _identity(sure)
    seen, told = read[where[found[there]]], sure[there]
    differs = (seen["crc"] != told["crc"]) | (seen["offset"] != told["offset"]) | (seen["shard"] != told["shard"])
    return _finding(Fault.CHANGED, told[differs], streams, "not what was acknowledged")


def _finding(fault: Fault, rows: Rows, streams: Sequence[str], what: str) -> Finding | None:
    if not len(rows):
        return None
    row = rows[0]
    example = (
        f"{streams[row['stream']]} shard {row['shard']} offset {row['offset']} "
        f"(number {row['number']} of producer {row['writer']}), {what}"
    )
    return Finding(fault, len(rows), example)


def _identity(rows: Rows) -> _Keys:
    """Stream, writer and number in one number."""
    return (_packed(rows, "writer") << np.uint64(40)) | rows["number"].astype(np.uint64)


def _lane(rows: Rows) -> _Keys:
    """Stream, shard and writer in one number."""
    return (_packed(rows, "shard") << np.uint64(16)) | rows["writer"].astype(np.uint64)


def _packed(rows: Rows, field: str) -> _Keys:
    stream: _Keys = rows["stream"].astype(np.uint64)
    return (stream << np.uint64(16)) | rows[field].astype(np.uint64)
