"""Streams as ends of a pipe: what goes in comes out, and a reader that leaves early misses nothing."""

import array
import fcntl
import re
import signal
import subprocess
import termios
import time

import pytest

import mainstem
from mainstem.testing.server import ServerProcess
from tests.integration.cli.conftest import Cli

pytestmark = pytest.mark.slow("starts several processes, each of which loads pyarrow")


@pytest.mark.mechanism("S85")
def test_a_reader_that_takes_1000_records_and_leaves_comes_back_to_the_1001st(cli, name):
    """10,000 lines go in and come out, 1,000 of them to a reader that leaves. One that does not save its place begins
    anew."""
    lines = [f"{number} {'x' * (number % 300)}" for number in range(1, 10_001)]
    cli.run("stream", "create", name)
    written = cli.run("write", name, stdin="".join(f"{line}\n" for line in lines).encode())
    assert written.stderr.decode() == f"10,000 records written to {name}; newest offsets 0:9999\n"

    tail = f"mainstem tail {name} --start earliest --no-follow --output raw"
    saving = f"{tail} --cursor-file place"
    shown = cli.shell(f'{saving} | head -1000; echo "${{PIPESTATUS[@]}}"').splitlines()
    assert shown == [*lines[:1_000], "0 0"]
    assert mainstem.Cursor.parse((cli.folder / "place").read_text()).offsets == (1000,)
    assert cli.shell(saving).splitlines() == lines[1_000:]
    assert cli.shell(f"{tail} | head -1").splitlines() == lines[:1]


def test_ten_thousand_lines_round_trip_through_a_pipe_on_both_sides(cli, name):
    lines = b"".join(b"%d %s\n" % (number, b"x" * (number % 300)) for number in range(10_000))
    (cli.folder / "lines.txt").write_bytes(lines)
    cli.run("stream", "create", name)
    cli.shell(f"cat lines.txt | mainstem write {name}")
    assert cli.run("tail", name, "--start", "earliest", "--no-follow", "--output", "raw").stdout == lines


def test_a_reader_that_takes_single_bytes_misses_nothing(local, name):
    """`read` of a shell asks for one byte at a time, and leaves the rest of a line to whoever comes next."""
    local.run("stream", "create", name)
    local.run("write", name, stdin=b"".join(b"%d\n" % number for number in range(100)))
    tail = f"mainstem tail {name} --start earliest --no-follow --output raw --cursor-file place"
    first = local.shell(f"{tail} | {{ read a; read b; echo $a $b; }}")
    assert first == "0 1\n"
    assert local.shell(f"{tail} | head -1") == "2\n"


def test_frames_carry_any_bytes(local, name):
    values = [b"", b"\n\n", bytes(range(256)), b"x" * 10_000]
    framed = b"".join(len(value).to_bytes(4, "little") + value for value in values) + b"\xff" * 4
    local.run("stream", "create", name)
    local.run("write", name, "--format", "frames", stdin=framed)
    tail = ("tail", name, "--start", "earliest", "--no-follow", "--output", "raw", "--frame")
    assert local.run(*tail).stdout == framed


def test_json_out_is_json_in(local, name):
    """Keys, headers, times, tombstones and bytes that are no text survive a trip through NDJSON."""
    rows = (
        b'{"key":"k","value":"text","headers":{"trace":"1"},"timestamp":"2026-01-31T12:00:00.123456Z"}\n'
        b'{"key":{"base64":"/w=="},"value":{"base64":"/wA="},"headers":null}\n'
        b'{"key":"gone","value":null}\n'
    )
    tail = ("--start", "earliest", "--no-follow", "--output", "json")
    for stream in ("first", "second"):
        local.run("stream", "create", f"{name}-{stream}")
    local.run("write", f"{name}-first", "--format", "ndjson", stdin=rows)
    once = local.run("tail", f"{name}-first", *tail).stdout
    local.run("write", f"{name}-second", "--format", "ndjson", stdin=once)
    assert local.run("tail", f"{name}-second", *tail).stdout == once
    assert b'"value":{"base64":"/wA="}' in once
    assert b'"timestamp":"2026-01-31T12:00:00.123456Z"' in once


