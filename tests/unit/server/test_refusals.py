"""Everything that a client can ask for, made from the protocol itself, and everybody who must not have it.

A new call or message without a row in `permits` fails here, and so does one whose row is not asked.
"""

import asyncio
import contextlib
import types
import typing
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from mainstem.access.action import Action
from mainstem.access.token import mint
from mainstem.core.delivery import Delivery, Fingerprint
from mainstem.core.errors import Forbidden, MainstemError, ProtocolError, Unauthenticated
from mainstem.log.batcher import Submission
from mainstem.log.flush import AssignShards
from mainstem.log.log import Waiter
from mainstem.server import permits
from mainstem.server.session import Session
from mainstem.transport.counting import Count
from mainstem.transport.guarding import DeleteRuleCall, Quota, RevokeTokenCall, Rule, SetRuleCall
from mainstem.transport.port import Answer, Call, GetStreamCall, ListStreamsCall, MembershipCall
from mainstem.transport.sharing import (
    CommitCursorsCall,
    CommitTransactionCall,
    ListGroupsCall,
    Staging,
)
from mainstem.transport.wire import Append, Credit, Kind, Message, Share, Stage, Subscribe, error_from
from tests.formats.golden import numbered
from tests.unit.server.guarded import Guarded
from tests.unit.server.parts import Client, create, last_error, run, serving

CALLS = sorted(typing.get_args(Call), key=lambda kind: kind.__name__)
STREAM = "orders"


def sample(kind: type, **chosen: Any) -> Any:
    """A call of this kind, with something in every field that needs something."""
    given = {
        field.name: _value(field.name, field.type)
        for field in msgspec.structs.fields(kind)
        if (field.required or field.name in ("streams", "delivery")) and field.name not in chosen
    }
    return kind(**given, **chosen)


def _value(name: str, annotation: Any) -> Any:
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)[0]
    if name in ("name", "stream", "group"):
        return STREAM
    if name == "offsets":
        return ((1, 0, 0),)
    if name == "parts":
        return ((1, 1),)
    if name == "delivery":
        return Delivery(1, "loader", 0, Fingerprint(1, b""))
    if name == "streams":
        return (STREAM,)
    if name == "action":
        return "read"
    if name == "counts":
        return (Count(STREAM, 0, 1, 1),)
    samples = {
        str: "0" * 16,
        int: 1,
        bytes: bytes(32),
        Rule: Rule("allow", "eve", "read", STREAM),
        Quota: Quota("eve", "write_bytes", 10),
    }
    return samples[annotation]


async def ask(client: Client, call: Any) -> Answer | MainstemError:
    await client.send(Kind.CALL, 7, call)
    message = await client.next_but(Kind.PONG)
    return error_from(message.header) if message.kind == Kind.ERROR else message.header


def guarded(test: Callable[[Guarded], Awaitable[None]], tmp_path: Any) -> None:
    async def body() -> None:
        async with serving(tmp_path) as rig:
            await create(await (await rig.connect()).hello(), STREAM)
            await test(Guarded(rig))

    run(body)


def test_every_call_has_its_row():
    assert set(permits.CALLS) == set(CALLS)


def test_every_message_that_a_server_handles_has_its_row(tmp_path):
    async def body() -> None:
        async with serving(tmp_path) as rig:
            assert set(permits.MESSAGES) == set(Session(rig.server)._handlers)

    run(body)


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_a_call_is_refused_to_all_who_may_not(tmp_path, kind):
    async def test(server: Guarded) -> None:
        call = sample(kind)
        for token in ("", server.expired.secret, server.revoked.secret, mint().secret):
            assert isinstance(await server.refused(token), Unauthenticated)
        # Who does not greet at all.
        client = await server.rig.connect()
        await client.send(Kind.CALL, 1, call)
        assert isinstance(await last_error(client), ProtocolError)
        before = server.rig.server.guard.audit.refused
        other = await server.connect(server.other)
        assert isinstance(await ask(other, call), Forbidden)
        assert server.rig.server.guard.audit.refused == before + 1
        # Who may do everything else, but not one of the things that it takes.
        server.allow(Rule("allow", "other", "all"))
        for demand in permits.demands_of(call):
            if demand.stream:
                rule = Rule("deny", "other", demand.action, STREAM)
                server.allow(rule)
                assert isinstance(await ask(other, call), Forbidden)
                server.administration.handle(DeleteRuleCall(rule))
        # The control: who may, is not refused for that. A member may have to wait for its shards.
        with contextlib.suppress(TimeoutError) if isinstance(call, MembershipCall) else contextlib.nullcontext():
            answer = await asyncio.wait_for(ask(await server.connect(server.root), call), 2)
            assert not isinstance(answer, Forbidden | Unauthenticated)

    guarded(test, tmp_path)


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_a_call_on_an_open_connection_is_refused_once_its_token_is_of_no_use(tmp_path, kind):
    async def test(server: Guarded) -> None:
        token = server.token("second", Rule("allow", "second", "all"))
        client = await server.connect(token)
        server.administration.handle(RevokeTokenCall(token.id))
        await client.send(Kind.CALL, 7, sample(kind))
        assert isinstance(await last_error(client), Unauthenticated)

    guarded(test, tmp_path)


