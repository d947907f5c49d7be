"""Neighbouring versions of the protocol talk to each other: recorded bytes of version 1 against the present program."""

import socket
import threading
from collections import deque
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import mainstem
from mainstem.core import payload
from mainstem.core.batch import Batch
from mainstem.core.checksum import crc32c
from mainstem.core.errors import ProtocolError, StaleGeneration
from mainstem.core.schema import Schema
from mainstem.log.batcher import Submission
from mainstem.log.flush import AlterStream, Appended, CreateStream, Done, ReplaceEntries, Replacement, SetSchema
from mainstem.log.ledger.rules.replacement import fingerprint
from mainstem.log.log import Waiter
from mainstem.testing.server import ServerProcess
from mainstem.transport.guarding import ListAccessCall
from mainstem.transport.port import (
    AlterStreamCall,
    Call,
    CoolCall,
    CreateStreamCall,
    EraseKeyCall,
    GetStreamCall,
    MomentCall,
    PlanColdCall,
    Query,
    RunsCall,
    SchemaCall,
    SchemasCall,
    SetSchemaCall,
    StreamInfo,
    TrimStreamCall,
)
from mainstem.transport.sharing import AbortDeliveryCall, CommitPartsCall, HoldGroupCall, Staging
from mainstem.transport.wire import (
    VERSION,
    VERSION_MIN,
    Hello,
    Kind,
    Subscribe,
    WireError,
    error_from,
    pack,
    version_needed,
    wire_error,
)
from tests.formats import conversation, golden, version_1
from tests.formats.conversation import Said
from tests.unit.server.parts import run, serving

SECONDS_MAX = 20
# Versions of which there is a recorded conversation; what both say in it is in the messages of version 1.
RECORDED = (1, 2, 3, 4, 5)


# ------------------------------------------------------------------------------- a client of version 1, this server


class Wire:
    """A connection to a server, by messages."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=SECONDS_MAX)
        self._data = bytearray()
        self._arrived: deque[Said] = deque()

    def send(self, data):
        self._socket.sendall(data)

    def next(self):
        while not self._arrived:
            piece = self._socket.recv(1 << 16)
            if not piece:
                raise ConnectionError
            self._data += piece
            self._arrived += [Said(False, message) for message in conversation.cut(self._data)]
        return self._arrived.popleft()

    def close(self):
        self._socket.close()


class Heard:
    """What a client of version 1 understands of a server's messages, in a form in which two servers can be compared."""

    def __init__(self):
        # Of requests, by id: the one answer. Of subscriptions, by id: batches with payloads, losses, errors, the end.
        self.answers: dict[int, Any] = {}
        self.pushed: dict[int, list[Any]] = {}
        self.goodbye = None

    def take(self, said):
        header = version_1.header(said.kind, said.header)
        if said.kind == version_1.BATCHES:
            at = 0
            for base, batch in header.batches:
                payload = said.rest[at : at + batch.stored_len]
                at += batch.stored_len
                self.pushed.setdefault(said.id, []).append((batch.shard, base, batch, payload))
        elif said.kind == version_1.END or (said.kind == version_1.ERROR and said.id in self.pushed):
            self.pushed.setdefault(said.id, []).append((-1, said.kind, header))
        elif said.kind == version_1.GOODBYE:
            self.goodbye = header
        else:
            self.answers[said.id] = (said.kind, _comparable(header))

    def sorted_pushes(self):
        """Shards take turns as it happens: within each the order counts."""
        return {id_: sorted(items, key=lambda item: item[:2]) for id_, items in self.pushed.items()}


def _comparable(header):
    """Without what another run of the same program would say otherwise."""
    match header:
        case version_1.Welcome():
            return msgspec.structs.replace(header, server="")
        case version_1.Answer(counters=counters) if counters:
            # Counters may be added, never taken away.
            return set(counters)
        case version_1.Answer():
            # When it was created, and how many of its bytes are counted, are the server's own business.
            return [msgspec.structs.replace(stream, created_us=0, bytes=0) for stream in header.streams], header.offsets
        case _:
            return header


