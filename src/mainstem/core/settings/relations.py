"""What several settings must agree on, and what this version cannot do yet."""

import ipaddress
from collections.abc import Mapping
from typing import Any

from mainstem.core.errors import InvalidSetting
from mainstem.core.kinds import Address, render_duration
from mainstem.core.settings.setting import said_from


def check_relations(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Refuse values that do not go together, with an InvalidSetting."""
    for name in ("listen", "http"):
        if values[name] is not None:
            require_loopback(values[name], name, origins.get(name, ""))
    if values["kafka"] is not None:
        raise InvalidSetting(
            f"kafka = {str(values['kafka'])!r}{said_from(origins.get('kafka', ''))}: this version does not speak the"
            " Kafka protocol. Leave the setting out, or set it to 'off'."
        )
    _check_ports(values, origins)
    _check_silence(values, origins)


def require_loopback(address: Address, name: str = "listen", origin: str = "") -> None:
    """Refuse to listen where other machines could connect.

    A host name other than `localhost` is refused too: what it means is decided elsewhere and can change.
    """
    if address.host.lower() == "localhost" or _is_loopback(address.host):
        return
    raise InvalidSetting(
        f"{name} = {str(address)!r}{said_from(origin)} would let other machines connect, and this version has neither"
        f" TLS nor tokens to protect the log from them. Listen on 127.0.0.1:{address.port} and reach it from elsewhere"
        " through an SSH tunnel or a proxy that authenticates."
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_ports(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    address = values["listen"]
    if address is not None and address.port != 0 and address == values["http"]:
        raise InvalidSetting(
            f"listen{said_from(origins.get('listen', ''))} and http{said_from(origins.get('http', ''))} are both"
            f" {address}. Give each its own port, or turn one off."
        )


def _check_silence(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    # One late heartbeat must not look like a dead peer.
    heartbeat, idle = values["heartbeat"], values["idle_timeout"]
    if idle < 2 * heartbeat:
        raise InvalidSetting(
            f"idle_timeout = {render_duration(idle)!r}{said_from(origins.get('idle_timeout', ''))} is less than twice"
            f" the heartbeat of {render_duration(heartbeat)}{said_from(origins.get('heartbeat', ''))}: healthy peers"
            f" would be dropped. Set idle_timeout to at least {render_duration(2 * heartbeat)}, or lower heartbeat."
        )
