"""What tasks answer that read records for a query."""

import pytest

from mainstem.core.errors import DataLoss
from mainstem.spark.jobs.record_frame import _ByPart
from mainstem.spark.jobs.tasks import Answer, failed, raise_first


def test_a_part_that_was_read_twice_has_failed_if_it_failed_once():
    """A query that names its stream twice reads each part twice: rows are missing of the time that failed, whichever
    answer came first."""
    good, bad = Answer(rows_read=5), failed(DataLoss("gone", stream="orders", shard=0, first=0, last=4))
    add = _ByPart().addInPlace
    for first, second in ((good, bad), (bad, good)):
        found = add(add({0: good, 1: first}, {1: second}), {2: good})
        assert found == {0: good, 1: bad, 2: good}
        with pytest.raises(DataLoss, match="gone"):
            raise_first(found.values())
    assert add({0: good}, {0: Answer(rows_read=5)}) == {0: good}
