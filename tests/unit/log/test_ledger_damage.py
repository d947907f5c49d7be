"""Damage of the ledger under a log that is open: when it is noticed, and that it is told."""

import logging
import os
from pathlib import Path

import pytest

from mainstem.core.errors import LedgerDamaged, MainstemError
from mainstem.log.log import Log, LogOptions
from tests.unit.log.parts import append, append_values, make_batch, make_stream

SHARDS = 1_000


@pytest.fixture
def log(tmp_path):
    """With a ledger of many pages, all of them in the database file, and none in the memory of a reader."""
    log = Log(tmp_path / "data", LogOptions(checkpoint_bytes=4 << 10))
    stream = make_stream(log, shards=SHARDS)
    for _ in range(3):
        append(log, *(make_batch([b"x"], stream=stream, shard=shard) for shard in range(SHARDS)))
    for _ in range(3):
        append_values(log, stream, b"y")
    yield log
    log.close()


def spoil(path: Path) -> None:
    """Every page of the file but the first ones, which say what it is."""
    descriptor = os.open(path, os.O_WRONLY)
    pages = path.stat().st_size // 4_096
    assert pages > 30
    for page in range(pages // 3, pages):
        os.pwrite(descriptor, bytes(100), page * 4_096 + 1_000)
    os.close(descriptor)


def told(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if "the ledger is damaged" in record.getMessage()]


def test_a_read_that_meets_damage_makes_it_known_once(log, caplog):
    spoil(log.path / "ledger.db")
    assert (log.ledger_damage, log.counters()["ledger_damaged"]) == (None, 0)
    met = 0
    with caplog.at_level(logging.ERROR):
        for shard in range(SHARDS):
            try:
                log.ledger.entries_from(1, shard, 0, 10)
            except LedgerDamaged:
                met += 1
    assert met > 100
    assert isinstance(log.ledger_damage, LedgerDamaged)
    assert log.counters()["ledger_damaged"] == 1
    assert len(told(caplog)) == 1
    # It is made anew by the next start, without a loss.
    log.close()
    again = Log(log.path)
    assert again.ledger_damage is None
    assert len(again.ledger.entries_from(1, 500, 0, 10)) == 3
    again.close()


def test_upkeep_that_meets_damage_makes_it_known(log, caplog):
    spoil(log.path / "ledger.db")
    with caplog.at_level(logging.ERROR), pytest.raises(LedgerDamaged):
        log.upkeep.run_until_idle()
    assert log.ledger_damage is not None
    assert len(told(caplog)) == 1


def test_a_commit_that_meets_damage_is_the_end_of_the_log(log):
    """What a checkpoint is to copy is verified before."""
    wal = log.path / "ledger.db-wal"
    append(log, *(make_batch([b"x"], stream=1, shard=shard) for shard in range(SHARDS)))
    descriptor = os.open(wal, os.O_WRONLY)
    os.pwrite(descriptor, b"damaged", 32 + 24 + 2_000)
    os.close(descriptor)
    with pytest.raises(MainstemError, match=r"ledger\.db-wal is damaged"):  # noqa: PT012  # the next checkpoint finds it
        for _ in range(5):
            append_values(log, 1, b"y")
    assert log.batcher.failure is not None


def test_a_snapshot_that_meets_damage_makes_it_known(log, monkeypatch):
    def damaged(path: Path) -> int:
        raise LedgerDamaged("ledger.db is damaged")

    monkeypatch.setattr(log._folder.snapshots, "take", damaged)
    log._maintenance.request_snapshot()
    log.commit_nothing()
    log._maintenance.close()
    assert str(log.ledger_damage) == "ledger.db is damaged"
