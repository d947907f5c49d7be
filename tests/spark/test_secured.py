"""A server with TLS, tokens and rules: Spark reads, follows and writes what its token allows, and nothing shows it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import mainstem
from mainstem.core.errors import Forbidden, Unauthenticated
from mainstem.spark.java import find_java
from mainstem.spark.jobs.compact import compact
from mainstem.spark.jobs.warehouse import warehouse
from mainstem.testing import certificates
from mainstem.testing.certificates import Authority
from mainstem.testing.server import ServerProcess
from tests.spark.lakes import table_of
from tests.spark.parts import SCHEMA, fill

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow("Spark starts processes for everything it is asked")]

SOURCE = Path(__file__).parents[2] / "src"
ROWS = 1_000
# What principals may do, by their names.
RULES = {
    "pipeline": ["read:orders", "write:copies", "group:lake"],
    "reader": ["read:orders"],
    "writer": ["write:copies"],
    "stranger": ["read:other"],
}


class Secured:
    """A server that nobody talks to without a token and without TLS."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        with mainstem.open(folder / "data") as hub:
            self.tokens = {"root": hub.access.create_token("root", admin=True).secret}
            for name, rules in RULES.items():
                self.tokens[name] = hub.access.create_token(name, allow=rules).secret
            fill(hub, count=ROWS)
            hub.streams.create("copies", shards=2, schema=SCHEMA)
        issued = authority.issue("localhost", addresses=["127.0.0.1"])
        self.ca = str(authority.certificate)
        # Whom a client can be by a certificate.
        self.certified = authority.issue("reader")
        self.server = ServerProcess(
            folder / "data",
            *("--tls-cert", str(issued.certificate), "--tls-key", str(issued.key)),
            *("--tls-client-ca", str(authority.certificate)),
        )

    def options(self, who: str | None) -> dict[str, str]:
        found = {"hub": self.server.url, "ca": self.ca}
        return found if who is None else {**found, "token": self.tokens[who]}

    def count(self, stream: str) -> int:
        with mainstem.connect(self.server.url, token=self.tokens["root"], ca=self.ca) as hub:
            return hub.streams.get(stream).records

    def require_unseen(self, text: str) -> None:
        """No token in a text, nor the part of one that is secret."""
        for token in self.tokens.values():
            assert token not in text
            assert token.rpartition("_")[2] not in text


@pytest.fixture(scope="module")
def secured(tmp_path_factory) -> Iterator[Secured]:
    if not certificates.is_possible():
        pytest.skip("no openssl; enable: apt install openssl")
    found = Secured(tmp_path_factory.mktemp("secured"), Authority(tmp_path_factory.mktemp("authority")))
    with found.server:
        yield found
        found.require_unseen(found.server.stderr())


def read(spark: SparkSession, secured: Secured, who: str | None, stream: str = "orders", **options: str) -> DataFrame:
    return spark.read.format("mainstem").options(**secured.options(who), **options).load(stream)


def write(rows: DataFrame, secured: Secured, who: str | None, stream: str = "copies") -> None:
    rows.write.format("mainstem").mode("append").options(**secured.options(who)).save(stream)


def explained(rows: DataFrame, capfd: pytest.CaptureFixture[str]) -> str:
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        rows.explain(mode=mode)
    return capfd.readouterr().out


def executed(spark: SparkSession) -> str:
    """What the user interface would show of everything that was run."""
    listed = spark._jsparkSession.sharedState().statusStore().executionsList()
    found = []
    for index in range(listed.size()):
        each = listed.apply(index)
        found += [each.description(), each.details(), each.physicalPlanDescription(), str(each.modifiedConfigs())]
    return "\n".join(found)


