"""SQL over streams by their names: a statement, and a view for each stream that it speaks of.

Spark itself says which names a statement has that it does not know: each that is a stream becomes a view, until none is
left. The plan that Spark then makes says which columns are needed of each stream, and the views are made again with
nulls in place of the others: a source in Python is not told, and would read them all. It also says which streams are
read once, which alone may be told the filters (see source.PushdownReader). A stream that is in cold files and nowhere
else is read by Spark's own reader of Parquet, which knows by itself what is needed.
"""

import contextlib
import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mainstem.core.errors import InvalidRequest, UnknownStream
from mainstem.spark.cold_frame import whole_cold
from mainstem.spark.options import READ_OPTIONS, Options

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from mainstem.hub.hub import Hub

# More streams than anybody joins; a statement that names more is refused before the driver is full of plans.
STREAMS_MAX: Final = 100
_METADATA: Final = re.compile(r"\b_(shard|offset|timestamp|key|headers)\b", re.IGNORECASE)
_CATALYST: Final = "org.apache.spark.sql.catalyst"
# Nodes of a parsed statement that do something: some when they are planned, others when somebody asks for rows.
_ACTS: Final = tuple(
    f"{_CATALYST}.{name}"
    for name in (
        *("plans.logical.Command", "plans.logical.ParsedStatement", "plans.logical.InsertIntoDir"),
        *("plans.logical.ExecutableDuringAnalysis", "analysis.UnresolvedExecuteImmediate"),
    )
)
# Nodes of a plan that name each column which they need; any other they pass on as it is, or drop. Of a node that is not
# among them, all that is below it counts as needed.
_PASSING_ON: Final = frozenset(
    {
        *("Project", "Filter", "Aggregate", "Join", "Window", "WindowGroupLimit", "Generate", "Expand", "Sort"),
        *("GlobalLimit", "LocalLimit", "Offset", "Tail", "Sample", "Repartition", "RepartitionByExpression"),
    }
)
_PART: Final = re.compile(r"`((?:[^`]|``)*)`")


def query(spark: "SparkSession", hub: "Hub", options: Mapping[str, str], statement: str) -> "DataFrame":
    """What a statement selects, when it is asked for. `options` are those of the source: which hub, which token."""
    check_is_query(spark, statement)
    views = Views(spark, [stream.name for stream in hub.streams.list()], options, statement)
    try:
        return narrowed(views, views.plan())
    finally:
        # What was planned has its streams; the next statement is to find them with all their columns.
        views.drop()


def check_is_query(spark: "SparkSession", statement: str) -> None:
    """InvalidRequest for what would do something: Spark does it as soon as it is asked for a plan. What cannot be
    parsed is for whoever plans to say, and a session of Spark Connect has no parser here."""
    from pyspark.errors import ParseException

    try:
        plan = _parsed(spark, statement)
    except ParseException:
        return
    if plan is None:
        return
    classes = spark._jsparkSession.getClass().getClassLoader()
    acts = [classes.loadClass(name) for name in _ACTS]
    act = next((node for node in _nodes(plan) if any(kind.isInstance(node) for kind in acts)), None)
    if act is not None:
        raise InvalidRequest(
            f"{act.nodeName()} is no query, and only queries are taken here (SELECT, WITH, VALUES, ...). Streams are "
            "changed by mainstem stream and mainstem write, and written by Spark with df.write.format('mainstem')"
        )


def relations_of(spark: "SparkSession", statement: str) -> set[str] | None:
    """The names of tables in a statement, as they are written; those that it defines itself (WITH) are none. None
    where it cannot be parsed: in a session of Spark Connect."""
    plan = _parsed(spark, statement)
    return None if plan is None else set(_relations(plan, frozenset()))


def _relations(plan: Any, defined: frozenset[str]) -> Iterator[str]:
    """`defined` are the names, in small letters, that stand for something in the statement here."""
    if plan.getClass().getSimpleName() == "UnresolvedRelation":
        name = ".".join(_items(plan.multipartIdentifier()))
        if name.lower() not in defined:
            yield name
    if plan.getClass().getSimpleName() == "UnresolvedWith":
        for definition in _items(plan.cteRelations()):
            itself = frozenset([str(definition._1()).lower()])
            yield from _relations(definition._2(), defined | itself if plan.allowRecursion() else defined)
            defined |= itself
    for child in (*_items(plan.children()), *_items(plan.subqueries())):
        yield from _relations(child, defined)


