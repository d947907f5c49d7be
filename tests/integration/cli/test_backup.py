"""`mainstem backup` and `mainstem restore` as an operator runs them."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import mainstem
from mainstem.testing.server import ServerProcess
from tests.integration.cli.conftest import Cli, environment

pytestmark = pytest.mark.slow("starts several processes, each of which loads pyarrow")


@pytest.fixture
def cli(tmp_path) -> Cli:
    cli = Cli(tmp_path)
    cli.run("stream", "create", "orders", "--data", "data")
    cli.run("write", "orders", "--data", "data", stdin=b"one\ntwo\nthree\n")
    return cli


def lines(cli: Cli, data: str) -> str:
    return cli.out("tail", "orders", "--data", data, "--start", "earliest", "--no-follow")


def test_there_and_back(cli):
    first = cli.out("backup", "saved")
    assert first.startswith("copied ")
    assert "mainstem restore saved --data NEW_FOLDER" in first
    report = json.loads(cli.out("backup", "saved", "--json"))
    assert (report["copied_bytes"], report["epoch"]) == (0, 1)
    text = cli.out("restore", "saved", "--data", "back")
    assert "mainstem serve --data back" in text.replace(str(cli.folder) + "/", "")
    assert lines(cli, "back") == lines(cli, "data") != ""
    report = json.loads(cli.out("restore", "saved", "--data", "again", "--json"))
    assert report["epoch"] == 2


def test_what_is_refused_is_said_in_one_line(cli):
    assert "no mainstem.json" in cli.error("backup", "saved", "--data", "nowhere", code=5)
    assert "lie in each other" in cli.error("backup", "data/saved", code=5)
    assert "no backup" in cli.error("restore", "saved", "--data", "back", code=5)
    cli.run("backup", "saved")
    assert "not empty" in cli.error("restore", "saved", "--data", "data", code=5)
    block = next((cli.folder / "saved" / "blocks").iterdir())
    os.truncate(block, 100)
    assert block.name in cli.error("restore", "saved", "--data", "back", code=5)
    for command in (("stream", "create", "x"), ("stream", "list"), ("doctor",), ("tail", "x"), ("top", "--once")):
        said = cli.error(*command, "--data", "saved", code=5)
        assert "is a backup, not a data folder; bring it back with: mainstem restore saved --data FOLDER" in said
    assert "is a data folder, not a backup" in cli.error("restore", "data", "--data", "back", code=5)


def test_a_damaged_block_is_refused_or_copied_on_request(cli):
    cli.run("backup", "saved")
    cli.run("stream", "create", "late", "--data", "data")
    cli.run("write", "late", "--data", "data", stdin=b"value\n")
    block = max((cli.folder / "data" / "blocks").iterdir())
    content = bytearray(block.read_bytes())
    content[content.index(b"value")] ^= 1
    block.write_bytes(content)
    said = cli.error("backup", "saved", code=5)
    assert f"blocks/{block.name} is damaged at byte" in said
    assert "mainstem doctor --deep --data data" in said.replace("./", "")
    done = cli.run("backup", "saved", "--even-damaged", code=7)
    assert f"damaged, and copied as it is: blocks/{block.name}" in done.stderr.decode()
    assert "to bring it back: mainstem restore saved" in done.stdout.decode()


def test_a_cursor_file_from_after_the_backup_is_refused_by_range(cli):
    cli.run("backup", "saved")
    cli.run("write", "orders", "--data", "data", stdin=b"four\nfive\n")
    follow = ("tail", "orders", "--start", "earliest", "--no-follow", "--cursor-file", "at")
    cli.run(*follow, "--data", "data")
    cli.run("restore", "saved", "--data", "back")
    assert "records 3 to 4 are not in this log any more" in cli.error(*follow, "--data", "back", code=2)


AS_NOBODY = """
import os, sys, tempfile
from pathlib import Path
import mainstem
from mainstem.log.backup import back_up
# Everything is loaded before the user changes: the other one may not be allowed to read the interpreter's files.
with tempfile.TemporaryDirectory() as warm, mainstem.open(warm + "/data") as hub:
    hub.streams.create("orders")
    back_up(Path(warm, "data"), Path(warm, "backup"))
os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[3]))
back_up(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_user_who_may_not_write_the_folder_backs_it_up():
    if os.getuid() != 0:
        pytest.skip("only root can become another user; enable: run the tests as root, as in a container")
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        (Path(place) / "backups").mkdir(mode=0o777)
        os.chmod(Path(place) / "backups", 0o777)
        with mainstem.open(f"{place}/data") as hub:
            hub.streams.create("orders")
            with hub.producer() as producer:
                producer.send("orders", b"x")
            nobody = str(pwd.getpwnam("nobody").pw_uid)
            arguments = [f"{place}/data", f"{place}/backups/one", nobody]
            done = subprocess.run([sys.executable, "-c", AS_NOBODY, *arguments], check=False, capture_output=True)
            assert done.returncode == 0, done.stderr.decode()
            assert os.stat(f"{place}/backups/one/manifest.json").st_uid == int(nobody)


def test_a_server_under_load_is_backed_up_again_and_again(cli, tmp_path):
    """Everything that could be read before each backup is in it, at its offset."""
    with ServerProcess(tmp_path / "served", "--block-bytes", "256KiB") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("load", shards=2)
        stopping = threading.Event()

        def write() -> None:
            with hub.producer() as producer:
                number = 0
                while not stopping.is_set():
                    for _ in range(50):
                        producer.send("load", b"%d " % number * 100)
                        number += 1
                    producer.flush()
                    time.sleep(0.01)

        writer = threading.Thread(target=write)
        writer.start()
        ends = []
        try:
            for turn in range(3):
                ends.append(hub.streams.get("load").ends)
                cli.run("backup", "saved", "--data", "served")
                cli.run("restore", "saved", "--data", f"back-{turn}")
        finally:
            stopping.set()
            writer.join()
        everything = read(hub)
        for turn in range(3):
            with mainstem.open(tmp_path / f"back-{turn}") as restored:
                found = read(restored)
            for shard in range(2):
                assert len(found[shard]) >= ends[turn][shard]
                assert found[shard] == everything[shard][: len(found[shard])]


def read(hub) -> list[list[bytes]]:
    found: list[list[bytes]] = [[], []]
    with hub.consumer("load", start="earliest", follow=False) as consumer:
        for batch in consumer.batches():
            found[batch.shard] += batch.to_arrow().column("value").to_pylist()
    return found


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_backup_that_is_stopped_is_run_again(cli, tmp_path, ended_by):
    with mainstem.open(tmp_path / "data") as hub, hub.producer(compression=None) as producer:
        for _ in range(60):
            producer.send("orders", os.urandom(1_000_000))
    command = [sys.executable, "-m", "mainstem", "backup", "saved"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE) as child:
        while not list(tmp_path.glob("saved/blocks/*.part")) and child.poll() is None:
            time.sleep(0.001)
        child.send_signal(ended_by)
        error = child.communicate()[1].decode()
    assert "Traceback" not in error
    cli.run("backup", "saved")
    assert not list(tmp_path.glob("saved/**/*.part"))
    cli.run("restore", "saved", "--data", "back")
    shutil.rmtree(tmp_path / "back")
