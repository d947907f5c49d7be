"""A group on an injected clock: a coordinator that is restarted, members that come, go, crash, freeze and dawdle, a
network that delays and loses, a stream that gets more shards. One seed drives everything.

The ledger here is a model of the real one: it alone decides who may commit. What must hold is checked at every step:

- a member is told to hold only what the ledger says it owns, and from where the group stands;
- a commit that is accepted covers everything from the cursor on: nothing is skipped;
- nothing behind a barrier is read before the group has passed it;
- no unit is without a live owner for long, as long as there are members;
- where nothing goes wrong, nobody is interrupted: no unit is read by two at a time.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from mainstem.cluster.assignment import Unit
from mainstem.cluster.events import (
    Action,
    Answer,
    Beat,
    ChangeOwners,
    Committed,
    End,
    Event,
    Forget,
    Join,
    JoinAnew,
    Leave,
    OwnersChanged,
    OwnersRefused,
    SharedStream,
    StreamChange,
    StreamsChanged,
    Subscription,
    Tick,
)
from mainstem.cluster.group import Group
from mainstem.cluster.options import GroupOptions

STREAM = 7
READ_SECONDS = 0.5
RETRY_SECONDS = 2.0
# Detection, revocation and a few lost messages.
WITHOUT_OWNER_SECONDS_MAX = 90.0


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class ModelLedger:
    """Owners and cursors, changed one command at a time. Rejects by generation and by owner."""

    shards: int
    generation: int = 0
    changes: list[StreamChange] = field(default_factory=list)
    ends: dict[Unit, int] = field(default_factory=dict)
    owners: dict[Unit, int] = field(default_factory=dict)
    cursors: dict[Unit, int] = field(default_factory=dict)
    # Who owned a unit last, also while nobody does, and how often that changed.
    last: dict[Unit, int] = field(default_factory=dict)
    moves: int = 0
    rejected: int = 0
    passed_count: int = 0

    def __post_init__(self) -> None:
        self.ends = {Unit(STREAM, shard): 0 for shard in range(self.shards)}

    def assign(self, change: ChangeOwners) -> dict[Unit, int] | None:
        if change.generation != self.generation + 1:
            return None
        self.generation = change.generation
        for unit, owner in change.assigned:
            self.owners[unit] = owner
            if owner:
                self.cursors.setdefault(unit, 0)
                self.moves += self.last.get(unit, owner) != owner
                self.last[unit] = owner
        return {unit: self.cursors[unit] for unit, owner in change.assigned if owner}

    def commit(self, member: int, offsets: dict[Unit, tuple[int, int]]) -> set[Unit]:
        """Move cursors, given as where the reading began and how far it came; units that make it refuse all of them."""
        fenced = {unit for unit in offsets if self.owners.get(unit) != member}
        if fenced or any(end < self.cursors[unit] for unit, (_, end) in offsets.items()):
            self.rejected += 1
            return fenced
        for unit, (begin, end) in offsets.items():
            if begin > self.cursors[unit]:
                raise Violation(f"{unit}: {self.cursors[unit]} to {begin} were skipped")
            if end > self.ends[unit]:
                raise Violation(f"{unit}: a commit beyond its end")
            self.cursors[unit] = end
        return set()

    def add_shards(self, more: int) -> None:
        barriers = tuple(self.ends[Unit(STREAM, shard)] for shard in range(self.shards))
        self.shards += more
        self.changes.append(StreamChange(len(self.changes) + 1, self.shards, barriers))
        for shard in range(len(barriers), self.shards):
            self.ends[Unit(STREAM, shard)] = 0

    def stream(self) -> SharedStream:
        return SharedStream(STREAM, "orders", self.shards, tuple(self.changes))

    def stop(self, unit: Unit, passed: int) -> int:
        """How far a reader comes that has passed so many barriers."""
        if passed >= len(self.changes):
            return self.ends[unit]
        barriers = self.changes[passed].barriers
        return min(self.ends[unit], barriers[unit.shard] if unit.shard < len(barriers) else 0)

    def passed(self) -> int:
        """How many barriers the committed cursors have passed; they never go back."""
        while self.passed_count < len(self.changes) and all(
            self.cursors.get(Unit(STREAM, shard), 0) >= barrier
            for shard, barrier in enumerate(self.changes[self.passed_count].barriers)
        ):
            self.passed_count += 1
        return self.passed_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How bad the world is: what happens to members, messages and coordinators, as weights and probabilities."""

    loss: float = 0.05
    long_delay: float = 0.03
    dawdle: float = 0.05
    disturbances: tuple[str, ...] = (*("join", "crash", "freeze") * 2, "leave", "restart", "reshard")


