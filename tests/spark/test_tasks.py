"""Tasks of jobs: what goes wrong in them is an error of ours, whichever way Spark tells it."""

import os

import pytest

from mainstem.core.errors import TableUnusable
from mainstem.spark.jobs.tasks import Answer, no_step, run_parts

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.slow("a process that is started four times")
def test_a_task_whose_process_dies_again_and_again(spark):
    """PySpark has no class for that, and hands on what came from Java."""

    def die(part: int) -> Answer:
        os._exit(3)

    with pytest.raises(TableUnusable, match=r"Spark could not do it: .*Python worker exited unexpectedly"):
        run_parts(spark, 1, die, no_step)


def test_a_task_that_raises(spark):
    def stumble(part: int) -> Answer:
        raise ValueError("no such thing")

    line = stumble.__code__.co_firstlineno + 1
    with pytest.raises(TableUnusable, match=rf"do it: ValueError: no such thing \(.*test_tasks\.py, line {line}\)$"):
        run_parts(spark, 1, stumble, no_step)
