"""What numbered writes of jobs do to the rows: each taken once, the same in every ledger and in every replay."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainstem.core.delivery import Delivery, Fingerprint
from mainstem.core.errors import DeliveryRefused, StreamDeleted, UnknownTransaction
from mainstem.core.limits import DELIVERIES_PER_JOB_MAX
from mainstem.log.flush import (
    CreateStream,
    DeleteStream,
    DropEntries,
    ForgetBlock,
    ForgetStream,
    ForgetTransactions,
    TransactionCommitted,
)
from mainstem.log.ledger.base import DeliveriesRow
from tests.contract.test_transactions import TIME, commit, committing, refused, stage
from tests.contract.test_upkeep_commands import LATER, Ledgers
from tests.unit.log.parts import NOW_US


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[Ledgers]:
    found = Ledgers(tmp_path)
    yield found
    found.close()


def printed(rows: int = 3, exact: bytes = b"x" * 16, total: float = 0.0, magnitude: float = 0.0) -> Fingerprint:
    return Fingerprint(rows, exact, total, magnitude)


def delivery(number: int, print_: Fingerprint | None = None, job: str = "loader", **other: Any) -> Delivery:
    return Delivery(other.pop("stream", 1), job, number, print_ or printed(), **other)


def test_a_delivery_that_comes_again_changes_nothing(ledgers):
    first = stage(ledgers, (1, 0, 3))
    assert commit(ledgers, first, 1, delivery=delivery(0)) == TransactionCommitted(((1, 0, 0, 3),))
    again = stage(ledgers, (1, 0, 3))
    assert commit(ledgers, again, 2, delivery=delivery(0)) == TransactionCommitted((), duplicate=True)
    assert [entry.base for entry in ledgers.entries()] == [0]
    assert ledgers.memory.load_deliveries((1, "loader")) == DeliveriesRow(TIME, ((0, printed()),))
    assert commit(ledgers, stage(ledgers, (1, 0, 2)), 3, delivery=delivery(1)).offsets == ((1, 0, 3, 2),)


def test_one_that_is_known_needs_none_of_its_batches(ledgers):
    """The log was started again since they were staged."""
    commit(ledgers, stage(ledgers, (1, 0, 3)), 1, delivery=delivery(0))
    assert commit(ledgers, [], 2, batches=1, delivery=delivery(0)).duplicate
    assert type(refused(ledgers, committing([], 3, batches=1, delivery=delivery(1)))) is UnknownTransaction


def test_another_job_and_another_stream_have_their_own_numbers(ledgers):
    ledgers.do(CreateStream("b" * 32, "b", 1, "crc32", 1_000_000, NOW_US))
    commit(ledgers, stage(ledgers, (1, 0, 3)), 1, delivery=delivery(0))
    assert not commit(ledgers, stage(ledgers, (1, 0, 3)), 2, delivery=delivery(0, job="other")).duplicate
    assert not commit(ledgers, stage(ledgers, (2, 0, 3)), 3, delivery=delivery(0, stream=2)).duplicate


@pytest.mark.parametrize(
    ("came", "says"),
    [
        (printed(rows=4), "with 3 rows, and now comes with 4:"),
        (printed(exact=b"y" * 16), "with 3 rows, and now comes with 3 others:"),
        (printed(total=1.0, magnitude=1.0), "3 others"),
    ],
)
def test_other_rows_under_a_known_number_are_refused(ledgers, came, says):
    commit(ledgers, stage(ledgers, (1, 0, 3)), 1, delivery=delivery(0))
    error = refused(ledgers, committing(stage(ledgers, (1, 0, 4)), 2, delivery=delivery(0, came)))
    assert type(error) is DeliveryRefused
    assert says in str(error)
    assert "onReplay" in str(error)
    # Unless whoever delivers says that what is there is right.
    accepted = commit(ledgers, stage(ledgers, (1, 0, 4)), 3, delivery=delivery(0, came, accept=True))
    assert accepted.duplicate


def test_a_gap_is_refused_unless_it_is_accepted(ledgers):
    commit(ledgers, stage(ledgers, (1, 0, 3)), 1, delivery=delivery(4))
    error = refused(ledgers, committing(stage(ledgers, (1, 0, 3)), 2, delivery=delivery(7)))
    assert type(error) is DeliveryRefused
    assert "number 7" in str(error)
    assert "follows number 4" in str(error)
    assert not commit(ledgers, stage(ledgers, (1, 0, 3)), 3, delivery=delivery(7, accept=True)).duplicate
    assert not commit(ledgers, stage(ledgers, (1, 0, 3)), 4, delivery=delivery(8)).duplicate


def test_the_last_of_each_job_are_remembered(ledgers):
    last = DELIVERIES_PER_JOB_MAX + 1
    for number in range(last + 1):
        commit(ledgers, [], number + 1, delivery=delivery(number, printed(rows=number)))
    row = ledgers.memory.load_deliveries((1, "loader"))
    assert [number for number, _ in row.recent] == list(range(2, last + 1))
    assert commit(ledgers, [], 1_000, delivery=delivery(2, printed(rows=2))).duplicate
    error = refused(ledgers, committing([], 1_001, delivery=delivery(1, printed(rows=1))))
    assert "does not remember what it had" in str(error)
    assert commit(ledgers, [], 1_002, delivery=delivery(1, accept=True)).duplicate


def test_two_in_one_flush_are_taken_once(ledgers):
    frames = stage(ledgers, (1, 0, 3))
    first, second = ledgers.flush(
        committing(frames, 1, delivery=delivery(0)), committing(frames, 2, delivery=delivery(0))
    )
    assert (first.duplicate, second.duplicate) == (False, True)
    assert len(ledgers.entries()) == 1


def test_what_is_refused_for_another_reason_is_not_remembered(ledgers):
    frames = stage(ledgers, (1, 0, 3), generation=1)
    refused(ledgers, committing(frames, 1, delivery=delivery(0)))
    assert ledgers.memory.load_deliveries((1, "loader")) is None


def test_jobs_are_forgotten_by_when_they_were_seen_and_with_their_stream(ledgers):
    commit(ledgers, [], 1, delivery=delivery(0))
    commit(ledgers, [], 2, delivery=delivery(0, job="other"), time_us=TIME + 5)
    assert [ledgers.memory.job_seen_us(others) for others in range(3)] == [TIME + 5, TIME, 0]
    ledgers.do(ForgetTransactions(0, 10, 0, TIME + 1))
    assert ledgers.memory.load_deliveries((1, "loader")) is None
    assert ledgers.memory.load_deliveries((1, "other")) is not None
    ledgers.do(DeleteStream(1, NOW_US))
    assert type(refused(ledgers, committing([], 3, delivery=delivery(1, job="other")))) is StreamDeleted
    ledgers.do(DropEntries(1, 0, 100, LATER))
    ledgers.roll()
    ledgers.do(ForgetBlock(1))
    ledgers.do(ForgetStream(1))
    assert ledgers.memory.load_deliveries((1, "other")) is None
