"""Work in parts on Spark: one task for each, its answer a few bytes, its errors those of this project.

Only numbers and answers go through the JVM. The records do not: a worker reads them from the log and writes them where
they belong, which is three times as fast as rows that travel.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from mainstem.core.errors import InvalidSetting, MainstemError, Retriable, TableUnusable, from_wire
from mainstem.core.identity import new_stream_uuid
from mainstem.core.plain import one_line
from mainstem.spark.jobs.part_files import WrittenFile

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# How far a job is: a word for the step, what is done of it, and of how much.
OnStep = Callable[[str, int, int], None]
# Writes the rows of one part, and says what it did.
Write = Callable[[int, Iterable[pa.RecordBatch]], "Answer"]
ANSWER: Final = "answer binary"
_PARTS_PER_CORE: Final = 3
_LOOK_SECONDS: Final = 0.2
_FRAME: Final = re.compile(r' +File "(.+)", line (\d+)')


class Answer(msgspec.Struct, frozen=True):
    """What a task has done, or why it could not. `attempt` is 0 unless Spark had to try it again."""

    files: tuple[WrittenFile, ...] = ()
    rows_read: int = 0
    rows_written: int = 0
    undecoded: int = 0
    lost: tuple[tuple[int, int, int], ...] = ()
    attempt: int = 0
    error: tuple[int, str, dict[str, Any]] | None = None
    # Files of another table, where a job writes two.
    apart: tuple[WrittenFile, ...] = ()
    # Records by the beginning of their windows, where they are counted.
    tally: dict[int, int] = {}
    # What was staged for a stream, as only its job understands it.
    staged: bytes = b""
    # Records that were passed over because they have no key, in a job that is of keys.
    without_key: int = 0


def no_step(step: str, done: int, total: int) -> None:
    """For who does not want to know."""


def context_of(spark: "SparkSession") -> "SparkContext":
    """The context of a session. InvalidSetting for one that has none."""
    from pyspark.errors import PySparkException

    try:
        return spark.sparkContext
    except PySparkException as error:
        raise InvalidSetting(
            "a job needs a session that runs in this process, as mainstem.spark.session() gives it; this one is of "
            "Spark Connect"
        ) from error


def parts_of(spark: "SparkSession") -> int:
    """Into how many tasks work is best cut: enough that all cores end at about the same time."""
    return _PARTS_PER_CORE * context_of(spark).defaultParallelism


def run_parts(spark: "SparkSession", parts: int, work: Callable[[int], Answer], on_step: OnStep) -> list[Answer]:
    """Do all parts; their answers. The first error that a task had is raised here."""
    if not parts:
        return []
    numbers = spark.range(0, parts, 1, parts)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                yield guarded(lambda part=part: work(part))  # type: ignore[misc]

    return collect(spark, mapped(numbers, task, ANSWER), parts, on_step)


def mapped(
    frame: "DataFrame",
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: "StructType | str",
) -> "DataFrame":
    """What a function makes of the batches of each partition."""
    return frame.mapInArrow(function, schema)


def collect(spark: "SparkSession", answers: "DataFrame", parts: int, on_step: OnStep) -> list[Answer]:
    """The answers of a frame that has them in its one column."""
    with _watched(spark, parts, on_step), translated():
        rows = answers.collect()
    found = [msgspec.msgpack.decode(row[0], type=Answer) for row in rows]
    raise_first(found)
    return found


def raise_first(answers: Iterable[Answer]) -> None:
    """The first error that a task had, if one had any."""
    for answer in answers:
        if answer.error is not None:
            code, text, facts = answer.error
            raise from_wire(code, text, facts)


def answer_batch(answer: Answer) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([msgspec.msgpack.encode(answer)], pa.binary())], ["answer"])


def guarded(work: Callable[[], Answer]) -> pa.RecordBatch:
    """An answer also where it failed: what cannot succeed is not tried again. What may, is for Spark to try."""
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = 0 if context is None else context.attemptNumber()
    try:
        answer = msgspec.structs.replace(work(), attempt=attempt)
    except Retriable:
        raise
    except MainstemError as error:
        answer = failed(error)
    return answer_batch(answer)


def failed(error: MainstemError) -> Answer:
    """What a task answers that could not do its work, and could not the next time either."""
    facts = error.facts() if hasattr(error, "facts") else {}
    return Answer(error=(error.code, str(error), facts))


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """What Spark says of a failed job as an error of ours; its own words are the cause."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        lines = [line.removeprefix(": ") for line in str(error).splitlines() if line.strip()]
        if isinstance(error, Py4JJavaError):
            # The first says which method of Java was called: what PySpark has no class for, such as a lost executor.
            lines = lines[1:]
        ours = [line for line in lines if line.startswith("mainstem.core.errors.")]
        of_python = _raised_in_python(lines)
        said = ours[-1].removeprefix("mainstem.core.errors.") if ours else of_python or (*lines, repr(error))[0]
        raise TableUnusable(f"Spark could not do it: {one_line(said, 500)}") from error


def _raised_in_python(lines: Sequence[str]) -> str:
    """The error at the end of the last traceback of Python in what Spark says, with its place; empty if none."""
    said = place = ""
    is_within = False
    for line in lines:
        if "Traceback (most recent call last)" in line:
            is_within, place = True, ""
        elif is_within and (found := _FRAME.match(line)):
            place = f" ({found[1]}, line {found[2]})"
        elif is_within and not line.startswith(" "):
            said, is_within = line + place, False
    return said


@contextlib.contextmanager
def _watched(spark: "SparkSession", parts: int, on_step: OnStep) -> Iterator[None]:
    """Say how many tasks are done while the block runs."""
    context = context_of(spark)
    on_step("write", 0, parts)
    group = f"mainstem-{new_stream_uuid()[:12]}"
    context.setJobGroup(group, "a job of mainstem", interruptOnCancel=True)
    stopping = threading.Event()
    watcher = threading.Thread(target=_watch, args=(context, group, parts, on_step, stopping), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stopping.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None takes it away
    on_step("wrote", parts, parts)


def _watch(context: "SparkContext", group: str, parts: int, on_step: OnStep, stopping: threading.Event) -> None:
    tracker = context.statusTracker()
    while not stopping.wait(_LOOK_SECONDS):
        done = 0
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else ():
                found = tracker.getStageInfo(stage)
                done += found.numCompletedTasks if found is not None else 0
        on_step("write", min(done, parts), parts)
