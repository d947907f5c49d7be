"""Jobs on Spark, killed between any two of their steps, and their workers under them.

A keyed stream is written to all the time. Four jobs read it: `warehouse` adding rows, `warehouse` with a row for each
key, `snapshot`, and `replay`. Each trial is one process that runs one of them and kills itself at one of its steps, or
has a worker of Spark's killed while it writes. At the end each runs once more, undisturbed: every table is what the
stream says, no row is missing, none is there twice, and no file is left over.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.hub.hub import Hub
from mainstem.testing import planted
from tests.faults.trials import Trials

STREAM = "stock"
SHARDS = 3
KEYS = 200
_ROWS_PER_TRIAL = 2_000
_LOAD_ROWS = 1_500
_SINCE = datetime(2026, 1, 1, tzinfo=UTC)
_CHILD_SECONDS_MAX = 180.0
_WORKER = "worker"
# What each job can be killed at: its steps in their order, and one of its workers.
JOBS = {
    "append": ("settled", "planned", "prepared", "write", "wrote", "written", "committed", "done", "compact", _WORKER),
    "upsert": ("settled", "planned", "prepared", "write", "wrote", "written", "committed", "done", _WORKER),
    "snapshot": ("settled", "planned", "prepared", "write", "wrote", "written", "tombstones", "committed", "done", _WORKER),
    "replay": ("settled", "planned", "prepared", "write", "wrote", "written", "committed", "done", _WORKER),
}


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is one kill."""
    result = Trials()
    rng = random.Random(f"kill jobs {seed}")
    log, lake = folder / "log", folder / "lake"
    with mainstem.open(log) as hub:
        rows = {"item": "string", "left": "int64"}
        hub.streams.create(STREAM, shards=SHARDS, schema=rows, key="item", retention="3650d")
        state: dict[str, int] = {}
        gaps = _gaps(rng)
        _write(hub, rng, state)
        for trial in range(trials):
            _write(hub, rng, state)
            job, step = next(gaps)
            began = time.monotonic()
            code, said = _child(log, lake, job, step, rng.randrange(1 << 30))
            result.took(time.monotonic() - began)
            result.trials += 1
            if code != (0 if step == _WORKER else -signal.SIGKILL):
                result.add_finding(f"seed {seed} trial {trial}: {job}, killed at {step}, ended with {code}: {said}")
        # Twice: what is done is not done again.
        code, said = _child(log, lake, ",".join((*JOBS, *JOBS)), "", 0)
        if code:
            result.add_finding(f"seed {seed}: undisturbed, the jobs ended with {code}: {said}")
        result.acknowledged = hub.streams.get(STREAM).records
        try:
            for text in _checked(hub, lake, state, result):
                result.add_finding(f"seed {seed}: {text}")
        except (MainstemError, OSError) as error:
            result.add_finding(f"seed {seed}: {type(error).__name__}: {error}")
    return result


