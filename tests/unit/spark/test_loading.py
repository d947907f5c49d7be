"""The loop that jobs share, without Spark: runs that do not know of each other, and what is told once."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import mainstem
from mainstem.core.errors import DataLoss, TableUnusable
from mainstem.spark.jobs.delivering import Redelivery
from mainstem.spark.jobs.history import History, Wanted
from mainstem.spark.jobs.lake import ATTEMPT_NOTE, END_NOTE, Changed, Lake
from mainstem.spark.jobs.loading import Attempt, JobResult, Loading, Written
from mainstem.spark.jobs.loads import Load
from mainstem.spark.jobs.manifest import Manifests, require_marker
from mainstem.spark.jobs.part_files import write_parts
from mainstem.spark.jobs.tasks import Answer, OnStep, no_step
from tests.spark.lakes import CutShort, cut_at, strays, table_of

SCHEMA = pa.schema([("shard", pa.int64()), ("offset", pa.int64())])


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[mainstem.Hub]:
    """A log with a stream of 20 records in two shards."""
    with mainstem.open(tmp_path / "log") as hub, hub.producer() as producer:
        hub.streams.create("s", shards=2)
        for number in range(20):
            producer.send("s", b"x", shard=number % 2)
        producer.flush()
        yield hub


@pytest.fixture
def unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As between machines, where a lock may not hold."""

    def locked(manifests: Manifests) -> contextlib.AbstractContextManager[None]:
        manifests.folder.mkdir(parents=True, exist_ok=True)
        return contextlib.nullcontext()

    monkeypatch.setattr(Manifests, "locked", locked)


def load(folder: Path, on_step: OnStep = no_step) -> JobResult:
    """A run of a job whose table has a row for each record."""
    loading = Loading("warehouse", History(folder / "log", "s"), folder / "t", on_step=on_step)

    def write(load: Load, attempt: Attempt) -> Written:
        target = attempt.target(loading.lake, SCHEMA)
        places = [(shard, at) for shard in range(2) for at in range(load.start[shard], load.end[shard])]
        shards, offsets = zip(*places, strict=True)
        files, rows = write_parts(target, 0, [pa.record_batch([shards, offsets], schema=SCHEMA)])
        on_step("wrote", 1, 1)
        return Written([Answer(tuple(files), rows_written=rows)])

    def commit(written: Written, number: int, notes: dict[str, Any]) -> Changed:
        loading.lake.append(written.files, loading.name, number, notes)
        return Changed(written.rows, 0)

    return loading.run("earliest", write, commit, offsets_max=1_000)


def at(step: str, work: Callable[[], object]) -> OnStep:
    """Does something when a step comes for the first time."""
    left = [work]

    def on_step(name: str, done: int, total: int) -> None:
        if name == step and left:
            left.pop()()

    return on_step


def killed(folder: Path, step: str) -> Callable[[], None]:
    """A run that is killed at a step."""

    def run() -> None:
        with pytest.raises(CutShort):
            load(folder, cut_at(step))

    return run


def rows(folder: Path) -> list[tuple[int, int]]:
    found = table_of(folder / "t")
    return sorted(zip(found["shard"].to_pylist(), found["offset"].to_pylist(), strict=True))


EVERYTHING = [(shard, offset) for shard in range(2) for offset in range(10)]


@pytest.mark.usefixtures("unlocked")
def test_a_load_that_was_given_up_is_not_committed(hub, tmp_path):
    """Another run has taken its files away, and then did nothing."""
    with pytest.raises(TableUnusable, match=r"a load of .* was given up by another run of this job"):
        load(tmp_path, at("written", killed(tmp_path, "planned")))
    assert load(tmp_path).rows_written == 20
    assert rows(tmp_path) == EVERYTHING
    assert strays(tmp_path / "t") == []


