"""`kill -9` of a backup and of a restore, again and again, beside a server under load.

After every kill the backup folder restores: to what the last complete backup held, or the one that was killed at its
end. A complete backup holds everything that could be read before it began, at its offsets; a restored log has nothing
that the server has not, and goes on. A killed restore leaves no folder under the name, or a whole one.
"""

import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import mainstem
from mainstem.core.errors import BackupUnusable, MainstemError
from mainstem.hub.hub import Hub
from mainstem.log.backup import back_up
from mainstem.log.backup_folder import BackupFolder, Manifest
from mainstem.log.disk import LocalDisk
from mainstem.log.restore import restore
from mainstem.testing import planted
from mainstem.testing.disk import KillingDisk
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults.trials import Trials

PRODUCERS = 2
SHARDS = 2
_STREAM = "saved"
# A folder is left after so many trials: what a restore copies grows with it.
_TRIALS_PER_FOLDER = 10
_BURST_PAUSE_SECONDS = 0.02
_LIFE_SECONDS_MAX = 0.8
_LEAVES = ("nothing", "part", "all")

Content = list[list[bytes | None]]


def run(seed: int, trials: int, folder: Path) -> Trials:
    result = Trials()
    rng = random.Random(f"backup kill {seed}")
    while result.trials < trials:
        place = folder / f"from-{result.trials}"
        try:
            _run_some(seed, min(_TRIALS_PER_FOLDER, trials - result.trials), place, rng, result)
        except (ServerFailed, MainstemError) as error:
            result.add_finding(f"seed {seed}, trial {result.trials}: {type(error).__name__}: {error}")
            break
        shutil.rmtree(place)
    return result


def _run_some(seed: int, trials: int, folder: Path, rng: random.Random, result: Trials) -> None:
    with ServerProcess(folder / "data", "--block-bytes", "128KiB") as server, mainstem.connect(server.url) as hub:
        hub.streams.create(_STREAM, shards=SHARDS)
        with _Load(server.url):
            series = _Series(folder, hub, rng)
            for _ in range(trials):
                for text in series.trial():
                    result.add_finding(f"seed {seed}, trial {result.trials}: {text}")
                result.trials += 1
                result.took(series.seconds)
        everything = _read(hub)
        for text in series.compare(everything):
            result.add_finding(f"seed {seed}, before trial {result.trials}: {text}")
            result.lost += 1
        result.acknowledged += sum(map(len, everything))


class _Series:
    """One backup folder through many kills."""

    def __init__(self, folder: Path, hub: Hub, rng: random.Random) -> None:
        self._data = folder / "data"
        self._backup = folder / "backup"
        self._restored = folder / "restored"
        self._hub = hub
        self._rng = rng
        # Where the stream ended before the last backup that is known to be complete.
        self._ends: Sequence[int] = (0,) * SHARDS
        self._contents: list[Content] = []
        self.seconds = 0.0

    def trial(self) -> list[str]:
        """A backup that is killed or not, a restore that is killed, and one that is not; what was wrong."""
        rng = self._rng
        before = self._hub.streams.get(_STREAM).ends
        flush = self._flush()
        if rng.random() < 0.25:
            back_up(self._data, self._backup)
            self._ends = before
        else:
            self._killed("backup", self._data, self._backup)
            if self._flush() != flush:
                self._ends = before
        if self._flush() is None:
            return self._refused()
        self._killed("restore", self._backup, self._restored)
        started = time.perf_counter()
        if not self._restored.exists():
            try:
                restore(self._backup, self._restored)
            except MainstemError as error:
                return [f"after a kill the backup cannot be restored: {error}"]
        self.seconds = time.perf_counter() - started
        wrong = self._look()
        shutil.rmtree(self._restored)
        return wrong

    def _manifest(self) -> Manifest | None:
        """What the backup folder holds; None if no backup was completed yet."""
        return BackupFolder(self._backup, LocalDisk()).manifest() if self._backup.exists() else None

    def _flush(self) -> int | None:
        found = self._manifest()
        return None if found is None else found.flush

    def _refused(self) -> list[str]:
        """No backup was complete yet."""
        try:
            restore(self._backup, self._restored)
        except BackupUnusable:
            return []
        return ["restored from nothing"]

    def _killed(self, what: str, source: Path, target: Path) -> None:
        """Kill the process at one of its operations, or some time after its start."""
        rng = self._rng
        found = self._manifest()
        # A write and a rename for each file, and some more.
        operations = 12 + (2 * len(found.blocks) if found is not None and what == "restore" else 0)
        at = rng.randint(1, operations) if rng.random() < 0.7 else 0
        arguments = (what, str(source), str(target), str(at), rng.choice(_LEAVES))
        with subprocess.Popen(planted.command("tests.faults.backup_kill", *arguments)) as child:
            try:
                child.wait(60.0 if at else rng.uniform(0.2, _LIFE_SECONDS_MAX))
            except subprocess.TimeoutExpired:
                child.kill()

    def _look(self) -> list[str]:
        """What the restored log holds, and that it can be written."""
        with mainstem.open(self._restored, read_only=False) as hub:
            ends = hub.streams.get(_STREAM).ends
            self._contents.append(_read(hub))
            wrong = [
                f"shard {shard} ends at {end}, and {known} could be read before the backup"
                for shard, (end, known) in enumerate(zip(ends, self._ends, strict=True))
                if end < known
            ]
            with hub.producer() as producer:
                shard, offset = producer.send(_STREAM, b"goes on").result()
            if offset != ends[shard]:
                wrong.append(f"the next record of shard {shard} is at {offset}, not {ends[shard]}")
        return wrong

    def compare(self, everything: Content) -> list[str]:
        """Every restored log is a beginning of what the server has."""
        return [
            f"restore {number}, shard {shard}: other records than the server's"
            for number, content in enumerate(self._contents)
            for shard in range(SHARDS)
            if content[shard] != everything[shard][: len(content[shard])]
        ]


def _read(hub: Hub) -> Content:
    found: Content = [[] for _ in range(SHARDS)]
    with hub.consumer(_STREAM, start="earliest", follow=False) as consumer:
        for batch in consumer.batches():
            assert batch.offset == len(found[batch.shard]), "a gap"
            found[batch.shard] += batch.to_arrow().column("value").to_pylist()
    return found


class _Load:
    """Producers that write to the server as long as the block lasts, at a pace that two cores bear."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._produce, args=(number,)) for number in range(PRODUCERS)]

    def _produce(self, number: int) -> None:
        rng = random.Random(number)
        with mainstem.connect(self._url) as hub, hub.producer(compression=None) as producer:
            while not self._stopping.is_set():
                for _ in range(rng.choice((1, 5, 20))):
                    producer.send(_STREAM, rng.randbytes(rng.choice((20, 300, 2_000))))
                producer.flush()
                time.sleep(_BURST_PAUSE_SECONDS)

    def __enter__(self) -> "_Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


def _child(what: str, source: Path, target: Path, at: int, leaves: str) -> None:
    disk = KillingDisk(at=at, leaves=leaves)  # type: ignore[arg-type]
    if what == "backup":
        back_up(source, target, disk=disk)
    else:
        restore(source, target, disk=disk)


if __name__ == "__main__":
    _child(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
