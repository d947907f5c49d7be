"""How commands come to their token."""

import getpass
import io
import sys
from types import SimpleNamespace

import pytest

from mainstem.cli import hubs
from mainstem.cli.exits import UsageProblem


@pytest.mark.parametrize("given", [b"mst_1\nnext", b"mst_1"])
def test_without_a_terminal_the_token_is_the_first_line(monkeypatch, given):
    monkeypatch.setattr(getpass, "getpass", getpass.fallback_getpass)  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(given)))
    assert hubs._asked_token() == "mst_1"
    # The rest is for who reads on.
    assert sys.stdin.buffer.read() == given[6:]


def test_no_token_at_all(monkeypatch):
    monkeypatch.setattr(getpass, "getpass", lambda prompt: " ")
    with pytest.raises(UsageProblem, match="no token was given"):
        hubs._asked_token()
