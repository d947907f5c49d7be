"""50 members of one group on a stream of 100 shards: one leaves, one joins, one is killed.

Members are in five processes, those that come and go in processes of their own. A producer writes a record to every
shard ten times a second. Timed is how long it takes from the moment of the event until whoever shall have each shard in
the end has read a record from it that was written after that moment: so every shard has an owner, and is read.

That a member was killed is noticed when it was silent for the session timeout (8 s, from its last word), because it
might come back; 10 s after the kill it is to be replaced. Once at the beginning all 50 join together. Before the kill
it is proved that every record was read once.
"""

from __future__ import annotations

import struct
import threading
import time
from contextlib import ExitStack
from typing import Any

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import Child, Stopwatch, check, scratch
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours
from benchmarks.scenarios.latency import sleep_until
from mainstem.cluster.options import GroupOptions

SHARDS = 100
PROCESSES = 4
MEMBERS = 12  # of each of them; with one that leaves and comes back, and one that is killed, there are 50
GROUP = "readers"
SESSION_SECONDS = GroupOptions().session_timeout
REPLACED_SECONDS = 10.0  # after a kill
RATE = 10  # records a second in each shard
SETTLED_SECONDS = 2.0  # nothing moves any more when the owners have not changed for so long
STAMP = struct.Struct("<Q")
HERE = "benchmarks.scenarios.rebalance"

# A record that was read: by which member, shard and offset, when it was written, when it was read.
Read = tuple[int, int, int, int, int]


def run(settings: Settings) -> Metrics:
    with scratch(settings.data, "rebalance") as folder, product.Server(folder) as server, ExitStack() as stack:
        product.create_stream(server.url, shards=SHARDS)
        writer = stack.enter_context(Child(f"{HERE}:write", url=server.url))
        writer.expect("ready")

        def member(count: int) -> Child:
            child = stack.enter_context(Child(f"{HERE}:read", url=server.url, count=count))
            child.expect("ready")
            return child

        many = [member(MEMBERS) for _ in range(PROCESSES)]
        guest, victim = member(1), member(1)
        watch = Stopwatch([server.pid])
        metrics = {"start_s": _timed([*many, guest, victim], lambda: _tell([*many, guest, victim], "join"))}
        metrics["leave_s"] = _timed([*many, victim], lambda: _tell([guest], "leave"))
        metrics["join_s"] = _timed([*many, guest, victim], lambda: _tell([guest], "join"))
        _verify([*many, guest, victim])
        metrics["kill_s"] = _timed([*many, guest], victim.kill, SESSION_SECONDS / 2)
        took = watch.stop()
        for child in (*many, guest):
            child.send({"do": "end"})
            child.result()
    return {**metrics, "server_cores": took["server_cpu_s"] / took["wall_s"]}


def _tell(children: list[Child], what: str) -> None:
    for child in children:
        child.send({"do": what})


def _timed(children: list[Child], act: Any, seconds: float = 0.0) -> float:
    """Seconds from what is done until every shard is read by who has it in the end; nothing is asked before `seconds`
    have passed."""
    begun = time.monotonic_ns()
    act()
    time.sleep(seconds)
    deadline = time.monotonic() + 60
    while True:
        time.sleep(0.5)
        finished = [_finished(shard) for shard in _seen(children, begun)]
        # Settled: whoever has a shard has had it for a while.
        if None not in finished and time.monotonic_ns() - max(filter(None, finished)) > SETTLED_SECONDS * 1e9:
            return (max(filter(None, finished)) - begun) / 1e9
        missing = finished.count(None)
        check(time.monotonic() < deadline, f"{missing} shards are not read after a minute")


def _seen(children: list[Child], begun: int) -> list[list[tuple[int, int]]]:
    """By shard: when each member has read its first record that was written after that moment, and its last."""
    shards: list[list[tuple[int, int]]] = [[] for _ in range(SHARDS)]
    for child in children:
        child.send({"do": "report", "begun": begun})
    for child in children:
        for shard, first, last in child.expect("seen")["seen"]:
            shards[shard].append((first, last))
    return shards


