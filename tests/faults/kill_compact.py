"""`kill -9` of a server while its records become cold, and of the process that makes the files, again and again.

Producers write, a follower reads from the beginning, and a process does what the tasks of the job do: plans, writes
Parquet files, has them swapped in, as fast as it can. Blocks are tiny and freed within moments, so a kill meets every
step between a part and the freed block. Afterwards everything that was acknowledged is there, once and in order, from
cold files too; the books are right; and there is no file without a row nor a row without a file.
"""

import random
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.hub.remote import RemotePort
from mainstem.log.cold_maker import cold_files, open_cooler
from mainstem.testing.history import History
from mainstem.testing.server import ServerFailed, ServerProcess
from mainstem.transport.port import CoolCall, PlanColdCall
from tests.faults.kill_upkeep import _HARD, collected
from tests.faults.load import SHARDS, Load
from tests.faults.stamped import check_kept, count_report, read_back
from tests.faults.trials import Trials

_LIFE_SECONDS_MAX = 1.2
_READER = 2
_STREAM = "cooled"
_OLDER_US = 200_000


def run(seed: int, trials: int, folder: Path) -> Trials:
    result, history = Trials(), History()
    rng, place = random.Random(f"kill compact {seed}"), folder / "cooled"
    job: subprocess.Popen[bytes] | None = None
    try:
        with ServerProcess(place, *_HARD) as server, mainstem.connect(server.url) as hub:
            hub.streams.create(_STREAM, shards=SHARDS)
            load = Load(lambda: mainstem.connect(server.url), _STREAM, history, pause=0.02)
            for _ in range(trials):
                job = _alive(job, server.url)
                time.sleep(rng.uniform(0.3, _LIFE_SECONDS_MAX))
                if rng.random() < 0.4:
                    job.kill()
                    job.wait()
                else:
                    server.kill()
                    server.start()
                    result.took(server.start_seconds)
                result.trials += 1
            load.stop()
            job = _alive(job, server.url)
            _wait_for_cold(place)
            # However few the kills were, one meets cold files.
            server.kill()
            server.start()
            read_back(hub, _STREAM, history, _READER)
            for text in load.errors:
                result.add_finding(f"seed {seed}: {text}")
    except (ServerFailed, MainstemError, AssertionError) as error:
        result.add_finding(f"seed {seed}, kill {result.trials}: {error}")
    finally:
        if job is not None:
            job.kill()
            job.wait()
    check_kept(result, place, f"seed {seed}")
    count_report(result, history.check(), f"seed {seed}")
    if not cold_files(place, _STREAM):
        result.add_finding(f"seed {seed}: nothing became cold")
    for text in collected(place):
        result.add_finding(f"seed {seed}: {text}")
    return result


def _alive(job: "subprocess.Popen[bytes] | None", url: str) -> "subprocess.Popen[bytes]":
    """The process that makes files: another one if it was killed."""
    if job is not None and job.poll() is None:
        return job
    assert job is None or job.returncode == -signal.SIGKILL, f"what makes files ended by itself with {job.returncode}"
    return subprocess.Popen([sys.executable, "-m", "tests.faults.kill_compact", url])


def _wait_for_cold(place: Path) -> None:
    deadline = time.monotonic() + 30
    while not cold_files(place, _STREAM) and time.monotonic() < deadline:
        time.sleep(0.1)


def work(url: str) -> None:
    """What the job does, one task after the other, for as long as it is let live."""
    while True:
        with suppress(MainstemError), closing(RemotePort(url, 10.0)) as port:
            while True:
                plan = port.call(PlanColdCall(_STREAM, time.time_ns() // 1_000 - _OLDER_US, 2_000)).cold
                assert plan is not None
                with open_cooler(Path(plan.folder), plan.log) as maker:
                    for task in plan.tasks:
                        with suppress(MainstemError):
                            for file in maker.make(plan, task):
                                port.call(CoolCall(_STREAM, file))
                time.sleep(0.05)
        time.sleep(0.1)


if __name__ == "__main__":
    work(sys.argv[1])
