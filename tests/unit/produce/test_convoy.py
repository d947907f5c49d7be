"""Convoys on a port that is driven by hand: who travels with whom, and what each hears when something fails."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mainstem.core.batch import Batch
from mainstem.core.errors import (
    Closed,
    DeadlineExceeded,
    InternalError,
    MainstemError,
    Refused,
    SchemaMismatch,
    StaleGeneration,
    StreamDeleted,
)
from mainstem.log.transactions import met_limit
from mainstem.produce import convoy as convoy_module
from mainstem.produce.convoy import Convoy
from mainstem.produce.options import ProducerOptions
from mainstem.produce.producer import Producer
from mainstem.testing.clock import SimulatedClock
from mainstem.transport.port import StreamInfo


def stream(number: int = 1, shards: int = 1, generation: int = 0) -> StreamInfo:
    none = (0,) * shards
    return StreamInfo(number, f"{number:032x}", f"s{number}", shards, "crc32", generation, 1, 1, none, none, 0, 1)


class HandDriven:
    """A port whose turns and answers come when the test says so."""

    record_bytes_max = 1 << 20
    checks_values = True

    def __init__(self) -> None:
        self.write_share = 1.0
        self.is_closed = False
        self.actions: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []
        self.sent: list[tuple[list[Batch], Callable[[Sequence[Any]], None]]] = []

    def schedule(self, action: Callable[[], None], delay: float = 0.0) -> None:
        (self.later if delay else self.actions).append(action)

    def append(self, batches: Sequence[Batch], timeout: float, done: Callable[[Sequence[Any]], None]) -> None:
        self.sent.append((list(batches), done))

    def turn(self) -> None:
        """Do what is to be done now, and what that brings about."""
        while self.actions:
            self.actions.pop(0)()

    def wait_a_moment(self) -> None:
        actions, self.later = self.later, []
        self.actions += actions
        self.turn()

    def answer(self, *results: int | MainstemError) -> None:
        _, done = self.sent.pop(0)
        done(list(results))

    def check_usable(self) -> None:
        if self.is_closed:
            raise Closed("the hub is closed")


class Company:
    """Producers that share a convoy."""

    def __init__(self, count: int, *streams: StreamInfo, seed: int = 0) -> None:
        self.port = HandDriven()
        self.clock = SimulatedClock()
        port: Any = self.port
        rng = random.Random(seed)
        self.convoy = Convoy(port, self.clock, "lz4", rng)
        options = ProducerOptions(delivery_timeout=60.0)
        self.producers = [
            Producer(port, options, self.clock, known=streams or (stream(),), convoy=self.convoy, randomness=rng)
            for _ in range(count)
        ]

    def send(self, name: str = "s1", key: bytes | None = None) -> list[Any]:
        """A record from each."""
        return [producer.send(name, b"%d" % index, key) for index, producer in enumerate(self.producers)]

    def goes_alone(self) -> bool:
        """Whether all that is under way was sent by the producers themselves."""
        producers = [batch.header.producer for batches, _ in self.port.sent for batch in batches]
        return bool(producers) and self.convoy._numbering.id not in producers

    def under_way(self) -> list[tuple[int, int, int, int]]:
        """Stream, count, epoch and sequence of each batch of the only request."""
        ((batches, _),) = self.port.sent
        headers = [batch.header for batch in batches]
        return [(header.stream, header.count, header.producer_epoch, header.sequence) for header in headers]


@pytest.fixture
def company() -> Company:
    return Company(5)


def test_records_of_several_producers_are_one_batch_and_each_hears_its_place(company):
    acks = company.send()
    company.port.turn()
    assert company.under_way() == [(1, 5, 0, 0)]
    company.port.answer(100)
    assert [ack.result(0) for ack in acks] == [(0, 100), (0, 101), (0, 102), (0, 103), (0, 104)]
    assert [repr(ack) for ack in acks[:1]] == ["<Ack s1: shard 0, offset 100>"]


def test_one_is_on_its_way_at_a_time_and_in_a_crowd_the_next_waits_a_moment(company):
    company.send()
    company.port.turn()
    more = company.send()
    company.port.turn()
    assert len(company.port.sent) == 1
    company.port.answer(0)
    company.port.turn()
    assert not company.port.sent
    company.port.wait_a_moment()
    assert company.under_way() == [(1, 5, 0, 1)]
    company.port.answer(5)
    assert more[4].result(0) == (0, 9)


@pytest.mark.parametrize("count", [1, 5])
def test_a_seed_repeats_the_shard_of_records_without_a_key(count):
    """Of a producer that goes alone, and of a convoy."""

    def shard(seed: int) -> int:
        company = Company(count, stream(shards=1_000), seed=seed)
        company.send()
        company.port.turn()
        ((batches, _),) = company.port.sent
        return batches[0].header.shard

    seeds = range(20)
    assert [shard(seed) for seed in seeds] == [shard(seed) for seed in seeds]
    assert len({shard(seed) for seed in seeds}) > 10


def test_a_producer_without_company_goes_alone():
    alone = Company(1)
    alone.send()
    alone.port.turn()
    assert alone.goes_alone()
    left = Company(2)
    left.producers[1]._end_close()
    left.producers[0].send("s1", b"x")
    left.port.turn()
    assert left.goes_alone()


def test_after_a_failure_numbers_begin_anew():
    company = Company(3, stream(1), stream(2))
    failed = company.send("s1")
    company.port.turn()
    company.port.answer(StreamDeleted("gone"))
    company.port.wait_a_moment()
    assert all(isinstance(ack.exception(0), StreamDeleted) for ack in failed)
    fine = company.send("s2")
    company.port.turn()
    assert company.under_way() == [(2, 3, 1, 0)]
    company.port.answer(7)
    assert fine[2].result(0) == (0, 9)


def test_each_stream_has_its_own_answer():
    company = Company(4, stream(1), stream(2))
    first = [producer.send("s1", b"a") for producer in company.producers[:2]]
    second = [producer.send("s2", b"b") for producer in company.producers[2:]]
    company.port.turn()
    assert company.under_way() == [(1, 2, 0, 0), (2, 2, 0, 0)]
    company.port.answer(StreamDeleted("gone"), 40)
    assert all(isinstance(ack.exception(0), StreamDeleted) for ack in first)
    assert [ack.result(0) for ack in second] == [(0, 40), (0, 41)]


def test_with_more_shards_all_come_back_and_go_again():
    company = Company(3, stream(shards=1))
    acks = company.send()
    company.port.turn()
    company.port.answer(StaleGeneration("changed", generation=1, shards=4))
    company.port.turn()
    company.port.wait_a_moment()
    headers = [batch.header for batches, _ in company.port.sent for batch in batches]
    assert sum(header.count for header in headers) == 3
    assert {header.generation for header in headers} == {1}
    while company.port.sent:
        company.port.answer(*range(len(company.port.sent[0][0])))
        company.port.wait_a_moment()
    assert all(ack.exception(0) is None for ack in acks)


def test_if_only_some_shards_fail_each_hears_of_its_own():
    company = Company(8, stream(shards=2))
    acks = [producer.send("s1", b"v", b"%d" % index) for index, producer in enumerate(company.producers)]
    company.port.turn()
    ((batches, _),) = company.port.sent
    assert len(batches) == 2
    good, bad = batches[0].header, batches[1].header
    company.port.answer(10, Refused("this shard not"))
    heard = [ack.exception(0) for ack in acks]
    assert heard.count(None) == good.count
    assert sum(isinstance(error, Refused) for error in heard) == bad.count
    offsets = sorted(ack.result(0) for ack, error in zip(acks, heard, strict=True) if error is None)
    assert offsets == [(good.shard, 10 + number) for number in range(good.count)]


def test_nothing_goes_past_what_is_aboard(company):
    """It may come back, and would then stand behind what its producer sent after it."""
    company.send()
    company.port.turn()
    producer = company.producers[0]
    table = producer.send_many("s1", [b"x" * 100] * 500)
    headed = producer.send("s1", b"y", headers={"a": b"b"})
    company.port.turn()
    assert len(company.port.sent) == 1
    company.port.answer(0)
    company.port.wait_a_moment()
    while company.port.sent:
        company.port.answer(*range(5, 5 + len(company.port.sent[0][0])))
        company.port.wait_a_moment()
    assert table.done()
    assert headed.done()


def test_only_what_was_sent_at_the_same_moment_travels_together(company):
    """Records of one batch have one time."""
    company.send()
    company.port.turn()
    waiting = [company.producers[0].send("s1", b"a")]
    company.port.turn()
    company.clock.advance(1.0)
    waiting.append(company.producers[1].send("s1", b"b"))
    company.port.answer(0)
    company.port.wait_a_moment()
    assert company.under_way() == [(1, 1, 0, 1)]
    company.port.answer(5)
    company.port.wait_a_moment()
    assert company.under_way() == [(1, 1, 0, 2)]
    company.port.answer(6)
    assert [ack.result(0) for ack in waiting] == [(0, 5), (0, 6)]


def test_who_waits_for_too_long_hears_it(company):
    company.send()
    company.port.turn()
    late = company.producers[1].send("s1", b"late")
    company.port.turn()
    company.clock.advance(61.0)
    company.port.answer(DeadlineExceeded("the server is away"))
    company.port.wait_a_moment()
    error = late.exception(0)
    assert isinstance(error, DeadlineExceeded)
    # Its words are not those of a transaction whose time is over.
    assert not met_limit(error)
    assert not company.port.sent


def test_while_a_share_is_kept_everybody_goes_alone(company):
    company.port.write_share = 0.5
    company.send()
    company.port.turn()
    assert company.goes_alone()


def test_one_who_sends_what_is_refused_harms_nobody_else(company):
    """A server that refuses a batch does not say whose record it was: each goes again alone, in its order."""
    acks = company.send()
    company.port.turn()
    company.port.answer(SchemaMismatch("record 2: not JSON"))
    for index in range(5):
        company.port.wait_a_moment()
        assert company.under_way() == [(1, 1, *((1, index) if index < 3 else (2, index - 3)))]
        company.port.answer(SchemaMismatch("record 0: not JSON") if index == 2 else 100 + index)
    heard = [ack.exception(0) for ack in acks]
    assert [type(error) for error in heard] == [type(None), type(None), SchemaMismatch, type(None), type(None)]
    assert acks[4].result(0) == (0, 104)


def test_whoever_waits_when_the_hub_ends_hears_it(company):
    company.send()
    company.port.turn()
    waiting = company.send()
    company.port.turn()
    company.port.is_closed = True
    company.port.answer(Closed("the hub is closed"))
    assert all(isinstance(ack.chunk.error, Closed) and ack.done() for ack in waiting)


def test_what_cannot_be_encoded_fails_and_the_next_one_leaves(company, monkeypatch):
    def broken(carriage: Any) -> None:
        raise ValueError("nobody has thought of this")

    acks = company.send()
    with monkeypatch.context() as patched:
        patched.setattr(convoy_module._Carriage, "close", broken)
        company.port.turn()
    assert all(isinstance(ack.exception(0), InternalError) for ack in acks)
    fine = company.send()
    company.port.wait_a_moment()
    company.port.answer(0)
    assert fine[0].result(0) == (0, 0)
