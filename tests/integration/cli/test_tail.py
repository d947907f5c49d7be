"""`mainstem tail`: where it starts, what it prints, how it ends."""

import json
import re
import subprocess

import pytest

from mainstem import Cursor

pytestmark = pytest.mark.slow("starts several processes, each of which loads pyarrow")


@pytest.fixture
def cli(local, name):
    rows = [
        {"key": "k", "value": f"v{hour}", "timestamp": f"2026-01-01T0{hour}:00:00Z", "headers": {"h": "1"}}
        for hour in range(5)
    ]
    local.run("stream", "create", name)
    local.run("write", name, "--format", "ndjson", stdin="\n".join(map(json.dumps, rows)).encode())
    return local


def values(cli, name, *options):
    return cli.out("tail", name, "--no-follow", "--output", "raw", *options).split()


def test_starts(cli, name):
    assert values(cli, name, "--start", "earliest") == ["v0", "v1", "v2", "v3", "v4"]
    assert values(cli, name) == []
    assert values(cli, name, "--start", "2026-01-01T02:30:00Z") == ["v3", "v4"]
    assert values(cli, name, "--start", "2026-01-01T03:30:00+01:00", "--limit", "1") == ["v3"]
    assert values(cli, name, "--start", "15m") == []
    uuid = json.loads(cli.out("stream", "show", name, "--json"))["uuid"]
    assert values(cli, name, "--start", str(Cursor(uuid, 1, (4,)))) == ["v4"]


def test_outputs(cli, name):
    tail = ("tail", name, "--no-follow", "--start", "earliest", "--limit", "1")
    assert cli.out(*tail) == "2026-01-01T00:00:00.000Z\t0:0\tk\tv0\n"
    assert json.loads(cli.out(*tail, "--output", "json")) == {
        "shard": 0,
        "offset": 0,
        "timestamp": "2026-01-01T00:00:00.000000Z",
        "key": "k",
        "value": "v0",
        "headers": {"h": "1"},
    }
    assert cli.run(*tail, "--output", "raw", "--frame").stdout == b"\x02\0\0\0v0"


def test_the_cursor_file_wins_over_start_once_it_exists(cli, name):
    options = ("--start", "earliest", "--cursor-file", "place", "--limit", "2")
    assert values(cli, name, *options) == ["v0", "v1"]
    assert values(cli, name, *options) == ["v2", "v3"]
    assert values(cli, name, *options) == ["v4"]
    assert values(cli, name, *options) == []


def test_bad_starts(cli, name):
    assert "the time needs a zone; 2026-01-01T00:00:00Z is UTC" in cli.error(
        "tail", name, "--start", "2026-01-01T00:00:00", code=2
    )
    assert "--start soon: use earliest," in cli.error("tail", name, "--start", "soon", code=2)
    assert "--start 99999999d: that is before the year 1" in cli.error("tail", name, "--start", "99999999d", code=2)
    foreign = str(Cursor("0" * 32, 1, (4,)))
    assert "belongs to another stream" in cli.error("tail", name, "--start", foreign, code=2)
    assert "not a cursor" in cli.error("tail", name, "--start", foreign[:-1], code=2)
    (cli.folder / "place").write_text("nonsense\n")
    error = cli.error("tail", name, "--cursor-file", "place", code=2)
    assert "place holds no cursor" in error
    assert "remove the cursor file" in error
    assert (cli.folder / "place").read_text() == "nonsense\n"


def test_a_terminal_cannot_be_hurt(local, name):
    local.run("stream", "create", name)
    local.run("write", name, "--format", "frames", stdin=b"\x08\0\0\0\x1b[2J\n\xff\xc2\x9b")
    line = local.out("tail", name, "--start", "earliest", "--no-follow")
    assert re.fullmatch(r"[ -~\t]*\n", line)
    assert r"\x1b[2J\n\xff\u009b" in line


def test_an_unknown_output_is_refused(cli, name):
    assert "--output xml: use one of text, json, raw" in cli.error("tail", name, "--output", "xml", code=2)


def test_an_output_that_takes_nothing_is_named(cli, name):
    with open("/dev/full", "wb") as full:
        tail = cli.start("tail", name, "--no-follow", "--start", "earliest", stdout=full, stderr=subprocess.PIPE)
    assert tail.communicate(timeout=20)[1] == b"mainstem: standard output: No space left on device\n"
    assert tail.returncode == 1


def test_a_cursor_file_that_cannot_be_is_refused_before_a_record_is_out(cli, name):
    tail = ("tail", name, "--no-follow", "--start", "earliest", "--cursor-file")
    done = cli.run(*tail, "nowhere/place", code=1)
    assert (done.stdout, done.stderr) == (b"", b"mainstem: nowhere: there is no such folder for a cursor file\n")
    done = cli.run(*tail, "/proc/place", code=1)
    assert done.stdout == b""
    assert b"/proc/place: the cursor cannot be saved: " in done.stderr


def test_an_unknown_stream(cli):
    assert "stream name '../x'" in cli.error("tail", "../x", code=2)
    assert "there is no stream 'nothing'" in cli.error("tail", "nothing", code=3)
