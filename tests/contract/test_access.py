"""Rows that say who may do what: the same on every backend, and after a restart."""

import pytest

from mainstem.core.errors import InvalidRequest
from mainstem.core.limits import ACCESS_ROW_BYTES_MAX
from mainstem.log.access_rows import AccessRows
from mainstem.log.flush import ChangeAccess, Command, Done, Flush, OpenBlock, Outcome, Rejected
from mainstem.log.ledger.apply import Applier
from mainstem.log.ledger.rules import access
from mainstem.log.log import Log
from tests.contract.test_ledger import FACTORIES
from tests.unit.log.parts import NOW_US


@pytest.fixture(params=FACTORIES)
def ledger(request, tmp_path):
    ledger = FACTORIES[request.param](tmp_path)
    run(ledger, OpenBlock(1, 1, NOW_US))
    yield ledger
    ledger.close()


def run(ledger, *commands: Command) -> list[Outcome]:
    """By an applier that knows nothing but what the ledger holds, as after a restart."""
    number = ledger.applied().number + 1
    return Applier(ledger).apply(Flush(number, 1, 64 * number, NOW_US, commands))[1]


def test_rows_come_change_and_go(ledger):
    assert run(ledger, ChangeAccess((("rule", "a", b"1"), ("rule", "b", b"2"), ("token", "a", b"3")))) == [Done()]
    assert ledger.load_access() == {("rule", "a"): b"1", ("rule", "b"): b"2", ("token", "a"): b"3"}
    run(ledger, ChangeAccess((("rule", "a", b"4"), ("rule", "b", b""))), ChangeAccess((("quota", "never", b""),)))
    assert ledger.load_access() == {("rule", "a"): b"4", ("token", "a"): b"3"}


def test_commands_of_one_flush_follow_each_other(ledger):
    run(ledger, ChangeAccess((("rule", "a", b"1"),)), ChangeAccess((("rule", "a", b""), ("rule", "b", b"2"))))
    assert ledger.load_access() == {("rule", "b"): b"2"}


def test_there_are_limits(ledger, monkeypatch):
    monkeypatch.setattr(access, "ACCESS_ROWS_MAX", 2)
    run(ledger, ChangeAccess((("rule", "a", b"1"), ("rule", "b", b"2"))))
    (outcome,) = run(ledger, ChangeAccess((("rule", "c", b"3"), ("rule", "a", b"9"))))
    assert isinstance(outcome, Rejected)
    assert isinstance(outcome.error, InvalidRequest)
    assert ledger.load_access() == {("rule", "a"): b"1", ("rule", "b"): b"2"}
    assert run(ledger, ChangeAccess((("rule", "c", b"3"), ("rule", "a", b"")))) == [Done()]
    (outcome,) = run(ledger, ChangeAccess((("rule", "c", bytes(ACCESS_ROW_BYTES_MAX + 1)),)))
    assert isinstance(outcome, Rejected)


def test_a_log_keeps_them_and_says_when_they_change(tmp_path):
    log = Log(tmp_path / "data")
    rows = AccessRows(log)
    before = rows.version
    rows.change({("rule", "a"): b"1", ("rule", "b"): b"2"})
    assert rows.version != before
    before = rows.version
    rows.change({("rule", "b"): None})
    assert rows.version != before
    log.close()
    again = Log(tmp_path / "data")
    assert AccessRows(again).rows() == {("rule", "a"): b"1"}
    again.close()


def test_a_ledger_that_is_lost_is_rebuilt_with_them(tmp_path):
    log = Log(tmp_path / "data")
    AccessRows(log).change({("token", "a"): b"1"})
    log.close()
    for path in (tmp_path / "data").glob("ledger.db*"):
        path.unlink()
    again = Log(tmp_path / "data")
    assert again.ledger.load_access() == {("token", "a"): b"1"}
    again.close()