CALM = Weather(loss=0.0, long_delay=0.0, dawdle=0.0, disturbances=("join", "leave"))
ROUGH = Weather()


@dataclass(slots=True)
class _Place:
    """Where a reader stands in a unit, and where it began."""

    begin: int
    position: int


class Reader:
    """A member: joins, beats, reads, commits, lets go. It knows only what it is told."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.id = world.new_id()
        self.is_alive = True
        self.is_leaving = False
        self.frozen_until = 0.0
        self.version = self.generation = self.passed = 0
        self.is_joined = False
        self.held: dict[Unit, _Place] = {}
        self.asked: set[Unit] = set()
        self.request = 0
        self.poll()
        world.later(world.rng.random(), self.read)

    @property
    def is_well(self) -> bool:
        return self.is_alive and not self.is_leaving and self.world.now >= self.frozen_until

    def awake(self, then: Callable[[], None]) -> None:
        """Do it now, or when the process goes on; never if it is dead."""
        if self.world.now < self.frozen_until:
            self.world.at(self.frozen_until, lambda: self.awake(then))
        elif self.is_alive:
            then()

    def poll(self) -> None:
        self.request += 1
        request = self.request
        held = frozenset(self.held)
        if self.is_joined:
            self.world.tell(Beat(self.id, self.generation, self.version, held), request)
        else:
            self.world.tell(Join(self.id, Subscription(frozenset({"orders"})), held, self.generation), request)
        patience = self.world.options.heartbeat + RETRY_SECONDS
        self.world.later(patience, lambda: self.awake(lambda: self.poll() if request == self.request else None))

    def hear(self, message: Answer | JoinAnew, request: int) -> None:
        if message.member != self.id or request != self.request:
            return
        if isinstance(message, JoinAnew) or self.has_lost_track(message):
            self.id = self.world.new_id()
            self.is_joined, self.version = False, 0
            self.asked.clear()
        elif message.version < self.version:
            return
        else:
            self.obey(message)
        self.poll()

    def has_lost_track(self, answer: Answer) -> bool:
        """Whether it shall go on with a unit that it has dropped since, because the ledger refused its commit: the
        answer is from before another coordinator began."""
        unknown = set(answer.hold) - set(self.held) - {unit for unit, _ in answer.cursors}
        if unknown and answer.generation >= self.world.first_generation and answer.version >= self.version:
            raise Violation(f"{unknown} given without a cursor")
        return bool(unknown)

    def obey(self, answer: Answer) -> None:
        is_first = not self.is_joined
        self.is_joined, self.version, self.generation = True, answer.version, answer.generation
        self.passed = max([generation for _, generation in answer.passed], default=0)
        cursors = dict(answer.cursors)
        for unit in set(self.held) - set(answer.hold) - set(answer.let_go):
            del self.held[unit]
        for unit in answer.hold:
            place = self.held.get(unit)
            if unit in cursors and (place is None or is_first or place.position < cursors[unit]):
                self.world.check_alone(self, unit)
                self.held[unit] = _Place(cursors[unit], cursors[unit])
        for unit in set(answer.let_go) - self.asked:
            self.asked.add(unit)
            is_slow = self.world.rng.random() < self.world.weather.dawdle
            pause = 60.0 if is_slow else self.world.rng.random()
            self.world.later(pause, partial(self.awake, partial(self.let_go, unit)))
        self.asked &= set(answer.let_go)

    def let_go(self, unit: Unit) -> None:
        if unit in self.asked:
            place = self.held.get(unit)
            self.commit([unit], lambda: self.released(unit, place))

    def released(self, unit: Unit, place: _Place | None) -> None:
        if unit in self.asked and self.held.get(unit) is place:
            self.held.pop(unit, None)
            self.asked.discard(unit)
            self.poll()

    def read(self) -> None:
        ledger = self.world.ledger
        for unit, place in () if self.is_leaving else self.held.items():
            stop = ledger.stop(unit, self.passed)
            if place.position < stop:
                place.position = min(stop, place.position + 40)
                self.world.check_barriers(unit, place.position)
        if self.held and not self.is_leaving and self.world.rng.random() < 0.5:
            self.commit(list(self.held))
        self.world.later(READ_SECONDS, lambda: self.awake(self.read))

    def commit(self, units: list[Unit], then: Callable[[], None] | None = None) -> None:
        """Move the group's cursors; `then` runs when that is answered, or when it takes too long."""
        places = {unit: place for unit in units if (place := self.held.get(unit)) is not None}
        offsets = {unit: (place.begin, place.position) for unit, place in places.items()}
        member = self.id

        def answered(fenced: set[Unit]) -> None:
            for unit in fenced:
                if self.held.get(unit) is places[unit]:
                    del self.held[unit]
            if then is not None:
                then()

        self.world.send(self, lambda: self.world.commit(self, member, offsets, answered))
        if then is not None:
            self.world.later(RETRY_SECONDS, lambda: self.awake(then))

    def leave(self) -> None:
        self.is_leaving = True
        self.commit(list(self.held), self.left)

    def left(self) -> None:
        if self.is_alive:
            self.world.tell(Leave(self.id))
            self.is_alive = False


