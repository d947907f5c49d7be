"""Checkpoints: announced before they begin, and no reason for doubt when the process ends in between."""

import pytest

from mainstem.core.errors import FolderUnusable
from mainstem.log.log import Log
from tests.faults.reading import judge
from tests.faults.script import TINY, Script, State, commit


class Killed(Exception):
    """Stands for a kill: nothing after it happens."""


@pytest.mark.parametrize("when", ["before the checkpoint", "before the announcing flush is applied"])
def test_a_kill_after_the_announcement_costs_no_rebuild(tmp_path, monkeypatch, when):
    """The announcing flush is durable, the ledger ends before it: it is replayed, the ledger kept."""
    script = Script(3, 120)
    log = Log(tmp_path / "data", TINY)
    before, apply = log._maintenance.before, log._applier.apply
    announced = []

    def note(number):
        if log._maintenance._announced == number:
            announced.append(number)
            if when == "before the checkpoint":
                raise Killed
        before(number)

    def killed(flush):
        if flush.number in announced:
            raise Killed
        return apply(flush)

    monkeypatch.setattr(log._maintenance, "before", note)
    monkeypatch.setattr(log._applier, "apply", killed)
    done = 0
    with pytest.raises(FolderUnusable, match="Killed"):  # noqa: PT012  # which step it is, is the point
        for step in script.steps:
            commit(log, step)
            done += 1
    log.close()
    verdict = judge(tmp_path / "data", [script.state_after(done), script.state_after(done + 1)], go_on=True)
    assert verdict.wrong == []
    assert not (tmp_path / "data" / "damaged-1").exists()


def test_a_checkpoint_is_announced_by_a_flush_whose_predecessor_is_applied(tmp_path, monkeypatch):
    script, state = Script(3, 120), State()
    log = Log(tmp_path / "data", TINY)
    checkpoint_for = log._maintenance.checkpoint_for
    announced = []

    def note(number, *, announces):
        if announces:
            announced.append(number)
            assert log._applier.applied == number - 1
        return checkpoint_for(number, announces=announces)

    monkeypatch.setattr(log._maintenance, "checkpoint_for", note)
    for step in script.steps:
        assert commit(log, step) == state.apply(step)
    log.close()
    assert len(announced) > 3
