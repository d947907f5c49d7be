"""Reading by offset: from memory or disk, exactly what is there, and the exact range of what is not."""

from pathlib import Path

import pytest

from mainstem.core.errors import DataLoss, StreamDeleted, UnknownStream
from mainstem.core.limits import READ_BYTES_MAX
from mainstem.log.flush import DeleteStream, TrimShard
from mainstem.log.frame import FRAME_BYTES
from mainstem.log.ledger.base import StreamRow
from mainstem.log.log import Log, LogOptions
from mainstem.log.reader import LogReader
from tests.unit.log.parts import append, append_values, make_batch, make_stream, values_of


class Reading:
    """A log with one stream, and a reader that sees only the disk."""

    def __init__(self, path: Path, options: LogOptions | None = None) -> None:
        self.log = Log(path, options)
        self.stream = self.log.ledger.load_stream(make_stream(self.log, shards=2)) or _none()
        self.cold = LogReader(self.log.ledger, self.log._folder.blocks)
        self._path = path

    def add(self, *values: bytes, shard: int = 0) -> int:
        return append_values(self.log, self.stream.id, *values, shard=shard)

    def bytes_of(self, offset: int, *, shard: int = 0) -> tuple[Path, int, int]:
        """The file, position and length of the entry that holds `offset`."""
        entry = self.log.ledger.entries_from(self.stream.id, shard, offset, 1)[0]
        return self._path / "blocks" / f"{entry.block:016d}.block", entry.position, entry.length

    def flip(self, offset: int, place: int, *, shard: int = 0) -> None:
        """Flip a bit of the entry that holds `offset`, `place` bytes into it."""
        path, position, _ = self.bytes_of(offset, shard=shard)
        with path.open("r+b") as file:
            file.seek(position + place)
            byte = file.read(1)[0]
            file.seek(position + place)
            file.write(bytes([byte ^ 0x20]))

    def read(
        self, offset: int, *, shard: int = 0, bytes_max: int = READ_BYTES_MAX
    ) -> list[tuple[int, list[bytes | None]]]:
        found = self.cold.read(self.stream, shard, offset, bytes_max)
        return [(batch.base, values_of(batch)) for batch in found]

    def loss(self, offset: int, *, shard: int = 0) -> DataLoss:
        with pytest.raises(DataLoss) as caught:
            self.cold.read(self.stream, shard, offset)
        assert (caught.value.stream, caught.value.shard) == ("orders", shard)
        return caught.value


def _none() -> StreamRow:
    raise AssertionError("the stream is there")


@pytest.fixture
def reading(tmp_path):
    reading = Reading(tmp_path)
    yield reading
    reading.log.close()


def test_batches_come_back_from_the_one_that_holds_the_offset(reading):
    for values in ([b"a", b"b"], [b"c"], [b"d", b"e", b"f"]):
        reading.add(*values)
    whole = [(0, [b"a", b"b"]), (2, [b"c"]), (3, [b"d", b"e", b"f"])]
    assert [reading.read(offset) for offset in range(6)] == [whole, whole, whole[1:], *[whole[2:]] * 3]
    assert reading.read(6) == reading.read(7) == []


def test_an_entry_of_several_batches_is_read_from_the_batch_that_holds_the_offset(reading):
    append(reading.log, *(make_batch([b"%d" % n], stream=reading.stream.id) for n in range(4)))
    assert reading.read(2) == [(2, [b"2"]), (3, [b"3"])]


def test_memory_answers_before_the_disk(reading):
    reading.add(b"a")
    warm = reading.log.reader
    assert values_of(warm.read(reading.stream, 0, 0)[0]) == [b"a"]
    assert warm.disk_reads == 0
    reading.read(0)
    assert reading.cold.disk_reads == 1


