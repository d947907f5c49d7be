"""The low watermark of a reader: a time before which nothing will come any more.

It follows from three things that are known of all shards together: the frontier of an ordering, for who is behind; what
the log says is settled, for who has read everything; and between the two a *mark*: where the shards ended at a time
that was settled then. Whoever has passed a mark has everything from before its time. A shard to which nothing is
written holds nothing up, because what is settled is settled for all shards.
"""

from collections.abc import Callable, Sequence


class Watermark:
    """How far the time of one reader has come, in microseconds since 1970; 0 before anything is known. One thread."""

    def __init__(self) -> None:
        self.time_us = 0
        # The time and the ends that the reader has not passed yet.
        self._mark: tuple[int, Sequence[int]] | None = None

    def look(
        self,
        frontier_us: int,
        has_passed: Callable[[Sequence[int]], bool],
        settled: Callable[[], tuple[int, Sequence[int]]],
    ) -> int:
        """Where it stands now. `has_passed` says whether the reader has everything before these offsets, `settled` up
        to which time, and to which offsets, everything can be read."""
        found = frontier_us
        if self._mark is None or has_passed(self._mark[1]):
            found = max(found, self._mark[0] if self._mark else 0)
            self._mark = settled()
            if has_passed(self._mark[1]):
                found = max(found, self._mark[0])
                self._mark = None
        self.time_us = max(self.time_us, found)
        return self.time_us
