"""Who somebody is, and whether they may."""

import pytest

from mainstem.access.action import Action
from mainstem.access.administration import AccessAdministration
from mainstem.access.authority import Authority
from mainstem.access.principal import ANONYMOUS, Principal
from mainstem.access.store import MemoryStore
from mainstem.access.token import Minted, mint
from mainstem.core.errors import Forbidden, InvalidName, InvalidRequest, InvalidSetting, Refused, Unauthenticated
from mainstem.testing.clock import SimulatedClock
from mainstem.transport.guarding import (
    CreateTokenCall,
    DeleteRuleCall,
    ExplainAccessCall,
    ListAccessCall,
    Quota,
    RevokeTokenCall,
    Rule,
    Scope,
    SetQuotaCall,
    SetRuleCall,
)


class Guarded:
    """A log with an administrator, and what a test does to it."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.store = MemoryStore()
        self.administration = AccessAdministration(self.store, self.clock)
        self.authority = Authority(self.store, self.clock)

    def token(self, principal: str, *scopes: Scope, seconds: float = 0.0, is_admin: bool = False) -> Minted:
        made = mint()
        expires = self.clock.now_us() + round(seconds * 1_000_000) if seconds else 0
        rules = (Rule("allow", principal, "all"),) if is_admin else ()
        self.administration.handle(CreateTokenCall(made.id, made.digest, principal, scopes, expires, rules))
        return made

    def allow(self, principal: str, action: str, pattern: str = "*") -> None:
        self.administration.handle(SetRuleCall(Rule("allow", principal, action, pattern)))

    def deny(self, principal: str, action: str, pattern: str = "*") -> None:
        self.administration.handle(SetRuleCall(Rule("deny", principal, action, pattern)))


@pytest.fixture
def open_log() -> Guarded:
    return Guarded()


@pytest.fixture
def guarded() -> Guarded:
    made = Guarded()
    made.token("root", is_admin=True)
    return made


def test_until_the_first_principal_who_is_on_this_machine_may_do_everything(open_log):
    assert open_log.authority.authenticate(is_local=True) == ANONYMOUS
    # A token for another server, from the environment, is no obstacle.
    assert open_log.authority.authenticate(mint().secret, is_local=True) == ANONYMOUS
    with pytest.raises(Unauthenticated):
        open_log.authority.authenticate(mint().secret, is_local=False)
    for action in Action:
        open_log.authority.allow(ANONYMOUS, action, "orders")
    with pytest.raises(Unauthenticated, match="MAINSTEM_TOKEN"):
        open_log.authority.authenticate(is_local=False)


def test_from_the_first_principal_on_nobody_is_anonymous(guarded):
    with pytest.raises(Unauthenticated, match="mainstem token create"):
        guarded.authority.authenticate(is_local=True)
    assert not guarded.authority.is_current(ANONYMOUS)
    with pytest.raises(Unauthenticated):
        guarded.authority.allow(ANONYMOUS, Action.READ, "orders")


def test_a_token_is_its_principal_until_it_is_over_or_revoked(guarded):
    made = guarded.token("alice", seconds=10)
    alice = guarded.authority.authenticate(made.secret)
    assert alice == Principal("alice", made.id)
    assert guarded.authority.is_current(alice)
    guarded.clock.advance(10)
    assert not guarded.authority.is_current(alice)
    with pytest.raises(Unauthenticated, match="time of token"):
        guarded.authority.authenticate(made.secret)
    other = guarded.token("alice")
    alice = guarded.authority.authenticate(other.secret)
    guarded.administration.handle(RevokeTokenCall(other.id))
    assert not guarded.authority.is_current(alice)
    with pytest.raises(Unauthenticated, match="revoked"):
        guarded.authority.authenticate(other.secret)


@pytest.mark.parametrize("wrong", ["x", "mst_", "mst_0123456789abcdef_" + "0" * 64, "mst_" + "g" * 16 + "_" + "0" * 64])
def test_what_is_no_token_is_nobody(guarded, wrong):
    with pytest.raises(Unauthenticated):
        guarded.authority.authenticate(wrong)


def test_the_right_id_with_another_secret_is_nobody(guarded):
    made, other = guarded.token("alice"), mint()
    forged = f"mst_{made.id}_{other.secret.rpartition('_')[2]}"
    with pytest.raises(Unauthenticated) as found:
        guarded.authority.authenticate(forged)
    assert forged not in str(found.value)
    assert made.secret not in str(found.value)


def test_the_secret_is_not_stored_and_not_shown(guarded):
    made = guarded.token("alice")
    secret = made.secret.rpartition("_")[2]
    assert all(secret.encode() not in value for value in guarded.store.rows().values())
    assert secret not in repr(made)


def test_nothing_is_allowed_that_no_rule_allows(guarded):
    alice = guarded.authority.authenticate(guarded.token("alice").secret)
    for action in Action:
        with pytest.raises(Forbidden, match="no rule allows it; an administrator can: mainstem access allow alice"):
            guarded.authority.allow(alice, action, "orders")


def test_a_rule_allows_its_action_on_its_streams_and_nothing_else(guarded):
    alice = guarded.authority.authenticate(guarded.token("alice").secret)
    guarded.allow("alice", "read", "orders.*")
    guarded.authority.allow(alice, Action.READ, "orders.eu")
    # Who reads has to look the stream up.
    guarded.authority.allow(alice, Action.DESCRIBE, "orders.eu")
    for action, stream in ((Action.WRITE, "orders.eu"), (Action.READ, "orders"), (Action.DESCRIBE, "payments")):
        with pytest.raises(Forbidden):
            guarded.authority.allow(alice, action, stream)


def test_a_rule_that_denies_wins(guarded):
    alice = guarded.authority.authenticate(guarded.token("alice").secret)
    guarded.allow("alice", "all")
    guarded.deny("*", "read", "secret*")
    guarded.authority.allow(alice, Action.READ, "orders")
    with pytest.raises(Forbidden, match=r"'deny \* read secret\*' denies it"):
        guarded.authority.allow(alice, Action.READ, "secrets")
    found = guarded.authority.explain(alice, Action.READ, "secrets")
    assert not found.is_allowed
    assert found.rule == "deny * read secret*"


def test_a_scope_narrows_what_its_principal_may(guarded):
    guarded.allow("alice", "all")
    narrow = guarded.authority.authenticate(guarded.token("alice", Scope("read", "orders")).secret)
    guarded.authority.allow(narrow, Action.READ, "orders")
    guarded.authority.allow(narrow, Action.DESCRIBE, "orders")
    for action, stream in ((Action.WRITE, "orders"), (Action.READ, "payments"), (Action.ADMIN, "")):
        with pytest.raises(Forbidden, match=r"is for read:orders only; it takes another token$"):
            guarded.authority.allow(narrow, action, stream)


def test_a_scope_narrows_what_is_asked_of_all_streams(guarded):
    guarded.allow("alice", "read", "orders")
    guarded.allow("alice", "write", "orders")
    whole = guarded.authority.authenticate(guarded.token("alice").secret)
    reader = guarded.authority.authenticate(guarded.token("alice", Scope("read", "orders")).secret)
    for principal in (whole, reader):
        guarded.authority.allow_for_any(principal, Action.DESCRIBE)
    guarded.authority.allow_for_any(whole, Action.WRITE)
    with pytest.raises(Forbidden):
        guarded.authority.allow_for_any(reader, Action.WRITE)


def test_a_scope_allows_nothing_by_itself(guarded):
    alice = guarded.authority.authenticate(guarded.token("alice", Scope("read", "orders")).secret)
    with pytest.raises(Forbidden, match="no rule allows it"):
        guarded.authority.allow(alice, Action.READ, "orders")


def test_the_log_as_a_whole_needs_a_rule_for_every_stream(guarded):
    alice = guarded.authority.authenticate(guarded.token("alice").secret)
    guarded.allow("alice", "describe", "orders*")
    with pytest.raises(Forbidden, match=r"mainstem access allow alice describe '\*'$"):
        guarded.authority.allow(alice, Action.DESCRIBE)
    with pytest.raises(Forbidden, match=r"any group: .*mainstem access allow alice group GROUP$"):
        guarded.authority.allow_for_any(alice, Action.GROUP)
    guarded.allow("alice", "describe")
    guarded.authority.allow(alice, Action.DESCRIBE)


def test_the_audit_is_read_by_administrators_and_written_by_nobody(guarded):
    root = Principal("root")
    bob = guarded.authority.authenticate(guarded.token("bob").secret)
    guarded.allow("bob", "read")
    guarded.authority.allow(root, Action.READ, "_audit")
    with pytest.raises(Forbidden):
        guarded.authority.allow(bob, Action.READ, "_audit")
    for action in (Action.WRITE, Action.DELETE, Action.CREATE):
        with pytest.raises(Forbidden, match=r"server alone$"):
            guarded.authority.allow(root, action, "_audit")


def test_a_certificate_is_the_principal_that_a_rule_names(guarded):
    with pytest.raises(Unauthenticated, match="no rule names"):
        guarded.authority.authenticate(certificate="billing")
    guarded.allow("billing", "write", "invoices")
    billing = guarded.authority.authenticate(certificate="billing")
    assert billing == Principal("billing")
    guarded.administration.handle(DeleteRuleCall(Rule("allow", "billing", "write", "invoices")))
    assert not guarded.authority.is_current(billing)


def test_nobody_is_everybody(guarded):
    guarded.allow("*", "read", "news")
    with pytest.raises(Unauthenticated, match="no rule names"):
        guarded.authority.authenticate(certificate="*")


def test_the_first_token_is_an_administrators(open_log):
    with pytest.raises(Refused, match="--admin"):
        open_log.token("alice")
    with pytest.raises(Refused, match="--admin"):
        open_log.allow("alice", "read")
    assert not open_log.authority.is_guarded
    open_log.token("root", is_admin=True)
    open_log.token("alice")


def test_the_last_administrator_stays(guarded):
    (row,) = guarded.administration.handle(ListAccessCall("token")).tokens
    with pytest.raises(Refused, match="nobody who may administer"):
        guarded.administration.handle(RevokeTokenCall(row.id))
    with pytest.raises(Refused, match="nobody who may administer"):
        guarded.administration.handle(DeleteRuleCall(Rule("allow", "root", "all")))
    with pytest.raises(Refused, match="nobody who may administer"):
        guarded.deny("*", "admin")
    guarded.token("other", is_admin=True)
    guarded.administration.handle(RevokeTokenCall(row.id))


def test_an_administrator_whose_token_ends_is_not_the_only_one(open_log):
    """When it is over nobody would be left, and no change would have been made that could have been refused."""
    with pytest.raises(Refused, match="and not expire"):
        open_log.token("root", seconds=1, is_admin=True)
    assert not open_log.authority.is_guarded
    open_log.token("root", is_admin=True)
    (lasting,) = open_log.administration.handle(ListAccessCall("token")).tokens
    other = open_log.token("other", seconds=10, is_admin=True)
    with pytest.raises(Refused, match="with a token that does not expire; make another"):
        open_log.administration.handle(RevokeTokenCall(lasting.id))
    open_log.administration.handle(RevokeTokenCall(other.id))


def test_the_last_administrator_stays_also_where_all_of_them_end(guarded):
    """As in a log from before they had to last."""
    (root,) = guarded.administration.handle(ListAccessCall("token")).tokens
    made = guarded.token("other", seconds=10, is_admin=True)
    guarded.store.change({("token", root.id): None})
    with pytest.raises(Refused, match="nobody who may administer the log;"):
        guarded.administration.handle(RevokeTokenCall(made.id))
    guarded.allow("alice", "read")


def test_a_repeated_call_changes_nothing(guarded):
    made = mint()
    call = CreateTokenCall(made.id, made.digest, "alice")
    guarded.administration.handle(call)
    version = guarded.store.version
    guarded.administration.handle(call)
    assert guarded.store.version == version
    with pytest.raises(InvalidRequest, match="already"):
        guarded.administration.handle(CreateTokenCall(made.id, mint().digest, "eve"))


def test_lists_come_in_parts(guarded):
    made = [f"allow p{number:05} read *" for number in range(7_000)]
    from mainstem.access.store import encode_row

    for text in made:
        guarded.store._rows["rule", text] = encode_row(Rule("allow", text.split()[1], "read"))
    found: list[Rule] = []
    answers = 0
    while True:
        answer = guarded.administration.handle(ListAccessCall("rule", found[-1].text if found else ""))
        found += answer.rules
        answers += 1
        if not answer.more:
            break
    assert [rule.text for rule in found] == [*made, "allow root all *"]
    assert answers > 1


def test_explained_over_the_call(guarded):
    guarded.allow("alice", "read", "orders")
    found = guarded.administration.handle(ExplainAccessCall("alice", "read", "orders")).explanation
    assert found is not None
    assert found.is_allowed
    assert found.rule == "allow alice read orders"
    found = guarded.administration.handle(ExplainAccessCall("alice", "write", "orders")).explanation
    assert found is not None
    assert not found.is_allowed
    assert found.rule == ""


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (SetRuleCall(Rule("allow", "a b", "read")), InvalidName),
        (SetRuleCall(Rule("allow", "alice", "fly")), InvalidSetting),
        (SetRuleCall(Rule("allow", "alice", "read", "a/b")), InvalidName),
        (SetQuotaCall(Quota("alice", "write_bytes", 0)), InvalidSetting),
        (SetQuotaCall(Quota("alice", "connections", 5, "sample")), InvalidSetting),
        (SetQuotaCall(Quota("alice", "read_requests", 5, "sample")), InvalidSetting),
        (RevokeTokenCall("nope"), InvalidRequest),
        (DeleteRuleCall(Rule("allow", "nobody", "read")), InvalidRequest),
        (ExplainAccessCall("alice", "all", "x"), InvalidSetting),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(guarded, call, error):
    with pytest.raises(error):
        guarded.administration.handle(call)
