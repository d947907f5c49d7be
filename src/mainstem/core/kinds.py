"""Kinds of values: how an address, a path, a size, a duration is written as text, read back, and refused.

The settings and the command line share them. What is wrong with a text is a ValueError, whose words fit behind a colon;
whoever asked says where the text came from.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import SplitResult, urlsplit


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0 asks the system for any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


# Decimal units first: a value that is whole in both is shown in the shorter, decimal one.
_BYTE_UNITS: Final[Mapping[str, int]] = {
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "kB": 10**3,
    "TiB": 1 << 40,
    "GiB": 1 << 30,
    "MiB": 1 << 20,
    "KiB": 1 << 10,
    "B": 1,
}
_DURATION_UNITS_US: Final[Mapping[str, int]] = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
# Twenty digits are more than any bound; a longer number is refused before it is converted.
_QUANTITY: Final = re.compile(r"(?P<number>\d{1,20}(?:\.\d{1,9})?)\s*(?P<unit>[A-Za-z]*)", re.ASCII)


def parse_bytes(raw: str | int) -> int:
    """A size: `64MB` (decimal), `64 MiB` (binary) or a plain number of bytes. ValueError says what is wrong."""
    return raw if isinstance(raw, int) else _parse_quantity(raw, _BYTE_UNITS, bare_unit="B")


def render_bytes(size: int) -> str:
    """The shortest exact text; `parse_bytes` gives the same size back."""
    return _render_quantity(size, _BYTE_UNITS, zero="0 B")


def parse_duration(raw: str) -> float:
    """Seconds of `250ms`, `5s`, `1.5h`, `7d`; exact to the microsecond. ValueError says what is wrong."""
    return _parse_quantity(raw, _DURATION_UNITS_US, bare_unit=None) / 1_000_000


def render_duration(seconds: float) -> str:
    """The shortest exact text; `parse_duration` gives the same seconds back."""
    return _render_quantity(round(seconds * 1_000_000), _DURATION_UNITS_US, zero="0s").replace(" ", "")


def _parse_quantity(text: str, units: Mapping[str, int], bare_unit: str | None) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError("it is not a number followed by a unit")
    unit = match["unit"] or bare_unit
    if unit is None:
        raise ValueError(f"it needs a unit, one of {', '.join(units)}")
    size = {name.lower(): size for name, size in units.items()}.get(unit.lower())
    if size is None:
        raise ValueError(f"the unit {unit!r} is not one of {', '.join(units)}")
    amount = Decimal(match["number"]) * size
    if amount != int(amount):
        raise ValueError("it is finer than can be kept")
    return int(amount)


def _render_quantity(amount: int, units: Mapping[str, int], zero: str) -> str:
    whole = [(amount // size, unit) for unit, size in units.items() if amount >= size and amount % size == 0]
    if not whole:
        return zero
    number, unit = min(whole)
    return f"{number} {unit}"


class Kind:
    """How one sort of value is read from text or TOML and written back. Stateless; shared by all threads."""

    name: ClassVar[str]
    article: ClassVar[str] = "a"
    form: ClassVar[str]
    accepts: ClassVar[tuple[type, ...]]

    def parse(self, raw: object) -> Any:
        """The value of a text (flag, variable, file) or of a TOML number or boolean. ValueError says what is wrong."""
        if not isinstance(raw, str):
            raise ValueError("it must be written as text, in quotes")
        return self._parse_text(raw.strip())

    def _parse_text(self, text: str) -> Any:
        raise NotImplementedError

    def render(self, value: Any) -> str:
        """The text that `parse` turns into the same value."""
        return str(value)

    def check(self, value: object) -> None:
        """Refuse a value of another type, for settings made in code. ValueError says what is wrong."""
        # bool is an int to Python, but `connections_max=True` is a mistake.
        if not isinstance(value, self.accepts) or (isinstance(value, bool) and bool not in self.accepts):
            raise ValueError(f"it is a {type(value).__name__}")


class AddressKind(Kind):
    """`host:port`, `[v6]:port` or `off`."""

    name = "address"
    article = "an"
    form = "`host:port`, or `off`; port 0 takes any free one"
    accepts = (Address, type(None))

    def _parse_text(self, text: str) -> Address | None:
        if text.lower() == "off":
            return None
        host, colon, port = text.rpartition(":")
        if not colon or not host:
            raise ValueError("it needs both a host and a port")
        bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if bracketed else host
        if not bracketed and ":" in host:
            raise ValueError("an IPv6 host is written in brackets, as in [::1]:7070")
        if not re.fullmatch(r"[A-Za-z0-9._:%-]{1,255}", host):
            raise ValueError("the host is not a name or an IP address")
        return Address(host, _parse_port(port))

    def render(self, value: Any) -> str:
        return "off" if value is None else str(value)


class PathKind(Kind):
    """A folder or file; `~` is the home folder."""

    name = "path"
    form = "a folder; relative to the working directory, `~` is the home folder"
    accepts: ClassVar[tuple[type, ...]] = (Path,)

    def _parse_text(self, text: str) -> Path:
        if not text or "\0" in text:
            raise ValueError("it is empty" if not text else "it contains a zero byte")
        return expand_home(text)

    def render(self, value: Any) -> str:
        text = str(value)
        return text if value.is_absolute() or text.startswith(".") else f"./{text}"


class FileKind(PathKind):
    """A file, or none."""

    name = "file"
    form = "a file, or `off`; relative to the working directory, `~` is the home folder"
    accepts = (Path, type(None))

    def _parse_text(self, text: str) -> Path | None:  # type: ignore[override]  # a file may be missing, a folder not
        return None if text.lower() == "off" else super()._parse_text(text)

    def render(self, value: Any) -> str:
        return "off" if value is None else super().render(value)


def expand_home(text: str) -> Path:
    # Without this a `~` in a TOML file would create a folder called "~".
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("the home folder is not known") from None


class BytesKind(Kind):
    """A size in bytes, as an int."""

    name = "bytes"
    article = "a number of"
    form = "`64MB`, `64 MiB` or a number of bytes"
    accepts = (int,)

    def parse(self, raw: object) -> int:
        if isinstance(raw, int) and not isinstance(raw, bool):
            return raw
        return int(super().parse(raw))

    def _parse_text(self, text: str) -> int:
        return parse_bytes(text)

    def render(self, value: Any) -> str:
        return render_bytes(value)


class DurationKind(Kind):
    """A length of time, in seconds."""

    name = "duration"
    form = "a number with `us`, `ms`, `s`, `m`, `h` or `d`"
    accepts = (int, float)

    def parse(self, raw: object) -> float:
        if isinstance(raw, int | float) and not isinstance(raw, bool):
            raise ValueError(f"it needs a unit, as in '{raw}s'")
        return float(super().parse(raw))

    def _parse_text(self, text: str) -> float:
        return parse_duration(text)

    def render(self, value: Any) -> str:
        return render_duration(value)


class IntKind(Kind):
    """A whole number."""

    name = "int"
    article = "an"
    form = "a whole number"
    accepts = (int,)

    def parse(self, raw: object) -> int:
        if isinstance(raw, int) and not isinstance(raw, bool):
            return raw
        return int(super().parse(raw))

    def _parse_text(self, text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise ValueError("it is not a whole number")
        return int(text)


class BoolKind(Kind):
    """Yes or no."""

    name = "bool"
    form = "`true` or `false`"
    accepts = (bool,)
    _WORDS: ClassVar[Mapping[str, bool]] = {
        **dict.fromkeys(("true", "yes", "on", "1"), True),
        **dict.fromkeys(("false", "no", "off", "0"), False),
    }

    def parse(self, raw: object) -> bool:
        return raw if isinstance(raw, bool) else bool(super().parse(raw))

    def _parse_text(self, text: str) -> bool:
        if text.lower() not in self._WORDS:
            raise ValueError("it is neither true nor false")
        return self._WORDS[text.lower()]

    def render(self, value: Any) -> str:
        return "true" if value else "false"


class ChoiceKind(Kind):
    """One word of a fixed list."""

    name = "choice"
    accepts = (str,)

    def __init__(self, *choices: str) -> None:
        self.choices: Final = choices

    @property
    def form(self) -> str:  # type: ignore[override]  # the list is the instance's
        return ", ".join(f"`{choice}`" for choice in self.choices[:-1]) + f" or `{self.choices[-1]}`"

    def _parse_text(self, text: str) -> str:
        self.check(text.lower())
        return text.lower()

    def check(self, value: object) -> None:
        super().check(value)
        if value not in self.choices:
            raise ValueError(f"it is not one of {', '.join(self.choices)}")


class UrlKind(Kind):
    """The address of a server as clients write it: `mainstem://host:port`, with TLS `mainstems://host:port`."""

    name = "url"
    form = "`mainstem://host:port`, or `mainstems://host:port` with TLS"
    accepts = (str,)

    def _parse_text(self, text: str) -> str:
        self.check(text)
        return text

    def check(self, value: object) -> None:
        super().check(value)
        if not re.fullmatch(r"[!-~]+", str(value)):
            raise ValueError("it is empty, or has a character that is not printable ASCII")
        parts = urlsplit(str(value))
        if parts.scheme not in ("mainstem", "mainstems"):
            raise ValueError("it begins neither with mainstem:// nor with mainstems://")
        if parts.username is not None or parts.password is not None:
            raise ValueError("it carries a user or password, which would show up in logs")
        _check_url_place(parts)


def _check_url_place(parts: SplitResult) -> None:
    if not parts.hostname:
        raise ValueError("it has no host")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("something follows the port")
    if ":" in parts.netloc.rpartition("]")[2]:
        _parse_port(parts.netloc.rpartition(":")[2])


def _parse_port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65_535:
        raise ValueError("the port is not a number from 0 to 65535")
    return int(text)
