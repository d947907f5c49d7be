"""What swapping entries for one in a cold block does to the rows: the same in every ledger and in every replay, and
nothing if refused."""

from typing import Any

from mainstem.core.errors import Refused, StreamDeleted, UnknownStream
from mainstem.log.flush import AlterStream, CoolEntries, DeleteStream, ForgetBlock, Rejected
from mainstem.log.frame import COLD_BLOCK_FIRST
from mainstem.log.ledger.base import Entry
from mainstem.log.ledger.rules.replacement import fingerprint
from tests.contract.test_upkeep_commands import LATER, LENGTH, SOON, Ledgers, ledgers  # noqa: F401  # a fixture
from tests.unit.log.parts import NOW_US

COLD = COLD_BLOCK_FIRST + 7


def cooling(old: list[Entry], **other: Any) -> CoolEntries:
    values: dict[str, Any] = {
        "stream": old[0].stream,
        "shard": old[0].shard,
        "base": old[0].base,
        "end": old[-1].end,
        "rows": len(old),
        "fingerprint": fingerprint(old),
        "block": COLD,
        "file_bytes": 5_000,
        "created_us": NOW_US,
        "writer_epoch": 1,
        "position": 64,
        "length": 4_000,
        "count": sum(entry.count for entry in old),
        "schema_id": 0,
        "summary": b"known",
        "rewrite_us": LATER,
    }
    return CoolEntries(**values | other)


def test_rows_make_room_for_one(ledgers: Ledgers) -> None:  # noqa: F811
    ledgers.write(3, flushes=4)
    ledgers.roll()
    old = ledgers.entries()
    assert ledgers.do(cooling(old[:3])).rows == 3
    cold, last = ledgers.entries()
    assert cold == Entry(1, 0, 0, 9, 9, COLD, 64, 4_000, old[2].time_high, 0, 0, b"known")
    assert last == old[3]
    assert ledgers.memory.load_shard(1, 0).bytes == 4_000 + LENGTH
    blocks = ledgers.blocks()
    assert blocks[COLD][:6] == (COLD, 1, "sealed", 5_000, 4_000, NOW_US)
    assert (blocks[COLD].dead_us, blocks[1].live_bytes, blocks[1].rewrite_us) == (0, LENGTH, LATER)
    assert ledgers.memory.dead_bytes(1) == {1: 3 * LENGTH}


def test_what_is_cold_is_replaced_and_forgotten_as_any_other(ledgers: Ledgers) -> None:  # noqa: F811
    ledgers.write(3, flushes=2)
    ledgers.do(cooling(ledgers.entries()))
    assert isinstance(ledgers.refused(ForgetBlock(COLD)), Refused)
    ledgers.do(ledgers.replacing(ledgers.entries(), (6, 5), rewrite_us=SOON))
    assert ledgers.blocks()[COLD].live_bytes == 0
    assert ledgers.blocks()[COLD].dead_us
    ledgers.do(ForgetBlock(COLD))
    assert COLD not in ledgers.blocks()


def test_other_rows_than_meant_are_not_swapped(ledgers: Ledgers) -> None:  # noqa: F811
    ledgers.write(3, flushes=4)
    old = ledgers.entries()
    for wrong in (
        cooling(old[:3], fingerprint=1),
        cooling(old[:3], rows=2),
        cooling(old[:3], end=8),
        cooling(old[:3], base=1),
        cooling(old[:3], count=8),
        cooling(old[:3], block=2),
        cooling(old[:3], block=1),
    ):
        assert isinstance(ledgers.refused(wrong), Refused), wrong
    ledgers.do(ledgers.replacing(old[:2], (6, 6)))
    assert isinstance(ledgers.refused(cooling(old[:3])), Refused)
    # A block is swapped in once, and offsets change once in a flush.
    ledgers.do(cooling(old[2:3]))
    assert isinstance(ledgers.refused(cooling(old[3:])), Refused)
    first, second = ledgers.flush(cooling(old[3:], block=COLD + 1), cooling(old[3:], block=COLD + 2))
    assert (isinstance(first, Rejected), isinstance(second, Rejected)) == (False, True)


def test_no_row_reaches_over_a_barrier(ledgers: Ledgers) -> None:  # noqa: F811
    ledgers.write(3)
    ledgers.do(AlterStream(1, shards=3))
    ledgers.flush(ledgers.frame(3, generation=1))
    old = ledgers.entries()
    assert "barrier" in str(ledgers.refused(cooling(old)))
    ledgers.do(cooling(old[:1]))
    ledgers.do(cooling(old[1:], block=COLD + 1))


def test_a_stream_that_is_gone_has_nothing_to_swap(ledgers: Ledgers) -> None:  # noqa: F811
    ledgers.write(3)
    old = ledgers.entries()
    ledgers.do(DeleteStream(1, NOW_US))
    assert isinstance(ledgers.refused(cooling(old)), StreamDeleted)
    assert isinstance(ledgers.refused(cooling(old, stream=9)), UnknownStream)
