"""`mainstem doctor --spark` says which Java Spark would run on, what is installed, and what is missing."""

import json
import os
import subprocess
import sys

import pytest

from mainstem.cli.exits import ExitCode
from mainstem.spark.diagnosis import diagnose

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


def test_it_goes_with_no_other_option():
    assert doctor("--deep").returncode == ExitCode.USAGE
