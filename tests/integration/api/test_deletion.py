"""Deleting a stream ends its readers at once, near and far: nobody reads on what is left of it."""

import pytest

import mainstem
from mainstem.hub.hub import Hub

BATCHES = 40
VALUE = b"x" * 100_000


def fill(hub: Hub) -> None:
    """More than a reader is given ahead of what it asked for."""
    hub.streams.create("orders")
    with hub.producer(compression=None) as producer:
        for _ in range(BATCHES):
            producer.send("orders", VALUE).result(10)


@pytest.mark.parametrize("follow", [True, False])
def test_a_reader_in_the_middle_is_told_at_its_next_fetch(hub, follow):
    fill(hub)
    consumer = hub.consumer("orders", start="earliest", follow=follow, prefetch_bytes=len(VALUE))
    assert consumer.poll(10).offset == 0
    hub.streams.delete("orders")
    got = [0]
    with pytest.raises(mainstem.StreamDeleted):
        got.extend(record.offset for record in consumer)
    assert got == list(range(len(got)))
    assert len(got) < BATCHES


def test_a_reader_that_was_at_the_end_of_what_it_wanted_has_it(hub):
    hub.streams.create("orders")
    with hub.producer() as producer:
        producer.send_many("orders", [b"1", b"2"])
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        assert [record.value for record in consumer] == [b"1", b"2"]
        hub.streams.delete("orders")
