"""The guard as other listeners meet it, and the share that clients of the native protocol are told."""

import threading

import pytest

from mainstem.access.administration import AccessAdministration
from mainstem.access.principal import Principal
from mainstem.access.token import mint
from mainstem.core.errors import Forbidden, MainstemError, QuotaExceeded, ServerStopping, Unauthenticated
from mainstem.core.sampling import is_kept
from mainstem.log.access_rows import AccessRows
from mainstem.server.door import Door, Visitor
from mainstem.server.gate import Gate
from mainstem.transport.guarding import CreateTokenCall, DeleteRuleCall, Quota, RevokeTokenCall, Rule, SetQuotaCall
from mainstem.transport.port import Answer, Call, DeleteStreamCall, GetStreamCall, ListStreamsCall
from mainstem.transport.wire import VERSION, Kind, Share, Subscribe, error_from
from tests.formats.golden import numbered
from tests.unit.server.parts import SECONDS_MAX, Client, Rig, come_to, create, last_error, run, send_append, serving

ALICE = (Rule("allow", "alice", "read", "orders"), Rule("allow", "alice", "write", "orders"))


def administration(rig: Rig) -> AccessAdministration:
    return AccessAdministration(AccessRows(rig.server.log), rig.clock)


def token(rig: Rig, principal: str, *rules: Rule) -> str:
    made = mint()
    administration(rig).handle(CreateTokenCall(made.id, made.digest, principal, (), 0, rules))
    return made.secret


def test_a_visitor_is_who_its_token_says_and_may_what_the_rules_say(tmp_path):
    async def body() -> None:
        async with serving(tmp_path) as rig:
            door: Door = rig.server.guard
            assert not rig.server.guard.is_guarded
            stranger: Visitor = door.admit("", "", "127.0.0.1")
            stranger.check("delete", "orders")
            with pytest.raises(Unauthenticated):
                door.admit("", "", "192.0.2.1")
            token(rig, "root", Rule("allow", "root", "all"))
            alice = token(rig, "alice", *ALICE)
            assert door.is_guarded
            # Who came before has to say by now who it is.
            with pytest.raises(Unauthenticated):
                stranger.check("read", "orders")
            visitor = door.admit(alice, "", "192.0.2.1")
            assert visitor.name == "alice"
            visitor.check("read", "orders")
            visitor.check_any("describe")
            visitor.check_call(GetStreamCall("orders"))
            for refused in (
                lambda: visitor.check("read", "others"),
                lambda: visitor.check_any("group"),
                lambda: visitor.check_call(DeleteStreamCall("orders")),
            ):
                with pytest.raises(Forbidden):
                    refused()
            assert rig.server.guard.audit.refused >= 3
            administration(rig).handle(RevokeTokenCall(alice.split("_")[1]))
            with pytest.raises(Unauthenticated):
                visitor.check("read", "orders")

    run(body)


def test_a_visitor_sees_what_it_may_of_an_answer(tmp_path):
    async def body() -> None:
        async with serving(tmp_path) as rig:
            client = await (await rig.connect()).hello()
            await create(client, "orders")
            await create(client, "others", uuid="f" * 32)
            token(rig, "root", Rule("allow", "root", "all"))
            visitor = rig.server.guard.admit(token(rig, "alice", *ALICE), "", "192.0.2.1")
            streams = rig.server.log.ledger.list_streams()
            assert {row.name for row in streams} >= {"orders", "others"}
            call = ListStreamsCall()
            answer = rig.server.carry_out(call)
            assert isinstance(answer, Answer)
            assert [row.name for row in visitor.seen(call, answer).streams] == ["orders"]

    run(body)


def test_a_visitor_has_a_quota(tmp_path):
    async def body() -> None:
        async with serving(tmp_path) as rig:
            token(rig, "root", Rule("allow", "root", "all"))
            visitor = rig.server.guard.admit(token(rig, "alice", *ALICE), "", "192.0.2.1")
            administration(rig).handle(SetQuotaCall(Quota("alice", "write_bytes", 1_000)))
            administration(rig).handle(SetQuotaCall(Quota("alice", "read_requests", 1, "block")))
            visitor.begin("write")
            assert visitor.charge("write", 2_000) == 0.0
            assert visitor.charge("write", 1_000) == 1.0
            with pytest.raises(QuotaExceeded) as found:
                visitor.begin("write")
            assert found.value.retry_after == 1.0
            rig.clock.advance(1)
            visitor.begin("write")
            for _ in range(2):
                visitor.begin("read")
            with pytest.raises(QuotaExceeded):
                visitor.begin("read")

    run(body)


