"""Revenue: what the producers took, by window, beside what the table says, and the stream. To the cent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

import numpy as np

from mainstem.core.times import from_us
from mainstem.demo.account import Rows, found_again
from mainstem.demo.events import ORDERS

WINDOW_SECONDS: Final = 5
_WINDOW_US: Final = WINDOW_SECONDS * 1_000_000


@dataclass(frozen=True, slots=True)
class Takings:
    """Of one window or several: how many orders there were, for how much, and for how much of it in sessions, which
    the producers do not know."""

    orders: int
    cents: int
    session_cents: int = field(default=0, compare=False)

    def __add__(self, other: "Takings") -> "Takings":
        return Takings(self.orders + other.orders, self.cents + other.cents, self.session_cents + other.session_cents)

    def __str__(self) -> str:
        return f"{self.orders:,} orders, {money(self.cents)}"


@dataclass(frozen=True, slots=True)
class RevenueVerdict:
    """The comparison with the table, or with the stream: `place`. By the beginning of their windows, in microseconds,
    those that differ: what was taken, and what is said there."""

    place: str
    # What the producers took, and how many windows the place has.
    total: Takings
    windows: int
    differing: Mapping[int, tuple[Takings, Takings]]

    @property
    def is_good(self) -> bool:
        return not self.differing

    @property
    def findings(self) -> list[str]:
        return [
            f"revenue from {from_us(start):%H:%M:%S} on: the producers took {taken}, the {self.place} says {told}"
            for start, (taken, told) in sorted(self.differing.items())
        ]


_NOTHING: Final = Takings(0, 0)


def taken(sent: Rows, read: Rows) -> dict[int, Takings]:
    """By window, the orders that were acknowledged, and those that nobody answered but that are in the log."""
    orders = sent[sent["stream"] == ORDERS]
    orders = orders[(orders["known"] == 1) | found_again(orders, read)]
    starts = (orders["time_us"] // _WINDOW_US * _WINDOW_US).astype(np.int64)
    windows, of_order = np.unique(starts, return_inverse=True)
    counts = np.bincount(of_order, minlength=len(windows))
    cents = np.zeros(len(windows), dtype=np.int64)
    np.add.at(cents, of_order, orders["cents"].astype(np.int64))
    return {
        int(start): Takings(int(count), int(total)) for start, count, total in zip(windows, counts, cents, strict=True)
    }


def compare_revenue(place: str, took: Mapping[int, Takings], told: Mapping[int, Takings]) -> RevenueVerdict:
    """Window by window, what was taken with what is said in a place."""
    differing = {
        start: (took.get(start, _NOTHING), told.get(start, _NOTHING))
        for start in took.keys() | told.keys()
        if took.get(start, _NOTHING) != told.get(start, _NOTHING)
    }
    return RevenueVerdict(place, total_of(took), len(told), differing)


def total_of(windows: Mapping[int, Takings]) -> Takings:
    """All of them together."""
    return sum(windows.values(), start=_NOTHING)


def cents_of(amount: Decimal | None) -> int:
    return int((amount or Decimal(0)) * 100)


def money(cents: int) -> str:
    return f"{cents // 100:,}.{cents % 100:02d}"
