"""The gate: who asks, whether a page of another site does, and whether they may. Every request passes here once.

A browser lets any page send requests to a server on this machine; what it says about the page decides. `Host` must be
an address or `localhost`, or a page could reach the server under a name of its own that it has pointed here; with TLS
it may be any, as the browser has seen a certificate for that name. `Origin`, and `Sec-Fetch-Site` where a browser sends
it, must be this server's own. Programs send neither.
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from mainstem.access.bucket import Turnstile
from mainstem.core.errors import QuotaExceeded, Refused
from mainstem.server.door import PASSER, Door, Visitor
from mainstem.server.http.problems import HttpRefusal, refusal
from mainstem.server.http.routes import Row
from mainstem.server.http.sending import ABORT, Connection

_OWN_SITES: Final = frozenset(("same-origin", "none", ""))


class Gate:
    """Lets requests through, or raises. Of connections, so many a second: the first request of another is told when to
    come back, and may do so on the same."""

    def __init__(self, door: Door, turnstile: Turnstile) -> None:
        self._door = door
        self._turnstile = turnstile

    def admit(self, request: Request, row: Row, name: str) -> Visitor:
        """Who asks, if they may. Probes are for everybody; so are metrics, where nobody is on guard, but not for pages
        of other sites."""
        if row.is_open and not row.action:
            return PASSER
        is_free = row.is_open and not self._door.is_guarded
        address = request.client.host if request.client is not None else ""
        connection: Connection = request.scope[ABORT]
        self._let_in(connection)
        try:
            if is_free or not row.is_open:
                _check_site(request)
            if is_free:
                return PASSER
            token = _token_of(request)
        except HttpRefusal as refused:
            self._door.turn_away(address, str(refused))
            raise
        visitor = self._door.admit(token, connection.certificate, address)
        connection.is_known = True
        if row.is_named or row.is_open:
            visitor.check(row.action, name)
        else:
            visitor.check_any(row.action)
        return visitor

    def _let_in(self, connection: Connection) -> None:
        if connection.is_let_in:
            return
        if wait := self._turnstile.enter():
            told = f"more clients come than are let in each second; come back in {wait:.3g} s"
            raise QuotaExceeded(told, retry_after=round(wait, 3))
        connection.is_let_in = True


def _check_site(request: Request) -> None:
    headers, scheme = request.headers, request.url.scheme
    host = headers.get("host", "")
    if len(headers.getlist("host")) > 1 or not (scheme == "https" or _is_own(_name_of(host))):
        raise HttpRefusal(
            421,
            Refused(
                f"this server is not {host[:100]!r}; ask it by its address, or as localhost, or give it a certificate "
                "for that name (tls_cert)"
            ),
        )
    origin = headers.get("origin")
    if origin is not None and not _is_same(origin, scheme, host):
        raise HttpRefusal(403, Refused(f"a page of {origin[:100]!r} may not use this server"))
    if headers.get("sec-fetch-site", "") not in _OWN_SITES:
        raise HttpRefusal(403, Refused("a page of another site may not use this server"))


def _is_own(name: str) -> bool:
    """Whether a host names this server whoever resolves it: an address does."""
    return name == "localhost" or _address(name) is not None


def _token_of(request: Request) -> str:
    """The token of an `Authorization: Bearer`; empty if there is none."""
    given = request.headers.getlist("authorization")
    if not given:
        return ""
    scheme, _, token = given[0].partition(" ")
    if len(given) > 1 or scheme.lower() != "bearer" or not token.strip():
        raise refusal(400, "Authorization is given once, as: Bearer TOKEN")
    return token.strip()


def _name_of(host: str) -> str:
    """The host without its port."""
    name = host.lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


def _is_same(origin: str, scheme: str, host: str) -> bool:
    try:
        found = urlsplit(origin)
    except ValueError:
        return False
    return (found.scheme, found.netloc.lower()) == (scheme, host.lower()) and not found.path


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