def _verify(children: list[Child]) -> None:
    """Every record of a shard, from the first that somebody read, was read once."""
    found: list[list[tuple[int, int, int]]] = [[] for _ in range(SHARDS)]
    _tell(children, "offsets")
    for child in children:
        for shard, first, last, count in child.expect("offsets")["offsets"]:
            found[shard].append((first, last, count))
    for shard, parts in enumerate(found):
        there = max(last for _, last, _ in parts) - min(first for first, _, _ in parts) + 1
        read = sum(count for _, _, count in parts)
        check(read == there, f"{read} records of shard {shard} were read, there are {there}: {parts}")


def _finished(seen: list[tuple[int, int]]) -> int | None:
    """When the one that read last of a shard has begun to."""
    return max(seen, key=lambda each: each[1])[0] if seen else None


def write(talk: Talk, url: str) -> None:
    """A record to every shard, ten times a second, until the process is ended."""
    import mainstem

    with mainstem.connect(url) as hub, hub.producer() as producer:
        talk.say("ready")
        due = time.monotonic_ns()
        while True:
            due += 1_000_000_000 // RATE
            sleep_until(due)
            stamp = STAMP.pack(time.monotonic_ns())
            for shard in range(SHARDS):
                producer.send(product.STREAM, stamp, shard=shard)


def read(talk: Talk, url: str, count: int) -> None:
    """So many members, each in a thread, on one hub; they come and go as the parent says."""
    import mainstem

    with mainstem.connect(url) as hub:
        reads: list[Read] = []
        errors: list[Exception] = []
        members: list[_Member] = []
        settle()
        talk.say("ready")
        while (order := talk.hear())["do"] != "end":
            if order["do"] == "join":
                members = [_Member(hub, reads, errors) for _ in range(count)]
            elif order["do"] == "leave":
                for member in members:
                    member.is_over = True
            elif order["do"] == "offsets":
                talk.say("offsets", offsets=_offsets(reads))
            else:
                check(not errors, f"a member failed: {errors[:1]}")
                talk.say("seen", seen=_by_shard(reads, order["begun"]))


class _Member:
    """Reads in a thread of its own."""

    def __init__(self, hub: Any, reads: list[Read], errors: list[Exception]) -> None:
        self.is_over = False
        self.consumer = hub.consumer(product.STREAM, group=GROUP, start="latest")
        self._reads, self._errors = reads, errors
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            with self.consumer:
                while not self.is_over:
                    record = self.consumer.poll(0.1)
                    if record is not None:
                        (written,) = STAMP.unpack(record.value)
                        self._reads.append((id(self), record.shard, record.offset, written, time.monotonic_ns()))
        except Exception as error:
            self._errors.append(error)


def _by_shard(reads: list[Read], begun: int) -> list[tuple[int, int, int]]:
    """(shard, first read, last read) of each member of this process, of what was written since."""
    seen: dict[tuple[int, int], tuple[int, int]] = {}
    for member, shard, _, written, at in tuple(reads):
        if written >= begun:
            first, _ = seen.get((member, shard), (at, at))
            seen[member, shard] = (first, at)
    return [(shard, first, last) for (_, shard), (first, last) in seen.items()]


def _offsets(reads: list[Read]) -> list[tuple[int, int, int, int]]:
    """(shard, first offset, last offset, records) of what was read in this process."""
    found: dict[int, list[int]] = {}
    for _, shard, offset, _, _ in tuple(reads):
        found.setdefault(shard, []).append(offset)
    return [(shard, min(offsets), max(offsets), len(offsets)) for shard, offsets in found.items()]


CASE = "50 members, 100 shards"
SCENARIO = Scenario(
    name="rebalance",
    title="A group of 50 members on 100 shards: until every shard is read again",
    cases=(ours(CASE, run, f"6 processes; that one was killed is noticed after {SESSION_SECONDS:g} s"),),
    shown=("leave_s", "join_s", "kill_s", "start_s", "server_cores"),
    targets=(
        Target(CASE, "leave_s", 3, at_most=True),
        Target(CASE, "join_s", 3, at_most=True),
        Target(CASE, "kill_s", REPLACED_SECONDS, at_most=True),
    ),
)
