"""Who may do what, with real servers, real connections and real TLS."""

import json
import os
import shutil
import socket
import ssl
import struct
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

import mainstem
from mainstem.access.audit import RETENTION_BYTES
from mainstem.core.errors import (
    ConnectionLost,
    Forbidden,
    InvalidSetting,
    MainstemError,
    QuotaExceeded,
    Refused,
    Unauthenticated,
)
from mainstem.core.limits import CONNECTION_BYTES_MAX_BEFORE_HELLO
from mainstem.hub.access import NewToken
from mainstem.hub.hub import Hub
from mainstem.testing import certificates
from mainstem.testing.certificates import Authority
from mainstem.testing.server import ServerFailed, ServerProcess
from mainstem.transport.wire import Kind
from tests.integration.api.conftest import values

# How long a change may take to reach connections that are open.
SECONDS_MAX = 5.0


@pytest.fixture(autouse=True)
def no_token_of_this_machine(monkeypatch):
    monkeypatch.delenv("MAINSTEM_TOKEN", raising=False)


class Guarded(NamedTuple):
    """A server that has an administrator."""

    server: ServerProcess
    root: NewToken

    def connect(self, token: NewToken | None = None) -> Hub:
        return mainstem.connect(self.server.url, token=(token or self.root).secret)


@pytest.fixture
def guarded(tmp_path) -> Iterator[Guarded]:
    with mainstem.open(tmp_path / "data") as hub:
        root = hub.access.create_token("root", admin=True)
        hub.streams.create("orders")
    with ServerProcess(tmp_path / "data") as server:
        yield Guarded(server, root)
        print(server.stderr())


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    if not certificates.is_possible():
        pytest.skip("no openssl; enable: apt install openssl")
    return Authority(tmp_path_factory.mktemp("authority"))


