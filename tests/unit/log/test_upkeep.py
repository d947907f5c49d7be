"""Upkeep without its thread: every step of it on a clock that the test moves, looked at through readers and files."""

import errno

import pytest

from mainstem.core.batch import Batch
from mainstem.core.errors import DataLoss, FolderUnusable, Refused
from mainstem.log import compaction, merger
from mainstem.log.administration import Administration
from mainstem.log.batcher import Submission
from mainstem.log.compaction import KeyIndex
from mainstem.log.flush import AlterStream, Appended, DropEntries, Replacement, TrimShard
from mainstem.log.ledger.base import GenerationRow
from mainstem.log.log import Log, LogOptions
from mainstem.log.upkeep import Pace, compacting, merging, thinning, trimming
from mainstem.registry import compatibility
from mainstem.testing.disk import FailingDisk
from tests.unit.log.keeping import DAY, HOUR, SECOND_US, Keeping, damage, marker, pass_time, set_barrier
from tests.unit.log.parts import append, append_values, make_keyed_batch, make_stream
from tests.unit.log.test_transactions import commit, commit_whole, stage


@pytest.fixture
def keeping(tmp_path):
    found = Keeping(tmp_path / "data")
    yield found
    found.log.close()


@pytest.fixture
def short_runs(monkeypatch):
    """Fewer entries are merged than in life: 64."""
    for module in (merger, merging):
        monkeypatch.setattr(module, "RUN_ENTRIES", 64)


def test_a_few_entries_are_merged_when_nothing_more_comes(keeping):
    """Or whoever looks for a value would have to open them all: tiny batches have no statistics."""
    stream = keeping.create(shards=2)
    found = [keeping.write_singly(stream, count, shard=shard) for shard, count in enumerate((20, 7))]
    keeping.keep()
    for _ in range(4):
        keeping.keep(10)
        found[0] |= keeping.write_singly(stream, 1, first=len(found[0]))
    assert [len(keeping.entries(stream, shard)) for shard in (0, 1)] == [24, 7], "they wait for more"
    keeping.keep()
    keeping.keep(29)
    assert len(keeping.entries(stream)) == 24
    keeping.keep(1)
    assert [len(keeping.entries(stream, shard)) for shard in (0, 1)] == [1, 7]
    assert [keeping.read(stream, shard=shard) for shard in (0, 1)] == found
    flushes = keeping.log.counters()["flushes_applied"]
    keeping.keep(600)
    assert keeping.log.counters()["flushes_applied"] <= flushes + 2, "and are not looked at again"
    found[0] |= keeping.write_singly(stream, 9, first=24)
    keeping.keep()
    keeping.keep(30)
    assert len(keeping.entries(stream)) == 2
    assert keeping.read(stream) == found[0]


# Rows below the start.


def test_rows_go_some_at_a_time(keeping, monkeypatch):
    monkeypatch.setattr(trimming, "_DROP_ROWS", 10)
    stream = keeping.create(shards=2)
    expected = keeping.write_singly(stream, 35)
    keeping.write_singly(stream, 3, shard=1)
    before = keeping.log.reader.shard(stream, 0).bytes
    keeping.log.execute(TrimShard(stream, 0, 30))
    keeping.log.upkeep.look_at((stream, 0))
    # Readers notice at once; rows are still there.
    assert keeping.read(stream) == {offset: pair for offset, pair in expected.items() if offset >= 30}
    assert len(keeping.entries(stream)) == 35
    left = [len(keeping.entries(stream)) for _ in keeping.log.upkeep._trimming.drop()]
    assert left == [25, 15, 5]
    assert len(keeping.entries(stream, 1)) == 3
    assert 0 < keeping.log.reader.shard(stream, 0).bytes < before / 5
    assert keeping.counts()["rows_dropped"] == 30
    assert not list(keeping.log.upkeep._trimming.drop())


