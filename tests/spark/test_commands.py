"""`mainstem sql` and the jobs of `mainstem job run`, as they are typed."""

import importlib
import json
import os
import re
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

import mainstem
from mainstem.cli.app import run
from mainstem.hub.hub import Hub
from mainstem.log.cold_maker import cold_files
from mainstem.testing.server import ServerProcess
from tests.spark.conftest import SOURCE
from tests.unit.cli.test_progress import Prompt, Terminal, words_of

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow("each command is a job of Spark")]
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def folder(spark, tmp_path):
    """Ten orders of two countries, counted, and in a table too."""
    with mainstem.open(tmp_path / "data") as hub:
        schema = {"id": "int64", "country": "string", "amount": "decimal(10, 2)"}
        hub.streams.create("orders", schema=schema, retention="3650d")
        with hub.producer(counts="10s") as producer:
            for number in range(10):
                row = {"id": number, "country": ("DE", "FR")[number % 2], "amount": number}
                producer.send("orders", row, timestamp=START)
        with hub.consumer("orders", start="earliest", follow=False) as consumer:
            for batch in consumer.batches():
                write_deltalake(str(tmp_path / "table"), batch.to_arrow(metadata=True).drop_columns("_headers"))
    return tmp_path


def test_sql_prints_a_table_or_json(folder, capfd):
    data = ("--data", str(folder / "data"))
    assert run(["sql", "SELECT country, sum(amount) AS total FROM orders GROUP BY 1 ORDER BY 1", *data]) == 0
    out, error = capfd.readouterr()
    assert [line.split() for line in out.splitlines()] == [["country", "total"], ["DE", "20.00"], ["FR", "25.00"]]
    assert error.startswith("2 rows; ")
    assert run(["sql", "SELECT id, id FROM orders ORDER BY 1", "--json", "--limit", "2", *data]) == 0
    out, error = capfd.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == [{"id": 0, "id_2": 0}, {"id": 1, "id_2": 1}]
    assert "2 rows, and there are more: see --limit" in error
    assert run(["sql", "SELECT '' AS a, string(null) AS b", *data]) == 0
    assert [line.split() for line in capfd.readouterr().out.splitlines()] == [["a", "b"], ["NULL"]]


OF_THE_LAST_HOUR = "SELECT country, sum(amount) FROM orders WHERE ts > now() - interval 1 hour GROUP BY country"