MESSAGES = sorted(permits.MESSAGES)


async def send(client: Client, kind: Kind) -> None:
    """A message of this kind, about the stream. Of a kind that nothing is said for here, nothing is known."""
    batch = numbered(1, 0, 77, 0, 3)
    header, payloads = {
        Kind.CALL: (sample(GetStreamCall), []),
        Kind.APPEND: (Append([batch.header]), [batch.payload]),
        Kind.STAGE: (Stage([batch.header], Staging(1, 0, 60.0)), [batch.payload]),
        Kind.SUBSCRIBE: (Subscribe(1, [0], [0], 1 << 20), []),
        Kind.CREDIT: (Credit(1 << 20), []),
        Kind.UNSUBSCRIBE: (None, []),
        Kind.SHARE: (Share(0.5), []),
    }[kind]
    await client.send(kind, 5, header, payloads)


async def is_forbidden(client: Client, kind: Kind) -> bool:
    """Whether a message of this kind is answered with that. Not of those that are not answered."""
    await send(client, kind)
    message = await client.next_but(Kind.PONG)
    assert message.id == 5
    if message.kind == Kind.ERROR:
        return isinstance(error_from(message.header), Forbidden)
    errors = getattr(message.header, "errors", {})
    return bool(errors) and isinstance(error_from(errors[0]), Forbidden)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.name)
def test_a_message_is_refused_to_all_who_may_not(tmp_path, kind):
    async def test(server: Guarded) -> None:
        # Who does not greet, and who is not known any more: neither is heard, whatever it says.
        stranger = await server.rig.connect()
        await send(stranger, kind)
        assert isinstance(await last_error(stranger), ProtocolError)
        token = server.token("second", Rule("allow", "second", "all"))
        second = await server.connect(token)
        server.administration.handle(RevokeTokenCall(token.id))
        await send(second, kind)
        assert isinstance(await last_error(second), Unauthenticated)
        other = await server.connect(server.other)
        demanded = Action.DESCRIBE if kind == Kind.CALL else permits.MESSAGES[kind]
        if demanded is None:
            # It has nothing that this could be about: nothing is said to it, and nothing happens.
            await send(other, kind)
            assert isinstance(await ask(other, sample(GetStreamCall)), Forbidden)
            return
        assert isinstance(demanded, Action)
        assert await is_forbidden(other, kind)
        # Who may everything else; the one that the table names is asked for, and no other.
        denied = Rule("deny", "other", demanded, STREAM)
        server.allow(Rule("allow", "other", "all"), denied)
        assert await is_forbidden(other, kind)
        server.administration.handle(DeleteRuleCall(denied))
        server.administration.handle(DeleteRuleCall(Rule("allow", "other", "all")))
        server.allow(Rule("allow", "other", demanded, STREAM))
        assert not await is_forbidden(other, kind)

    guarded(test, tmp_path)


def test_appends_are_refused_to_who_may_not_write(tmp_path):
    async def test(server: Guarded) -> None:
        client = await server.connect(server.other)
        batch = numbered(1, 0, 77, 0, 3)
        await client.send(Kind.APPEND, 5, Append([batch.header]), [batch.payload])
        answer = (await client.next()).header
        assert answer.bases == [-1]
        assert isinstance(error_from(answer.errors[0]), Forbidden)
        # Who may read may not write.
        server.allow(Rule("allow", "other", "read"))
        await client.send(Kind.APPEND, 5, Append([batch.header]), [batch.payload])
        assert (await client.next()).header.bases == [-1]
        server.allow(Rule("allow", "other", "write", STREAM))
        await client.send(Kind.APPEND, 5, Append([batch.header]), [batch.payload])
        assert (await client.next()).header.bases == [0]
        # And what is taken back is taken back at once.
        server.allow(Rule("deny", "other", "write", STREAM))
        batch = numbered(1, 0, 77, 1, 3)
        await client.send(Kind.APPEND, 5, Append([batch.header]), [batch.payload])
        assert (await client.next()).header.bases == [-1]

    guarded(test, tmp_path)


