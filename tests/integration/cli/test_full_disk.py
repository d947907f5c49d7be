"""`mainstem write` on a disk that is full: it says so once, waits, and ends well when there is room."""

import subprocess
import time
from pathlib import Path

import pytest

from tests.faults.mounts import can_mount, small_disk
from tests.integration.cli.conftest import Cli

pytestmark = pytest.mark.slow("starts several processes, each of which loads pyarrow")


@pytest.fixture
def disk(tmp_path):
    if not can_mount():
        pytest.skip("a disk that can be filled needs the right to mount one; enable: sudo make test")
    with small_disk(tmp_path / "small", 32 << 20) as disk:
        yield disk


def fill(disk: Path) -> Path:
    """Take everything but what the log needs to be opened."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        file.write(bytes(31 << 20))
    return filler


def await_text(path: Path, text: str) -> None:
    deadline = time.monotonic() + 20.0
    while text not in path.read_text():
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.02)


def test_write_waits_for_room_and_says_so(disk, tmp_path):
    cli = Cli(tmp_path, ("--data", str(disk / "data")))
    cli.run("stream", "create", "orders")
    filler = fill(disk)
    said = tmp_path / "stderr"
    with said.open("wb") as stderr:
        process = cli.start("write", "orders", stdin=subprocess.PIPE, stderr=stderr)
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.close()
        await_text(said, "appends are refused until there is room")
        assert cli.out("tail", "orders", "--start", "earliest", "--no-follow") == ""
        filler.unlink()
        assert process.wait(20) == 0
    text = said.read_text()
    assert text.count("are refused") == 1
    assert "2 records written" in text
    assert len(cli.out("tail", "orders", "--start", "earliest", "--no-follow").splitlines()) == 2