def test_an_entry_in_the_middle_of_which_a_shard_starts_stays(keeping):
    stream = keeping.create()
    keeping.write(stream, *((b"k", b"%d" % number) for number in range(10)))
    keeping.log.execute(TrimShard(stream, 0, 4))
    keeping.keep()
    assert sorted(keeping.read(stream)) == list(range(4, 10))
    assert len(keeping.entries(stream)) == 1
    keeping.log.execute(TrimShard(stream, 0, 10))
    keeping.log.upkeep.look_at((stream, 0))
    keeping.keep()
    assert (keeping.read(stream), list(keeping.entries(stream))) == ({}, [])
    keeping.write(stream, (b"k", b"next"))
    assert keeping.read(stream) == {10: (b"k", b"next")}


def test_rows_that_were_trimmed_in_an_earlier_life_go(keeping):
    stream = keeping.create()
    keeping.write_singly(stream, 5)
    keeping.log.execute(TrimShard(stream, 0, 3))
    keeping.reopen()
    keeping.keep()
    assert keeping.entries(stream)[0].base == 3
    assert sorted(keeping.read(stream)) == [3, 4]


def test_retention_moves_the_start_and_drops_the_rows(keeping):
    stream = keeping.create(retention_us=round(HOUR) * SECOND_US)
    keeping.write_singly(stream, 5)
    keeping.clock.advance(HOUR / 2)
    kept = {offset + 5: pair for offset, pair in enumerate([(b"a", b"1"), (b"b", b"2")])}
    keeping.write(stream, *kept.values())
    keeping.keep(HOUR / 2 - 1)
    assert len(keeping.read(stream)) == 7
    keeping.keep(2)
    assert keeping.read(stream) == kept
    assert len(keeping.entries(stream)) == 1


# Merging.


def test_tiny_entries_become_few_and_are_read_as_before(keeping):
    stream = keeping.create(shards=2)
    expected = keeping.write_singly(stream, 1_100)
    other = keeping.write_singly(stream, 20, shard=1)
    keeping.keep()
    assert keeping.read(stream) == expected
    assert keeping.read(stream, cold=False) == expected
    assert len(keeping.entries(stream)) <= 1_100 - 1_024 + 1
    assert keeping.read(stream, shard=1) == other
    assert keeping.counts()["entries_merged"] == 1_024
    keeping.reopen()
    assert keeping.read(stream) == expected
    assert keeping.rebuilt() == [expected, other]


def test_what_was_merged_is_not_merged_again(keeping, short_runs):
    stream = keeping.create()
    keeping.write_singly(stream, 70)
    keeping.keep()
    before = keeping.log.counters()["flushes_applied"]
    for _ in range(3):
        keeping.keep(60)
    keeping.reopen()
    keeping.keep(60)
    assert keeping.counts()["entries_merged"] == 0
    # Opening the block is all that a new life adds.
    assert keeping.log.counters()["flushes_applied"] <= before + 2


def test_times_are_found_after_a_merge(keeping, short_runs):
    stream = keeping.create()
    times = []
    for number in range(64):
        times.append(keeping.clock.now_us())
        keeping.write(stream, (b"k", b"%d" % number))
        keeping.clock.advance(1)
    administration = Administration(keeping.log, check_schema=compatibility.check)
    assert administration._offset_at(keeping.row(stream), 0, times[30]) == 30
    keeping.keep()
    assert len(keeping.entries(stream)) == 1
    for offset in (0, 1, 30, 63):
        assert administration._offset_at(keeping.row(stream), 0, times[offset]) == offset
        assert administration._offset_at(keeping.row(stream), 0, times[offset] - 1) == offset
    assert administration._offset_at(keeping.row(stream), 0, times[-1] + 1) == 64


def test_entries_that_cannot_be_read_are_not_merged(keeping, short_runs, caplog):
    stream = keeping.create()
    keeping.write_singly(stream, 64)
    keeping.roll()
    damage(keeping, keeping.entries(stream)[30])
    for _ in range(2):
        keeping.keep()
    assert len(keeping.entries(stream)) == 64
    assert caplog.text.count("not merged") == 1


