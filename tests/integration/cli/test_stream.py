"""`mainstem stream`: create, list, show, alter, delete, and the exit codes of what cannot be done."""

import fcntl
import json
import os
import pty
import subprocess
import termios

import pytest

import mainstem
from tests.integration.cli.conftest import COMMAND

pytestmark = pytest.mark.slow("starts several processes, each of which loads pyarrow")


def test_a_stream_from_creation_to_deletion(cli, name):
    made = json.loads(cli.out("stream", "create", name, "--shards", "3", "--retention", "2d", "--json"))
    assert (made["shards"], made["retention"], made["ends"]) == (3, "2d", [0, 0, 0])
    cli.run("write", name, stdin=b"a\nb\n")
    assert json.loads(cli.out("stream", "show", name, "--json"))["records"] == 2
    assert json.loads(cli.out("stream", "alter", name, "--retention", "5h", "--json"))["retention"] == "5h"
    assert name in [info["name"] for info in json.loads(cli.out("stream", "list", "--json"))]
    assert cli.out("stream", "delete", name, "--yes") == f"deleted {name} and its 2 records\n"
    assert name not in cli.out("stream", "list")


def test_text_for_people(local):
    local.run("stream", "create", "clicks", "--shards", "2")
    listed = local.out("stream", "list").splitlines()
    assert listed[0].split() == ["stream", "shards", "records", "size", "kept", "for", "created"]
    assert listed[1].split()[:6] == ["clicks", "2", "0", "0", "B", "7d"]
    assert local.out("stream", "show", "clicks").startswith(
        "clicks: 0 records, 0 B, kept for 7d, keys placed by crc32\n"
    )


def test_exit_codes(cli, name):
    cli.run("stream", "create", name)
    assert "there is no stream 'nothing'" in cli.error("stream", "show", "nothing", code=3)
    assert "exists already; use --exist-ok" in cli.error("stream", "create", name, code=5)
    cli.run("stream", "create", name, "--exist-ok")
    assert "shards" in cli.error("stream", "create", "other", "--shards", "0", code=2)
    assert "say --yes" in cli.error("stream", "delete", name, code=2)
    assert "'--shards'" in cli.error("stream", "create", "other", "--shards", "five", code=2)
    cli.error("stream", "create", "a/b", code=2)
    assert "'soon' is no length of time like '7d'" in cli.error(
        "stream", "create", "other", "--retention", "soon", code=2
    )
    missing = "there is no stream 'nothing'; mainstem stream list shows what there is"
    assert missing in cli.error("stream", "delete", "nothing", "--yes", code=3)
    assert missing in cli.error("stream", "alter", "nothing", "--retention", "1d", code=3)
    assert "stream name '../x'" in cli.error("stream", "delete", "../x", "--yes", code=2)


@pytest.mark.parametrize(("typed", "code"), [(b"\x03", 130), (b"n\n", 1), (b"\x04", 1), (b"y\n", 0)])
def test_the_question_before_a_stream_is_deleted(local, typed, code):
    """Ctrl-C, no, Ctrl-D and yes, on a terminal."""
    local.run("stream", "create", "clicks")
    ours, theirs = pty.openpty()
    try:
        delete = local.start(
            "stream",
            "delete",
            "clicks",
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=_take_terminal,
        )
        with delete:
            asked = b""
            while not asked.endswith(b": "):
                asked += delete.stderr.read(1)
            os.write(ours, typed)
            assert delete.wait(20) == code
        assert asked == b"Delete clicks with its 0 records? [y/N]: "
        assert ("clicks" in local.out("stream", "list")) == (code != 0)
    finally:
        os.close(ours)
        os.close(theirs)


def _take_terminal() -> None:
    """In the child: have Ctrl-C of the terminal on standard input sent to it."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_name_that_is_no_text(local):
    """A byte that the locale cannot say arrives as half of a character."""
    error = local.error("stream", "create", os.fsdecode(b"\xfc"), code=2)
    assert "stream name '\\udcfc': use letters" in error


def test_the_version():
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, timeout=60, check=True)
    assert done.stdout.decode() == f"mainstem {mainstem.__version__}\n"


def test_nobody_listens(local):
    error = local.error("stream", "list", "--url", "mainstem://127.0.0.1:1", code=4, where=False)
    assert "127.0.0.1:1" in error
    assert "mainstem serve" in error
    assert "--url" in error


def test_a_folder_that_is_no_log(local):
    for command in (("stream", "list"), ("write", "clicks"), ("tail", "clicks")):
        error = local.error(*command, code=5)
        assert error == "mainstem: there is no log in data; mainstem stream create NAME --data data begins one there"
    assert not (local.folder / "data").exists()


def test_a_log_without_its_identity_is_one_that_the_next_start_mends(local):
    with mainstem.open(local.folder / "data") as hub:
        hub.streams.create("clicks")
    (local.folder / "data" / "mainstem.json").unlink()
    mend = "the blocks say which log this is, and the next start writes it anew"
    assert mend in local.run("doctor", code=6).stdout.decode()
    for command in (("stream", "list"), ("tail", "clicks"), ("backup", "saved")):
        error = local.error(*command, code=5)
        assert f"there is a log in data, and its mainstem.json is missing; {mend}: mainstem serve --data data" in error
    mainstem.open(local.folder / "data").close()
    assert (local.folder / "data" / "mainstem.json").exists()


def test_two_logs_at_once(local):
    error = local.error("stream", "list", "--url", "mainstem://127.0.0.1:1", code=2)
    assert error == "mainstem: --url and --data name two logs; give one of them"


def test_a_folder_with_a_writer_can_be_read_and_not_written(local):
    """While a server has the folder, others read it."""
    local.run("stream", "create", "clicks")
    serve = ("serve", "--listen", "127.0.0.1:0", "--http", "off")
    with local.start(*serve, stdout=-1, stderr=-3) as server:
        try:
            assert server.stdout.readline().startswith(b"ready ")
            assert "being written by process" in local.error("stream", "create", "other", code=5)
            assert "clicks" in local.out("stream", "list")
            assert "being written by process" in local.error(*serve, code=5)
        finally:
            server.terminate()
            assert server.wait(30) == 0


@pytest.mark.parametrize("arguments", [["stream", "list", "--json"], ["stream", "list"], ["config"]])
def test_a_listing_whose_reader_left_is_no_error(local, arguments):
    local.run("stream", "create", "clicks")
    where = "--data data" if arguments[0] == "stream" else ""
    local.where = []
    assert local.shell(f"mainstem {' '.join(arguments)} {where} | true; echo ${{PIPESTATUS[0]}}") == "0\n"
