"""Streams followed over HTTP, as a browser does."""

import json
import threading

import mainstem
from tests.integration.http.client import Client, Events

SCHEMA = {"id": "int64", "name": "string"}


def lines(*ids: int) -> bytes:
    return b"".join(json.dumps({"id": number, "name": "n"}).encode() + b"\n" for number in ids)


def test_a_tail_gets_what_is_written_and_each_event_is_a_place_to_go_on(client: Client, server):
    client.create("live", schema=SCHEMA, key="id", shards=3)
    client.post("live", lines(*range(50)))
    with Events(server.http, "/streams/live/records?from=earliest") as tail:
        first = tail.take(50)
        assert sorted(event.data["id"] for event in first) == list(range(50))
        client.post("live", lines(50, 51, 52))
        assert sorted(event.data["id"] for event in tail.take(3)) == [50, 51, 52]
    # From after any event, exactly those that came later come again.
    for cut in (0, 7, 24, 49):
        with Events(server.http, "/streams/live/records?from=earliest", first[cut].id) as tail:
            rest = tail.take(52 - cut)
        seen = {event.data["id"] for event in first[: cut + 1]}
        assert len({event.data["id"] for event in rest}) == 52 - cut
        assert not seen & {event.data["id"] for event in rest}


def test_a_tail_begins_at_the_end_and_says_where_that_is(client: Client, server):
    client.create("fresh", schema=SCHEMA)
    client.post("fresh", lines(1))
    with Events(server.http, "/streams/fresh/records") as tail:
        place = tail.skip_to_position()
    # It was cut before anything came: what was written meanwhile is not missed.
    client.post("fresh", lines(2))
    with Events(server.http, "/streams/fresh/records", place) as tail:
        assert [event.data["id"] for event in tail.take(1)] == [2]


def test_a_tail_with_a_predicate_and_columns(client: Client, server):
    client.create("sifted", schema=SCHEMA)
    with Events(server.http, "/streams/sifted/records?where=id+%25+10+%3D+0&columns=id,_offset&limit=3") as tail:
        tail.skip_to_position()
        for begin in range(0, 100, 20):
            client.post("sifted", lines(*range(begin, begin + 20)))
        events = list(tail)
    assert [event.data for event in events] == [{"id": number, "_offset": number} for number in (0, 10, 20)]


def test_records_that_are_lost_are_told_and_the_tail_goes_on(client: Client, server):
    client.create("gone", schema=SCHEMA)
    for number in range(3):
        client.post("gone", lines(number))
    place = client.get("/streams/gone/records?limit=1").headers["mainstem-cursor"]
    client.ask("POST", "/streams/gone/trim", {"offset": 2})
    with Events(server.http, "/streams/gone/records", place) as tail:
        loss, row = tail.take(2)
    assert (loss.kind, loss.data["first"], loss.data["last"]) == ("loss", 1, 1)
    assert (row.kind, row.data["id"]) == ("message", 2)


def test_a_deleted_stream_ends_its_tails(client: Client, server):
    client.create("ended", schema=SCHEMA)
    with Events(server.http, "/streams/ended/records") as tail:
        tail.skip_to_position()
        assert client.ask("DELETE", "/streams/ended").status == 204
        (error,) = list(tail)
    assert (error.kind, error.data["title"]) == ("error", "StreamDeleted")


def test_a_tail_of_bytes_and_what_native_producers_write(client: Client, server):
    with mainstem.connect(server.url) as hub:
        hub.streams.create("bytes")
        with Events(server.http, "/streams/bytes/records") as tail, hub.producer() as producer:
            tail.skip_to_position()
            producer.send("bytes", b"\xff", key="k").result()
            (event,) = tail.take(1)
    assert (event.data["key"], event.data["value"]) == ("k", {"base64": "/w=="})


def test_many_tails_get_everything_while_much_is_written(client: Client, server):
    client.create("busy", schema=SCHEMA)
    found: dict[int, list[int]] = {}

    def follow(number: int) -> None:
        with Events(server.http, "/streams/busy/records?from=earliest") as tail:
            found[number] = [event.data["id"] for event in tail.take(4000)]

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for begin in range(0, 4000, 200):
        client.post("busy", lines(*range(begin, begin + 200)))
    for thread in threads:
        thread.join(30)
    assert all(found[number] == list(range(4000)) for number in range(5))


def test_a_server_that_stops_ends_its_tails(own_server):
    with Client(own_server.http) as client:
        client.create("stopped", schema=SCHEMA)
        client.post("stopped", lines(1))
    with Events(own_server.http, "/streams/stopped/records?from=earliest") as tail:
        tail.take(1)
        assert own_server.stop() == 0
        assert list(tail) == []
