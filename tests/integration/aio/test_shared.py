"""Groups, several streams, transactions and order for asyncio."""

import asyncio
from typing import Any

import pytest

import mainstem
import mainstem.aio
from mainstem.core.errors import Fenced, InvalidName, InvalidRequest, InvalidSetting, TransactionAborted
from tests.integration.aio.conftest import Open, Run


@pytest.fixture(autouse=True)
def no_groups_left(open_hub: Open, run: Run[Any]) -> Any:
    yield

    async def main() -> None:
        async with open_hub() as hub:
            for group in await hub.groups.list():
                await hub.groups.delete(group.name)

    run(main())


async def fill(hub: mainstem.aio.Hub, stream: str, count: int, shards: int = 1, first: int = 0) -> None:
    await hub.streams.create(stream, shards=shards, exist_ok=True)
    async with hub.producer() as producer:
        await producer.send_many(
            stream, [b"%d" % n for n in range(first, first + count)], [b"%d" % n for n in range(first, first + count)]
        )


async def values(hub: mainstem.aio.Hub, stream: str) -> list[int]:
    async with hub.consumer(stream, start="earliest", follow=False) as consumer:
        return sorted([int(record.value or b"") async for record in consumer])


def test_a_group_goes_on_where_it_was(open_hub: Open, run: Run[Any]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await fill(hub, "orders", 100, shards=3)
            async with hub.consumer("orders", group="g", start="earliest", follow=False) as consumer:
                assert sorted([int(record.value or b"") async for record in consumer]) == list(range(100))
            async with hub.consumer("orders", group="g", follow=False) as consumer:
                assert [record async for record in consumer] == []
            assert (await hub.groups.get("g")).records == 0

    run(main())


def test_what_a_cancelled_task_has_not_taken_is_not_committed(open_hub: Open, run: Run[Any]) -> None:
    """The worker that looks for it cannot be cancelled: what it finds is the next to come, or another member's."""

    async def main() -> None:
        async with open_hub() as hub:
            await fill(hub, "orders", 50)
            async with hub.consumer("orders", group="g", start="earliest") as consumer:
                batch = None
                while batch is None:
                    batch = await consumer.poll_batch(0.1)
                found = list(batch.offsets())
                while len(found) < 50:
                    more = await consumer.poll_batch(1.0)
                    found += more.offsets() if more is not None else ()
                await consumer.commit()
                await fill(hub, "orders", 50, first=50)
                # Cancelled at any moment of its look.
                for pause in (0.0, 0.0001, 0.001, 0.005):
                    task = asyncio.create_task(consumer.poll_batch(None))
                    await asyncio.sleep(pause)
                    task.cancel()
                    try:
                        taken = await task
                    except asyncio.CancelledError:
                        await consumer.commit()
                    else:
                        assert taken is not None
                        found += taken.offsets()
            async with hub.consumer("orders", group="g", follow=False) as consumer:
                found += [record.offset async for record in consumer]
            assert sorted(found) == list(range(100))

    run(main())


def test_a_cancelled_task_leaves_the_next_record_to_another(open_hub: Open, run: Run[Any]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await fill(hub, "a", 0)
            await fill(hub, "b", 0)
            async with hub.consumer(["a", "b"]) as consumer:
                task = asyncio.create_task(consumer.poll(None))
                await asyncio.sleep(0.05)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await fill(hub, "b", 1)
                record = await consumer.poll(10)
                assert record is not None
                assert (record.stream, record.value) == ("b", b"0")
                waiting = asyncio.create_task(consumer.poll(None))
                await asyncio.sleep(0.05)
                await consumer.close()
                with pytest.raises(mainstem.Closed):
                    await waiting

    run(main())


async def send_and_fail(transaction: mainstem.aio.Transaction) -> None:
    async with transaction as tx:
        await tx.send("a", b"4")
        raise ZeroDivisionError


def test_a_transaction(open_hub: Open, run: Run[Any]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await hub.streams.create("a")
            await hub.streams.create("b", shards=2)
            async with hub.transaction() as tx:
                await tx.send("a", b"1")
                await tx.send_many("b", [b"2", b"3"], [b"2", b"3"])
                assert await values(hub, "a") == await values(hub, "b") == []
            assert await values(hub, "a") == [1]
            assert await values(hub, "b") == [2, 3]
            assert tx.offsets[("a", 0)] == (0, 1)
            tx = await hub.transaction()
            with pytest.raises(ZeroDivisionError):
                await send_and_fail(tx)
            with pytest.raises(TransactionAborted):
                await tx.commit()
            assert await values(hub, "a") == [1]
            with pytest.raises(InvalidName):
                await hub.transaction(writer="")
            async with hub.transaction(writer="w") as tx:
                await tx.send("a", b"5")
            assert await values(hub, "a") == [1, 5]

    run(main())


def test_read_transform_write(open_hub: Open, run: Run[Any]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await fill(hub, "orders", 30, shards=2)
            await hub.streams.create("doubled")
            async with hub.consumer("orders", group="g", start="earliest", follow=False, commit="manual") as consumer:
                async for batch in consumer.batches():
                    async with hub.transaction() as tx:
                        await tx.advance(consumer)
                        for record in batch.records():
                            await tx.send("doubled", b"%d" % (2 * int(record.value or b"")))
                tx = await hub.transaction()
                with pytest.raises(InvalidRequest):
                    await tx.advance(object())  # type: ignore[arg-type]
            assert await values(hub, "doubled") == [2 * n for n in range(30)]
            assert (await hub.groups.get("g")).records == 0

    run(main())


def test_a_refused_advance_sets_all_consumers_back(open_hub: Open, run: Run[Any]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await fill(hub, "one", 5)
            await fill(hub, "two", 5)
            async with (
                hub.consumer("one", group="g1", start="earliest", commit="manual") as one,
                hub.consumer("two", group="g2", start="earliest", commit="manual") as two,
            ):
                first = [await consumer.poll(10) for consumer in (one, two)]
                # As if another member had had its shard for a while.
                core: Any = one._core
                core._lost.extend(core._committed)
                with pytest.raises(Fenced):
                    async with hub.transaction() as tx:
                        await tx.advance(one, two)
                again = [await consumer.poll(10) for consumer in (one, two)]
                assert [record and record.offset for record in again] == [record and record.offset for record in first]

    run(main())


def test_a_cancelled_block_is_aborted(open_hub: Open, run: Run[Any]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await hub.streams.create("a")

            async def write() -> None:
                async with hub.transaction() as tx:
                    await tx.send("a", b"1")
                    await asyncio.sleep(60)

            task = asyncio.create_task(write())
            await asyncio.sleep(0.2)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
            assert await values(hub, "a") == []

    run(main())


def test_order(open_hub: Open, run: Run[Any]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await fill(hub, "visits", 100, shards=4)
            async with hub.sequence("visits", batch=30, follow=False) as ordered:
                assert ordered.cursor.offsets == (0,) * 4
                batches = [batch async for batch in ordered]
                assert ordered.cursor == batches[-1].cursor
            assert [len(batch) for batch in batches] == [30, 30, 30, 10]
            async with hub.sequence("visits", batch=30, start=batches[0].cursor) as ordered:
                again = [await ordered.poll(None) for _ in range(2)]
                assert [batch.to_dicts() for batch in again if batch] == [batch.to_dicts() for batch in batches[1:3]]
                task = asyncio.create_task(ordered.poll(None))
                await asyncio.sleep(0.1)
                await fill(hub, "visits", 50, shards=4, first=100)
                batch = await task
                assert batch is not None
                assert (batch.first, batch.end) == (90, 120)
            async with hub.consumer("visits", start="earliest", ordering_window="5m") as consumer:
                found = [await consumer.poll(10) for _ in range(150)]
                assert all(found)
                while consumer.watermark is None:
                    assert await consumer.poll(0.1) is None

    run(main())


@pytest.mark.parametrize("options", [{"group": "g"}, {"pattern": "vis*"}, {"stream": ["visits"]}], ids=str)
def test_an_ordering_window_is_for_one_stream_without_a_group(
    open_hub: Open, run: Run[Any], options: dict[str, Any]
) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await fill(hub, "visits", 1)
            stream = None if "pattern" in options else "visits"
            with pytest.raises(InvalidSetting, match="all shards of one stream"):
                await hub.consumer(**{"stream": stream, "ordering_window": "5m", **options})

    run(main())