def test_a_right_that_is_taken_back_between_two_looks_ends_the_subscription(tmp_path, monkeypatch):
    """The change comes right after somebody asked whether there was one."""

    async def body() -> None:
        async with serving(tmp_path) as rig:
            stream = await create(await (await rig.connect()).hello(), "orders")
            token(rig, "root", Rule("allow", "root", "all"))
            alice = token(rig, "alice", *ALICE)
            client = await (await rig.connect()).hello(token=alice, version=VERSION)
            await client.send(Kind.SUBSCRIBE, 9, Subscribe(stream, [0], None, 1 << 20))
            await client.send(Kind.PING, 0)
            while (await client.next()).kind != Kind.PONG:
                pass
            is_stale = vars(Gate)["is_stale"].fget
            racing = [ALICE[0]]

            def racing_is_stale(gate: Gate) -> bool:
                found = bool(is_stale(gate))
                if racing and gate.principal is not None and gate.principal.name == "alice":
                    administration(rig).handle(DeleteRuleCall(racing.pop()))
                return found

            monkeypatch.setattr(Gate, "is_stale", property(racing_is_stale))
            for _ in range(3):
                rig.look()
            message = await client.next_but(Kind.PONG)
            assert (message.kind, message.id) == (Kind.ERROR, 9)
            assert isinstance(error_from(message.header), Forbidden)

    run(body)


def test_who_makes_the_first_token_has_its_answer(tmp_path, monkeypatch):
    """It is in force before the answer is on its way, and whoever is nobody from then on is told to go."""

    async def body() -> None:
        async with serving(tmp_path) as rig:
            stream = await create(await (await rig.connect()).hello(), "orders")
            client = await (await rig.connect()).hello(version=VERSION)
            await client.send(Kind.SUBSCRIBE, 9, Subscribe(stream, [0], None, 1 << 20))
            held = threading.Event()
            rig.on_close.append(held.set)

            def seen(principal: Principal, address: str, call: Call, answer: Answer) -> Answer:
                held.wait(SECONDS_MAX)
                return answer

            monkeypatch.setattr(rig.server.guard, "seen", seen)
            made, rule = mint(), Rule("allow", "root", "all")
            await client.send(Kind.CALL, 7, CreateTokenCall(made.id, made.digest, "root", (), 0, (rule,)))
            await come_to(lambda: rig.server.guard.authority.is_guarded)
            rig.look()
            # What it had is over, and it gets nothing more.
            assert await error_of(client, 9, Unauthenticated)
            await client.send(Kind.CALL, 8, DeleteStreamCall("orders"))
            assert await error_of(client, 8, Unauthenticated)
            held.set()
            message = await client.next()
            assert (message.kind, message.id) == (Kind.ANSWER, 7)
            rig.look()
            assert isinstance(await last_error(client), Unauthenticated)

    run(body)


async def error_of(client: Client, id_: int, kind: type[MainstemError]) -> bool:
    """Whether the next message is an error of this kind, about a request."""
    message = await client.next_but(Kind.PONG)
    return (message.kind, message.id) == (Kind.ERROR, id_) and isinstance(error_from(message.header), kind)