def test_what_memory_let_go_comes_from_the_disk_without_a_seam(tmp_path):
    reading = Reading(tmp_path, LogOptions(hot_tail_bytes=4_000))
    for number in range(50):
        reading.add(b"%d" % number)
    found: list[bytes | None] = []
    while batches := reading.log.reader.read(reading.stream, 0, len(found)):
        for batch in batches:
            assert batch.base == len(found)
            found += values_of(batch)
    assert found == [b"%d" % number for number in range(50)]
    assert reading.log.reader.disk_reads > 0
    reading.log.close()


def test_small_entries_that_lie_together_are_one_read(reading):
    for number in range(100):
        reading.add(b"%d" % number)
    assert len(reading.read(0)) == 100
    assert reading.cold.disk_reads == 1


def test_entries_far_apart_are_read_one_by_one(reading):
    """Another shard's bytes lie between them: reading those along would cost more than a second read."""
    for number in range(3):
        reading.add(b"%d" % number)
        reading.add(b"." * 100_000, shard=1)
    assert len(reading.read(0)) == 3
    assert reading.cold.disk_reads == 3


def test_a_read_brings_about_as_much_as_was_asked_for(reading):
    for number in range(20):
        reading.add(b"%02d" % number * 5_000)
    found = reading.read(0, bytes_max=35_000)
    assert 3 <= len(found) <= 5
    assert len(reading.read(0, bytes_max=1)) == 1


def test_a_batch_larger_than_what_was_asked_for_still_comes(reading):
    reading.add(b"x" * 100_000)
    assert reading.read(0, bytes_max=10) == [(0, [b"x" * 100_000])]


# What is gone.


def test_trimmed_records_are_told_by_their_range(reading):
    for number in range(10):
        reading.add(b"%d" % number)
    reading.log.execute(TrimShard(reading.stream.id, 0, 6))
    loss = reading.loss(2)
    assert (loss.first, loss.last, loss.reason) == (2, 5, "trimmed")
    assert reading.read(loss.last + 1)[0] == (6, [b"6"])


def test_trimmed_records_are_not_served_from_memory_either(reading):
    reading.add(b"a", b"b", b"c")
    reading.log.execute(TrimShard(reading.stream.id, 0, 2))
    with pytest.raises(DataLoss) as caught:
        reading.log.reader.read(reading.stream, 0, 0)
    assert (caught.value.first, caught.value.last) == (0, 1)
    assert reading.log.reader.read(reading.stream, 0, 2)[0].end == 3


