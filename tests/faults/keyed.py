"""What was written of every key, and what each reader was given of it: the model for suites in which keys move.

A record says its name and its number: of one name they are written in the order 0, 1, 2, ... by one producer. A name is
the record's key, unless it begins with "loose": those have no key, and no order. Whatever else happens, a reader must
get the records of a name in their order, none of them twice, and all that were acknowledged and not erased.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Place = tuple[int, int]
LOOSE = "loose"
_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class Filter:
    """A predicate, and what it means. `chooses` gets the name, the number and the place of a record."""

    where: str
    chooses: Callable[[str, int, Place], bool]


@dataclass(slots=True)
class Written:
    """What producers did. Any thread, but each name is one thread's."""

    # How many of each name were sent: their numbers are those below.
    counts: dict[str, int] = field(default_factory=dict)
    # Where those are that were acknowledged. Of records that were sent together no single one is told its place.
    places: dict[tuple[str, int], Place | None] = field(default_factory=dict)
    # Numbers below these were erased for certain, or may have been.
    erased: dict[str, int] = field(default_factory=dict)
    maybe_erased: dict[str, int] = field(default_factory=dict)

    def next(self, name: str) -> int:
        """The number of the record that is about to be sent."""
        number = self.counts.get(name, 0)
        self.counts[name] = number + 1
        return number

    def acked(self, name: str, number: int, place: Place | None) -> None:
        self.places[name, number] = place

    def learn(self, reading: "Reading") -> None:
        """Take the places that nobody was told from a reader that has got everything."""
        for record, place in reading.got.items():
            if record in self.places and self.places[record] is None:
                self.places[record] = place

    def begin_erasing(self, name: str) -> int:
        """An erasure is asked for: all that is sent until it is over may go. How many must, if it succeeds."""
        self.maybe_erased[name] = 1 << 62
        return next(number for number in range(1 << 62) if (name, number) not in self.places)

    def end_erasing(self, name: str, certain: int) -> None:
        self.maybe_erased[name] = self.counts.get(name, 0)
        self.erased[name] = max(certain, self.erased.get(name, 0))

    def is_kept(self, name: str, number: int) -> bool:
        """Whether a record that was acknowledged must be there."""
        return number >= self.maybe_erased.get(name, 0)


class Reading:
    """What one reader was given, through all its cursors. One thread."""

    def __init__(self, title: str, chosen: Filter | None = None) -> None:
        self.title = title
        self.chosen = chosen
        self.got: dict[tuple[str, int], Place] = {}
        self.wrong: list[str] = []
        self._last: dict[str, int] = {}

    def copy(self, title: str) -> "Reading":
        """Another reader that goes on from here."""
        other = Reading(title, self.chosen)
        other.got, other._last = dict(self.got), dict(self._last)
        return other

    def take(self, name: str, number: int, place: Place) -> None:
        if (name, number) in self.got:
            self._note(f"{name} {number} came twice, at {self.got[name, number]} and at {place}")
        elif number <= self._last.get(name, -1) and not name.startswith(LOOSE):
            self._note(f"{name} {number} at {place} came after {self._last[name]}")
        self._last[name] = max(number, self._last.get(name, -1))
        self.got[name, number] = place

    def _note(self, text: str) -> None:
        if len(self.wrong) < _SHOWN_MAX:
            self.wrong.append(text)

    def judge(self, written: Written, *, is_fresh: bool = False) -> Iterator[str]:
        """Everything that is wrong with what came, now that the reader is at the end. One that is fresh began after the
        last erasure."""
        found = [*self.wrong, *self._missing(written), *self._strange(written)]
        if is_fresh:
            found += self._risen(written)
        for text in found:
            yield f"{self.title}: {text}"

    def _missing(self, written: Written) -> list[str]:
        missing = [
            f"{name} {number}, acknowledged at {place}, is missing"
            for (name, number), place in written.places.items()
            if (name, number) not in self.got and written.is_kept(name, number) and self._chooses(name, number, place)
        ]
        return _some(missing)

    def _strange(self, written: Written) -> list[str]:
        strange = []
        for (name, number), place in self.got.items():
            if number >= written.counts.get(name, 0):
                strange.append(f"{name} {number} at {place} was never sent")
            elif (written.places.get((name, number)) or place) != place:
                strange.append(f"{name} {number} is at {place}, acknowledged at {written.places[name, number]}")
            elif not self._chooses(name, number, place):
                strange.append(f"{name} {number} at {place} was not asked for")
        return _some(strange)

    def _risen(self, written: Written) -> list[str]:
        return _some(
            [f"{name} {number} was erased" for name, number in self.got if number < written.erased.get(name, 0)]
        )

    def _chooses(self, name: str, number: int, place: Place | None) -> bool:
        return self.chosen is None or (place is not None and self.chosen.chooses(name, number, place))


def _some(texts: list[str]) -> list[str]:
    more = [f"and {len(texts) - _SHOWN_MAX} more like it"] if len(texts) > _SHOWN_MAX else []
    return [*texts[:_SHOWN_MAX], *more]
