"""Readers of a ledger that another process writes, and may replace."""

from mainstem.log.ledger.sqlite import SqliteLedgerReader
from mainstem.log.log import Log
from tests.faults.script import TINY, Script, State, play


def test_a_reader_goes_over_to_a_rebuilt_ledger(tmp_path):
    """After damage the writer puts a new file in the ledger's place; a reader of the old one would wait for ever."""
    script, state = Script(1, 20), State()
    log = Log(tmp_path / "data", TINY)
    play(log, script.steps[:10], state)
    reader = SqliteLedgerReader(tmp_path / "data" / "ledger.db")
    seen, version = reader.applied().number, reader.data_version()
    log.close()

    wal = tmp_path / "data" / "ledger.db-wal"
    content = bytearray(wal.read_bytes())
    content[5_000] ^= 1
    wal.write_bytes(content)
    log = Log(tmp_path / "data", TINY)
    assert (tmp_path / "data" / "damaged-1").exists()
    assert reader.data_version() != version
    assert reader.applied().number == seen
    play(log, script.steps[10:], state)
    assert reader.applied() == log.ledger.applied()
    assert reader.applied().number > seen
    log.close()
    reader.close()


def test_a_reader_keeps_answering_while_the_file_is_away(tmp_path):
    log = Log(tmp_path / "data", TINY)
    play(log, Script(1, 10).steps, State())
    reader = SqliteLedgerReader(tmp_path / "data" / "ledger.db")
    log.close()
    seen = reader.applied()
    (tmp_path / "data" / "ledger.db").rename(tmp_path / "away.db")
    assert reader.applied() == seen
    (tmp_path / "data" / "ledger.db").write_bytes(b"not complete yet")
    assert reader.applied() == seen
    reader.close()


def test_any_number_of_blocks_is_looked_for_at_once(tmp_path):
    """SQLite has no more than 32,766 places in a statement."""
    log = Log(tmp_path / "data", TINY)
    play(log, Script(1, 10).steps, State())
    reader = SqliteLedgerReader(tmp_path / "data" / "ledger.db")
    used = reader.blocks_in_use(range(100_000))
    assert used
    assert used == reader.blocks_in_use(sorted(used))
    reader.close()
    log.close()
