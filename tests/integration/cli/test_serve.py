"""`mainstem serve`, `config`, `version` and `bench` as processes."""

import json
import signal
import socket
import subprocess

import pytest

pytestmark = pytest.mark.slow("starts several processes, each of which loads pyarrow")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_is_all_it_prints(local, number):
    local.where = []
    serve = ("serve", "--data", "log", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--auto-create")
    with local.start(*serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline().decode().removeprefix("ready "))
        assert set(ready) == {"data", "http"}
        local.run("write", "made-by-writing", "--url", f"mainstem://{ready['data']}", stdin=b"x\n")
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
        assert (out, process.returncode) == (b"", 0)


@pytest.mark.parametrize("option", ["--listen", "--http"])
def test_a_port_that_is_taken_leaves_no_folder(local, option):
    local.where = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        others = ("--http", "off") if option == "--listen" else ("--listen", "127.0.0.1:0")
        said = local.error("serve", "--data", "log", option, place, *others, code=2)
    assert f"cannot listen on {place}" in said
    assert f"choose another {option}" in said
    assert not (local.folder / "log").exists()


def test_settings_that_cannot_be(local):
    local.where = []
    assert "would let other machines connect" in local.error("serve", "--listen", "0.0.0.0:7070", code=2)
    assert "kafka" in local.error("serve", "--kafka", "127.0.0.1:9092", code=2)
    assert "Did you mean MAINSTEM_LISTEN?" in local.error("serve", code=2, MAINSTEM_LISTEM="x")
    assert "block_bytes = '1 B'" in local.error("serve", "--block-bytes", "1 B", code=2)
    assert "No such option" in local.error("serve", "--blocks", "1", code=2)
    assert not (local.folder / "data").exists()


def test_config_says_where_values_come_from(local):
    local.where = []
    (local.folder / "mainstem.toml").write_text('retention = "3d"\nblock_bytes = "1MB"\n')
    found = json.loads(local.out("config", "--json", MAINSTEM_BLOCK_BYTES="2MB"))
    assert found["retention"] == {"value": "3d", "origin": "file mainstem.toml"}
    assert found["block_bytes"] == {"value": "2 MB", "origin": "variable MAINSTEM_BLOCK_BYTES"}
    assert found["listen"]["origin"] == "default"
    (local.folder / "other.toml").write_text('retention = "4d"\n')
    lines = [line.split() for line in local.out("config", "--config", "other.toml").splitlines()]
    assert ["retention", "4d", "file", "other.toml"] in lines
    assert "cannot be read" in local.error("config", "--config", "none.toml", code=2)


def test_version(local):
    local.where = []
    found = json.loads(local.out("version", "--json"))
    assert local.out("version").splitlines()[0] == f"mainstem {found['mainstem']}"


def test_debug_shows_where_an_error_arose(local):
    done = local.run("stream", "list", code=5, MAINSTEM_DEBUG="1")
    assert b"Traceback" in done.stderr
    assert b"FolderUnusable" in done.stderr


def test_bench_measures_and_leaves_nothing(local):
    local.run("stream", "create", "mine")
    found = json.loads(local.out("bench", "--seconds", "0.2", "--json"))
    assert found["write_per_second"] > 100
    assert found["one_at_a_time_p50_ms"] > 0
    assert [info["name"] for info in json.loads(local.out("stream", "list", "--json"))] == ["mine"]
    local.where = []
    assert "records/s" in local.out("bench", "--seconds", "0.2", "--size", "10")
