"""`mainstem token`, `access` and `quota`, and how commands say who they are."""

import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest

import mainstem
from mainstem.testing import certificates
from mainstem.testing.server import ServerProcess
from mainstem.transport.counting import NoteVerifiedCall
from tests.integration.cli.conftest import Cli


@pytest.fixture
def guarded(tmp_path):
    """Commands against a server that has an administrator, whose token is in a file."""
    Cli(tmp_path, ["--data", "data"]).run("token", "create", "root", "--admin", "--to", "root.token")
    with ServerProcess(tmp_path / "data") as server:
        yield Cli(tmp_path, ["--url", server.url])
        print(server.stderr())


@pytest.mark.slow("thirteen commands")
def test_the_first_token_guards_a_folder(local):
    assert "--admin" in local.error("token", "create", "alice", code=5)
    token = local.out("token", "create", "root", "--admin").strip()
    assert token.startswith("mst_")
    local.run("access", "allow", "alice", "read", "orders.*")
    local.run("access", "deny", "*", "delete")
    shown = local.out("token", "list") + local.out("token", "list", "--json") + local.out("access", "list")
    assert token[-64:] not in shown
    assert [rule["stream"] for rule in json.loads(local.out("access", "list", "--json"))] == ["orders.*", "*", "*"]
    assert local.out("access", "explain", "alice", "read", "orders.eu").startswith("yes: the rule 'allow alice read")
    assert local.out("access", "explain", "alice", "write", "orders.eu", code=1) == "no: no rule allows it\n"
    local.run("access", "delete", "allow", "alice", "read", "orders.*")
    missing = local.error("access", "delete", "allow", "alice", "read", "orders.*", code=2)
    assert "there is no rule 'allow alice read orders.*'; mainstem access list shows them" in missing
    assert "nobody who may administer" in local.error("access", "delete", "allow", "root", "all", code=5)


def test_a_token_in_a_file_is_its_owners_alone(local):
    made = local.out("token", "create", "root", "--admin", "--to", "root.token").strip()
    path = local.folder / "root.token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().startswith(f"mst_{made}_")
    assert "already" in local.error("token", "create", "other", "--to", "root.token", code=2)
    assert path.read_text().startswith(f"mst_{made}_")
    local.error("token", "create", "a b", "--to", "wrong.token", code=2)
    assert not (local.folder / "wrong.token").exists()


@pytest.mark.slow("ten commands")
def test_commands_say_who_they_are(guarded):
    assert "MAINSTEM_TOKEN" in guarded.error("stream", "list", code=5)
    token = (guarded.folder / "root.token").read_text().strip()
    guarded.run("stream", "create", "orders", "--token-file", "root.token")
    assert "orders" in guarded.out("stream", "list", MAINSTEM_TOKEN=token)
    assert "orders" in guarded.out("stream", "list", MAINSTEM_TOKEN_FILE="root.token")
    said = guarded.error("stream", "list", code=5, MAINSTEM_TOKEN=token[:-1] + ("0" if token[-1] != "0" else "1"))
    assert token[-60:] not in said
    assert "not known here" in said
    assert token[-64:] not in guarded.out("config", where=False, MAINSTEM_TOKEN=token, MAINSTEM_TOKEN_FILE=token)
    assert token[-64:] not in guarded.error("stream", "list", "--token-file", token, code=2)
    url = f"mainstems://{token}@localhost"
    assert token[-64:] not in guarded.error("stream", "list", "--url", url, code=2, where=False)


@pytest.mark.slow("fourteen commands")
def test_a_principal_from_its_token_to_its_end(guarded):
    root = {"MAINSTEM_TOKEN_FILE": "root.token"}
    guarded.run("stream", "create", "orders", **root)
    made = json.loads(
        guarded.out("token", "create", "alice", "--allow", "read:orders", "--expires", "1h", "--json", **root)
    )
    alice = {"MAINSTEM_TOKEN": made["token"]}
    guarded.run("tail", "orders", "--start", "earliest", "--no-follow", **alice)
    assert "alice may not write 'orders'" in guarded.error("write", "orders", code=5, stdin=b"x\n", **alice)
    assert "alice may not admin the server" in guarded.error("token", "list", code=5, **alice)
    assert "by its id" in guarded.error("token", "revoke", made["token"], code=2, **root)
    guarded.run("token", "revoke", made["id"], **root)
    assert "revoked" in guarded.error("stream", "list", code=5, **alice)
    states = {
        token["principal"]: token["state"] for token in json.loads(guarded.out("token", "list", "--json", **root))
    }
    assert states == {"alice": "revoked", "root": "valid"}
    acts = guarded.out("tail", "_audit", "--start", "earliest", "--no-follow", **root)
    assert "revoke_token" in acts
    assert made["token"][-64:] not in acts


