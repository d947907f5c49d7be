"""The streams `_counts` and `_verified`: what producers say they have sent, and what audits found, as JSON.

    _counts     {"producer": "1f…", "number": 3, "source": "billing.py[4711]@host", "stream": "orders",
                 "uuid": "9d…", "start_us": 1790000000000000, "window_us": 60000000, "sent": 1200,
                 "acknowledged": 1200}
    _verified   {"stream": "orders", "uuid": "9d…", "through_us": 1790000600000000, "differing": 0,
                 "tiers": ["log", "/lake/orders"], "forgotten": []}

The key is the name of the stream. `uuid` is given by who speaks: what comes late may be of a stream that was deleted,
and another has its name now. The same producer, number, stream and start are one count, however often they come.
"""

import json
from typing import TYPE_CHECKING, Any, Final

from mainstem.core.errors import InvalidSetting
from mainstem.core.names import check_stream_name
from mainstem.core.redaction import redacted
from mainstem.core.windows import WINDOW_US_MAX, WINDOW_US_MIN
from mainstem.log.own_stream import OwnStream
from mainstem.transport.counting import COUNTS_STREAM, VERIFIED_STREAM, CountingCall, NoteCountsCall

if TYPE_CHECKING:
    from mainstem.log.log import Log

# Longer than most streams are kept, so that what is there can be audited.
_RETENTION_US: Final = 90 * 24 * 3600 * 1_000_000
_RETENTION_BYTES: Final = 4 << 30


class Counted:
    """Writes both streams. Any thread but those that commit."""

    def __init__(self, log: "Log") -> None:
        self._counts = OwnStream(log, COUNTS_STREAM, _RETENTION_US, _RETENTION_BYTES)
        self._verified = OwnStream(log, VERIFIED_STREAM, _RETENTION_US, _RETENTION_BYTES)

    def note(self, call: CountingCall) -> None:
        """Durable when this returns."""
        if not isinstance(call, NoteCountsCall):
            said = {
                "stream": call.name,
                "uuid": call.uuid,
                "through_us": call.through_us,
                "differing": call.differing,
                "tiers": call.tiers,
                "forgotten": call.forgotten,
            }
            self._verified.append([_json(said)], [check_stream_name(call.name, reserved=True).encode()])
            return
        if not WINDOW_US_MIN <= call.window_us <= WINDOW_US_MAX:
            raise InvalidSetting("windows in which records are counted are between 1 second and 24 hours long")
        if not call.counts:
            return
        told = {"producer": f"{call.producer:x}", "number": call.number, "source": redacted(call.source)}
        values = [
            _json(
                told
                | {
                    "stream": check_stream_name(count.stream, reserved=True),
                    "uuid": count.uuid,
                    "start_us": count.start_us,
                    "window_us": call.window_us,
                    "sent": count.sent,
                    "acknowledged": count.acknowledged,
                }
            )
            for count in call.counts
        ]
        self._counts.append(values, [count.stream.encode() for count in call.counts])


def _json(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode(errors="replace")
