"""Fingerprints of deliveries: what counts as the same."""

import msgspec
import pytest

from mainstem.core.delivery import Delivery, Fingerprint


def printed(rows: int = 3, exact: bytes = b"x" * 16, total: float = 0.0, magnitude: float = 0.0) -> Fingerprint:
    return Fingerprint(rows, exact, total, magnitude)


def test_rows_and_digest_are_compared_exactly():
    assert printed().matches(printed())
    assert not printed().matches(printed(rows=4))
    assert not printed().matches(printed(exact=b"y" * 16))


def test_sums_of_floating_point_numbers_may_differ_in_their_last_bits():
    values = [0.1] * 10 + [1e10, -1e10, 3e-7]
    one = printed(total=sum(values), magnitude=sum(map(abs, values)))
    other = printed(total=sum(reversed(values)), magnitude=sum(map(abs, values)))
    assert one.total != other.total
    assert one.matches(other)
    assert not one.matches(printed(total=one.total + 100.0, magnitude=one.magnitude))


def test_sums_beyond_all_numbers_say_nothing():
    assert printed(total=1e308, magnitude=float("inf")).matches(printed(total=-1e308, magnitude=float("inf")))
    assert not printed(magnitude=float("inf")).matches(printed(magnitude=1.0))


def test_totals_beyond_all_numbers_say_nothing():
    """Their magnitudes may be below."""
    for total in (float("inf"), float("-inf"), float("nan"), 0.0):
        assert printed(total=float("inf"), magnitude=1e308).matches(printed(total=total, magnitude=1e308))
    assert not printed(total=float("inf"), magnitude=1e308).matches(printed(total=float("inf"), magnitude=1.1e308))
    # The difference of two that are numbers may be none.
    assert not printed(total=1e308, magnitude=1e308).matches(printed(total=-1e308, magnitude=1e308))


def leveled(levels: float | None, magnitude: float | None, total: float = 0.0) -> Fingerprint:
    return Fingerprint(3, b"x" * 15, total, 1e300, levels, magnitude)


def test_levels_are_compared_where_both_have_them():
    one = leveled(100.0, 1e6)
    assert one.matches(leveled(100.0 + 1e-7, 1e6))
    assert not one.matches(leveled(100.1, 1e6))
    assert not one.matches(leveled(100.0, 1e6, total=1e299))
    older = Fingerprint(3, b"x" * 15, 0.0, 1e300)
    assert older.matches(one)
    assert one.matches(older)
    # The sums of values are beyond all numbers, those of levels never.
    beyond = [Fingerprint(3, b"x" * 15, 0.0, float("inf"), levels, 1e6) for levels in (100.0, 100.1)]
    assert beyond[0].matches(beyond[0])
    assert not beyond[0].matches(beyond[1])


def test_levels_of_very_many_numbers_may_differ_by_more():
    assert leveled(1e11, 1e11).matches(leveled(1e11 + 0.01, 1e11))
    assert not leveled(1e11, 1e11).matches(leveled(1e11 + 1.0, 1e11))


@pytest.mark.parametrize("rows", [1, 100, 1_000_000])
def test_levels_may_differ_by_the_rounding_of_large_numbers(rows):
    """As it adds up over rows, of numbers of up to 2^63."""

    def beside(large: float, levels: float) -> Fingerprint:
        return Fingerprint(rows, b"x" * 15, 0.0, large * rows, levels, 1e6)

    rounding = 2.0**-52 * 1e15 * rows**0.5
    one = beside(1e15, 100.0)
    assert one.matches(beside(1e15, 100.0 + 0.99 * rounding))
    assert not one.matches(beside(1e15, 100.0 + 1.01 * rounding))
    for large in (1e9, 1e300):
        assert beside(large, 100.0).matches(beside(large, 100.0009))
        assert not beside(large, 100.0).matches(beside(large, 100.0011))


def test_fingerprints_without_levels_are_read_and_read_those_with_them():
    class Older(msgspec.Struct, frozen=True, array_like=True, gc=False):
        rows: int
        exact: bytes
        total: float = 0.0
        magnitude: float = 0.0

    older, newer = Older(3, b"x" * 15, 1.0, 2.0), Fingerprint(3, b"x" * 15, 1.0, 2.0, 3.0, 4.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(newer), type=Older) == older
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(older), type=Fingerprint)
    assert read == Fingerprint(3, b"x" * 15, 1.0, 2.0)
    assert read.levels is None
    assert newer.matches(read)


@pytest.mark.parametrize("job", ["", "j" * 257])
def test_the_name_of_a_job_has_a_length(job):
    encoded = msgspec.msgpack.encode(Delivery(1, job, 0, printed()))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(encoded, type=Delivery)
