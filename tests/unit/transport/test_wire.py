"""Messages to bytes and back, and the memory that incomplete ones may have."""

import random

import pytest

from mainstem.core.batch import BatchHeader
from mainstem.core.errors import DataLoss, InvalidRequest, InvalidSetting, ProtocolError
from mainstem.core.limits import (
    ERROR_TEXT_CHARS_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_HEADER_BYTES_MAX,
    RECEIVE_SHARE_BYTES,
)
from mainstem.transport.port import CreateStreamCall, GetStreamCall, SchemaCall, checked
from mainstem.transport.wire import (
    PREFIX,
    Append,
    Goodbye,
    Kind,
    MessageReader,
    ReceiveBudget,
    error_from,
    pack,
    wire_error,
)

SHARE = RECEIVE_SHARE_BYTES


def message(size: int, id_: int = 1) -> bytes:
    """An append of one payload of `size` bytes."""
    header = BatchHeader(1, 0, 1, 1, 0, 0, size, size, 0, 7, 0, 0, 0, 0, 0)
    return b"".join(pack(Kind.APPEND, id_, Append([header]), [id_.to_bytes(1, "little") * size]))


class Peer:
    """A reader as a connection has it, and the rest of what its other side sends."""

    def __init__(self, budget: ReceiveBudget, data: bytes, scratch: bytearray) -> None:
        self.reader = MessageReader(scratch, budget, self._on_wait)
        self.reader.allow_large()
        self.waits = False
        self.data = memoryview(data)
        self.got: list[int] = []

    def _on_wait(self, waits: bool) -> None:
        assert waits != self.waits
        self.waits = waits

    def step(self, count: int) -> None:
        """Receive up to `count` bytes more."""
        room = self.reader.buffer()
        count = min(count, len(room), len(self.data))
        room[:count] = self.data[:count]
        self.data = self.data[count:]
        self.got += [found.id for found in self.reader.received(count)]


@pytest.fixture
def scratch():
    return bytearray(SHARE)


# Receiving.


@pytest.mark.parametrize("size", [0, 1, 4_000, 5_000, SHARE - 100, SHARE, SHARE + 1, 3 * SHARE, 5_000_000])
@pytest.mark.parametrize("piece", [1_000, 65_536, SHARE])
def test_a_message_arrives_whole_in_whatever_pieces(scratch, size, piece):
    budget = ReceiveBudget()
    peer = Peer(budget, message(size, 1) + message(size, 2), scratch)
    while peer.data:
        peer.step(piece)
    assert peer.got == [1, 2]
    assert budget.used == 0


def test_a_claimed_length_costs_nothing(scratch):
    budget = ReceiveBudget()
    for _ in range(1_000):
        reader = MessageReader(scratch, budget)
        reader.allow_large()
        reader.feed(PREFIX.pack(MESSAGE_BYTES_MAX - 100, Kind.APPEND, 0, 0, 1, 100) + b"0123456789")
        assert len(reader.buffer()) < 5_000
    assert budget.used == 0


def test_memory_is_at_most_eight_times_what_arrived(scratch):
    budget = ReceiveBudget()
    peer = Peer(budget, message(8 << 20), scratch)
    received, largest = 0, 0
    while len(peer.data) > 100_000:
        before = len(peer.data)
        peer.step(100_000)
        received += before - len(peer.data)
        assert budget.used <= 8 * received
        largest = max(largest, budget.used)
    assert largest > 4 << 20


def test_who_finds_no_memory_waits_and_goes_on_in_order(scratch):
    budget = ReceiveBudget(4 * SHARE, 2 * SHARE)
    peers = [Peer(budget, message(2 * SHARE - 100, number), scratch) for number in range(4)]
    for peer in peers:
        peer.step(SHARE)
    # Two have what there is for all, the third has what is kept back for the first in line, the last one waits.
    assert [peer.waits for peer in peers] == [False, False, False, True]
    while peers[2].data:
        peers[2].step(SHARE)
    assert peers[2].got == [2]
    # The last one is the first in line now.
    assert not any(peer.waits for peer in peers)


