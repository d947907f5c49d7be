"""What may be chosen about a producer, and which choices make sense."""

from datetime import timedelta
from typing import Final, Literal

import msgspec

from mainstem.core.durations import microseconds
from mainstem.core.errors import InvalidSetting
from mainstem.core.limits import KIB, MIB, PAYLOAD_RAW_BYTES_MAX
from mainstem.core.windows import WINDOW_US_MAX, WINDOW_US_MIN


class ProducerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be chosen about a producer; see `Hub.producer`, which has the defaults."""

    acks: Literal["durable", "none"] = "durable"
    batch_bytes: int = 1 * MIB
    buffer_bytes: int = 32 * MIB
    linger: float = 0.0
    delivery_timeout: float = 120.0
    compression: Literal["zstd", "lz4"] | None = "lz4"
    on_full: Literal["block", "raise"] = "block"
    on_bad: Literal["raise", "dead_letter"] = "raise"
    counts: str | timedelta | None = None

    def window_us(self) -> int:
        """How long the windows are in which records are counted, 0 if they are not."""
        return 0 if self.counts is None else microseconds(self.counts)

    def check(self) -> None:
        """Refuse what makes no sense, in the words of the caller."""
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                named = ", ".join(repr(choice) for choice in choices)
                raise InvalidSetting(f"hub.producer: {name} is one of {named}, not {getattr(self, name)!r}")
        for name in ("batch_bytes", "buffer_bytes", "linger", "delivery_timeout"):
            value = getattr(self, name)
            kind = int if name.endswith("_bytes") else int | float
            if not isinstance(value, kind) or isinstance(value, bool) or value != value:
                raise InvalidSetting(f"hub.producer: {name} is a number of {_UNITS[name]}, not {value!r}")
        if not 1 * KIB <= self.batch_bytes <= PAYLOAD_RAW_BYTES_MAX // 2:
            raise InvalidSetting(f"hub.producer: batch_bytes is between 1 KiB and 8 MiB, not {self.batch_bytes}")
        if self.buffer_bytes < 2 * self.batch_bytes:
            raise InvalidSetting(
                f"hub.producer: buffer_bytes ({self.buffer_bytes}) is at least twice batch_bytes ({self.batch_bytes})"
            )
        if self.linger < 0 or self.delivery_timeout <= 0:
            raise InvalidSetting("hub.producer: linger is not negative, and delivery_timeout is more than 0 seconds")
        if self.counts is not None and not WINDOW_US_MIN <= self.window_us() <= WINDOW_US_MAX:
            raise InvalidSetting("hub.producer: counts is the length of a window, between 1 second and 24 hours")


_CHOICES: Final = {
    "acks": ("durable", "none"),
    "compression": ("zstd", "lz4", None),
    "on_full": ("block", "raise"),
    "on_bad": ("raise", "dead_letter"),
}
_UNITS: Final = {"batch_bytes": "bytes", "buffer_bytes": "bytes", "linger": "seconds", "delivery_timeout": "seconds"}
