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


@pytest.mark.parametrize("job", ["", "j" * 257])
def test_the_name_of_a_job_has_a_length(job):
    encoded = msgspec.msgpack.encode(Delivery(1, job, 0, printed()))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(encoded, type=Delivery)
