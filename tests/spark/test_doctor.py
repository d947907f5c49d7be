"""`mainstem doctor --spark` says which Java Spark would run on, what is installed, and what is missing; so do commands
that need Spark."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mainstem
from mainstem.cli.app import run
from mainstem.cli.exits import ExitCode
from mainstem.spark import diagnosis
from mainstem.spark.diagnosis import PYSPARK_MIN, diagnose
from tests.spark.javas import put_java

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow("Spark starts processes for what it is asked first")]


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mainstem", "doctor", "--spark", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=100, check=False
    )


def test_what_was_found_is_said(tmp_path):
    said = doctor()
    assert said.returncode == ExitCode.OK, said.stderr
    assert "java      Java " in said.stdout
    assert 'format("mainstem") is known to Spark' in said.stdout
    # Of a JAVA_HOME that leads nowhere it says so, and what is taken instead.
    found = json.loads(doctor("--json", JAVA_HOME=str(tmp_path)).stdout)
    assert found["java"]["version"] >= 17
    assert found["java"]["found_by"] != "JAVA_HOME"
    assert {"home": str(tmp_path), "version": 0, "found_by": "JAVA_HOME"} in found["others"]
    assert found["missing"] == []


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr("mainstem.spark.java.wheel_home", lambda: None)
    found = diagnose({"PATH": "/nowhere"})
    assert found.java is None
    assert ["Spark needs Java 17 or newer" in missing for missing in found.missing] == [True]


def test_the_exit_code_says_that_something_is_missing(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("mainstem.spark.java.wheel_home", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(put_java(tmp_path / "old", "11.0.2")))
    assert run(["doctor", "--spark"]) == ExitCode.REFUSED
    said = capfd.readouterr().out.splitlines()
    assert said[:2] == ["java      none", f"          also Java 11 in {tmp_path / 'old'} (JAVA_HOME)"]
    assert said[-1].startswith("missing   Spark needs Java 17 or newer. Found: Java 11 in ")
    assert run(["doctor", "--spark", "--json"]) == ExitCode.REFUSED
    assert json.loads(capfd.readouterr().out)["java"] is None


def test_versions_are_judged(tmp_path, monkeypatch):
    there = diagnosis._version
    own = there("pyspark")

    def missing(pyspark: str, spark_home: str = "") -> list[str]:
        monkeypatch.setattr(diagnosis, "_version", lambda name: pyspark if name == "pyspark" else there(name))
        return list(diagnose({**os.environ, "SPARK_HOME": spark_home}).missing)

    def home(version: str) -> str:
        jar = tmp_path / version / "jars" / f"spark-core_2.13-{version}.jar"
        jar.parent.mkdir(parents=True)
        jar.touch()
        return str(tmp_path / version)

    assert missing("4.1.1") == ["pyspark 4.1.1 is too old, 4.3 is needed: pip install 'mainstem[spark]'"]
    assert missing("4.3.0.dev2") == []
    assert missing("4.10.0") == []
    import pyspark

    assert missing(own, str(Path(pyspark.__file__).parent)) == []
    assert missing("4.3.1", home("4.3.0")) == []
    other = home("3.5.4")
    (said,) = missing("4.3.0", other)
    assert said.startswith(f"SPARK_HOME is {other}, which has Spark 3.5.4, and pyspark is 4.3.0: unset SPARK_HOME, or")
    assert missing("4.3.0", str(tmp_path / "none")) == [
        f"SPARK_HOME is {tmp_path / 'none'}, which has no Spark (jars/spark-core_*.jar): unset SPARK_HOME"
    ]


def test_the_oldest_pyspark_is_the_one_that_is_installed_with_us():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    wanted = ".".join(map(str, PYSPARK_MIN))
    assert any(each.startswith(f"pyspark>={wanted},") for each in project["project"]["optional-dependencies"]["spark"])


# A command as it is typed, where the wheel is not installed.
WITHOUT_WHEEL = """
import sys
from mainstem.cli.app import run
from mainstem.spark import java
java.wheel_home = lambda: None
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("found", ["none", "JAVA_HOME", "on the path"])
@pytest.mark.parametrize("command", [("sql", "SELECT 1"), ("job", "run", "snapshot", "orders", "table")])
def test_a_command_that_finds_no_java_says_how_to_get_one(tmp_path, found, command):
    with mainstem.open(tmp_path / "data") as hub:
        hub.streams.create("orders", schema={"id": "int64"}, key="id")
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    environment["PATH"] = str(tmp_path)
    says = "Found: JAVA_HOME is not set, and there is no java on the path."
    if found != "none":
        old = put_java(tmp_path / "old", "1.8.0_402")
        environment |= {"JAVA_HOME": str(old)} if found == "JAVA_HOME" else {"PATH": str(old / "bin")}
        says = f"Found: Java 8 in {old} ({found})."
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_WHEEL, *command, "--data", str(tmp_path / "data")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == ExitCode.REFUSED, done.stderr
    assert f"mainstem: Spark needs Java 17 or newer. {says} Install one, or let pip bring it" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "table").exists()


def test_it_goes_with_no_other_option():
    assert doctor("--deep").returncode == ExitCode.USAGE
