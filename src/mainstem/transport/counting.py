"""What producers say of what they have sent, and what an audit made of it; see docs/audit.md."""

from collections.abc import Iterable
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
# What an audit is about besides tables: what is acknowledged, and what can be read.
LOG_TIER: Final = "log"
TIERS_PER_CALL_MAX: Final = 100
TIER_CHARS_MAX: Final = 1_000

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=STREAM_NAME_CHARS_MAX)]
# Of a stream: another one may have its name later. Empty says that any of the name is meant.
Uuid = Annotated[str, msgspec.Meta(max_length=32)]
# "log", or the folder of a table.
Tier = Annotated[str, msgspec.Meta(min_length=1, max_length=TIER_CHARS_MAX)]
Tiers = Annotated[tuple[Tier, ...], msgspec.Meta(max_length=TIERS_PER_CALL_MAX)]


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
    after that are not as they should be. `tiers` are those that were compared, and `forgotten` tables that count no
    more. Kept in the stream `_verified`, whose newest record of each tier of a stream counts."""

    name: Name
    through_us: TimeUs
    differing: U63 = 0
    uuid: Uuid = ""
    tiers: Tiers = (LOG_TIER,)
    forgotten: Tiers = ()


class Verified(msgspec.Struct, frozen=True):
    """A record of `_verified`. What was kept before it had a uuid counts for every stream of its name."""

    stream: str
    through_us: int
    differing: int = 0
    uuid: str = ""
    tiers: tuple[str, ...] = (LOG_TIER,)
    forgotten: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        """All tiers that it says something of."""
        return self.tiers + self.forgotten


def worst(newest: Iterable[tuple[str, Verified]]) -> Verified | None:
    """What all tiers of a stream come to, each with the newest record that names it: as far as the one that is verified
    least, with as many windows as differ where most do. Its `tiers` are those that are verified no further; None if
    there is none that counts."""
    counting = [(tier, said) for tier, said in newest if tier in said.tiers]
    if not counting:
        return None
    least = min((said for _, said in counting), key=lambda said: said.through_us)
    tiers = sorted(tier for tier, said in counting if said.through_us == least.through_us)
    differing = max(said.differing for _, said in counting)
    return msgspec.structs.replace(least, differing=differing, tiers=tuple(tiers), forgotten=())


CountingCall = NoteCountsCall | NoteVerifiedCall
