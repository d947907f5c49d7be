"""Tokens are cut down to their ids wherever they are shown."""

import pytest

from mainstem.access.token import mint
from mainstem.core.redaction import redacted


@pytest.mark.parametrize("cut", [0, 1, 40], ids=str)
def test_a_token_loses_its_secret(cut):
    made = mint()
    secret = made.secret[: len(made.secret) - cut]
    assert (
        redacted(f"mainstems://{secret}@host:1, twice {secret}x")
        == f"mainstems://mst_{made.id}…@host:1, twice mst_{made.id}…"
    )


@pytest.mark.parametrize("text", ["one begins with mst_ and is made", "/home/me/mst_billing.token", ""])
def test_other_texts_stay(text):
    assert redacted(text) == text
