"""The audit: what was sent beside what is there, in the log and in a table."""

import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import mainstem
from mainstem.core.cursor import Cursor
from mainstem.core.errors import InvalidRequest, SchemaMismatch
from mainstem.hub.counted import verified
from mainstem.hub.hub import Hub
from mainstem.spark.jobs.audit import audit
from mainstem.spark.jobs.catalogue import loads_of
from mainstem.testing.server import ServerProcess
from tests.spark.lakes import CutShort, cut_at

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow("each audit is a job of Spark")]

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
WINDOW = timedelta(seconds=10)


def fill(hub: Hub, count: int, windows: int = 6, counts: str | None = "10s") -> None:
    """Records of so many windows, as many in each; those of key `doomed` are seven, in the third."""
    hub.streams.create("orders", shards=3, retention="3650d")
    each = count // windows
    with hub.producer(counts=counts) as producer:
        for window in range(windows):
            for number in range(each):
                at = START + window * WINDOW + number * WINDOW / each
                key = (
                    b"doomed"
                    if window == 2 and number % (each // 7) == 0 and number // (each // 7) < 7
                    else b"%d" % number
                )
                producer.send("orders", b"x", key=key, timestamp=at)


def copy_to_table(hub: Hub, table: Path) -> None:
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        for batch in consumer.batches():
            rows = batch.to_arrow(metadata=True).select(["_shard", "_offset", "_timestamp"])
            write_deltalake(str(table), rows, mode="append")


def differing(result) -> list[tuple[int, str, int]]:
    """The place of the window, the tier, by how many."""
    return [
        (line.start_us // 10_000_000 - int(START.timestamp()) // 10, line.tier.partition(" ")[0], line.difference)
        for line in result.reconciliation.differing
    ]


@pytest.mark.mechanism("K27")
@pytest.mark.mechanism("P4")
def test_k27_the_audit_finds_what_is_missing_and_where(spark, tmp_path):
    """60,000 records in six windows: all there. Seven less in the log: that window, that tier, -7; seven less and five
    more in the table likewise. A producer that is killed in mid-window is flagged. Without counts nothing is said."""
    table = tmp_path / "table"
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:

        def run(**options):
            return audit(server.url, "orders", tables=[table], spark=spark, settle="1s", **options)

        fill(hub, 60_000)
        copy_to_table(hub, table)
        result = run()
        assert (result.reconciliation.windows, differing(result)) == (6, [])
        assert result.verified_through > START + 6 * WINDOW
        assert verified(hub)["orders"].through_us == result.reconciliation.verified_through_us

        # The table loses seven rows of the fourth window, and has five of the fifth twice.
        first = START + 3 * WINDOW
        lake = DeltaTable(str(table))
        rows = lake.to_pyarrow_table().to_pylist()
        lost = [row for row in rows if first <= row["_timestamp"] < first + WINDOW][:7]
        doubled = [row for row in rows if first + WINDOW <= row["_timestamp"] < first + 2 * WINDOW][:5]
        for row in lost:
            lake.delete(f"_shard = {row['_shard']} AND _offset = {row['_offset']}")
        write_deltalake(str(table), pa.Table.from_pylist(doubled, lake.to_pyarrow_table().schema), mode="append")
        # And the log loses seven.
        assert hub.streams.erase("orders", b"doomed").records == 7
        result = run(since=START)
        assert differing(result) == [(2, "read", -7), (3, "table", -7), (4, "table", 5)]
        assert result.verified_through == START + 2 * WINDOW
        assert not result.is_good
        found = result.as_json()["differing"]
        assert isinstance(found, list)
        assert found[0]["verdict"] == "missing"
        assert hub.streams.get("orders").records == 60_000 - 7

        # A producer that never came to say what it sent.
        subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), server.url], check=False)
        result = audit(server.url, "orders", spark=spark, settle="1s", since=START + 9 * WINDOW)
        assert differing(result) == [(10, "read", 4)]
        assert result.reconciliation.differing[0].verdict == "extra"

    with ServerProcess(tmp_path / "uncounted") as server, mainstem.connect(server.url) as hub:
        fill(hub, 600, counts=None)
        with pytest.raises(InvalidRequest, match="no producer has counted what it sent to 'orders'"):
            audit(server.url, "orders", spark=spark)


