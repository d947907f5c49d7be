"""What is measured: one module per scenario, in the order they are run and reported."""

from benchmarks.scenarios import (
    backlog,
    backup,
    compact,
    delete,
    embedded,
    fanout,
    group_of_two,
    guarded,
    http,
    latency,
    many_producers,
    memory,
    merger,
    one_read,
    produce,
    rebalance,
    rows,
    send_batch,
    spark_kafka,
    spark_read,
    spark_sink,
    spark_stream,
    spark_warehouse,
    transactions,
    upkeep,
    written_rows,
)
from benchmarks.scenarios import open as opening
from benchmarks.scenarios.base import Case, Scenario, Settings

__all__ = ["SCENARIOS", "Case", "Scenario", "Settings"]

_MODULES = (
    produce,
    guarded,
    send_batch,
    backlog,
    latency,
    embedded,
    many_producers,
    fanout,
    one_read,
    memory,
    opening,
    rows,
    written_rows,
    http,
    upkeep,
    merger,
    compact,
    delete,
    backup,
    rebalance,
    transactions,
    group_of_two,
    spark_read,
    spark_stream,
    spark_sink,
    spark_warehouse,
    spark_kafka,
)

SCENARIOS: dict[str, Scenario] = {module.SCENARIO.name: module.SCENARIO for module in _MODULES}