def _parsed(spark: "SparkSession", statement: str) -> Any:
    """The plan of a statement before anything is looked up; None in a session of Spark Connect."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return None
    with without_log_lines():
        return session.sessionState().sqlParser().parsePlan(statement)


class Views:
    """The streams of one statement as views of a session. One thread."""

    def __init__(
        self, spark: "SparkSession", streams: Sequence[str], options: Mapping[str, str], statement: str
    ) -> None:
        self._spark = spark
        self._streams = streams
        # What a record has beside its row is there when it is spoken of: `SELECT *` is the row.
        self._has_metadata = _METADATA.search(statement) is not None
        self._options = {**options, "includeMetadata": "true" if self._has_metadata else "false"}
        self._access = Options(options, READ_OPTIONS).access()
        self._statement = statement
        self.made: dict[str, DataFrame] = {}

    def plan(self) -> "DataFrame":
        """The statement as Spark understands it, with a view for each stream in it."""
        from pyspark.errors import AnalysisException, ParseException

        while True:
            try:
                with without_log_lines():
                    return self._spark.sql(self._statement)
            except ParseException as error:
                raise InvalidRequest(in_one_line(error)) from None
            except AnalysisException as error:
                self._make(self._stream_of(error))

    def drop(self) -> None:
        for stream in self.made:
            self._spark.sql(f"DROP VIEW IF EXISTS `{stream}`")

    def narrow(self, stream: str, columns: Sequence[str], *, push_filters: bool) -> None:
        """Make a view again that reads these columns only; with the filters of the statement if it is read once."""
        self._make(stream, columns, push_filters=push_filters)

    def _stream_of(self, error: "AnalysisException") -> str:
        """The stream that Spark did not know; raises what is wrong if it is none."""
        if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
            found = self._not_found(error)
        elif (other := self._not_made()) is not None:
            # Of a statement with names that are not known yet, Spark may find something else wrong first.
            found = other
        else:
            raise InvalidRequest(in_one_line(error)) from None
        if len(self.made) >= STREAMS_MAX or found in self.made:
            raise InvalidRequest(f"a statement speaks of at most {STREAMS_MAX} streams") from None
        self._require_one_of_its_letters(found)
        return found

    def _not_found(self, error: "AnalysisException") -> str:
        """The stream that Spark looked for."""
        quoted = (error.getMessageParameters() or {}).get("relationName", "")
        parts = [part.replace("``", "`") for part in _PART.findall(quoted)]
        name = ".".join(parts)
        found = self._found(name)
        if found is None:
            raise unknown_stream(name, self._streams) from None
        if len(parts) > 1:
            raise InvalidRequest(f"write the name of the stream in backticks: `{found}`") from None
        return found

    def _not_made(self) -> str | None:
        """A stream that the statement names and that is no view yet."""
        names = relations_of(self._spark, self._statement) or set()
        waiting = {found for name in names if (found := self._found(name)) is not None} - self.made.keys()
        return next((name for name in sorted(waiting) if not self._spark.catalog.tableExists(f"`{name}`")), None)

    def _require_one_of_its_letters(self, stream: str) -> None:
        """InvalidRequest if the statement names another stream, too, of which the name differs in its capitals alone:
        to Spark both are the view of this one, and it would read this one twice."""
        alike = [each for each in self._streams if each.lower() == stream.lower()]
        if len(alike) == 1:
            return
        named = relations_of(self._spark, self._statement)
        if named is None:
            # Nobody here can parse it: what stands anywhere in it may be a name.
            named = {each for each in alike if each in self._statement}
        if any(name != stream and name.lower() == stream.lower() for name in named):
            raise InvalidRequest(
                f"{' and '.join(map(repr, alike))} differ in their capitals alone, which to Spark is one name: a "
                "statement can read one of these streams, and has to write its name as it is"
            ) from None

    def _found(self, name: str) -> str | None:
        """A stream by its name, in whatever case it is written, as it is with tables in Spark."""
        if name in self._streams:
            return name
        alike = [stream for stream in self._streams if stream.lower() == name.lower()]
        return alike[0] if len(alike) == 1 else None

    def _make(self, stream: str, columns: Sequence[str] | None = None, *, push_filters: bool = False) -> None:
        frame = whole_cold(self._spark, self._access, stream, has_metadata=self._has_metadata)
        if frame is None:
            frame = self._by_source(stream, columns, push_filters=push_filters)
        self.made[stream] = frame
        frame.createOrReplaceTempView(f"`{stream}`")

    def _by_source(self, stream: str, columns: Sequence[str] | None, *, push_filters: bool) -> "DataFrame":
        reader = self._spark.read.format("mainstem").options(**self._options).option("stream", stream)
        reader = reader.option("pushFilters", str(push_filters).lower())
        if columns is None:
            return reader.load()
        frame = reader.option("columns", json.dumps(list(columns))).load()
        return _filled(frame, self.made[stream].schema)


def narrowed(views: Views, frame: "DataFrame") -> "DataFrame":
    """The same, reading no more columns, and rows, than are needed. Where the plan cannot be looked at, as it is: a
    session of Spark Connect has none here."""
    plan = getattr(frame, "_jdf", None)
    if plan is None or not views.made:
        return frame
    execution = plan.queryExecution()
    optimized = execution.optimizedPlan()
    scans = scans_of(optimized)
    has_filters = any(node.getClass().getSimpleName() == "Filter" for node in _nodes(optimized))
    once = _read_once(execution.analyzed(), frame.sparkSession._jvm) if has_filters else set()
    is_narrower = False
    for stream, scan in scans.items():
        made = views.made[stream]
        wanted = [name for name in made.columns if name in scan.columns] or [_smallest(made)]
        push_filters = scan.count == 1 and stream in once
        if len(wanted) < len(made.columns) or push_filters:
            views.narrow(stream, wanted, push_filters=push_filters)
            is_narrower = True
    return views.plan() if is_narrower else frame


@dataclass(slots=True)
class Scan:
    """How a statement reads a stream: how often, and the columns that something in it refers to."""

    count: int
    columns: set[str]


def scans_of(plan: Any) -> dict[str, Scan]:
    """The streams in an optimised plan."""
    nodes = list(_nodes(plan))
    used = set(_ids(plan.output()))
    for node in nodes:
        used.update(_taken_by(node))
    found: dict[str, Scan] = {}
    for node in nodes:
        stream = _stream_read_by(node)
        if stream is not None:
            scan = found.setdefault(stream, Scan(0, set()))
            scan.count += 1
            scan.columns |= {attribute.name() for attribute in _items(node.output()) if attribute.exprId().id() in used}
    return found


def _taken_by(node: Any) -> Iterator[int]:
    """The columns, by their numbers, that a node takes of what is below it."""
    yield from _ids(node.references().toSeq())
    for subquery in _items(node.subqueries()):
        yield from _ids(subquery.output())
    if node.getClass().getSimpleName() not in _PASSING_ON:
        # A union takes columns by their places, and so may others.
        for child in _items(node.children()):
            yield from _ids(child.output())


def _ids(attributes: Any) -> Iterator[int]:
    return (attribute.exprId().id() for attribute in _items(attributes))


def _read_once(analyzed: Any, java: Any) -> set[str]:
    """The streams that a statement reads once, before anything is optimised away: what is left out in the end may have
    told its filters by then. None where the optimiser may read twice what stands there once."""
    nodes = list(_nodes(analyzed))
    patterns = java.org.apache.spark.sql.catalyst.trees.TreePattern
    uses = Counter(node.cteId() for node in nodes if node.getClass().getSimpleName() == "CTERelationRef")
    # A subquery that refers to what is around it may become a join with that; a recursion plans itself again.
    is_unclear = any(node.containsPattern(patterns.OUTER_REFERENCE()) for node in nodes) or any(
        node.getClass().getSimpleName().startswith("UnionLoop") for node in nodes
    )
    if is_unclear or any(count > 1 for count in uses.values()):
        return set()
    reads = Counter(map(_stream_read_by, nodes))
    return {stream for stream, count in reads.items() if stream is not None and count == 1}


def distinct_names(frame: "DataFrame") -> "DataFrame":
    """The same with a number behind the names of columns that are there already."""
    seen: dict[str, int] = {}
    names = []
    for name in frame.columns:
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return frame if names == frame.columns else frame.toDF(*names)


def unknown_stream(name: str, streams: Sequence[str]) -> UnknownStream:
    """That there is none of this name, and what may have been meant."""
    alike = difflib.get_close_matches(name, streams, n=1)
    hint = f"did you mean `{alike[0]}`?" if alike else "mainstem stream list shows what there is"
    return UnknownStream(f"no stream is called {name!r}; {hint}")


def _nodes(plan: Any) -> Iterator[Any]:
    """A plan's nodes, those of subqueries in its expressions included."""
    yield plan
    for child in (*_items(plan.children()), *_items(plan.subqueries())):
        yield from _nodes(child)


