"""Checkpoints: announced before they begin, and no reason for doubt when the process ends in between."""

import itertools
import shutil
import struct

import numpy as np
import pytest

from mainstem.core.errors import FolderUnusable
from mainstem.log.ledger import wal
from mainstem.log.ledger.sqlite import SqliteLedgerReader
from mainstem.log.log import Log, LogOptions
from tests.faults.reading import judge
from tests.faults.script import TINY, Script, State, commit
from tests.unit.log.parts import append_values, make_stream


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
    # A life that ends before its first flush changes nothing about that.
    Log(tmp_path / "data", TINY).close()
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


@pytest.mark.parametrize("due", ["checkpoint_bytes", "snapshot_bytes"])
def test_a_reader_that_stands_in_a_read_holds_up_few_commits(tmp_path, monkeypatch, due):
    """Each try waits for it; the next one comes when the WAL has grown, whatever made the checkpoint due."""
    options = {"checkpoint_bytes": 64 << 10, "snapshot_bytes": 1 << 30, due: 1}
    log = Log(tmp_path / "data", LogOptions(**options))  # type: ignore[arg-type]
    stream = make_stream(log)
    tries = []
    checkpoint = log._ledger.checkpoint

    def counted() -> bool:
        tries.append(0)
        return checkpoint()

    monkeypatch.setattr(log._ledger, "checkpoint", counted)
    reader = SqliteLedgerReader(tmp_path / "data" / "ledger.db")
    reader._db.execute("BEGIN")
    list(reader._db.execute("SELECT * FROM applied"))
    for number in range(40):
        append_values(log, stream, b"%d" % number)
    assert 1 <= len(tries) < 10
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    again = Log(tmp_path / "killed")
    assert again.reader.shard(stream, 0).next == 40
    again.close()
    assert not (tmp_path / "killed" / "damaged-1").exists(), "a checkpoint that was held up is no reason for doubt"
    reader._db.execute("COMMIT")
    while not log._maintenance._done:
        append_values(log, stream, b"x")
    reader.close()
    log.close()


def test_an_older_file_under_a_wal_from_after_a_checkpoint_is_not_trusted(tmp_path):
    """No commit frame says yet that the checkpoint is complete: the WAL that was begun after it is the only sign."""
    log = Log(tmp_path / "data", TINY)
    stream = make_stream(log)
    count = 0
    older = (tmp_path / "data" / "ledger.db").read_bytes()
    while not log._maintenance.wants_flush:
        append_values(log, stream, b"%d" % count)
        count += 1
    shutil.copytree(tmp_path / "data", tmp_path / "mixed")
    log.close()
    (tmp_path / "mixed" / "ledger.db").write_bytes(older)
    again = Log(tmp_path / "mixed", TINY)
    assert again.ledger.stream_named("orders") is not None
    assert again.reader.shard(stream, 0).next == count
    assert len(again.ledger.entries_from(stream, 0, 0, 9_999)) == count
    again.close()


def test_a_kill_after_the_header_of_a_new_wal_is_no_reason_for_doubt(tmp_path, monkeypatch):
    """The first commit after a checkpoint begins the WAL anew: the header first, then its frames."""
    path = tmp_path / "data"
    log = Log(path, LogOptions(checkpoint_bytes=64 << 10))
    stream = make_stream(log)
    checkpoint, store = log._ledger.checkpoint, log._ledger.store
    done: list[bool] = []

    def checkpointed() -> bool:
        done.append(checkpoint())
        return done[-1]

    monkeypatch.setattr(log._ledger, "checkpoint", checkpointed)

    def killed(changes):
        if done:
            raise OSError("killed (injected)")
        store(changes)

    monkeypatch.setattr(log._ledger, "store", killed)
    for count in itertools.count():  # the number of the one that failed is looked at below
        try:
            append_values(log, stream, b"%d" % count)
        except FolderUnusable:
            break
    assert done == [True]
    log.close()
    with open(path / "ledger.db-wal", "r+b") as file:
        words = struct.unpack(">6I", file.read(24))
        head = struct.pack(">6I", *words[:4], (words[4] + 1) % (1 << 32), words[5] ^ 0x5A5A)
        weights = wal._weights(6)
        order = ">u4" if words[0] & 1 else "<u4"
        sums = wal._contributions(np.frombuffer(head, order).astype(np.uint32)[None, :], weights)[0]
        file.seek(0)
        file.write(head + struct.pack(">2I", *sums.tolist()))
    report = wal.verify(path / "ledger.db-wal")
    assert (report.last_commit_frame, report.damaged_at, report.has_restarted) == (0, None, True)
    again = Log(path)
    # The flush that met the kill is durable in its block.
    assert again.reader.shard(stream, 0).next == count + 1
    again.close()
    assert not (path / "damaged-1").exists()
