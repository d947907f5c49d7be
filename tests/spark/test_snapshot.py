"""The job `snapshot`: the newest row of each key as of a cursor, and only what changed since another."""

import random
import time
from functools import partial

import pytest
from deltalake import DeltaTable

import mainstem
from mainstem.core.cursor import Cursor
from mainstem.core.errors import DataLoss, InvalidCursor, InvalidSetting
from mainstem.spark.jobs.catalogue import loads_of
from mainstem.spark.jobs.snapshot import ROWS, TOMBSTONES, snapshot
from mainstem.spark.jobs.warehouse import warehouse
from tests.spark.lakes import CutShort, check_files, cut_at, strays, table_of

pytestmark = pytest.mark.xdist_group("spark")


class Shop:
    """A keyed stream, and a dict that says what it means after each step; `gone` are keys whose newest record is a
    tombstone, since it was emptied."""

    def __init__(self, hub) -> None:
        self._hub = hub
        self._rng = random.Random(5)
        self.state: dict[str, int] = {}
        self.gone: set[str] = set()
        hub.streams.create("stock", shards=2, schema={"item": "string", "left": "uint32"}, key="item")

    def change(self, count: int, keys: int) -> Cursor:
        """Change keys at random; the cursor after it."""
        with self._hub.producer() as producer:
            for _ in range(count):
                item = f"item{self._rng.randrange(keys)}"
                if self._rng.random() < 0.2:
                    producer.send("stock", None, key=item.encode())
                    self.state.pop(item, None)
                    self.gone.add(item)
                else:
                    self.gone.discard(item)
                    self.state[item] = self._rng.randrange(1_000)
                    producer.send("stock", {"item": item, "left": self.state[item]})
        info = self._hub.streams.get("stock")
        return Cursor(info.uuid, info.epoch, info.ends)


def rows_of(folder) -> dict[str, int]:
    found = table_of(folder / ROWS).to_pylist()
    rows = {row["item"]: row["left"] for row in found}
    assert len(rows) == len(found)
    return rows


def places_of(folder) -> dict[bytes, tuple[int, int]]:
    """Where in the stream the newest record of each key is, as the tables say."""
    found = [row for name in (ROWS, TOMBSTONES) for row in table_of(folder / name).to_pylist()]
    return {row["_key"]: (row["_shard"], row["_offset"]) for row in found}


def tombstones_of(folder) -> set[str]:
    return {row["_key"].decode() for row in table_of(folder / TOMBSTONES).to_pylist()}


@pytest.mark.mechanism("P5")
@pytest.mark.slow("four snapshots")
def test_the_state_at_a_cursor_and_what_changed_since(tmp_path, spark, monkeypatch):
    """Row by row what a dict says, also where the stream got more shards; the state of before and the delta since
    make the state of after. Without an order between shards, they do not."""
    with mainstem.open(tmp_path / "log") as hub:
        shop = Shop(hub)
        middle = shop.change(3_000, 300)
        before, gone_before = dict(shop.state), set(shop.gone)
        assert gone_before
        shop.gone.clear()
        with hub.consumer("stock", start="earliest", follow=False) as consumer:
            places = {record.key: (record.shard, record.offset) for record in consumer}
        hub.streams.alter("stock", shards=5)
        end = shop.change(3_000, 350)

        done = snapshot(tmp_path / "log", "stock", tmp_path / "all", spark=spark)
        assert Cursor.parse(done.end) == end
        assert rows_of(tmp_path / "all") == shop.state
        assert (done.rows_read, done.rows_written) == (6_000, len(shop.state))
        assert tombstones_of(tmp_path / "all") == (gone_before | shop.gone) - set(shop.state)
        assert done.rows_deleted == len(tombstones_of(tmp_path / "all"))
        # What was done is in the manifest: from where to where, how much, and every file of both tables.
        (load,) = loads_of(tmp_path / "all")
        assert (Cursor.parse(load.start).offsets, load.end) == ((0, 0, 0, 0, 0), done.end)
        assert (load.rows_read, load.rows_written, load.rows_deleted) == (6_000, done.rows_written, done.rows_deleted)
        assert sum(file.rows for file in load.files) == done.rows_written + done.rows_deleted
        check_files([load], tmp_path / "all" / ROWS, tmp_path / "all" / TOMBSTONES)

        earlier = snapshot(tmp_path / "log", "stock", tmp_path / "earlier", at=middle, spark=spark)
        assert earlier.rows_read == 3_000
        assert rows_of(tmp_path / "earlier") == before
        assert tombstones_of(tmp_path / "earlier") == gone_before
        assert places_of(tmp_path / "earlier") == places

        delta = snapshot(tmp_path / "log", "stock", tmp_path / "delta", since=middle, spark=spark)
        assert delta.rows_read == 3_000
        changed, gone = rows_of(tmp_path / "delta"), tombstones_of(tmp_path / "delta")
        assert len(changed) + len(gone) <= 350
        assert gone == shop.gone
        state = {item: left for item, left in {**before, **changed}.items() if item not in gone}
        assert state == shop.state

        # The control: offsets alone, of which those in new shards are small.
        monkeypatch.setattr("mainstem.spark.jobs.snapshot._generations", lambda history: ())
        snapshot(tmp_path / "log", "stock", tmp_path / "wrong", spark=spark)
        assert rows_of(tmp_path / "wrong") != shop.state