# Compaction.


def test_the_newest_of_every_key_stays(keeping):
    stream = keeping.create(cleanup="compact", shards=2)
    for number in range(100):
        keeping.write(stream, (b"k%d" % (number % 7), b"%d" % number), (b"x" * 50, b"long %d" % number))
    keeping.write(stream, (b"k0", b"in another shard"), shard=1)
    keeping.keep()
    assert len(keeping.read(stream)) == 200
    keeping.keep(compaction.DIRTY_SECONDS_MAX)
    left = keeping.read(stream)
    newest = {b"k%d" % (number % 7): number for number in range(100)}
    expected = {2 * number: (key, b"%d" % number) for key, number in newest.items()}
    assert left == expected | {199: (b"x" * 50, b"long 99")}
    assert keeping.read(stream, shard=1) == {0: (b"k0", b"in another shard")}
    assert keeping.counts()["records_compacted"] == 192
    before = keeping.log.counters()["flushes_applied"]
    keeping.keep(2 * compaction.DIRTY_SECONDS_MAX)
    assert keeping.log.counters()["flushes_applied"] <= before + 2
    keeping.reopen(without_ledger=True)
    assert keeping.read(stream) == left


def test_much_that_is_new_is_compacted_at_once(keeping):
    stream = keeping.create(cleanup="compact")
    for number in range(20):
        keeping.write(stream, (b"k", marker(number, 5_000)))
    keeping.keep()
    assert list(keeping.read(stream)) == [19]


def test_a_tombstone_is_kept_for_its_time_and_then_goes(keeping):
    stream = keeping.create(cleanup="compact", tombstones=HOUR)
    keeping.write(stream, (b"a", b"1"), (b"b", b"2"), (b"a", None))
    keeping.keep()
    keeping.keep(compaction.DIRTY_SECONDS_MAX)
    assert keeping.read(stream) == {1: (b"b", b"2"), 2: (b"a", None)}
    # To the moment, counted from when compaction came past it: it is not over yet.
    keeping.keep(HOUR - 1)
    assert keeping.read(stream) == {1: (b"b", b"2"), 2: (b"a", None)}
    keeping.keep(1)
    assert keeping.read(stream) == {1: (b"b", b"2")}
    # The key may come back.
    keeping.write(stream, (b"a", b"again"))
    keeping.keep()
    keeping.keep(2 * HOUR)
    assert keeping.read(stream) == {1: (b"b", b"2"), 3: (b"a", b"again")}


def test_a_shorter_time_for_tombstones_counts_at_once(keeping):
    stream = keeping.create(cleanup="compact", tombstones=HOUR)
    keeping.write(stream, (b"a", b"1"), (b"a", None))
    keeping.keep()
    keeping.keep(compaction.DIRTY_SECONDS_MAX)
    assert keeping.read(stream) == {1: (b"a", None)}
    keeping.log.execute(AlterStream(stream, tombstone_us=60 * SECOND_US))
    keeping.keep(60)
    assert keeping.read(stream) == {}


def test_a_tombstone_of_long_ago_is_kept_as_long_as_any(keeping):
    """A copy of another stream has the times of that one; no reader has heard of its tombstones yet."""
    stream = keeping.create(cleanup="compact", tombstones=HOUR)
    old_us, new_us = keeping.clock.now_us() - 365 * 86_400 * SECOND_US, keeping.clock.now_us()
    append(keeping.log, make_keyed_batch([(b"a", b"1", new_us), (b"a", None, old_us)], stream=stream))
    keeping.keep()
    keeping.keep(compaction.DIRTY_SECONDS_MAX)
    assert keeping.read(stream) == {1: (b"a", None)}
    # What is compacted meanwhile does not make it younger.
    for _ in range(10):
        keeping.write(stream, (b"b", bytes(100_000)))
        keeping.keep(HOUR / 10 - 1)
        assert 1 in keeping.read(stream)
    keeping.keep(compaction.DIRTY_SECONDS_MAX)
    assert 1 not in keeping.read(stream)


