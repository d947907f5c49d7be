"""The files of deploy/ are what they claim to be, as far as it can be known without a system to deploy to."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mainstem.core.kinds import parse_duration
from mainstem.core.settings import BY_NAME, SETTINGS, Settings
from mainstem.server.main import EXIT_IO_ERROR
from mainstem.server.metrics import HISTOGRAM, METRICS, OTHER_METRICS, STREAM_METRICS
from mainstem.server.service_manager import notify

DEPLOY = Path(__file__).parents[2] / "deploy"
VARIABLES = {setting.variable for setting in SETTINGS}
INSTRUCTIONS = {
    *("FROM", "COPY", "RUN", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"),
}


def unit() -> dict[str, list[str]]:
    """Values by name; a name may come more than once."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "mainstem.service").read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_the_unit_is_valid(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed; enable: apt install systemd")
    # Whether the command is installed here does not matter.
    text = (DEPLOY / "mainstem.service").read_text().replace("/opt/mainstem/bin/mainstem", "/bin/true")
    (tmp_path / "mainstem.service").write_text(text)
    command = ["systemd-analyze", "verify", str(tmp_path / "mainstem.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_the_unit_agrees_with_the_settings():
    found = unit()
    assert found["Type"] == ["notify"]
    assert float(found["TimeoutStopSec"][0]) >= 2 * Settings().drain_timeout
    assert int(found["LimitNOFILE"][0]) > 10 * Settings().connections_max
    assert {value.partition("=")[0] for value in found["Environment"]} <= VARIABLES
    assert found["Restart"] == ["on-failure"]
    assert str(EXIT_IO_ERROR) not in found["RestartPreventExitStatus"][0].split()
    assert f"{EXIT_IO_ERROR} means" in (DEPLOY / "mainstem.service").read_text()


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Containerfile").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def test_the_container_file():
    found = instructions()
    assert {name for name, _ in found} == INSTRUCTIONS
    bases = [rest.split()[0] for name, rest in found if name == "FROM"]
    # Pinned to a version, and without a registry's host.
    assert all(re.fullmatch(r"python:3\.\d+-slim", base) for base in bases)
    last = found[max(index for index, (name, _) in enumerate(found) if name == "FROM") :]
    order = [name for name, _ in last]
    assert order.index("USER") < order.index("ENTRYPOINT")
    values = dict(last)
    assert values["USER"] not in ("root", "0")
    assert values["ENTRYPOINT"] == '["mainstem", "serve"]'
    assert values["EXPOSE"].split() == [str(Settings().listen.port), str(Settings().http.port)]  # type: ignore[union-attr]
    assert f"http://{Settings().http}/readyz" in values["HEALTHCHECK"]
    variables = [word.partition("=")[0] for word in shlex.split(values["ENV"])]
    assert {name for name in variables if name.startswith("MAINSTEM_")} <= VARIABLES
    assert f"drain_timeout ({BY_NAME['drain_timeout'].default_text})" in (DEPLOY / "Containerfile").read_text()
    assert parse_duration(BY_NAME["drain_timeout"].default_text) < 60


def test_what_the_container_file_copies_is_there():
    root = DEPLOY.parent
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from") and not rest.startswith("dist/"):
            assert (root / rest.split()[0]).exists()


def test_the_alerts_ask_for_metrics_that_exist():
    text = (DEPLOY / "prometheus-rules.yml").read_text()
    known = {metric.name for metric in (*METRICS, *STREAM_METRICS, *OTHER_METRICS)}
    known |= {f"{metric.name}_bucket" for metric in METRICS if metric.kind == HISTOGRAM}
    expressions = re.findall(r"^ +expr: (.+)$", text, re.MULTILINE)
    asked = {name for expression in expressions for name in re.findall(r"(?:mainstem|process)_\w+", expression)}
    assert asked
    assert asked - known == set()
    # rate and increase are for counters.
    counters = {name for name in re.findall(r"(?:rate|increase)\((\w+)", text) if not name.endswith("_bucket")}
    assert all(name.endswith("_total") for name in counters)


def test_every_alert_is_whole_and_in_the_guide():
    text = (DEPLOY / "prometheus-rules.yml").read_text()
    assert "\t" not in text
    alerts = re.split(r"^      - alert: ", text, flags=re.MULTILINE)[1:]
    names = [alert.splitlines()[0] for alert in alerts]
    assert len(set(names)) == len(names) >= 8
    for alert in alerts:
        assert re.search(r"^        expr: \S", alert, re.MULTILINE)
        assert re.search(r"^          severity: (critical|warning)$", alert, re.MULTILINE)
        assert re.search(r'^          summary: ".+\."$', alert, re.MULTILINE)
    guide = (DEPLOY.parent / "docs" / "operations.md").read_text()
    assert [name for name in names if f"`{name}`" not in guide] == []


@pytest.mark.parametrize("is_abstract", [False, True])
def test_the_service_manager_is_told(tmp_path, is_abstract):
    name = f"@mainstem-test-{tmp_path.name}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(5)
        manager.bind(name.replace("@", "\0", 1) if is_abstract else name)
        notify("READY", "serving\nFDSTORE=1", {"NOTIFY_SOCKET": name})
        assert manager.recv(1000) == b"READY=1\nSTATUS=serving\\nFDSTORE=1\n"


@pytest.mark.slow("starts a server")
def test_a_server_says_when_it_is_ready_and_when_it_stops(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(60)
        manager.bind(str(tmp_path / "notify"))
        serve = ["serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--http", "off"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSTEM_")}
        server = subprocess.Popen(
            [sys.executable, "-m", "mainstem", *serve],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**environment, "NOTIFY_SOCKET": str(tmp_path / "notify")},
        )
        try:
            assert manager.recv(1000).startswith(b"READY=1\nSTATUS=serving ")
            server.terminate()
            assert manager.recv(1000).startswith(b"STOPPING=1\n")
            assert server.wait(30) == 0
        finally:
            server.kill()
            server.wait()


def test_without_a_service_manager_nothing_happens(tmp_path, caplog):
    notify("READY", "serving", {})
    assert caplog.text == ""
    notify("READY", "serving", {"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    assert "cannot be told" in caplog.text