def test_of_several_batches_only_those_are_refused_that_must_be(tmp_path):
    async def test(server: Guarded) -> None:
        root = await server.connect(server.root)
        second = await create(root, "second", uuid="f" * 32)
        server.allow(Rule("allow", "other", "write", "second"))
        client = await server.connect(server.other)
        batches = [numbered(1, 0, 77, 0, 3), numbered(second, 0, 77, 0, 3), numbered(1, 0, 77, 1, 3)]
        await client.send(
            Kind.APPEND, 5, Append([batch.header for batch in batches]), [batch.payload for batch in batches]
        )
        answer = (await client.next()).header
        assert answer.bases == [-1, 0, -1]
        assert {index: error.code for index, error in answer.errors.items()} == {0: Forbidden.code, 2: Forbidden.code}

    guarded(test, tmp_path)


def test_the_name_of_a_writer_is_for_who_may_have_it(tmp_path):
    async def test(server: Guarded) -> None:
        server.allow(Rule("allow", "other", "write", STREAM))
        client = await server.connect(server.other)
        batch = numbered(1, 0, 77, 0, 3)

        async def stage(number: int, commit: CommitTransactionCall | None = None) -> Message:
            stage = Stage([batch.header], Staging(number, 0, 60.0, "billing", 1), 0, commit)
            await client.send(Kind.STAGE, 5, stage, [batch.payload])
            return await client.next()

        commit = CommitTransactionCall(2, 1, (), "billing", 1)
        assert isinstance(await ask(client, commit), Forbidden)
        assert isinstance(error_from((await stage(1)).header.errors[0]), Forbidden)
        assert isinstance(error_from((await stage(2, commit)).header), Forbidden)
        server.allow(Rule("allow", "other", "group", "billing"))
        assert (await stage(3)).header.bases == [0]

    guarded(test, tmp_path)


def test_parts_of_transactions_are_refused_to_who_may_not_write(tmp_path):
    async def test(server: Guarded) -> None:
        client = await server.connect(server.other)
        batch = numbered(1, 0, 77, 0, 3)

        async def stage(number: int, commit: CommitTransactionCall | None = None) -> Message:
            stage = Stage([batch.header], Staging(number, 0, 60.0), 0, commit)
            await client.send(Kind.STAGE, 5, stage, [batch.payload])
            return await client.next()

        message = await stage(1)
        assert isinstance(error_from(message.header.errors[0]), Forbidden)
        assert isinstance(error_from((await stage(2, CommitTransactionCall(2, 1))).header), Forbidden)
        server.allow(Rule("allow", "other", "write", STREAM))
        # Who may write may not move the cursor of a group.
        cursors = CommitCursorsCall("billing", 0, ((1, 0, 0),))
        assert isinstance(error_from((await stage(3, CommitTransactionCall(3, 1, (cursors,)))).header), Forbidden)
        assert (await stage(4)).header.bases == [0]
        # What is taken back before the commit is not committed.
        denied = Rule("deny", "other", "write", STREAM)
        server.allow(Rule("allow", "other", "write", "others"), denied)
        assert isinstance(await ask(client, CommitTransactionCall(4, 1)), Forbidden)
        server.administration.handle(DeleteRuleCall(denied))
        assert isinstance(await ask(client, CommitTransactionCall(4, 1)), Answer)

    guarded(test, tmp_path)


def test_a_list_of_groups_has_only_what_may_be_seen(tmp_path):
    async def test(server: Guarded) -> None:
        log = server.rig.server.log
        for group in ("billing", "reports"):
            waiter = Waiter()
            assigned = AssignShards(group, 1, ((1, 0, 7),), server.rig.clock.now_us())
            log.batcher.submit(Submission((assigned,), waiter.set))
            waiter.wait(log.batcher)
        server.allow(Rule("allow", "other", "group", "bill*"))
        answer = await ask(await server.connect(server.other), ListGroupsCall())
        assert isinstance(answer, Answer)
        assert [group.name for group in answer.groups] == ["billing"]

    guarded(test, tmp_path)