def append_staged(log: Log, *batches: Batch) -> None:
    stage(log, 5, 0, *batches)
    commit(log, 5, len(batches))


def append_whole(log: Log, *batches: Batch) -> None:
    commit_whole(log, 5, *batches)


@pytest.mark.parametrize("written", [append, append_staged, append_whole])
def test_a_record_of_the_future_does_not_keep_those_after_it(keeping, written):
    stream = keeping.create(retention_us=2 * round(HOUR) * SECOND_US)
    future_us = keeping.clock.now_us() + 1_000 * 365 * 86_400 * SECOND_US
    written(keeping.log, make_keyed_batch([(b"a", b"1", future_us)], stream=stream))
    keeping.write(stream, (b"b", b"2"))
    keeping.keep(2 * HOUR)
    assert len(keeping.read(stream)) == 2, "it counts as an hour ahead"
    keeping.keep(HOUR + 60)
    assert keeping.read(stream) == {}


def test_a_tombstone_goes_though_the_log_was_closed_meanwhile(keeping):
    stream = keeping.create(cleanup="compact", tombstones=HOUR)
    keeping.write(stream, (b"a", b"1"), (b"a", None))
    keeping.keep()
    keeping.keep(compaction.DIRTY_SECONDS_MAX)
    assert keeping.read(stream) == {1: (b"a", None)}
    keeping.clock.advance(2 * HOUR)
    keeping.reopen()
    keeping.keep()
    keeping.keep(HOUR + 1)
    assert keeping.read(stream) == {}


def test_records_without_a_key_stay(keeping):
    """A stream may have got them before it was altered."""
    stream = keeping.create()
    keeping.write(stream, (None, b"1"), (b"a", b"2"), (None, b"3"), (b"a", b"4"))
    keeping.log.execute(AlterStream(stream, cleanup="compact"))
    keeping.keep()
    keeping.keep(compaction.DIRTY_SECONDS_MAX)
    assert keeping.read(stream) == {0: (None, b"1"), 2: (None, b"3"), 3: (b"a", b"4")}


def test_more_keys_than_memory_allows_take_several_rounds(keeping, monkeypatch):
    monkeypatch.setattr(compacting, "KeyIndex", lambda: KeyIndex(30))
    monkeypatch.setattr(thinning, "STEP_ROWS", 16)
    stream = keeping.create(cleanup="compact")
    newest = {}
    for number in range(300):
        key = b"k%d" % (number * 7 % 100)
        newest[key] = number
        keeping.write(stream, (key, marker(number)))
    keeping.keep()
    for _ in range(20):
        keeping.keep(compaction.DIRTY_SECONDS_MAX)
    assert keeping.read(stream) == {number: (key, marker(number)) for key, number in newest.items()}


def test_what_was_read_for_others_is_forgotten_with_the_piece_that_is_compacted(keeping):
    """A pass may be left at any piece: the log is closed, or a shard's stream is deleted."""
    stream = keeping.create(cleanup="compact")
    for number in range(20):
        keeping.write(stream, (b"k", b"%d" % number))
    keeping.reopen()
    assert len(keeping.read(stream, cold=False)) == 20
    assert list(keeping.log.upkeep._compacting.compact()) == [], "it is too young"
    keeping.clock.advance(compaction.DIRTY_SECONDS_MAX)
    steps = keeping.log.upkeep._compacting.compact()
    next(step for step in steps if keeping.counts()["records_compacted"])
    assert keeping.read(stream, cold=False) == keeping.read(stream) == {19: (b"k", b"19")}


