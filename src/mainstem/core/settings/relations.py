"""What several settings must agree on, and what this version cannot do yet."""

from collections.abc import Mapping
from typing import Any

from mainstem.core.errors import InvalidSetting
from mainstem.core.hosts import is_loopback
from mainstem.core.kinds import Address, render_duration
from mainstem.core.settings.setting import said_from


def check_relations(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Refuse values that do not go together, with an InvalidSetting."""
    for certificate, key in (("tls_cert", "tls_key"), ("tls_client_cert", "tls_client_key")):
        _check_pair(certificate, key, values, origins)
    if values["tls_client_ca"] is not None and values["tls_cert"] is None:
        raise InvalidSetting(
            f"tls_client_ca{said_from(origins.get('tls_client_ca', ''))} is of no use without TLS. Give tls_cert and"
            " tls_key too."
        )
    for name in ("listen", "http"):
        if values[name] is not None and values["tls_cert"] is None:
            require_loopback(values[name], name, origins.get(name, ""))
    if values["kafka"] is not None:
        raise InvalidSetting(
            f"kafka = {str(values['kafka'])!r}{said_from(origins.get('kafka', ''))}: this version does not speak the"
            " Kafka protocol. Leave the setting out, or set it to 'off'."
        )
    _check_ports(values, origins)
    _check_silence(values, origins)


def _check_pair(certificate: str, key: str, values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    if (values[certificate] is None) != (values[key] is None):
        given, missing = (certificate, key) if values[key] is None else (key, certificate)
        raise InvalidSetting(f"{given}{said_from(origins.get(given, ''))} is of no use without {missing}. Give both.")


def require_loopback(address: Address, name: str = "listen", origin: str = "") -> None:
    """Refuse to listen where other machines could connect.

    A host name other than `localhost` is refused too: what it means is decided elsewhere and can change.
    """
    if is_loopback(address.host):
        return
    raise InvalidSetting(
        f"{name} = {str(address)!r}{said_from(origin)} would let other machines connect, and what they say would be"
        " open to everybody on the way. Give --tls-cert FILE and --tls-key FILE, and make a token first: mainstem token"
        f" create NAME --admin --data FOLDER. Or listen on 127.0.0.1:{address.port} and reach it from elsewhere through"
        " an SSH tunnel or a proxy that authenticates."
    )


def _check_ports(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    address = values["listen"]
    if address is not None and address.port != 0 and address == values["http"]:
        raise InvalidSetting(
            f"listen{said_from(origins.get('listen', ''))} and http{said_from(origins.get('http', ''))} are both"
            f" {address}. Give each its own port, or turn one off."
        )


def _check_silence(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    # One late heartbeat must not look like a dead peer.
    for beat, limit in (("heartbeat", "idle_timeout"), ("group_heartbeat", "group_session_timeout")):
        often, silent = values[beat], values[limit]
        if silent < 2 * often:
            raise InvalidSetting(
                f"{limit} = {render_duration(silent)!r}{said_from(origins.get(limit, ''))} is less than twice"
                f" the {beat} of {render_duration(often)}{said_from(origins.get(beat, ''))}: healthy peers"
                f" would be dropped. Set {limit} to at least {render_duration(2 * often)}, or lower {beat}."
            )
