"""Streams whose schema changes while tasks read and write: what has to be asked meanwhile is asked without waiting."""

import asyncio

import pytest

import mainstem
import mainstem.aio
from tests.integration.aio.conftest import Open, Run


@pytest.mark.parametrize("where", [None, "id >= 0"], ids=["all", "some"])
def test_a_consumer_goes_over_to_a_newer_schema(open_hub: Open, run: Run[None], where: str | None) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await hub.streams.create("s", schema={"id": "int64"})
            async with hub.producer() as producer, hub.consumer("s", start="earliest", where=where) as consumer:
                await (await producer.send("s", {"id": 1}))
                assert await _next(consumer) == {"id": 1}
                await hub.streams.set_schema("s", {"id": "int64", "name": "string"}, compatibility="none")
                waiting = asyncio.create_task(_next(consumer))
                await (await producer.send("s", {"id": 2, "name": "two"}))
                assert await waiting == {"id": 2, "name": "two"}
                await hub.streams.set_schema("s", {"id": "int64", "name": "string", "more": "bool"})
                await producer.prepare("s")
                await (await producer.send("s", {"id": 3, "name": "three", "more": True}))
                assert await _next(consumer) == {"id": 3, "name": "three", "more": True}
                # Older rows in the newest schema.
                await consumer.seek("earliest")
                assert [await _next(consumer) for _ in range(3)] == [
                    {"id": 1, "name": None, "more": None},
                    {"id": 2, "name": "two", "more": None},
                    {"id": 3, "name": "three", "more": True},
                ]

    run(main())


def test_rows_that_do_not_fit_yet(open_hub: Open, run: Run[None]) -> None:
    """A producer that knows an older schema looks for a newer one, and keeps what does not fit as a dead letter."""

    async def main() -> None:
        async with open_hub() as hub:
            await hub.streams.create("s", schema={"id": "int64"})
            async with hub.producer(on_bad="dead_letter") as producer:
                await (await producer.send("s", {"id": 1}))
                await hub.streams.set_schema("s", {"id": "int64", "name": "string"}, compatibility="none")
                newer = await producer.send("s", {"id": 2, "name": "two"})
                assert await newer == (0, 1)
                assert newer.stream == "s"
                dead = await producer.send("s", {"id": "three"})
                assert await dead == (0, 0)
                assert dead.stream == "s.dead"
                many = await producer.send_many("s", [{"id": 4}, {"id": "five"}])
                assert sum(count for _, _, count in await many) == 1
                assert [letter.stream for letter in many.dead] == ["s.dead"]
            assert (await hub.streams.get("s.dead")).records == 2

    run(main())


def test_records_that_are_no_rows_are_told_once(open_hub: Open, run: Run[None]) -> None:
    async def main() -> None:
        async with open_hub() as hub:
            await hub.streams.create("s")
            async with hub.producer() as producer:
                await (await producer.send_many("s", [b'{"id": 1}', b"no row", b'{"id": 3}']))
            await hub.streams.set_schema("s", {"id": "int64"})
            async with hub.consumer("s", start="earliest", follow=False) as consumer:
                assert await _next(consumer) == {"id": 1}
                with pytest.raises(mainstem.UndecodedRecords):
                    await consumer.poll(10)
                assert [record.value async for record in consumer] == [{"id": 3}]
                assert consumer.undecoded == 1

    run(main())


async def _next(consumer: mainstem.aio.Consumer) -> object:
    record = await consumer.poll(20)
    return None if record is None else record.value
