"""The names of `mainstem`, awaited: streams, producers, consumers and what is found, on both kinds of loops."""

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import mainstem
import mainstem.aio
from mainstem.log.backup import back_up
from mainstem.log.restore import restore
from mainstem.testing.server import ServerProcess
from tests.integration.aio.conftest import Open, Run, in_loop

pytest_plugins = ["mainstem.testing.fixtures"]


def test_what_is_sent_comes(open_hub: Open, loop_kind: str) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await hub.streams.create("s", shards=2)
            async with hub.producer() as producer, hub.consumer("s", start="earliest") as consumer:
                ack = await producer.send("s", b"first", key=b"k")
                shard, offset = await ack
                assert offset == 0
                assert ack.done()
                assert ack.stream == "s"
                assert await ack.exception() is None
                record = await consumer.poll(10)
                assert record is not None
                assert (record.value, record.key, record.shard) == (b"first", b"k", shard)
                runs = await (await producer.send_many("s", [b"%d" % number for number in range(1000)]))
                assert sum(count for _, _, count in runs) == 1000
                await producer.send_batch("s", pa.table({"value": [b"last"]}))
                await producer.flush()
                seen = []
                async for record in consumer:
                    seen.append(record.value)
                    if len(seen) == 1001:
                        break
                assert sorted(seen) == sorted([b"%d" % number for number in range(1000)] + [b"last"])
                assert await consumer.poll() is None
                assert sum(consumer.cursor.offsets) == 1002

    in_loop(main(), loop_kind)


def test_everything_else_is_awaited_too(open_hub: Open, run: Run[None]) -> None:
    async def main() -> None:
        hub = await open_hub()
        await hub.streams.create("s", schema={"id": "int64"}, key="id")
        assert [stream.name for stream in await hub.streams.list()] == ["s"]
        assert (await hub.streams.get("s")).key == ("id",)
        assert len(await hub.streams.schemas("s")) == 1
        producer = await hub.producer(on_bad="dead_letter")
        await producer.prepare("s")
        dead = await producer.send("s", {"id": "none"})
        await (await producer.send_many("s", [{"id": number} for number in range(100)]))
        await dead
        assert dead.stream == "s.dead"
        found = await hub.find("s", "id >= 50", limit=10)
        assert [record.value["id"] for record in found] == list(range(50, 60))
        assert len(await hub.find("s", "id = 7")) == 1
        assert (await hub.redrive("s")).failing.total() == 1
        assert await hub.statistics()
        assert len((await hub.overview()).streams) == 2
        consumer = await hub.consumer("s", start="earliest", follow=False)
        assert [batch.count async for batch in consumer.batches()] == [100]
        assert [record async for record in consumer] == []
        await consumer.seek("earliest")
        await consumer.seek_shard(0, 98)
        assert [record.value["id"] async for record in consumer] == [98, 99]
        assert (await hub.streams.erase("s", 98)).records == 1
        await hub.close()
        await hub.close()
        for late in (hub.streams.list, consumer.poll, producer.flush):
            with pytest.raises(mainstem.Closed):
                await late()

    run(main())


