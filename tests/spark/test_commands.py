"""`mainstem sql` and `mainstem job run audit`, as they are typed."""

import json
from datetime import UTC, datetime

import pytest
from deltalake import write_deltalake

import mainstem
from mainstem.cli.app import run

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
