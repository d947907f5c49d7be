"""The audit: what was sent beside what is there, in the log and in a table."""

import shutil
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

import mainstem
from mainstem.core.cursor import Cursor
from mainstem.core.errors import InvalidRequest, InvalidSetting, SchemaMismatch, TableUnusable
from mainstem.core.times import from_us, to_us
from mainstem.hub.counted import verified
from mainstem.hub.hub import Hub
from mainstem.spark.jobs.audit import audit
from mainstem.spark.jobs.catalogue import loads_of
from mainstem.spark.jobs.snapshot import snapshot
from mainstem.spark.jobs.tasks import no_step
from mainstem.spark.jobs.warehouse import warehouse
from mainstem.testing.server import ServerProcess
from tests.spark.lakes import CutShort, cut_at
from tests.spark.parts import tear_out

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow("each audit is a job of Spark")]

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
WINDOW = timedelta(seconds=10)


def fill(hub: Hub, count: int, windows: int = 6, counts: str | None = "10s") -> None:
    """Records of so many windows, as many in each; those of key `doomed` are seven in the third, in a batch of their
    own."""
    hub.streams.create("orders", shards=3, retention="3650d")
    each = count // windows
    # It lingers so that the seven travel together, however slow the machine is.
    with hub.producer(counts=counts, linger=20) as producer:
        for window in range(windows):
            first = START + window * WINDOW
            doomed = 7 if window == 2 else 0
            for number in range(each - doomed):
                producer.send("orders", b"x", key=b"%d" % number, timestamp=first + number * WINDOW / each)
            producer.flush()
            for _ in range(doomed):
                producer.send("orders", b"x", key=b"doomed", timestamp=first + WINDOW / 2)
            producer.flush()


def tear_out_doomed(folder: Path, hub: Hub) -> tuple[int, int, int]:
    """The seven of key `doomed`, and nothing else; where they were."""
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        places = [(record.shard, record.offset) for record in consumer if record.key == b"doomed"]
    shard, first = places[0]
    assert places == [(shard, first + number) for number in range(7)]
    torn = tear_out(folder, "orders", shard, first)
    assert (torn.base, torn.end) == (first, first + 7)
    return shard, first, first + 7


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
def test_k27_the_audit_finds_what_is_missing_and_where(spark, tmp_path, state):
    """60,000 records in six windows: all there. Seven torn out of their block, of which the ledger knows nothing: that
    window, that tier, -7, and their place; seven less and five more in the table likewise. A producer
    that is killed in mid-window is flagged. Without counts nothing is said."""
    table = tmp_path / "table"
    # Without upkeep, which may put the batch together with others.
    served = ServerProcess(tmp_path / "data", "--upkeep-interval", "1h")
    with served as server, mainstem.connect(server.url) as hub:

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
        # And seven are torn out of the log, behind the back of its ledger.
        torn = tear_out_doomed(tmp_path / "data", hub)
        assert hub.streams.get("orders").records == 60_000
        result = run(since=START)
        assert differing(result) == [(2, "read", -7), (3, "table", -7), (4, "table", 5)]
        assert result.verified_through == START + 2 * WINDOW
        assert not result.is_good
        found = result.as_json()["differing"]
        assert isinstance(found, list)
        assert found[0]["verdict"] == "missing"
        assert result.lost == (torn,)
        assert result.as_json()["unreadable"] == [{"shard": torn[0], "first": torn[1], "last": torn[2] - 1}]
        assert [load.lost for load in loads_of(state)] == [(), (torn,)]

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
        # From before anybody counted: nothing to compare it with.
        with hub.producer() as producer:
            producer.send("orders", b"x", timestamp=START - 5 * WINDOW)
    first = audit(folder, "orders", spark=spark, settle="1s")
    assert (first.reconciliation.windows, first.is_good, first.is_published) == (2, True, True)
    again = audit(folder, "orders", spark=spark, settle="1s")
    assert again.reconciliation.windows == 0
    assert again.verified_through >= first.verified_through
    with mainstem.open(folder) as hub:
        # Records that are no rows are there too.
        hub.streams.set_schema("orders", {"id": "int64"})
    everything = audit(folder, "orders", spark=spark, settle="1s", window="1m", since=START, publish=False)
    assert (everything.reconciliation.windows, everything.is_good) == (1, True)
    with mainstem.open(folder) as hub:
        assert verified(hub)["orders"].through_us == again.reconciliation.verified_through_us
        # Counts are not kept for ever: where some are gone, records are not called too many.
        with hub.producer(counts="10s") as producer:
            producer.send("orders", {"id": 1}, timestamp=START)
        ends = hub.streams.get("_counts").ends
        hub.streams.trim("_counts", offset=ends[0] - 1)
    later = audit(folder, "orders", spark=spark, settle="1s", since=START, publish=False)
    assert (later.reconciliation.windows, later.is_good) == (0, True)


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
    assert not run().is_good
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