def test_errors_are_those_of_the_calls_that_block(open_hub: Open, run: Run[None]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            with pytest.raises(mainstem.UnknownStream):
                await hub.consumer("none")
            with pytest.raises(mainstem.UnknownStream):
                await hub.streams.get("none")
            with pytest.raises(mainstem.InvalidSetting):
                await hub.producer(linger=-1)
            await hub.streams.create("s")
            with pytest.raises(mainstem.InvalidPredicate):
                await hub.find("s", "nothing = 1")
            async with hub.producer() as producer:
                with pytest.raises(mainstem.UnknownStream):
                    await producer.send("none", b"v")
                with pytest.raises(mainstem.InvalidRecord):
                    await producer.send("s", 7)  # type: ignore[arg-type]
                await (await producer.send("s", b"v"))
                await hub.streams.delete("s")
                with pytest.raises(mainstem.StreamDeleted):
                    await (await producer.send("s", b"v"))

    run(main())


@pytest.mark.parametrize("timeout", ["x", float("nan")], ids=repr)
def test_no_time_to_wait(open_hub: Open, run: Run[None], timeout: object) -> None:
    async def main() -> None:
        async with open_hub() as hub, hub.producer() as producer:
            await hub.streams.create("orders")
            ack, many = await producer.send("orders", b"1"), await producer.send_many("orders", [b"2"])
            waits: tuple[Any, ...] = (ack.result, ack.exception, many.result, many.exception, producer.flush)
            for wait in waits:
                with pytest.raises(mainstem.InvalidSetting, match="timeout is in seconds"):
                    await wait(timeout)
            assert await ack.result(10) == (0, 0)

    run(main())


def test_a_callback_is_called_in_the_loop(open_hub: Open, run: Run[None], caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await hub.streams.create("s")
            async with hub.producer() as producer:
                called: list[tuple[mainstem.aio.Ack, threading.Thread]] = []
                ack = await producer.send("s", b"v")
                ack.add_done_callback(lambda ack: called.append((ack, threading.current_thread())))
                ack.add_done_callback(_fail)
                await producer.flush()
                assert called == [(ack, threading.current_thread())]
                assert "code of the user raised" in caplog.text

    run(main())


def _fail(ack: mainstem.aio.Ack) -> None:
    raise ValueError


def test_lingering_ends_when_somebody_waits(open_hub: Open, run: Run[None]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await hub.streams.create("s")
            async with hub.producer(linger=60) as producer:
                assert await asyncio.wait_for(await producer.send("s", b"v"), 20) == (0, 0)

    run(main())


def test_several_loops_each_with_its_own_hub(mainstem_server: ServerProcess) -> None:
    with mainstem.connect(mainstem_server.url) as hub:
        hub.streams.create("s")
    hubs: list[mainstem.aio.Hub] = []
    both = threading.Barrier(2, timeout=30)

    async def main(name: bytes) -> set[object]:
        async with mainstem.aio.connect(mainstem_server.url) as hub:
            hubs.append(hub)
            async with hub.producer() as producer, hub.consumer("s", start="earliest") as consumer:
                await asyncio.to_thread(both.wait)
                other = next(other for other in hubs if other is not hub)
                with pytest.raises(mainstem.InvalidRequest, match="event loop"):
                    await other.streams.list()
                with pytest.raises(mainstem.InvalidRequest, match="event loop"):
                    await other.consumer("s")
                await asyncio.gather(*[producer.send("s", name) for _ in range(100)])
                await producer.flush()
                seen = [record.value for _ in range(200) if (record := await consumer.poll(20)) is not None]
                assert len(seen) == 200
                await asyncio.to_thread(both.wait)
                return set(seen)

    results: dict[bytes, set[object]] = {}

    def thread(name: bytes, loop_kind: str) -> None:
        results[name] = in_loop(main(name), loop_kind)

    threads = [threading.Thread(target=thread, args=one) for one in ((b"a", "asyncio"), (b"b", "uvloop"))]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert results == {b"a": {b"a", b"b"}, b"b": {b"a", b"b"}}


def test_it_goes_on_after_the_server_was_away(mainstem_server: ServerProcess, run: Run[None]) -> None:
    async def main() -> None:
        async with mainstem.aio.connect(mainstem_server.url) as hub:
            await hub.streams.create("s")
            async with hub.producer() as producer, hub.consumer("s") as consumer:
                await producer.prepare("s")
                waiting = asyncio.create_task(consumer.poll(None))
                await asyncio.sleep(0.1)
                await asyncio.to_thread(mainstem_server.kill)
                ack = await producer.send("s", b"v")
                with pytest.raises(mainstem.DeadlineExceeded):
                    await ack.result(0.05)
                await asyncio.to_thread(mainstem_server.start)
                assert await ack == (0, 0)
                record = await waiting
                assert record is not None
                assert record.value == b"v"

    run(main())


def test_a_log_that_was_restored_meanwhile(tmp_path: Path, run: Run[None]) -> None:
    """A reader that stands in the backup goes on; one that stands after it is told what is gone, each time."""
    server = ServerProcess(tmp_path / "data")

    async def main() -> None:
        async with mainstem.aio.connect(server.url) as hub:
            await hub.streams.create("s")
            async with hub.producer() as producer:
                await (await producer.send_many("s", [b"%d" % number for number in range(10)]))
                early = await hub.consumer("s", start="earliest")
                back_up(tmp_path / "data", tmp_path / "backup")
                await (await producer.send("s", b"10"))
            late = await hub.consumer("s", start="earliest")
            for _ in range(11):
                await late.poll(10)
            waiting = asyncio.create_task(late.poll(None))
            await asyncio.to_thread(_restart_restored, server, tmp_path)
            for poll in (waiting, late.poll(20)):
                with pytest.raises(mainstem.InvalidCursor, match="records 10 to 10 are not in this log any more"):
                    await poll
            for number in range(10):
                record = await early.poll(20)
                assert record is not None
                assert record.value == b"%d" % number
            async with hub.producer() as producer:
                await (await producer.send("s", b"other"))
            record = await early.poll(20)
            assert record is not None
            assert (record.offset, record.value, early.cursor.epoch) == (10, b"other", 2)

    with server:
        run(main())


def _restart_restored(server: ServerProcess, path: Path) -> None:
    server.kill()
    shutil.rmtree(path / "data")
    restore(path / "backup", path / "data")
    server.start()