class World:
    """Everything there is, and the order in which it happens."""

    def __init__(self, seed: int, weather: Weather, *, members: int, shards: int, kind: type[Group] = Group) -> None:
        self.rng = random.Random(seed)
        self.weather = weather
        self._is_calm = weather is CALM
        self.options = GroupOptions()
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._kind = kind
        self.ledger = ModelLedger(shards)
        self.group: Group | None = None
        # The newest request of each member that has arrived: that is the one that is answered.
        self._requests: dict[int, int] = {}
        self._arrivals: dict[int, float] = {}
        self._well_since: dict[Unit, float] = {}
        self.counts: dict[str, int] = {}
        self.readers: list[Reader] = []
        self.start_coordinator()
        for _ in range(members):
            self.later(self.rng.random(), lambda: self.readers.append(Reader(self)))
        self.every(self.options.heartbeat / 10, lambda: self.happened(Tick()))
        self.every(1.0, self.check_owners)
        self.every(READ_SECONDS, self.write)

    # ---------------------------------------------------------------------------------------------------- time

    def at(self, when: float, then: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (when, self._number, then))

    def later(self, seconds: float, then: Callable[[], None]) -> None:
        self.at(self.now + seconds, then)

    def every(self, seconds: float, then: Callable[[], None]) -> None:
        def again() -> None:
            then()
            self.later(seconds, again)

        self.later(seconds, again)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, then = heapq.heappop(self._queue)
            then()
        self.now = end

    def new_id(self) -> int:
        return self.rng.getrandbits(62) + 1

    # ------------------------------------------------------------------------------------------------- network

    def delay(self) -> float:
        is_long = self.rng.random() < self.weather.long_delay
        return self.rng.uniform(1.0, 6.0) if is_long else self.rng.uniform(0.001, 0.1)

    def send(self, reader: Reader, then: Callable[[], None]) -> None:
        """To the server, in the order of sending, or not at all."""
        if self.rng.random() >= self.weather.loss:
            when = max(self._arrivals.get(id(reader), 0.0), self.now + self.delay())
            self._arrivals[id(reader)] = when
            self.at(when, then)

    def tell(self, event: Join | Beat | Leave, request: int = 0) -> None:
        """To the coordinator, in any order."""

        def arrive() -> None:
            self._requests[event.member] = max(request, self._requests.get(event.member, 0))
            self.happened(event)

        if self.rng.random() >= self.weather.loss:
            self.later(self.delay(), arrive)

    def reply(self, message: Answer | JoinAnew) -> None:
        if self.rng.random() < self.weather.loss:
            return
        request = self._requests.get(message.member, 0)
        reader = next((reader for reader in self.readers if reader.id == message.member), None)
        if reader is not None:
            self.later(self.delay(), lambda: reader.awake(lambda: reader.hear(message, request)))

    # --------------------------------------------------------------------------------------------- coordinator

    def start_coordinator(self) -> None:
        owned = [unit for unit, owner in self.ledger.owners.items() if owner]
        self.first_generation = self.ledger.generation + 1
        self.group = self._kind(self.options, self.ledger.generation, owned, self.ledger.cursors, self.now)
        self.perform(self.group.start())
        self.happened(StreamsChanged((self.ledger.stream(),)))

    def stop_coordinator(self) -> None:
        self.group = None
        self.later(self.rng.uniform(0.1, 2.0), lambda: self.start_coordinator() if self.group is None else None)

    def happened(self, event: Event) -> None:
        if self.group is not None:
            self.perform(self.group.handle(event, self.now))

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case ChangeOwners():
                    self.later(0.002, partial(self.change, action, self.group))
                case Answer():
                    self.check_answer(action)
                    self.reply(action)
                case JoinAnew():
                    self.reply(action)
                case End():
                    self.stop_coordinator()
                case Forget():
                    self.counts["forget"] = self.counts.get("forget", 0) + 1

    def change(self, change: ChangeOwners, group: Group | None) -> None:
        cursors = self.ledger.assign(change)
        event = OwnersRefused() if cursors is None else OwnersChanged(change.generation, cursors)
        self.later(0.002, lambda: self.happened(event) if self.group is group else None)

    def commit(
        self, reader: Reader, member: int, offsets: dict[Unit, tuple[int, int]], answered: Callable[[set[Unit]], None]
    ) -> None:
        fenced = self.ledger.commit(member, offsets)
        self.later(self.delay(), lambda: reader.awake(lambda: answered(fenced)))
        if not fenced:
            self.happened(Committed({unit: end for unit, (_, end) in offsets.items()}))

    # -------------------------------------------------------------------------------------------- disturbances

    def write(self) -> None:
        for unit in self.ledger.ends:
            self.ledger.ends[unit] += 10

    def disturb(self) -> None:
        what = self.rng.choice(self.weather.disturbances)
        well = [reader for reader in self.readers if reader.is_well]
        if what in ("leave", "crash", "freeze") and len(well) <= 2:
            what = "join"
        if what == "reshard" and (self.ledger.shards >= 400 or self.ledger.passed() < len(self.ledger.changes) - 1):
            what = "join"
        self.counts[what] = self.counts.get(what, 0) + 1
        if what == "join":
            self.readers.append(Reader(self))
        elif what == "leave":
            self.rng.choice(well).leave()
        elif what == "crash":
            self.rng.choice(well).is_alive = False
        elif what == "freeze":
            self.rng.choice(well).frozen_until = self.now + self.rng.uniform(2.0, 40.0)
        elif what == "restart":
            self.stop_coordinator()
        else:
            self.ledger.add_shards(self.rng.randint(1, 8))
            self.happened(StreamsChanged((self.ledger.stream(),)))
        self.readers = [reader for reader in self.readers if reader.is_alive]

    def keep_members(self, count: int) -> None:
        while sum(reader.is_alive and not reader.is_leaving for reader in self.readers) < count:
            self.readers.append(Reader(self))

    # -------------------------------------------------------------------------------------------------- checks

    def check_answer(self, answer: Answer) -> None:
        for unit in answer.hold:
            if self.ledger.owners.get(unit) != answer.member:
                raise Violation(f"{unit}: told to hold what the ledger does not say it owns")
        for unit, cursor in answer.cursors:
            if cursor != self.ledger.cursors[unit]:
                raise Violation(f"{unit}: given at {cursor}, the group stands at {self.ledger.cursors[unit]}")

    def check_alone(self, reader: Reader, unit: Unit) -> None:
        if self._is_calm:
            others = [o for o in self.readers if o is not reader and o.is_alive and unit in o.held]
            if others:
                raise Violation(f"{unit} is read by two")

    def check_barriers(self, unit: Unit, position: int) -> None:
        for change in self.ledger.changes[self.ledger.passed_count :]:
            barrier = change.barriers[unit.shard] if unit.shard < len(change.barriers) else 0
            if position > barrier and self.ledger.passed() < change.generation:
                raise Violation(f"{unit}: read to {position}, over a barrier that the group has not passed")

    def check_owners(self) -> None:
        well = {reader.id: reader for reader in self.readers if reader.is_well}
        passed = self.ledger.passed()
        for unit in self.ledger.ends:
            owner = well.get(self.ledger.owners.get(unit, 0))
            is_readable = self.ledger.stop(unit, passed) > self.ledger.cursors.get(unit, 0)
            if not is_readable or (owner is not None and unit in owner.held):
                self._well_since[unit] = self.now
            elif self.now - self._well_since.setdefault(unit, self.now) > WITHOUT_OWNER_SECONDS_MAX:
                raise Violation(f"{unit} has had no live owner for {self.now - self._well_since[unit]:.0f} s")

    def check_settled(self) -> None:
        """After a quiet time: every unit is with a live member, and all have about the same number."""
        self.check_owners()
        assert self.group is not None
        well = {reader.id: reader for reader in self.readers if reader.is_well}
        counts = dict.fromkeys(well, 0)
        for unit in self.ledger.ends:
            owner = self.ledger.owners.get(unit, 0)
            if owner not in well or unit not in well[owner].held:
                raise Violation(f"{unit} has no live owner")
            counts[owner] += 1
        if max(counts.values()) - min(counts.values()) > 1:
            raise Violation(f"the shares differ: {sorted(counts.values())}")


def rebalances(world: World, count: int, *, members: int, pause: float = 5.0) -> None:
    """Disturb the group this often, keep it at about this size, and let it come to rest."""
    world.run(10.0)
    for _ in range(count):
        world.disturb()
        world.keep_members(members)
        world.run(world.rng.uniform(0.0, 2 * pause))
    world.weather = CALM
    world.run(120.0)
    world.check_settled()
