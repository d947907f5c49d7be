"""What producers say of what they have sent, and what an audit made of it; see docs/audit.md."""

from typing import Annotated, Final

import msgspec

from mainstem.core.batch import U63, TimeUs
from mainstem.core.limits import STREAM_NAME_CHARS_MAX

# Where counts are kept, and what audits have found.
COUNTS_STREAM: Final = "_counts"
VERIFIED_STREAM: Final = "_verified"
# Counts in one call.
COUNTS_PER_CALL_MAX: Final = 1_000
SOURCE_CHARS_MAX: Final = 300

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=STREAM_NAME_CHARS_MAX)]
# Of a stream: another one may have its name later. Empty says that any of the name is meant.
Uuid = Annotated[str, msgspec.Meta(max_length=32)]


class Count(msgspec.Struct, frozen=True):
    """Records of one stream and window that were sent since this was told last, and how many of them are known to be
    durable; None if nobody was asked."""

    stream: Name
    start_us: TimeUs
    sent: U63
    acknowledged: U63 | None = None
    uuid: Uuid = ""


class NoteCountsCall(msgspec.Struct, frozen=True, tag="note_counts"):
    """Kept in the stream `_counts`, once for each producer and number, however often it is said: readers see to that.
    `source` is what the producer calls itself, `window_us` the length of its windows."""

    producer: U63
    number: U63
    source: Annotated[str, msgspec.Meta(max_length=SOURCE_CHARS_MAX)]
    window_us: U63
    counts: Annotated[tuple[Count, ...], msgspec.Meta(max_length=COUNTS_PER_CALL_MAX)]


class NoteVerifiedCall(msgspec.Struct, frozen=True, tag="note_verified"):
    """Up to which time an audit found every record of a stream where it belongs. `differing` says how many windows
    after that are not as they should be. Kept in the stream `_verified`, whose newest record of a stream counts."""

    name: Name
    through_us: TimeUs
    differing: U63 = 0
    uuid: Uuid = ""


class Verified(msgspec.Struct, frozen=True):
    """A record of `_verified`. What was kept before it had a uuid counts for every stream of its name."""

    stream: str
    through_us: int
    differing: int = 0
    uuid: str = ""


CountingCall = NoteCountsCall | NoteVerifiedCall
