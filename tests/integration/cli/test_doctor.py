"""`mainstem doctor` as a user runs it: beside a writer, as another user, with its exit codes."""

import json
import os
import pty
import pwd
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import mainstem
from mainstem.log.doctor import examine
from tests.faults.folders import FolderImage
from tests.integration.cli.conftest import COMMAND, Cli, environment

ROOT = Path(__file__).parents[3]
BLOCK = "data/blocks/0000000000000001.block"
SALVAGE = f"mainstem doctor --salvage {BLOCK} --output 0000000000000001.parquet"
# Streams, small blocks, checkpoints and snapshots as fast as it goes, until it is stopped. Rows are dropped, and blocks
# in which nothing is alive are taken away when both snapshots are beyond them.
WRITER = """
import sys
from mainstem.log.log import Log, LogOptions
from pathlib import Path
from tests.unit.log.parts import append_values, make_stream
from mainstem.log.flush import DropEntries, ForgetBlock, TrimShard
from mainstem.log.scan import BlockScanner

log = Log(Path(sys.argv[1]), LogOptions(block_bytes=256 << 10, checkpoint_bytes=64 << 10, snapshot_bytes=512 << 10))
streams = [make_stream(log, f"s{number}", 2) for number in range(3)]
print("writing", flush=True)
number = 0
while True:
    stream = streams[number % 3]
    append_values(log, stream, b"%d " % number * (number % 700), shard=number % 2)
    if number % 100 == 99:
        for trimmed in streams:
            for shard in range(2):
                log.execute(TrimShard(trimmed, shard, log.ledger.load_shard(trimmed, shard).next - 5))
                log.execute(DropEntries(trimmed, shard, 1000, 0))
        rows = log.ledger.list_blocks()
        snapshots = log._folder.snapshots.numbers()
        for row, following in zip(rows[:-1], rows[1:]):
            first = BlockScanner(log._folder.blocks, following.id).header().first_flush
            if row.dead_us and len(snapshots) == 2 and first <= snapshots[-1]:
                (log.path / "blocks" / f"{row.id:016d}.block").unlink()
                log.execute(ForgetBlock(row.id))
    number += 1
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> FolderImage:
    path = tmp_path_factory.mktemp("doctor") / "data"
    with mainstem.open(path) as hub:
        hub.streams.create("orders", shards=2)
        with hub.producer() as producer:
            for number in range(1000):
                producer.send("orders", b"%d" % number * 10)
                if number % 100 == 0:
                    producer.flush()
    return FolderImage.take(path)


@pytest.fixture
def filled(local, image) -> Cli:
    image.put(local.folder / "data")
    return local


def damage(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_healthy_folder(filled):
    lines = filled.out("doctor").splitlines()
    assert lines[0].startswith("note  space  ")
    assert lines[-1].startswith("healthy: 0 damage, 0 warnings, 1 note; 1 stream, 1,000 records")
    report = json.loads(filled.out("doctor", "--deep", "--json"))
    assert (report["verdict"], report["records"], report["streams"]) == ("healthy", 1000, 1)
    assert report["checked_bytes"] == report["block_bytes"]


def test_warnings_and_damage_have_exit_codes(filled):
    (filled.folder / "data/mainstem.json").rename(filled.folder / "kept")
    text = filled.out("doctor", code=6)
    assert "warning  identity-missing  mainstem.json: it is missing" in text
    assert "  ->  mainstem serve --data data" in text
    (filled.folder / "kept").rename(filled.folder / "data/mainstem.json")
    size = (filled.folder / BLOCK).stat().st_size
    damage(filled.folder / BLOCK, size // 2)
    done = filled.run("doctor", code=7)
    first = done.stdout.decode().splitlines()[0]
    assert first.startswith(f"damage  records-damaged  {BLOCK[5:]} at byte ")
    assert "of stream 'orders' shard" in first
    assert first.endswith(f"  ->  {SALVAGE}")
    assert done.stderr == b""
    assert json.loads(filled.out("doctor", "--json", code=7))["verdict"] == "damage"


def test_the_command_it_names_runs(filled):
    damage(filled.folder / BLOCK, (filled.folder / BLOCK).stat().st_size // 2)
    command = filled.out("doctor", code=7).splitlines()[0].partition("  ->  mainstem ")[2].split()
    text = filled.out(*command, where=False, code=7)
    assert "could not be read: payload checksum does not match" in text
    table = pq.read_table(filled.folder / "0000000000000001.parquet")
    assert 0 < table.num_rows < 1000
    assert set(table.column("stream").to_pylist()) == {"orders"}
    assert table.column("offset").null_count == 0
    # It is there now.
    assert "is there already" in filled.error(*command, where=False, code=2)


def test_salvage_of_a_whole_block(filled):
    output = filled.out("doctor", "--salvage", BLOCK, "--output", "out.parquet", "--json", where=False)
    assert json.loads(output)["records"] == pq.read_table(filled.folder / "out.parquet").num_rows


def test_salvage_says_what_is_in_which_file(local):
    with mainstem.open(local.folder / "data") as hub, hub.producer() as producer:
        hub.streams.create("plain")
        hub.streams.create("typed", schema={"id": "int64"})
        for number in range(3):
            producer.send("typed", {"id": number})
        producer.send("plain", b"a")
    told = local.out("doctor", "--salvage", BLOCK, "--output", "out.parquet", where=False).splitlines()
    assert told[0].startswith("4 records of block 1 found; 0 B of ")
    assert told[1:] == [
        "1 record without a schema written to out.parquet",
        "3 rows of schema 1 written to out.schema-1.parquet",
    ]
    assert pq.read_table(local.folder / "out.parquet").num_rows == 1
    assert pq.read_table(local.folder / "out.schema-1.parquet").num_rows == 3


def test_salvage_of_what_is_no_block(filled):
    (filled.folder / "file").write_bytes(b"something else")
    assert "is not a block" in filled.error("doctor", "--salvage", "file", "--output", "o", where=False, code=5)
    error = filled.error("doctor", "--salvage", "nothing", "--output", "o", where=False, code=1)
    assert error == "mainstem: nothing: No such file or directory"
    assert not (filled.folder / "o").exists()


def test_usage(filled):
    assert "belong together" in filled.error("doctor", "--salvage", BLOCK, code=2)
    assert "neither" in filled.error("doctor", "--rebuild", "--deep", code=2)
    assert "say --yes" in filled.error("doctor", "--rebuild", code=2)
    assert "no log in nowhere" in filled.error("doctor", "--data", "nowhere", where=False, code=5)


def test_a_rebuilt_ledger_gives_the_same_records(filled):
    read = ("tail", "orders", "--start", "earliest", "--no-follow", "--output", "json")
    before = filled.out(*read)
    (filled.folder / "data/ledger.db").write_bytes(b"gone")
    text = filled.out("doctor", "--rebuild", "--yes")
    assert "made the ledger of data anew" in text
    assert "the old one is in data/damaged-1" in text
    assert sorted(filled.out(*read).splitlines()) == sorted(before.splitlines())
    assert (filled.folder / "data/damaged-1/ledger.db").read_bytes() == b"gone"
    assert "note  left-over  damaged-1" in filled.out("doctor", "--deep")


def test_no_rebuild_while_another_process_writes(filled):
    server = filled.start("serve", "--listen", "127.0.0.1:0", "--http", "off", stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        assert f"process {server.pid}" in filled.error("doctor", "--rebuild", "--yes", code=5)
        text = filled.out("doctor", "--deep")
        assert f"note  writer  lock: process {server.pid} writes this folder" in text
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
        server.stdout.close()


@pytest.mark.slow("looks at a log at work again and again")
def test_beside_a_busy_writer_nothing_is_found(tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "data")], cwd=ROOT, stdout=subprocess.PIPE, env=environment()
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        # At least until blocks are freed.
        looks = """