@pytest.mark.slow("nine commands")
def test_quotas(local):
    assert "use a whole number" in local.error("quota", "set", "alice", "connections", "1.5", code=2)
    local.run("token", "create", "root", "--admin")
    local.run("quota", "set", "alice", "write_bytes", "5MB", "--mode", "block")
    local.run("quota", "set", "*", "connections", "10")
    assert json.loads(local.out("quota", "list", "--json")) == [
        {"principal": "*", "measure": "connections", "limit": 10, "mode": "limit"},
        {"principal": "alice", "measure": "write_bytes", "limit": 5_000_000, "mode": "block"},
    ]
    assert "5 MB" in local.out("quota", "list")
    local.run("quota", "delete", "*", "connections")
    assert "; mainstem quota list shows them" in local.error("quota", "delete", "*", "connections", code=2)
    local.error("quota", "set", "alice", "shoes", "5", code=2)
    local.error("quota", "set", "alice", "write_bytes", "many", code=2)
    local.error("quota", "set", "alice", "write_bytes", "5MB", "--mode", "shout", code=2)


@pytest.mark.slow("a server with TLS, and six commands")
@pytest.mark.skipif(not certificates.is_possible(), reason="no openssl; enable: apt install openssl")
def test_commands_show_a_certificate(tmp_path):
    authority = certificates.Authority(tmp_path / "ca")
    made, billing = authority.issue("localhost", addresses=["127.0.0.1"]), authority.issue("billing")
    local = Cli(tmp_path, ["--data", "data"])
    local.run("token", "create", "root", "--admin", "--to", "root.token")
    local.run("access", "allow", "billing", "all", "invoices")
    ca, (certificate, key) = str(authority.certificate), map(str, billing)
    arguments = ["--tls-cert", str(made.certificate), "--tls-key", str(made.key), "--tls-client-ca", ca]
    with ServerProcess(tmp_path / "data", *arguments) as server:
        cli = Cli(tmp_path, ["--url", server.url, "--tls-ca", ca])
        assert "wants a token" in cli.error("stream", "list", code=5)
        cli.run("stream", "create", "invoices", "--tls-client-cert", certificate, "--tls-client-key", key)
        shown: Any = {"MAINSTEM_TLS_CLIENT_CERT": certificate, "MAINSTEM_TLS_CLIENT_KEY": key}
        cli.run("write", "invoices", stdin=b"one\n", **shown)
        assert "billing may not create 'orders'" in cli.error("stream", "create", "orders", code=5, **shown)
        # A token says who one is all the same.
        cli.run("stream", "create", "orders", "--token-file", "root.token", **shown)
        alone = cli.error("stream", "list", "--tls-client-cert", certificate, code=2)
        assert "tls_client_cert (flag --tls-client-cert) is of no use without tls_client_key" in alone


@pytest.mark.slow("eight commands")
def test_who_shows_a_stream_is_told_up_to_when_it_was_verified(guarded):
    """Who may look at a stream need not look at `_verified` for that, which has all of them: that was refused."""
    root = {"MAINSTEM_TOKEN_FILE": "root.token"}
    guarded.run("stream", "create", "orders", **root)
    made = json.loads(guarded.out("token", "create", "alice", "--allow", "read:orders", "--json", **root))
    alice = {"MAINSTEM_TOKEN": made["token"]}
    assert json.loads(guarded.out("stream", "show", "orders", "--json", **alice))["verified_through"] is None
    with mainstem.connect(guarded.where[1], token_file=guarded.folder / "root.token") as hub:
        hub._port.call(NoteVerifiedCall("orders", 1_790_000_000_000_000, 2))
    shown = json.loads(guarded.out("stream", "show", "orders", "--json", **alice))
    assert shown["verified_through"] == "2026-09-21T14:13:20.000000Z"
    assert "; windows after that which differ: 2\n" in guarded.out("stream", "show", "orders", **alice)
    # Refusals are written within a second or so: when there is this one, those from before would be there, too.
    guarded.error("stream", "show", "_verified", code=5, **alice)
    deadline = time.monotonic() + 20
    while not (refused := refusals(guarded)):
        assert time.monotonic() < deadline
    assert [(act["principal"], act["stream"], act["count"]) for act in refused] == [("alice", "_verified", 1)]


def refusals(cli: Cli) -> list[dict]:
    """Those in the audit."""
    with (
        mainstem.connect(cli.where[1], token_file=cli.folder / "root.token") as hub,
        hub.consumer("_audit", start="earliest", follow=False) as consumer,
    ):
        return [act for record in consumer if (act := json.loads(record.value or b""))["event"] == "refused"]


def test_a_folder_that_a_server_has_can_be_looked_at(guarded):
    here = Cli(guarded.folder, ["--data", "data"])
    assert "root" in here.out("token", "list")
    assert here.out("access", "explain", "root", "admin").startswith("yes")
    assert Path(guarded.folder / "data").exists()
    here.error("token", "create", "eve", "--admin", code=5)
