"""Transactions of several clients: staged apart, visible together, in the order in which the commit names them."""

from typing import Any

import pytest

from mainstem.core.delivery import Delivery, Fingerprint
from mainstem.core.errors import InvalidRequest, TransactionAborted, UnknownTransaction
from mainstem.core.limits import TRANSACTION_BATCHES_MAX
from mainstem.log.batcher import Outcomes
from mainstem.log.flush import Rejected, TransactionCommitted
from mainstem.log.log import Log, Waiter
from tests.unit.log.keeping import Keeping
from tests.unit.log.parts import make_batch, make_stream
from tests.unit.log.test_transactions import commit, read, stage


@pytest.fixture
def keeping(tmp_path):
    found = Keeping(tmp_path / "data")
    make_stream(found.log, "orders", shards=2)
    yield found
    found.log.close()


def commit_parts(log: Log, transaction: int, *parts: tuple[int, int], **other: Any) -> TransactionCommitted:
    waiter = Waiter()
    log.commit_parts(transaction, parts, waiter.set, **other)
    (outcome,) = waiter.wait(log.batcher)
    if isinstance(outcome, Rejected):
        raise outcome.error
    assert isinstance(outcome, TransactionCommitted)
    return outcome


def delivery(number: int, rows: int = 2) -> Delivery:
    return Delivery(1, "loader", number, Fingerprint(rows, b"x" * 16))


def test_parts_become_visible_together_and_in_the_order_they_are_named(keeping):
    log = keeping.log
    stage(log, 5, 0, make_batch([b"a"]))
    stage(log, 6, 0, make_batch([b"b"]), make_batch([b"c"], shard=1))
    stage(log, 5, 1, make_batch([b"d"]))
    assert (read(log, 1), read(log, 1, 1)) == ([], [])
    assert commit_parts(log, 9, (6, 2), (5, 2)) == TransactionCommitted(((1, 0, 0, 3), (1, 1, 0, 1)))
    assert (read(log, 1), read(log, 1, 1)) == ([b"b", b"a", b"d"], [b"c"])
    assert log.transactions.listing() == []
    # An answer that was lost: the same again.
    assert commit_parts(log, 9, (6, 2), (5, 2)).duplicate
    assert len(read(log, 1)) == 3


def test_a_part_that_nobody_names_ends_by_its_time(keeping):
    log = keeping.log
    stage(log, 5, 0, make_batch([b"a"]), timeout=10.0)
    stage(log, 6, 0, make_batch([b"lost"]), timeout=10.0)
    commit_parts(log, 9, (5, 1))
    assert [each.id for each in log.transactions.listing()] == [6]
    keeping.clock.advance(11.0)
    log.transactions.tick()
    assert log.transactions.listing() == []
    assert read(log, 1) == [b"a"]
    assert log.transactions.counters()["transactions_staged_bytes"] == 0


def test_a_part_that_is_missing_refuses_all(keeping):
    log = keeping.log
    stage(log, 5, 0, make_batch([b"a"]))
    with pytest.raises(UnknownTransaction, match="1 of the 2 batches"):
        commit_parts(log, 9, (5, 1), (6, 1))
    assert read(log, 1) == []
    assert log.transactions.listing() == []
    with pytest.raises(TransactionAborted):
        commit(log, 9, 1)


def test_a_delivery_that_was_made_lets_go_of_the_parts_that_came_again(keeping):
    log = keeping.log
    stage(log, 5, 0, make_batch([b"a", b"b"]))
    assert not commit_parts(log, 9, (5, 1), delivery=delivery(0)).duplicate
    stage(log, 6, 0, make_batch([b"a", b"b"]))
    assert commit_parts(log, 10, (6, 1), delivery=delivery(0)).duplicate
    assert read(log, 1) == [b"a", b"b"]
    assert log.transactions.listing() == []
    assert log.transactions.counters()["transactions_staged_bytes"] == 0


def test_deliveries_are_known_after_a_restart_and_after_a_rebuild(keeping):
    stage(keeping.log, 5, 0, make_batch([b"a", b"b"]))
    commit_parts(keeping.log, 9, (5, 1), delivery=delivery(0))
    keeping.reopen()
    assert commit_parts(keeping.log, 10, (6, 1), delivery=delivery(0)).duplicate
    keeping.reopen(without_ledger=True)
    assert commit_parts(keeping.log, 11, (7, 1), delivery=delivery(0)).duplicate
    assert read(keeping.log, 1) == [b"a", b"b"]


def test_what_is_still_being_written_cannot_be_committed(keeping):
    log = keeping.log
    outcomes: list[Outcomes] = []
    log.stage(5, 0, [make_batch([b"a"])], outcomes.append)
    with pytest.raises(InvalidRequest, match="still being written"):
        log.commit_parts(9, [(5, 1)], outcomes.append)


def test_no_more_batches_than_one_commit_can_name(keeping):
    with pytest.raises(InvalidRequest, match="fewer parts"):
        keeping.log.commit_parts(9, [(5, TRANSACTION_BATCHES_MAX), (6, 1)], lambda result: None)
