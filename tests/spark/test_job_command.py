"""`mainstem job`: jobs from the command line, with what they print and how they end."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mainstem
from tests.spark.lakes import table_of
from tests.unit.cli.test_progress import words_of

pytestmark = pytest.mark.xdist_group("spark")


COMMAND = (sys.executable, "-m", "mainstem", "job")
SECONDS_MAX = 110


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false pyspark-shell", **more}


def job(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False, timeout=SECONDS_MAX)
    assert done.returncode == code, done.stderr
    # Bars are for terminals.
    assert not set("\x1b\r━") & set(done.stdout + done.stderr), done.stderr
    return done


def drawn(*arguments: str) -> str:
    """What a job writes to a terminal that is its standard error."""
    master, slave = pty.openpty()
    there = environment(TERM="xterm", COLUMNS="120")
    deadline, seen = time.monotonic() + SECONDS_MAX, b""
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=slave, env=there) as process:
        os.close(slave)
        try:
            # A terminal that nobody has open any more cannot be read.
            with contextlib.suppress(OSError):
                while select.select([master], [], [], max(0, deadline - time.monotonic()))[0]:
                    seen += os.read(master, 1 << 16)
        finally:
            os.close(master)
            process.kill()
    text = seen.decode(errors="replace")
    assert process.returncode == 0, text
    return text


def test_the_jobs_are_listed():
    listed = [one["job"] for one in json.loads(job("list", "--json").stdout)]
    assert listed == ["warehouse", "snapshot", "compact", "replay", "audit"]
    assert job("list").stdout.splitlines()[1].startswith("warehouse  a stream into a Delta table")


@pytest.mark.slow("starts Spark in a process of its own")
def test_a_job_is_run_and_its_loads_are_listed(tmp_path):
    with mainstem.open(tmp_path / "log") as hub, hub.producer() as producer:
        hub.streams.create("clicks", shards=2, schema={"id": "int64"}, key="id")
        for number in range(100):
            producer.send("clicks", {"id": number})
    given = (
        *("run", "warehouse", "clicks", str(tmp_path / "t")),
        *("--data", str(tmp_path / "log")),
    )
    said = job(*given, "--partition", "shard").stdout.splitlines()
    assert said[0].startswith("warehouse: 100 records of clicks in 1 load, ")
    assert said[1].startswith("wrote 100 rows in 2 files, ")
    assert said[2].startswith("up to ms1:")
    assert sorted(table_of(tmp_path / "t")["id"].to_pylist()) == list(range(100))
    (load,) = json.loads(job("loads", str(tmp_path / "t"), "--json").stdout)
    assert (load["job"], load["state"], load["rows_read"], load["end"]) == ("warehouse", "done", 100, said[2][6:])
    assert sum(file["rows"] for file in load["files"]) == 100
    assert "1  done" in job("loads", str(tmp_path / "t")).stdout
    wrong = job(*given, "--partition", "week", code=2).stderr
    assert wrong.startswith("mainstem: partition (--partition) must be one of none, shard, day, hour, not 'week'")


@pytest.mark.slow("starts Spark in a process of its own")
def test_a_terminal_shows_how_far_a_job_is(tmp_path):
    with mainstem.open(tmp_path / "log") as hub, hub.producer() as producer:
        hub.streams.create("clicks", shards=2, schema={"id": "int64"}, key="id")
        producer.send_many("clicks", [{"id": number} for number in range(3_000)])
    given = ("warehouse", "clicks", str(tmp_path / "t"), "--data", str(tmp_path / "log"), "--load-rows", "1000")
    bars, shown, after = drawn("run", *given).rpartition("\x1b[?25h")
    assert table_of(tmp_path / "t").num_rows == 3_000
    assert shown, "the cursor is back"
    assert "━" in bars
    assert "━" not in after
    words = words_of(bars)
    assert words.startswith("warehouse: starting Spark ")
    shares = [int(share) for share in re.findall(r"warehouse: records (\d+)%", words)]
    assert shares == sorted(shares)
    assert len(set(shares)) > 1, "it moves with the loads"
    # What is drawn last.
    assert re.search(r"warehouse: making large files of small ones 100% \S+ tasks of Spark 100% ", words), words


@pytest.mark.slow("starts Spark in a process of its own, twice")
def test_a_job_that_is_interrupted_says_so_and_goes_on(tmp_path):
    with mainstem.open(tmp_path / "log") as hub, hub.producer() as producer:
        hub.streams.create("clicks", shards=2, schema={"id": "int64"}, key="id")
        producer.send_many("clicks", [{"id": number} for number in range(20_000)])
    table = tmp_path / "t"
    given = ("run", "warehouse", "clicks", str(table), "--data", str(tmp_path / "log"))
    command = [*COMMAND, *given, "--load-rows", "200"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 100
        while len(list((table / "_delta_log").glob("*.json"))) < 3:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "mainstem: warehouse was interrupted; run the same command again" in said
    assert "KeyboardInterrupt" not in said
    assert "reentrant" not in said
    job(*given)
    assert sorted(table_of(table)["id"].to_pylist()) == list(range(20_000))


@pytest.mark.slow("a process of its own")
def test_a_cursor_that_is_none_is_told_by_its_option(tmp_path):
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("clicks", schema={"id": "int64"}, key="id")
    given = ("run", "snapshot", "clicks", str(tmp_path / "t"), "--data", str(tmp_path / "log"))
    said = job(*given, "--since", "ms1:abc", code=2).stderr.strip()
    assert said.splitlines()[-1] == (
        "mainstem: since: not a cursor: 'ms1:abc'; expected the text that str(consumer.cursor) gave"
    )


@pytest.mark.slow("three processes")
def test_a_replay_that_adds_rows_has_a_time_that_stays_the_same(tmp_path):
    """Run again, it would be another replay, and add its rows once more."""
    given = ("run", "replay", "clicks", str(tmp_path / "t"), "--data", str(tmp_path / "no log"))
    time = "2026-01-31T00:00:00Z"
    for option, times in (("--since 2h", ("2h", "0s")), ("--until 0s", (time, "0s"))):
        said = job(*given, "--since", times[0], "--until", times[1], code=2).stderr
        assert said.startswith(f"mainstem: {option}: that is another time in every run")
        assert "give the time itself, as it is now 20" in said
    # What takes the place of everything is there once, however often.
    said = job(*given, "--since", "2h", "--until", "0s", "--replace", code=5).stderr
    assert "is not a Mainstem data folder" in said


def test_what_is_no_table_has_no_loads(tmp_path):
    assert job("loads", str(tmp_path)).stderr == f"no job has written {tmp_path}\n"
    # Code 5, as for a table to audit that is not there.
    assert f"there is no folder {tmp_path / 'not'}; name that" in job("loads", str(tmp_path / "not"), code=5).stderr
    assert "--since" in job("run", "replay", "clicks", str(Path(tmp_path)), code=2).stderr
