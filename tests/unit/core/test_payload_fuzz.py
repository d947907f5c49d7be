"""A slice of the payload fuzzing that is small enough for every run."""

from tests.fuzz import payload_fuzz


def test_check_gives_a_valid_batch_or_refuses():
    report = payload_fuzz.run(seed=20_240_501, count=20_000)
    # Both ends must have been exercised, or the mutations have become too mild or too wild to tell anything.
    assert report["valid"] > 200
    assert report["refused"] > 10_000