def test_who_waits_and_is_gone_is_not_waited_for(scratch):
    budget = ReceiveBudget(2 * SHARE, 2 * SHARE - 1)
    first, second, third = (Peer(budget, message(2 * SHARE, number), scratch) for number in range(3))
    for peer in (first, second, third):
        peer.step(SHARE)
    assert (first.waits, second.waits, third.waits) == (False, True, True)
    second.reader.release()
    first.reader.release()
    assert (first.waits, third.waits) == (False, False)
    while third.data:
        third.step(SHARE)
    assert third.got == [2]
    assert budget.used == 0


@pytest.mark.parametrize("seed", range(20))
def test_those_who_wait_never_wait_for_each_other(scratch, seed):
    """More is under way than there is memory for, in any order: every message arrives in the end."""
    rng = random.Random(seed)
    budget = ReceiveBudget(12 * SHARE, 8 * SHARE)
    peers = [
        Peer(budget, b"".join(message(rng.randrange(8 * SHARE), number) for _ in range(3)), scratch)
        for number in range(10)
    ]
    waited = 0
    while unfinished := [peer for peer in peers if peer.data]:
        able = [peer for peer in unfinished if not peer.waits]
        assert able, "all wait"
        waited += len(unfinished) - len(able)
        rng.choice(able).step(rng.randrange(1, SHARE))
        assert budget.used <= 12 * SHARE
    assert [peer.got for peer in peers] == [[number] * 3 for number in range(10)]
    assert budget.used == 0
    assert waited


def test_each_incomplete_message_has_a_number_of_its_own(scratch):
    reader = MessageReader(scratch)
    ping = b"".join(pack(Kind.PING, 0))
    assert reader.incomplete == 0
    reader.feed(ping + ping[:16])
    first = reader.incomplete
    assert first
    assert len(reader.feed(ping[16:])) == 1
    assert reader.incomplete == 0
    reader.feed(ping[:16])
    assert reader.incomplete not in (0, first)


# Sending.


def test_a_header_that_no_reader_would_take_is_not_sent():
    assert pack(Kind.GOODBYE, 0, Goodbye("x" * (MESSAGE_HEADER_BYTES_MAX - 10)))
    with pytest.raises(AssertionError, match="goodbye header"):
        pack(Kind.GOODBYE, 0, Goodbye("x" * MESSAGE_HEADER_BYTES_MAX))


def test_the_text_of_an_error_is_cut():
    sent = wire_error(ProtocolError("ä" * 600_000))
    assert len(sent.message) == ERROR_TEXT_CHARS_MAX
    assert sent.message.endswith("ä…")
    assert wire_error(ProtocolError("short")).message == "short"


def test_a_loss_keeps_its_facts():
    loss = DataLoss(stream="orders", shard=3, first=5, last=9)
    found = error_from(wire_error(loss))
    assert isinstance(found, DataLoss)
    assert found.facts() == loss.facts()


def test_a_call_that_is_no_message_is_refused_before_it_is_one():
    assert checked(GetStreamCall("x" * 1_000)) == GetStreamCall("x" * 1_000)
    for call in (
        GetStreamCall("x" * MESSAGE_HEADER_BYTES_MAX),
        CreateStreamCall("a", uuid="0" * MESSAGE_HEADER_BYTES_MAX),
    ):
        with pytest.raises(InvalidRequest, match="a call of"):
            checked(call)


def test_no_schema_has_an_id_that_the_ledger_could_not_keep():
    assert checked(SchemaCall((1 << 63) - 1)) == SchemaCall((1 << 63) - 1)
    for number in (-1, 1 << 63, (1 << 64) - 1):
        with pytest.raises(InvalidSetting, match="id must be a whole number"):
            checked(SchemaCall(number))