def _gaps(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Every gap of every job, in another order each time round."""
    every = [(job, step) for job, steps in JOBS.items() for step in steps]
    while True:
        rng.shuffle(every)
        yield from every


def _write(hub: Hub, rng: random.Random, state: dict[str, int]) -> None:
    with hub.producer() as producer:
        for _ in range(_ROWS_PER_TRIAL):
            item = f"item{rng.randrange(KEYS)}"
            time = _SINCE + timedelta(seconds=rng.randrange(86_400))
            if rng.random() < 0.1:
                producer.send(STREAM, None, key=item.encode(), timestamp=time)
                state.pop(item, None)
            else:
                state[item] = rng.randrange(1_000_000)
                producer.send(STREAM, {"item": item, "left": state[item]}, timestamp=time)


def _child(log: Path, lake: Path, job: str, step: str, seed: int) -> tuple[int, str]:
    command = planted.command("tests.faults.kill_jobs", str(log), str(lake), job, step, str(seed))
    done = subprocess.run(command, capture_output=True, timeout=_CHILD_SECONDS_MAX, check=False)
    return done.returncode, done.stderr.decode(errors="replace")[-1_500:]


# What must hold in the end.


def _checked(hub: Hub, lake: Path, state: dict[str, int], result: Trials) -> list[str]:
    wanted = [(shard, offset) for shard, end in enumerate(hub.streams.get(STREAM).ends) for offset in range(end)]
    wrong = []
    for job in ("append", "replay"):
        found = Counter(_column_pairs(_rows(lake / job)))
        missing, twice = [place for place in wanted if place not in found], [p for p, n in found.items() if n > 1]
        result.lost += len(missing)
        result.duplicated += len(twice)
        if missing or twice:
            wrong.append(f"{job}: {len(missing)} rows are missing, {len(twice)} are there twice")
    for job in ("upsert", "snapshot/rows"):
        rows = _rows(lake / job)
        found_state = dict(zip(rows["item"].to_pylist(), rows["left"].to_pylist(), strict=True))
        if found_state != state or rows.num_rows != len(state):
            differ = sum(found_state.get(item) != left for item, left in state.items())
            wrong.append(f"{job}: {rows.num_rows} rows for {len(state)} keys, {differ} of them not as they should be")
    return [*wrong, *_left_over(lake)]


def _column_pairs(rows: pa.Table) -> list[tuple[int, int]]:
    return list(zip(rows["_shard"].to_pylist(), rows["_offset"].to_pylist(), strict=True))


def _rows(table: Path) -> pa.Table:
    from deltalake import DeltaTable

    return pa.table(DeltaTable(str(table)).to_pyarrow_table())


def _left_over(lake: Path) -> list[str]:
    """Files that no commit of their table names: of jobs alone, what delta-rs leaves is for vacuum."""
    told = "".join(path.read_text() for path in lake.rglob("_delta_log/*.json"))
    ours = [path for path in lake.rglob("*.parquet") if not path.name.startswith("part-")]
    left = [path.name for path in ours if path.name not in told]
    markers = [path.name for path in lake.rglob("_mainstem/attempts/*")]
    return [f"{len(found)} {what} are left over" for found, what in ((left, "files"), (markers, "markers")) if found]


# The process that is killed.


def main(log: str, lake: str, jobs: str, step: str, seed: str) -> None:
    from mainstem.spark import session

    rng = random.Random(int(seed))
    spark = session("kill_jobs", "local[2,4]", {"spark.ui.enabled": False, "spark.driver.memory": "1g"})
    for job in jobs.split(","):
        _run_job(job, log, Path(lake), spark, _deadly(step, rng))
    spark.stop()


def _run_job(job: str, log: str, lake: Path, spark: Any, on_step: Any) -> None:
    from mainstem.spark.jobs.replay import replay
    from mainstem.spark.jobs.snapshot import snapshot
    from mainstem.spark.jobs.warehouse import warehouse

    given: dict[str, Any] = {"spark": spark, "on_step": on_step}
    if job == "snapshot":
        snapshot(log, STREAM, lake / job, **given)
    elif job == "replay":
        until = _SINCE + timedelta(days=2)
        replay(log, STREAM, lake / job, since=_SINCE, until=until, load_rows=_LOAD_ROWS, **given)
    else:
        mode: Any = job
        warehouse(log, STREAM, lake / job, mode=mode, load_rows=_LOAD_ROWS, **given)


def _deadly(step: str, rng: random.Random) -> Any:
    """Kills this process at a step, of one of its first loads; or a worker of Spark's while a load is written."""
    seen, when = 0, rng.choice((1, 1, 2))

    def on_step(name: str, done: int, total: int) -> None:
        nonlocal seen
        if step == _WORKER and name == "write" and done == 0 and not seen:
            seen = 1
            threading.Thread(target=_kill_worker, args=(rng,), daemon=True).start()
        elif name == step and (name not in ("write", "compact") or done == 0):
            seen += 1
            if seen == (1 if name in ("settled", "compact", "tombstones") else when) or total == done == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    return on_step


def _kill_worker(rng: random.Random) -> None:
    """One of the Python processes that Spark has started, if there is one in time."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = [pid for pid in _descendants(os.getpid()) if b"pyspark.daemon" in _command_line(pid)]
        # The first is the daemon that makes the others.
        if len(found) > 1:
            time.sleep(rng.uniform(0.0, 0.3))
            os.kill(rng.choice(found[1:]), signal.SIGKILL)
            return
        time.sleep(0.02)


def _descendants(pid: int) -> list[int]:
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, thread.read_text().split()):
            found += [child, *_descendants(child)]
    return found


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    main(*sys.argv[1:])
