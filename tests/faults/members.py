"""Members of groups as processes that say everything they do, and the account of whether a group did its work.

A member says what it has read after it has done so, before it asks for more: what it was given and had no time for must
come to another. One that commits by itself says before a commit from where to where it has read, and afterwards whether
that was acknowledged. So the account knows every step that a group's cursor can have taken.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from itertools import accumulate
from typing import Any, Literal

import numpy as np

import mainstem
from mainstem.consume.group_consumer import GroupConsumer
from mainstem.consume.member_consumer import Commit
from mainstem.consume.spread_consumer import SpreadConsumer
from mainstem.core.errors import Fenced, MainstemError, Retriable
from mainstem.hub.hub import Hub
from mainstem.testing import planted
from mainstem.testing.history import History
from mainstem.testing.stamp import read_stamps, stamp

# Short enough for many kills: a member that is silent for a second is given up.
QUICK = ("--group-heartbeat", "200ms", "--group-session-timeout", "1s", "--group-revocation-timeout", "3s")
SESSION_SECONDS = 1.0

_START_SECONDS_MAX = 60.0
_END_SECONDS_MAX = 60.0
# A member commits after this many batches, and takes its time for each: most of the time it has something in hand.
_BATCHES_PER_COMMIT = 3
_WORK_SECONDS = 0.005

Range = tuple[int, int]
AnyMember = GroupConsumer | SpreadConsumer


class MemberProcess:
    """A process that reads a stream as a member of a group until it is killed or told to leave. One thread."""

    def __init__(self, url: str, stream: str, group: str, account: "GroupAccount") -> None:
        self.group = group
        self.number = account.new_member()
        self._account = account
        way = "spread" if account.is_spread else "whole"
        command = planted.command("tests.faults.members", url, stream, group, account.commit, way)
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._ready = threading.Event()
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def _hear(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            # A last line without an end was cut off by the kill.
            if line.endswith(b"\n"):
                words = json.loads(line)
                if words == ["ready"]:
                    self._ready.set()
                else:
                    self._account.hear(self.number, words)

    def await_ready(self) -> None:
        assert self._ready.wait(_START_SECONDS_MAX), f"member {self.number} does not start"

    def check_lives(self) -> None:
        assert self._child.poll() is None, f"member {self.number} ended by itself: {self._stderr()}"

    def kill(self) -> None:
        """`kill -9`, and hear what it had said."""
        self.check_lives()
        self._child.kill()
        self._end()

    def stop(self) -> None:
        """Have it stand still."""
        self._child.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._child.send_signal(signal.SIGCONT)

    def leave(self) -> None:
        """Let it finish what it is at, and leave the group; AssertionError if it does not."""
        self._child.send_signal(signal.SIGTERM)
        try:
            code = self._child.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"member {self.number} does not leave") from None
        assert code == 0, f"member {self.number} ended with {code}: {self._stderr()}"
        self._end()

    def end(self) -> None:
        """Whatever state it is in."""
        self._child.kill()
        self._end()

    def _end(self) -> None:
        self._child.wait()
        self._hearing.join()
        for pipe in (self._child.stdout, self._child.stderr):
            if pipe is not None:
                pipe.close()

    def _stderr(self) -> str:
        assert self._child.stderr is not None
        return self._child.stderr.read().decode(errors="replace")[-2_000:]


class GroupAccount:
    """What the members of one group have said. Any thread."""

    def __init__(self, name: str, commit: Commit, history: History, first_reader: int, *, spread: bool = False) -> None:
        self.name = name
        self.is_spread = spread
        # How often something was done to its members or to their server.
        self._disturbances = 0
        self.commit: Commit = commit
        self._history = history
        self._lock = threading.Lock()
        self._members = 0
        self._first_reader = first_reader
        # Of each member and shard, the offset after what it has read last.
        self._next: dict[tuple[int, int], int] = {}
        self._read: defaultdict[int, list[Range]] = defaultdict(list)
        # What each member tries to commit now; what was tried, and what was acknowledged.
        self._trying: dict[int, dict[int, Range]] = {}
        self._tried: defaultdict[int, set[Range]] = defaultdict(set)
        self._acked: defaultdict[int, list[Range]] = defaultdict(list)
        self.fenced = 0
        self.errors: list[str] = []

    def new_member(self) -> int:
        with self._lock:
            self._members += 1
            return self._members - 1

    def disturb(self) -> None:
        """Something is about to be done to a member, or to the server: what is in hand may be read once more."""
        with self._lock:
            self._disturbances += 1

    def hear(self, member: int, words: list[Any]) -> None:
        what, *rest = words
        with self._lock:
            if what == "read":
                self._on_read(member, *rest)
            elif what == "trying":
                self._trying[member] = {shard: (begin, end) for shard, begin, end in rest[0]}
                for shard, tried in self._trying[member].items():
                    self._tried[shard].add(tried)
            elif what == "committed":
                for shard, done in self._trying.pop(member).items():
                    self._acked[shard].append(done)
            elif what == "fenced":
                self.fenced += 1
            else:
                self.errors.append(f"member {member}: {rest[0]}")

    def _on_read(self, member: int, shard: int, offset: int, producers: list[int], sequences: list[int]) -> None:
        reader = self._first_reader + member
        end = offset + len(producers)
        if self._next.get((member, shard)) != offset:
            self._history.positioned(reader, shard, offset)
        self._next[member, shard] = end
        self._read[shard].append((offset, end))
        values = [stamp(*place) for place in zip(producers, sequences, strict=True)]
        self._history.read(reader, shard, np.arange(offset, end), values)

    def check(self, ends: Iterable[int]) -> list[str]:
        """What is wrong, now that the group has come to these ends."""
        with self._lock:
            wrong = [f"group {self.name}, {text}" for text in self.errors]
            for shard, end in enumerate(ends):
                unread = first_gap(self._read[shard], end)
                if unread is not None:
                    wrong.append(f"group {self.name}, shard {shard}: offset {unread} is missing: nobody did it")
                if self.commit == "manual":
                    steps = wrong_step(self._acked[shard], self._tried[shard], end)
                    wrong += [f"group {self.name}, shard {shard}: {text}" for text in steps]
                times = times_read_max(self._read[shard])
                if self.is_spread and times > 1 + self._disturbances:
                    text = (
                        f"something was read {times} times, and only {self._disturbances} times somebody was disturbed"
                    )
                    wrong.append(f"group {self.name}, shard {shard}: {text}")
        return wrong


def first_gap(ranges: list[Range], end: int) -> int | None:
    """The first offset below `end` that is in none of the ranges."""
    reached = 0
    for first, after in sorted(ranges):
        if first > reached:
            break
        reached = max(reached, after)
    return None if reached >= end else reached


def times_read_max(ranges: list[Range]) -> int:
    """How often the offset was read that was read most often."""
    changes = sorted([(first, 1) for first, _ in ranges] + [(after, -1) for _, after in ranges])
    return max(accumulate(change for _, change in changes), default=0)


def wrong_step(acked: list[Range], tried: set[Range], end: int) -> list[str]:
    """Why a cursor cannot have come from 0 to `end` by all of the acknowledged steps and some that were tried.

    A step that overlaps another was made by a member that no longer had the shard; where one is missing, something was
    passed over, or taken twice.
    """
    at = 0
    for first, after in [*sorted(acked), (end, end)]:
        if first < at:
            return [f"{first} to {after} was committed by a fenced member: the group stood at {at} already"]
        if not _leads_to(at, first, tried):
            return [f"the cursor went from {at} to {first}, and nobody has read just that"]
        at = after
    return []


def _leads_to(begin: int, end: int, steps: set[Range]) -> bool:
    reached, fresh = {begin}, [begin]
    while fresh and end not in reached:
        at = fresh.pop()
        more = {after for first, after in steps if first == at and after <= end} - reached
        reached |= more
        fresh += more
    return end in reached


class CursorWatch:
    """Looks at groups all the time: their cursors and generations never go back. A thread of its own."""

    def __init__(self, hub: Hub, groups: Iterable[str]) -> None:
        self._hub = hub
        self._groups = tuple(groups)
        self._stopping = threading.Event()
        self.wrong: list[str] = []
        self.looks = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        last: dict[tuple[str, str, int], int] = {}
        while not self._stopping.wait(0.05):
            for group in self._groups:
                with suppress(MainstemError):
                    self._look(group, last)

    def _look(self, group: str, last: dict[tuple[str, str, int], int]) -> None:
        info = self._hub.groups.get(group)
        found = {(group, shard.stream, shard.shard): shard.offset for shard in info.shards}
        found[group, "generation", 0] = info.generation
        back = [key for key, at in found.items() if at < last.get(key, 0)]
        self.wrong += [f"{key} went back from {last[key]} to {found[key]}" for key in back]
        last.update(found)
        self.looks += 1


def come_to(
    hub: Hub, stream: str, group: str, ends: Iterable[int], seconds: float, members: Iterable[MemberProcess] = ()
) -> float | Literal[False]:
    """How many seconds it took until the group had come to these ends of a stream; False if it was too long.
    AssertionError if one of these members dies of itself meanwhile."""
    began = time.monotonic()
    wanted = tuple(ends)
    while time.monotonic() < began + seconds:
        for member in members:
            member.check_lives()
        with suppress(MainstemError):
            at = {shard.shard: shard.offset for shard in hub.groups.get(group).shards if shard.stream == stream}
            if all(at.get(shard, 0) >= end for shard, end in enumerate(wanted)):
                return time.monotonic() - began
        time.sleep(0.02)
    return False


# ------------------------------------------------------------------------------------------------------ the process


def _live(url: str, stream: str, group: str, commit: Commit, way: Literal["whole", "spread"]) -> None:
    leaving = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leaving.set())
    with (
        mainstem.connect(url, timeout=_START_SECONDS_MAX) as hub,
        _opened(hub, stream, group, commit, way) as consumer,
    ):
        _say("ready")
        member = _Member(consumer, commit)
        while not leaving.is_set():
            member.read()
        member.commit()


def _opened(hub: Hub, stream: str, group: str, commit: Commit, way: str) -> AnyMember:
    if way == "spread":
        return hub.consumer(stream, group=group, start="earliest", commit=commit, spread=True)
    return hub.consumer(stream, group=group, start="earliest", commit=commit)


class _Member:
    """Reads, and says what it does."""

    def __init__(self, consumer: AnyMember, commit: Commit) -> None:
        self._consumer = consumer
        self._is_manual = commit == "manual"
        # By shard, what was read and is not committed.
        self._pending: dict[int, Range] = {}
        self._batches = 0

    def read(self) -> None:
        try:
            batch = self._consumer.poll_batch(timeout=0.1)
        except Fenced:
            self._on_fenced()
            return
        except Retriable:
            return
        if batch is not None:
            time.sleep(_WORK_SECONDS)
            producers, sequences, _ = read_stamps(batch.to_arrow().column("value"))
            _say("read", batch.shard, batch.offset, producers.tolist(), sequences.tolist())
            first, after = self._pending.get(batch.shard, (batch.offset, batch.offset))
            self._pending[batch.shard] = (first if after == batch.offset else batch.offset, batch.end)
            self._batches += 1
        if batch is None or self._batches >= _BATCHES_PER_COMMIT:
            self.commit()

    def commit(self) -> None:
        self._batches = 0
        while self._is_manual and self._pending:
            _say("trying", [(shard, *read) for shard, read in self._pending.items()])
            try:
                self._consumer.commit()
            except Fenced:
                self._on_fenced()
            except Retriable:
                continue
            else:
                _say("committed")
                self._pending.clear()

    def _on_fenced(self) -> None:
        """Something was lost: go on where the group stands in what is left."""
        _say("fenced")
        self._pending.clear()
        if self._is_manual:
            self._consumer.rewind()


def _say(*words: Any) -> None:
    """Unbuffered: what was said before a kill has been said."""
    line = json.dumps(words).encode() + b"\n"
    while line:
        line = line[os.write(1, line) :]


if __name__ == "__main__":
    _live(*sys.argv[1:])  # type: ignore[arg-type]
