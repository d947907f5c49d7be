"""Between an event loop and threads: few of them, each woken once, and steps that go on where they had to wait."""

import asyncio
import gc
import threading
import time
from functools import partial

import pytest

from mainstem.aio.bridge import WORKERS_MAX, Bridge, LoopPort
from mainstem.core.errors import Closed, InvalidRequest, UnknownStream
from mainstem.hub.embedded import LogPort
from mainstem.transport.port import CreateStreamCall, GetStreamCall, ListStreamsCall, WouldWait


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mainstem-worker"]


def await_no_workers() -> None:
    deadline = time.monotonic() + 10
    while workers() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not workers()


def test_much_work_has_few_threads_and_what_nobody_waits_for_is_not_begun():
    async def main():
        bridge = Bridge()
        assert not workers()
        assert await bridge.work(lambda: 7) == 7
        assert len(workers()) == 1
        gate = threading.Event()
        begun = []

        def work(number):
            begun.append(number)
            gate.wait(10)
            return number

        jobs = [bridge.begin(partial(work, number)) for number in range(20)]
        await asyncio.sleep(0.05)
        assert len(workers()) == WORKERS_MAX == len(begun)
        jobs[-1].cancel()
        assert await bridge.begin(lambda: "at once", alone=True) == "at once"
        gate.set()
        assert await asyncio.gather(*jobs[:-1]) == list(range(19))
        assert sorted(begun) == list(range(19))
        with pytest.raises(ZeroDivisionError):
            await bridge.work(lambda: 1 / 0)
        bridge.close()
        with pytest.raises(Closed):
            await bridge.work(lambda: 7)

    asyncio.run(main())
    await_no_workers()


def test_threads_of_what_was_not_closed_end_with_it():
    async def main():
        await Bridge().work(lambda: None)

    asyncio.run(main())
    gc.collect()
    await_no_workers()


def test_many_rings_wake_the_loop_once_and_keep_their_order(monkeypatch):
    async def main():
        bridge = Bridge()
        woken = 0
        real = bridge.loop.call_soon_threadsafe

        def count(*args):
            nonlocal woken
            woken += 1
            return real(*args)

        monkeypatch.setattr(bridge.loop, "call_soon_threadsafe", count)
        answered: list[int] = []

        def ring():
            for number in range(1000):
                bridge.ring(partial(answered.append, number))

        thread = threading.Thread(target=ring)
        thread.start()
        thread.join()
        assert woken == 1
        done = bridge.loop.create_future()
        bridge.ring(lambda: done.set_result(None))
        await done
        assert answered == list(range(1000))
        # One that fails keeps nobody after it from being called.
        told: list[object] = []
        bridge.loop.set_exception_handler(lambda loop, context: told.append(context["exception"]))
        again = bridge.loop.create_future()
        bridge.ring(partial(told.remove, "nothing"))
        bridge.ring(lambda: again.set_result(None))
        await again
        assert [type(error) for error in told] == [ValueError]

    asyncio.run(main())


def test_a_step_is_taken_again_with_what_was_answered(tmp_path):
    async def main(port):
        bridge = Bridge()
        loop_port = LoopPort(port, bridge)
        taken = 0

        def step():
            nonlocal taken
            taken += 1
            with pytest.raises(UnknownStream):
                loop_port.call(GetStreamCall("none"))
            # With a UUID of its own each time.
            loop_port.call(CreateStreamCall("s", uuid=f"{taken:032x}", exist_ok=True))
            return loop_port.call(ListStreamsCall())

        assert [stream.name for stream in (await bridge.take(step)).streams] == ["s"]
        with pytest.raises(WouldWait):
            loop_port.call(ListStreamsCall())
        # In a worker it may wait.
        assert (await bridge.work(lambda: loop_port.call(ListStreamsCall()))).streams
        bridge.close()

    port = LogPort(tmp_path)
    try:
        asyncio.run(main(port))
    finally:
        port.close()


def test_work_that_is_under_way_is_not_begun_twice():
    async def main():
        bridge = Bridge()
        gate, begun, is_done = threading.Event(), [], False

        class Reader:
            def read(self):
                nonlocal is_done
                begun.append(1)
                gate.wait(10)
                is_done = True

        reader = Reader()

        def step():
            if not is_done:
                raise WouldWait(reader.read)
            return "read"

        first = asyncio.create_task(bridge.take(step))
        await asyncio.sleep(0.01)
        first.cancel()
        second = asyncio.create_task(bridge.take(step))
        await asyncio.sleep(0.01)
        gate.set()
        assert await second == "read"
        assert begun == [1]
        assert first.cancelled()
        bridge.close()

    asyncio.run(main())


def test_it_belongs_to_one_loop():
    async def make():
        return Bridge()

    bridge = asyncio.run(make())

    async def use():
        assert not bridge.is_running
        with pytest.raises(InvalidRequest, match="event loop"):
            await bridge.work(lambda: None)

    asyncio.run(use())
    # Nobody waits in a loop that is closed.
    bridge.ring(lambda: None)