def test_what_is_compacted_is_put_together(keeping):
    """Thousands of entries of one record each do not stay, even if each of them is the newest of its key."""
    stream = keeping.create(cleanup="compact")
    expected = keeping.write_singly(stream, 300, size=30)
    keeping.keep()
    keeping.keep(compaction.DIRTY_SECONDS_MAX)
    assert len(keeping.entries(stream)) < 20
    assert keeping.read(stream) == expected


def test_a_damaged_end_does_not_keep_compaction_busy(keeping, caplog):
    """What cannot be read is left as it is, and the round comes to its end."""
    stream = keeping.create(cleanup="compact")
    for number in range(40):
        keeping.write(stream, (b"k%d" % (number % 2), marker(number, 5_000)))
    keeping.roll()
    for entry in keeping.entries(stream):
        damage(keeping, entry)
    for steps, _ in enumerate(keeping.log.upkeep._compacting.compact()):
        assert steps < 100
    assert len(keeping.entries(stream)) == 40
    assert "left as they are" in caplog.text


# Erasing.


@pytest.mark.parametrize("cold", [False, True])
def test_an_erased_key_is_gone_for_every_reader_at_once(keeping, cold):
    stream = keeping.create(shards=2)
    for number in range(200):
        for shard in (0, 1):
            keeping.write(stream, (b"secret" if number % 10 == shard else b"k%d" % number, marker(number)), shard=shard)
    before = [keeping.read(stream, shard=shard) for shard in (0, 1)]
    if cold:
        keeping.reopen()
    assert keeping.log.upkeep.erase(keeping.row(stream), b"secret") == 40
    for shard in (0, 1):
        expected = {offset: pair for offset, pair in before[shard].items() if pair[0] != b"secret"}
        assert keeping.read(stream, shard=shard) == expected
        assert keeping.read(stream, shard=shard, cold=False) == expected
    assert keeping.counts()["records_erased"] == 40
    assert keeping.log.upkeep.erase(keeping.row(stream), b"secret") == 0
    assert keeping.log.upkeep.erase(keeping.row(stream), b"unknown") == 0
    # Written again it is there again.
    keeping.write(stream, (b"secret", b"new"))
    assert keeping.read(stream, cold=False)[200] == (b"secret", b"new")


def test_what_was_compacted_away_before_is_erased_from_memory_too(keeping):
    """On the disk nothing is left to erase; readers of the newest batches would still have found it."""
    stream = keeping.create(cleanup="compact", tombstones=0.0)
    keeping.write(stream, (b"secret", b"value"), (b"other", b"kept"))
    keeping.write(stream, (b"secret", None))
    keeping.write(stream, (b"other", b"newer"))
    keeping.keep()
    keeping.keep(HOUR)
    assert keeping.read(stream) == {3: (b"other", b"newer")}
    assert keeping.read(stream, cold=False)[0] == (b"secret", b"value")
    assert keeping.log.upkeep.erase(keeping.row(stream), b"secret") == 0
    assert keeping.read(stream, cold=False) == {3: (b"other", b"newer")}


def test_an_erasure_that_ends_in_the_middle_leaves_nothing_in_memory_that_it_took_from_the_disk(keeping):
    stream = keeping.create(shards=2)
    for shard in (0, 1):
        keeping.write(stream, (b"secret", marker(1)), (b"other", b"kept"), shard=shard)
    keeping.roll()
    damage(keeping, keeping.entries(stream, 1)[0])
    with pytest.raises(DataLoss):
        keeping.log.upkeep.erase(keeping.row(stream), b"secret")
    assert keeping.read(stream, cold=False) == {1: (b"other", b"kept")}


