"""The OpenAPI document and the server say the same.

schemathesis makes requests of the document, right and wrong, and looks whether they are answered as it says. It asks a
server that has streams, records and a group; `schemathesis.toml` says which names there are, and which statuses tell
that a request was right in form and meant nothing.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mainstem
from mainstem.server.http.openapi import document
from mainstem.testing.server import ServerProcess
from tests.integration.http.client import Client

CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
# It takes a tenth of that where nothing else runs.
SECONDS_MAX = 240


@pytest.mark.timeout(2 * SECONDS_MAX)
@pytest.mark.slow("asks a server for much, of every operation")
def test_schemathesis_finds_nothing(tmp_path):
    with ServerProcess(tmp_path / "data", "--http", "127.0.0.1:0") as server:
        fill(server, tmp_path)
        run(server, tmp_path, "--max-examples", "10")


@pytest.mark.timeout(2 * SECONDS_MAX)
@pytest.mark.slow("asks a server for much, of every operation")
def test_schemathesis_finds_nothing_where_everybody_must_be_known(tmp_path):
    few = ("--max-examples", "5", "--phases", "fuzzing")
    with ServerProcess(tmp_path / "data", "--http", "127.0.0.1:0") as server:
        fill(server, tmp_path)
        with mainstem.connect(server.url) as hub:
            token = hub.access.create_token("root", admin=True).secret
        run(server, tmp_path, *few, token=token)
        # That a stranger is refused, whatever it asks, is in the document too.
        saved = tmp_path / "openapi.json"
        with Client(server.http) as client:
            saved.write_bytes(client.get("/openapi.json", authorization=f"Bearer {token}").body)
        run(server, tmp_path, *few, saved=saved)


def test_every_kind_of_rows_that_the_document_names_is_there(client: Client):
    kinds = document("0")["paths"]["/streams/{name}/records"]["get"]["responses"]["200"]["content"]
    client.create("kinds")
    for kind in kinds:
        answer = client.ask("HEAD", "/streams/kinds/records", accept=kind)
        assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, kind)


def fill(server: ServerProcess, folder: Path) -> None:
    """Make what the configuration names."""
    with Client(server.http) as client:
        client.create("orders", schema={"id": "int64", "name": "string"}, key="id", index="name", shards=2)
        client.create("loose", shards=2)
        client.create("doomed")
        assert client.post("orders", b'{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n').status == 200
        assert client.post("loose", b'{"key": "a", "value": "b"}\n').status == 200
        cursor = client.get("/streams/orders/records").headers["mainstem-cursor"]
        assert client.ask("POST", "/groups/billing/commit", {"stream": "orders", "cursor": cursor}).status == 204
    shutil.copy(CONFIGURATION, folder)
    (folder / "cursors.txt").write_text(f'"{cursor}"\n')


def run(server: ServerProcess, folder: Path, *options: str, token: str = "", saved: Path | None = None) -> None:
    url = f"http://{server.http}"
    where = [f"{url}/openapi.json"] if saved is None else [str(saved), "--url", url]
    known = ["--header", f"Authorization: Bearer {token}"] if token else []
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(folder / CONFIGURATION.name), "run"]
    fixed = ["--seed", "1", "--request-timeout", "30", "--no-color"]
    command += [*where, *fixed, *known, *options]
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.stderr()}"