@pytest.mark.usefixtures("unlocked")
def test_a_load_that_is_committed_while_it_is_given_up_keeps_its_files(hub, tmp_path, monkeypatch):
    """Whoever gives it up looks again once nobody may commit it any more."""
    killed(tmp_path, "written")()
    first = Loading("warehouse", History(tmp_path / "log", "s"), tmp_path / "t", on_step=no_step)
    begun = first.manifests.get(1)
    assert begun is not None
    stop = Manifests.stop

    def late(manifests: Manifests, attempt: str) -> None:
        first.lake.append(begun.files, first.name, 1, {END_NOTE: begun.end, ATTEMPT_NOTE: begun.attempt})
        stop(manifests, attempt)

    with monkeypatch.context() as patch:
        patch.setattr(Manifests, "stop", late)
        with pytest.raises(TableUnusable, match="another run of this job writes"):
            load(tmp_path)
    assert load(tmp_path).loads == 0
    assert rows(tmp_path) == EVERYTHING


@pytest.mark.usefixtures("unlocked")
@pytest.mark.parametrize(
    ("moment", "refusal"),
    [("before its marker is looked for", "was given up by another run"), ("after it", "changed by somebody else")],
)
def test_a_load_that_is_given_up_while_it_is_committed_is_not_in_the_table(hub, tmp_path, monkeypatch, moment, refusal):
    """Its files are gone by then: either it sees no marker any more, or its commit meets that of who gave it up."""
    load(tmp_path)
    with hub.producer() as producer:
        producer.send("s", b"x", shard=0).result(10)
    looked = require_marker

    def late(marker: Path, place: Path) -> None:
        if moment == "after it":
            looked(marker, place)
        killed(tmp_path, "planned")()
        if moment != "after it":
            looked(marker, place)

    with monkeypatch.context() as patch:
        # What looks at the end, with the table open.
        patch.setattr("mainstem.spark.jobs.lake.require_marker", late)
        with pytest.raises(TableUnusable, match=refusal):
            load(tmp_path)
    assert rows(tmp_path) == EVERYTHING
    assert load(tmp_path).rows_written == 1
    assert rows(tmp_path) == sorted([*EVERYTHING, (0, 10)])
    assert strays(tmp_path / "t") == []


@pytest.mark.usefixtures("unlocked")
def test_a_load_that_was_given_up_is_not_noted_over_the_one_that_took_its_number(hub, tmp_path):
    """Who goes on after both finds what the other one has left."""

    def run(on_step: OnStep) -> None:
        with pytest.raises((CutShort, TableUnusable)):
            load(tmp_path, on_step)

    # While the first writes, another run gives it up and is killed when it has written.
    wrote = at("wrote", lambda: run(cut_at("written")))
    with pytest.raises(TableUnusable, match="was given up by another run"):
        load(tmp_path, wrote)
    assert load(tmp_path).rows_written == 20
    assert rows(tmp_path) == EVERYTHING
    assert strays(tmp_path / "t") == []


def test_what_a_load_that_fails_has_written_goes_with_it(hub, tmp_path):
    """It may never be run again, and what it left would keep a vacuum from files that nobody needs."""
    lake = Lake(tmp_path / "t")
    loading = Loading("replay", History(tmp_path / "log", "s"), tmp_path / "t", on_step=no_step)

    def write(load: Load, attempt: Attempt) -> Written:
        write_parts(attempt.target(loading.lake, SCHEMA), 0, [pa.record_batch([[0], [0]], schema=SCHEMA)])
        raise ValueError("in another task")

    with pytest.raises(ValueError, match="in another task"):
        loading.run("earliest", write, lambda *given: Changed(0, 0), offsets_max=1_000)
    assert strays(lake.folder) == []


def test_records_that_were_trimmed_behind_the_end_of_a_load_are_none_of_its(hub, tmp_path):
    hub.streams.trim("s", offset=7, shard=1)
    ends = []

    def write(load: Load, attempt: Attempt) -> Written:
        ends.append((load.start, load.end))
        return Written([])

    history = History(tmp_path / "log", "s")
    for end, is_lost in (((10, 0), False), ((10, 5), True)):
        loading = Loading("snapshot", history, tmp_path / "t", on_step=no_step)
        with pytest.raises(DataLoss, match="0 to 4") if is_lost else contextlib.nullcontext():
            loading.run_whole(history.cursor((0, 0)), end, write, lambda *given: Changed(0, 0))
    assert ends == [((0, 0), (10, 0))]