def test_what_cannot_be_stored_anew_is_not_tried_for_ever(keeping, monkeypatch):
    """It stays as it is, and whoever erases is told. Here only the applier knows of a barrier in the batch."""
    stream = keeping.create()
    keeping.write(stream, *((b"secret" if number == 3 else b"k%d" % number, b"v") for number in range(10)))
    before = keeping.read(stream)
    barrier = GenerationRow(stream, 1, 2, (5,))
    monkeypatch.setattr(keeping.log._applier, "generations", lambda number: (barrier,))
    with pytest.raises(Refused, match=r"shard 0: records 0 to 9 cannot be stored anew.* over a barrier"):
        keeping.log.upkeep.erase(keeping.row(stream), b"secret")
    assert keeping.read(stream) == before
    assert keeping.log.upkeep.erase(keeping.row(stream), b"unknown") == 0
    monkeypatch.undo()
    assert keeping.log.upkeep.erase(keeping.row(stream), b"secret") == 1


def test_a_batch_over_a_barrier_is_erased_from_on_both_sides(keeping, monkeypatch):
    """No writer makes one any more; earlier versions did."""
    stream = keeping.create()
    keeping.write(stream, *((b"secret" if number in (3, 7) else b"k%d" % number, b"v") for number in range(10)))
    set_barrier(keeping, monkeypatch, stream, 5)
    assert keeping.log.upkeep.erase(keeping.row(stream), b"secret") == 2
    assert [(entry.base, entry.end) for entry in keeping.entries(stream)] == [(0, 5), (5, 10)]
    assert sorted(keeping.read(stream)) == [0, 1, 2, 4, 5, 6, 8, 9]


def test_erasing_everything_leaves_offsets_without_records(keeping):
    stream = keeping.create()
    for _ in range(5):
        keeping.write(stream, (b"secret", b"x"), (b"secret", b"y"))
    assert keeping.log.upkeep.erase(keeping.row(stream), b"secret") == 10
    assert keeping.read(stream) == keeping.read(stream, cold=False) == {}
    (entry,) = keeping.entries(stream)
    assert (entry.base, entry.span, entry.count, entry.block, entry.length) == (0, 10, 0, 0, 0)
    keeping.write(stream, (b"a", b"after"))
    assert keeping.read(stream) == {10: (b"a", b"after")}


def test_an_erasure_that_meets_a_failing_disk_says_so(tmp_path):
    """It is not taken for one that others overtook, which is tried again until it is done."""
    disk = FailingDisk(at=0)
    log = Log(tmp_path / "data", disk=disk)
    stream = make_stream(log)
    append(log, make_keyed_batch([(b"k", b"1", 1), (b"other", b"2", 1)], stream=stream))
    disk._at = len(disk.calls) + 1
    with pytest.raises(FolderUnusable, match="the disk failed"):
        log.upkeep.erase(log.reader.require_stream(stream), b"k")
    log.close()


def test_the_bytes_of_an_erased_key_are_off_the_disk_when_it_was_said(keeping, short_runs):
    """Also the copy that a merge left behind, and what was trimmed before."""
    stream, other = keeping.create(), keeping.create("other")
    secret, public = marker(1), marker(2)
    for number in range(300):
        keeping.write(stream, (b"secret", secret) if number == 17 else (b"k%d" % number, public))
        if number % 10 == 0:
            keeping.write(other, (b"k", marker(number)))
    keeping.keep()
    assert keeping.counts()["entries_merged"]
    keeping.write(stream, (b"secret", secret))
    assert keeping.log.upkeep.erase(keeping.row(stream), b"secret") == 2
    info = keeping.info(stream)
    assert info.waiting_bytes > 0
    assert keeping.on_disk(secret)
    wait = (info.gone_by_us - keeping.clock.now_us()) / SECOND_US
    assert wait < 1_000
    pass_time(keeping, wait)
    assert not keeping.on_disk(secret)
    assert keeping.on_disk(public)
    assert len(keeping.read(stream)) == 299
    assert len(keeping.read(other)) == 30