def test_the_tail_goes_on_where_the_snapshot_ends(tmp_path, spark):
    with mainstem.open(tmp_path / "log") as hub:
        shop = Shop(hub)
        shop.change(500, 50)
        done = snapshot(tmp_path / "log", "stock", tmp_path / "snap", spark=spark)
        shop.change(300, 50)
        state = rows_of(tmp_path / "snap")
        with hub.consumer("stock", start=Cursor.parse(done.end), follow=False) as consumer:
            for record in consumer:
                if record.value is None:
                    state.pop((record.key or b"").decode(), None)
                else:
                    state[record.value["item"]] = record.value["left"]
        assert state == shop.state


@pytest.mark.slow("eight snapshots")
def test_a_snapshot_takes_the_place_of_the_last_one(tmp_path, spark):
    with mainstem.open(tmp_path / "log") as hub:
        shop = Shop(hub)
        shop.change(200, 30)
        for step in ("planned", "written", "tombstones", "committed"):
            with pytest.raises(CutShort):
                snapshot(tmp_path / "log", "stock", tmp_path / "snap", spark=spark, on_step=cut_at(step))
            shop.change(50, 30)
            snapshot(tmp_path / "log", "stock", tmp_path / "snap", vacuum="0s", spark=spark)
            assert rows_of(tmp_path / "snap") == shop.state, step
        left = [path.name for path in (tmp_path / "snap" / "_mainstem" / "attempts").glob("*")]
        assert left == []
        for table in (ROWS, TOMBSTONES):
            files = DeltaTable(str(tmp_path / "snap" / table)).file_uris()
            assert len(list((tmp_path / "snap" / table).glob("*.parquet"))) == len(files), "older ones are vacuumed"


def test_both_tables_can_be_read_whatever_was_killed(tmp_path, spark):
    """A run that is killed between its two commits has replaced the tombstones already: the next one, which gives up
    what that one did, leaves them to their readers, also if it does not come to an end itself. The rows go on to name
    the version of them that is theirs."""
    folder = tmp_path / "snap"
    with mainstem.open(tmp_path / "log") as hub:
        shop = Shop(hub)
        shop.change(200, 30)
        snapshot(tmp_path / "log", "stock", folder, spark=spark)
        rows, tombstones = rows_of(folder), tombstones_of(folder)
        shop.change(200, 30)
        for step in ("tombstones", "settled", "planned"):
            with pytest.raises(CutShort):
                snapshot(tmp_path / "log", "stock", folder, spark=spark, on_step=cut_at(step))
            assert tombstones_of(folder) == {f"item{number}" for number in range(30)}.difference(shop.state)
            assert rows_of(folder) == rows
        commits = DeltaTable(str(folder / ROWS)).history()
        version = next(commit["mainstem.tombstones"] for commit in commits if "mainstem.tombstones" in commit)
        theirs = DeltaTable(str(folder / TOMBSTONES), version=version).to_pyarrow_table()
        assert {key.decode() for key in theirs["_key"].to_pylist()} == tombstones
        assert strays(folder / TOMBSTONES) == []


def test_a_stream_without_a_key_has_none(tmp_path, spark):
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("clicks", schema={"x": "int64"})
        with pytest.raises(InvalidSetting, match="stream 'clicks' has no key"):
            snapshot(tmp_path / "log", "clicks", tmp_path / "snap", spark=spark)


def test_cursors_are_taken_as_results_have_them(tmp_path, spark):
    """As text, too. A range that ends before it begins is none."""
    with mainstem.open(tmp_path / "log") as hub:
        shop = Shop(hub)
        shop.change(20, 5)
        first = snapshot(tmp_path / "log", "stock", tmp_path / "a", spark=spark).end
        before = rows_of(tmp_path / "a")
        shop.change(20, 5)
        done = snapshot(tmp_path / "log", "stock", tmp_path / "b", since=first, spark=spark)
        assert (done.start, done.rows_read) == (first, 20)
        snapshot(tmp_path / "log", "stock", tmp_path / "b", at=first, spark=spark)
        assert rows_of(tmp_path / "b") == before
        with pytest.raises(InvalidSetting, match="since is a later cursor than at"):
            snapshot(tmp_path / "log", "stock", tmp_path / "c", since=done.end, at=Cursor.parse(first), spark=spark)
        with pytest.raises(InvalidCursor, match=r"^since: not a cursor: 'ms1:abc'"):
            snapshot(tmp_path / "log", "stock", tmp_path / "c", since="ms1:abc", spark=spark)


