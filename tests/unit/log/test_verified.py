"""What audits found, as whoever looks a stream up is told it."""

import json

import pytest

from mainstem.core.batch import FetchedBatch
from mainstem.log.flush import TrimShard
from mainstem.log.ledger.base import StreamRow
from mainstem.log.own_stream import OwnStream
from mainstem.log.verified import VerifiedStreams
from mainstem.transport.counting import VERIFIED_STREAM
from tests.unit.log.keeping import Keeping


@pytest.fixture
def keeping(tmp_path):
    found = Keeping(tmp_path / "data")
    yield found
    found.log.close()


def note(keeping: Keeping, *said: object) -> None:
    kept = OwnStream(keeping.log, VERIFIED_STREAM, 10**15, 1 << 30)
    kept.append([json.dumps(each).encode() for each in said], [b"orders"] * len(said))


def told(found: VerifiedStreams, stream: StreamRow) -> tuple[int, int] | None:
    newest = found.of(stream)
    return None if newest is None else (newest.through_us, newest.differing)


def test_the_newest_word_is_remembered_and_what_came_since_is_read(keeping, monkeypatch):
    stream = keeping.row(keeping.create("orders"))
    found = VerifiedStreams(keeping.log.ledger, keeping.log.reader)
    assert found.of(stream) is None
    note(keeping, {"stream": "orders", "through_us": 9, "differing": 2}, {"stream": "returns", "through_us": 7})
    note(keeping, {"stream": "orders", "through_us": 5})
    assert told(found, stream) == (5, 0)
    read, reads = keeping.log.reader.read, []

    def noted(row: StreamRow, shard: int, offset: int) -> list[FetchedBatch]:
        reads.append(offset)
        return read(row, shard, offset)

    monkeypatch.setattr(keeping.log.reader, "read", noted)
    assert told(found, stream) == (5, 0)
    note(keeping, {"stream": "orders", "through_us": 11, "differing": 1})
    assert told(found, stream) == (11, 1)
    assert min(reads) == 3


def test_another_stream_of_the_name_is_another(keeping):
    """A record that does not say which is meant is of any."""
    stream = keeping.row(keeping.create("orders"))
    found = VerifiedStreams(keeping.log.ledger, keeping.log.reader)
    note(keeping, {"stream": "orders", "through_us": 9, "uuid": "0" * 32})
    assert found.of(stream) is None
    note(keeping, {"stream": "orders", "through_us": 5, "uuid": stream.uuid})
    assert told(found, stream) == (5, 0)
    note(keeping, {"stream": "orders", "through_us": 3})
    assert told(found, stream) == (3, 0)
    note(keeping, {"stream": "orders", "through_us": 6, "uuid": stream.uuid})
    assert told(found, stream) == (6, 0)


def test_a_stream_is_verified_as_far_as_its_worst_tier(keeping):
    """What is said of some tiers leaves the others as they were; one that is forgotten counts no more."""
    stream = keeping.row(keeping.create("orders"))
    found = VerifiedStreams(keeping.log.ledger, keeping.log.reader)
    said = {"stream": "orders", "uuid": stream.uuid}
    note(keeping, said | {"through_us": 5, "differing": 2, "tiers": ["log", "/a", "/b"]})
    note(keeping, said | {"through_us": 9, "tiers": ["log"]})
    assert told(found, stream) == (5, 2)
    worst = found.of(stream)
    assert worst is not None
    assert worst.tiers == ("/a", "/b")
    note(keeping, said | {"through_us": 7, "differing": 1, "tiers": ["log", "/a"]})
    assert told(found, stream) == (5, 2)
    note(keeping, said | {"through_us": 9, "tiers": ["log"], "forgotten": ["/b"]})
    assert told(found, stream) == (7, 1)
    assert told(VerifiedStreams(keeping.log.ledger, keeping.log.reader), stream) == (7, 1)
    # Named again, it counts again.
    note(keeping, said | {"through_us": 6, "tiers": ["/b"]})
    assert told(found, stream) == (6, 1)


def test_what_was_trimmed_or_means_nothing_is_not_told(keeping):
    stream = keeping.row(keeping.create("orders"))
    found = VerifiedStreams(keeping.log.ledger, keeping.log.reader)
    note(keeping, {"stream": "orders", "through_us": 9})
    note(keeping, {"stream": "orders", "through_us": "yesterday"}, ["orders"], None)
    assert told(found, stream) == (9, 0)
    kept = keeping.log.ledger.stream_named(VERIFIED_STREAM)
    keeping.log.execute(TrimShard(kept.id, 0, 4))
    assert found.of(stream) is None
    assert VerifiedStreams(keeping.log.ledger, keeping.log.reader).of(stream) is None
    note(keeping, {"stream": "orders", "through_us": 10})
    assert told(VerifiedStreams(keeping.log.ledger, keeping.log.reader), stream) == (10, 0)
