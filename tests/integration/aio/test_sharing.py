"""Groups, several streams and transactions, awaited."""

import asyncio
from collections.abc import Iterator

import pytest

import mainstem
import mainstem.aio
from mainstem.testing.server import ServerProcess
from tests.integration.aio.conftest import Open, Run


@pytest.fixture(autouse=True)
def no_groups_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "shared_server" in request.fixturenames or "remote" in request.node.name:
        server: ServerProcess = request.getfixturevalue("shared_server")
        with mainstem.connect(server.url) as hub:
            for group in hub.groups.list():
                hub.groups.delete(group.name)


async def fill(hub: mainstem.aio.Hub, stream: str, count: int, shards: int = 1) -> None:
    await hub.streams.create(stream, shards=shards, exist_ok=True)
    async with hub.producer() as producer:
        for number in range(count):
            await producer.send(stream, b"%d" % number, key=b"%d" % number)


async def values(hub: mainstem.aio.Hub, stream: str) -> list[bytes | None]:
    async with hub.consumer(stream, start="earliest", follow=False) as consumer:
        return [record.value async for record in consumer]


def test_a_group_goes_on_where_it_was(open_hub: Open, run: Run[None]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await fill(hub, "orders", 20, shards=2)
            async with hub.consumer("orders", group="g", start="earliest", follow=False) as consumer:
                assert isinstance(consumer, mainstem.aio.GroupConsumer)
                assert len([record async for record in consumer]) == 20
                assert sum(consumer.positions.values()) == 20
            info = await hub.groups.get("g")
            assert (info.records, info.seconds) == (0, 0.0)
            assert [info.name for info in await hub.groups.list()] == ["g"]
            changes = await hub.groups.reset("g", "earliest")
            assert sum(change.records for change in changes) == 20
            await hub.groups.reset("g", "earliest", dry_run=False)
            assert (await hub.groups.get("g")).records == 20
            await hub.groups.delete("g")
            with pytest.raises(mainstem.UnknownGroup):
                await hub.groups.get("g")

    run(main())


def test_two_members_and_manual_commits(open_hub: Open, run: Run[None]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await fill(hub, "orders", 40, shards=4)
            found: list[bytes | None] = []

            async def read() -> None:
                async with hub.consumer("orders", group="g", start="earliest", commit="manual") as consumer:
                    while len(found) < 40:
                        batch = await consumer.poll_batch(0.1)
                        if batch is not None:
                            found.extend(batch.values())
                            await consumer.commit()

            await asyncio.gather(read(), read())
            assert sorted(map(int, filter(None, found))) == list(range(40))
            assert (await hub.groups.get("g")).records == 0

    run(main())


def test_records_are_committed_within_a_batch(open_hub: Open, run: Run[None]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await hub.streams.create("orders")
            async with hub.producer() as producer:
                await producer.send_many("orders", [b"x"] * 1000)
            async with hub.consumer("orders", group="g", start="earliest") as consumer:
                record = await consumer.poll(30)
                while not (await hub.groups.get("g")).shards[0].offset:
                    await asyncio.sleep(0.01)
                    record = await consumer.poll()
                    assert record is not None
                assert record is not None
                assert 0 < (await hub.groups.get("g")).shards[0].offset <= record.offset < 999

    run(main())


def test_several_streams_and_a_pattern(open_hub: Open, run: Run[None]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await fill(hub, "orders-a", 5)
            await fill(hub, "orders-b", 5)
            async with hub.consumer(["orders-a", "orders-b"], start="earliest", follow=False) as consumer:
                assert isinstance(consumer, mainstem.aio.SeveralConsumer)
                assert len([record async for record in consumer]) == 10
                saved = str(consumer.cursor)
            start = mainstem.Cursors.parse(saved)
            async with hub.consumer(["orders-a", "orders-b"], start=start, follow=False) as consumer:
                assert [record async for record in consumer] == []
            async with hub.consumer(pattern="orders-*", group="all", start="earliest") as consumer:
                for _ in range(10):
                    assert await consumer.poll(10) is not None
                await fill(hub, "orders-c", 5)
                for _ in range(5):
                    assert await consumer.poll(10) is not None

    run(main())


def test_a_task_that_is_cancelled_while_it_commits(open_hub: Open, run: Run[None]) -> None:
    """All or nothing, whenever that happens; and a task that is cancelled before has written nothing."""

    async def write(hub: mainstem.aio.Hub, number: int) -> None:
        async with hub.transaction() as tx:
            await tx.send("a", b"%d" % number)
            await tx.send("b", b"%d" % number)

    async def main() -> None:
        async with open_hub() as hub:
            for name in ("a", "b"):
                await hub.streams.create(name)
            await write(hub, 0)
            for number in range(1, 20):
                task = asyncio.create_task(write(hub, number))
                await asyncio.sleep(number * 0.0002)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await write(hub, 20)
            assert await values(hub, "a") == await values(hub, "b")
            assert {b"0", b"20"} <= set(await values(hub, "a"))

    run(main())


def test_shards_are_spread(open_hub: Open, run: Run[None]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await fill(hub, "clicks", 100)
            found: list[bytes | None] = []

            async def read() -> None:
                async with hub.consumer("clicks", group="g", spread=True, start="earliest") as consumer:
                    while len(found) < 200:
                        batch = await consumer.poll_batch(0.1)
                        if batch is not None:
                            found.extend(batch.values())

            readers = asyncio.gather(read(), read())
            await fill(hub, "clicks", 100)
            await readers
            assert sorted(map(int, filter(None, found))) == sorted([*range(100)] * 2)
            assert (await hub.groups.get("g")).records == 0

    run(main())
