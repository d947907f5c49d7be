"""A server on a folder of a gigabyte, killed and started again: it serves within the limit, with all of it.

What makes a start quick is that it applies again only what the ledger lacks. That is counted, so that a small folder
shows a start that would take long on a large one.
"""

import time
from pathlib import Path

from msgspec.structs import replace

import mainstem
from mainstem.core.batch import Batch
from mainstem.hub.hub import Hub
from mainstem.log.flush import CreateStream
from mainstem.log.log import Log
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults.kill_server import START_SECONDS_MAX
from tests.faults.script import SentBatch
from tests.faults.trials import Trials

MEGABYTES = 1_000
BATCH_BYTES = 16 << 10
RECORDS_PER_BATCH = 100
SHARDS = 4
# A kill meets at most a flush that is being applied and one that is being written.
REPLAYED_MAX = 2
_STREAM = "large"


def run(seed: int, trials: int, folder: Path, megabytes: int = MEGABYTES) -> Trials:
    """Each trial is one kill."""
    result = Trials()
    place = folder / "large"
    result.acknowledged = _fill(place, megabytes << 20)
    try:
        with ServerProcess(place) as server:
            for trial in range(trials):
                with mainstem.connect(server.url) as hub, hub.producer() as producer:
                    hub.streams.create(f"life-{trial}")
                    producer.send(f"life-{trial}", b"x").result(30)
                server.kill()
                time.sleep(0.05)
                server.start()
                result.trials += 1
                result.took(server.start_seconds)
                if server.start_seconds > START_SECONDS_MAX:
                    result.add_finding(f"kill {trial}: restart took {server.start_seconds:.2f} s")
                with mainstem.connect(server.url) as hub:
                    _check(hub, result)
                    replayed = hub.statistics()["flushes_replayed"]
                if replayed > REPLAYED_MAX:
                    result.add_finding(f"kill {trial}: {replayed} flushes were applied again")
    except ServerFailed as error:
        result.add_finding(str(error))
    return result


def run_small(seed: int, trials: int, folder: Path) -> Trials:
    """The same on a folder that is quickly made."""
    return run(seed, trials, folder, megabytes=4)


def _fill(folder: Path, size: int) -> int:
    """Write until the blocks hold `size` bytes; how many records."""
    log = Log(folder)
    stream = log.execute(CreateStream("ab" * 16, _STREAM, SHARDS, "crc32", 10**15, 1)).stream
    payload = bytes(range(256)) * (BATCH_BYTES // 256)
    batches = size // BATCH_BYTES
    made = [SentBatch(stream, shard, 9, 0, RECORDS_PER_BATCH, payload).to_batch() for shard in range(SHARDS)]
    for number in range(batches):
        shard, sequence = number % SHARDS, number // SHARDS
        batch = Batch(replace(made[shard].header, sequence=sequence), payload)
        answers: list[object] = []
        log.append([batch], answers.append)
        while not answers:
            log.batcher.drive()
    log.close()
    return batches * RECORDS_PER_BATCH


def _check(hub: Hub, result: Trials) -> None:
    info = hub.streams.get(_STREAM)
    if sum(info.ends) != result.acknowledged:
        result.lost += result.acknowledged - sum(info.ends)
        result.add_finding(f"{sum(info.ends)} records of {result.acknowledged}")
