"""Credentials: what a client shows to say who it is. Nothing here shows a secret in a repr, an error or a log."""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mainstem.core.errors import InvalidSetting
from mainstem.core.hosts import is_loopback
from mainstem.core.redaction import redacted
from mainstem.transport.tls import client_context

TOKEN_VARIABLE: Final = "MAINSTEM_TOKEN"  # noqa: S105  # the name of one, not one
TOKEN_BYTES_MAX: Final = 1_000


class Credentials:
    """A token, or the file that holds one, and certificates. Any thread.

    Without a token or a file, the token is that of the variable MAINSTEM_TOKEN, if it is set.
    """

    def __init__(
        self,
        token: str | None = None,
        *,
        token_file: "str | Path | None" = None,
        ca: "str | Path | None" = None,
        certificate: "str | Path | None" = None,
        key: "str | Path | None" = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        if token is not None and token_file is not None:
            raise InvalidSetting("give a token or a token_file, not both")
        if (certificate is None) != (key is None):
            raise InvalidSetting("a certificate needs its key, and a key its certificate; give both")
        if token is not None and not isinstance(token, str):
            raise InvalidSetting(f"a token is text, not {type(token).__name__}")
        given = environ.get(TOKEN_VARIABLE, "") if token is None and token_file is None else token
        self._token = _checked(given) if given else ""
        self._token_file = _path(token_file)
        self._ca, self._certificate, self._key = _path(ca), _path(certificate), _path(key)

    @property
    def has_token(self) -> bool:
        return bool(self._token) or self._token_file is not None

    def token(self) -> str:
        """The token as it is now: a file is read again every time."""
        if self._token_file is None:
            return self._token
        try:
            with self._token_file.open("rb") as file:
                content = file.read(TOKEN_BYTES_MAX + 1)
        except OSError as error:
            said = f"token_file {redacted(str(self._token_file))} cannot be read: {error.strerror}"
            if self._token_file.name.startswith("mst_"):
                said += (
                    "; it names a file, in which the token is: the token itself goes into the variable MAINSTEM_TOKEN"
                )
            raise InvalidSetting(said) from None
        return _checked(content.decode("ascii", errors="replace").strip())

    def context(self) -> ssl.SSLContext:
        """For a connection with TLS."""
        return client_context(self._ca, self._certificate, self._key)

    def require_private(self, host: str) -> None:
        """InvalidSetting if a token would cross a network without TLS."""
        if self.has_token and not is_loopback(host):
            raise InvalidSetting(
                f"a token would be open to everybody on the way to {host}; use mainstems://, which is TLS"
            )

    def __repr__(self) -> str:
        return f"<Credentials {'with' if self.has_token else 'without'} a token>"


def _checked(token: str) -> str:
    """What can be sent; whether it is a token is for the server to say."""
    if len(token) > TOKEN_BYTES_MAX or not token.isascii() or not token.isprintable() or not token:
        raise InvalidSetting("this cannot be a token: one is a line of text that begins with mst_")
    return token


def _path(given: "str | Path | None") -> Path | None:
    return None if given is None else Path(given).expanduser()
