"""HTTP with TLS: the same certificates, the same principals and the same rules as the native protocol has."""

import http.client
import json
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import mainstem
from mainstem.core.errors import ConnectionLost, Unauthenticated, UnknownStream
from mainstem.core.limits import CONNECTION_BYTES_MAX_BEFORE_HELLO, HTTP_HEADS_BYTES_MAX
from mainstem.hub.access import NewToken
from mainstem.testing import certificates
from mainstem.testing.certificates import Authority, Issued
from mainstem.testing.server import ServerFailed, ServerProcess
from mainstem.transport.tls import HANDSHAKE_SECONDS_MAX

# How long a change may take to be in force.
SECONDS_MAX = 5.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if not certificates.is_possible():
        pytest.skip("no openssl; enable: apt install openssl")
    return Authority(tmp_path_factory.mktemp("authority"))


class Encrypted(NamedTuple):
    """A server with TLS and an administrator."""

    server: ServerProcess
    root: NewToken
    authority: Authority

    def connection(self, shown: Issued | None = None, host: str = "") -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=self.authority.certificate)
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.key)
        address = self.server.http.replace("0.0.0.0", "127.0.0.1")
        name, _, port = address.rpartition(":")
        return http.client.HTTPSConnection(host or name, int(port), timeout=20, context=context)

    def ask(
        self, path: str, shown: Issued | None = None, *, method: str = "GET", body: Any = None, **headers: str
    ) -> Any:
        connection = self.connection(shown)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def as_root(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.root.secret}"}


@pytest.fixture
def encrypted(tmp_path: Path, authority: Authority) -> Iterator[Encrypted]:
    made = authority.issue("localhost", addresses=["127.0.0.1"])
    shutil.copy(made.certificate, tmp_path / "server.crt")
    shutil.copy(made.key, tmp_path / "server.key")
    shutil.copy(authority.certificate, tmp_path / "clients.crt")
    with mainstem.open(tmp_path / "data") as hub:
        root = hub.access.create_token("root", admin=True)
        hub.streams.create("orders")
    arguments = ["--tls-cert", str(tmp_path / "server.crt"), "--tls-key", str(tmp_path / "server.key")]
    arguments += ["--tls-client-ca", str(tmp_path / "clients.crt"), "--http", "0.0.0.0:0"]
    with ServerProcess(tmp_path / "data", *arguments) as server:
        yield Encrypted(server, root, authority)
        print(server.stderr())


def come_to(is_so: Any) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_rows_cross_tls(encrypted):
    body = b"".join(b'{"value": "%d"}\n' % number for number in range(50_000))
    headers = encrypted.as_root()
    status, answer = encrypted.ask("/streams/orders/records", method="POST", body=body, **headers)
    assert (status, json.loads(answer)["records"]) == (200, 50_000)
    status, answer = encrypted.ask("/streams/orders/records", **headers)
    assert (status, answer.count(b"\n")) == (200, 50_000)
    # By whatever name: the client has seen a certificate for it. A page of another site is another matter.
    assert encrypted.ask("/streams", **headers, Host="log.example")[0] == 200
    assert encrypted.ask("/streams", **headers, Origin="https://evil.example")[0] == 403
    # Probes are for everybody, everything else is not.
    assert encrypted.ask("/livez")[0] == 200
    assert encrypted.ask("/streams")[0] == 401


def test_a_certificate_is_a_principal(encrypted, tmp_path):
    billing = encrypted.authority.issue("billing")
    status, answer = encrypted.ask("/streams", billing)
    assert (status, "whom no rule names" in answer.decode()) == (401, True)
    with mainstem.connect(
        encrypted.server.url, token=encrypted.root.secret, ca=encrypted.authority.certificate
    ) as root:
        root.access.allow("billing", "write", "orders")
        posted = {"method": "POST", "body": b'{"value": "1"}\n'}
        assert encrypted.ask("/streams/orders/records", billing, **posted)[0] == 200
        status, answer = encrypted.ask("/streams/orders/records", billing)
        assert (status, "billing may not read" in answer.decode()) == (403, True)
        root.access.delete_rule("allow", "billing", "write", "orders")
        come_to(lambda: encrypted.ask("/streams/orders/records", billing, **posted)[0] == 401)