def test_a_merge_that_an_erasure_overtakes_leaves_no_copy(keeping, short_runs):
    """The merger has read the records and commits after they were erased: it is refused, but its bytes are written."""
    stream = keeping.create()
    secret = marker(1)
    for number in range(70):
        keeping.write(stream, (b"secret", secret) if number == 17 else (b"k%d" % number, marker(2)))
    execute = keeping.log.execute

    def overtaken(item):
        if isinstance(item, Replacement):
            keeping.log.upkeep._work.commits.execute = execute
            assert keeping.log.upkeep.erase(keeping.row(stream), b"secret") == 1
        return execute(item)

    keeping.log.upkeep._work.commits.execute = overtaken
    for _ in keeping.log.upkeep._merging.merge():
        pass
    assert keeping.counts()["entries_merged"] == 0
    gone_by_us = keeping.info(stream).gone_by_us
    assert keeping.on_disk(secret)
    pass_time(keeping, (gone_by_us - keeping.clock.now_us()) / SECOND_US)
    assert not keeping.on_disk(secret)
    assert len(keeping.read(stream)) == 69


def test_what_was_sent_twice_is_erased_twice(keeping):
    """A producer that heard no answer sends again: the second copy is recognised, and lies in a block all the same."""
    stream = keeping.create()
    secret = marker(1)
    batch = make_keyed_batch([(b"secret", secret, keeping.clock.now_us())], stream=stream, producer=7)
    keeping.write(stream, (b"a", marker(2)))
    append(keeping.log, batch)
    keeping.roll()
    for number in range(100, 150):
        keeping.write(stream, (b"a", marker(number)))
    (outcome,) = append(keeping.log, batch)
    assert isinstance(outcome, Appended)
    assert outcome.duplicate
    assert keeping.log.upkeep.erase(keeping.row(stream), b"secret") == 1
    pass_time(keeping, 1_000)
    assert not keeping.on_disk(secret)


def test_an_erasure_goes_on_if_others_drop_the_same_rows_in_the_same_flush(keeping):
    stream = keeping.create()
    keeping.write_singly(stream, 10)
    keeping.write(stream, (b"secret", b"value"))
    keeping.log.execute(TrimShard(stream, 0, 5))
    execute = keeping.log.execute

    def overtaken(item):
        if isinstance(item, DropEntries):
            keeping.log.upkeep._work.commits.execute = execute
            first = DropEntries(stream, 0, 2, item.rewrite_us)
            keeping.log.batcher.submit(Submission((first,), lambda outcomes: None))
        return execute(item)

    keeping.log.upkeep._work.commits.execute = overtaken
    assert keeping.log.upkeep.erase(keeping.row(stream), b"secret") == 1
    assert keeping.entries(stream)[0].base == 5
    assert sorted(keeping.read(stream)) == [5, 6, 7, 8, 9]


def test_what_is_sent_again_after_an_erasure_and_a_restart_goes_too(keeping):
    """The second copy has no row; that its stream had an erasure is known from the offsets without a record."""
    stream = keeping.create()
    secret = marker(1)
    batch = make_keyed_batch([(b"secret", secret, keeping.clock.now_us())], stream=stream, producer=7)
    keeping.write(stream, (b"a", marker(2)))
    append(keeping.log, batch)
    assert keeping.log.upkeep.erase(keeping.row(stream), b"secret") == 1
    pass_time(keeping, 1_000)
    assert not keeping.on_disk(secret)
    keeping.reopen()
    keeping.write(stream, (b"a", marker(3)))
    (outcome,) = append(keeping.log, batch)
    assert isinstance(outcome, Appended)
    assert outcome.duplicate
    for number in range(100, 150):
        keeping.write(stream, (b"a", marker(number)))
    assert keeping.on_disk(secret)
    pass_time(keeping, DAY + 1_000)
    assert not keeping.on_disk(secret)


def test_an_erasure_that_meets_damage_says_so(keeping):
    stream = keeping.create()
    for number in range(10):
        keeping.write(stream, (b"secret", marker(number)))
    keeping.roll()
    damage(keeping, keeping.entries(stream)[5])
    with pytest.raises(DataLoss) as caught:
        keeping.log.upkeep.erase(keeping.row(stream), b"secret")
    assert caught.value.reason == "damaged"
    assert (caught.value.first, caught.value.last) == (0, 9)


