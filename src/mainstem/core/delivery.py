"""Deliveries: the numbered writes of a job to a stream, each taken once.

A job that is started again after a crash does its last piece of work again, and does not know whether the log has it.
So it numbers what it delivers, and the log remembers of each job the last numbers with a *fingerprint* of what came: a
delivery that comes again is recognised, and one that comes again with other rows is not taken for the first.

A fingerprint does not depend on the order of rows, nor on who delivered which of them: after a shuffle both are other
ones. Sums of floating-point numbers are compared with a tolerance, because added in another order they differ in their
last bits.

There are two kinds. In the older one all of the digest was of sums over single columns, and floating-point numbers were
added as they are; it does not notice the same values in other rows. In the newer one the digest is a byte shorter: the
first 8 bytes are those of the older one, and 7 are of sums over whole rows; floating-point numbers are weighed by their
rows. Logs have both. Two of different kinds are compared by what they have in common.

A sum has no place for a small number beside a large one, and none at all beyond the largest. So those of the newer kind
also have sums of *levels*, in which each number counts about as much as any other: the level of x has its sign, and is
the logarithm of 1 + |x| to the base 2, straight between the powers of 2, as the bits of a number have it. That of an
infinite one is 1024, and of what is no number 1025. Logs have fingerprints without levels; with those only the rest is
compared.
"""

import math
from typing import Annotated, Final

import msgspec

from mainstem.core.batch import U63
from mainstem.core.limits import DELIVERY_JOB_CHARS_MAX

# By which part of the sum of all magnitudes two sums of the same numbers may differ.
_TOLERANCE: Final = 1e-9
# By which part of their magnitude two sums of the same levels may differ: adding up a million, of which the last bits
# were others, has made less than 1e-14 of it.
_LEVELS_TOLERANCE: Final = 1e-12
# And by how much at least: aggregates in which large numbers even out come to nothing up to a rounding that is small
# only beside those numbers. Of 100,000 in the millions it is 1e-5.
_LEVELS_DIFFERENCE: Final = 1e-3
# Where those stand in the same rows, which rounding that is can be told: about their last bit, in each row by itself,
# so that of many rows it comes to that of the square root of their number. Averages of microseconds since 1970 have
# 0.25 of one. Numbers beyond a limit, larger than any time, are not what evens out, and are to hide no others.
_LAST_BIT: Final = 2.0**-52
_EVENED_OUT_MAX: Final = 2.0**63

# Of a digest of the newer kind.
COLUMN_DIGEST_BYTES: Final = 8
ROW_DIGEST_BYTES: Final = 7
_DIGEST_BYTES_OF_BOTH_KINDS: Final = {16, COLUMN_DIGEST_BYTES + ROW_DIGEST_BYTES}

Job = Annotated[str, msgspec.Meta(min_length=1, max_length=DELIVERY_JOB_CHARS_MAX)]
Digest = Annotated[bytes, msgspec.Meta(max_length=16)]


class Fingerprint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is compared of two deliveries of one number: how many rows, a digest of everything that adds up exactly, and
    of floating-point numbers their sum and that of their magnitudes; and both of their levels."""

    rows: U63
    exact: Digest
    total: float = 0.0
    magnitude: float = 0.0
    # None in what was made before there were any.
    levels: float | None = None
    levels_magnitude: float | None = None

    def matches(self, other: "Fingerprint") -> bool:
        if self.rows != other.rows:
            return False
        if {len(self.exact), len(other.exact)} == _DIGEST_BYTES_OF_BOTH_KINDS:
            same = self.exact[:COLUMN_DIGEST_BYTES] == other.exact[:COLUMN_DIGEST_BYTES]
            return same and self._sums_match(other, abs(self.magnitude - other.magnitude))
        same = self.exact == other.exact and self._levels_match(other)
        return same and self._sums_match(other, self._difference(other))

    def _difference(self, other: "Fingerprint") -> float:
        if math.isfinite(self.total) and math.isfinite(other.total):
            return abs(self.total - other.total)
        # Weighed, numbers come to up to twice their magnitude, and so perhaps beyond all numbers: that says nothing.
        return abs(self.magnitude - other.magnitude)

    def _sums_match(self, other: "Fingerprint", difference: float) -> bool:
        if not (math.isfinite(self.magnitude) and math.isfinite(other.magnitude)):
            return math.isfinite(self.magnitude) == math.isfinite(other.magnitude)
        return difference <= _TOLERANCE * max(self.magnitude, other.magnitude)

    def _levels_match(self, other: "Fingerprint") -> bool:
        if self.levels is None or other.levels is None:
            return True
        magnitude = max(self.levels_magnitude or 0.0, other.levels_magnitude or 0.0)
        least = max(_LEVELS_DIFFERENCE, self._rounding(), other._rounding())
        return abs(self.levels - other.levels) <= max(least, _LEVELS_TOLERANCE * magnitude)

    def _rounding(self) -> float:
        mean = self.magnitude / max(1, self.rows)
        return _LAST_BIT * mean * math.sqrt(self.rows) if mean <= _EVENED_OUT_MAX else 0.0


class Delivery(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which delivery of a job to a stream this is. Numbers follow each other. `accept` takes what the log has of this
    job as right: a number that it knows counts as delivered, whatever comes now, and numbers may be missing."""

    stream: U63
    job: Job
    number: U63
    fingerprint: Fingerprint
    accept: bool = False
