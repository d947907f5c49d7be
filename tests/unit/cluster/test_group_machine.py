"""A group under any order of events: what it says agrees with the ledger, and it comes to rest."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mainstem.cluster.assignment import Unit
from mainstem.cluster.events import (
    Action,
    Answer,
    Beat,
    ChangeOwners,
    Event,
    Forget,
    Join,
    JoinAnew,
    Leave,
    OwnersChanged,
    SharedStream,
    StreamsChanged,
    Subscription,
    Tick,
)
from mainstem.cluster.group import Group
from mainstem.cluster.options import GroupOptions

members = st.integers(1, 6)


class GroupMachine(RuleBasedStateMachine):
    """The ledger answers when a rule says so; members beat with what they have, heard of late or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.shards = 5
        self.second = 2
        self.owners: dict[Unit, int] = {}
        self.waiting: ChangeOwners | None = None
        self.answers: dict[int, list[Answer]] = {}
        self.group = Group(GroupOptions(), 0, (), {}, 0.0)
        self.perform(self.group.start())
        self.streams()

    def happened(self, event: Event) -> None:
        self.perform(self.group.handle(event, self.now))

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case ChangeOwners():
                    assert self.waiting is None, "two changes under way"
                    assert action.generation == self.group.generation + 1
                    self.waiting = action
                case Answer():
                    assert all(self.owners.get(unit) == action.member for unit in (*action.hold, *action.let_go))
                    self.answers.setdefault(action.member, []).append(action)
                case JoinAnew() | Forget():
                    self.answers.pop(action.member, None)

    @rule()
    def ledger(self):
        if self.waiting is not None:
            change, self.waiting = self.waiting, None
            self.owners.update((unit, owner) for unit, owner in change.assigned if unit.stream in (1, self.second))
            self.happened(OwnersChanged(change.generation, {unit: 0 for unit, owner in change.assigned if owner}))

    @rule(member=members)
    def join(self, member):
        self.happened(Join(member, Subscription(pattern="*")))

    @rule(member=members, back=st.integers(0, 2), keeps=st.booleans())
    def beat(self, member, back, keeps):
        """With what it heard last or before; it may not have let go yet."""
        if heard := self.answers.get(member):
            answer = heard[max(len(heard) - 1 - back, 0)]
            held = frozenset(answer.hold) | (frozenset(answer.let_go) if keeps else frozenset())
            self.happened(Beat(member, answer.generation, answer.version, held))

    @rule(member=members)
    def leave(self, member):
        self.happened(Leave(member))

    @rule(seconds=st.floats(0, 2.9))
    def wait(self, seconds):
        self.now += seconds
        self.happened(Tick())

    @rule(shards=st.integers(0, 9))
    def change_streams(self, shards):
        """The second stream is deleted; another of its name comes, if it has shards."""
        self.second += 1
        self.shards = shards
        self.streams()

    def streams(self) -> None:
        streams = (SharedStream(1, "orders", 5), SharedStream(self.second, "clicks", self.shards))
        self.happened(StreamsChanged(streams[: 2 if self.shards else 1]))
        self.owners = {unit: owner for unit, owner in self.owners.items() if unit.stream in (1, self.second)}

    @invariant()
    def what_it_thinks_of_owners_is_what_the_ledger_says(self):
        assert self.group.owners == {unit: owner for unit, owner in self.owners.items() if owner}

    def teardown(self):
        """Left alone, with members that do as they are told, all units find an owner, evenly."""
        self.join(1)
        for _ in range(120):
            self.now += 1.0
            self.happened(Tick())
            self.ledger()
            self.ledger()
            for member in list(self.answers):
                self.beat(member, 0, False)
                self.ledger()
            if not self.group.members:
                self.join(7)
        counts = Counter(dict.fromkeys(self.group.members, 0))
        counts.update(owner for owner in self.owners.values() if owner)
        assert sum(counts.values()) == 5 + self.shards
        assert max(counts.values()) - min(counts.values()) <= 1


GroupMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestGroupMachine = GroupMachine.TestCase
