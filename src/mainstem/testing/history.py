"""The history checker: what producers were told against what consumers saw, and every way in which they can disagree.

Problem. "Nothing was lost" can only be said by someone who wrote down everything: each value sent, each acknowledgement
and each record read, through crashes and retries, for millions of records.

Idea, after Jepsen's log checker. Every value is unique: it carries its producer and a sequence number in a checksummed
*stamp*. While a test runs, `History` only appends numbers to arrays. Afterwards `check` sorts and compares them.

What is judged (all but the last three must be 0):

    lost          acknowledged, never read, though its offset or a later one of its shard was
    unseen        acknowledged, never read, at the end of its shard: the readers did not get that far
    duplicated    one value at two places (a place is a shard and an offset, told by an acknowledgement or a read)
    reordered     a producer's later value stands before its earlier one in the same shard
    corrupted     a record whose stamp fails its check, or another value than the one acknowledged at that place
    inconsistent  one place, two values, between two reads or between two acknowledgements
    gaps          a reader jumped over offsets without being told that they are gone
    rewound       a reader was given an offset it had already passed
    phantoms      a value read that nobody sent
    refused_seen  a value read whose send had failed for certain
    excused       acknowledged, in a range the reader was told is gone: reported, not an anomaly
    unknown       sent, outcome not known (a timeout, a crash): may or may not appear, is never lost
    unknown_seen  of these, how many appeared

A value that two acknowledgements placed in two shards counts once, as duplicated. What the checker does not judge:
order between producers, order between shards, and how late a record was read.

Memory: 8 bytes a send, 16 an acknowledgement, 21 a read; checking takes a few times that and O(n log n).
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.testing.stamp import (
    PRODUCER_BITS,
    SEQUENCE_BITS,
    U64,
    Flags,
    Numbers,
    as_numbers,
    check_range,
    read_stamps,
)

Values: TypeAlias = bytes | Sequence[bytes | None] | pa.Array | pa.ChunkedArray

# A value (producer, sequence) and a place (shard, offset) are each one 64-bit number, so that sorting and joining them
# is one numpy call. The widths leave room for any test on one machine.
SHARD_BITS: Final = 20
OFFSET_BITS: Final = 44
assert SHARD_BITS + OFFSET_BITS == 64

EXAMPLES_MAX: Final = 5

_RECORD: Final = 0
_DAMAGED: Final = 1
_POSITIONED: Final = 2


class History:
    """Everything that happened to one stream in one test. Appends only; any thread may call anything.

    Where a method takes numbers, one number or an array of them will do. A producer's sequences are in the order in
    which it sent. A *reader* is one pass over the stream: after a restart or a rebalance use another number, or say
    with `positioned` where it stands now.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent = _Rows(value=np.uint64)
        self._acked = _Rows(value=np.uint64, place=np.uint64)
        self._failed = _Rows(value=np.uint64)
        self._reads = _Rows(reader=np.uint32, place=np.uint64, value=np.uint64, what=np.uint8)
        self._excused = _Rows(begin=np.uint64, end=np.uint64)

    def sent(self, producer: int, sequences: Numbers) -> None:
        """A send begins. Without a later `acked` or `failed` its outcome is unknown."""
        self._extend(self._sent, value=_values(producer, sequences))

    def acked(self, producer: int, sequences: Numbers, shard: Numbers, offsets: Numbers) -> None:
        """A send was acknowledged. One that was never `sent` counts as sent."""
        self._extend(self._acked, value=_values(producer, sequences), place=_places(shard, offsets))

    def failed(self, producer: int, sequences: Numbers) -> None:
        """A send was refused for certain: it must never be read. A timeout is not a refusal."""
        self._extend(self._failed, value=_values(producer, sequences))

    def read(self, reader: int, shard: Numbers, offsets: Numbers, values: Values) -> None:
        """Records that a reader was given, in this order."""
        if isinstance(values, bytes):
            values = [values]
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, pa.large_binary())
        producers, sequences, intact = read_stamps(array)
        values_read = (producers << np.uint64(SEQUENCE_BITS)) | sequences
        places = _places(shard, offsets)
        count = 1 if isinstance(places, int) else len(places)
        if count != len(array):
            raise ValueError(f"{count} offsets for {len(array)} values")
        what = np.where(intact, _RECORD, _DAMAGED)
        self._extend(self._reads, reader=reader, place=places, value=values_read, what=what)

    def positioned(self, reader: int, shard: int, offset: int) -> None:
        """A reader begins here, or was moved here: the next record it is given must be this one."""
        self._extend(self._reads, reader=reader, place=_places(shard, offset), value=0, what=_POSITIONED)

    def excused(self, shard: int, first: int, last: int) -> None:
        """A reader was told that records `first` to `last`, both included, are gone."""
        if last < first:
            raise ValueError(f"a range from {first} to {last}")
        begin, end = _places(shard, first), _places(shard, last)
        self._extend(self._excused, begin=begin, end=end + 1)

    def merge(self, other: "History") -> None:
        """Add all of another history, as of a second process. The two must not share readers."""
        for mine, theirs in zip(self._tables(), other._tables(), strict=True):
            self._extend(mine, **theirs.arrays())

    def check(self, *, final: bool = True) -> "Report":
        """Judge it. `final` says that readers have caught up, so that what nobody saw is an anomaly."""
        with self._lock:
            sent, acked, failed, reads, excused = (table.arrays() for table in self._tables())
        return _Checker(sent["value"], acked, failed["value"], reads, _merged(excused)).report(final)

    def _tables(self) -> tuple["_Rows", ...]:
        return self._sent, self._acked, self._failed, self._reads, self._excused

    def _extend(self, table: "_Rows", **columns: Any) -> None:
        with self._lock:
            table.extend(**columns)