def sell(hub: Hub) -> None:
    """Twelve orders, one every ten minutes until now."""
    schema = {"country": "string", "amount": "decimal(10, 2)", "ts": "timestamp"}
    hub.streams.create("orders", shards=2, schema=schema)
    now = datetime.now(UTC)
    with hub.producer() as producer:
        for number in range(12):
            at = now - number * timedelta(minutes=10)
            row = {"country": ("DE", "FR")[number % 2], "amount": number, "ts": at}
            producer.send("orders", row, shard=number // 6)


@pytest.fixture
def sold(spark, server):
    """A server with these orders."""
    with mainstem.connect(server.url) as hub:
        sell(hub)
    return server


def test_sql_asks_a_server(sold, capfd):
    assert run(["sql", OF_THE_LAST_HOUR, "--url", sold.url]) == 0
    check_of_the_last_hour(capfd)


def test_sql_asks_a_server_as_who_one_is(spark, tmp_path, capfd, monkeypatch):
    with mainstem.open(tmp_path / "data") as hub:
        sell(hub)
        hub.access.create_token("root", admin=True)
        for name, allowed in (("reader", "read:orders"), ("stranger", "read:others")):
            (tmp_path / name).write_text(hub.access.create_token(name, allow=[allowed]).secret)
    with ServerProcess(tmp_path / "data") as server:
        asked = ["sql", OF_THE_LAST_HOUR, "--url", server.url]
        assert run(asked) == 5
        out, error = capfd.readouterr()
        assert (out, "this server wants a token" in error) == ("", True)
        # To who may not see a stream there is none.
        assert run([*asked, "--token-file", str(tmp_path / "stranger")]) == 3
        assert "no stream is called 'orders'" in capfd.readouterr().err
        assert run([*asked, "--token-file", str(tmp_path / "reader")]) == 0
        check_of_the_last_hour(capfd)
        # By settings.
        monkeypatch.setenv("MAINSTEM_TOKEN_FILE", str(tmp_path / "reader"))
        monkeypatch.setenv("MAINSTEM_URL", server.url)
        assert run(asked[:2]) == 0
        check_of_the_last_hour(capfd)


def check_of_the_last_hour(capfd: pytest.CaptureFixture[str]) -> None:
    """That this was printed, and nothing else."""
    out, error = capfd.readouterr()
    head, *rows = [line.split() for line in out.splitlines()]
    assert [head, *sorted(rows)] == [["country", "sum(amount)"], ["DE", "6.00"], ["FR", "9.00"]]
    assert re.fullmatch(r"2 rows; \d+\.\d s\n", error)


def test_sql_reads_parquet_files_beside_a_server(sold, spark, capfd):
    """By Spark's own reader, as soon as every record is in one; that the folder is the server's is proven."""

    def asked() -> tuple[list[list[str]], bool, bool]:
        statement = "SELECT country, count(*) AS many, sum(amount) AS total FROM orders GROUP BY 1 ORDER BY 1"
        assert run(["sql", statement, "--url", sold.url]) == 0
        rows = [line.split() for line in capfd.readouterr().out.splitlines()[1:]]
        plan = last_plan(spark)
        return rows, "Scan parquet" in plan, "BatchScan" in plan

    rows = [["DE", "6", "30.00"], ["FR", "6", "36.00"]]
    assert asked() == (rows, False, True)
    given = ("--older-than", "0s", "--file-bytes-min", "1", "--url", sold.url)
    assert run(["job", "run", "compact", "orders", *given]) == 0
    assert capfd.readouterr().out.startswith("compact: 12 records of orders in 2 files, ")
    assert asked() == (rows, True, False)
    # A folder of that name in which another writer's word stands is not taken for it.
    note = sold.folder / "lock"
    own = note.read_text()
    note.write_text("process 1\nanother\n")
    assert asked() == (rows, False, True)
    note.write_text(own)
    assert asked() == (rows, True, False)
    with mainstem.connect(sold.url) as hub, hub.producer() as producer:
        producer.send("orders", {"country": "DE", "amount": 5, "ts": START})
    assert asked() == ([["DE", "7", "35.00"], rows[1]], False, True)


def last_plan(spark) -> str:
    """Of what Spark has executed last."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    listed = spark._jsparkSession.sharedState().statusStore().executionsList()
    last = max((listed.apply(index) for index in range(listed.size())), key=lambda each: each.executionId())
    return str(last.physicalPlanDescription())


def told(stderr: str) -> list[str]:
    """But for Java's own line about a module that Spark asks for, which is not ours to silence."""
    return [line for line in stderr.splitlines() if "jdk.incubator.vector" not in line]


@pytest.mark.slow("starts a second Spark")
def test_a_command_writes_no_lines_of_sparks_own(folder):
    done = subprocess.run(
        [sys.executable, "-m", "mainstem", "sql", "SELECT max(id) AS id FROM orders", "--data", str(folder / "data")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.split() == ["id", "9"], done.stderr
    assert told(done.stderr)[0].startswith("1 row; "), done.stderr


@pytest.mark.slow("starts a second Spark, and tasks that fail are tried four times")
def test_a_statement_that_fails_in_a_task_is_told_in_a_line(folder):
    """With what was wrong, and not with where in Spark it was found."""
    statement = "SELECT assert_true(id < 5) FROM orders"
    done = subprocess.run(
        [sys.executable, "-m", "mainstem", "sql", statement, "--data", str(folder / "data")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 5
    lines = told(done.stderr)
    # What follows it, if anything: a worker that had not begun with its task as the command ended.
    assert "(id < 5)' is not true" in lines[0], done.stderr
    assert not [line for line in lines if "ERROR" in line or line.startswith("\tat ")], done.stderr


def test_sql_says_what_is_wrong(folder, capfd):
    data = ("--data", str(folder / "data"))
    assert run(["sql", "SELECT * FROM ordrs", *data]) == 3
    assert "did you mean `orders`?" in capfd.readouterr().err
    assert run(["sql", "SELECT nothing FROM orders", *data]) == 2
    error = capfd.readouterr().err
    assert "`nothing` cannot be resolved" in error
    assert len(error.splitlines()) == 1


def test_audit_says_what_differs_and_stream_show_what_is_verified(folder, capfd):
    data = ("--data", str(folder / "data"))
    table = ("--table", str(folder / "table"), "--settle", "1s")
    assert run(["job", "run", "audit", "orders", *table, *data]) == 0
    assert "orders: 1 window of 10s compared\nverified through 2026-" in capfd.readouterr().out
    assert run(["stream", "show", "orders", *data]) == 0
    assert "\nverified through 2026-" in capfd.readouterr().out
    with mainstem.open(folder / "data") as hub, hub.producer() as producer:
        producer.send("orders", {"id": 99, "country": "DE", "amount": 1}, timestamp=START)
    since = ("--since", "2026-03-01T00:00:00Z")
    assert run(["job", "run", "audit", "orders", *table, *since, "--json", *data]) == 1
    (line,) = json.loads(capfd.readouterr().out)["differing"]
    assert (line["window"], line["tier"], line["difference"], line["verdict"]) == (
        "2026-03-01T12:00:00+00:00",
        "read",
        1,
        "extra",
    )
    assert run(["job", "run", "audit", "orders", *table, *since, "--dry-run", *data]) == 1
    assert "2026-03-01T12:00:00.000000Z  read    10     11       +1" in capfd.readouterr().out
    assert run(["stream", "show", "orders", "--json", *data]) == 0
    assert json.loads(capfd.readouterr().out)["verified_through"] == "2026-03-01T12:00:00.000000Z"


def test_a_function_is_found_in_the_current_folder(folder):
    """By the command and by the workers, with what it imports from there."""
    (folder / "factors.py").write_text("FACTOR = 3\n")
    (folder / "making.py").write_text(textwrap.dedent(MAKING))
    command = Path(sys.executable).with_name("mainstem")
    times = ("--since", "2026-03-01T12:00:00Z", "--until", "2026-03-01T13:00:00Z", "--master", "local[2]")

    def replay(function: str, to: str) -> subprocess.CompletedProcess[str]:
        arguments = ("job", "run", "replay", "orders", to, "--function", function, *times, "--data", "data")
        environment = os.environ | {"PYTHONPATH": str(SOURCE)}
        return subprocess.run(
            [command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
        )

    done = replay("making:tripled", "tripled")
    assert done.returncode == 0, done.stderr
    assert sorted(DeltaTable(str(folder / "tripled")).to_pyarrow_table()["id"].to_pylist()) == list(range(0, 30, 3))
    done = replay("making:broken", "broken")
    assert done.returncode == 2
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("mainstem: ")]
    assert said.startswith("mainstem: function making:broken failed: ValueError: boom ("), done.stderr
    assert "making.py, line 16)" in said
    assert "\tat " not in done.stderr


MAKING = """\
    import pyarrow as pa
    import pyarrow.compute as pc


    def tripled(rows):
        import factors

        return pa.record_batch({"id": pc.multiply(rows["id"], factors.FACTOR)})


    def broken(rows):
        return rows if not rows.num_rows else explode()


    def explode():
        raise ValueError("boom")
"""


@pytest.fixture
def shop(spark, server):
    """A server with 300 rows of 100 keys, written a few at a time, and a stream beside it."""
    with mainstem.connect(server.url) as hub:
        hub.streams.create("stock", shards=2, schema={"item": "int64", "left": "int64"}, key="item", retention="3650d")
        hub.streams.create("fixed", schema={"item": "int64"})
        with hub.producer() as producer:
            for number in range(300):
                at = START + timedelta(minutes=number // 100)
                producer.send("stock", {"item": number % 100, "left": number}, timestamp=at)
                if number % 25 == 0:
                    producer.flush()
    return server


def test_compact_moves_old_records_and_says_how_many(shop, state, capfd):
    url = ("--url", shop.url)
    assert run(["job", "run", "compact", "stock", *url]) == 0
    assert capfd.readouterr().out == "compact: 0 records of stock in 0 files, 0 B\n", "all of it is new"
    old = ("--older-than", "0s", "--file-bytes-min", "1")
    assert run(["job", "run", "compact", "stock", *old, *url]) == 0
    assert capfd.readouterr().out.startswith("compact: 300 records of stock in 2 files, ")
    assert len(cold_files(shop.folder, "stock")) == 2
    with mainstem.connect(shop.url) as hub, hub.consumer("stock", start="earliest", follow=False) as consumer:
        assert sorted(record.value["left"] for record in consumer) == list(range(300))
    assert run(["job", "run", "compact", "stock", "--json", *old, *url]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["stream"], told["records"], told["files"], told["loads"]) == ("stock", 0, 0, 0)
    # What it has done is listed with what other jobs did that have no table.
    assert run(["job", "loads", "--json"]) == 0
    (load,) = json.loads(capfd.readouterr().out)
    assert (load["job"], load["state"], load["rows_written"]) == ("compact", "done", 300)
    assert run(["job", "loads", str(state)]) == 0
    listed = capfd.readouterr().out.splitlines()[1].split()
    assert listed[:7] == ["compact", "stock", "1", "done", "300", "300", "2"]
    assert run(["job", "run", "compact", "stocks", *url]) == 3
    assert "there is no stream 'stocks'" in capfd.readouterr().err


def test_an_upsert_takes_no_where(shop, tmp_path, capfd):
    given = ("--mode", "upsert", "--where", "left > 5", "--url", shop.url)
    assert run(["job", "run", "warehouse", "stock", str(tmp_path / "t"), *given]) == 2
    assert "mainstem: mode='upsert' takes no where: a tombstone has no columns" in capfd.readouterr().err


def test_what_is_wrong_is_told_by_its_option_before_anything_is_begun(shop, state, tmp_path, capfd, monkeypatch):
    """Before Spark is started, where it is not needed to know; nothing is left in the folder, or in that of manifests
    where the job writes no table."""
    started: list[int] = []
    for job in ("warehouse", "replay", "audit", "compact"):
        module = importlib.import_module(f"mainstem.spark.jobs.{job}")
        monkeypatch.setattr(module, "session", partial(_counted, started, module.session))

    def said(job: str, *given: str, starts: bool = False) -> str:
        table = tmp_path / "t"
        started.clear()
        where = ("stock",) if job in ("audit", "compact") else ("stock", str(table))
        assert run(["job", "run", job, *where, *given, "--url", shop.url]) == 2
        assert not table.exists()
        assert not state.exists()
        assert bool(started) is starts
        return capfd.readouterr().err

    by_hour = ("--partition", "hour", "--time")
    within = ("--since", "2026-03-01T12:01:00Z", "--until", "2026-03-01T12:02:00Z")
    query = ("--sql", "SELECT left FROM stock")
    for job, given in (("warehouse", ()), ("replay", within)):
        missing = said(job, *given, *by_hour, "nosuch")
        assert "time (--time): the rows have no column 'nosuch' to partition by hour; there are item, left" in missing
        assert "time (--time): column 'left' is int64, and to partition by hour takes" in said(
            job, *given, *by_hour, "left"
        )
        assert "time (--time): column 'left' is int64" in said(job, *given, *by_hour, "left", *query, starts=True)
    backwards = ("--since", within[3], "--until", within[1])
    assert "since (--since) must be before until (--until)" in said("replay", *backwards)
    assert "older_than (--older-than): '3' is no length of time" in said("compact", "--older-than", "3")
    assert "vacuum (--vacuum): '3' is no length of time" in said("warehouse", "--vacuum", "3")
    assert "window (--window): '1y' is no length of time" in said("audit", "--window", "1y")
    assert "window (--window) is between 1 second and 24 hours, not 25h" in said("audit", "--window", "25h")
    assert "settle (--settle): 'soon' is no length of time" in said("audit", "--settle", "soon")


def _counted(started: list[int], session, *given, **options):
    started.append(1)
    return session(*given, **options)


def test_a_folder_that_a_server_has_is_refused_with_what_to_use(shop, state, tmp_path, capfd):
    """By jobs that write to it, before they do anything."""
    folder = str(shop.folder)
    within = ("--since", "2026-03-01T12:01:00Z", "--until", "2026-03-01T12:02:00Z")
    into = ("stock", str(tmp_path / "notes"), *within, "--into", "fixed", "--columns", "item")
    jobs = (("replay", into), ("compact", ("stock", "--older-than", "0s", "--file-bytes-min", "1")))
    for job, given in jobs:
        assert run(["job", "run", job, *given, "--data", folder]) == 5
        (said,) = capfd.readouterr().err.splitlines()
        assert said.startswith(f"mainstem: {folder} is being written by process {shop.pid}; ")
        assert "If that is a server (mainstem serve), go through it by its address" in said
        assert said.endswith("; use --url to go through the server that has it")
        assert f"let a server have it (mainstem serve --data {folder})" in said or job == "compact"
    assert [*(shop.folder / "staging").rglob("*"), *shop.folder.rglob("*.parquet")] == []
    assert not state.exists()
    assert list((tmp_path / "notes").rglob("*.json")) == []
    with mainstem.connect(shop.url) as hub:
        assert hub.streams.get("fixed").records == 0
    # Through the server both are done.
    for job, given in jobs:
        assert run(["job", "run", job, *given, "--url", shop.url]) == 0
    with mainstem.connect(shop.url) as hub:
        assert hub.streams.get("fixed").records == 100


def test_how_long_ago_is_asked_once(shop, tmp_path, capfd):
    given = ("stock", str(tmp_path / "t"), "--start", "1h", "--url", shop.url)
    assert run(["job", "run", "warehouse", *given]) == 0
    assert capfd.readouterr().out.startswith("warehouse: 0 records of stock in 0 loads, ")
    with mainstem.connect(shop.url) as hub, hub.producer() as producer:
        producer.send("stock", {"item": 1, "left": 1}, timestamp=START)
    assert run(["job", "run", "warehouse", *given]) == 0
    assert capfd.readouterr().out.startswith("warehouse: 1 record of stock in 1 load, ")


def test_snapshot_prints_the_cursor_from_which_to_read_on(shop, tmp_path, capfd):
    url = ("--url", shop.url)
    assert run(["job", "run", "snapshot", "stock", str(tmp_path / "s"), "--columns", "item,left", *url]) == 0
    said = capfd.readouterr().out.splitlines()
    assert said[0].startswith("snapshot: 300 records of stock in 1 load, ")
    assert said[1].startswith("wrote 100 rows in ")
    rows = DeltaTable(str(tmp_path / "s" / "rows")).to_pyarrow_table()
    assert sorted(rows["left"].to_pylist()) == list(range(200, 300))
    cursor = said[-1].removeprefix("up to ")
    assert run(["job", "run", "snapshot", "stock", str(tmp_path / "d"), "--since", cursor, "--json", *url]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["rows_read"], told["start"], told["end"]) == (0, cursor, cursor)


def test_replay_goes_into_a_table_or_another_stream(shop, tmp_path, capfd):
    url = ("--url", shop.url)
    within = ("--since", "2026-03-01T12:01:00Z", "--until", "2026-03-01T12:02:00Z")
    query = ("--sql", "SELECT item, left FROM stock WHERE item < 10")
    assert run(["job", "run", "replay", "stock", str(tmp_path / "t"), *within, *query, *url]) == 0
    assert "wrote 10 rows" in capfd.readouterr().out
    rows = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    assert sorted(rows["left"].to_pylist()) == list(range(100, 110))
    # In its place: what is different is said.
    right = ("--sql", "SELECT item, if(item = 3, -1, left) AS left FROM stock WHERE item BETWEEN 2 AND 10", "--replace")
    assert run(["job", "run", "replay", "stock", str(tmp_path / "t"), *within, *right, *url]) == 0
    assert "compared with version 1: 1 row added, 2 removed, 1 changed, 7 the same\n" in capfd.readouterr().out
    into = ("--into", "fixed", "--columns", "item")
    for records in (100, 0):
        assert run(["job", "run", "replay", "stock", str(tmp_path / "notes"), *within, *into, "--json", *url]) == 0
        assert json.loads(capfd.readouterr().out)["rows_written"] == records
    assert run(["job", "run", "replay", "stock", str(tmp_path / "notes"), *within, *into, *url]) == 0
    assert "\nwrote 0 rows, to stream fixed\n" in capfd.readouterr().out
    with mainstem.connect(shop.url) as hub:
        assert hub.streams.get("fixed").records == 100


def test_the_steps_of_every_job_are_shown_on_a_terminal(shop, tmp_path, monkeypatch):
    """Jobs name their steps, and the command knows these names."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("rich.progress.Progress", Prompt)
    with mainstem.connect(shop.url) as hub, hub.producer(counts="10s") as producer:
        hub.streams.create("sold", schema={"item": "int64"}, retention="3650d")
        producer.send("sold", {"item": 1}, timestamp=START)
    within = ("--since", "2026-03-01T12:01:00Z", "--until", "2026-03-01T12:02:00Z")
    again = ("replay", "stock", str(tmp_path / "r"), *within, "--replace")
    records = ("records 0%", "records 100%", "tasks of Spark 0%", "tasks of Spark 100%")
    for given, shown in (
        (("warehouse", "stock", str(tmp_path / "w")), (*records, "making large files of small ones 100%")),
        (("warehouse", "stock", str(tmp_path / "u"), "--mode", "upsert"), records),
        (("snapshot", "stock", str(tmp_path / "s")), records),
        (again, records),
        (again, (*records, "comparing with the version before 100%")),
        (("audit", "sold"), ("parts compared 0%", "parts compared 100%")),
        (
            ("compact", "stock", "--older-than", "0s", "--file-bytes-min", "1"),
            ("ranges of records 0%", "ranges of records 100%"),
        ),
    ):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        assert run(["job", "run", *given, "--url", shop.url]) == 0, terminal.getvalue()
        words = words_of(terminal.getvalue())
        assert words.startswith(f"{given[0]}: starting Spark ")
        for each in shown:
            assert each in words, (given, each)


def test_a_token_that_is_asked_for_is_not_for_jobs(spark, capfd):
    assert run(["job", "run", "compact", "stock", "--token-file", "-"]) == 2
    assert "put the token into a file" in capfd.readouterr().err
    assert run(["job", "run", "compact", "stock", "--url", "mainstem://127.0.0.1:1", "--data", "x"]) == 2
    assert "give one of them" in capfd.readouterr().err
