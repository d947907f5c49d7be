"""Appends that take long to look at: whoever sent them waits, nobody else does."""

import asyncio
import threading
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from mainstem.core.batch import Batch, BatchHeader
from mainstem.core.errors import MainstemError, RecordTooLarge, SchemaMismatch
from mainstem.core.limits import APPEND_RAW_BYTES_MAX, PAYLOAD_RAW_BYTES_MAX
from mainstem.core.schema import Schema
from mainstem.transport.port import SetSchemaCall
from mainstem.transport.wire import Kind, error_from
from tests.unit.log.parts import make_batch
from tests.unit.server.parts import Rig, come_to, create, last_error, run, send_append, serving

LONG = [bytes(10_000)] * 400
PATIENCE_SECONDS = 5


class Held:
    """Long looks of a server wait until they may go on; which batches were looked at."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.seen: list[int] = []
        self.may_go_on = threading.Event()
        self._gateway = rig.server.gateway
        self._admit = rig.server.gateway.admit
        self._error = error
        rig.on_close.append(self.may_go_on.set)
        monkeypatch.setattr(rig.server.gateway, "admit", self.admit)

    def admit(self, header: BatchHeader, data: bytes, **options: Any) -> Batch | MainstemError:
        self.seen.append(header.sequence)
        if header.count > 1:
            self.may_go_on.wait(PATIENCE_SECONDS)
            if self._error is not None:
                raise self._error
        return self._admit(header, data, **options)


def test_others_are_served_while_a_large_batch_is_looked_at(tmp_path, monkeypatch):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            client, other = await (await rig.connect()).hello(), await (await rig.connect()).hello()
            stream = await create(client)
            held = Held(rig, monkeypatch)
            await send_append(client, 5, [make_batch(LONG, stream=stream, producer=7)])
            await send_append(client, 6, [make_batch(stream=stream, producer=7, sequence=1)])
            await come_to(lambda: held.seen == [0])
            await send_append(other, 2, [make_batch(stream=stream, producer=9)])
            assert (await other.next()).header.bases == [0]
            assert not held.may_go_on.is_set()
            assert not client.session.is_idle
            held.may_go_on.set()
            answers = [await client.next() for _ in range(2)]
            assert [(answer.id, answer.header.bases) for answer in answers] == [(5, [1]), (6, [401])]
            assert held.seen == [0, 0, 1], "the second append of the first client waited for its first"

    run(test)


def test_json_is_read_aside_and_small_batches_before_it_are_not(tmp_path, monkeypatch):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            client = await (await rig.connect()).hello()
            typed, plain = await create(client, "typed"), await create(client, "plain", "f" * 32)
            schema = Schema(pa.schema([("id", pa.int64())]))
            await client.send(Kind.CALL, 3, SetSchemaCall("typed", schema.serialized))
            assert (await client.next()).kind == Kind.ANSWER
            threads: list[str] = []
            admit = rig.server.gateway.admit

            def noting(header: BatchHeader, data: bytes, **options: Any) -> Batch | MainstemError:
                threads.append(threading.current_thread().name)
                return admit(header, data, **options)

            monkeypatch.setattr(rig.server.gateway, "admit", noting)
            await send_append(
                client,
                5,
                [
                    make_batch(stream=plain, producer=7),
                    make_batch([b'{"id": 1}'], stream=typed, producer=7),
                    make_batch([b'{"id": "x"}'], stream=typed, producer=7, sequence=1),
                    make_batch(stream=plain, producer=7, sequence=1),
                ],
            )
            answer = (await client.next()).header
            assert answer.bases == [0, 0, -1, 1]
            assert isinstance(error_from(answer.errors[2]), SchemaMismatch)
            here = threading.current_thread().name
            assert [name == here for name in threads] == [True, False, False, False], "what comes after it goes along"
            assert rig.server.counters()["batches_refused"] == 1

    run(test)


def test_what_a_client_left_behind_is_not_looked_at(tmp_path, monkeypatch):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            clients = [await (await rig.connect()).hello() for _ in range(3)]
            stream = await create(clients[0])
            held = Held(rig, monkeypatch)
            for number, client in enumerate(clients):
                batch = make_batch(LONG, stream=stream, producer=7 + 2 * number, sequence=0, epoch=number)
                await send_append(client, 5, [batch])
                # One after the other, so that it is known who is first in line.
                await come_to(partial(getattr, client.session.appends, "is_admitting"))
            await come_to(lambda: all(client.session.appends.is_admitting for client in clients) and bool(held.seen))
            for client in clients[:2]:
                connection = client.session.connection
                assert connection is not None
                connection.abort()
            await come_to(lambda: len(rig.server._sessions) == 1)
            held.may_go_on.set()
            assert (await clients[2].next()).header.bases == [0]
            assert len(held.seen) == 2, "the first had begun, the second had not"

    run(test)


def test_what_goes_wrong_aside_ends_the_connection(tmp_path, monkeypatch):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            client = await (await rig.connect()).hello()
            stream = await create(client)
            Held(rig, monkeypatch, RuntimeError("planted")).may_go_on.set()
            await send_append(client, 5, [make_batch(LONG, stream=stream, producer=7)])
            assert "RuntimeError: planted" in str(await last_error(client))

    run(test)


def test_an_append_has_a_limit_once_it_is_decompressed(tmp_path):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            client = await (await rig.connect()).hello()
            stream = await create(client)
            large = make_batch([bytes(PAYLOAD_RAW_BYTES_MAX // 2 - 1_000)] * 2, stream=stream, producer=7)
            bomb = make_batch([bytes(7 << 20)] * 2, stream=stream, producer=7, compression="zstd")
            assert bomb.header.stored_len < 100_000
            count = APPEND_RAW_BYTES_MAX // bomb.header.raw_len + 1
            await send_append(client, 5, [bomb] * count)
            answer = (await client.next()).header
            assert answer.bases == [-1] * count
            assert {error.code for error in answer.errors.values()} == {RecordTooLarge.code}
            assert str(APPEND_RAW_BYTES_MAX) in answer.errors[0].message
            assert rig.server.counters()["batches_refused"] == count
            await send_append(client, 6, [large])
            assert (await client.next()).header.bases == [0]

    run(test)