def test_nobody_writes_the_audit(tmp_path):
    async def test(server: Guarded) -> None:
        root = await server.connect(server.root)
        await ask(root, SetRuleCall(Rule("allow", "root", "write", "_*")))
        row = server.rig.server.log.ledger.stream_named("_audit")
        assert row is not None
        batch = numbered(row.id, 0, 77, 0, 3)
        await root.send(Kind.APPEND, 5, Append([batch.header]), [batch.payload])
        assert (await root.next()).header.errors[0].code == Forbidden.code

    guarded(test, tmp_path)


def test_subscriptions_are_refused_to_who_may_not_read(tmp_path):
    async def test(server: Guarded) -> None:
        server.allow(Rule("allow", "other", "write", STREAM))
        client = await server.connect(server.other)
        await client.send(Kind.SUBSCRIBE, 9, Subscribe(1, [0], None, 1 << 20))
        message = await client.next()
        assert (message.kind, message.id) == (Kind.ERROR, 9)
        assert isinstance(error_from(message.header), Forbidden)

    guarded(test, tmp_path)


def test_who_may_not_read_any_more_is_sent_nothing_more(tmp_path):
    async def test(server: Guarded) -> None:
        server.allow(Rule("allow", "other", "read", STREAM))
        client = await server.connect(server.other)
        await client.send(Kind.SUBSCRIBE, 9, Subscribe(1, [0], None, 1 << 20))
        await ask(client, sample(GetStreamCall))
        server.allow(Rule("deny", "other", "read", STREAM))
        server.rig.look()
        message = await client.next()
        assert (message.kind, message.id) == (Kind.ERROR, 9)
        assert isinstance(error_from(message.header), Forbidden)

    guarded(test, tmp_path)


@pytest.mark.parametrize("how", ["revoked", "over"])
def test_a_silent_reader_is_cut_off_within_a_second(tmp_path, how):
    async def test(server: Guarded) -> None:
        token = server.token("second", Rule("allow", "second", "read"), seconds=5)
        client = await server.connect(token)
        await client.send(Kind.SUBSCRIBE, 9, Subscribe(1, [0], None, 1 << 20))
        await ask(client, sample(GetStreamCall))
        server.rig.look()
        if how == "revoked":
            server.administration.handle(RevokeTokenCall(token.id))
        else:
            server.rig.clock.advance(5)
        server.rig.look()
        assert isinstance(await last_error(client), Unauthenticated)

    guarded(test, tmp_path)


def test_who_came_before_the_first_principal_has_to_come_again(tmp_path):
    async def body() -> None:
        async with serving(tmp_path) as rig:
            client = await (await rig.connect()).hello()
            await create(client, STREAM)
            Guarded(rig)
            await client.send(Kind.CALL, 1, ListStreamsCall())
            assert isinstance(await last_error(client), Unauthenticated)

    run(body)


def test_a_list_has_only_what_may_be_seen(tmp_path):
    async def test(server: Guarded) -> None:
        root = await server.connect(server.root)
        for number in range(3):
            await create(root, f"seen.{number}", uuid=f"{number:032x}")
        server.allow(Rule("allow", "other", "read", "seen.*"), Rule("deny", "other", "describe", "seen.1"))
        client = await server.connect(server.other)
        answer = await ask(client, ListStreamsCall())
        assert isinstance(answer, Answer)
        assert [row.name for row in answer.streams] == ["seen.0", "seen.2"]

    guarded(test, tmp_path)


def test_a_missing_stream_is_no_secret_that_a_refusal_tells(tmp_path):
    async def test(server: Guarded) -> None:
        client = await server.connect(server.other)
        there, missing = [await ask(client, sample(GetStreamCall, name=name)) for name in (STREAM, "missing")]
        assert str(there).replace(STREAM, "x") == str(missing).replace("missing", "x")

    guarded(test, tmp_path)


def test_a_stream_that_comes_into_being_by_itself_needs_the_right_to_create(tmp_path):
    async def body() -> None:
        async with serving(tmp_path, auto_create=True) as rig:
            server = Guarded(rig)
            server.allow(Rule("allow", "other", "write", "new"))
            client = await server.connect(server.other)
            call = sample(GetStreamCall, name="new", auto_create=True)
            assert isinstance(await ask(client, call), Forbidden)
            server.allow(Rule("allow", "other", "create", "new"))
            assert isinstance(await ask(client, call), Answer)

    run(body)


def test_actions_of_the_table_are_actions():
    for kind in CALLS:
        assert {demand.action for demand in permits.demands_of(sample(kind))} <= set(Action)
    assert isinstance(Call, types.UnionType)
