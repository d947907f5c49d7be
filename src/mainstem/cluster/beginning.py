"""Where a group begins in a stream that it has never read: as a member wants it, if all could want something."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mainstem.cluster.events import SharedStream, Subscription


@dataclass(frozen=True, slots=True)
class Wish:
    """What a member said when it joined: which streams it reads, and where the group should begin in the shards of
    those that it knew, by stream."""

    subscription: Subscription
    starts: Mapping[int, tuple[int, ...]]


def is_read_from_beginning(stream: SharedStream, wishes: Sequence[Wish], group_created_us: int | None) -> bool:
    """Whether a group begins at the beginning of a stream, wherever these members, who read it, would begin.

    So it is with a stream that one of them did not know when it joined, and with one that only patterns find and that
    is younger than the group, which asked for whatever may come: nothing of it is missed. A group that does not exist
    yet is no older than anything.
    """
    if any(stream.id not in wish.starts for wish in wishes):
        return True
    is_named = any(stream.name in wish.subscription.names for wish in wishes)
    return not is_named and group_created_us is not None and stream.created_us > group_created_us
