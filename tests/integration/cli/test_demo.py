"""`mainstem demo`: a real server and real producers; it says so if a record is missing."""

import os
import re
import signal
import subprocess
import tempfile

import pytest

pytestmark = pytest.mark.slow("starts a server and three producers, and lets them run for three seconds")

SECONDS = ("--seconds", "3", "--rate", "5000", "--no-pipeline")


def leftovers():
    return {found for found in os.listdir(tempfile.gettempdir()) if found.startswith("mainstem-demo-")}


@pytest.fixture
def cli(local, tmp_path, monkeypatch):
    """Temporary folders go below the test's own, so that what is left over is seen."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    local.where = []
    yield local
    assert leftovers() == set()


def test_every_acknowledged_record_is_read_back(cli):
    out = cli.out("demo", *SECONDS)
    assert "every acknowledged record is there, once, unchanged" in out
    ((acknowledged, read),) = re.findall(r"([\d,]+) records acknowledged .* ([\d,]+) read back", out)
    assert acknowledged == read
    assert int(read.replace(",", "")) > 1_000
    assert re.search(r"[23]\.\d s .* delay p50 [\d.]+ ms p99 [\d.]+ ms, newest offsets \d", out)
    assert out.count("\n  mainstem ") + out.count("\n  seq ") == 3


@pytest.mark.parametrize("fault", ["missing", "doubled"])
def test_a_planted_fault_is_found_and_named(cli, fault):
    done = cli.run("demo", *SECONDS, "--break", "--fault", fault, code=1)
    assert re.fullmatch(
        rf"mainstem: 1 record is {fault}: demo\.\w+ shard \d offset \d+ \(.*\), .*\n", done.stderr.decode()
    )
    assert done.stdout.decode().endswith("\nthe comparison found it\n")


def test_killing_the_server_loses_nothing(cli):
    out = cli.out("demo", *SECONDS, "--kill")
    assert "killed the server with SIGKILL and started it again" in out
    assert "every acknowledged record is there" in out


def test_ctrl_c_ends_the_writing_and_still_compares(cli):
    arguments = ("demo", "--seconds", "60", "--data", "kept", "--no-pipeline")
    process = cli.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            if b"newest offsets" in line and b" 0 acknowledged" not in line:
                break
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=40)
    assert process.returncode == 0, error
    assert b"every acknowledged record is there" in out
    assert "demo.orders" in cli.out("stream", "list", "--data", "kept")


def test_an_unknown_fault(cli):
    assert "--fault none: use one of missing, doubled" in cli.error("demo", "--break", "--fault", "none", code=2)


def test_a_server_that_cannot_start_says_why(cli):
    (cli.folder / "file").write_text("")
    error = cli.error("demo", "--data", "file/below", "--no-pipeline", code=4)
    assert "the server did not start" in error