import sys
from pathlib import Path
from mainstem.log.doctor import examine
number = 0
while number < 60 or Path("data/blocks/0000000000000002.block").exists():
    found = examine(Path("data"), deep=number % 2 == 0).findings
    wrong = [finding for finding in found if finding.code not in ("space", "writer")]
    if wrong:
        sys.exit(f"look {number}: {wrong}")
    number += 1
print("done")
"""
        command = [sys.executable, "-c", looks]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=100, env=environment(), check=False)
        assert (done.stdout, done.stderr) == (b"done\n", b"")
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.communicate()
    # What the kill leaves is not damaged either; it may hit the moment in which a start does not trust the ledger.
    left = {finding.code for finding in examine(tmp_path / "data", deep=True).findings}
    assert left <= {"space", "flushes-to-apply", "ledger-outdated"}


def test_as_a_user_who_may_only_read(filled):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user; enable: sudo make test")
    nobody = pwd.getpwnam("nobody").pw_uid
    # Everything is loaded before the user changes: the other one may not be allowed to read the interpreter's files.
    code = """
import os, sys
from mainstem.cli.app import run
assert run(["doctor", "--deep", "--data", sys.argv[1]]) == 0
os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
try:
    open(os.path.join(sys.argv[1], "test"), "w")
    sys.exit("this user may write here: the test would prove nothing")
except PermissionError:
    sys.exit(run(["doctor", "--deep", "--data", sys.argv[1]]))
"""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        (filled.folder / "data").rename(folder / "data")
        before = _traces(folder)
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder / "data"), str(nobody)],
            capture_output=True,
            env=environment(),
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, b""), done
        assert _traces(folder) == before


def _traces(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns) for path in folder.rglob("*")
    }


def test_the_question_before_a_rebuild(filled):
    """On a terminal, with progress there too."""
    for answer, code in ((b"n\n", 1), (b"y\n", 0)):
        control, terminal = pty.openpty()
        process = subprocess.Popen(
            [*COMMAND, "doctor", "--rebuild", "--data", "data"],
            cwd=filled.folder,
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=terminal,
            env=environment(),
        )
        os.close(terminal)
        seen = b""
        while b"[y/N]" not in seen:
            assert select.select([control], [], [], 30)[0]
            seen += os.read(control, 1000)
        os.write(control, answer)
        output, _ = process.communicate(timeout=30)
        os.close(control)
        assert process.returncode == code
        assert (b"made the ledger" in output) == (code == 0)


def test_progress_on_a_terminal(filled):
    control, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "doctor", "--deep", "--data", "data"],
        cwd=filled.folder,
        stdout=subprocess.PIPE,
        stderr=terminal,
        env=environment(TERM="xterm"),
    )
    os.close(terminal)
    output, _ = process.communicate(timeout=30)
    os.close(control)
    assert process.returncode == 0
    assert output.decode().splitlines()[-1].startswith("healthy")
