"""`kill -9` of members of groups, and of the server that coordinates them, under load; some are stopped and wake up.

Three groups read a stream that producers write to all the time; the members of one commit themselves, those of the
others leave it to the consumer, and the third shares its shards batch by batch. Whoever is killed is replaced within
ten seconds. Nothing is passed over, cursors never go back, nothing is committed by a member that slept and lost its
shards, and what is spread is read again only because somebody was killed or slept.
"""

import random
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.hub.hub import Hub
from mainstem.testing.history import History
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults.load import Load
from tests.faults.members import QUICK, SESSION_SECONDS, CursorWatch, GroupAccount, MemberProcess, come_to
from tests.faults.stamped import check_kept, count_report, read_back
from tests.faults.trials import Trials

SHARDS = 4
MEMBERS = 2
REPLACED_SECONDS_MAX = 10.0
_CATCH_UP_SECONDS_MAX = 100.0
_LIFE_SECONDS_MAX = 0.5
_STREAM = "shared"
_READER = 2
# Of members; those of the other groups come after.
_FIRST_READER = 1_000


class _Load(Load):
    producers = 2
    shards = SHARDS


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is one kill; between them members sleep for longer than they may."""
    result = Trials()
    history = History()
    place = folder / "shared"
    accounts = [
        GroupAccount("manual", "manual", history, _FIRST_READER),
        GroupAccount("auto", "auto", history, 100 * _FIRST_READER),
        GroupAccount("spread", "auto", history, 200 * _FIRST_READER, spread=True),
    ]
    try:
        with ServerProcess(place, *QUICK) as server, mainstem.connect(server.url) as hub, ExitStack() as stack:
            hub.streams.create(_STREAM, shards=SHARDS)
            load = _Load(lambda: mainstem.connect(server.url), _STREAM, history, pause=0.1)
            stack.callback(load.leave)
            watch = CursorWatch(hub, [account.name for account in accounts])
            stack.callback(watch.stop)
            killing = _Killing(random.Random(f"kill groups {seed}"), server, hub, accounts, result)
            stack.callback(killing.end)
            while result.trials < trials:
                result.trials += killing.strike(f"seed {seed}, kill {result.trials}")
            load.stop()
            ends = hub.streams.get(_STREAM).ends
            for account in accounts:
                if come_to(hub, _STREAM, account.name, ends, _CATCH_UP_SECONDS_MAX, killing.members) is False:
                    where = hub.groups.get(account.name)
                    result.add_finding(f"seed {seed}: group {account.name} hangs: {where.shards} of {where.members}")
            killing.leave()
            read_back(hub, _STREAM, history, _READER)
            watch.stop()
            for text in (*load.errors, *watch.wrong, *(text for account in accounts for text in account.check(ends))):
                result.lost += "is missing" in text
                result.add_finding(f"seed {seed}: {text}")
    except (ServerFailed, MainstemError, AssertionError) as error:
        result.add_finding(f"seed {seed}, kill {result.trials}: {type(error).__name__}: {error}")
    check_kept(result, place, f"seed {seed}")
    count_report(result, history.check(), f"seed {seed}")
    return result


class _Killing:
    """The members of all groups, and what happens to them and to their server. One thread."""

    def __init__(
        self, rng: random.Random, server: ServerProcess, hub: Hub, accounts: list[GroupAccount], result: Trials
    ) -> None:
        self._rng = rng
        self._server = server
        self._hub = hub
        self._accounts = {account.name: account for account in accounts}
        self._result = result
        self.members: list[MemberProcess] = []
        self._sleeping: list[threading.Thread] = []
        for account in accounts:
            for _ in range(MEMBERS):
                self._join(account.name)
        for member in self.members:
            member.await_ready()

    def _join(self, group: str) -> None:
        account = self._accounts[group]
        self.members.append(MemberProcess(self._server.url, _STREAM, group, account))

    def strike(self, name: str) -> bool:
        """Whether it was a kill."""
        time.sleep(self._rng.uniform(0.05, _LIFE_SECONDS_MAX))
        what = self._rng.random()
        if what < 0.5:
            self._kill_member(name)
        elif what < 0.7:
            self._kill_server(name)
        else:
            self._put_to_sleep(name)
            return False
        return True

    def _kill_member(self, name: str) -> None:
        """Its shards go to who is left, or to the one that takes its place."""
        member = self._rng.choice(self.members)
        ends = self._hub.streams.get(_STREAM).ends
        self._accounts[member.group].disturb()
        member.go_on()
        member.kill()
        self.members.remove(member)
        is_replaced_at_once = self._rng.random() < 0.5
        if is_replaced_at_once:
            self._join(member.group)
        self._await_replaced(name, f"a member of {member.group} was killed", [member.group], ends)
        if not is_replaced_at_once:
            self._join(member.group)

    def _kill_server(self, name: str) -> None:
        ends = self._hub.streams.get(_STREAM).ends
        for account in self._accounts.values():
            account.disturb()
        self._server.kill()
        time.sleep(self._rng.choice((0.0, 0.0, 0.5)))
        self._server.start()
        self._await_replaced(name, "the server was killed", self._accounts, ends)

    def _put_to_sleep(self, name: str) -> None:
        """For longer than it may; it wakes up while others go on."""
        member = self._rng.choice(self.members)
        ends = self._hub.streams.get(_STREAM).ends
        self._accounts[member.group].disturb()
        member.stop()
        waking = threading.Timer(SESSION_SECONDS * self._rng.uniform(1.2, 2.0), member.go_on)
        waking.start()
        self._sleeping.append(waking)
        self._await_replaced(name, f"a member of {member.group} sleeps", [member.group], ends)
        waking.join()

    def _await_replaced(self, name: str, what: str, groups: Iterable[str], ends: tuple[int, ...]) -> None:
        for group in groups:
            seconds = come_to(self._hub, _STREAM, group, ends, _CATCH_UP_SECONDS_MAX, self.members)
            self._result.took(seconds or _CATCH_UP_SECONDS_MAX)
            if seconds is False or seconds > REPLACED_SECONDS_MAX:
                self._result.add_finding(f"{name}: {what}, and {group} was where the stream ended after {seconds} s")

    def leave(self) -> None:
        for member in self.members:
            member.await_ready()
            member.leave()
        self.members.clear()

    def end(self) -> None:
        for waking in self._sleeping:
            waking.join()
        for member in self.members:
            member.end()
