"""The checksum chain of SQLite's write-ahead log, verified without SQLite.

SQLite ends a WAL silently at the first frame whose checksum is wrong: one flipped bit drops every later commit, and a
bit flipped in a live WAL is read, and checkpointed, as if it were right. So the chain is verified here before a
checkpoint and at start.

    header, 32 bytes, big-endian: magic 0x377f0682 (checksums over little-endian words) or ...83 (big-endian), version,
        page size, checkpoint number, salt 1, salt 2, checksum (2 words) of the 24 bytes before it
    frame, 24 bytes and a page: page number, size of the database in pages if this frame ends a commit, else 0,
        salt 1, salt 2, checksum (2 words) of everything summed so far, then of this frame's first 8 bytes and its page

The checksum adds two words at a time: s0 += x + s1; s1 += y + s0, modulo 2^32. That is linear: a frame takes the state
s to M s + c, where M depends on the page size only and c is the frame's words weighted with Fibonacci numbers. Each
frame stores the state after it, so all frames are checked at once, each against the one stored before it; the chain is
as long as all of them hold.

What follows the end of the chain is normal or damage:
- frames with other salts are left from before the WAL was last restarted: normal;
- frames with the same salts that end no commit are left from a transaction that was rolled back: normal;
- a frame with the same salts that ends a commit, behind one that does not fit, means that a frame which was there when
  the commit was written is wrong now: damage;
- the frame at the break itself is a write the process did not live to finish, or damage of the very last commit. Only
  who knows how many frames were committed can tell them apart: see `frames_expected`.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mainstem.core.batch import Buffer

HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
_MAGIC: Final = 0x377F0682
_VERSION: Final = 3_007_000
_PAGE_BYTES: Final = frozenset(1 << n for n in range(9, 17))
_CHUNK_BYTES: Final = 512 << 10  # stays in the processor's cache

Words = npt.NDArray[np.uint32]
State = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WalReport:
    """What a WAL file holds."""

    last_commit_frame: int  # how many frames there are up to the last commit in the chain; 0 without one
    damaged_at: int | None  # the position of the frame (0: the header) that is wrong and should not be
    has_restarted: bool = False  # over the frames of the one before, all of which were then in the database file


def verify(source: str | os.PathLike[str] | Buffer, frames_expected: int | None = None) -> WalReport:
    """Verify the WAL in a file, or in memory. A file that is not there is an empty WAL.

    `frames_expected` is the number of frames SQLite says are committed (its WAL hook and its checkpoint say so): fewer
    than that is damage. Nobody may write to the WAL meanwhile.
    """
    if not isinstance(source, str | os.PathLike):
        return _verify(_Memory(source), frames_expected)
    try:
        descriptor = os.open(Path(source), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return _verify(_Memory(b""), frames_expected)
    try:
        return _verify(_File(descriptor), frames_expected)
    finally:
        os.close(descriptor)


def read_header(path: Path) -> bytes:
    """The first bytes of a WAL, which change when it begins anew; none if they are not a header."""
    try:
        with path.open("rb") as file:
            raw = file.read(HEADER_BYTES)
    except FileNotFoundError:
        return b""
    return raw if _parse_header(raw) is not None else b""


class _Memory:
    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data).cast("B")

    def read(self, position: int, length: int) -> Buffer:
        return self._view[position : position + length]


class _File:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, position: int, length: int) -> Buffer:
        pieces = []
        while length and (piece := os.pread(self._descriptor, length, position)):
            pieces.append(piece)
            position, length = position + len(piece), length - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@dataclass(frozen=True, slots=True)
class _Header:
    page_bytes: int
    salts: State
    checksum: State
    order: str  # numpy's letter for the byte order of the words that are summed

    @property
    def frame_bytes(self) -> int:
        return FRAME_HEADER_BYTES + self.page_bytes


def _verify(source: _Memory | _File, frames_expected: int | None) -> WalReport:
    raw = source.read(0, HEADER_BYTES)
    header = _parse_header(raw)
    if header is None:
        # Less than a header is a WAL that nothing was committed to; a whole one was valid when it was written.
        damaged = len(raw) == HEADER_BYTES or bool(frames_expected)
        return WalReport(0, 0 if damaged else None)
    chain = _Chain(header)
    for frames in _read_frames(source, header):
        chain.add(frames)
    return chain.report(frames_expected)


def _parse_header(raw: Buffer) -> _Header | None:
    if len(raw) < HEADER_BYTES:
        return None
    magic, version, page_bytes, _, salt1, salt2, sum0, sum1 = np.frombuffer(raw, ">u4").tolist()
    if magic & ~1 != _MAGIC or version != _VERSION or page_bytes not in _PAGE_BYTES:
        return None
    order = ">" if magic & 1 else "<"
    words = np.frombuffer(raw, order + "u4", 6).astype(np.uint32)
    if _contributions(words[None, :], _weights(6))[0].tolist() != [sum0, sum1]:
        return None
    return _Header(page_bytes, (salt1, salt2), (sum0, sum1), order)


def _read_frames(source: _Memory | _File, header: _Header) -> Iterator[npt.NDArray[Any]]:
    """Whole frames as rows of words, as they lie in the file, some at a time."""
    first, size = 0, header.frame_bytes
    at_once = max(1, _CHUNK_BYTES // size)
    while True:
        data = source.read(HEADER_BYTES + first * size, at_once * size)
        count = len(data) // size
        if count:
            yield np.frombuffer(data, ">u4", count * size // 4).reshape(count, size // 4)
        if count < at_once:
            return
        first += count


class _Chain:
    """The chain as far as it has been followed. After its end, a search for commits that should have been in it."""

    def __init__(self, header: _Header) -> None:
        self._header = header
        self._checksum = header.checksum  # after the last frame in the chain
        self._frames = 0  # in the chain
        self._committed = 0  # up to the last commit in the chain
        self._is_ended = False
        self._has_lost_commit = False  # a commit with this WAL's salts lies behind the break
        self._has_restarted = False  # frames of the WAL before this one lie behind its own

    def add(self, frames: npt.NDArray[Any]) -> None:
        """The next frames of the file, whether they belong to the chain or not."""
        is_ours = (frames[:, 2] == self._header.salts[0]) & (frames[:, 3] == self._header.salts[1])
        commits = frames[:, 1].astype(np.int64)
        # A WAL begins anew with the first salt plus 1, and only when a checkpoint was complete and synced.
        self._has_restarted |= bool((frames[:, 2] == (self._header.salts[0] - 1) % (1 << 32)).any())
        if not self._is_ended:
            valid = self._follow(frames, is_ours, commits)
            if valid == len(frames):
                return
            self._is_ended = True
            is_ours, commits = is_ours[valid + 1 :], commits[valid + 1 :]
        self._has_lost_commit |= bool((is_ours & (commits != 0)).any())

    def _follow(self, frames: npt.NDArray[Any], is_ours: npt.NDArray[np.bool_], commits: npt.NDArray[np.int64]) -> int:
        """Add the frames that continue the chain; return how many."""
        stored = frames[:, 4:6].astype(np.uint32)
        before = np.vstack([np.array([self._checksum], np.uint32), stored[:-1]])
        holds = is_ours & (frames[:, 0] != 0) & (_after(before, frames, self._header) == stored).all(axis=1)
        valid = len(holds) if holds.all() else int(holds.argmin())
        if valid:
            self._checksum = _pair(stored[valid - 1])
        ends = np.flatnonzero(commits[:valid])
        if len(ends):
            self._committed = self._frames + int(ends[-1]) + 1
        self._frames += valid
        return valid

    def report(self, frames_expected: int | None) -> WalReport:
        position = HEADER_BYTES + self._frames * self._header.frame_bytes
        is_short = frames_expected is not None and self._committed < frames_expected
        damaged_at = position if self._has_lost_commit or is_short else None
        return WalReport(self._committed, damaged_at, self._has_restarted)


def _pair(words: Words) -> State:
    return int(words[0]), int(words[1])


def _after(before: Words, frames: npt.NDArray[Any], header: _Header) -> Words:
    """The checksum after each frame, given the one before it."""
    words = frames.view(header.order + "u4").astype(np.uint32, copy=False)
    step, weights = _frame_weights(header.page_bytes)
    return _contributions(words, weights) + _contributions(before, step)


def _contributions(words: Words, weights: tuple[Words, Words]) -> Words:
    # einsum is the fastest of numpy's integer products, and wraps at 2^32 as the checksum does.
    return np.stack([np.einsum("ij,j->i", words, weight) for weight in weights], axis=1)


@lru_cache(maxsize=16)
def _weights(words: int) -> tuple[Words, Words]:
    """What each of an even number of words is multiplied with in s0 and in s1, when the sum starts at 0.

    With k pairs after it, the pair (x, y) adds F(2k+1) x + F(2k) y to s0 and F(2k+2) x + F(2k+1) y to s1.
    """
    falling = np.array(_fibonacci(words)[::-1], np.uint32)
    return falling[1:].copy(), falling[:-1].copy()


@lru_cache(maxsize=16)
def _frame_weights(page_bytes: int) -> tuple[tuple[Words, Words], tuple[Words, Words]]:
    """For the state before a frame, and for the frame's words; its salts and its stored checksum have no weight."""
    summed = (8 + page_bytes) // 4
    # The state before is carried over n pairs of words by [[F(2n-1), F(2n)], [F(2n), F(2n+1)]].
    last = _fibonacci(summed + 1)[-3:]
    step = np.array(last[:2], np.uint32), np.array(last[1:], np.uint32)
    gap = np.zeros(4, np.uint32)
    s0, s1 = (np.concatenate([weight[:2], gap, weight[2:]]) for weight in _weights(summed))
    return step, (s0, s1)


def _fibonacci(last: int) -> list[int]:
    """F(0) to F(last), modulo 2^32."""
    numbers = [0, 1]
    while len(numbers) <= last:
        numbers.append((numbers[-1] + numbers[-2]) & 0xFFFFFFFF)
    return numbers
