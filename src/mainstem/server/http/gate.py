"""The gate: who asks, whether a page of another site does, and whether they may. Every request passes here once.

A browser lets any page send requests to a server on this machine; what it says about the page decides. `Host` must be a
name of this server, or a page could reach it under a name of its own that it has pointed here. `Origin`, and
`Sec-Fetch-Site` where a browser sends it, must be this server's own. Programs send neither.
"""

import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from mainstem.core.errors import Refused
from mainstem.server.door import NEIGHBOUR, Door, Visitor
from mainstem.server.http.problems import HttpRefusal, refusal
from mainstem.server.http.routes import Row
from mainstem.server.http.sending import ABORT, Connection

_OWN_SITES: Final = frozenset(("same-origin", "none", ""))


class Gate:
    """Lets requests through, or raises. `hosts` are names under which this server is known beside its addresses."""

    def __init__(self, door: Door, hosts: Collection[str] = ()) -> None:
        self._door = door
        self._hosts = frozenset(("localhost", *(host.lower() for host in hosts)))

    def admit(self, request: Request, row: Row, name: str) -> Visitor:
        """Who asks, if they may. Probes are for everybody; so are metrics, where nobody is on guard."""
        if row.is_open and not (row.action and self._door.is_guarded):
            return NEIGHBOUR
        if not row.is_open:
            self._check_site(request)
        visitor = self._let_in(request)
        if row.is_named or row.is_open:
            visitor.check(row.action, name)
        else:
            visitor.check_any(row.action)
        return visitor

    def _let_in(self, request: Request) -> Visitor:
        connection: Connection = request.scope[ABORT]
        address = request.client.host if request.client is not None else ""
        return self._door.admit(_token_of(request), connection.certificate, address)

    def _check_site(self, request: Request) -> None:
        headers = request.headers
        host = headers.get("host", "")
        if len(headers.getlist("host")) > 1 or not self._is_own(_name_of(host)):
            raise HttpRefusal(
                421, Refused(f"this server is not {host[:100]!r}; ask it by its address, or as localhost")
            )
        origin = headers.get("origin")
        if origin is not None and not _is_same(origin, request.url.scheme, host):
            raise HttpRefusal(403, Refused(f"a page of {origin[:100]!r} may not use this server"))
        if headers.get("sec-fetch-site", "") not in _OWN_SITES:
            raise HttpRefusal(403, Refused("a page of another site may not use this server"))

    def _is_own(self, name: str) -> bool:
        """Whether a host names this server whoever resolves it: an address does, and so do names we were given."""
        return name in self._hosts or _address(name) is not None


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
