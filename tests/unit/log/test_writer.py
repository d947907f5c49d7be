"""The open block: when it is full, and what the writer adds to flushes by itself."""

import os
from itertools import pairwise

import msgspec

from mainstem.core.clock import SYSTEM_CLOCK
from mainstem.core.limits import BLOCK_BYTES_MAX, FLUSH_BATCHES_MAX, PRODUCER_IDLE_US_MAX
from mainstem.log import writer
from mainstem.log.disk import LocalFile
from mainstem.log.flush import PRODUCER_ID_MAX, ForgetProducers, Item, StagedBatch, decode_command
from mainstem.log.frame import FrameKind, parse_header, payload_of
from mainstem.log.ledger.base import Entry
from mainstem.log.scan import BlockScanner
from mainstem.log.writer import FlushFile, WriterIdentity
from mainstem.testing.clock import SimulatedClock
from tests.unit.log.parts import LOG_UUID, make_batch, make_blocks

ENTRY = Entry(1, 0, 0, 1, 1, 1, 64, 200, 0, 0, 0, b"")


def test_a_footer_can_be_read_back_however_many_entries_come_at_the_last_moment(tmp_path):
    """The block is not full yet, one flush is being applied, and one more goes in before it is asked again."""
    blocks = make_blocks(tmp_path)
    file = FlushFile(blocks, WriterIdentity(LOG_UUID, 1, 1), SYSTEM_CLOCK, BLOCK_BYTES_MAX, 0)
    file.roll(1, 0)
    flush = file.write(1, 0, [make_batch()], 0, 0)
    file.note_entries([ENTRY] * (writer._FOOTER_ENTRIES_MAX - 1))
    assert not file.is_full(0, {})
    for _ in range(2):
        file.note_entries([ENTRY] * FLUSH_BATCHES_MAX)
    assert file.is_full(0, {})
    file.seal(2, 1)
    scanner = BlockScanner(blocks, 1)
    assert [read.flush.number for read in scanner.flushes()] == [1]
    position = scanner.commit_at(flush.commit_position)[2]
    assert scanner.has_footer_at(position)
    data = blocks.read(1, position, blocks.size(1))
    footer = parse_header(data, 0, position, 1)
    assert (footer.kind, footer.count) == (FrameKind.FOOTER, writer._FOOTER_ENTRIES_MAX - 1 + 2 * FLUSH_BATCHES_MAX)
    assert len(payload_of(data, 0, footer)) == 48 * footer.count
    blocks.close()


def test_a_block_is_full_before_what_is_staged_in_it_could_overflow_its_footer(tmp_path):
    """Each staged batch may become an entry of this block, at any time."""
    blocks = make_blocks(tmp_path)
    file = FlushFile(blocks, WriterIdentity(LOG_UUID, 1, 1), SYSTEM_CLOCK, BLOCK_BYTES_MAX, 0)
    file.roll(1, 0)
    batch = make_batch()
    file.write(1, 0, [StagedBatch(batch.header, batch.payload)] * 3, 0, 0)
    file.note_entries([ENTRY] * (writer._FOOTER_ENTRIES_MAX - 4))
    assert not file.is_full(0, {})
    file.note_entries([ENTRY])
    assert file.is_full(0, {})
    file.close()
    blocks.close()


def test_a_block_with_nothing_but_staged_batches_is_full_at_its_size(tmp_path):
    blocks = make_blocks(tmp_path)
    file = FlushFile(blocks, WriterIdentity(LOG_UUID, 1, 1), SYSTEM_CLOCK, 4_096, 0)
    file.roll(1, 0)
    assert not file.is_full(8_192, {})
    batch = make_batch()
    file.write(1, 0, [StagedBatch(batch.header, batch.payload)], 0, 0)
    assert not file.is_full(100, {})
    assert file.is_full(8_192, {})
    assert file.block == 1
    file.roll(2, 1)
    assert (file.block, file.is_full(8_192, {})) == (2, False)
    file.close()
    blocks.close()


def test_a_flush_that_is_read_late_does_not_stay_in_memory(tmp_path, monkeypatch):
    """If that is most of it: others may be in it, who read at once."""
    blocks = make_blocks(tmp_path)
    file = FlushFile(blocks, WriterIdentity(LOG_UUID, 1, 1), SYSTEM_CLOCK, BLOCK_BYTES_MAX, 0)
    file.roll(1, 0)
    gone: list[tuple[int, int]] = []
    let_go = LocalFile.let_go

    def noted(self: LocalFile, position: int, length: int) -> None:
        gone.append((position, length))
        let_go(self, position, length)

    monkeypatch.setattr(LocalFile, "let_go", noted)
    batch = make_batch([os.urandom(100_000)])
    late = StagedBatch(batch.header, batch.payload, read_late=True)
    soon = StagedBatch(batch.header, batch.payload)
    ends = [blocks.size(1)]
    flushes: list[list[Item]] = [[soon], [late], [late, soon, batch], [late, late, soon], [batch]]
    for number, items in enumerate(flushes, 1):
        file.write(number, number - 1, items, 0, 0)
        ends.append(blocks.size(1))
    assert gone == [(ends[1], ends[2] - ends[1]), (ends[3], ends[4] - ends[3])]
    assert [read.flush.number for read in BlockScanner(blocks, 1).flushes()] == [1, 2, 3, 4, 5]
    file.close()
    blocks.close()


def test_idle_producers_are_looked_for_in_parts_that_cover_all_of_them(tmp_path):
    clock = SimulatedClock()
    blocks = make_blocks(tmp_path)
    file = FlushFile(blocks, WriterIdentity(LOG_UUID, 1, 7), clock, BLOCK_BYTES_MAX, 0)
    file.roll(1, 0)
    found: list[ForgetProducers] = []
    for number in range(1, writer._FORGET_PARTS + 1):
        clock.advance(60)
        flush = file.write(number, number - 1, [], 0, 0)
        found += [item for item in flush.items if isinstance(item, ForgetProducers)]
    assert found[-1].before_us == clock.now_us() - PRODUCER_IDLE_US_MAX
    ranges = sorted((command.first, command.last) for command in found)
    assert len(ranges) == writer._FORGET_PARTS
    assert (ranges[0][0], ranges[-1][1]) == (0, PRODUCER_ID_MAX)
    assert all(first[1] + 1 == second[0] for first, second in pairwise(ranges))
    file.close()
    blocks.close()


def test_a_command_from_before_there_were_parts_forgets_all():
    old = msgspec.msgpack.encode({"type": "forget_producers", "before_us": 5})
    assert decode_command(old) == ForgetProducers(5, 0, PRODUCER_ID_MAX)