class _Rows:
    """Columns of numbers that grow by doubling, so that a million single appends stay cheap and compact."""

    def __init__(self, **types: type) -> None:
        self._columns: dict[str, npt.NDArray[Any]] = {name: np.empty(16, dtype) for name, dtype in types.items()}
        self._count = 0

    def extend(self, **columns: Any) -> None:
        """Add rows; a column of one number or of length 1 is repeated."""
        sizes = [1 if isinstance(column, int) else len(column) for column in columns.values()]
        end = self._count + (max(sizes) if all(sizes) else 0)
        for name, column in columns.items():
            self._reserve(name, end)
            self._columns[name][self._count : end] = column
        self._count = end

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The rows so far. Later appends do not change them."""
        return {name: column[: self._count] for name, column in self._columns.items()}

    def _reserve(self, name: str, count: int) -> None:
        column = self._columns[name]
        if count > len(column):
            larger = np.empty(max(count, 2 * len(column)), column.dtype)
            larger[: self._count] = column[: self._count]
            self._columns[name] = larger


def _values(producer: int, sequences: Numbers) -> U64 | int:
    return _packed("producer", producer, PRODUCER_BITS, "sequence", sequences, SEQUENCE_BITS)


def _places(shards: Numbers, offsets: Numbers) -> U64 | int:
    return _packed("shard", shards, SHARD_BITS, "offset", offsets, OFFSET_BITS)


def _packed(high_name: str, high: Numbers, high_bits: int, low_name: str, low: Numbers, low_bits: int) -> U64 | int:
    # Tests that send one record at a time come here for each of them: plain ints take the short way.
    if isinstance(high, int) and isinstance(low, int):
        check_range(high_name, high, high_bits)
        check_range(low_name, low, low_bits)
        return high << low_bits | low
    return (as_numbers(high_name, high, high_bits) << np.uint64(low_bits)) | as_numbers(low_name, low, low_bits)


def _shard(places: U64) -> U64:
    return places >> np.uint64(OFFSET_BITS)


def _offset(places: U64) -> U64:
    return places & np.uint64((1 << OFFSET_BITS) - 1)


def _value_text(value: Any) -> str:
    return f"value {int(value) & ((1 << SEQUENCE_BITS) - 1)} of producer {int(value) >> SEQUENCE_BITS}"


def _place_text(place: Any) -> str:
    return f"shard {int(place) >> OFFSET_BITS} offset {int(place) & ((1 << OFFSET_BITS) - 1)}"


# ---------------------------------------------------------------------------------------------------------- report


@dataclass(frozen=True, slots=True)
class Report:
    """What the checker found. The module's docstring says what each count means. `examples` holds the first few."""

    sent: int
    acked: int
    failed: int
    unknown: int
    unknown_seen: int
    excused: int
    read: int
    lost: int
    unseen: int
    duplicated: int
    reordered: int
    corrupted: int
    inconsistent: int
    gaps: int
    rewound: int
    phantoms: int
    refused_seen: int
    final: bool
    examples: Mapping[str, tuple[str, ...]]

    @property
    def anomalies(self) -> dict[str, int]:
        """Every count that should be 0 and is not. What nobody saw counts only once the readers have caught up."""
        names = [field.name for field in fields(self) if field.name in ANOMALIES]
        found = {name: int(getattr(self, name)) for name in names}
        return {name: count for name, count in found.items() if count and (name != "unseen" or self.final)}

    @property
    def ok(self) -> bool:
        return not self.anomalies

    def __str__(self) -> str:
        facts = ", ".join(f"{name} {getattr(self, name):,}" for name in FACTS)
        verdict = "ok" if self.ok else "NOT ok: " + ", ".join(f"{name} {n:,}" for name, n in self.anomalies.items())
        return "\n".join([f"{verdict} ({facts})", *self._example_lines()])

    def _example_lines(self) -> Iterator[str]:
        for name, count in self.anomalies.items():
            yield from (f"  {name}: {example}" for example in self.examples[name])
            if count > EXAMPLES_MAX:
                yield f"  {name}: ... and {count - EXAMPLES_MAX:,} more"