def test_an_append_waits_for_its_turn_and_holds_nothing_when_its_client_is_gone(tmp_path):
    async def body() -> None:
        async with serving(tmp_path) as rig:
            stream = await create(await (await rig.connect()).hello(), "orders")
            token(rig, "root", Rule("allow", "root", "all"))
            alice = token(rig, "alice", *ALICE)
            size = len(numbered(stream, 0, 77, 0, 3).payload)
            # A batch is paid in twenty seconds, and there is nothing at once but for two.
            administration(rig).handle(SetQuotaCall(Quota("alice", "write_bytes", size // 20)))
            quotas, principal = rig.server.guard.quotas, Principal("alice")

            async def send(producer: int) -> Client:
                client = await (await rig.connect()).hello(token=alice, version=VERSION)
                await send_append(client, 5, [numbered(stream, 0, producer, 0, 3)])
                return client

            assert (await (await send(77)).next_but(Kind.PONG)).header.bases == [0]
            waiting = await send(79)
            await come_to(lambda: quotas.held(principal, "memory_bytes") == size)
            # Its turn would be too late.
            refused = (await (await send(81)).next_but(Kind.PONG)).header.errors[0]
            assert isinstance(error_from(refused), QuotaExceeded)
            waiting.writer.transport.abort()
            await come_to(lambda: not quotas.held(principal, "memory_bytes"))
            # Who still waits when the server stops is told so.
            rig.clock.advance(25)
            waiting = await send(83)
            await come_to(lambda: quotas.held(principal, "memory_bytes") == size)
            rig.server.is_stopping = True
            waiting.session.say_goodbye()
            while (message := await waiting.next_but(Kind.PONG)).kind == Kind.GOODBYE:
                pass
            assert isinstance(error_from(message.header.errors[0]), ServerStopping)

    run(body)


def test_who_writes_too_much_is_told_which_share_to_keep(tmp_path):
    async def body() -> None:
        async with serving(tmp_path) as rig:
            stream = await create(await (await rig.connect()).hello())
            token(rig, "root", Rule("allow", "root", "all"))
            alice = token(rig, "alice", *ALICE)
            batch = numbered(stream, 0, 77, 0, 3)
            rate = 10 * len(batch.payload)
            administration(rig).handle(SetQuotaCall(Quota("alice", "write_bytes", rate // 2, "sample")))
            client = await (await rig.connect()).hello(token=alice, version=VERSION)
            shares, sent = [1.0], 0
            for number in range(300):
                rig.clock.advance(0.1)
                # Twice as much as it may, of which it keeps what it was told.
                if not is_kept(shares[-1], number):
                    continue
                await send_append(client, 5, [numbered(stream, 0, 77, sent, 3)])
                sent += 1
                while (message := await client.next_but(Kind.PONG)).kind == Kind.SHARE:
                    shares.append(message.header.share)
                    await client.send(Kind.SHARE, 0, Share(message.header.share))
                assert message.kind == Kind.APPENDED
            assert shares[-1] == pytest.approx(0.5, abs=0.2)
            assert sent == pytest.approx(160, abs=30)
            # Who writes nothing any more, and so hears nothing, is told that all of it is wanted again.
            await client.send(Kind.PING, 0)
            while (await client.next()).kind != Kind.PONG:
                pass
            rig.clock.advance(10)
            rig.look()
            while (message := await client.next()).kind != Kind.SHARE:
                pass
            assert message.header == Share(1.0)
            # Who speaks an older version is not told.
            older = await (await rig.connect()).hello(token=alice, version=VERSION - 1)
            for sequence in range(5):
                await send_append(older, 5, [numbered(stream, 0, 79, sequence, 3)])
                assert (await older.next_but(Kind.PONG)).kind == Kind.APPENDED
                rig.clock.advance(100)

    run(body)


def test_who_reads_too_much_is_told_what_is_left_out(tmp_path):
    async def body() -> None:
        # Nobody is called silent, however long the real seconds are in which so many of the clock pass.
        async with serving(tmp_path, idle_timeout=3_600.0) as rig:
            writer = await (await rig.connect()).hello()
            stream = await create(writer)
            batches = [numbered(stream, 0, 77, sequence, 3) for sequence in range(200)]
            token(rig, "root", Rule("allow", "root", "all"))
            root = await (await rig.connect()).hello(token=token(rig, "root"), version=VERSION)
            alice = token(rig, "alice", *ALICE)
            size = len(batches[0].payload)
            administration(rig).handle(SetQuotaCall(Quota("alice", "read_bytes", 5 * size, "sample")))
            client = await (await rig.connect()).hello(token=alice, version=VERSION)
            await client.send(Kind.SUBSCRIBE, 9, Subscribe(stream, [0], None, 1 << 20))
            end, kept, left_out = 0, 0, 0
            for batch in batches:
                rig.clock.advance(0.1)
                await send_append(root, 5, [batch])
                await root.next_but(Kind.PONG)
                message = await client.next_but(Kind.PONG)
                assert message.kind == Kind.BATCHES
                for (base, header), payload in zip(message.header.batches, message.payloads, strict=True):
                    assert base == end
                    end = base + (header.span or header.count)
                    if header.count:
                        kept += 1
                    else:
                        left_out += 1
                        assert (header.span, header.raw_len, payload) == (3, size, b"")
            assert end == 600
            # Half of it fits.
            assert kept == pytest.approx(100, abs=30)
            assert kept + left_out == 200

    run(body)
