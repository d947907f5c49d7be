"""What a listener believes after its files were replaced."""

import shutil
import ssl
from pathlib import Path

import pytest

from mainstem.core.errors import InvalidSetting
from mainstem.testing import certificates
from mainstem.testing.certificates import Authority, Issued
from mainstem.transport.tls import ServerTls, client_context, common_name

pytestmark = pytest.mark.skipif(not certificates.is_possible(), reason="no openssl; enable: apt install openssl")


def greet(tls: ServerTls, server_ca: Path, shown: Issued) -> str:
    """Whom the server takes a client for that shows this certificate; SSLError if it does not trust it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = tls.context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context(server_ca, shown.certificate, shown.key).wrap_bio(
        to_client, to_server, server_hostname="localhost"
    )
    waiting = {client, server}
    while waiting:
        for side in tuple(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.discard(side)
    return common_name(server.getpeercert())


def test_an_authority_that_was_replaced_is_not_trusted(tmp_path):
    ours, old, new = (Authority(tmp_path / name, name) for name in ("ours", "old", "new"))
    made, client_ca = ours.issue("localhost"), tmp_path / "clients.crt"
    shutil.copy(old.certificate, client_ca)
    tls = ServerTls(made.certificate, made.key, client_ca)
    listens_with, before, after = tls.context, old.issue("alice"), new.issue("alice")
    assert greet(tls, ours.certificate, before) == "alice"
    with pytest.raises(ssl.SSLError):
        greet(tls, ours.certificate, after)

    shutil.copy(new.certificate, client_ca)
    tls.look()
    assert greet(tls, ours.certificate, after) == "alice"
    with pytest.raises(ssl.SSLError):
        greet(tls, ours.certificate, before)

    # What is of no use changes nothing.
    client_ca.write_text("no certificate")
    tls.look()
    assert greet(tls, ours.certificate, after) == "alice"
    assert tls.context is listens_with
    with pytest.raises(InvalidSetting, match="tls_client_ca"):
        ServerTls(made.certificate, made.key, client_ca)
