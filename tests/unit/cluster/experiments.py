"""The acceptance experiments of S11 and S12 on an injected clock: what decides goes in, what it came to
comes out."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from mainstem.cluster.advice import Advisor, MemberLoad
from mainstem.cluster.assignment import Unit
from mainstem.cluster.events import (
    Action,
    Answer,
    Beat,
    ChangeOwners,
    Event,
    Join,
    OwnersChanged,
    SharedStream,
    StreamsChanged,
    Subscription,
    Tick,
)
from mainstem.cluster.group import Group
from mainstem.cluster.options import GroupOptions


class Shell:
    """A coordinator whose ledger always agrees, at once, and members that do at once as they are told."""

    def __init__(self, streams: tuple[SharedStream, ...], options: GroupOptions | None = None) -> None:
        self.now = 0.0
        self.group = Group(options or GroupOptions(), 0, (), {}, self.now)
        self.answers: dict[int, Answer] = {}
        self.log: list[Action] = []
        self.rate: Callable[[Unit], float] = lambda unit: 0.0
        self.perform(self.group.start())
        self.happened(StreamsChanged(streams))

    def happened(self, event: Event) -> list[Action]:
        before = len(self.log)
        self.perform(self.group.handle(event, self.now))
        return self.log[before:]

    def perform(self, actions: list[Action]) -> None:
        self.log += actions
        for action in actions:
            if isinstance(action, ChangeOwners):
                cursors = {unit: 0 for unit, owner in action.assigned if owner}
                self.perform(self.group.handle(OwnersChanged(action.generation, cursors), self.now))
            elif isinstance(action, Answer):
                self.answers[action.member] = action

    def join(self, *members: int, subscription: Subscription | None = None) -> None:
        for member in members:
            self.happened(Join(member, subscription or Subscription(pattern="*")))

    def beat(self, member: int) -> list[Action]:
        answer = self.answers[member]
        held = frozenset(answer.hold)
        return self.happened(Beat(member, answer.generation, answer.version, held, {u: self.rate(u) for u in held}))

    def run(self, seconds: float, *, silent: frozenset[int] = frozenset()) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            self.happened(Tick())
            for member in [member for member in self.answers if member not in silent]:
                if member in self.group.members:
                    self.beat(member)


def s11_loads() -> list[float]:
    """Twelve shards with rates 1 to 12 and three members: the largest load over the mean before and after each of two
    rebalances."""
    shell = Shell((SharedStream(1, "orders", 12),))
    shell.rate = lambda unit: (unit.shard + 1) * 2e6 / 78
    shell.join(1, 2, 3)
    shell.run(5.0)
    ratios = [_ratio(shell)]
    for _ in range(2):
        shell.run(31.0)
        ratios.append(_ratio(shell))
    return ratios


def _ratio(shell: Shell) -> float:
    loads = Counter[int]()
    for unit, owner in shell.group.owners.items():
        loads[owner] += unit.shard + 1
    return max(loads.values()) / (78 / 3)


@dataclass(frozen=True, slots=True)
class Phase:
    """A time of even traffic: what the advice was in each period, and how old the oldest unread record was at most in
    the second half."""

    sizes: list[int]
    lag_seconds_max: float


def s12_phases(advisor: Advisor, *, period: float, seconds: float, capacity: float = 200.0) -> list[Phase]:
    """Traffic of 300, 1,500 and 300 messages a second; members manage 200 each, and a supervisor does as advised."""
    members, backlog, phases = 1, 0.0, []
    for rate in (300.0, 1500.0, 300.0):
        sizes: list[int] = []
        lag = 0.0
        for index in range(int(seconds / period)):
            able = members * capacity * period
            offered = backlog + rate * period
            done = min(able, offered)
            backlog = offered - done
            loads = [MemberLoad(done / members / period, is_bottleneck=offered > able)] * members
            members = advisor.observe(rate, backlog, loads, 64).members
            sizes.append(members)
            if index >= seconds / period / 2:
                lag = max(lag, backlog / rate)
        phases.append(Phase(sizes, lag))
    return phases
