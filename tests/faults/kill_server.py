"""`kill -9` of a server under load, again and again on one folder, with producers and a follower that live through it.

Producers retry by themselves, some of them on a connection that they share; what they were told must be there once, in
order, and the follower must miss nothing and see nothing twice. Before every other kill the answers are held up for a
moment, and between kills connections are cut the same way: what the server has done by then, its clients do not know,
and send again.
"""

import random
import time
from pathlib import Path

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.testing.history import History
from mainstem.testing.link import Link
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults.load import SHARDS, CompanionLoad
from tests.faults.stamped import check_kept, count_report, read_back
from tests.faults.trials import Trials

START_SECONDS_MAX = 2.0
_LIFE_SECONDS_MAX = 0.6
_HELD_SECONDS_MAX = 0.05
_READER = 2
_STREAM = "through-kills"


def run(seed: int, trials: int, folder: Path) -> Trials:
    result = Trials()
    rng = random.Random(f"kill server {seed}")
    history = History()
    try:
        with ServerProcess(folder / "killed") as server, Link(server.address) as link:
            with mainstem.connect(server.url) as hub:
                hub.streams.create(_STREAM, shards=SHARDS)
                load = CompanionLoad(lambda: mainstem.connect(f"mainstem://{link.address}"), _STREAM, history)
                for trial in range(trials):
                    for _ in range(rng.randrange(3)):
                        # The connections break, the server does not.
                        time.sleep(rng.uniform(0.0, _LIFE_SECONDS_MAX / 3))
                        _lose_answers(link, rng)
                        link.cut()
                    time.sleep(rng.uniform(0.05, _LIFE_SECONDS_MAX))
                    if trial % 2 == 0:
                        _lose_answers(link, rng)
                    server.kill()
                    link.cut()
                    server.start()
                    result.trials += 1
                    result.took(server.start_seconds)
                    if server.start_seconds > START_SECONDS_MAX:
                        result.add_finding(f"seed {seed}, kill {trial}: restart took {server.start_seconds:.1f} s")
                load.stop()
                read_back(hub, _STREAM, history, _READER)
            for text in load.errors:
                result.add_finding(f"seed {seed}: {text}")
    except (ServerFailed, MainstemError) as error:
        result.add_finding(f"seed {seed}, kill {result.trials}: {error}")
    check_kept(result, folder / "killed", f"seed {seed}")
    count_report(result, history.check(), f"seed {seed}")
    return result


def _lose_answers(link: Link, rng: random.Random) -> None:
    """Hold answers up for a moment; those of that moment will be lost when the link is cut."""
    link.hold_answers()
    time.sleep(rng.uniform(0.0, _HELD_SECONDS_MAX))
