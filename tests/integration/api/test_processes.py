"""More than one process: readers of a folder beside its writer, forks, and processes that end without a word."""

import os
import pwd
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import mainstem
from mainstem.hub.hub import Hub
from tests.integration.api.conftest import values

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def run(code: str, *arguments: object, timeout: float = 20) -> str:
    """Run Python in a process of its own; what it printed. A failure shows what it said."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def started(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Python in a process of its own that runs beside the test; killed at the end if it still does."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# Readers of a folder that another process writes.

FOLLOW = """
    import sys, mainstem
    hub = mainstem.open(sys.argv[1], read_only=True)
    consumer = hub.consumer("orders", start="earliest")
    print("ready", flush=True)
    for record in consumer:
        print(record.offset, record.value.decode(), flush=True)
        if record.value == b"end":
            break
"""


def test_a_second_process_reads_and_follows_while_the_first_writes(tmp_path):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("orders")
        with hub.producer() as producer, started(FOLLOW, tmp_path) as reader:
            producer.send("orders", b"first").result(10)
            assert line_of(reader) == "ready"
            assert line_of(reader) == "0 first"
            for number in range(1, 20):
                producer.send("orders", b"%d" % number).result(10)
                assert line_of(reader) == f"{number} {number}"
            producer.send_many("orders", [b"x"] * 1_000)
            producer.send("orders", b"end")
            producer.flush()
            lines = [line_of(reader) for _ in range(1_001)]
    assert lines == [f"{number} x" for number in range(20, 1_020)] + ["1020 end"]


def test_opening_a_folder_that_another_process_writes_gives_a_reader(tmp_path):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("orders")
        with hub.producer() as producer:
            producer.send("orders", b"v")
        said = run(
            """
            import sys, mainstem
            hub = mainstem.open(sys.argv[1])
            print([record.value for record in hub.consumer("orders", start="earliest", follow=False)])
            for write in (lambda: hub.producer(), lambda: hub.streams.create("x"), lambda: hub.streams.delete("orders"),
                          lambda: hub.streams.alter("orders", retention="1d")):
                try:
                    write()
                except mainstem.ReadOnly as error:
                    print("read only")
            print([stream.name for stream in hub.streams.list()], hub.streams.get("orders").ends, repr(hub)[-40:])
            try:
                mainstem.open(sys.argv[1], read_only=False)
            except mainstem.FolderLocked as error:
                print(f"locked by process {str(error).split('process ')[1].split(';')[0]}")
            """,
            tmp_path,
        )
        lines = said.splitlines()
        assert lines[:5] == ["[b'v']", *["read only"] * 4]
        assert lines[5].startswith("['orders'] (1,)")
        assert lines[6] == f"locked by process {os.getpid()}"
        # The writer goes on.
        with hub.producer() as producer:
            assert producer.send("orders", b"w").result(10) == (0, 1)


def test_a_reader_of_a_folder_sees_streams_come_and_go(tmp_path):
    with mainstem.open(tmp_path) as hub, mainstem.open(tmp_path, read_only=True) as reader:
        assert reader.streams.list() == []
        hub.streams.create("orders")
        assert [stream.name for stream in reader.streams.list()] == ["orders"]
        consumer = reader.consumer("orders", start="earliest")
        assert consumer.poll(0) is None
        with hub.producer() as producer:
            producer.send("orders", b"last words")
        hub.streams.delete("orders")
        got: list[bytes | None] = []
        with pytest.raises(mainstem.StreamDeleted):
            got.extend(record.value for record in consumer)
        assert got == []
        with pytest.raises(mainstem.StreamDeleted):
            consumer.poll(5)
        assert reader.streams.list() == []


READ_ON_WHEN_TOLD = """
    import sys, mainstem
    hub = mainstem.open(sys.argv[1], read_only=True)
    consumer = hub.consumer("orders", start="earliest")
    print(consumer.poll(10).offset, flush=True)
    sys.stdin.readline()
    got = 1
    try:
        for record in consumer:
            got += 1
    except mainstem.StreamDeleted:
        print(got, flush=True)
