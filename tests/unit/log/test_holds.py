"""What groups hold is there when retention would have let it go; over restarts, and not for ever."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.log.batcher import Submission
from mainstem.log.flush import AssignShards, Command, CommitCursors, HoldGroup, Rejected
from mainstem.log.group_report import GroupReports
from mainstem.log.log import Waiter
from tests.unit.log.keeping import HOUR, SECOND_US, Keeping

HOUR_US = round(HOUR) * SECOND_US


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Keeping]:
    found = Keeping(tmp_path / "data")
    yield found
    found.log.close()


def do(keeping: Keeping, command: Command) -> None:
    waiter = Waiter()
    keeping.log.batcher.submit(Submission((command,), waiter.set))
    (outcome,) = waiter.wait(keeping.log.batcher)
    assert not isinstance(outcome, Rejected), outcome


def half_read(keeping: Keeping, *, hold_us: int) -> int:
    """A stream that is kept for an hour, with two batches of two records, of which a group has read the first."""
    stream = keeping.create(retention_us=HOUR_US)
    for first in (0, 2):
        keeping.write(stream, (b"k", b"%d" % first), (b"k", b"%d" % (first + 1)))
    do(keeping, AssignShards("lake", 1, ((stream, 0, 0),), keeping.clock.now_us()))
    do(keeping, CommitCursors("lake", 0, ((stream, 0, 2),), keeping.clock.now_us()))
    do(keeping, HoldGroup("lake", hold_us))
    return stream


@pytest.mark.parametrize("without_ledger", [False, True])
def test_what_is_unread_is_there_after_a_restart_and_goes_when_it_was_read(keeping, without_ledger):
    stream = half_read(keeping, hold_us=3 * HOUR_US)
    keeping.reopen(without_ledger=without_ledger)
    keeping.keep(2 * HOUR)
    assert list(keeping.read(stream)) == [2, 3]
    (group,) = GroupReports(keeping.log.ledger, keeping.clock).list().groups
    assert (group.hold_seconds, group.held_records, group.records) == (3 * HOUR, 2, 2)
    do(keeping, CommitCursors("lake", 0, ((stream, 0, 4),), keeping.clock.now_us()))
    keeping.keep()
    assert keeping.read(stream) == {}
    (group,) = GroupReports(keeping.log.ledger, keeping.clock).list().groups
    assert group.held_records == 0


def test_without_a_hold_it_goes(keeping):
    stream = half_read(keeping, hold_us=0)
    keeping.keep(2 * HOUR)
    assert keeping.read(stream) == {}


def test_a_group_that_never_comes_back_keeps_nothing_for_ever(keeping, caplog):
    stream = half_read(keeping, hold_us=3 * HOUR_US)
    keeping.keep(3.9 * HOUR)
    assert list(keeping.read(stream)) == [2, 3]
    assert "has not read" not in caplog.text
    keeping.keep(0.2 * HOUR)
    assert keeping.read(stream) == {}
    (line,) = [message for message in caplog.messages if "records go that a group holds" in message]
    assert "group=lake stream=orders records=2" in line
    assert "for as long as they may be" in line


def test_on_a_full_disk_nothing_is_held(keeping, caplog, monkeypatch):
    stream = half_read(keeping, hold_us=3 * HOUR_US)
    monkeypatch.setattr(keeping.log.upkeep._work.commits, "is_disk_full", lambda: True)
    keeping.keep(2 * HOUR)
    assert keeping.read(stream) == {}
    assert "the disk is full" in caplog.text