def test_an_erasure_finds_entries_that_were_merged_meanwhile(keeping, short_runs):
    stream = keeping.create()
    for number in range(70):
        keeping.write(stream, (b"secret" if number in (3, 68) else b"k%d" % number, b"v"))
    execute = keeping.log.execute

    def overtaken(item):
        if isinstance(item, Replacement):
            keeping.log.upkeep._work.commits.execute = execute
            for _ in keeping.log.upkeep._merging.merge():
                pass
            assert keeping.counts()["entries_merged"] == 64
        return execute(item)

    keeping.log.upkeep._work.commits.execute = overtaken
    assert keeping.log.upkeep.erase(keeping.row(stream), b"secret") == 2
    assert sorted(keeping.read(stream)) == sorted(set(range(70)) - {3, 68})


def test_the_thread_ends_with_a_log_that_has_failed(tmp_path, caplog):
    """Nothing is committed any more: trying again would only fill the log lines."""
    disk = FailingDisk(at=0, error=errno.EIO)
    log = Log(tmp_path / "data", LogOptions(pace=Pace(interval=0.01)), disk=disk)
    stream = make_stream(log)
    log.execute(AlterStream(stream, 1_000_000))
    append_values(log, stream, b"old")
    disk._at = len(disk.calls) + 1
    log.upkeep.start()
    thread = log.upkeep._thread
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()
    assert "upkeep failed" not in caplog.text
    log.close()


@pytest.mark.parametrize("left", [0, 3])
def test_a_time_is_looked_for_while_rows_are_dropped(keeping, monkeypatch, left):
    """The shard was looked at before they were."""
    stream = keeping.create("orders")
    for number in range(10):
        keeping.write(stream, (b"k", b"%d" % number))
    row = keeping.log.ledger.load_shard(stream, 0)
    keeping.log.execute(TrimShard(stream, 0, 10 - left))
    keeping.log.upkeep.look_at((stream, 0))
    keeping.log.upkeep.run_until_idle()
    reader = keeping.log._upkeep_ledger
    monkeypatch.setattr(reader, "load_shard", lambda stream, shard: row)
    found = reader.entry_at_time(stream, 0, 0)
    assert (found.base if found else None) == (10 - left if left else None)


def test_large_records_among_many_tiny_ones_are_erased_too(keeping):
    """By their average size all of them would go into one batch, which would be larger than a batch may be."""
    stream = keeping.create("orders")
    keeping.write(stream, *((b"k", b"tiny") for _ in range(3_000)))
    for number in range(20):
        keeping.write(stream, (b"large-%d" % number, bytes([number]) * (1 << 20)))
    keeping.write(stream, (b"me", b"mine"))
    before = keeping.read(stream)
    assert keeping.log.upkeep.erase(keeping.row(stream), b"me") == 1
    keeping.log.upkeep.run_until_idle()
    assert keeping.log.upkeep.counters()["upkeep_errors"] == 0
    assert keeping.read(stream) == {offset: pair for offset, pair in before.items() if pair[0] != b"me"}


def test_a_trim_while_upkeep_rests_is_not_forgotten(keeping):
    stream = keeping.create("orders")
    for number in range(20):
        keeping.write(stream, (b"k", b"%d" % number))
    keeping.log.execute(TrimShard(stream, 0, 10))
    keeping.log.upkeep.look_at((stream, 0))
    steps = keeping.log.upkeep._trimming.drop()
    next(steps)
    keeping.log.execute(TrimShard(stream, 0, 15))
    keeping.log.upkeep.look_at((stream, 0))
    assert list(steps) == []
    keeping.log.upkeep.run_until_idle()
    assert keeping.log.ledger.oldest_entries(stream, 0, 15, -1).rows == 0