@pytest.mark.parametrize(
    ("signal_", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "terminated"]
)
def test_a_follower_that_is_stopped_saves_its_cursor(remote, name, signal_, code):
    remote.run("stream", "create", name)
    remote.run("write", name, stdin=b"one\ntwo\n")
    follow = ("tail", name, "--start", "earliest", "--output", "raw", "--cursor-file", "place")
    process = remote.start(*follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"one\n", b"two\n"]
        process.send_signal(signal_)
        assert process.wait(20) == code
        assert process.stderr.read() == b""
    assert mainstem.Cursor.parse((remote.folder / "place").read_text()).offsets == (2,)


def test_a_follower_notices_that_its_reader_left_while_nothing_happens(remote, name):
    remote.run("stream", "create", name)
    remote.run("write", name, stdin=b"one\n")
    begun = time.monotonic()
    assert remote.shell(f"mainstem tail {name} --start earliest --output raw | head -1") == "one\n"
    assert time.monotonic() - begun < 15


def test_a_follower_sees_what_is_written_meanwhile(remote, name):
    remote.run("stream", "create", name)
    process = remote.start("tail", name, "--start", "earliest", "-n", "3", "--output", "raw", stdout=subprocess.PIPE)
    with process:
        for line in (b"a\n", b"b\n", b"c\n"):
            remote.run("write", name, stdin=line)
        assert process.communicate(timeout=20)[0] == b"a\nb\nc\n"
        assert process.returncode == 0


@pytest.mark.parametrize("command", ["write", "tail"])
def test_a_connection_that_is_lost_and_back_is_told(tmp_path, name, command):
    with ServerProcess(tmp_path / "data") as server:
        cli = Cli(tmp_path, ["--url", server.url])
        cli.run("stream", "create", name)
        read = ("tail", name, "--start", "earliest", "--output", "raw")
        arguments = ("write", name) if command == "write" else read
        process = cli.start(*arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            if command == "write":
                process.stdin.write(b"one\n")
                process.stdin.flush()
                assert cli.out(*read, "-n", "1") == "one\n"
            else:
                cli.run("write", name, stdin=b"one\n")
                assert process.stdout.readline() == b"one\n"
            server.kill()
            lost = process.stderr.readline().decode()
            server.start()
            back = process.stderr.readline().decode()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            rest = process.stderr.read().decode()
    assert lost.endswith(f"connection lost; trying again server={server.address}\n")
    assert back.endswith(f"connected again server={server.address}\n")
    assert rest == (f"stopped; 1 record is in {name}\n" if command == "write" else "")


def test_ctrl_c_twice_gives_up_what_nobody_acknowledges(tmp_path, name):
    """The first waits for the server, and says so; the second does not."""
    with ServerProcess(tmp_path / "data") as server:
        cli = Cli(tmp_path, ["--url", server.url])
        cli.run("stream", "create", name)
        with cli.start("write", name, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(b"one\n")
            process.stdin.flush()
            assert cli.out("tail", name, "--start", "earliest", "-n", "1", "--output", "raw") == "one\n"
            server.kill()
            assert b"connection lost" in process.stderr.readline()
            # When the third was read, the second was sent; the third may have been.
            for line in (b"two\n", b"three\n"):
                process.stdin.write(line)
                process.stdin.flush()
                while unread(process.stdin.fileno()):
                    time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            assert process.stderr.readline() == b"waiting for the last acknowledgements; Ctrl-C gives up\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert re.fullmatch(rb"gave up; at least 1 of [23] records are durable\n", process.stderr.read())


def unread(pipe: int) -> int:
    """How many bytes lie in a pipe."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"], ids=["in", "out", "err", "all"])
def test_a_command_started_without_a_standard_stream(cli, name, closed):
    """Its number must not go to a socket, and reading nothing is reading an empty file."""
    cli.run("stream", "create", name)
    assert cli.shell(f"mainstem write {name} {closed}; echo $?").splitlines()[-1] == "0"
    assert cli.shell(f"mainstem stream list {closed}; echo $?").splitlines()[-1] == "0"
