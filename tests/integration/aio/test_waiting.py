"""How tasks wait: without threads, without looking, until something comes, is cancelled or closed."""

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mainstem
import mainstem.aio
from mainstem.testing.server import ServerProcess
from tests.integration.aio.conftest import Open, Run, in_loop

pytest_plugins = ["mainstem.testing.fixtures"]

IDLE = 1000


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow("opens a thousand consumers")
def test_a_thousand_idle_consumers_cost_few_threads_and_no_time(open_hub: Open, kind: str, loop_kind: str) -> None:
    threads_before = threading.active_count()

    async def main() -> None:
        async with open_hub() as hub:
            await hub.streams.create("s", shards=2)
            async with hub.producer() as producer:
                await (await producer.send("s", b"before"))
                before = memory_bytes()
                consumers = await asyncio.gather(*[hub.consumer("s") for _ in range(IDLE)])

                async def read(consumer: mainstem.aio.Consumer) -> object:
                    async for record in consumer:
                        return record.value
                    return None

                readers = [asyncio.create_task(read(consumer)) for consumer in consumers]
                await asyncio.sleep(1.0)
                assert threading.active_count() - threads_before < 10
                assert (memory_bytes() - before) / IDLE < 50_000
                # Whatever runs now, runs for nobody: a hub's own heartbeat and the upkeep of a log.
                begun = time.process_time()
                await asyncio.sleep(1.0)
                assert time.process_time() - begun < 0.25
                assert not any(reader.done() for reader in readers)
                await (await producer.send("s", b"now"))
                assert await asyncio.gather(*readers) == [b"now"] * IDLE
                assert threading.active_count() - threads_before < 10

    in_loop(main(), loop_kind)
    deadline = time.monotonic() + 10
    while threading.active_count() > threads_before and time.monotonic() < deadline:
        time.sleep(0.01)
    # Fewer, if a thread of another test was still about to end when they were counted.
    assert threading.active_count() <= threads_before


@pytest.mark.parametrize("where", [None, "_offset >= 0"], ids=["all", "matching"])
def test_a_cancelled_poll_has_taken_nothing(open_hub: Open, loop_kind: str, where: str | None) -> None:
    """Polls are cancelled at any moment, while batches are read from disk, come or wait: each record comes once."""
    randomness = random.Random(1)

    async def main() -> None:
        async with open_hub() as hub:
            await hub.streams.create("s", shards=3)
            async with hub.producer(batch_bytes=4096) as producer:
                for number in range(3000):
                    await producer.send("s", b"%d" % number, key=b"%d" % number)
        # Opened again, a log in this process has nothing of it in memory.
        async with (
            open_hub() as hub,
            hub.producer() as producer,
            hub.consumer("s", start="earliest", where=where) as consumer,
        ):

            async def write() -> None:
                for number in range(3000, 4000):
                    await producer.send("s", b"%d" % number, key=b"%d" % number)
                    if number % 20 == 0:
                        await asyncio.sleep(0.001)

            writing = asyncio.create_task(write())
            seen: list[Any] = []
            cancelled = 0
            while len(seen) < 4000:
                is_batch = randomness.random() < 0.5
                poll = asyncio.create_task(consumer.poll_batch(None) if is_batch else consumer.poll(None))
                for _ in range(randomness.randrange(4)):
                    await asyncio.sleep(0)
                if randomness.random() < 0.3:
                    await asyncio.sleep(0.0005)
                place = sum(consumer.cursor.offsets)
                if poll.done() or not poll.cancel():
                    found = await poll
                else:
                    cancelled += 1
                    try:
                        found = await poll
                    except asyncio.CancelledError:
                        assert sum(consumer.cursor.offsets) == place
                        found = None
                if found is not None:
                    seen += found.values() if isinstance(found, mainstem.RecordBatch) else [found.value]
                assert sum(consumer.cursor.offsets) == len(seen)
            await writing
            assert cancelled > 20
            assert sorted(seen) == sorted(b"%d" % number for number in range(4000))

    in_loop(main(), loop_kind)


