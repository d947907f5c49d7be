"""Records on their way into another stream: of each key they keep their order."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from mainstem.core.errors import InvalidRecord
from mainstem.spark.jobs.records_copied import Copier

Said = tuple[bytes | None, int]
HEADERS = pa.map_(pa.string(), pa.binary())


class Part:
    """Notes what it is sent: of each record the key and its time, which is where it stood."""

    def __init__(self) -> None:
        self.said: list[Said] = []
        self.batches = 0

    def send_batch(self, stream: str, data: pa.Table, *, shard: int | None = None) -> None:
        self.batches += 1
        for row in data.to_pylist():
            assert "_deleted" not in row
            self.said.append((None if row["id"] is None else row["id"].encode(), row["at"]))

    def send_tombstone(
        self, stream: str, key: bytes, headers: dict[str, bytes] | None, time_us: int, *, shard: int | None = None
    ) -> None:
        assert headers == headers_of(time_us)
        self.said.append((key, time_us))


def headers_of(place: int) -> dict[str, bytes] | None:
    """Of every third record none."""
    return {"place": b"%d" % place} if place % 3 else None


def sent(records: Sequence[tuple[str | None, bool]], key: tuple[str, ...] = ("id",)) -> Part:
    """What becomes of records that are given with their keys, and whether they are tombstones."""
    places = list(range(len(records)))
    table = pa.table(
        {
            "id": pa.array([None if is_deleted else key for key, is_deleted in records], pa.string()),
            "at": pa.array(places, pa.int64()),
            "_key": pa.array([None if key is None else key.encode() for key, _ in records], pa.binary()),
            "_headers": pa.array([headers and list(headers.items()) for headers in map(headers_of, places)], HEADERS),
            "_timestamp": pa.array(places, pa.timestamp("us", "UTC")),
            "_deleted": [is_deleted for _, is_deleted in records],
        }
    )
    part = Part()
    stream = cast("Any", SimpleNamespace(name="copy", key=key))
    Copier(("id",))(cast("Any", part), stream, pa.concat_tables([table[:3], table[3:]]), None)
    return part


@pytest.mark.parametrize("seed", range(20))
def test_each_key_keeps_its_order(seed):
    rng = random.Random(seed)
    keys = [None, *(f"k{number}" for number in range(rng.randrange(1, 30)))]
    records = [(key := rng.choice(keys), key is not None and rng.random() < 0.4) for _ in range(rng.randrange(1, 200))]
    said = sent(records).said
    assert sorted(at for _, at in said) == list(range(len(records)))
    for key in keys:
        mine = None if key is None else key.encode()
        wanted = [at for at, (each, _) in enumerate(records) if each == key]
        assert [at for each, at in said if each == mine] == wanted


def test_a_deletion_of_every_other_key_makes_no_batch_for_each():
    records = [(f"k{number // 2}", bool(number % 2)) for number in range(1_000)]
    assert sent(records).batches == 1


def test_a_tombstone_of_another_key_is_refused():
    with pytest.raises(InvalidRecord, match="'copy' cannot take the tombstone of b'a', because its keys are made of b"):
        sent([("a", False), ("a", True)], key=("b",))
