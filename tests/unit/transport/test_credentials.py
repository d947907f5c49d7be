"""What a client shows, and that nobody else sees it."""

import pytest

from mainstem.core.errors import InvalidSetting
from mainstem.hub.link import address_of
from mainstem.transport.credentials import TOKEN_BYTES_MAX, Credentials
from mainstem.transport.tls import ServerTls
from mainstem.transport.wire import Hello

SECRET = "mst_0123456789abcdef_" + "5" * 64


def test_the_nearest_token_counts(tmp_path):
    environ = {"MAINSTEM_TOKEN": "of-the-environment"}
    path = tmp_path / "token"
    path.write_text(f"  {SECRET}\n")
    assert Credentials(environ=environ).token() == "of-the-environment"
    assert Credentials("given", environ=environ).token() == "given"
    assert Credentials(token_file=path, environ=environ).token() == SECRET
    assert Credentials(environ={}).token() == ""
    assert not Credentials(environ={"MAINSTEM_TOKEN": ""}).has_token


def test_a_file_is_read_every_time(tmp_path):
    path = tmp_path / "token"
    path.write_text("first")
    credentials = Credentials(token_file=path, environ={})
    assert credentials.token() == "first"
    path.write_text("second")
    assert credentials.token() == "second"


@pytest.mark.parametrize("content", ["", "\n", "two\nlines", "ä", "x" * (TOKEN_BYTES_MAX + 1)])
def test_a_file_that_holds_no_token(tmp_path, content):
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(InvalidSetting, match="cannot be a token"):
        Credentials(token_file=path, environ={}).token()


def test_a_token_is_nowhere_to_be_seen():
    for shown in (Credentials(SECRET, environ={}), Hello(1, 5, "me", SECRET)):
        assert SECRET[-64:] not in f"{shown!r} {shown}"
    with pytest.raises(InvalidSetting) as found:
        Credentials(SECRET + "\n", environ={})
    assert SECRET[-64:] not in str(found.value)


def test_a_token_in_a_wrong_place_is_not_repeated():
    with pytest.raises(InvalidSetting, match=r"names a file.*MAINSTEM_TOKEN") as of_file:
        Credentials(token_file=SECRET, environ={}).token()
    with pytest.raises(InvalidSetting, match=r"user or password.*MAINSTEM_TOKEN") as of_address:
        address_of(f"mainstems://{SECRET}@log.example")
    with pytest.raises(InvalidSetting) as of_port:
        address_of(f"mainstems://log.example:{SECRET}")
    assert not [str(found.value) for found in (of_file, of_address, of_port) if SECRET[-32:] in str(found.value)]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_token_stays_on_this_machine_without_tls(host):
    Credentials(SECRET, environ={}).require_private(host)
    Credentials(environ={}).require_private("example.com")
    with pytest.raises(InvalidSetting, match="mainstems://"):
        Credentials(SECRET, environ={}).require_private("example.com")


def test_a_certificate_needs_its_key(tmp_path):
    with pytest.raises(InvalidSetting, match="give both"):
        Credentials(certificate=tmp_path / "a.crt", environ={})
    (tmp_path / "a.crt").write_text("no certificate")
    with pytest.raises(InvalidSetting, match="cannot be used"):
        Credentials(ca=tmp_path / "a.crt", environ={}).context()


def test_of_several_files_the_one_that_is_missing_is_named(tmp_path):
    (tmp_path / "a.crt").write_text("")
    with pytest.raises(InvalidSetting, match=r"^ca \S*/missing\.crt cannot be read: No such file"):
        Credentials(ca=tmp_path / "missing.crt", environ={}).context()
    with pytest.raises(InvalidSetting, match=r"^key \S*/missing\.key cannot be read: No such file"):
        Credentials(certificate=tmp_path / "a.crt", key=tmp_path / "missing.key", environ={}).context()
    with pytest.raises(InvalidSetting, match=r"^tls_key \S*/missing\.key cannot be read: No such file"):
        ServerTls(tmp_path / "a.crt", tmp_path / "missing.key")