FACTS: Final = ("sent", "acked", "failed", "unknown", "unknown_seen", "excused", "read")
ANOMALIES: Final = (
    "lost",
    "unseen",
    "duplicated",
    "reordered",
    "corrupted",
    "inconsistent",
    "gaps",
    "rewound",
    "phantoms",
    "refused_seen",
)


# --------------------------------------------------------------------------------------------------------- checker


class _Pairs(NamedTuple):
    """Distinct (value, place) pairs, two columns."""

    value: U64
    place: U64

    def sorted_by(self, *keys: U64) -> "_Pairs":
        """In the order of the keys, the first one first."""
        order = _order(*keys)
        return _Pairs(self.value[order], self.place[order])


def _order(*keys: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """What sorts by the first key, then the second, then as it was.

    Stable sorts one after the other, and not np.lexsort: a history is nearly sorted already, which these make use of.
    """
    order = np.argsort(keys[-1], kind="stable")
    for key in reversed(keys[:-1]):
        order = order[np.argsort(key[order], kind="stable")]
    return order


def _distinct(value: U64, place: U64) -> _Pairs:
    """Sorted by value, then place, each pair once."""
    pairs = _Pairs(value, place).sorted_by(value, place)
    if len(value) == 0:
        return pairs
    fresh = np.ones(len(value), np.bool_)
    fresh[1:] = (pairs.value[1:] != pairs.value[:-1]) | (pairs.place[1:] != pairs.place[:-1])
    return _Pairs(pairs.value[fresh], pairs.place[fresh])


def _repeated(keys: U64) -> U64:
    """The keys that occur more than once, each once, ascending."""
    ascending = np.sort(keys, kind="stable")
    return _unique(ascending[1:][ascending[1:] == ascending[:-1]])


def _unique(keys: U64) -> U64:
    """Each key once, ascending. np.unique hashes, which takes ten times as long on keys that are nearly sorted."""
    ascending = np.sort(keys, kind="stable")
    fresh = np.ones(len(ascending), np.bool_)
    fresh[1:] = ascending[1:] != ascending[:-1]
    return ascending[fresh]


def _is_in(keys: U64, ascending: U64) -> Flags:
    if len(ascending) == 0:
        return np.zeros(len(keys), np.bool_)
    index = np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)
    return np.asarray(ascending[index] == keys)


def _merged(ranges: Mapping[str, npt.NDArray[Any]]) -> tuple[U64, U64]:
    """Half-open ranges of places, ascending, those that touch joined: so one range covers whatever is covered."""
    begins: list[int] = []
    ends: list[int] = []
    order = np.argsort(ranges["begin"], kind="stable")
    for begin, end in zip(ranges["begin"][order].tolist(), ranges["end"][order].tolist(), strict=True):
        if ends and begin <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            begins.append(begin)
            ends.append(end)
    return np.array(begins, np.uint64), np.array(ends, np.uint64)