KILLED = """
    import os, signal, sys
    from datetime import UTC, datetime, timedelta
    import mainstem

    with mainstem.connect(sys.argv[1]) as hub, hub.producer(counts="1h") as producer:
        for number in range(4):
            producer.send("orders", b"x", timestamp=datetime(2026, 3, 1, 12, 1, 40 + number, tzinfo=UTC)).result(20)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_an_audit_of_a_folder_goes_on_where_the_last_one_was(spark, tmp_path):
    folder = tmp_path / "data"
    with mainstem.open(folder) as hub:
        fill(hub, 60, windows=2)
    first = audit(folder, "orders", spark=spark, settle="1s")
    assert (first.reconciliation.windows, first.is_good, first.is_published) == (2, True, True)
    again = audit(folder, "orders", spark=spark, settle="1s")
    assert again.reconciliation.windows == 0
    assert again.verified_through >= first.verified_through
    everything = audit(folder, "orders", spark=spark, settle="1s", window="1m", since=START, publish=False)
    assert (everything.reconciliation.windows, everything.is_good) == (1, True)
    with mainstem.open(folder) as hub:
        assert verified(hub)["orders"].through_us == again.reconciliation.verified_through_us


def test_a_manifest_has_what_was_counted_and_a_killed_run_is_finished(spark, tmp_path, state):
    folder, table = tmp_path / "data", tmp_path / "table"
    with mainstem.open(folder) as hub:
        fill(hub, 60, windows=2)
        copy_to_table(hub, table)
        ends = hub.streams.get("orders").ends

    def run(**options):
        return audit(folder, "orders", tables=[table], spark=spark, settle="1s", **options)

    assert not run(publish=False).manifests
    assert list(loads_of(state)) == [], "nothing is kept of a dry run"
    # Killed while it counted: begun anew, under the same number.
    with pytest.raises(CutShort):
        run(on_step=cut_at("planned"))
    assert [load.state for load in loads_of(state)] == ["planned"]
    first = run()
    (load,) = loads_of(state)
    assert (load.job, load.number, load.state, load.rows_read, load.windows_differing) == ("audit", 1, "done", 60, 0)
    assert load.verified_through_us == first.reconciliation.verified_through_us
    assert Cursor.parse(load.start).offsets == (0, 0, 0)
    assert Cursor.parse(load.end).offsets == ends
    counted = [(tier.tier.partition(" ")[0], tier.expected, tier.seen, tier.differing) for tier in load.tiers]
    assert counted == [("acknowledged", 60, 60, 0), ("read", 60, 60, 0), ("table", 60, 60, 0)]
    # The same records in the same windows: the same checksum.
    assert len({tier.crc32c for tier in load.tiers}) == 1
    assert load.tiers[2].table_version == DeltaTable(str(table)).version()

    # Killed before it could say what it had found: the next run says it, and goes on from there.
    lake = DeltaTable(str(table))
    lake.delete("_shard = 0 AND _offset = 0")
    with pytest.raises(CutShort):
        run(since=START, on_step=cut_at("written"))
    with mainstem.open(folder) as hub:
        assert verified(hub)["orders"].differing == 0
    assert [load.state for load in loads_of(state)] == ["done", "written"]
    run(since=START)
    loads = list(loads_of(state))
    assert [load.state for load in loads] == ["done"] * 3
    assert [load.windows_differing for load in loads] == [0, 1, 1]
    assert loads[2].tiers[2].crc32c != loads[2].tiers[1].crc32c
    with mainstem.open(folder) as hub:
        assert verified(hub)["orders"].differing == 1


def test_what_a_killed_run_had_found_is_said_by_the_next(spark, tmp_path, state):
    folder = tmp_path / "data"
    with mainstem.open(folder) as hub:
        fill(hub, 60, windows=2)
    with pytest.raises(CutShort):
        audit(folder, "orders", spark=spark, settle="1s", on_step=cut_at("written"))
    with mainstem.open(folder) as hub:
        assert "orders" not in verified(hub)
    again = audit(folder, "orders", spark=spark, settle="1s")
    first, second = loads_of(state)
    assert (first.state, first.rows_read) == ("done", 60)
    # Nothing of it is counted again.
    assert (again.reconciliation.windows, second.rows_read) == (0, 0)


def test_what_retention_took_is_not_compared(spark, tmp_path):
    folder = tmp_path / "data"
    with mainstem.open(folder) as hub:
        hub.streams.create("orders", retention="3650d")
        with hub.producer(counts="10s") as producer:
            for window in range(4):
                for _ in range(10):
                    producer.send("orders", b"x", timestamp=START + window * WINDOW)
                producer.flush()
        hub.streams.trim("orders", offset=15)
    result = audit(folder, "orders", spark=spark, settle="1s")
    assert result.is_good
    assert result.reconciliation.windows == 2


def test_what_cannot_be_audited_says_why(spark, tmp_path):
    folder = tmp_path / "data"
    table = tmp_path / "table"
    with mainstem.open(folder) as hub:
        fill(hub, 60, windows=2)
        hub.streams.create("newest", cleanup="compact")
        copy_to_table(hub, table)
    with pytest.raises(InvalidRequest, match="'newest' is compacted"):
        audit(folder, "newest", spark=spark)
    with pytest.raises(SchemaMismatch, match=r"no column 'at', .* of _shard, _offset, _timestamp"):
        audit(folder, "orders", tables=[table], time="at", spark=spark, settle="1s")