@pytest.mark.slow("starts a server process")
@pytest.mark.parametrize("version", RECORDED)
def test_a_client_of_an_earlier_version_is_answered_as_before(tmp_path, version):
    said, _ = conversation.load(version)
    before, now = Heard(), Heard()
    for id_ in (message.id for message in said if message.by_client and message.kind == version_1.SUBSCRIBE):
        before.pushed[id_], now.pushed[id_] = [], []
    for message in said:
        if not message.by_client:
            before.take(message)
    folder = golden.unpack(1, tmp_path / "data")
    with ServerProcess(folder) as server:
        wire = Wire(server.address)
        for message in said:
            if not message.by_client:
                continue
            if message.kind == version_1.UNSUBSCRIBE:
                # All of its credit is given by now.
                hear_until(wire, now, lambda id_=message.id: len(now.pushed[id_]) >= len(before.pushed[id_]))
            wire.send(message.data)
            if message.id in before.answers:
                hear_until(wire, now, lambda id_=message.id: id_ in now.answers)
        wire.send(b"".join(pack(Kind.PING, 0)))
        assert wire.next().kind == version_1.PONG
        assert server.stop() == 0
        hear_until(wire, now, lambda: now.goodbye is not None)
        wire.close()
    assert now.goodbye == before.goodbye
    assert now.sorted_pushes() == before.sorted_pushes()
    assert now.answers.keys() == before.answers.keys()
    for id_, (kind, meaning) in before.answers.items():
        found_kind, found = now.answers[id_]
        assert found_kind == kind
        if isinstance(meaning, set):
            assert found >= meaning
        else:
            assert found == meaning


def hear_until(wire, heard, is_enough):
    while not is_enough():
        heard.take(wire.next())


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        ((1, 1), 1),
        ((1, 2), 2),
        ((2, 2), 2),
        ((1, 3), 3),
        ((1, 9), 6),
        ((4, 5), 5),
        ((3, 4), 4),
        ((7, 8), None),
        ((0, 0), None),
    ],
)
def test_the_highest_version_that_both_speak_is_chosen(tmp_path, versions, chosen):
    async def test():
        async with serving(tmp_path) as rig:
            client = await rig.connect()
            await client.send(Kind.HELLO, 1, Hello(versions[0], versions[1], "test"))
            answer = await client.next()
            if chosen is not None:
                assert (answer.kind, answer.header.version) == (Kind.WELCOME, chosen)
                return
            assert (answer.kind, answer.id, answer.header.code) == (Kind.ERROR, 0, ProtocolError.code)
            assert (
                f"versions {versions[0]} to {versions[1]}, this server {VERSION_MIN} to {VERSION}"
                in answer.header.message
            )

    run(test)


# ------------------------------------------------------------------------------- this client, a server of version 1


class RecordedServer:
    """Says what a server of version 1 said, each time this client asks what the client of then did. One connection."""

    def __init__(self, said):
        self._said = said
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"mainstem://127.0.0.1:{self._listener.getsockname()[1]}"
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._listener.close()
        self._thread.join(SECONDS_MAX)

    def _serve(self):
        connection, _ = self._listener.accept()
        with connection:
            self._listener.close()
            waiting = self._requests(connection)
            # The ids of now for those of then.
            ids = {0: 0}
            for message in self._said:
                if not message.by_client:
                    if message.kind == version_1.GOODBYE:
                        break
                    connection.sendall(message.with_id(ids[message.id]))
                elif message.kind != version_1.CREDIT:
                    asked = next(waiting)
                    if asked.kind != message.kind:
                        self.wrong.append(f"{Kind(asked.kind).name} came, {Kind(message.kind).name} did then")
                        return
                    ids[message.id] = asked.id
            # Until the client has enough.
            for asked in waiting:
                self.wrong.append(f"{Kind(asked.kind).name} came, and nothing did then")

    def _requests(self, connection):
        """What the client asks. When it gives credit is a matter of its pace."""
        data = bytearray()
        while True:
            try:
                piece = connection.recv(1 << 16)
            except OSError:
                return
            if not piece:
                return
            data += piece
            for message in conversation.cut(data):
                if message[4] == version_1.PING:
                    connection.sendall(b"".join(pack(Kind.PONG, 0)))
                elif message[4] != version_1.CREDIT:
                    yield Said(True, message)


@pytest.mark.parametrize("version", RECORDED)
def test_this_client_gets_from_a_server_of_an_earlier_version_what_the_client_of_then_got(version):
    said, results = conversation.load(version)
    with RecordedServer(said) as server:
        hub = mainstem.connect(server.url)
        found = conversation.converse(hub)
        hub.close()
    assert server.wrong == []
    for got, must in zip(found, results, strict=True):
        assert msgspec.to_builtins(got) == must


