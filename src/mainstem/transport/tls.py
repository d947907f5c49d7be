"""TLS: contexts for both sides, and certificates that are loaded again when their files change."""

import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mainstem.core.errors import InvalidSetting
from mainstem.core.events import Event

logger = logging.getLogger("mainstem.transport")

# How long a peer may take to greet in TLS.
HANDSHAKE_SECONDS_MAX: Final = 5.0


class _Newest(ssl.SSLContext):
    """The context that a listener is given once: each handshake is made by the newest one. A context that has trusted
    an authority cannot be told to stop, so it is replaced and not loaded again."""

    newest: ssl.SSLContext

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.newest.wrap_bio(*args, **kwargs)


class ServerTls:
    """The context of a listener. `context` stays the same object; new handshakes use the newest files. One thread.

    With `client_ca`, clients may show certificates that it has signed; the common name in one is a principal.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._loaded = self._stamps()
        self.context = _Newest(ssl.PROTOCOL_TLS_SERVER)
        self.context.newest = self._new_context()

    def look(self) -> None:
        """Load the files anew if they have changed. Files that do not go together, because only one of them was
        replaced so far, or that cannot be read, are passed over until the next look."""
        stamps = self._stamps()
        if stamps == self._loaded:
            return
        try:
            self.context.newest = self._new_context()
        except (OSError, InvalidSetting) as error:
            logger.warning(Event("the new certificate is of no use; the old one stays", reason=error))
        else:
            logger.info(Event("certificate loaded anew", file=self._certificate))
        self._loaded = stamps

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Nothing is kept of a client that is gone.
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.num_tickets = 0
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        _check_readable(tls_cert=self._certificate, tls_key=self._key, tls_client_ca=self._client_ca)
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
            if self._client_ca is not None:
                context.load_verify_locations(self._client_ca)
                context.verify_mode = ssl.CERT_OPTIONAL
        except (OSError, ValueError) as error:
            raise InvalidSetting(
                f"tls_cert {self._certificate}, tls_key {self._key}, tls_client_ca {self._client_ca or 'off'}: "
                f"{_in_words(error)}"
            ) from None

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for path in (self._certificate, self._key, self._client_ca))


def client_context(ca: Path | None = None, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """For a client: the server must be who it says, by this authority or by those of the system."""
    _check_readable(ca=ca, certificate=certificate, key=key)
    try:
        context = ssl.create_default_context(cafile=ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if certificate is not None:
            context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise InvalidSetting(f"the certificates for TLS cannot be used: {_in_words(error)}") from None
    return context


def common_name(certificate: Mapping[str, Any] | None) -> str:
    """The common name of a certificate as the library describes it; empty if there is none, or more than one."""
    subject = certificate.get("subject", ()) if certificate else ()
    names = [value for parts in subject for name, value in parts if name == "commonName"]
    return str(names[0]) if len(names) == 1 else ""


def _no_password() -> str:
    """Instead of asking at a terminal that nobody looks at."""
    raise ValueError("the key is encrypted; give one that is not, readable by the server alone")


def _check_readable(**files: Path | None) -> None:
    """What the library says of a file that it cannot read does not say which of them that is."""
    for name, path in files.items():
        try:
            if path is not None:
                path.open("rb").close()
        except OSError as error:
            raise InvalidSetting(f"{name} {path} cannot be read: {error.strerror or error}") from None


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_ino, found.st_mtime_ns, found.st_size)


def _in_words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return {
            "KEY_VALUES_MISMATCH": "the key is not the one of the certificate",
            "PEM_LIB": "a file is not in PEM format",
            "NO_START_LINE": "a file is not in PEM format",
        }.get(error.reason or "", error.reason or "the files are not what they should be")
    if isinstance(error, OSError):
        return ": ".join(filter(None, (str(error.filename or ""), error.strerror or str(error))))
    return str(error)