def test_what_was_lost_is_told_to_who_comes_next(tmp_path: Path, run: Run[None]) -> None:
    """The task that asked for it was cancelled while a worker was reading."""

    async def main() -> None:
        async with mainstem.aio.open(tmp_path) as hub:
            await hub.streams.create("s")
            async with hub.producer() as producer:
                for _ in range(3):
                    await (await producer.send("s", b"v"))
            consumer = await hub.consumer("s", start="earliest")
            await hub.streams.trim("s", offset=2)
            poll = asyncio.create_task(consumer.poll(None))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)
            assert consumer.cursor.offsets == (0,)
            with pytest.raises(mainstem.DataLoss) as told:
                await consumer.poll(10)
            assert (told.value.first, told.value.last) == (0, 1)
            record = await consumer.poll(10)
            assert record is not None
            assert record.offset == 2

    run(main())


def test_closing_wakes_who_waits(open_hub: Open, run: Run[None]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await hub.streams.create("s")
            consumer, other = await hub.consumer("s"), await hub.consumer("s")
            waiting = [asyncio.create_task(one.poll(None)) for one in (consumer, other)]
            await asyncio.sleep(0.05)
            with pytest.raises(mainstem.InvalidRequest, match="another task"):
                await consumer.poll()
            await consumer.close()
            with pytest.raises(mainstem.Closed):
                await waiting[0]
            await hub.close()
            with pytest.raises(mainstem.Closed):
                await waiting[1]

    run(main())


def test_a_folder_that_another_process_writes_is_followed(tmp_path: Path, run: Run[None]) -> None:
    """One thread looks for changes, however many wait for one."""
    code = (
        "import sys, mainstem\n"
        "with mainstem.open(sys.argv[1]) as hub, hub.producer() as producer:\n"
        "    for line in sys.stdin:\n"
        "        print(producer.send('s', line.strip().encode()).result(), flush=True)\n"
    )
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("s")

    async def main() -> None:
        writer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, str(tmp_path), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(b"first\n")
        await writer.stdout.readline()
        threads = threading.active_count()
        async with mainstem.aio.open(tmp_path, read_only=True) as hub:
            consumers = [await hub.consumer("s", start="earliest") for _ in range(50)]
            for value in (b"first", b"second", b"third"):
                polls = [asyncio.create_task(consumer.poll(None)) for consumer in consumers]
                if value != b"first":
                    await asyncio.sleep(0.2)
                    assert threading.active_count() - threads < 10
                    writer.stdin.write(value + b"\n")
                found = await asyncio.gather(*polls)
                assert {record.value for record in found if record is not None} == {value}
            with pytest.raises(mainstem.ReadOnly):
                await hub.producer()
            waiting = asyncio.create_task(consumers[0].poll(None))
            await asyncio.sleep(0.05)
        with pytest.raises(mainstem.Closed):
            await waiting
        writer.stdin.close()
        await writer.wait()

    run(main())


# A full buffer.


@pytest.fixture
def stopped_server(mainstem_server: ServerProcess) -> Iterator[ServerProcess]:
    """A server that can be stopped like by Ctrl-Z, and goes on when the test ends."""
    yield mainstem_server
    os.kill(mainstem_server.pid, signal.SIGCONT)


def test_a_send_into_a_full_buffer_waits_and_others_go_on(stopped_server: ServerProcess, loop_kind: str) -> None:
    value = bytes(4_000)

    async def main() -> None:
        async with mainstem.aio.connect(stopped_server.url) as hub:
            await hub.streams.create("s")
            await hub.streams.create("t")
            async with (
                hub.producer(batch_bytes=16_384, buffer_bytes=65_536, compression=None) as producer,
                hub.producer(batch_bytes=16_384, buffer_bytes=65_536, on_full="raise", compression=None) as hasty,
            ):
                await producer.prepare("s")
                await hasty.prepare("t")
                os.kill(stopped_server.pid, signal.SIGSTOP)
                sent = 0

                async def send() -> None:
                    nonlocal sent
                    for _ in range(100):
                        await producer.send("s", value)
                        sent += 1

                sending = [asyncio.create_task(send()) for _ in range(3)]
                turns = 0
                begun = time.monotonic()
                while time.monotonic() - begun < 0.5:
                    await asyncio.sleep(0.001)
                    turns += 1
                assert turns > 50
                assert 10 < sent < 30
                sending[0].cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending[0]
                with pytest.raises(mainstem.BufferFull):
                    await asyncio.gather(*[hasty.send("t", value) for _ in range(100)])
                before = sent
                os.kill(stopped_server.pid, signal.SIGCONT)
                await asyncio.gather(*sending[1:])
                assert before < sent
                await producer.flush()
                # What was cancelled was not sent, and everything else was.
                assert (await hub.streams.get("s")).records == sent

    in_loop(main(), loop_kind)


def test_an_ack_may_be_awaited_again(stopped_server: ServerProcess, run: Run[None]) -> None:
    async def main() -> None:
        async with mainstem.aio.connect(stopped_server.url) as hub:
            await hub.streams.create("s")
            async with hub.producer() as producer:
                await producer.prepare("s")
                os.kill(stopped_server.pid, signal.SIGSTOP)
                ack = await producer.send("s", b"v")
                with pytest.raises(mainstem.DeadlineExceeded):
                    await ack.result(0.01)
                with pytest.raises(mainstem.DeadlineExceeded):
                    await producer.flush(0.01)
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(ack, 0.01)
                assert not ack.done()
                os.kill(stopped_server.pid, signal.SIGCONT)
                assert list(await asyncio.gather(ack, ack.result())) == [(0, 0), (0, 0)]
                await producer.flush()

    run(main())


def test_a_cancelled_opening_leaves_nothing_open(tmp_path: Path, run: Run[None]) -> None:
    async def main() -> None:
        with mainstem.open(tmp_path) as hub:
            hub.streams.create("s")

        async def open_it() -> None:
            async with mainstem.aio.open(tmp_path, read_only=False):
                await asyncio.sleep(60)

        opening = asyncio.create_task(open_it())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        deadline = time.monotonic() + 20
        while True:
            try:
                async with mainstem.aio.open(tmp_path, read_only=False):
                    return
            except mainstem.FolderLocked:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)

    run(main())


