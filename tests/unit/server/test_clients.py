"""Clients as an operator sees them: who is behind, who takes nothing, and answers that are bounded."""

import asyncio
from typing import Any

import msgspec

from mainstem.core.limits import (
    CLIENT_NAME_CHARS_MAX,
    CONNECTION_INFO_BYTES_MAX,
    FOLLOWER_SLOW_RECORDS,
    MESSAGE_HEADER_BYTES_MAX,
    STREAM_NAME_CHARS_MAX,
)
from mainstem.server import clients
from mainstem.server.clients import Followers, count_followers, list_connections
from mainstem.transport.port import ConnectionInfo, ConnectionsCall, StatisticsCall
from mainstem.transport.wire import Credit, Kind, Subscribe
from tests.unit.log.parts import append_values, make_stream
from tests.unit.server.parts import come_to, run, serving


def followers(rig: Any) -> Followers:
    return count_followers(tuple(rig.server._sessions), rig.clock.monotonic())


def listed(rig: Any) -> tuple[ConnectionInfo, ...]:
    return list_connections(tuple(rig.server._sessions), 0, rig.clock.monotonic()).connections


def test_a_reader_that_gives_no_credit_is_blocked_after_a_while(tmp_path):
    async def test() -> None:
        async with serving(tmp_path, idle_timeout=10_000.0) as rig:
            stream = make_stream(rig.server.log)
            append_values(rig.server.log, stream, b"a", b"b")
            client = await (await rig.connect()).hello("report")
            await client.send(Kind.SUBSCRIBE, 5, Subscribe(stream, [0], None, 1))
            assert (await client.next()).kind == Kind.BATCHES
            # It has everything there is: without credit, and not behind.
            rig.clock.advance(60)
            assert followers(rig) == Followers(1, 0, 0, 0)
            await asyncio.to_thread(append_values, rig.server.log, stream, b"c", b"d", b"e")
            await come_to(lambda: followers(rig).behind_max == 3)
            rig.clock.advance(60)
            assert followers(rig) == Followers(1, 1, 1, 3)
            (found,) = listed(rig)
            assert (found.client, found.behind, found.behind_stream) == ("report", 3, "orders")
            assert found.stalled_us >= 60_000_000
            # It takes again.
            await client.send(Kind.CREDIT, 5, Credit(1 << 20))
            assert (await client.next()).kind == Kind.BATCHES
            await come_to(lambda: followers(rig) == Followers(1, 0, 0, 0))
            assert listed(rig)[0].stalled_us == 0

    run(test)


def test_a_moment_without_credit_is_not_slow_but_many_records_are(tmp_path):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            stream = make_stream(rig.server.log)
            append_values(rig.server.log, stream, b"a")
            client = await (await rig.connect()).hello()
            await client.send(Kind.SUBSCRIBE, 5, Subscribe(stream, [0], None, 1))
            assert (await client.next()).kind == Kind.BATCHES
            await asyncio.to_thread(append_values, rig.server.log, stream, b"b")
            await come_to(lambda: followers(rig) == Followers(1, 0, 0, 1))
            many = [b""] * FOLLOWER_SLOW_RECORDS
            await asyncio.to_thread(append_values, rig.server.log, stream, *many)
            await come_to(lambda: followers(rig) == Followers(1, 1, 0, FOLLOWER_SLOW_RECORDS + 1))

    run(test)


def test_a_bounded_subscription_is_behind_up_to_its_end_only(tmp_path):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            stream = make_stream(rig.server.log)
            append_values(rig.server.log, stream, b"a")
            append_values(rig.server.log, stream, b"b")
            append_values(rig.server.log, stream, b"c")
            client = await (await rig.connect()).hello()
            await client.send(Kind.SUBSCRIBE, 5, Subscribe(stream, [0], [2], 0))
            await come_to(lambda: followers(rig).behind_max == 2)
            await client.send(Kind.CREDIT, 5, Credit(1 << 20))
            while (await client.next()).kind != Kind.END:
                pass
            assert followers(rig).behind_max == 0

    run(test)


def test_connections_are_told_over_the_wire_in_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(clients, "_INFOS_MAX", 2)

    async def test() -> None:
        async with serving(tmp_path) as rig:
            for number in range(5):
                last = await (await rig.connect()).hello(f"client-{number}\n")
            names: list[str] = []
            after = 0
            while True:
                await last.send(Kind.CALL, 9, ConnectionsCall(after=after))
                message = await last.next()
                assert message.kind == Kind.ANSWER
                answer = message.header
                assert len(answer.connections) <= 2
                names += [found.client for found in answer.connections]
                if not answer.more:
                    break
                after = answer.connections[-1].id
            assert names == [f"client-{number}\n" for number in range(5)]
            await last.send(Kind.CALL, 10, StatisticsCall())
            answer = (await last.next()).header
            assert answer.counters["connections"] == 5
            assert answer.server == "test"
            assert set(answer.histograms) == {"commit_seconds", "flush_bytes"}

    run(test)


def test_an_answer_is_never_too_long():
    """The longest that can be: every name at its limit, in characters of four bytes, every number at its largest."""
    largest = (1 << 63) - 1
    info = ConnectionInfo(
        id=largest,
        client="\U0001f600" * CLIENT_NAME_CHARS_MAX,
        address="[" + "f" * 60 + "]:65535",
        connected_us=largest,
        appends=largest,
        append_bytes=largest,
        subscriptions=largest,
        behind=largest,
        behind_stream="x" * STREAM_NAME_CHARS_MAX,
        stalled_us=largest,
        waiting=True,
    )
    size = len(msgspec.msgpack.encode(info))
    assert size <= CONNECTION_INFO_BYTES_MAX
    assert size * clients._INFOS_MAX < MESSAGE_HEADER_BYTES_MAX


def test_a_name_is_cut(tmp_path):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            await (await rig.connect()).hello("x" * 1_000)
            assert listed(rig)[0].client == "x" * CLIENT_NAME_CHARS_MAX

    run(test)


def test_who_is_turned_away_is_counted(tmp_path):
    async def test() -> None:
        async with serving(tmp_path, connections_max=1) as rig:
            first = await (await rig.connect()).hello()
            host, _, port = rig.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            assert await reader.read() != b""
            writer.close()
            counters = await asyncio.to_thread(rig.server.counters)
            assert (counters["connections"], counters["connections_refused"]) == (1, 1)
            assert first.session.id == 1

    run(test)