"""


def test_a_deletion_ends_a_reader_of_a_folder_at_its_next_fetch(tmp_path):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("orders")
        with hub.producer(compression=None) as producer:
            for _ in range(30):
                producer.send("orders", b"x" * 100_000).result(10)
        with started(READ_ON_WHEN_TOLD, tmp_path) as reader:
            assert line_of(reader) == "0"
            hub.streams.delete("orders")
            assert reader.stdin is not None
            reader.stdin.write("\n")
            reader.stdin.flush()
            assert 1 <= int(line_of(reader)) < 30


def test_closing_a_reader_of_a_folder_ends_its_followers(tmp_path):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("orders")
        reader = mainstem.open(tmp_path, read_only=True)
        consumer = reader.consumer("orders")
        assert consumer.poll(0) is None
        errors: list[BaseException] = []

        def follow() -> None:
            try:
                list(consumer)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        reader.close()
        thread.join(10)
        assert not thread.is_alive()
        assert [type(error) for error in errors] == [mainstem.Closed]


def test_a_folder_without_a_log_cannot_be_read(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(mainstem.FolderUnusable, match="not a Mainstem data folder"):
            mainstem.open(path, read_only=True)
    assert not (tmp_path / "missing").exists()


def test_a_path_that_cannot_be_a_folder_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("not a folder")
    for path in (file, file / "below"):
        with pytest.raises(mainstem.FolderUnusable, match=r"cannot be a data folder: .*; give the path of a folder"):
            mainstem.open(path)
    assert file.read_text() == "not a folder"


def test_a_reader_can_open_a_folder_that_nobody_writes(tmp_path):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("orders")
        with hub.producer() as producer:
            producer.send("orders", b"v")
    with mainstem.open(tmp_path, read_only=True) as reader:
        assert values(reader, "orders") == [b"v"]


# Without the right to write in the folder.

AS_NOBODY = """
    import os, sys, tempfile, mainstem
    # Everything is loaded before the user changes: the other one may not be allowed to read the interpreter's files.
    with tempfile.TemporaryDirectory() as warm, mainstem.open(warm) as hub:
        hub.streams.create("orders")
        hub.producer().send("orders", b"x").result(10)
        with mainstem.open(warm) as reader:
            list(reader.consumer("orders", start="earliest", follow=False))
    os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
    path = sys.argv[1]
    try:
        open(os.path.join(path, "test"), "w")
        sys.exit("this user may write here: the test would prove nothing")
    except PermissionError:
        pass
    hub = mainstem.open(path, read_only=True if sys.argv[3] == "asked" else None)
    consumer = hub.consumer("orders", start="earliest")
    print(consumer.poll(10).value.decode(), flush=True)
    if sys.argv[4] == "follow":
        print(consumer.poll(10).value.decode(), flush=True)
"""


@pytest.fixture
def open_folder():
    """A folder that everybody may read and only its owner may write; those of pytest are closed to others."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user; enable: run the tests as root, as in a container")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "data"


@pytest.mark.parametrize("asked", ["asked", "found out"])
def test_a_user_who_may_not_write_reads_and_follows(open_folder, asked):
    nobody = pwd.getpwnam("nobody").pw_uid
    with mainstem.open(open_folder) as hub:
        hub.streams.create("orders")
        producer = hub.producer()
        producer.send("orders", b"first").result(10)
        with started(AS_NOBODY, open_folder, nobody, asked, "follow") as reader:
            assert line_of(reader) == "first"
            producer.send("orders", b"second").result(10)
            assert line_of(reader) == "second"
            assert reader.wait(10) == 0
        producer.close()


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_user_who_may_not_write_reads_what_a_writer_left(open_folder, how):
    nobody = pwd.getpwnam("nobody").pw_uid
    run(
        """
        import os, sys, mainstem
        hub = mainstem.open(sys.argv[1])
        hub.streams.create("orders")
        hub.producer().send("orders", b"left behind").result(10)
        if sys.argv[2] == "closed":
            hub.close()
        os._exit(0)
        """,
        open_folder,
        how,
    )
    assert run(AS_NOBODY, open_folder, nobody, "asked", "once") == "left behind\n"


# Forks.


def in_child(work) -> None:
    """Run in a child made by fork; an exception there fails the test here."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            signal.alarm(15)
            try:
                work()
            except BaseException as error:
                os.write(write, f"{type(error).__name__}: {error}".encode()[:4_000])
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert said == ""
    assert status == 0, f"the child ended with {status}: it waited for something that only its parent has"


@pytest.fixture
def forked(hub: Hub) -> Hub:
    hub.streams.create("orders")
    return hub


def test_a_child_is_told_that_the_hub_is_its_parents(forked):
    hub = forked
    producer = hub.producer(linger=60)
    producer.send("orders", b"0").result(10)
    pending = producer.send("orders", b"1")
    consumer = hub.consumer("orders", start="earliest")
    consumer.poll(10)

    def use_everything() -> None:
        for use in (
            hub.streams.list,
            lambda: hub.streams.create("child"),
            hub.producer,
            lambda: hub.consumer("orders"),
            hub.statistics,
            lambda: producer.send("orders", b"from the child"),
            lambda: producer.send("orders", b"from the child", key=b"k"),
            lambda: producer.send_many("orders", [b"from the child"]),
            lambda: consumer.poll_batch(1),
            lambda: pending.result(1),
        ):
            try:
                use()
            except mainstem.ForkedHub:
                continue
            raise AssertionError("the child may use it")

    in_child(use_everything)
    assert pending.result(10) == (0, 1)
    assert producer.send("orders", b"2").result(10) == (0, 2)
    producer.close()
    assert values(hub, "orders") == [b"0", b"1", b"2"]


def test_a_child_that_closes_what_it_inherited_hurts_nobody(forked):
    hub = forked
    producer = hub.producer()
    producer.send("orders", b"0").result(10)
    consumer = hub.consumer("orders", start="earliest")
    consumer.poll(10)

    def close_everything() -> None:
        for close in (producer.close, consumer.close, hub.close):
            try:
                close()
            except mainstem.ForkedHub:
                continue

    in_child(close_everything)
    assert producer.send("orders", b"1").result(10) == (0, 1)
    assert consumer.poll(10).value == b"1"
    assert hub.streams.create("after").name == "after"


def test_a_fork_while_others_send_leaves_no_lock_held(forked):
    """Threads hold the producer's locks at any moment; the child has none of those threads."""
    hub = forked
    producer = hub.producer(batch_bytes=1_024)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            producer.send("orders", b"x" * 50)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()

    def send() -> None:
        try:
            producer.send("orders", b"from the child", headers={"a": b"b"})
        except mainstem.ForkedHub:
            return
        raise AssertionError("the child may send")

    try:
        for _ in range(5):
            in_child(send)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    producer.close()
    assert b"from the child" not in values(hub, "orders")