@pytest.mark.usefixtures("unlocked")
def test_of_two_runs_of_the_same_load_the_one_that_committed_it_counts(hub, tmp_path):
    """They have the same end; the manifest of the other one has files that the table has not."""
    with pytest.raises(TableUnusable, match="has load 1 of this job already"):
        load(tmp_path, at("settled", killed(tmp_path, "committed")))
    lake = Lake(tmp_path / "t")
    named = {file.name for file in lake.at(lake.version)[1]}
    done = load(tmp_path)
    assert (done.loads, rows(tmp_path)) == (0, EVERYTHING)
    assert {path.name for path in lake.folder.glob("*.parquet")} == named
    told = Manifests(lake.folder, Path(done.manifests).name).all()
    assert {Path(file.path).name for manifest in told for file in manifest.files} <= named


def test_what_is_gone_of_a_load_that_is_done_as_planned_is_told_once(hub, tmp_path):
    class Nothing:
        stream = "other"

        def has(self, job: str, number: int) -> bool:
            return False

    def run(on_step: OnStep = no_step) -> JobResult:
        history = History(tmp_path / "log", "s")
        loading = Redelivery(Nothing(), "replay", history, tmp_path / "t", on_step=on_step, on_loss="skip")  # type: ignore[arg-type]
        wanted = Wanted(on_loss="skip")

        def write(load: Load, attempt: Attempt) -> Written:
            pieces = history.cut(load, wanted, 1)
            return Written([Answer(rows_read=sum(piece.end - piece.first for task in pieces for piece in task))])

        return loading.run("earliest", write, lambda *given: Changed(0, 0), offsets_max=10)

    with pytest.raises(CutShort):
        run(cut_at("written"))
    # Of the load that was begun some, and of the next one all but one, in the other shard.
    hub.streams.trim("s", offset=3, shard=0)
    hub.streams.trim("s", offset=9, shard=1)
    done = run()
    assert (done.loads, done.rows_read) == (2, 2 + 5 + 1)
    assert sorted(done.lost) == [(0, 0, 3), (1, 0, 5), (1, 5, 9)]


def test_a_vacuum_leaves_what_a_long_load_has_written(tmp_path):
    """Before it is committed no version names it, however old it is."""
    lake = Lake(tmp_path / "t")
    manifests = Manifests(lake.folder, "j")
    marker = manifests.marker("one")
    marker.parent.mkdir(parents=True)
    marker.touch()
    target = Attempt("one", str(marker), 1).target(lake, SCHEMA)
    (file,), _ = write_parts(target, 0, [pa.record_batch([[0], [0]], schema=SCHEMA)])
    days_ago = time.time() - 3 * 86_400
    os.utime(lake.folder / file.path, (days_ago, days_ago))
    assert lake.vacuum(24) == 0
    assert (lake.folder / file.path).exists()
    # The control: of an attempt that writes no more it goes.
    manifests.stop("one")
    assert lake.vacuum(24) == 1
    assert not (lake.folder / file.path).exists()


def test_a_vacuum_leaves_what_is_committed_while_it_begins(tmp_path, monkeypatch):
    """The version that it has opened does not name those files yet."""
    lake = Lake(tmp_path / "t")
    manifests = Manifests(lake.folder, "j")
    marker = manifests.marker("one")
    marker.parent.mkdir(parents=True)
    marker.touch()
    (file,), _ = write_parts(
        Attempt("one", str(marker), 1).target(lake, SCHEMA), 0, [pa.record_batch([[0], [0]], schema=SCHEMA)]
    )
    days_ago = time.time() - 3 * 86_400
    os.utime(lake.folder / file.path, (days_ago, days_ago))
    opened = Lake._table

    def late(table: Lake) -> DeltaTable:
        found = opened(table)
        if marker.exists():
            # Between any two looks of the vacuum the load is done.
            manifests.stop("one")
            Lake(lake.folder).append([file], "j", 1, {})
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Lake, "_table", late)
        lake.vacuum(24)
    assert table_of(lake.folder).num_rows == 1