def test_what_a_token_allows_is_read_and_written(spark, secured, tmp_path, capfd):
    rows = read(spark, secured, "reader", where="id >= 0")
    assert rows.selectExpr("count(*)", "sum(id)").collect() == [(ROWS, ROWS * (ROWS - 1) // 2)]
    before = secured.count("copies")
    write(rows, secured, "writer")
    assert secured.count("copies") == before + ROWS
    assert "mainstem" in explained(rows, capfd)
    secured.require_unseen(explained(rows, capfd))
    assert "mainstem" in executed(spark)
    secured.require_unseen(executed(spark))


def test_who_one_is_by_a_file_and_by_a_certificate(spark, secured, tmp_path):
    (tmp_path / "token").write_text(secured.tokens["reader"] + "\n")
    certified = {"certificate": str(secured.certified.certificate), "certificateKey": str(secured.certified.key)}
    for given in ({"tokenFile": str(tmp_path / "token")}, certified):
        rows = read(spark, secured, None, **given)
        assert rows.count() == ROWS
        # As nobody else: what the reader may not.
        with pytest.raises(PySparkException, match=r"mainstem\.core\.errors\.Forbidden"):
            rows.write.format("mainstem").mode("append").options(**secured.options(None), **given).save("copies")


def test_a_query_goes_from_stream_to_stream_with_one_token(spark, secured, tmp_path):
    rows = spark.readStream.format("mainstem").options(
        **secured.options("pipeline"), startingOffsets="earliest", group="lake"
    )
    writing = rows.load("orders").writeStream.format("mainstem").options(**secured.options("pipeline"))
    before = secured.count("copies")
    query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    running = query.start("copies")
    assert running.awaitTermination(100)
    assert secured.count("copies") == before + ROWS
    secured.require_unseen("\n".join(each.json for each in running.recentProgress))
    secured.require_unseen(executed(spark))
    # Nor does the checkpoint keep it.
    for path in (tmp_path / "checkpoint").rglob("*"):
        if path.is_file():
            secured.require_unseen(path.read_text(errors="replace"))


@pytest.mark.parametrize(
    ("who", "says"),
    [(None, "Unauthenticated"), ("stranger", "Forbidden"), ("writer", "Forbidden")],
)
def test_reading_without_the_right_is_refused_by_name(spark, secured, who, says):
    with pytest.raises(PySparkException, match=rf"mainstem\.core\.errors\.{says}") as caught:
        read(spark, secured, who).count()
    secured.require_unseen(str(caught.value))


@pytest.mark.parametrize(
    ("who", "says"),
    [(None, "Unauthenticated"), ("stranger", "Forbidden"), ("reader", "Forbidden")],
)
def test_writing_without_the_right_is_refused_by_name(spark, secured, who, says):
    rows = read(spark, secured, "reader")
    before = secured.count("copies")
    with pytest.raises(PySparkException, match=rf"mainstem\.core\.errors\.{says}") as caught:
        write(rows, secured, who)
    secured.require_unseen(str(caught.value))
    assert secured.count("copies") == before


def test_a_query_without_the_right_says_so(spark, secured, tmp_path):
    options = {**secured.options("writer"), "startingOffsets": "earliest"}
    rows = spark.readStream.format("mainstem").options(**options).schema("id long").load("orders")
    started = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(PySparkException, match=r"mainstem\.core\.errors\.Forbidden") as caught:
        started.awaitTermination(100)
    secured.require_unseen(str(caught.value))


def test_whom_to_trust_is_asked(spark, secured):
    options = {name: value for name, value in secured.options("reader").items() if name != "ca"}
    with pytest.raises(PySparkException, match="certificate") as caught:
        spark.read.format("mainstem").options(**options).load("orders")
    secured.require_unseen(str(caught.value))


def test_a_token_in_the_wrong_place_is_not_shown(spark, secured):
    token = secured.tokens["reader"]
    for wrong in ({"tokenFile": token}, {"hub": f"mainstems://{token}@127.0.0.1:1"}, {"columns": "id", "tokn": token}):
        options = {**secured.options(None), **wrong}
        with pytest.raises(PySparkException) as caught:
            spark.read.format("mainstem").options(**options).load("orders")
        secured.require_unseen(str(caught.value))


def test_a_table_of_the_catalogue_does_not_tell_its_token(spark, secured, capfd):
    given = ", ".join(f"'{name}' '{value}'" for name, value in secured.options("reader").items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW secured USING mainstem OPTIONS ({given}, 'stream' 'orders')")
    try:
        rows = spark.sql("SELECT count(*) FROM secured")
        assert rows.first()[0] == ROWS
        secured.require_unseen(explained(rows, capfd))
        secured.require_unseen(executed(spark))
    finally:
        spark.catalog.dropTempView("secured")


def test_jobs_take_tokens_and_certificates_too(spark, secured, tmp_path):
    given = {"ca": secured.ca, "spark": spark}
    done = warehouse(secured.server.url, "orders", tmp_path / "lake", token=secured.tokens["reader"], **given)
    assert (done.rows_written, table_of(tmp_path / "lake").num_rows) == (ROWS, ROWS)
    with pytest.raises(Forbidden):
        warehouse(secured.server.url, "orders", tmp_path / "other", token=secured.tokens["stranger"], **given)
    with pytest.raises(Unauthenticated):
        warehouse(secured.server.url, "orders", tmp_path / "other", **given)
    certified: Any = {"certificate": str(secured.certified.certificate), "certificate_key": str(secured.certified.key)}
    assert warehouse(secured.server.url, "orders", tmp_path / "certified", **certified, **given).rows_written == ROWS
    # Only the server's own people may put files into its folder.
    with pytest.raises(Forbidden):
        compact(secured.server.url, "orders", token=secured.tokens["reader"], manifests=tmp_path / "notes", **given)


SUBMITTED = """
import os
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("submitted").getOrCreate()
# The token of the environment is used where none is given.
options = {"hub": sys.argv[1], "ca": sys.argv[2]}
rows = spark.read.format("mainstem").options(**options).load("orders")
rows.explain(True)
token = os.environ["MAINSTEM_TOKEN"]
rows.write.format("mainstem").mode("append").options(**options, token=token).save("copies")
print("read", rows.count(), *(name for name in sys.modules if name.startswith("mainstem")))
spark.stop()
"""


@pytest.mark.slow("starts Spark by its own script")
def test_spark_submit_finds_the_source_and_logs_no_token(secured, tmp_path):
    """With Spark's own session and its log lines as they are out of the box, and the history of what it ran."""
    script = tmp_path / "script.py"
    script.write_text(SUBMITTED)
    events = tmp_path / "events"
    events.mkdir()
    before = secured.count("copies")
    done = subprocess.run(
        [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            *("--master", "local[1]", "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=INFO"),
            *("--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir=file:{events}"),
            *("--conf", "spark.eventLog.compress=false", "--conf", f"spark.local.dir={tmp_path}"),
            *(str(script), secured.server.url, secured.ca),
        ],
        env={
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(SOURCE),
            "MAINSTEM_TOKEN": secured.tokens["pipeline"],
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    # The program has loaded nothing of ours: Spark has found the source by its name.
    assert f"read {ROWS}\n" in done.stdout
    assert secured.count("copies") == before + ROWS
    assert " INFO " in done.stderr, "the log lines of Spark"
    secured.require_unseen(done.stdout + done.stderr)
    logged = [path.read_text() for path in events.rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert any("SQLExecutionStart" in text for text in logged)
    for text in logged:
        secured.require_unseen(text)
