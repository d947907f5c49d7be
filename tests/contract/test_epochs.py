"""A new epoch of a ledger, in every backend: what is noted when one begins, and which ids are not given again."""

import pytest

from mainstem.core.errors import Refused
from mainstem.core.identity import new_stream_uuid
from mainstem.log.flush import BeginEpoch, Command, CreateStream, Done, Flush, Outcome, Rejected
from mainstem.log.ledger.apply import Applier
from mainstem.log.ledger.base import AppliedPlace, Changes, Ledger, ShardRow
from mainstem.log.ledger.rules.epochs import EPOCH_STREAM_BITS
from tests.contract.test_ledger import FACTORIES
from tests.unit.log.parts import NOW_US


@pytest.fixture(params=FACTORIES)
def ledger(request, tmp_path):
    """A stream of two shards, one of them written to."""
    ledger = FACTORIES[request.param](tmp_path)
    execute(ledger, created("orders"))
    ledger.store(Changes(AppliedPlace(2, 1, 128), shards={(1, 0): ShardRow(3, 10, 10, NOW_US, 500)}))
    yield ledger
    ledger.close()


def created(name: str) -> CreateStream:
    return CreateStream(new_stream_uuid(), name, 2, "crc32", 1_000_000, NOW_US)


def execute(ledger: Ledger, command: Command) -> Outcome:
    """By an applier that knows nothing but what the ledger holds, as after a restart."""
    number = ledger.applied().number + 1
    (outcome,) = Applier(ledger).apply(Flush(number, 1, 64 * number, NOW_US, (command,)))[1]
    return outcome


def test_an_epoch_notes_where_the_shards_ended(ledger):
    assert execute(ledger, BeginEpoch(2, NOW_US)) == Done()
    assert (ledger.epoch(), ledger.restored()) == (2, {1: {(1, 0): 10}})
    assert execute(ledger, BeginEpoch(3, NOW_US)) == Done()
    assert (ledger.epoch(), ledger.restored()) == (3, {1: {(1, 0): 10}, 2: {(1, 0): 10}})


@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_only_the_next_epoch_begins(ledger, epoch):
    outcome = execute(ledger, BeginEpoch(epoch, NOW_US))
    assert isinstance(outcome, Rejected)
    assert isinstance(outcome.error, Refused)
    assert (ledger.epoch(), ledger.restored()) == (1, {})


def test_ids_of_streams_are_those_of_their_epoch(ledger):
    for epoch in (2, 3):
        execute(ledger, BeginEpoch(epoch, NOW_US))
        first = (epoch << EPOCH_STREAM_BITS) + 1
        assert execute(ledger, created(f"first of {epoch}")) == Done(first)
        assert execute(ledger, created(f"second of {epoch}")) == Done(first + 1)