NEW_CALLS = [
    TrimStreamCall("talk", before_us=1),
    EraseKeyCall("talk", b"key"),
    CreateStreamCall("talk", cleanup="compact"),
    CreateStreamCall("talk", retention_bytes=1 << 20),
    CreateStreamCall("talk", tombstone_us=1),
    AlterStreamCall("talk", cleanup="compact"),
    AlterStreamCall("talk", retention_us=1, retention_bytes=1 << 20),
    AlterStreamCall("talk", tombstone_us=1),
    CreateStreamCall("talk", schema=b"schema"),
    AlterStreamCall("talk", shards=2),
    SetSchemaCall("talk", b"schema"),
    SchemasCall("talk"),
    SchemaCall(1),
    MomentCall("talk", 1),
    RunsCall("talk", 0, 0, 1),
    PlanColdCall("talk", 1),
    CoolCall("talk"),
    CommitPartsCall(1, ((2, 1),)),
    AbortDeliveryCall("talk", "job", 1),
    HoldGroupCall("talk", 1),
    ListAccessCall("token"),
]


@pytest.mark.parametrize("call", NEW_CALLS)
def test_what_a_server_of_version_1_would_misunderstand_is_refused_here(call):
    said, _ = conversation.load(1)
    greeting = said[:2]
    with RecordedServer(greeting) as server:
        hub = mainstem.connect(server.url)
        with pytest.raises(
            ProtocolError, match=r"speaks protocol version 1, this client 1 to 6; this [\w ]+ needs version [23456]"
        ):
            hub._port.call(call)
        hub.close()
    # It was not even sent.
    assert server.wrong == []


def test_an_order_that_a_server_of_version_1_would_pass_over_is_refused_here():
    said, _ = conversation.load(1)
    # Greetings, and what the client asks of the stream.
    with RecordedServer(said[:2]) as server:
        hub = mainstem.connect(server.url)
        stream = StreamInfo(1, "0" * 32, "talk", 2, "crc32", 0, 0, 0, (0, 0), (0, 0), 0, 1)
        for window_us in (0, 60_000_000):
            subscription = hub._port.subscribe(stream, (0, 0), None, 1 << 20, None, window_us)
            with pytest.raises(ProtocolError, match="this consumer needs version 4"):
                subscription.next(SECONDS_MAX)
        hub.close()
    assert server.wrong == []


def test_a_server_of_version_1_is_not_asked_for_the_whole():
    said, _ = conversation.load(1)
    with RecordedServer(said[:2]) as server:
        hub = mainstem.connect(server.url)
        stream = StreamInfo(1, "0" * 32, "talk", 2, "crc32", 0, 0, 0, (0, 0), (0, 0), 0, 1)
        subscription = hub._port.subscribe(stream, (0, 0), None, 1 << 20, Query(whole=True))
        with pytest.raises(ProtocolError, match="this consumer needs version 6"):
            subscription.next(SECONDS_MAX)
        hub.close()
    assert server.wrong == []


