"""The gate: who asks, whether a page of another site does, and whether they may. Every request passes here once.

A browser lets any page send requests to a server on this machine; what it says about the page decides. `Host` must be a
name of this server, or a page could reach it under a name of its own that it has pointed here. `Origin`, and
`Sec-Fetch-Site` where a browser sends it, must be this server's own. Programs send neither.
"""

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlsplit

from starlette.requests import Request

from mainstem.core.errors import Refused
from mainstem.server.http.problems import HttpRefusal

_OWN_SITES: Final = frozenset(("same-origin", "none", ""))


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks."""

    name: str


LOOPBACK: Final = Principal("loopback")


class Access(Protocol):
    """Who may do what. Must not wait."""

    def authenticate(self, request: Request) -> Principal:
        """Who asks; raises if that cannot be told."""
        ...

    def allow(self, principal: Principal, action: str, stream: str | None) -> None:
        """Raises if this principal may not do that."""
        ...


class LoopbackAccess:
    """Whoever is on this machine may do everything, and nobody else anything."""

    def authenticate(self, request: Request) -> Principal:
        host = request.client.host if request.client is not None else ""
        if not _is_loopback(host):
            raise HttpRefusal(403, Refused("only programs on the server's own machine may use it"))
        return LOOPBACK

    def allow(self, principal: Principal, action: str, stream: str | None) -> None:
        return None


class Gate:
    """Lets requests through, or raises. `hosts` are names under which this server is known beside its addresses."""

    def __init__(self, access: Access, hosts: Collection[str] = ()) -> None:
        self._access = access
        self._hosts = frozenset(("localhost", *(host.lower() for host in hosts)))

    def admit(self, request: Request, action: str, stream: str | None) -> Principal:
        self._check_site(request)
        principal = self._access.authenticate(request)
        self._access.allow(principal, action, stream)
        return principal

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


def _is_loopback(text: str) -> bool:
    found = _address(text)
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found is not None and found.is_loopback