def test_a_state_of_before_needs_all_that_was_before(tmp_path, spark):
    """Also what was trimmed before the cursor, or beyond it. The state of now is of what the stream has."""
    with mainstem.open(tmp_path / "log") as hub:
        shop = Shop(hub)
        first = shop.change(200, 30)
        later = shop.change(200, 30)
        shop.change(20, 5)

        def run(name: str, **more):
            return snapshot(tmp_path / "log", "stock", tmp_path / name, spark=spark, **more)

        for shard in range(2):
            hub.streams.trim("stock", offset=later.offsets[shard] - 1, shard=shard)
        starts = hub.streams.get("stock").starts
        for cursor in (first, later):
            last = min(starts[0], cursor.offsets[0]) - 1
            with pytest.raises(DataLoss, match=rf"shard 0: records 0 to {last} were trimmed") as gone:
                run("t", at=cursor)
            assert (gone.value.stream, gone.value.shard, gone.value.first) == ("stock", 0, 0)
        with pytest.raises(DataLoss):
            run("t", since=first, at=later)
        assert not (tmp_path / "t" / ROWS / "_delta_log").exists()
        done = run("t", at=later, on_loss="skip")
        assert (done.rows_read, done.lost) == (2, tuple((shard, 0, start) for shard, start in enumerate(starts)))
        done = run("t", at=first, on_loss="skip")
        assert (done.rows_read, done.lost) == (0, tuple((shard, 0, at) for shard, at in enumerate(first.offsets)))
        assert run("t", since=later).rows_read == 20
        assert run("t").rows_read == 22


@pytest.mark.slow("the log is compacted at its own pace")
def test_a_state_of_before_is_refused_once_it_is_compacted(tmp_path, spark):
    """A key that was written again after the cursor has no record from before it."""
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("stock", schema={"item": "string", "text": "string"}, key="item", cleanup="compact")

        def write(text: str) -> Cursor:
            with hub.producer() as producer:
                for number in range(200):
                    producer.send("stock", {"item": f"item{number}", "text": random.randbytes(400).hex() + text})
            info = hub.streams.get("stock")
            return Cursor(info.uuid, info.epoch, info.ends)

        def run(**more):
            return snapshot(tmp_path / "log", "stock", tmp_path / "t", spark=spark, **more)

        first = write("old")
        end = write("new")
        deadline = time.monotonic() + 150
        while hub.streams.get("stock").records > 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with pytest.raises(InvalidCursor, match=r"^at: the cursor stands at offset 200 of shard 0 .* was compacted"):
            run(at=first)
        assert not (tmp_path / "t" / ROWS / "_delta_log").exists()
        for given in ({}, {"at": end}):
            assert run(**given).rows_written == 200

        # While it is read, too.
        hub.streams.create("again", schema={"item": "string", "text": "string"}, key="item", cleanup="compact")
        with hub.producer() as producer:
            producer.send("again", {"item": "a", "text": "old"})
        info = hub.streams.get("again")
        first = Cursor(info.uuid, info.epoch, info.ends)
        with hub.producer() as producer:
            producer.send("again", {"item": "a", "text": "new"})

        def erase(step: str, done: int, total: int) -> None:
            if step == "prepared":  # as a compaction does, and at once
                hub.streams.erase("again", b"a")

        assert snapshot(tmp_path / "log", "again", tmp_path / "u", at=first, spark=spark).rows_written == 1
        with pytest.raises(InvalidCursor, match="was compacted"):
            snapshot(tmp_path / "log", "again", tmp_path / "u", at=first, spark=spark, on_step=erase)


@pytest.mark.slow("two kinds of job")
def test_columns_may_not_have_the_names_that_jobs_of_keys_use(tmp_path, spark):
    """In capitals neither: tables and Spark take them for the same. Without them both jobs do what they do."""
    with mainstem.open(tmp_path / "log") as hub, hub.producer() as producer:
        for name in ("_deleted", "_Generation", "_KEY"):
            stream = name.strip("_")
            hub.streams.create(stream, schema={"id": "int64", name: "bool"}, key="id")
            for number in range(3):
                producer.send(stream, {"id": number, name: True})
            producer.send(stream, None, key=b"1")
            producer.flush()
            jobs = {
                "warehouse": partial(warehouse, tmp_path / "log", stream, mode="upsert", spark=spark),
                "snapshot": partial(snapshot, tmp_path / "log", stream, spark=spark),
            }
            for job, run in jobs.items():
                with pytest.raises(
                    InvalidSetting, match=rf"'{stream}' has a column '{name}', .* columns \(--columns\)"
                ):
                    run(tmp_path / f"{stream} {job}")
                assert not (tmp_path / f"{stream} {job}").exists()
                assert run(tmp_path / f"{stream} {job}", columns=["id"]).rows_written == 2


def test_an_empty_stream_is_an_empty_table(tmp_path, spark):
    with mainstem.open(tmp_path / "log") as hub:
        Shop(hub)
        done = snapshot(tmp_path / "log", "stock", tmp_path / "snap", spark=spark)
    assert (done.rows_read, rows_of(tmp_path / "snap")) == (0, {})
