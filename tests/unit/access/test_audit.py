"""What the audit says, and how much of it."""

import json

from mainstem.access.acts import details_of, is_act, name_of
from mainstem.access.audit import ANONYMOUS_REFUSALS_MAX, PRINCIPALS_MAX, REFUSALS_MAX, RETENTION_BYTES, Audit
from mainstem.access.principal import ANONYMOUS, Principal
from mainstem.access.token import mint
from mainstem.hub.embedded import LogPort
from mainstem.testing.clock import SimulatedClock
from mainstem.testing.disk import BudgetDisk
from mainstem.transport.guarding import CreateTokenCall, ListAccessCall, Rule, Scope
from mainstem.transport.port import (
    Answer,
    CreateStreamCall,
    DeleteStreamCall,
    EraseKeyCall,
    GetStreamCall,
    ListStreamsCall,
)

EVE = Principal("eve")


def test_the_same_refusal_is_one_record_with_its_count():
    clock = SimulatedClock()
    audit = Audit(clock)
    for _ in range(1_000):
        audit.refuse(EVE, "10.0.0.1:5", "read", "orders", "no rule allows it")
        clock.advance(0.0005)
    (record,) = audit.take()
    found = json.loads(record.value)
    assert record.key == b"eve"
    assert (found["count"], found["stream"], found["first"] < found["last"]) == (1_000, "orders", True)
    assert audit.take() == []
    assert audit.refused == 1_000


def test_a_flood_of_different_refusals_is_bounded_and_none_is_forgotten():
    audit = Audit(SimulatedClock())
    for number in range(10_000):
        audit.refuse(EVE, "", "read", f"stream-{number}", "no rule allows it")
    records = [json.loads(record.value) for record in audit.take()]
    assert len(records) == REFUSALS_MAX + 1
    assert sum(record["count"] for record in records) == 10_000


def test_nobody_hides_behind_the_refusals_of_others():
    audit = Audit(SimulatedClock())
    for number in range(1_000):
        audit.refuse(ANONYMOUS, "10.0.0.2:5", "connect", "", f"junk {number}")
        audit.refuse(EVE, "10.0.0.1:5", "read", f"stream-{number}", "no rule allows it")
    audit.refuse(Principal("mallory"), "10.0.0.3:5", "delete", "payroll", "no rule allows it")
    records = [json.loads(record.value) for record in audit.take()]
    assert [record["stream"] for record in records if record["principal"] == "mallory"] == ["payroll"]
    of_nobody = [record for record in records if not record["principal"]]
    assert len(of_nobody) == ANONYMOUS_REFUSALS_MAX + 1
    assert sum(record["count"] for record in of_nobody) == 1_000
    # What anonymous ones add each second, and what there is room for: days.
    assert sum(len(json.dumps(record)) for record in of_nobody) * 86_400 < RETENTION_BYTES


def test_very_many_principals_are_bounded_and_who_is_not_known_has_room():
    audit = Audit(SimulatedClock())
    for number in range(1_000):
        audit.refuse(Principal(f"p{number}"), "", "read", "orders", "no rule allows it")
    audit.refuse(ANONYMOUS, "", "connect", "", "no such token")
    records = [json.loads(record.value) for record in audit.take()]
    assert len(records) == PRINCIPALS_MAX + 2
    assert sum(record["count"] for record in records) == 1_001
    assert [record["action"] for record in records if not record["principal"]] == ["", "connect"]


def test_long_texts_are_cut_and_tokens_are_not_shown():
    audit, made = Audit(SimulatedClock()), mint()
    audit.refuse(EVE, "", "read", "x" * 100_000, f"because of {made.secret}")
    (record,) = audit.take()
    assert len(record.value) < 1_000
    assert made.secret[-64:].encode() not in record.value
    assert made.id.encode() in record.value


def test_an_act_says_what_was_asked_for_and_nothing_secret():
    made = mint()
    call = CreateTokenCall(made.id, made.digest, "bob", (Scope("read", "a"),), 5, (Rule("allow", "bob", "read", "a"),))
    details = details_of(call)
    assert name_of(call) == "create_token"
    assert details == {
        "id": made.id,
        "principal": "bob",
        "scopes": "read:a",
        "expires_us": 5,
        "rules": "allow bob read a",
    }
    record = Audit(SimulatedClock()).act(EVE, "here", name_of(call), details)
    assert made.digest.hex().encode() not in record.value
    # The key of a person who is to be forgotten is not kept for ninety days more.
    assert details_of(EraseKeyCall("orders", b"alice")) == {"name": "orders"}


def test_what_is_an_act():
    answer = Answer()
    assert is_act(CreateTokenCall("", b"", ""), answer, is_guarded=False)
    assert is_act(CreateStreamCall("a"), answer, is_guarded=True)
    assert not is_act(CreateStreamCall("a"), answer, is_guarded=False)
    assert not is_act(ListStreamsCall(), answer, is_guarded=True)
    assert not is_act(ListAccessCall("token"), answer, is_guarded=True)


def test_a_stream_that_a_lookup_has_made_is_an_act():
    call = GetStreamCall("a", auto_create=True)
    assert not is_act(call, Answer(), is_guarded=True)
    assert is_act(call, Answer(created=True), is_guarded=True)
    assert not is_act(call, Answer(created=True), is_guarded=False)
    assert (name_of(call), details_of(call)) == ("create", {"name": "a", "auto_create": True})


def test_a_folder_on_a_full_disk_can_be_emptied_though_nothing_can_be_recorded(tmp_path, caplog):
    disk = BudgetDisk(free=1 << 39)
    port = LogPort(tmp_path, disk=disk)
    made = mint()
    rule = Rule("allow", "root", "all")
    port.call(CreateTokenCall(made.id, made.digest, "root", (), 0, (rule,)))
    port.call(CreateStreamCall("orders", uuid="0" * 32))
    # So little that appends are refused; what frees some is not.
    disk.free = 1 << 20
    assert port.log.space.look(now=True)
    port.call(DeleteStreamCall("orders"))
    assert "the audit could not be written" in caplog.text
    assert port.log.ledger.stream_named("orders") is None
    disk.free = 1 << 39
    port.close()