def _items(sequence: Any) -> Iterator[Any]:
    """What is in a sequence of the JVM."""
    return (sequence.apply(index) for index in range(sequence.size()))


def _stream_read_by(node: Any) -> str | None:
    name = node.getClass().getSimpleName()
    if name == "DataSourceV2ScanRelation":
        node = node.relation()
    elif name != "DataSourceV2Relation":
        return None
    stream: str | None = node.options().get("stream")
    return stream


def _filled(frame: "DataFrame", schema: "StructType") -> "DataFrame":
    """The columns of a schema, in its order: those that a frame has not are null. The statement may name them where it
    does not matter what is in them."""
    from pyspark.sql import functions

    # By place, because names that differ in their capitals alone are one to Spark.
    places = {name: f"c{place}" for place, name in enumerate(frame.columns)}
    columns = [
        (functions.col(places[field.name]) if field.name in places else functions.lit(None).cast(field.dataType)).alias(
            field.name
        )
        for field in schema
    ]
    return frame.toDF(*places.values()).select(*columns)


def _smallest(frame: "DataFrame") -> str:
    """A column that is cheap to read, for a statement that needs none, such as one that only counts."""
    sizes = {"boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "date": 4, "float": 4, "bigint": 8, "double": 8}
    sizes |= {"timestamp": 8, "timestamp_ntz": 8}
    return min(frame.dtypes, key=lambda each: sizes.get(each[1], 100))[0]


@contextlib.contextmanager
def without_log_lines() -> Iterator[None]:
    """PySpark writes an error with all its circumstances to standard error before it raises it; here it is no error, or
    told in a line."""
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was


def in_one_line(error: Any) -> str:
    """What Spark says, without the plan that it appends."""
    text = str(error).partition("\n\n")[0].partition(";\n")[0].partition("\n== SQL")[0]
    return re.sub(r"\s*SQLSTATE: \w+", "", " ".join(text.split()))