class _Checker:
    """One judgement: sorts the raw columns once, then every anomaly is a method that returns (count, examples)."""

    def __init__(
        self,
        sent: U64,
        acked: Mapping[str, npt.NDArray[Any]],
        failed: U64,
        reads: Mapping[str, npt.NDArray[Any]],
        excused: tuple[U64, U64],
    ) -> None:
        if twice := [_value_text(value) for value in _repeated(sent)[:EXAMPLES_MAX]]:
            raise ValueError(f"the history cannot be judged, as values must be unique; sent twice: {', '.join(twice)}")
        self.acks = _distinct(acked["value"], acked["place"])
        self.acked = _unique(self.acks.value)
        self.failed = _unique(failed)
        self.sent = _unique(np.concatenate([sent, self.acked, self.failed]))
        self.excused_begins, self.excused_ends = excused
        self.steps = reads
        is_record = reads["what"] == _RECORD
        self.records = _distinct(reads["value"][is_record], reads["place"][is_record])
        # Every place that an acknowledgement or a read gives a value.
        self.known = _distinct(
            np.concatenate([self.acks.value, self.records.value]), np.concatenate([self.acks.place, self.records.place])
        )
        self.seen = _unique(self.records.value)
        self.damaged = _unique(reads["place"][reads["what"] == _DAMAGED])
        self.places_read = _unique(np.concatenate([self.records.place, self.damaged]))
        self.read_count = int(np.count_nonzero(reads["what"] != _POSITIONED))

    def report(self, final: bool) -> Report:
        lost, unseen, excused = self._missing()
        gaps, rewound = self._steps()
        found = {
            "lost": lost,
            "unseen": unseen,
            "duplicated": self._duplicated(),
            "reordered": self._reordered(),
            "corrupted": self._corrupted(),
            "inconsistent": self._inconsistent(),
            "gaps": gaps,
            "rewound": rewound,
            "phantoms": self._seen_where(~_is_in(self.seen, self.sent), "was read, but nobody sent it"),
            "refused_seen": self._seen_where(_is_in(self.seen, self.failed), "was read, but its send had failed"),
        }
        counts = {name: count for name, (count, _) in found.items()}
        examples = {name: shown for name, (_, shown) in found.items()}
        return Report(**self._facts(), excused=excused, **counts, final=final, examples=examples)

    def _facts(self) -> dict[str, int]:
        unknown = self.sent[~_is_in(self.sent, self.acked) & ~_is_in(self.sent, self.failed)]
        return {
            "sent": len(self.sent),
            "acked": len(self.acked),
            "failed": len(self.failed),
            "unknown": len(unknown),
            "unknown_seen": int(np.count_nonzero(_is_in(unknown, self.seen))),
            "read": self.read_count,
        }

    def _missing(self) -> tuple["_Found", "_Found", int]:
        """Lost, unseen and excused: acknowledged values that no reader was given."""
        gone = ~_is_in(self.acks.value, self.seen)
        # A damaged record is counted as corrupted; whose it was can no longer be read from it.
        gone &= ~_is_in(self.acks.place, self.damaged)
        excused = gone & self._is_excused(self.acks.place, self.acks.place + np.uint64(1))
        lost = gone & ~excused & self._has_later_read(self.acks.place)
        unseen = gone & ~excused & ~lost
        return (
            self._ack_examples(lost, "was acknowledged and never read, though readers got past it"),
            self._ack_examples(unseen, "was acknowledged, but no reader got that far"),
            int(np.count_nonzero(excused)),
        )

    def _ack_examples(self, chosen: Flags, text: str) -> "_Found":
        value, place = self.acks.value[chosen], self.acks.place[chosen]
        return _found(len(value), lambda i: f"{_value_text(value[i])} at {_place_text(place[i])} {text}")

    def _has_later_read(self, places: U64) -> Flags:
        """Whether a later offset of the same shard, or this very one, was read."""
        index = np.searchsorted(self.places_read, places)
        inside = index < len(self.places_read)
        following = self.places_read[np.minimum(index, max(0, len(self.places_read) - 1))] if inside.any() else places
        return np.asarray(inside & (_shard(following) == _shard(places)))

    def _is_excused(self, begins: U64, ends: U64) -> Flags:
        """Whether all of [begin, end) is within what a reader was told is gone."""
        if len(self.excused_begins) == 0:
            return np.zeros(len(begins), np.bool_)
        index = np.searchsorted(self.excused_begins, begins, side="right") - 1
        return np.asarray((index >= 0) & (self.excused_ends[np.maximum(index, 0)] >= ends))

    def _duplicated(self) -> "_Found":
        known = self.known
        twice = _repeated(known.value)

        def show(i: int) -> str:
            places = known.place[known.value == twice[i]][:EXAMPLES_MAX]
            return f"{_value_text(twice[i])} is at {' and at '.join(map(_place_text, places))}"

        return _found(len(twice), show)

    def _reordered(self) -> "_Found":
        known = self.known
        # A value at two places is a duplicate; only its first place takes part in the order.
        first = np.ones(len(known.value), np.bool_)
        first[1:] = known.value[1:] != known.value[:-1]
        known = _Pairs(known.value[first], known.place[first])
        producer = known.value >> np.uint64(SEQUENCE_BITS)
        value, place = known.sorted_by(producer, _shard(known.place), known.value)
        same = (value[1:] >> np.uint64(SEQUENCE_BITS) == value[:-1] >> np.uint64(SEQUENCE_BITS)) & (
            _shard(place[1:]) == _shard(place[:-1])
        )
        wrong = np.flatnonzero(same & (place[1:] < place[:-1]))

        def show(i: int) -> str:
            at = wrong[i]
            earlier, later = _value_text(value[at]), _value_text(value[at + 1])
            return (
                f"{later} is at {_place_text(place[at + 1])}, before the earlier {earlier} at {_place_text(place[at])}"
            )

        return _found(len(wrong), show)

    def _corrupted(self) -> "_Found":
        # Where two values were acknowledged at one place there is no right one: that is inconsistent, not corrupted.
        contested = _repeated(self.acks.place)
        by_place = self.acks.sorted_by(self.acks.place)
        judged = _is_in(self.records.place, by_place.place) & ~_is_in(self.records.place, contested)
        value, place = self.records.value[judged], self.records.place[judged]
        told = by_place.value[np.searchsorted(by_place.place, place)] if len(place) else value
        wrong = np.flatnonzero(told != value)
        damaged = self.damaged

        def show(i: int) -> str:
            if i < len(damaged):
                return f"the record at {_place_text(damaged[i])} fails its check"
            at = wrong[i - len(damaged)]
            right = _value_text(told[at])
            return f"{_value_text(value[at])} was read at {_place_text(place[at])}, acknowledged for {right}"

        return _found(len(damaged) + len(wrong), show)

    def _inconsistent(self) -> "_Found":
        places = _unique(np.concatenate([_repeated(self.records.place), _repeated(self.acks.place)]))

        def show(i: int) -> str:
            read = [_value_text(value) for value in self.records.value[self.records.place == places[i]][:EXAMPLES_MAX]]
            told = [_value_text(value) for value in self.acks.value[self.acks.place == places[i]][:EXAMPLES_MAX]]
            return f"{_place_text(places[i])} was read as {read or 'nothing'}, acknowledged for {told or 'nothing'}"

        return _found(len(places), show)

    def _steps(self) -> tuple["_Found", "_Found"]:
        """Gaps and steps back, from each reader's records of each shard in the order it was given them."""
        reader, place, what = self.steps["reader"], self.steps["place"], self.steps["what"]
        order = _order(reader, _shard(place))
        reader, place, what = reader[order], place[order], what[order]
        # A position says which record comes next; a record says that the one after it does.
        expected = np.where(what == _POSITIONED, place, place + np.uint64(1))[:-1]
        given, who = place[1:], reader[1:]
        follows = (who == reader[:-1]) & (_shard(given) == _shard(place[:-1])) & (what[1:] != _POSITIONED)
        jumped = follows & (given > expected)
        jumped[jumped] = ~self._is_excused(expected[jumped], given[jumped])
        back = np.flatnonzero(follows & (given < expected))
        ahead = np.flatnonzero(jumped)

        def show(at: Any, text: str) -> str:
            wanted = int(_offset(expected[at : at + 1])[0])
            return f"reader {who[at]} {text} {_place_text(given[at])} when {wanted} was next"

        return (
            _found(len(ahead), lambda i: show(ahead[i], "jumped to")),
            _found(len(back), lambda i: show(back[i], "went back to")),
        )

    def _seen_where(self, chosen: Flags, text: str) -> "_Found":
        values = self.seen[chosen]

        def show(i: int) -> str:
            place = self.records.place[np.searchsorted(self.records.value, values[i])]
            return f"{_value_text(values[i])} at {_place_text(place)} {text}"

        return _found(len(values), show)


_Found: TypeAlias = tuple[int, tuple[str, ...]]


def _found(count: int, show: Callable[[int], str]) -> _Found:
    return count, tuple(show(i) for i in range(min(count, EXAMPLES_MAX)))
