"""Rebalances of a group of processes that come, leave and are killed: it never hangs, skips, or goes backwards.

After each change every shard is with a member that lives, nobody is without, and the group reads on.
"""

import random
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.hub.hub import Hub
from mainstem.testing.history import History
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults.load import Load
from tests.faults.members import QUICK, CursorWatch, GroupAccount, MemberProcess, come_to
from tests.faults.stamped import check_kept, count_report
from tests.faults.trials import Trials

SHARDS = 8
MEMBERS_MIN, MEMBERS_MAX = 2, 5
SETTLED_SECONDS_MAX = 10.0
_HANGS_SECONDS = 60.0
_STREAM = "shared"
_GROUP = "changing"
_FIRST_READER = 1_000


class _Load(Load):
    producers = 1
    shards = SHARDS


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is one rebalance."""
    result = Trials()
    history = History()
    place = folder / "shared"
    account = GroupAccount(_GROUP, "manual", history, _FIRST_READER)
    try:
        with ServerProcess(place, *QUICK) as server, mainstem.connect(server.url) as hub, ExitStack() as stack:
            hub.streams.create(_STREAM, shards=SHARDS)
            load = _Load(lambda: mainstem.connect(server.url), _STREAM, history, pause=0.1)
            changing = _Changing(random.Random(f"rebalances {seed}"), server.url, hub, account)
            watch = CursorWatch(hub, [_GROUP])
            for callback in (load.leave, watch.stop, changing.end):
                stack.callback(callback)
            for trial in range(trials):
                what = changing.change()
                seconds = changing.settle()
                result.took(seconds)
                if seconds > SETTLED_SECONDS_MAX:
                    result.add_finding(f"seed {seed}, rebalance {trial}: settled {seconds:.1f} s after {what}")
                result.trials += 1
            load.stop()
            ends = hub.streams.get(_STREAM).ends
            if come_to(hub, _STREAM, _GROUP, ends, _HANGS_SECONDS, changing.members) is False:
                result.add_finding(f"seed {seed}: the group hangs: {hub.groups.get(_GROUP).shards}")
            changing.leave()
            watch.stop()
            for text in (*load.errors, *watch.wrong, *account.check(ends)):
                result.lost += "is missing" in text
                result.add_finding(f"seed {seed}: {text}")
    except (ServerFailed, MainstemError, AssertionError) as error:
        result.add_finding(f"seed {seed}, rebalance {result.trials}: {type(error).__name__}: {error}")
    check_kept(result, place, f"seed {seed}")
    count_report(result, history.check(), f"seed {seed}")
    return result


class _Changing:
    """A group whose members change. One thread."""

    def __init__(self, rng: random.Random, url: str, hub: Hub, account: GroupAccount) -> None:
        self._rng = rng
        self._url = url
        self._hub = hub
        self._account = account
        self.members: list[MemberProcess] = []
        for _ in range(MEMBERS_MIN):
            self._join()
        self.settle()

    def change(self) -> str:
        """A member more, or one or two fewer."""
        choices = ["join"] if len(self.members) <= MEMBERS_MIN else ["leave", "kill"]
        if MEMBERS_MIN < len(self.members) < MEMBERS_MAX:
            choices += ["join", "exchange"]
        what = self._rng.choice(choices)
        if what in ("leave", "exchange"):
            self._taken().leave()
        if what == "kill":
            self._taken().kill()
        if what in ("join", "exchange"):
            self._join()
        return what

    def _join(self) -> None:
        self.members.append(MemberProcess(self._url, _STREAM, _GROUP, self._account))
        self.members[-1].await_ready()

    def _taken(self) -> MemberProcess:
        return self.members.pop(self._rng.randrange(len(self.members)))

    def settle(self) -> float:
        """How long it takes until everybody has its share; AssertionError if it never happens."""
        began = time.monotonic()
        while time.monotonic() < began + _HANGS_SECONDS:
            with suppress(MainstemError):
                if self._is_settled():
                    return time.monotonic() - began
            for member in self.members:
                member.check_lives()
            time.sleep(0.02)
        info = self._hub.groups.get(_GROUP)
        raise AssertionError(f"{len(self.members)} members do not get their shares: {info.shards} of {info.members}")

    def _is_settled(self) -> bool:
        info = self._hub.groups.get(_GROUP)
        shares = [member.shards for member in info.members]
        is_shared = len(shares) == len(self.members) and min(shares) > 0 and sum(shares) == SHARDS
        return is_shared and all(shard.member == shard.next_member for shard in info.shards)

    def leave(self) -> None:
        for member in self.members:
            member.leave()
        self.members.clear()

    def end(self) -> None:
        for member in self.members:
            member.end()