def test_a_stream_that_was_made_anew_is_audited_anew(spark, tmp_path):
    """What was sent to the one of before is not missing, and what was verified of it says nothing about this one."""
    folder = tmp_path / "data"
    with mainstem.open(folder) as hub:
        fill(hub, 120, windows=4)
    assert audit(folder, "orders", spark=spark, settle="1s").is_good
    with mainstem.open(folder) as hub:
        hub.streams.delete("orders")
        fill(hub, 60, windows=2)
        assert "orders" not in verified(hub)
    result = audit(folder, "orders", spark=spark, settle="1s")
    assert (result.reconciliation.windows, result.is_good) == (2, True)
    with mainstem.open(folder) as hub:
        assert verified(hub)["orders"].through_us == result.reconciliation.verified_through_us


def test_a_table_is_verified_by_audits_of_that_table(spark, tmp_path, monkeypatch):
    """One that does not name it says nothing about it: what differs in it is found again, and one that is named later
    is compared from the beginning. The stream is verified as far as the table that is so least, until that is
    forgotten."""
    folder, table, later = tmp_path / "data", tmp_path / "table", tmp_path / "later"
    monkeypatch.chdir(tmp_path)
    with mainstem.open(folder) as hub:
        fill(hub, 60, windows=6)
        copy_to_table(hub, table)
        copy_to_table(hub, later)
    third = START + 2 * WINDOW
    DeltaTable(str(table)).delete(f"_timestamp >= '{third}' AND _timestamp < '{third + WINDOW}'")
    DeltaTable(str(later)).delete(f"_timestamp < '{START + WINDOW}'")

    def run(*tables, **options):
        result = audit(folder, "orders", tables=tables, spark=spark, settle="1s", **options)
        with mainstem.open(folder) as hub:
            info, told = hub.streams.get("orders"), verified(hub)["orders"]
            assert (told.through_us, told.differing) == (info.verified_through_us, info.windows_differing)
        return result.reconciliation.windows, differing(result), from_us(told.through_us) - START, result.behind

    assert run(table) == (6, [(2, "table", -10)], 2 * WINDOW, {})
    # Once from there, and once from where that came to.
    behind = {str(table): to_us(third)}
    assert run() == (4, [], 2 * WINDOW, behind)
    assert run() == (0, [], 2 * WINDOW, behind)
    # By another name of its.
    assert run("table") == (4, [(2, "table", -10)], 2 * WINDOW, {})
    assert run(later)[:3] == (6, [(0, "table", -10)], timedelta(0))
    with pytest.raises(
        InvalidSetting, match=r"no audit of 'orders' has named table .*nope; those that were named: .*late"
    ):
        run(forget=["nope"])
    assert run(forget=[later], publish=False)[2] == timedelta(0)
    # Said by the next run, if the one that was to say it was killed.
    with pytest.raises(CutShort):
        run(forget=[later], on_step=cut_at("written"))
    assert run()[2:] == (2 * WINDOW, behind)
    assert run(forget=[table])[2] > 6 * WINDOW


def test_times_may_be_in_a_column_that_came_later(spark, tmp_path):
    """Rows of files from before have no time, and are in no window. The table's folder has a name that an address
    writes otherwise."""
    folder, table = tmp_path / "data", tmp_path / "lake of orders, 100 %"
    with mainstem.open(folder) as hub:
        fill(hub, 60, windows=2)
        with hub.consumer("orders", start="earliest", follow=False) as consumer:
            batches = [batch.to_arrow(metadata=True).select(["_timestamp"]) for batch in consumer.batches()]
    rows = pa.Table.from_batches(batches)
    run = partial(audit, folder, "orders", tables=[table], time="at", spark=spark, settle="1s", publish=False)
    is_early = pc.less(rows["_timestamp"], START + WINDOW / 2)
    early, late = (rows.filter(chosen) for chosen in (is_early, pc.invert(is_early)))
    write_deltalake(str(table), early)
    write_deltalake(str(table), late.append_column("at", late["_timestamp"]), mode="append", schema_mode="merge")
    assert differing(run()) == [(0, "table", -early.num_rows)]
    write_deltalake(str(table), rows.rename_columns(["at"]), mode="overwrite", schema_mode="overwrite")
    result = run()
    assert (result.reconciliation.windows, result.is_good) == (2, True)


def test_what_a_killed_run_had_found_of_a_table_is_said_though_another_was_faster(spark, tmp_path):
    """An audit of others said something since that run began, about the log, not about this table."""
    folder, table = tmp_path / "data", tmp_path / "table"
    with mainstem.open(folder) as hub:
        fill(hub, 60, windows=2)
        copy_to_table(hub, table)
    DeltaTable(str(table)).delete("_shard = 0 AND _offset = 0")
    with pytest.raises(CutShort):
        audit(folder, "orders", tables=[table], spark=spark, settle="1s", on_step=cut_at("written"))
    assert audit(folder, "orders", spark=spark, settle="1s", manifests=tmp_path / "elsewhere").is_good
    with mainstem.open(folder) as hub:
        assert verified(hub)["orders"].differing == 0
    assert audit(folder, "orders", spark=spark, settle="1s").behind
    with mainstem.open(folder) as hub:
        assert verified(hub)["orders"].differing == 1