def test_a_consumer_with_a_backlog_lets_others_have_their_turn(open_hub: Open, run: Run[None]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await hub.streams.create("s")
            async with hub.producer(batch_bytes=1024) as producer:
                for _ in range(1000):
                    await producer.send("s", bytes(600))
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            counting = asyncio.create_task(count())
            async with hub.consumer("s", start="earliest", follow=False) as consumer:
                begun = time.monotonic()
                assert len([record async for record in consumer]) == 1000
                took = time.monotonic() - begun
            counting.cancel()
            assert turns > took / 0.05

    run(main())


@pytest.mark.slow("waits for the server's silence to be noticed")
def test_a_hub_closes_though_many_wait_for_a_server_that_is_away(stopped_server: ServerProcess, run: Run[None]) -> None:
    async def main() -> None:
        hub = await mainstem.aio.connect(stopped_server.url)
        await hub.streams.create("s")
        os.kill(stopped_server.pid, signal.SIGSTOP)
        calls = [asyncio.create_task(hub.streams.get("s")) for _ in range(50)]
        opening = [asyncio.ensure_future(hub.consumer("s")) for _ in range(50)]
        await asyncio.sleep(0.1)
        calls[0].cancel()
        stop = asyncio.create_task(hub.close())
        await asyncio.sleep(0.1)
        stop.cancel()
        os.kill(stopped_server.pid, signal.SIGCONT)
        begun = time.monotonic()
        await hub.close()
        ended = await asyncio.gather(*calls, *opening, return_exceptions=True)
        assert time.monotonic() - begun < 25
        assert isinstance(ended[0], asyncio.CancelledError)
        kinds = {type(end) for end in ended[1:]}
        assert kinds <= {mainstem.Closed, mainstem.StreamInfo, mainstem.aio.Consumer}
        assert mainstem.Closed in kinds

    run(main())