def come_to(is_so, seconds: float = SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def audited(hub: Hub) -> list[dict]:
    return [json.loads(value or b"") for value in values(hub, "_audit")]


# ------------------------------------------------------------------------------------------------------- administration


@pytest.fixture
def unguarded(kind, tmp_path) -> Iterator[Hub]:
    """A log without a principal: in this process, and behind a server of its own, which will not be the same after."""
    if kind == "embedded":
        with mainstem.open(tmp_path / "data") as hub:
            yield hub
        return
    with ServerProcess(tmp_path / "data") as server:
        hub = mainstem.connect(server.url)
        yield hub
        hub.close()


def test_administered_near_and_far(unguarded, kind):
    hub = unguarded
    root = hub.access.create_token("root", admin=True)
    if kind == "remote":
        # From now on this server wants to know who asks.
        with pytest.raises(Unauthenticated):
            hub.access.tokens()
        hub = mainstem.connect(hub._where, token=root.secret)
    alice = hub.access.create_token("alice", allow=["read:orders"], scopes=["read:*"], expires=timedelta(hours=1))
    assert [(token.id, token.principal) for token in hub.access.tokens()] == sorted(
        [(root.id, "root"), (alice.id, "alice")]
    )
    (found,) = [token for token in hub.access.tokens() if token.id == alice.id]
    assert [scope.text for scope in found.scopes] == ["read:*"]
    assert abs(found.expires_us / 1e6 - time.time() - 3600) < 60
    hub.access.deny("*", "delete", "orders")
    assert [rule.text for rule in hub.access.rules()] == [
        "allow alice read orders",
        "allow root all *",
        "deny * delete orders",
    ]
    assert hub.access.explain("alice", "read", "orders").rule == "allow alice read orders"
    assert not hub.access.explain("alice", "delete", "orders").is_allowed
    hub.access.delete_rule("deny", "*", "delete", "orders")
    hub.access.set_quota("alice", "write_bytes", 1_000_000, mode="block")
    hub.access.set_quota("*", "connections", 10)
    assert [(quota.principal, quota.measure, quota.limit, quota.mode) for quota in hub.access.quotas()] == [
        ("*", "connections", 10, "limit"),
        ("alice", "write_bytes", 1_000_000, "block"),
    ]
    hub.access.delete_quota("*", "connections")
    hub.access.revoke_token(alice.id)
    assert [token.revoked_us > 0 for token in hub.access.tokens() if token.id == alice.id] == [True]
    acts = [record["act"] for record in audited(hub) if record["event"] == "act"]
    assert acts == [
        *("create_token", "create_token", "set_rule", "delete_rule"),
        *("set_quota", "set_quota", "delete_quota", "revoke_token"),
    ]
    for token in (root, alice):
        assert not any(token.secret[-64:] in json.dumps(record) for record in audited(hub))
        assert token.secret[-64:] not in repr(token)
    if kind == "remote":
        hub.close()


@pytest.mark.parametrize("wrong", ["read", "read:", "read/orders", "fly:orders", "read:a b"])
def test_what_cannot_be_allowed(tmp_path, wrong):
    hub = mainstem.open(tmp_path / "data")
    with pytest.raises(MainstemError):
        hub.access.create_token("root", admin=True, allow=[wrong])
    with pytest.raises(InvalidSetting, match="time zone"):
        hub.access.create_token("root", admin=True, expires=datetime(2030, 1, 1))  # noqa: DTZ001  # that is wrong
    with pytest.raises(Refused, match="--admin"):
        hub.access.create_token("alice")
    assert hub.access.tokens() == []
    hub.close()


# ------------------------------------------------------------------------------------------------------------- tokens


def test_a_token_from_every_place(guarded, tmp_path, monkeypatch):
    url = guarded.server.url
    with pytest.raises(Unauthenticated, match="MAINSTEM_TOKEN"):
        mainstem.connect(url, timeout=5)
    with pytest.raises(Unauthenticated, match="not a token"):
        mainstem.connect(url, token="hunter2")
    path = tmp_path / "token"
    path.write_text(f"{guarded.root.secret}\n")
    for given in ({"token": guarded.root.secret}, {"token_file": path}):
        with mainstem.connect(url, **given) as hub:
            assert [stream.name for stream in hub.streams.list()] == ["_audit", "orders"]
    monkeypatch.setenv("MAINSTEM_TOKEN", guarded.root.secret)
    with mainstem.connect(url) as hub:
        assert guarded.root.secret not in f"{hub!r}{vars(hub)}"
    with pytest.raises(InvalidSetting, match="not both"):
        mainstem.connect(url, token="a", token_file=path)
    with pytest.raises(InvalidSetting, match="cannot be read"):
        mainstem.connect(url, token_file=tmp_path / "missing")


def test_a_token_does_not_cross_a_network_in_the_open():
    with pytest.raises(InvalidSetting, match="mainstems://") as found:
        mainstem.connect("mainstem://192.0.2.1:7070", token="mst_secret")
    assert "mst_secret" not in str(found.value)


def test_reading_and_writing_by_the_rules(guarded):
    with guarded.connect() as root:
        writer = root.access.create_token("writer", allow=["write:orders"])
        reader = root.access.create_token("reader", allow=["read:ord*"])
        with guarded.connect(writer) as hub, hub.producer() as producer:
            producer.send("orders", b"1").result(10)
            with pytest.raises(Forbidden, match="writer may not read 'orders': no rule allows it"):
                values(hub, "orders")
        with guarded.connect(reader) as hub:
            assert values(hub, "orders") == [b"1"]
            with hub.producer() as producer, pytest.raises(Forbidden, match="reader may not write 'orders'"):
                producer.send("orders", b"2").result(10)
            with pytest.raises(Forbidden):
                hub.streams.create("more")
            with pytest.raises(Forbidden):
                hub.access.allow("reader", "all")
            with pytest.raises(Forbidden):
                hub.statistics()
            assert [stream.name for stream in hub.streams.list()] == ["orders"]
        assert values(root, "orders") == [b"1"]


@pytest.mark.parametrize("spread", [False, True], ids=["whole", "spread"])
def test_a_pattern_finds_only_what_may_be_read(guarded, spread):
    with guarded.connect() as root:
        root.streams.create("payroll")
        alice = root.access.create_token("alice", allow=["read:ord*", "group:mine"])
        with root.producer() as producer:
            for stream in ("orders", "payroll"):
                producer.send(stream, stream.encode()).result(10)
        with (
            guarded.connect(alice) as hub,
            hub.consumer(pattern="*", group="mine", start="earliest", spread=spread) as consumer,
        ):
            read = [consumer.poll(10)]
            root.streams.create("orders-2")
            root.streams.create("payroll-2")
            with root.producer() as producer:
                for stream in ("payroll-2", "orders-2"):
                    producer.send(stream, stream.encode()).result(10)
            read.append(consumer.poll(10))
            assert [record and record.value for record in read] == [b"orders", b"orders-2"]
            assert set(hub.groups.get("mine").streams) <= {"orders", "orders-2"}


@pytest.mark.parametrize("spread", [False, True], ids=["whole", "spread"])
def test_a_right_that_comes_later_reaches_a_pattern(guarded, spread):
    """Whoever reads by one need not join anew, and misses nothing of what it may read by now."""
    with guarded.connect() as root:
        root.streams.create("payroll")
        alice = root.access.create_token("alice", allow=["read:ord*", "group:mine"])
        with root.producer() as producer:
            for stream in ("orders", "payroll"):
                producer.send(stream, stream.encode()).result(10)
        with (
            guarded.connect(alice) as hub,
            hub.consumer(pattern="*", group="mine", start="earliest", spread=spread) as consumer,
        ):
            read = [consumer.poll(10)]
            assert consumer.poll(0.5) is None
            root.access.allow("alice", "read", "payroll")
            read.append(consumer.poll(SECONDS_MAX))
            assert [record and record.value for record in read] == [b"orders", b"payroll"]


@pytest.mark.parametrize("how", ["revoked", "over"])
def test_open_connections_end_with_their_token(guarded, how):
    with guarded.connect() as root:
        expires = timedelta(seconds=2) if how == "over" else None
        token = root.access.create_token("alice", allow=["read:orders", "write:orders"], expires=expires)
        hub = guarded.connect(token)
        consumer = hub.consumer("orders", start="earliest")
        producer = hub.producer()
        producer.send("orders", b"1").result(10)
        assert consumer.poll(10) is not None
        if how == "revoked":
            root.access.revoke_token(token.id)
        begun = time.monotonic()
        with pytest.raises(Unauthenticated, match=r"is not valid any more|time of token"):
            consumer.poll(2 * SECONDS_MAX)
        assert time.monotonic() - begun < SECONDS_MAX + 2
        with pytest.raises(Unauthenticated):
            producer.send("orders", b"2").result(10)
        with pytest.raises(Unauthenticated):
            hub.streams.get("orders")
        hub.close()
        assert values(root, "orders") == [b"1"]


def test_a_new_token_in_the_file_is_taken_without_a_restart(guarded, tmp_path):
    path = tmp_path / "token"
    with guarded.connect() as root:
        first = root.access.create_token("alice", allow=["read:orders"])
        second = root.access.create_token("alice")
        path.write_text(first.secret)
        with mainstem.connect(guarded.server.url, token_file=path) as hub:
            hub.streams.get("orders")
            path.write_text(second.secret)
            root.access.revoke_token(first.id)

            def is_back() -> bool:
                try:
                    return hub.streams.get("orders").name == "orders"
                except Unauthenticated:
                    return False

            come_to(is_back, 10)


def test_rules_and_tokens_survive_a_kill(guarded):
    with guarded.connect() as root:
        alice = root.access.create_token("alice", allow=["read:orders"])
        bob = root.access.create_token("bob", allow=["read:orders"])
        root.access.revoke_token(bob.id)
        guarded.server.kill()
        guarded.server.start()
    with guarded.connect(alice) as hub:
        hub.streams.get("orders")
    with pytest.raises(Unauthenticated, match="revoked"):
        guarded.connect(bob)


# --------------------------------------------------------------------------------------------------------------- audit


def test_refusals_are_recorded_together(guarded):
    with guarded.connect() as root:
        eve = root.access.create_token("eve")
        with guarded.connect(eve) as hub:
            for _ in range(50):
                with pytest.raises(Forbidden):
                    hub.streams.get("orders")
        with pytest.raises(Unauthenticated):
            mainstem.connect(guarded.server.url, token="mst_" + "0" * 16 + "_" + "1" * 64)
        come_to(lambda: sum(r["count"] for r in audited(root) if r["event"] == "refused") == 51)
        refused = [record for record in audited(root) if record["event"] == "refused"]
        assert len(refused) < 20
        assert {(record["principal"], record["action"], record["stream"]) for record in refused} == {
            ("eve", "describe", "orders"),
            ("", "connect", ""),
        }
        assert all("1" * 64 not in json.dumps(record) for record in refused)
        assert root.statistics()["requests_forbidden"] == 51
    assert "1" * 64 not in guarded.server.stderr()


def test_acts_on_streams_are_recorded_once_there_are_principals(guarded):
    with guarded.connect() as root:
        root.streams.create("more", shards=3)
        root.streams.delete("more")
        records = [record for record in audited(root) if record["event"] == "act"][-2:]
    assert [(record["principal"], record["act"], record["details"]["name"]) for record in records] == [
        ("root", "create", "more"),
        ("root", "delete", "more"),
    ]


def test_a_stream_that_is_made_by_writing_to_it_is_recorded_once(tmp_path):
    with mainstem.open(tmp_path / "data") as hub:
        root = hub.access.create_token("root", admin=True)
        alice = hub.access.create_token("alice", allow=["create:*", "write:*"])
    with ServerProcess(tmp_path / "data", "--auto-create", "--http", "127.0.0.1:0") as server:
        with mainstem.connect(server.url, token=alice.secret) as hub:
            for _ in range(2):
                with hub.producer() as producer:
                    producer.send("native", b"a record")
        for _ in range(2):
            request = urllib.request.Request(
                f"http://{server.http}/streams/posted/records",
                b'{"value": "a record"}\n',
                {"Authorization": f"Bearer {alice.secret}", "Content-Type": "application/x-ndjson"},
            )
            with urllib.request.urlopen(request) as answer:
                assert answer.status == 200
        with mainstem.connect(server.url, token=root.secret) as hub:
            acts = [record for record in audited(hub) if record["event"] == "act" and record["act"] == "create"]
            assert [(act["principal"], act["details"]["name"]) for act in acts] == [
                ("alice", "native"),
                ("alice", "posted"),
            ]
            # However much is recorded, there is an end to it.
            assert hub.streams.get("_audit").retention_bytes == RETENTION_BYTES


def test_a_log_that_nobody_guards_has_no_audit(tmp_path):
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        hub.streams.delete("orders")
        assert hub.streams.list() == []


# ----------------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture
def encrypted(tmp_path, authority) -> Iterator[Guarded]:
    """A server with TLS that also knows clients by their certificates; its own certificate is at a place of its own."""
    made = authority.issue("localhost", addresses=["127.0.0.1"])
    shutil.copy(made.certificate, tmp_path / "server.crt")
    shutil.copy(made.key, tmp_path / "server.key")
    with mainstem.open(tmp_path / "data") as hub:
        root = hub.access.create_token("root", admin=True)
        hub.streams.create("orders")
    arguments = ["--tls-cert", str(tmp_path / "server.crt"), "--tls-key", str(tmp_path / "server.key")]
    arguments += ["--tls-client-ca", str(authority.certificate)]
    with ServerProcess(tmp_path / "data", *arguments) as server:
        yield Guarded(server, root)
        print(server.stderr())


def test_records_cross_tls(encrypted, authority):
    assert encrypted.server.url.startswith("mainstems://")
    with mainstem.connect(encrypted.server.url, token=encrypted.root.secret, ca=authority.certificate) as hub:
        large = [os.urandom(1_000_000) for _ in range(20)]
        with hub.producer() as producer:
            for value in large:
                producer.send("orders", value)
        assert values(hub, "orders") == large


def test_a_server_must_be_who_it_says(encrypted, authority, tmp_path):
    with pytest.raises(InvalidSetting, match=r"not trusted.*ca="):
        mainstem.connect(encrypted.server.url, token=encrypted.root.secret, timeout=5)
    other = Authority(tmp_path / "other")
    with pytest.raises(InvalidSetting, match="not trusted"):
        mainstem.connect(encrypted.server.url, token=encrypted.root.secret, ca=other.certificate, timeout=5)
    # The right authority, another name.
    first = presented(encrypted.server, authority.certificate)
    elsewhere = authority.issue("elsewhere")
    shutil.copy(elsewhere.certificate, tmp_path / "server.crt")
    shutil.copy(elsewhere.key, tmp_path / "server.key")
    come_to(lambda: presented(encrypted.server, authority.certificate) != first)
    with pytest.raises(InvalidSetting, match="not trusted"):
        mainstem.connect(encrypted.server.url, token=encrypted.root.secret, ca=authority.certificate, timeout=5)


def test_one_side_without_tls_is_told_so(encrypted, tmp_path):
    with pytest.raises(ConnectionLost, match="speaks TLS, use mainstems://"):
        mainstem.connect(encrypted.server.url.replace("mainstems", "mainstem"), timeout=1)
    with (
        ServerProcess(tmp_path / "plain") as plain,
        pytest.raises(ConnectionLost, match=r"TLS|no answer"),
    ):
        mainstem.connect(plain.url.replace("mainstem:", "mainstems:"), timeout=1)


def test_a_certificate_is_a_principal(encrypted, authority, tmp_path):
    url, ca = encrypted.server.url, authority.certificate
    billing = authority.issue("billing")
    shown = {"ca": ca, "certificate": billing.certificate, "key": billing.key}
    with pytest.raises(Unauthenticated, match="'billing', whom no rule names"):
        mainstem.connect(url, **shown)
    with mainstem.connect(url, token=encrypted.root.secret, ca=ca) as root:
        root.access.allow("billing", "write", "orders")
        with mainstem.connect(url, **shown) as hub, hub.producer() as producer:
            producer.send("orders", b"1").result(10)
            with pytest.raises(Forbidden, match="billing may not read"):
                values(hub, "orders")
            root.access.delete_rule("allow", "billing", "write", "orders")
            with pytest.raises((Forbidden, Unauthenticated)):
                producer.send("orders", b"2").result(10)
        assert values(root, "orders") == [b"1"]
    forged = Authority(tmp_path / "forger").issue("root")
    with pytest.raises((ConnectionLost, Unauthenticated)):
        mainstem.connect(url, ca=ca, certificate=forged.certificate, key=forged.key, timeout=2)


def presented(server: ServerProcess, ca: Path) -> bytes:
    """The certificate that a new connection is shown."""
    host, _, port = server.address.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    with socket.create_connection((host, int(port)), 5) as raw, context.wrap_socket(raw, server_hostname=host) as tls:
        found = tls.getpeercert(binary_form=True)
        assert found is not None
        return found


def test_a_certificate_is_loaded_anew_without_a_restart(encrypted, authority, tmp_path):
    ca = authority.certificate
    first = presented(encrypted.server, ca)
    with mainstem.connect(encrypted.server.url, token=encrypted.root.secret, ca=ca) as hub:
        renewed = authority.issue("localhost", addresses=["127.0.0.1"])
        # Half of it: the old one stays.
        shutil.copy(renewed.certificate, tmp_path / "server.crt")
        come_to(lambda: "of no use" in encrypted.server.stderr())
        assert presented(encrypted.server, ca) == first
        shutil.copy(renewed.key, tmp_path / "server.key")
        come_to(lambda: presented(encrypted.server, ca) != first)
        hub.streams.get("orders")


def test_elsewhere_needs_tls_and_a_token(tmp_path, authority):
    def start(*arguments: str) -> str:
        server = ServerProcess(tmp_path / "data", *arguments)
        server.address = "0.0.0.0:0"
        with pytest.raises(ServerFailed) as failed, server:
            pass
        return str(failed.value)

    made = authority.issue("localhost", addresses=["127.0.0.1"])
    tls = ("--tls-cert", str(made.certificate), "--tls-key", str(made.key))
    assert "--tls-cert" in start()
    assert f"mainstem token create NAME --admin --data {tmp_path / 'data'}" in start(*tls)
    with mainstem.open(tmp_path / "data") as hub:
        root = hub.access.create_token("root", admin=True)
    server = ServerProcess(tmp_path / "data", *tls)
    server.address = "0.0.0.0:0"
    with server:
        port = server.address.rpartition(":")[2]
        url = f"mainstems://127.0.0.1:{port}"
        with mainstem.connect(url, token=root.secret, ca=authority.certificate) as hub:
            hub.statistics()


@pytest.mark.parametrize("wrong", ["missing", "not PEM", "another's key"])
def test_certificates_that_are_of_no_use_are_named(tmp_path, authority, wrong):
    made, other = (authority.issue("localhost", addresses=["127.0.0.1"]) for _ in range(2))
    key = {"missing": tmp_path / "missing.key", "not PEM": tmp_path / "text", "another's key": other.key}[wrong]
    (tmp_path / "text").write_text("hello")
    server = ServerProcess(tmp_path / "data", "--tls-cert", str(made.certificate), "--tls-key", str(key))
    with pytest.raises(ServerFailed, match="tls_key") as failed, server:
        pass
    assert "Traceback" not in str(failed.value)


# -------------------------------------------------------------------------------------------------------------- quotas


def test_connections_have_a_quota(guarded):
    with guarded.connect() as root:
        alice = root.access.create_token("alice", allow=["read:orders"])
        root.access.set_quota("alice", "connections", 2)
        with guarded.connect(alice), guarded.connect(alice):
            with pytest.raises((QuotaExceeded, ConnectionLost), match="quota of 2 connections"):
                mainstem.connect(guarded.server.url, token=alice.secret, timeout=1)
            guarded.connect().close()

        def is_let_in() -> bool:
            try:
                mainstem.connect(guarded.server.url, token=alice.secret, timeout=1).close()
            except (QuotaExceeded, ConnectionLost):
                return False
            return True

        come_to(is_let_in)


@pytest.mark.slow("a quota takes its seconds, twice")
def test_who_writes_too_much_is_slowed_down_and_loses_nothing(guarded):
    """A quota of 200 kB a second, and a burst of two seconds: a megabyte takes three seconds."""
    sent = [os.urandom(10_000) for _ in range(100)]
    with guarded.connect() as root:
        alice = root.access.create_token("alice", allow=["write:orders", "read:orders"])
        root.access.set_quota("alice", "write_bytes", 200_000)
        with guarded.connect(alice) as hub:
            begun = time.monotonic()
            with hub.producer(batch_bytes=20_000, compression=None) as producer:
                for value in sent:
                    producer.send("orders", value)
            assert time.monotonic() - begun > 2.5
        # Others are not.
        root.streams.create("others")
        with root.producer(compression=None) as producer:
            producer.send_many("others", sent).result(30)
        assert values(root, "orders") == sent
        root.access.delete_quota("alice", "write_bytes")
        root.access.set_quota("alice", "read_bytes", 200_000)
        with guarded.connect(alice) as hub:
            begun = time.monotonic()
            assert values(hub, "orders") == sent
            # What is pushed last is not waited for.
            assert time.monotonic() - begun > 1.2


@pytest.mark.slow("a quota takes its seconds, twice")
def test_who_is_slowed_down_gains_nothing_by_coming_anew(guarded):
    """200 kB a second and a burst of two seconds: of 1.2 MB the last 400 kB are not waited for by who brings them, and
    a connection, or a subscription, for each 200 kB is slowed down like one for all."""
    sent = [os.urandom(200_000) for _ in range(6)]
    with guarded.connect() as root:
        alice = root.access.create_token("alice", allow=["write:orders", "read:orders"])
        root.access.set_quota("alice", "write_bytes", 200_000)
        begun = time.monotonic()
        for value in sent:
            with guarded.connect(alice) as hub, hub.producer(compression=None) as producer:
                producer.send("orders", value).result(30)
        assert time.monotonic() - begun > 2.4
        root.access.delete_quota("alice", "write_bytes")
        root.access.set_quota("alice", "read_bytes", 200_000)
        begun, cursor, read = time.monotonic(), "earliest", 0
        with guarded.connect(alice) as hub:
            while read < len(sent):
                with hub.consumer("orders", start=cursor, follow=False, prefetch_bytes=100_000) as consumer:
                    found = consumer.poll_batch(30)
                    assert found is not None
                    read, cursor = read + len(found), consumer.cursor
        assert time.monotonic() - begun > 2.4


def test_who_is_blocked_from_reading_is_sent_nothing_by_asking_anew(guarded):
    with guarded.connect() as root:
        with root.producer(compression=None) as producer:
            for _ in range(4):
                producer.send("orders", os.urandom(500_000)).result(30)
        alice = root.access.create_token("alice", allow=["read:orders"])
        root.access.set_quota("alice", "read_bytes", 1_000, mode="block")
        read: list[int] = []
        refused: list[QuotaExceeded] = []
        with guarded.connect(alice) as hub:
            for _ in range(10):
                try:
                    with hub.consumer("orders", start="earliest", follow=False, prefetch_bytes=100_000) as consumer:
                        found = consumer.poll_batch(10)
                    read.append(0 if found is None else len(found))
                except QuotaExceeded as error:
                    refused.append(error)
        # More than there can ever be at once passes after a rest, once, and is owed.
        assert len(read) == 1
        assert len(refused) == 9
        assert all(error.retry_after > 100 for error in refused)


def test_who_is_blocked_is_told_for_how_long(guarded):
    with guarded.connect() as root:
        alice = root.access.create_token("alice", allow=["write:orders"])
        root.access.set_quota("alice", "write_requests", 1, mode="block")
        with guarded.connect(alice) as hub:
            hub.streams.get("orders")
            producer = hub.producer()
            refused = [error for _ in range(20) if (error := producer.send("orders", b"x").exception(30)) is not None]
            (first, *_) = [error for error in refused if isinstance(error, QuotaExceeded)]
            assert "quota of 1 write requests a second; come back in" in str(first)
            assert 0 < first.retry_after <= 5


def test_memory_of_a_principal_is_bounded_and_nothing_is_lost(guarded):
    sent = [os.urandom(50_000) for _ in range(60)]
    with guarded.connect() as root:
        alice = root.access.create_token("alice", allow=["write:orders", "read:orders"])
        root.access.set_quota("alice", "memory_bytes", 100_000, mode="block")
        with guarded.connect(alice) as hub, guarded.connect(alice) as other:
            with hub.producer(batch_bytes=50_000) as first, other.producer(batch_bytes=50_000) as second:
                for index, value in enumerate(sent):
                    (first if index % 2 else second).send("orders", value)
            assert sorted(value or b"" for value in values(hub, "orders")) == sorted(sent)


@pytest.mark.xdist_group("measure")
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
def test_who_is_not_known_yet_costs_little_memory(tmp_path, authority, is_tls):
    """Two hundred connections that have begun to greet, and not come to the end of it."""
    made = authority.issue("localhost", addresses=["127.0.0.1"])
    arguments = ("--tls-cert", str(made.certificate), "--tls-key", str(made.key)) if is_tls else ()
    context = ssl.create_default_context(cafile=authority.certificate)
    begun = struct.pack("<IBBHII", 4_000, Kind.HELLO, 0, 0, 1, 3_900) + bytes(3_000)

    def greet(server: ServerProcess) -> socket.socket:
        host, _, port = server.address.rpartition(":")
        made = socket.create_connection((host, int(port)), 10)
        made = context.wrap_socket(made, server_hostname=host) if is_tls else made
        made.sendall(begun)
        return made

    with ServerProcess(tmp_path / "data", *arguments) as server, ExitStack() as opened:
        for _ in range(10):
            opened.enter_context(greet(server))
        before = server.memory_bytes()
        for _ in range(200):
            opened.enter_context(greet(server))
        assert (server.memory_bytes() - before) / 200 < CONNECTION_BYTES_MAX_BEFORE_HELLO
