"""Jobs on Spark, killed between any two of their steps, and their executors under them.

A keyed stream is written to all the time. Nine jobs work on it: `warehouse` adding rows, by a query, and with a row for
each key, `snapshot`, `replay` into a table, in the place of a table's rows, and into a stream, `compact` and `audit`.
Each trial is one kill, of one of these:

- a driver that runs all nine, when each has come to one of its steps: the Python process alone, or with its JVM;
- an executor of a cluster, while a task of one job writes.

After each kill every table can be read. At the end each job runs three times more, undisturbed: every table and the
other stream are what the stream says, no row is missing, none is there twice, the audit agrees, and nothing is left
over or open. What each job reports in that life are the steps of `JOBS`: another one, or one that never comes, is a
finding.
"""

import itertools
import json
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pyarrow as pa

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.hub.counted import verified
from mainstem.hub.hub import Hub
from mainstem.log.cold_maker import cold_files
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults import striking
from tests.faults.drivers import Driver, DriverFailed, Drivers, be_driver, cluster, driver_pids
from tests.faults.kill_spark import left_open, open_parts
from tests.faults.kill_upkeep import collected
from tests.faults.stamped import check_kept
from tests.faults.trials import Trials

STREAM: Final = "stock"
COPY: Final = "copied"
SHARDS: Final = 3
KEYS: Final = 200
_ROWS_PER_TRIAL: Final = 800
_TOMBSTONES_PER_TRIAL: Final = 50
_LOAD_ROWS: Final = 1_500
_SINCE: Final = datetime(2026, 1, 1, tzinfo=UTC)
_LOAD: Final = ("load", "planned", "prepared", "write", "wrote", "written", "committed", "done")
# Where delta-rs has committed, and that is not known to be on disk yet, and then where it is.
_COMPACTION: Final = ("compact", "compacted", "compact end")
_VACUUM: Final = ("vacuum", "vacuumed", "vacuum end")
# The step that is inside a vacuum, and reported by nobody: delta-rs has told the table's log that it deletes files. One
# job has it, because it comes last; see `striking.comes_last`.
DELETING: Final = "deleting"
# The steps of each job, beside the one inside its tasks.
JOBS: Final = {
    "append": ("settled", *_LOAD, *_COMPACTION, "vacuum", DELETING, "vacuumed", "vacuum end"),
    "upsert": ("settled", *_LOAD, *_COMPACTION, *_VACUUM),
    "snapshot": ("settled", *_LOAD[:-2], "tombstones", *_LOAD[-2:], *_VACUUM),
    "sql": ("settled", *_LOAD, *_COMPACTION),
    "replay": ("settled", *_LOAD),
    "replace": ("settled", *_LOAD, "compare", "compare end"),
    "into": ("settled", *_LOAD[:-2], "delivered", *_LOAD[-2:]),
    "compact": ("settled", *(step for step in _LOAD[:-2] if step != "prepared"), "swap", *_LOAD[-2:]),
    "audit": ("settled", *(step for step in _LOAD if step != "prepared")),
}
# One for each step of the job that has most of them, and one with all of them inside a task.
DRIVER_KILLS: Final = max(map(len, JOBS.values())) + 1
CHUNK: Final = DRIVER_KILLS + len(JOBS)
# Steps that take their time, and of which the end is one, too.
_LASTING: Final = ("compact", "compare", "vacuum")
# Of jobs that do several loads, and there are at least two: the second may be the one.
_OF_MANY_LOADS: Final = ("append", "upsert", "sql", "replay", "into")
# What jobs write, in the folder of their tables.
_TABLES: Final = ("append", "upsert", "sql", "replay", "replace", "snapshot/rows", "snapshot/tombstones")
_QUERY: Final = f"SELECT left, _shard, _offset FROM {STREAM}"


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is one kill. `CHUNK` of them are every gap."""
    result = Trials()
    try:
        with ServerProcess(folder / "log") as server, mainstem.connect(server.url) as hub:
            try:
                _Chunk(seed, folder, server, hub, result).run(trials)
            except (MainstemError, DriverFailed, OSError) as error:
                result.add_finding(f"seed {seed}: {type(error).__name__}: {error}\n{server.stderr()}")
    except ServerFailed as error:
        result.add_finding(f"seed {seed}: {error}")
    check_kept(result, folder / "log", f"seed {seed}")
    for text in collected(folder / "log"):
        result.add_finding(f"seed {seed}: {text}")
    return result


def gaps(seed: int, life: int) -> dict[str, str]:
    """Where each job stands when a driver dies: over `DRIVER_KILLS` lives in a row everywhere. Each life ends a step
    earlier than the one before, so that what that one left is dealt with, and not yet done again."""
    turn = (life + seed) % DRIVER_KILLS
    if turn == DRIVER_KILLS - 1:
        return dict.fromkeys(JOBS, striking.TASK)
    return {job: steps[(place - turn) % len(steps)] for place, (job, steps) in enumerate(JOBS.items())}


def unlike_table(reported: Mapping[str, Collection[str]]) -> list[str]:
    """Steps that jobs report, and at which nobody is killed, and the other way round."""
    wrong = []
    for job, steps in JOBS.items():
        found, known = {*reported.get(job, ())}, {*steps} - {DELETING}
        wrong += [f"{job} reports {step!r}, and nobody is killed there" for step in sorted(found - known)]
        wrong += [f"{job} never reports {step!r}" for step in sorted(known - found)]
    return wrong


class _Chunk:
    """The trials of one seed. One thread."""

    def __init__(self, seed: int, folder: Path, server: ServerProcess, hub: Hub, result: Trials) -> None:
        self._seed = seed
        self._rng = random.Random(f"kill jobs {seed}")
        self._folder = folder
        self._lake = folder / "lake"
        self._server = server
        self._hub = hub
        self._result = result
        self._sent = 0
        # The newest value of each key, and keys whose newest record is a tombstone.
        self._state: dict[str, int] = {}
        self._gone: set[str] = set()
        rows = {"item": "string", "left": "int64"}
        hub.streams.create(STREAM, shards=SHARDS, schema=rows, key="item", retention="3650d")
        hub.streams.create(COPY, shards=2, schema=rows, key="item", retention="3650d")
        from mainstem.spark.jobs.lake import Lake

        # There is something to compare with from the first run on.
        Lake(self._lake / "replace").prepare(pa.schema([("item", pa.string()), ("left", pa.int64())]), ())
        # Rows that a job has not loaded, at least.
        self._backlog = dict.fromkeys(JOBS, 0)
        for _ in range(3):
            self._write()

    def run(self, trials: int) -> None:
        lives = [gaps(self._seed, life) for life in range(min(trials, DRIVER_KILLS))]
        masters = ["local[12,4]" if striking.TASK in steps.values() else "local[2,4]" for steps in lives]
        with Drivers("tests.faults.kill_jobs", self._folder, [*masters, "local[2,4]"]) as drivers:
            for steps in lives:
                self._kill_driver(drivers, steps)
            if trials > len(lives):
                self._kill_executors(trials - len(lives))
            before = open_parts(self._server.url)
            if not self._do_rest(drivers):
                return
        self._result.acknowledged += sum(self._hub.streams.get(STREAM).ends)
        for text in [*self._checked(), *left_open(self._server.url, before if trials < CHUNK else 0)]:
            self._find(text)

    def _do_rest(self, drivers: Drivers) -> bool:
        """What is left, and then some more, of which every job has something to report; then nothing: what is done is
        not done again. The audit looks at the rest."""
        others = [job for job in JOBS if job != "audit"]
        reported = self._folder / "reported"
        with drivers.told(self._orders(others)) as driver:
            answer = driver.answer()
            if answer == "done":
                self._write(is_new=True)
                driver.tell_more({**self._orders(others, others), "audit": True, "reported": str(reported)})
                answer = driver.answer()
            if answer != "done":
                self._find(f"undisturbed, the jobs failed: {answer} {driver.said()}")
                return False
        for text in unlike_table(json.loads(reported.read_text())):
            self._find(text)
        return True

    def _kill_driver(self, drivers: Drivers, steps: dict[str, str]) -> None:
        # Where nothing is merged, a file comes to those that there are, and there are some to compact.
        self._write(is_new=steps["upsert"] == "compacted")
        chosen = {job: (step, self._after(job, step)) for job, step in steps.items()}
        victims = self._rng.choice(("driver", "jvm driver"))
        if striking.TASK in steps.values():
            victims = "jvm driver self"
        orders = {**self._orders(list(JOBS)), "steps": chosen, "victims": victims}
        began = time.monotonic()
        with drivers.told(orders) as driver:
            answer = driver.answer()
        self._result.took(time.monotonic() - began)
        self._count(orders, f"{answer} {driver.said()}")

    def _kill_executors(self, trials: int) -> None:
        jobs = list(JOBS)
        with cluster(self._folder) as master:
            driver = Driver("tests.faults.kill_jobs", self._folder, master)
            try:
                driver.tell(self._orders())
                driver.answer()
                for trial in range(trials):
                    job = jobs[trial % len(jobs)]
                    self._write()
                    steps = {job: (striking.TASK, 0)}
                    orders = {**self._orders([job]), "steps": steps, "victims": striking.EXECUTOR}
                    driver.tell_more(orders)
                    answer = driver.answer()
                    if answer != "done":
                        raise DriverFailed(f"{job}, without an executor: {answer} {driver.said()}")
                    self._count(orders, driver.said())
            finally:
                driver.end()

    def _orders(self, *rounds: list[str]) -> dict[str, Any]:
        paths = {"hub": self._server.url, "lake": str(self._lake), "notes": str(self._folder / "notes")}
        return {**paths, "rounds": rounds, "number": self._result.trials}

    def _after(self, job: str, step: str) -> int:
        """How many loads a job may do before it comes to its step: of one only if it has two to do."""
        repeats = job in _OF_MANY_LOADS and step in (*_LOAD, "delivered")
        after = self._rng.randrange(2) if repeats and self._backlog[job] > 2 * _LOAD_ROWS else 0
        self._backlog[job] = max(0, self._backlog[job] - (after + 1) * _LOAD_ROWS)
        return after

    def _count(self, orders: dict[str, Any], said: str) -> None:
        number, steps, victims = (orders[name] for name in ("number", "steps", "victims"))
        wrong = striking.missed(self._folder / "strikes", number, steps, victims)
        if wrong:
            self._find(f"trial {number}, {victims}, {steps}: {', '.join(wrong)}: {said}")
        for text in self._unreadable():
            self._find(f"trial {number}, {victims}, {steps}: {text}")
        self._result.trials += 1

    def _find(self, text: str) -> None:
        self._result.add_finding(f"seed {self._seed}: {text}")

    def _write(self, *, is_new: bool = False) -> None:
        """More rows, no two with the same value, and then some tombstones: both in the order of their offsets, and each
        in batches of its own, which are not in one cold file. With `is_new` each is of a key of its own."""
        items = map(f"new{self._sent}-{{}}".format, itertools.count()) if is_new else iter(self._item, "")
        with self._hub.producer(counts="1h") as producer:
            for _ in range(_ROWS_PER_TRIAL):
                item = next(items)
                self._state[item] = self._sent
                self._gone.discard(item)
                producer.send(STREAM, {"item": item, "left": self._sent}, timestamp=self._time())
                self._sent += 1
            for _ in range(_TOMBSTONES_PER_TRIAL):
                item = next(items)
                self._state.pop(item, None)
                self._gone.add(item)
                producer.send(STREAM, None, key=item.encode(), timestamp=self._time())
        for job in JOBS:
            self._backlog[job] += _ROWS_PER_TRIAL

    def _item(self) -> str:
        return f"item{self._rng.randrange(KEYS)}"

    def _time(self) -> datetime:
        return _SINCE + timedelta(seconds=self._rng.randrange(86_400))

    # What must hold after every kill.

    def _unreadable(self) -> list[str]:
        wrong = []
        for table in _TABLES:
            if (self._lake / table / "_delta_log").is_dir():
                try:
                    _rows(self._lake / table)
                except Exception as error:  # whatever it is
                    wrong.append(f"{table} cannot be read: {type(error).__name__}: {error}")
        return wrong

    # What must hold in the end.

    def _checked(self) -> list[str]:
        ends = self._hub.streams.get(STREAM).ends
        every = {(shard, offset) for shard, end in enumerate(ends) for offset in range(end)}
        said = {stream: _said(self._hub, stream) for stream in (STREAM, COPY)}
        rows_alone = {place for values in said[STREAM].values() for left, place in values if left is not None}
        wrong = []
        for job in ("append", "replay", "replace", "sql"):
            rows = _rows(self._lake / job)
            places = zip(rows["_shard"].to_pylist(), rows["_offset"].to_pylist(), strict=True)
            wrong += self._compared(job, rows_alone if job == "sql" else every, places)
        for stream, keys in said.items():
            found = [left for values in keys.values() for left, _ in values if left is not None]
            wrong += self._compared(f"stream {stream}", range(self._sent), found)
        first, copied = ({key: [left for left, _ in each] for key, each in keys.items()} for keys in said.values())
        differ = sum(first.get(key) != copied.get(key) for key in first | copied)
        if differ:
            wrong.append(f"stream {COPY}: of {differ} keys it says something else, or in another order")
        for job in ("upsert", "snapshot/rows"):
            rows = _rows(self._lake / job)
            state = dict(zip(rows["item"].to_pylist(), rows["left"].to_pylist(), strict=True))
            if state != self._state or rows.num_rows != len(state):
                differ = sum(state.get(item) != left for item, left in self._state.items())
                wrong.append(f"{job}: {rows.num_rows} rows for {len(self._state)} keys, {differ} of them are others")
        tombstones = _rows(self._lake / "snapshot/tombstones")["_key"].to_pylist()
        if sorted(tombstones) != sorted(item.encode() for item in self._gone):
            wrong.append(f"snapshot/tombstones: {len(tombstones)} keys, where {len(self._gone)} are gone")
        if not cold_files(self._server.folder, STREAM):
            wrong.append("compact: nothing became cold")
        told = verified(self._hub).get(STREAM)
        if told is None or told.differing or told.through_us < int(_SINCE.timestamp() + 86_400) * 1_000_000:
            wrong.append(f"audit: the stream says {told}")
        return [*wrong, *self._left_over()]

    def _compared(self, what: str, wanted: Any, given: Any) -> list[str]:
        found = Counter(given)
        missing = sum(each not in found for each in wanted)
        twice = sum(count > 1 for count in found.values())
        self._result.lost += missing
        self._result.duplicated += twice
        return [f"{what}: {missing} rows are missing, {twice} are there twice"] if missing or twice else []

    def _left_over(self) -> list[str]:
        """Files that no commit of their table names: of jobs alone, what delta-rs leaves is for vacuum."""
        told = "".join(path.read_text() for path in self._lake.rglob("_delta_log/*.json"))
        ours = [path for path in self._lake.rglob("*.parquet") if not path.name.startswith("part-")]
        found = {
            "files": [path.name for path in ours if path.name not in told],
            "markers": [path.name for path in self._folder.rglob("_mainstem/attempts/*")],
            "staged files": [path.name for path in (self._server.folder / "staging").rglob("*") if path.is_file()],
        }
        return [f"{len(names)} {what} are left over: {names[:3]}" for what, names in found.items() if names]


def _said(hub: Hub, stream: str) -> dict[bytes | None, list[tuple[int | None, tuple[int, int]]]]:
    """What a stream says of each key, and where: a value, or None that it is gone."""
    found: dict[bytes | None, list[tuple[int | None, tuple[int, int]]]] = {}
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        for record in consumer:
            left = None if record.value is None else record.value["left"]
            found.setdefault(record.key, []).append((left, (record.shard, record.offset)))
    return found


def _rows(table: Path) -> pa.Table:
    from deltalake import DeltaTable

    return pa.table(DeltaTable(str(table)).to_pyarrow_table())


# The driver that is killed.


def obey(spark: Any, orders: dict[str, Any]) -> None:
    """Run jobs, those of a round all at once."""
    from mainstem.spark.jobs import lake

    # Two files are made one, so that there is always something to compact and to vacuum.
    lake.SMALL_FILES_MAX = 1  # type: ignore[misc]
    strikes = Path(os.environ[striking.VARIABLE])
    striking.disarm(strikes)
    if "steps" in orders:
        striking.arm(strikes, orders["number"], orders["steps"], orders["victims"], driver_pids(spark))
    for jobs in orders["rounds"]:
        failed: list[BaseException] = []
        threads = [Thread(target=_try_job, args=(job, spark, orders, failed), daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) and not failed:
            time.sleep(0.02)
        if failed:
            # The others may wait for it.
            raise failed[0]
    if orders.get("audit"):
        run_job("audit", spark, orders, is_last=True)
    if "reported" in orders:
        told = {job: sorted(steps) for job, steps in _reported.items()}
        Path(orders["reported"]).write_text(json.dumps(told))


def _try_job(job: str, spark: Any, orders: dict[str, Any], failed: list[BaseException]) -> None:
    try:
        run_job(job, spark, orders)
    except BaseException as error:  # raised where it is waited for
        failed.append(error)


def run_job(job: str, spark: Any, orders: dict[str, Any], *, is_last: bool = False) -> None:
    from mainstem.spark.jobs.audit import audit
    from mainstem.spark.jobs.compact import compact
    from mainstem.spark.jobs.replay import replay
    from mainstem.spark.jobs.snapshot import snapshot
    from mainstem.spark.jobs.warehouse import warehouse

    hub, lake, notes = orders["hub"], Path(orders["lake"]), Path(orders["notes"])
    given: dict[str, Any] = {"spark": spark, "on_step": _stepping(job, lake / job)}
    until = _SINCE + timedelta(days=2)
    if job == "snapshot":
        snapshot(hub, STREAM, lake / job, vacuum="0s", **given)
    elif job == "replay":
        replay(hub, STREAM, lake / job, since=_SINCE, until=until, load_rows=_LOAD_ROWS, **given)
    elif job == "into":
        replay(hub, STREAM, lake / job, since=_SINCE, until=until, load_rows=_LOAD_ROWS, into=COPY, **given)
    elif job == "replace":
        told = replay(hub, STREAM, lake / job, since=_SINCE, until=until, replace=True, **given).compared
        assert told is not None
    elif job == "sql":
        warehouse(hub, STREAM, lake / job, sql=_QUERY, load_rows=_LOAD_ROWS, **given)
    elif job == "compact":
        compact(hub, STREAM, older_than="1h", file_bytes_min=1, manifests=notes, **given)
    elif job == "audit":
        # Other jobs may be behind: only the last one looks at a table.
        tables = [lake / "append"] if is_last else []
        result = audit(hub, STREAM, tables=tables, settle="1s", since=_SINCE, manifests=notes, **given)
        assert result.is_good, result.reconciliation
    else:
        mode: Any = job
        warehouse(hub, STREAM, lake / job, mode=mode, load_rows=_LOAD_ROWS, vacuum="0s", **given)


# What the jobs of this process have reported.
_reported: Final[dict[str, set[str]]] = defaultdict(set)


def _stepping(job: str, table: Path) -> Any:
    def on_step(name: str, done: int, total: int) -> None:
        step = _step(name, done, total)
        if step is None:
            return
        _reported[job].add(step)
        striking.come_to(job, step)
        if step == "vacuum" and striking.comes_last(job, DELETING):
            Thread(target=_come_in_vacuum, args=(job, _next_commit(table)), daemon=True).start()

    return on_step


def _step(name: str, done: int, total: int) -> str | None:
    """A step of the table; None if it is the one before once more."""
    if name in _LASTING and done == total:
        return f"{name} end"
    return None if name == "write" and done else name


def _come_in_vacuum(job: str, commit: Path) -> None:
    """Come while files are deleted, which takes a few milliseconds."""
    while not commit.exists():
        pass
    striking.come_to(job, DELETING)


def _next_commit(table: Path) -> Path:
    """What a table's log gets next."""
    log = table / "_delta_log"
    return log / f"{max(int(path.stem) for path in log.glob('*.json')) + 1:020d}.json"


if __name__ == "__main__":
    from tests.faults.kill_jobs import obey as obey_of_module

    be_driver("kill_jobs", sys.argv[1], obey_of_module, {"spark.python.daemon.module": "tests.faults.striking"})