def test_a_certificate_of_another_authority_is_turned_away_and_noted(encrypted, tmp_path):
    url, ca = encrypted.server.url, encrypted.authority.certificate
    forged = Authority(tmp_path / "forger").issue("root")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        encrypted.ask("/streams", forged)
    with pytest.raises((ConnectionLost, Unauthenticated)):
        mainstem.connect(url, ca=ca, certificate=forged.certificate, key=forged.key, timeout=1)

    with mainstem.connect(url, token=encrypted.root.secret, ca=ca) as root:

        def noted() -> int:
            try:
                with root.consumer("_audit", start="earliest", follow=False) as consumer:
                    records = [json.loads(record.value or b"") for record in consumer]
            except UnknownStream:
                return 0
            found = [record for record in records if "not trusted" in record.get("reason", "")]
            assert all(record["address"] == "127.0.0.1" for record in found)
            return sum(record["count"] for record in found)

        # Once over HTTP, and at least once over the native protocol.
        come_to(lambda: noted() >= 2)


def presented(encrypted: Encrypted) -> bytes:
    connection = encrypted.connection()
    connection.connect()
    try:
        return bytes(connection.sock.getpeercert(True) or b"")
    finally:
        connection.close()


def test_a_certificate_is_loaded_anew_without_a_restart(encrypted, tmp_path):
    first = presented(encrypted)
    kept = encrypted.connection()
    kept.request("GET", "/streams", headers=encrypted.as_root())
    assert kept.getresponse().read()
    renewed = encrypted.authority.issue("localhost", addresses=["127.0.0.1"])
    shutil.copy(renewed.certificate, tmp_path / "server.crt")
    shutil.copy(renewed.key, tmp_path / "server.key")
    come_to(lambda: presented(encrypted) != first)
    # Who was there stays.
    kept.request("GET", "/streams", headers=encrypted.as_root())
    assert kept.getresponse().status == 200
    kept.close()


def test_an_authority_of_clients_that_was_replaced_is_not_trusted(encrypted, tmp_path):
    renewed, ca = Authority(tmp_path / "renewed"), encrypted.authority.certificate
    before, after = encrypted.authority.issue("billing"), renewed.issue("billing")

    def is_trusted(shown: Issued) -> bool:
        try:
            return bool(encrypted.ask("/streams", shown)[0] == 401)
        except (ssl.SSLError, ConnectionError):
            return False

    assert (is_trusted(before), is_trusted(after)) == (True, False)
    shutil.copy(renewed.certificate, tmp_path / "clients.crt")
    come_to(lambda: is_trusted(after))
    assert not is_trusted(before)
    # The native listener neither: who is trusted but named by no rule would be told so.
    with pytest.raises(mainstem.MainstemError) as refused:
        mainstem.connect(encrypted.server.url, ca=ca, certificate=before.certificate, key=before.key, timeout=2)
    assert "whom no rule names" not in str(refused.value)
    with pytest.raises(mainstem.MainstemError, match="whom no rule names"):
        mainstem.connect(encrypted.server.url, ca=ca, certificate=after.certificate, key=after.key, timeout=2)


@pytest.mark.slow("the time that a handshake has")
def test_who_does_not_greet_is_left(encrypted):
    host, _, port = encrypted.server.http.replace("0.0.0.0", "127.0.0.1").rpartition(":")
    with socket.create_connection((host, int(port)), 20) as silent:
        began = time.monotonic()
        assert silent.recv(1) == b""
        assert time.monotonic() - began < 3 * SECONDS_MAX


def sockets(server: ServerProcess) -> int:
    """How many the process has (Linux)."""
    found = 0
    for file in Path(f"/proc/{server.pid}/fd").iterdir():
        with suppress(OSError):
            found += str(file.readlink()).startswith("socket:")
    return found


def test_who_does_not_greet_counts(tmp_path, authority):
    """Connections are limited from when they are accepted, on both listeners; who is one too many hears why."""
    made = authority.issue("localhost", addresses=["127.0.0.1"])
    tls = ("--tls-cert", str(made.certificate), "--tls-key", str(made.key), "--http", "127.0.0.1:0")
    trust = ssl.create_default_context(cafile=authority.certificate)
    with ServerProcess(tmp_path / "data", *tls, "--connections-max", "5") as server:
        for address in (server.address, server.http):
            host, _, port = address.rpartition(":")
            before = sockets(server)
            silent = [socket.create_connection((host, int(port)), 20) for _ in range(100)]
            # Refused at once, and not when its time to greet is over.
            silent[-1].settimeout(0.6 * HANDSHAKE_SECONDS_MAX)
            assert silent[-1].recv(1) == b""
            assert sockets(server) - before < 40
            for peer in silent:
                peer.close()
            come_to(lambda before=before: sockets(server) <= before)
            with ExitStack() as stack:
                peers = [
                    stack.enter_context(
                        trust.wrap_socket(socket.create_connection((host, int(port)), 20), server_hostname="localhost")
                    )
                    for _ in range(6)
                ]
                heard = b""
                # Over HTTP it is the one who has asked for nothing for longest.
                told = peers[-1] if address == server.address else peers[0]
                with suppress(ConnectionError, ssl.SSLError):
                    while piece := told.recv(4_096):
                        heard += piece
                assert b"5 clients are connected, which is the limit" in heard
            come_to(lambda before=before: sockets(server) <= before)
        with mainstem.connect(server.url, ca=authority.certificate) as hub:
            assert hub.statistics()["connections_refused"] >= 70