def test_a_call_is_not_sent_again_to_an_older_server_that_has_come_into_the_place_of_a_newer_one():
    """Somebody went back to the version before, while a call was under way."""
    said, _ = conversation.load(1)
    welcome = said[1]
    assert welcome.header[:2] == bytes((0x98, 1))
    newer = welcome.data.replace(welcome.header, bytes((0x98, 2)) + welcome.header[2:])
    listener = socket.create_server(("127.0.0.1", 0))
    kinds: list[list[int]] = []

    def serve():
        for greeting, messages in ((newer, 2), (welcome.data, 1)):
            connection, _ = listener.accept()
            data = bytearray()
            heard: list[int] = []
            kinds.append(heard)
            connection.sendall(greeting)
            while len(heard) < messages:
                data += connection.recv(1 << 16)
                heard += [message[4] for message in conversation.cut(data)]
            if messages == 2:
                connection.close()
        with connection:
            while piece := connection.recv(1 << 16):
                data += piece
                heard += [message[4] for message in conversation.cut(data)]

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        hub = mainstem.connect(f"mainstem://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(ProtocolError, match="speaks protocol version 1"):
            hub._port.call(TrimStreamCall("talk", before_us=1))
        hub.close()
        thread.join(SECONDS_MAX)
    assert kinds == [[version_1.HELLO, version_1.CALL], [version_1.HELLO]]


def test_what_version_1_knows_is_asked_of_it():
    calls: list[Call] = [
        CreateStreamCall("talk", 2, "crc32", 5, True, "0" * 32),
        AlterStreamCall("talk", 5),
        GetStreamCall("talk"),
    ]
    assert [version_needed(call) for call in calls] == [1, 1, 1]


# What was added, with the version that knows it and a value that is not the default.
CREATE_FIELDS: dict[str, tuple[int, Any]] = {
    "retention_bytes": (2, 7),
    "cleanup": (2, "compact"),
    "tombstone_us": (2, 7),
    "schema": (3, b"schema"),
    "key": (3, ("id",)),
    "index": (3, ("id",)),
    "compatibility": (3, "full"),
}
ALTER_FIELDS: dict[str, tuple[int, Any]] = {
    "retention_bytes": (2, 7),
    "cleanup": (2, "compact"),
    "tombstone_us": (2, 7),
    "shards": (3, 2),
}


def test_every_field_that_was_added_to_a_call_needs_the_version_that_knows_it():
    """An older server passes over them."""
    first = {"name", "shards", "hash", "retention_us", "exist_ok", "uuid"}
    assert set(CREATE_FIELDS) == set(CreateStreamCall.__struct_fields__) - first
    assert set(ALTER_FIELDS) == set(AlterStreamCall.__struct_fields__) - {"name", "retention_us"}
    for name, (version, value) in CREATE_FIELDS.items():
        assert version_needed(CreateStreamCall("talk", **{name: value})) == version
    for name, (version, value) in ALTER_FIELDS.items():
        assert version_needed(AlterStreamCall("talk", **{name: value})) == version


# --------------------------------------------------------------------------------------- batches that have a span


def stored_anew(log, stream):
    """Append three batches, then take away all records of the middle one."""
    for sequence in range(3):
        outcome = golden.append(log, golden.numbered(stream, 0, 77, sequence, 4))
        assert outcome == Appended(4 * sequence)
    entries = log.ledger.entries_from(stream, 0, 4, 1)
    command = ReplaceEntries(stream, 0, 4, 8, 1, fingerprint(entries), ((4, 0),))
    waiter = Waiter()
    log.batcher.submit(Submission((Replacement(command, ()),), waiter.set))
    assert waiter.wait(log.batcher) == [Done(stream, 1)]
    log.hot.forget((stream, 0), 8)


@pytest.mark.parametrize("version", [1, 2])
def test_a_client_that_cannot_know_about_a_gap_gets_an_error_in_its_place(tmp_path, version):
    async def test():
        async with serving(tmp_path) as rig:
            log = rig.server.log
            client = await rig.connect()
            await client.send(Kind.HELLO, 1, Hello(1, version, "test"))
            assert (await client.next()).header.version == version
            await client.send(Kind.CALL, 2, CreateStreamCall("gaps", uuid="0" * 32))
            stream = (await client.next()).header.streams[0].id
            stored_anew(log, stream)
            await client.send(Kind.SUBSCRIBE, 3, Subscribe(stream, [0], [12], 1 << 20))
            bases: list[int] = []
            while (message := await client.next()).kind == Kind.BATCHES:
                bases += [base for base, _ in message.header.batches]
            if version == 2:
                assert (bases, message.kind) == ([0, 4, 8], Kind.END)
                return
            assert (bases, message.kind, message.id) == ([0], Kind.ERROR, 3)
            assert message.header.code == ProtocolError.code
            assert "shard 0: of offsets 4 to 7 some records" in message.header.message
            assert message.header.message.endswith("upgrade the client")
            # Nothing follows, and the connection is of use.
            await client.send(Kind.CALL, 4, GetStreamCall("gaps"))
            assert (await client.next()).kind == Kind.ANSWER

    run(test)


# ------------------------------------------------------------------------------------- batches that have a schema


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_client_that_knows_no_schemas_gets_an_error_in_the_place_of_rows(tmp_path, version):
    schema = Schema(pa.schema([("id", pa.int64())]))

    async def test():
        async with serving(tmp_path) as rig:
            log = rig.server.log
            stream = log.execute(CreateStream("0" * 32, "rows", 1, "crc32", 10**12, 0)).stream
            assert golden.append(log, golden.numbered(stream, 0, 77, 0, 4)) == Appended(0)
            log.execute(SetSchema(stream, schema.serialized, schema.fingerprint, 1, 0))
            rows = pa.RecordBatch.from_arrays([pa.array([1, 2, 3])], schema=schema.arrow)
            encoded = payload.encode(rows, None, schema)
            header = msgspec.structs.replace(
                golden.numbered(stream, 0, 77, 1, 3).header,
                schema_id=1,
                raw_len=encoded.raw_len,
                stored_len=len(encoded.payload),
                payload_crc=crc32c(encoded.payload),
            )
            assert golden.append(log, Batch(header, encoded.payload)) == Appended(4)
            client = await rig.connect()
            await client.send(Kind.HELLO, 1, Hello(1, version, "test"))
            assert (await client.next()).header.version == version
            await client.send(Kind.SUBSCRIBE, 3, Subscribe(stream, [0], [7], 1 << 20))
            bases: list[int] = []
            while (message := await client.next()).kind == Kind.BATCHES:
                bases += [base for base, _ in message.header.batches]
            if version == 3:
                assert (bases, message.kind) == ([0, 4], Kind.END)
                return
            assert (bases, message.kind, message.id) == ([0], Kind.ERROR, 3)
            assert message.header.code == ProtocolError.code
            assert "shard 0: offsets 4 to 6 hold rows of a schema" in message.header.message
            assert message.header.message.endswith("upgrade the client")

    run(test)


# ------------------------------------------------------------------------------------------------------ more shards


@pytest.mark.parametrize("version", [2, 3])
def test_a_client_that_expects_no_new_shards_is_told_to_open_anew(tmp_path, version):
    async def test():
        async with serving(tmp_path) as rig:
            log = rig.server.log
            stream = log.execute(CreateStream("0" * 32, "wider", 1, "crc32", 10**12, 0)).stream
            client = await rig.connect()
            await client.send(Kind.HELLO, 1, Hello(1, version, "test"))
            assert (await client.next()).header.version == version
            await client.send(Kind.SUBSCRIBE, 3, Subscribe(stream, [0], None, 1 << 20))
            await client.send(Kind.CALL, 4, GetStreamCall("wider"))
            assert (await client.next()).kind == Kind.ANSWER
            log.execute(AlterStream(stream, shards=2))
            for shard in (0, 1):
                batch = golden.numbered(stream, shard, 77, 0, 4)
                header = msgspec.structs.replace(batch.header, generation=1)
                assert golden.append(log, Batch(header, batch.payload)) == Appended(0)
            got: list[tuple[int, int]] = []
            while len(got) < 2 and (message := await client.next()).kind == Kind.BATCHES:
                got += [(header.shard, base) for base, header in message.header.batches]
            if version == 3:
                assert got == [(0, 0), (1, 0)]
                return
            # What it would pass over is not passed over by us.
            assert (got, message.kind, message.id) == ([(0, 0)], Kind.ERROR, 3)
            assert message.header.code == StaleGeneration.code
            assert "open the consumer again" in message.header.message
            await client.send(Kind.SUBSCRIBE, 4, Subscribe(stream, [4], None, 1 << 20))
            assert "2 shards; give one offset for each" in (await client.next()).header.message
            await client.send(Kind.SUBSCRIBE, 5, Subscribe(stream, [4, 0], None, 1 << 20))
            assert [header.shard for _, header in (await client.next()).header.batches] == [1]

    run(test)


def test_who_is_refused_for_its_generation_is_told_the_one_of_now():
    error = StaleGeneration("changed", generation=3, shards=8)
    sent = error_from(wire_error(error))
    assert isinstance(sent, StaleGeneration)
    assert (sent.generation, sent.shards, str(sent)) == (3, 8, "changed")
    # A server of before says neither.
    assert error_from(WireError(StaleGeneration.code, "changed")).shards == 0  # type: ignore[attr-defined]


def test_parts_of_transactions_from_before_deliveries_had_numbers():
    """As clients of versions 4 and 5 send them: five fields."""
    sent = bytes.fromhex("95 0b 00 cb 40 4e 00 00 00 00 00 00 a0 00")
    assert msgspec.msgpack.decode(sent, type=Staging) == Staging(11, 0, 60.0)
