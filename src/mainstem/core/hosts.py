"""Hosts: which of them are this machine."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can be meant. A name other than `localhost` is not: what it means is decided elsewhere
    and can change."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