def test_what_retention_took_is_not_compared(spark, tmp_path):
    """Also of a shard of which nothing is left, and what goes while the job reads."""
    folder = tmp_path / "data"
    with mainstem.open(folder) as hub:
        hub.streams.create("orders", shards=2, retention="3650d")
        with hub.producer(counts="10s") as producer:
            for window in range(4):
                for number in range(10):
                    shard = int(window < 3 and number > 6)
                    producer.send("orders", b"x", timestamp=START + window * WINDOW, shard=shard)
                producer.flush()

    def trim(step, done, total):
        if (step, done) == ("write", 0):
            with mainstem.open(folder) as hub:
                hub.streams.trim("orders", offset=10, shard=0)
                hub.streams.trim("orders", offset=9, shard=1)

    # The first shard is trimmed up to the second window, the second has had its last record in the third.
    for on_step in (trim, no_step):
        result = audit(folder, "orders", spark=spark, settle="1s", publish=False, on_step=on_step)
        assert (result.reconciliation.windows, differing(result)) == (1, [])


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
    rows = DeltaTable(str(table)).to_pyarrow_table()
    write_deltalake(str(tmp_path / "amounts"), pa.table({"amount": pa.array([9.5] * rows.num_rows)}))
    with pytest.raises(SchemaMismatch, match=r"amounts: column 'amount' has no times \(.*double"):
        audit(folder, "orders", tables=[tmp_path / "amounts"], time="amount", spark=spark, settle="1s")
    with pytest.raises(TableUnusable, match=r"^there is no Delta table in .*/nope$"):
        audit(folder, "orders", tables=[tmp_path / "nope"], spark=spark, settle="1s")
    with pytest.raises(InvalidSetting, match="since: a time needs a time zone"):
        audit(folder, "orders", since=datetime(2026, 1, 1), spark=spark, settle="1s")  # noqa: DTZ001  # it is refused
    with pytest.raises(InvalidSetting, match=r"table .*/table cannot be compared and forgotten by the same audit"):
        audit(folder, "orders", tables=[table], forget=[table], spark=spark, settle="1s")


def test_tables_that_have_not_each_record_are_refused(spark, tmp_path):
    """What is of keys lacks records on purpose, and a table of another stream has none. What a program made of the
    stream is counted, as is what jobs loaded of it beside others'; what was verified stays."""
    folder, table = tmp_path / "data", tmp_path / "table"
    with mainstem.open(folder) as hub:
        fill(hub, 60, windows=2)
        hub.streams.create("other")
        with hub.producer() as producer:
            producer.send("other", b"x", key=b"k", timestamp=START)
        copy_to_table(hub, table)
    given = {"spark": spark}
    warehouse(folder, "orders", tmp_path / "newest", mode="upsert", **given)
    snapshot(folder, "orders", tmp_path / "state", **given)
    warehouse(folder, "other", tmp_path / "others", **given)
    run = partial(audit, folder, "orders", spark=spark, settle="1s")
    assert run(tables=[table]).is_good
    refused = {
        "newest": r"has one row for each key \(mode upsert\)",
        "state/rows": "is of a snapshot",
        "state/tombstones": "is of a snapshot",
        "others": r"has loads of stream 'other', and none of 'orders'",
    }
    with mainstem.open(folder) as hub:
        told = verified(hub)["orders"]
    for name, words in refused.items():
        with pytest.raises(InvalidRequest, match=words):
            run(tables=[table, tmp_path / name])
    with mainstem.open(folder) as hub:
        assert verified(hub)["orders"] == told
    shutil.rmtree(tmp_path / "others" / "_mainstem")
    with pytest.raises(InvalidRequest, match="has loads of another stream, and none of 'orders'"):
        run(tables=[tmp_path / "others"])
    warehouse(folder, "orders", tmp_path / "others", **given)
    # Nothing was said of these yet: there is nothing to forget. Of a table that was, and is another now, there is.
    with pytest.raises(InvalidRequest, match="one row for each key") as caught:
        run(tables=[tmp_path / "newest"])
    assert "--forget" not in str(caught.value)
    with pytest.raises(SchemaMismatch, match="no column 'at'") as caught:
        run(tables=[table], time="at")
    assert "--forget" not in str(caught.value)
    shutil.rmtree(table)
    with pytest.raises(TableUnusable, match=rf"^there is no Delta table in .*take it out with .*--forget {table}\)$"):
        run(tables=[table])
    (tmp_path / "newest").rename(table)
    with pytest.raises(InvalidRequest, match=rf"one row for each key .*take it out with .*\(--forget {table}\)$"):
        run(tables=[table])
    assert run(forget=[table]).is_good
    # The record of the other stream is one too many there, and that is said.
    assert differing(run(tables=[tmp_path / "others"], since=START)) == [(0, "table", 1)]
