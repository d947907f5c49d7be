"""Spark reads the same rows from Kafka, as JSON, and from a stream: one broker, one server, one session, in turn.

Kafka gets them from Spark, as JSON in the value, which is how most people put rows there; `from_json` makes columns of
them again. Both sides have the rows on the same disk. Those of Kafka come through the broker. Those of the stream do
not come through the server, which only plans: Spark's workers see its folder and read the blocks there, as executors on
its machine do. What it takes from another machine, where they come through the server, is not measured here.
"""

from __future__ import annotations

from benchmarks import product, sparks
from benchmarks.child import Talk
from benchmarks.harness import run_child, scratch
from benchmarks.peers import kafka
from benchmarks.scenarios.base import Case, Metrics, Scenario, Settings, Target

ROWS = 10_000_000
HERE = "benchmarks.scenarios.spark_kafka"


def run(settings: Settings) -> Metrics:
    count = settings.count(ROWS)
    jars = ",".join(map(str, kafka.connector_jars()))
    with (
        scratch(settings.data, "spark-kafka") as folder,
        product.Server(folder) as server,
        kafka.Broker(folder) as broker,
    ):
        given = {"url": server.url, "address": broker.address, "jars": jars, "folder": str(folder), "count": count}
        run_child(f"{HERE}:fill", timeout_s=sparks.TIMEOUT_S, url=server.url, count=count)
        return sparks.measured(f"{HERE}:read", **given)


def fill(talk: Talk, url: str, count: int) -> None:
    import mainstem

    with mainstem.connect(url) as hub:
        sparks.fill(hub, sparks.STREAM, count)


def read(talk: Talk, url: str, address: str, jars: str, folder: str, count: int) -> dict[str, float]:
    spark = sparks.session(folder, **{"spark.jars": jars})
    rows = sparks.stream(spark, url)
    place = {"kafka.bootstrap.servers": address}
    values = rows.selectExpr("to_json(struct(*)) AS value")
    values.write.format("kafka").options(**place, topic=sparks.STREAM).save()
    parsed = f"from_json(CAST(value AS STRING), '{sparks.COLUMNS}') AS row"

    def from_kafka() -> object:
        read = spark.read.format("kafka").options(**place, subscribe=sparks.STREAM, startingOffsets="earliest")
        return read.load().selectExpr(parsed).select("row.*").selectExpr(*sparks.SUMS).first()

    found = sparks.in_turn(
        {"ours": lambda: sparks.stream(spark, url).selectExpr(*sparks.SUMS).first(), "kafka": from_kafka}
    )
    for timed in found.values():
        sparks.check_sums(timed, count)
    taken, other = found["ours"], found["kafka"]
    return {
        "times_kafka": other.seconds / taken.seconds,
        "rows_per_s": count / taken.seconds,
        "kafka_rows_per_s": count / other.seconds,
        "times_kafka_cpu": other.cpu_seconds / taken.cpu_seconds,
    }


SCENARIO = Scenario(
    name="spark_kafka",
    title="Spark reads rows from a stream, and the same as JSON from Kafka, on two cores",
    cases=(
        Case(
            "3 columns",
            run,
            product.available() or kafka.available(),
            f"sum(id), sum(x), sum(octet_length(v)) of {ROWS:,} rows, read in the server's folder; "
            f"Kafka {kafka.KAFKA}, {kafka.PARTITIONS} partitions, connector {kafka.CONNECTOR}",
        ),
    ),
    shown=("times_kafka", "rows_per_s", "kafka_rows_per_s", "times_kafka_cpu"),
    targets=(Target("3 columns", "times_kafka", 3),),
)
