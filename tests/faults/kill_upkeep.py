"""`kill -9` of a server whose upkeep works as hard as it can, under load, again and again on one folder.

Blocks are tiny, what is dead is freed within moments, and nothing rests: so a kill meets trimming, dropping, merging,
compaction, rewriting, freeing and snapshots. One stream is kept whole and has a follower that lives through it all; one
is compacted by key; one is trimmed all the time. Afterwards everything that was acknowledged and not let go on purpose
is there, once and in order, also after one more collection; the books of the ledger are right; and no file is left that
nothing needs.
"""

import random
import time
from pathlib import Path

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.hub.hub import Hub
from mainstem.log.log import Log, LogOptions
from mainstem.log.upkeep import Pace
from mainstem.testing.clock import SimulatedClock
from mainstem.testing.history import History
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults.load import Load, Work
from tests.faults.mixes import books
from tests.faults.stamped import check_kept, count_report, read_back
from tests.faults.trials import Trials

PRODUCERS = 2
SHARDS = 2
KEYS = 40
_HARD = (
    *("--block-bytes", "64KiB", "--checkpoint-bytes", "64KiB", "--snapshot-bytes", "1MiB", "--hot-tail-bytes", "1MiB"),
    *("--upkeep-interval", "50ms", "--upkeep-percent", "100", "--free-after", "300ms", "--rewrite-after", "1s"),
)
_LIFE_SECONDS_MAX = 1.2
_TRIM_SECONDS = 0.1
_KEPT, _KEYED, _TRIMMED = "kept", "keyed", "trimmed"
_READER = 2


def run(seed: int, trials: int, folder: Path) -> Trials:
    result = Trials()
    rng = random.Random(f"kill upkeep {seed}")
    history = History()
    place = folder / "kept"
    load: _Load | None = None
    try:
        with ServerProcess(place, *_HARD) as server, mainstem.connect(server.url) as hub:
            hub.streams.create(_KEPT, shards=SHARDS)
            hub.streams.create(_KEYED, cleanup="compact")
            hub.streams.create(_TRIMMED)
            load = _Load(server.url, history)
            for trial in range(trials):
                time.sleep(rng.uniform(0.05, _LIFE_SECONDS_MAX))
                server.kill()
                server.start()
                result.trials += 1
                result.took(server.start_seconds)
                if trial % 10 == 9:
                    _make_and_delete(hub, f"short-{trial}")
            load.stop()
            read_back(hub, _KEPT, history, _READER)
            for text in (*load.errors, *load.check_keyed(hub)):
                result.add_finding(f"seed {seed}: {text}")
    except (ServerFailed, MainstemError) as error:
        result.add_finding(f"seed {seed}, kill {result.trials}: {error}")
    check_kept(result, place, f"seed {seed}")
    count_report(result, history.check(), f"seed {seed}")
    for text in collected(place):
        result.add_finding(f"seed {seed}: {text}")
    if load is not None:
        with mainstem.open(place, read_only=True) as hub:
            for text in load.check_keyed(hub):
                result.add_finding(f"seed {seed}, after the next collection: {text}")
    return result


def _make_and_delete(hub: Hub, name: str) -> None:
    hub.streams.create(name)
    with hub.producer() as producer:
        producer.send_many(name, [b"x" * 500] * 200)
        producer.flush()
    hub.streams.delete(name)


def collected(folder: Path) -> list[str]:
    """What is wrong in the folder after the next collection."""
    clock = SimulatedClock(start_us=time.time_ns() // 1_000)
    log = Log(folder, LogOptions(block_bytes=64 << 10, pace=Pace(share=1.0)), clock=clock)
    try:
        for wait in (86_460.0, 700.0, 60.0, 60.0, 60.0):
            clock.advance(wait)
            log.upkeep.run_until_idle()
            log._maintenance.close()
        wrong = list(books(log))
        rows = {row.id for row in log.ledger.list_blocks()}
        files = {int(path.stem) for path in (folder / "blocks").iterdir()}
        if rows != files:
            wrong.append(f"files {sorted(files - rows)} have no row, rows {sorted(rows - files)} have no file")
        live = sum(row.live_bytes for row in log.ledger.list_blocks())
        size = sum(path.stat().st_size for path in (folder / "blocks").iterdir())
        if size > 2.5 * live + (1 << 20):
            wrong.append(f"{size} bytes on disk for {live} that are alive")
    finally:
        log.close()
    return wrong


class _Load(Load):
    """The same with producers of the other two streams, through every kill."""

    producers = PRODUCERS
    shards = SHARDS

    def __init__(self, url: str, history: History) -> None:
        # The last value of every key that was acknowledged, as a number that only grows.
        self._newest: dict[bytes, int] = {}
        super().__init__(lambda: mainstem.connect(url), _KEPT, history)

    def _producing(self) -> list[Work]:
        return [*super()._producing(), (self._produce_keyed, 0), (self._produce_and_trim, 0)]

    def _produce_keyed(self, number: int) -> None:
        with self._connect() as hub, hub.producer(delivery_timeout=60.0) as producer:
            count = 0
            while not self._stopping.is_set():
                keys = [b"key-%d" % ((count + index) % KEYS) for index in range(15)]
                acks = [
                    producer.send(_KEYED, b"%d" % (count + index) + b" " * 200, key=key)
                    for index, key in enumerate(keys)
                ]
                for index, (key, ack) in enumerate(zip(keys, acks, strict=True)):
                    ack.result()
                    self._newest[key] = count + index
                count += len(keys)

    def _produce_and_trim(self, number: int) -> None:
        with self._connect() as hub, hub.producer(delivery_timeout=60.0) as producer:
            while not self._stopping.is_set():
                producer.send_many(_TRIMMED, [b"t" * 300] * 50).result()
                hub.streams.trim(_TRIMMED, offset=max(0, hub.streams.get(_TRIMMED).ends[0] - 200))
                time.sleep(_TRIM_SECONDS)

    def check_keyed(self, hub: Hub) -> list[str]:
        """Every key has its newest value, and no value comes twice or falls."""
        found: dict[bytes | None, int] = {}
        wrong: list[str] = []
        place = -1
        with hub.consumer(_KEYED, start="earliest", follow=False) as consumer:
            for record in consumer:
                number = int(record.value or b"-1")
                if record.offset <= place or number <= found.get(record.key, -1):
                    wrong.append(f"{record.key!r} at offset {record.offset} came out of order or twice")
                place, found[record.key] = record.offset, number
        missing = {key: number for key, number in self._newest.items() if found.get(key, -1) < number}
        if missing:
            wrong.append(f"the newest records of {len(missing)} keys are missing: {missing}")
        return wrong
