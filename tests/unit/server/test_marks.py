"""Marks: what a server says of the time to readers who asked for an order."""

import pytest

from mainstem.core.errors import InvalidRequest
from mainstem.core.limits import WINDOW_US_MAX, WINDOW_US_MIN
from mainstem.transport.port import CreateStreamCall
from mainstem.transport.wire import VERSION, Hello, Kind, Subscribe
from tests.unit.log.parts import append, make_batch
from tests.unit.server.parts import run, serving


async def connected(rig):
    client = await rig.connect()
    await client.send(Kind.HELLO, 1, Hello(1, VERSION, "test"))
    assert (await client.next()).header.version == VERSION
    await client.send(Kind.CALL, 2, CreateStreamCall("orders", shards=2, uuid="0" * 32))
    return client, (await client.next()).header.streams[0].id


@pytest.mark.parametrize("window", [1, WINDOW_US_MIN - 1, WINDOW_US_MAX + 1, (1 << 63) - 1])
def test_a_window_that_cannot_be_kept_is_refused(tmp_path, window):
    async def test():
        async with serving(tmp_path) as rig:
            client, stream = await connected(rig)
            await client.send(Kind.SUBSCRIBE, 3, Subscribe(stream, [0, 0], None, 1 << 20, window_us=window))
            answer = await client.next()
            assert (answer.kind, answer.id, answer.header.code) == (Kind.ERROR, 3, InvalidRequest.code)

    run(test)


@pytest.mark.parametrize("window", [WINDOW_US_MIN, WINDOW_US_MAX])
def test_marks_follow_the_time_behind_the_batches_and_take_no_credit(tmp_path, window):
    async def test():
        async with serving(tmp_path) as rig:
            client, stream = await connected(rig)
            await client.send(Kind.SUBSCRIBE, 3, Subscribe(stream, [0, 0], None, 1, window_us=window))
            await client.send(Kind.SUBSCRIBE, 4, Subscribe(stream, [0, 0], None, 1))
            append(rig.server.log, make_batch(stream=stream))
            got = [await client.next(), await client.next()]
            assert sorted((message.kind, message.id) for message in got) == [(Kind.BATCHES, 3), (Kind.BATCHES, 4)]
            # Its credit is used up, and a record waits.
            append(rig.server.log, make_batch(stream=stream, shard=1))
            waiting_us = rig.clock.now_us()
            rig.clock.advance(2)
            client.session.mark()
            rig.clock.advance(2)
            client.session.mark()
            for subscription in client.session.subscriptions.values():
                subscription.add_credit(1 << 20)
                subscription.push()
            client.session.mark()
            times: list[int] = []
            before = True
            while len(times) < 1 or before:
                message = await client.next()
                if message.kind == Kind.MARK:
                    assert message.id == 3, "the other did not ask"
                    times.append(message.header.time_us)
                    assert not before or times[-1] <= waiting_us
                elif message.id == 3:
                    before, times = False, []
            assert times[-1] == rig.clock.now_us()

    run(test)
