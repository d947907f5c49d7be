"""What happens to a group, and what is to be done about it: the events and the actions of its state machine."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from mainstem.cluster.assignment import Unit

# Whether a member may read the stream of this name. Two that always answer the same should be equal: they are asked as
# one.
MayRead = Callable[[str], bool]


def everything(name: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Subscription:
    """The streams that a member reads: by name, or by a pattern that also picks up those that come later. A pattern
    finds our own streams, whose names begin with `_`, only if it begins so itself, and none that the member may not
    read; what it names was looked at before."""

    names: frozenset[str] = frozenset()
    pattern: str | None = None
    may_read: MayRead = everything

    def wants(self, name: str) -> bool:
        if name in self.names:
            return True
        if self.pattern is None or (name.startswith("_") and not self.pattern.startswith("_")):
            return False
        return fnmatchcase(name, self.pattern) and self.may_read(name)


@dataclass(frozen=True, slots=True)
class StreamChange:
    """A stream got more shards: the number of the generation, how many there are since, where those before ended."""

    generation: int
    shards: int
    barriers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SharedStream:
    """A stream as a group knows it. `shards` is their number now, after all `changes`. One that `has_order`,
    by a key, is not spread."""

    id: int
    name: str
    shards: int
    changes: tuple[StreamChange, ...] = ()
    has_order: bool = False
    created_us: int = 0


# ---------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Join:
    """Somebody wants to be a member, under an id that it has just drawn. If it was one before, it says which units it
    still stands in, and by which generation of the group: it gets them again if nobody else has a better claim."""

    member: int
    subscription: Subscription
    held: Set[Unit] = frozenset()
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Beat:
    """A member lives. It has acted on the answer of this version and now stands in `held`; what it was asked for and
    does not name is committed and let go. `rates` are bytes per second since its last beat."""

    member: int
    generation: int
    version: int
    held: Set[Unit] = frozenset()
    rates: Mapping[Unit, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Leave:
    """A member goes. It has committed what it wanted to."""

    member: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class StreamsChanged:
    """All streams that there are now, as far as they can concern this group."""

    streams: tuple[SharedStream, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """The ledger has moved cursors of this group."""

    offsets: Mapping[Unit, int]


@dataclass(frozen=True, slots=True)
class OwnersChanged:
    """The ledger has done what `ChangeOwners` asked. `cursors` has the group's cursor, as of then, in every unit that
    was given to somebody."""

    generation: int
    cursors: Mapping[Unit, int]


@dataclass(frozen=True, slots=True)
class OwnersRefused:
    """The ledger is at another generation: the group was reset or deleted, or somebody else coordinates it. Also said
    when nobody knows whether the change was made."""


Event = Join | Beat | Leave | Tick | StreamsChanged | Committed | OwnersChanged | OwnersRefused

# --------------------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class ChangeOwners:
    """Have the ledger note these owners, 0 for none; units that are not named keep theirs. Only one is under way."""

    generation: int
    assigned: tuple[tuple[Unit, int], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the request of a member that waits: a join or a beat.

    It stands in `hold` from now on, in those that are new to it at `cursors`. It commits what it has done of `let_go`
    and lets them go. What it has beside these two is lost to it. It passes over answers of a lower version than it
    has seen. `passed` has the generation of each stream with barriers up to which it may read over them.
    """

    member: int
    generation: int
    version: int
    hold: tuple[Unit, ...]
    cursors: tuple[tuple[Unit, int], ...]
    let_go: tuple[Unit, ...]
    passed: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class JoinAnew:
    """Tell whoever asks under this id to draw another and join."""

    member: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The member is none any more: it left, or was not heard of for too long. Nobody waits for its requests."""

    member: int


@dataclass(frozen=True, slots=True)
class RefuseMember:
    """The group is full."""

    member: int


@dataclass(frozen=True, slots=True)
class End:
    """This coordination of the group is over. If it is still ours, another starts from what the ledger says."""


Action = ChangeOwners | Answer | JoinAnew | Forget | RefuseMember | End
