"""Everything that can be asked over HTTP, made from the table of routes, and everybody who must not have it.

A route without a row cannot be asked for; a row without an action fails here, unless it is a probe, and so does one
whose action is not asked.
"""

import pytest

from mainstem.access.action import Action
from mainstem.access.token import mint
from mainstem.server.http.routes import ROUTES, Row
from mainstem.transport.guarding import DeleteRuleCall, Rule
from tests.integration.http.client import Client
from tests.unit.server.http.serving import STREAM, GuardedHttp, guarded

PROBES = {"/livez", "/healthz", "/readyz"}


def path_of(row: Row) -> str:
    return row.path.replace("{name}", STREAM)


def body_of(row: Row) -> bytes | None:
    return b"{}" if row.method in ("PUT", "POST", "PATCH") else None


def test_every_route_has_its_row(tmp_path):
    def test(server: GuardedHttp) -> None:
        assert set(server.app._handlers) == {row.handler for row in ROUTES}

    guarded(tmp_path, test)
    assert {row.path for row in ROUTES if not row.action} == PROBES
    assert {row.action for row in ROUTES if row.action} <= set(Action)


@pytest.mark.parametrize("row", ROUTES, ids=lambda row: f"{row.method} {row.path}")
def test_a_route_is_refused_to_all_who_may_not(tmp_path, row):
    def test(server: GuardedHttp) -> None:
        path, body = path_of(row), body_of(row)
        is_probe = row.path in PROBES
        for token in ("", server.expired, server.revoked, mint()):
            answer = server.ask(token, row.method, path, body)
            assert answer.status == (200 if is_probe else 401)
            if not is_probe:
                assert (answer.json()["title"], answer.headers["www-authenticate"]) == ("Unauthenticated", "Bearer")
        before = server.refusals()
        answer = server.ask(server.other, row.method, path, body)
        assert answer.status == (200 if is_probe else 403)
        assert server.refusals() == before + (not is_probe)
        # Who may do everything else. Of lists it gets what it may see, which other tests look at.
        server.allow(Rule("allow", "other", "all"))
        if row.action and (row.is_named or row.is_open):
            denied = Rule("deny", "other", Action(row.action), "*")
            server.allow(denied)
            assert server.ask(server.other, row.method, path, body).status == 403
            server.administration.handle(DeleteRuleCall(denied))
        # Nothing of all this has had an effect.
        assert [row.name for row in server.rig.server.log.ledger.list_streams() if not row.deleted_us] == [STREAM]
        # The control: who may, is not refused for that.
        assert server.ask(server.root, row.method, path, body).status not in (401, 403, 500)

    guarded(tmp_path, test)


@pytest.mark.parametrize("row", [row for row in ROUTES if row.action], ids=lambda row: f"{row.method} {row.path}")
def test_a_route_on_an_open_connection_is_refused_once_its_token_is_of_no_use(tmp_path, row):
    def test(server: GuardedHttp) -> None:
        token = server.token("second", Rule("allow", "second", "all"))
        with Client(server.http) as client:
            assert client.ask("GET", "/streams", **server.known(token)).status == 200
            server.revoke(token)
            assert client.ask(row.method, path_of(row), body_of(row), **server.known(token)).status == 401

    guarded(tmp_path, test)


def test_what_is_not_there_is_no_secret_that_a_refusal_tells(tmp_path):
    def test(server: GuardedHttp) -> None:
        for path in ("/streams/{}", "/streams/{}/records", "/groups/{}"):
            there, missing = (server.ask(server.other, "GET", path.format(name)) for name in (STREAM, "missing"))
            assert there.status == missing.status == 403
            assert there.body.replace(STREAM.encode(), b"x") == missing.body.replace(b"missing", b"x")

    guarded(tmp_path, test)


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"host": "evil.example"}])
def test_a_page_of_another_site_is_turned_away_and_noted(tmp_path, headers):
    def test(server: GuardedHttp) -> None:
        before = server.refusals()
        assert server.ask(server.root, "GET", "/streams", **headers).status in (403, 421)
        assert server.refusals() == before + 1

    guarded(tmp_path, test)