def test_a_child_may_open_a_reader_of_its_own(tmp_path):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("orders")
        producer = hub.producer()
        producer.send("orders", b"0").result(10)

        def read() -> None:
            with mainstem.open(tmp_path, read_only=True) as mine:
                assert values(mine, "orders") == [b"0"]
            with mainstem.open(tmp_path) as mine:
                assert "read only" in repr(mine)

        in_child(read)
        assert producer.send("orders", b"1").result(10) == (0, 1)
        # The child's end did not let go of the parent's lock.
        with pytest.raises(mainstem.FolderLocked):
            mainstem.open(tmp_path, read_only=False)


def test_a_child_may_connect_on_its_own(shared_server):
    with mainstem.connect(shared_server.url) as hub:
        hub.streams.create("forked", exist_ok=True)

        def write() -> None:
            with mainstem.connect(shared_server.url) as mine, mine.producer() as producer:
                producer.send("forked", b"from the child").result(10)

        in_child(write)
        assert values(hub, "forked") == [b"from the child"]
        hub.streams.delete("forked")


# Ends without a word.


@pytest.mark.parametrize(
    "use",
    [
        "pass",
        "producer = hub.producer(); producer.send('orders', b'x').result(10)",
        "producer = hub.producer(linger=60); producer.send('orders', b'x')",
        "consumer = hub.consumer('orders', start='earliest'); consumer.poll(0)",
        "import threading; c = hub.consumer('orders'); threading.Thread(target=lambda: list(c), daemon=True).start()",
        "raise SystemExit(0)",
    ],
)
@pytest.mark.parametrize("place", ["embedded", "remote"])
def test_a_hub_that_was_not_closed_never_blocks_the_exit(use, place, request, tmp_path):
    if place == "embedded":
        opened = f"mainstem.open({str(tmp_path)!r})"
    else:
        opened = f"mainstem.connect({request.getfixturevalue('shared_server').url!r})"
    code = f"import mainstem\nhub = {opened}\nhub.streams.create('orders', exist_ok=True)\n{use}\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_was_acknowledged_before_a_kill_is_there(tmp_path):
    with started(
        """
        import sys, mainstem
        hub = mainstem.open(sys.argv[1])
        hub.streams.create("orders")
        producer = hub.producer()
        number = 0
        while True:
            producer.send("orders", b"%d" % number).result()
            print(number, flush=True)
            number += 1
        """,
        tmp_path,
    ) as writer:
        acknowledged = [int(line_of(writer)) for _ in range(100)][-1]
        writer.kill()
        assert writer.stdout is not None
        rest = writer.stdout.read().split()
        acknowledged = int(rest[-1]) if rest else acknowledged
    with mainstem.open(tmp_path) as hub:
        found = values(hub, "orders")
    assert found[: acknowledged + 1] == [b"%d" % number for number in range(acknowledged + 1)]
    assert len(found) <= acknowledged + 2


@pytest.mark.parametrize("path", ["", "mainstem://127.0.0.1:7070", "a\0b", 7])
def test_what_is_no_folder_is_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mainstem.InvalidSetting):
        mainstem.open(path)
    assert not list(tmp_path.iterdir())


def test_a_folder_without_its_ledger_says_to_readers_what_helps(tmp_path):
    with mainstem.open(tmp_path / "data") as hub:
        hub.streams.create("orders")
    for path in (tmp_path / "data").glob("ledger.db*"):
        path.unlink()
    with pytest.raises(mainstem.FolderUnusable, match="mainstem serve --data"):
        mainstem.open(tmp_path / "data", read_only=True)
    mainstem.open(tmp_path / "data").close()
    mainstem.open(tmp_path / "data", read_only=True).close()
