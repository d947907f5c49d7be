"""Order across shards: how far each shard may be read before the others have come further.

The log notes *moments*: where the shards of a stream ended at a time (log/ledger/rules/moments.py). They cut the stream
into segments; the records of a segment were stored at its moment or later, and within MOMENT_US_MAX of it. A shard
without records between two moments stands at both, so an idle shard is no puzzle: the moments say that it is idle.

The *frontier* is the last moment that every shard has passed: nothing that is still to come is older. From it follows
where each shard must stop:

    window      a shard may be read up to the last moment that is no more than the window after the frontier, and
                always to the end of the segment that follows the frontier. As no segment is longer than the smallest
                window, no record comes after one that is newer by more than the window.
    sequence    of the segment that follows the frontier, shard 0 is read to its end, then shard 1, and so on. What has
                no moment behind it yet has no place in the order, and waits.

Neither asks where anything is stored, so the order is the same before and after upkeep has merged or compacted it. Both
are state machines without I/O but for the moments they ask for, which never change.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Final, Protocol

from mainstem.core.batch import TIME_US_MAX
from mainstem.core.limits import MOMENT_US_MAX, WINDOW_US_MIN
from mainstem.log.ledger.base import MomentRow

# Moments that are loaded at a time.
_AHEAD: Final = 16


class Timeline(Protocol):
    """The moments of one stream. What is there once never changes; new ones come at the end."""

    def after(self, time_us: int, limit: int) -> Sequence[MomentRow]:
        """The first of them after a time, the oldest first."""
        ...

    def before(self, time_us: int) -> MomentRow | None:
        """The last of them before a time."""
        ...


class Ordering:
    """What one reader may get of each shard now. One thread; `held` for any.

    `move` is told where the reader stands, `look` asks for new moments: whoever has found a record looks before letting
    it through, because the moment before it may be new.
    """

    def __init__(self, timeline: Timeline, offsets: Sequence[int], is_done: Callable[[int], bool]) -> None:
        self._timeline = timeline
        # Whether nothing more is wanted of a shard.
        self._is_done = is_done
        self._frontier = self._find(offsets)
        # The first moments behind the frontier, as far as they were asked for; all that follow, if it is empty.
        self._ahead: deque[MomentRow] = deque()
        # Shards that have to wait where they stand.
        self.held: tuple[int, ...] = ()
        self._load()
        self.move(offsets)

    @property
    def frontier_us(self) -> int:
        """Nothing that is still to come was stored before this time; 0 if nothing is known."""
        return 0 if self._frontier is None else self._frontier.time_us

    def stop(self, shard: int) -> int | None:
        """The shard may be read to before this offset; None: as far as it goes."""
        raise NotImplementedError

    def hold(self, shard: int) -> None:
        self.held = (*self.held, shard)

    def freed(self, offsets: Sequence[int]) -> list[int]:
        """Shards that need not wait any longer."""
        free = [shard for shard in self.held if not self.holds(shard, offsets[shard])]
        if free:
            self.held = tuple(shard for shard in self.held if shard not in free)
        return free

    def holds(self, shard: int, offset: int) -> bool:
        stop = self.stop(shard)
        return stop is not None and offset >= stop

    def look(self, offsets: Sequence[int]) -> None:
        """See whether there is a moment behind the last that is known, if the shards may go on to there."""
        if not self._ahead:
            self._load()
        self.move(offsets)

    def move(self, offsets: Sequence[int]) -> None:
        """The reader stands at these offsets."""
        while self._ahead and self._is_passed(self._ahead[0], offsets):
            self._frontier = self._ahead.popleft()
            if not self._ahead:
                self._load()
        self._set_stops(offsets)

    @property
    def shards(self) -> int:
        """How many shards the stream had, at least, when what comes next was stored."""
        return len(self._ahead[0].ends) if self._ahead else 0

    def _set_stops(self, offsets: Sequence[int]) -> None:
        """Work out where the shards must stop now."""
        raise NotImplementedError

    def _load(self) -> None:
        self._ahead.extend(self._timeline.after(self.frontier_us, _AHEAD))

    def _is_passed(self, moment: MomentRow, offsets: Sequence[int]) -> bool:
        return self._first_before(moment, offsets) is None

    def _first_before(self, moment: MomentRow, offsets: Sequence[int]) -> int | None:
        """The first shard that has not come to this moment; None if all have. One that the reader does not know yet
        begins at 0."""
        pairs = enumerate(zip_longest(offsets, moment.ends, fillvalue=0))
        return next((shard for shard, (at, end) in pairs if at < end and not self._is_done(shard)), None)

    def _find(self, offsets: Sequence[int]) -> MomentRow | None:
        """The last moment that a reader at these offsets has passed, by bisection: there may be years of them."""
        found = None
        oldest, newest = self._timeline.after(0, 1), self._timeline.before(TIME_US_MAX)
        if not oldest or newest is None:
            return None
        low, high = oldest[0].time_us, newest.time_us + 1
        while low < high:
            middle = (low + high) // 2
            moment = self._timeline.before(middle + 1)
            if moment is None or self._is_passed(moment, offsets):
                found, low = moment, middle + 1
            else:
                high = moment.time_us
        return found


class Window(Ordering):
    """Shards come no further apart than `window_us`."""

    def __init__(
        self, timeline: Timeline, offsets: Sequence[int], is_done: Callable[[int], bool], window_us: int
    ) -> None:
        assert window_us >= WINDOW_US_MIN
        self._window_us = window_us
        # Where the shards must stop, and the frontier from which that follows; None where they need not, for now.
        self._limit: MomentRow | None = None
        self._limit_of: MomentRow | None = None
        super().__init__(timeline, offsets, is_done)

    def stop(self, shard: int) -> int | None:
        if self._limit is None:
            return None
        return self._limit.ends[shard] if shard < len(self._limit.ends) else 0

    def _set_stops(self, offsets: Sequence[int]) -> None:
        if not self._ahead:
            self._limit = None
        elif self._limit is None or self._limit_of is not self._frontier:
            self._limit, self._limit_of = self._furthest(), self._frontier

    def _furthest(self) -> MomentRow | None:
        following = self._ahead[0]
        if self._frontier is None:
            # When what stands before the first moment was stored, nobody knows.
            return following
        until_us = self._frontier.time_us + self._window_us
        within = self._timeline.before(until_us + 1)
        limit = following if within is None or within.time_us <= following.time_us else within
        is_last = limit.time_us + MOMENT_US_MAX <= until_us and not self._timeline.after(limit.time_us, 1)
        return None if is_last else limit


class Sequenced(Ordering):
    """One order: segment by segment, and in each shard by shard."""

    def __init__(self, timeline: Timeline, offsets: Sequence[int], is_done: Callable[[int], bool]) -> None:
        # The only one that may be read; None if what comes next has no place in the order yet.
        self._shard: int | None = None
        super().__init__(timeline, offsets, is_done)

    def stop(self, shard: int) -> int | None:
        return self._ahead[0].ends[shard] if shard == self._shard else 0

    def _set_stops(self, offsets: Sequence[int]) -> None:
        self._shard = self._first_before(self._ahead[0], offsets) if self._ahead else None
