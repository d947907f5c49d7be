"""Sockets to listen on: bound before anything else is done, so that a port that is taken is known at once."""

import socket
from collections.abc import Sequence

from mainstem.core.kinds import Address


def bind(address: Address) -> list[socket.socket]:
    """A socket for every address that the host has; OSError if one cannot be had. Who connects is refused until
    somebody listens."""
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, place in dict.fromkeys(found):
            bound.append(socket.socket(family, kind, protocol))
            bound[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound[-1].bind(place)
    except OSError:
        for each in bound:
            each.close()
        raise
    return bound


def address_of(sockets: Sequence[socket.socket]) -> str:
    """The first of them, as clients write it."""
    host, port = sockets[0].getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