def test_a_damaged_payload_costs_exactly_its_batch(reading):
    """Three batches of one entry; the middle one is damaged: the first is delivered, then the loss, then the third."""
    batches = [make_batch([b"%d" % n] * 5, stream=reading.stream.id) for n in range(3)]
    append(reading.log, *batches)
    _, _, length = reading.bytes_of(0)
    reading.flip(0, length // 3 + FRAME_BYTES + 30)
    assert reading.read(0) == [(0, [b"0"] * 5)]
    loss = reading.loss(5)
    assert (loss.first, loss.last) == (5, 9)
    assert loss.reason == "damaged"
    assert "blocks/" in loss.path
    assert loss.position > 0
    assert reading.read(10) == [(10, [b"2"] * 5)]


def test_a_reader_in_the_middle_of_a_damaged_batch_is_told_what_it_will_not_get(reading):
    """It had the records before from elsewhere: only the rest is its loss, as with a damaged header or a trim."""
    reading.add(*[b"x"] * 8)
    reading.flip(0, FRAME_BYTES + 40)
    loss = reading.loss(4)
    assert (loss.first, loss.last) == (4, 7)


def test_a_damaged_header_costs_the_rest_of_its_entry_and_nothing_of_the_next(reading):
    append(reading.log, *(make_batch([b"%d" % n] * 5, stream=reading.stream.id) for n in range(3)))
    reading.add(b"after")
    _, _, length = reading.bytes_of(0)
    reading.flip(0, length // 3 + 20)
    assert reading.read(0) == [(0, [b"0"] * 5)]
    loss = reading.loss(5)
    assert (loss.first, loss.last) == (5, 14)
    assert reading.read(15) == [(15, [b"after"])]


def test_damage_in_one_of_many_small_entries_costs_only_that_one(reading):
    """They are read together, but each is judged alone."""
    for number in range(10):
        reading.add(b"%d" % number)
    reading.flip(4, 20)
    assert [base for base, _ in reading.read(0)] == [0, 1, 2, 3]
    loss = reading.loss(4)
    assert (loss.first, loss.last) == (4, 4)
    assert [base for base, _ in reading.read(5)] == [5, 6, 7, 8, 9]


def test_a_block_cut_short_costs_what_was_in_the_missing_part(reading):
    for number in range(6):
        reading.add(b"%d" % number)
    path, position, _ = reading.bytes_of(3)
    with path.open("r+b") as file:
        file.truncate(position + 10)
    assert [base for base, _ in reading.read(0)] == [0, 1, 2]
    assert [(loss.first, loss.last) for loss in (reading.loss(offset) for offset in (3, 4, 5))] == [
        (3, 3),
        (4, 4),
        (5, 5),
    ]


def test_a_missing_block_costs_what_was_in_it(tmp_path):
    reading = Reading(tmp_path, LogOptions(block_bytes=64 << 10))
    for number in range(8):
        reading.add(b"%d" % number * 20_000)
    reading.log.close()
    again = Log(tmp_path)
    cold = LogReader(again.ledger, again._folder.blocks)
    files = [again.ledger.entries_from(reading.stream.id, 0, offset, 1)[0].block for offset in range(8)]
    lost = files[3]
    (tmp_path / "blocks" / f"{lost:016d}.block").unlink()
    first, last = files.index(lost), 7 - files[::-1].index(lost)
    assert 0 < first <= last < 7
    assert [batch.base for batch in cold.read(reading.stream, 0, 0)] == list(range(first))
    with pytest.raises(DataLoss) as caught:
        cold.read(reading.stream, 0, first)
    assert (caught.value.first, caught.value.last) == (first, last)
    assert f"{lost:016d}" in caught.value.path
    assert cold.read(reading.stream, 0, last + 1)[0].base == last + 1
    again.close()


def test_bytes_of_another_shard_are_never_returned(reading):
    """A ledger that points at the wrong place: the frame there is sound, but it is not the one that was asked for."""
    reading.add(b"mine")
    reading.add(b"yours", shard=1)
    entry = reading.log.ledger.entries_from(reading.stream.id, 1, 0, 1)[0]
    wrong = entry._replace(shard=0)

    class Pointing:
        def __getattr__(self, name: str) -> object:
            return getattr(reading.log.ledger, name)

        def entries_from(self, *_: int) -> list[object]:
            return [wrong]

    reader = LogReader(Pointing(), reading.log._folder.blocks)  # type: ignore[arg-type]
    with pytest.raises(DataLoss, match="another shard"):
        reader.read(reading.stream, 0, 0)


# Streams and times.


def test_a_stream_is_required_by_its_id(reading):
    assert reading.log.reader.require_stream(reading.stream.id) == reading.stream
    with pytest.raises(UnknownStream):
        reading.log.reader.require_stream(99)
    reading.log.execute(DeleteStream(reading.stream.id, 5))
    with pytest.raises(StreamDeleted, match="orders"):
        reading.log.reader.require_stream(reading.stream.id)


def test_the_offset_at_a_time(reading):
    for number in range(5):
        append(reading.log, make_batch([b"x"] * 2, stream=reading.stream.id, times=(number * 10, number * 10 + 5)))
    found = [reading.log.reader.offset_at_time(reading.stream, 0, time) for time in (-1, 0, 5, 6, 15, 45, 46)]
    assert found == [0, 0, 0, 2, 2, 8, 10]
    reading.log.execute(TrimShard(reading.stream.id, 0, 3))
    assert reading.log.reader.offset_at_time(reading.stream, 0, 0) == 3