@pytest.mark.parametrize("before", [b"", b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"], ids=["first", "second"])
def test_an_unfinished_head_costs_little(encrypted, before):
    """Nobody is known who has not ended the head of a request: the limit for such a connection holds for all of them
    together, however large the heads are that some may have."""
    head = before + b"GET /streams HTTP/1.1\r\nHost: localhost\r\nX-Padding: " + b"x" * 60_000
    with ExitStack() as stack:
        peers = [encrypted.connection() for _ in range(200)]
        for _ in range(20):
            encrypted.ask("/livez")
        at_first = encrypted.server.memory_bytes()
        for peer in peers:
            stack.callback(peer.close)
            peer.connect()
            with suppress(ConnectionError, ssl.SSLError):
                peer.sock.sendall(head)
        time.sleep(1.5)
        grown = encrypted.server.memory_bytes() - at_first
        # Whose head is complete is served all the while.
        assert encrypted.ask("/streams", **encrypted.as_root(), Padding="x" * 2_000)[0] == 200
    assert grown < len(peers) * CONNECTION_BYTES_MAX_BEFORE_HELLO + 2 * HTTP_HEADS_BYTES_MAX
    # And what they held is free again.
    come_to(lambda: encrypted.ask("/streams", **encrypted.as_root(), Padding="x" * 50_000)[0] == 200)


@pytest.mark.slow("three hundred handshakes")
def test_a_complete_head_of_who_is_not_known_costs_nothing_later(encrypted):
    """It is answered, and the connection ends: what TLS has received is kept as long as that lasts."""
    head = b"GET /streams HTTP/1.1\r\nHost: localhost\r\nX-Padding: " + b"x" * 60_000 + b"\r\n\r\n"
    with ExitStack() as stack:

        def come(count: int) -> int:
            """The memory of the server after so many more have asked, of whom none goes away."""
            for _ in range(count):
                peer = encrypted.connection()
                stack.callback(peer.close)
                peer.connect()
                peer.sock.sendall(head)
                heard = peer.sock.recv(1 << 16)
                assert heard.startswith(b"HTTP/1.1 401")
                assert b"connection: close" in heard.lower()
            # Their end is awaited, but not for long.
            time.sleep(1.5)
            return int(encrypted.server.memory_bytes())

        # What was freed is there for the next, once the memory that many at a time need is laid out.
        come(100)
        at_first = come(100)
        grown = come(100) - at_first
    assert grown < 100 * CONNECTION_BYTES_MAX_BEFORE_HELLO // 2
    # Who has a small one, or is known, may ask again on the same connection.
    for padding, headers in (("x" * 100, {}), ("x" * 60_000, encrypted.as_root())):
        kept = encrypted.connection()
        for _ in range(3):
            kept.request("GET", "/streams", headers={"X-Padding": padding, **headers})
            response = kept.getresponse()
            response.read()
            assert (response.status, response.headers["connection"]) == (200 if headers else 401, None)
            assert kept.sock is not None
        kept.close()


def test_elsewhere_needs_tls_and_a_token(tmp_path, authority):
    def start(*arguments: str) -> str:
        with pytest.raises(ServerFailed) as failed, ServerProcess(tmp_path / "data", "--http", "0.0.0.0:0", *arguments):
            pass
        return str(failed.value)

    made = authority.issue("localhost", addresses=["127.0.0.1"])
    tls = ("--tls-cert", str(made.certificate), "--tls-key", str(made.key))
    assert "--tls-cert" in start()
    assert f"mainstem token create NAME --admin --data {tmp_path / 'data'}" in start(*tls)
