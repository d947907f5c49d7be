"""A request that is repeated with its key is written once."""

import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import pytest

import mainstem
from mainstem.core.errors import Forbidden
from mainstem.core.identity import producer_id_of_key
from mainstem.server.permits import KEY_TRANSACTION_MIN
from mainstem.transport.sharing import CommitTransactionCall
from tests.integration.http.client import Answer, Client
from tests.unit.log.parts import make_batch

SCHEMA = {"id": "int64", "name": "string"}


def lines(*ids: int) -> bytes:
    return b"".join(json.dumps({"id": number, "name": "n"}).encode() + b"\n" for number in ids)


def test_a_repeated_request_is_answered_like_the_first(client: Client):
    client.create("once", schema=SCHEMA, key="id", shards=4)
    first = client.post("once", lines(*range(20)), idempotency_key="k1").json()
    client.post("once", lines(100), idempotency_key="k2")
    again = client.post("once", lines(*range(20)), idempotency_key="k1").json()
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    assert again == {**first, "duplicate": True}
    assert client.get("/streams/once").json()["records"] == 21


def test_more_shards_between_two_tries_change_nothing(client: Client):
    client.create("grown", schema=SCHEMA, key="id", shards=2)
    first = client.post("grown", lines(*range(50)), idempotency_key="k").json()
    assert client.ask("PATCH", "/streams/grown", {"shards": 5}).status == 200
    again = client.post("grown", lines(*range(50)), idempotency_key="k").json()
    assert again == {**first, "duplicate": True}
    assert client.get("/streams/grown").json()["records"] == 50


def test_dead_letters_are_kept_once_too(client: Client):
    client.create("dead_once", schema=SCHEMA)
    body = b'{"id": "x"}\n'
    for is_again in (False, True):
        answer = client.post("dead_once", body, query="?on_bad=dead_letter", idempotency_key="k").json()
        assert (answer["records"], answer["dead"], answer["duplicate"]) == (0, 1, is_again)
    assert client.get("/streams/dead_once.dead").json()["records"] == 1


def test_dead_letters_and_rows_are_written_together_once(client: Client):
    client.create("mixed", schema=SCHEMA, key="id", shards=3)
    body = lines(*range(50)) + b'{"id": "x"}\n' * 3
    answers = [client.post("mixed", body, query="?on_bad=dead_letter", idempotency_key="k").json() for _ in range(3)]
    assert [answer["duplicate"] for answer in answers] == [False, True, True]
    assert (answers[0]["records"], answers[0]["dead"]) == (50, 3)
    assert answers[1] == {**answers[0], "duplicate": True}
    assert client.get("/streams/mixed").json()["records"] == 50
    assert client.get("/streams/mixed.dead").json()["records"] == 3
    assert sorted(row["id"] for row in client.get("/streams/mixed/records").rows()) == list(range(50))
    # And without a key, as often as it is sent.
    for _ in range(2):
        assert client.post("mixed", body, query="?on_bad=dead_letter").json()["duplicate"] is False
    assert client.get("/streams/mixed.dead").json()["records"] == 9


def test_a_request_is_known_again_though_it_does_not_fit_any_more(client: Client):
    client.create("changed", schema=SCHEMA, compatibility="none")
    first = client.post("changed", lines(1, 2), idempotency_key="k").json()
    changed = client.ask("PUT", "/streams/changed/schema", {"schema": {"id": "int64", "color": "string"}})
    assert changed.status == 200, changed
    again = client.post("changed", lines(1, 2), idempotency_key="k")
    assert (again.status, again.json()) == (200, {**first, "duplicate": True})
    # One that has written nothing is told what is wrong.
    assert client.post("changed", lines(1, 2), idempotency_key="other").status == 422


def test_a_key_is_for_one_request_of_one_stream(client: Client):
    for name in ("mine", "yours"):
        client.create(name, schema=SCHEMA)
        assert client.post(name, lines(1, 2), idempotency_key="k").json()["duplicate"] is False
    answer = client.post("mine", lines(1, 2, 3), idempotency_key="k")
    assert (answer.status, answer.json()["title"]) == (422, "InvalidRequest")
    assert client.post("mine", lines(1), idempotency_key="x" * 256).status == 400
    # A request that was refused has used no key.
    assert client.post("mine", b'{"id": "x"}\n', idempotency_key="fresh").status == 422
    assert client.post("mine", lines(7), idempotency_key="fresh").json()["duplicate"] is False


def test_a_key_of_dead_letters_is_not_that_of_their_stream(client: Client):
    for name in ("letters.dead", "letters"):
        client.create(name)
        answer = client.post(name, b'{"value": "one"}\n', idempotency_key="k").json()
        assert (answer["duplicate"], answer["records"]) == (False, 1)
        assert client.get(f"/streams/{name}").json()["records"] == 1


def test_nobody_uses_up_the_key_of_another(client: Client, server):
    client.create("paid")
    stolen = producer_id_of_key("anonymous", "paid", "pay-1")
    refused: Queue[object] = Queue()
    with mainstem.connect(server.url) as hub:
        batch = make_batch([b"junk"], stream=hub.streams.get("paid").id, producer=stolen, epoch=1)
        hub._port.append([batch], 10.0, refused.put)
        assert "odd" in str(refused.get(timeout=10))
        # Nor as the number of a transaction, which it is where some rows are dead letters.
        with pytest.raises(Forbidden, match="those of keys"):
            hub._port.call(CommitTransactionCall(KEY_TRANSACTION_MIN + (stolen >> 1), 0, ()))
    assert client.post("paid", b'{"value": "100"}\n', idempotency_key="pay-1").json()["duplicate"] is False
    assert client.get("/streams/paid").json()["records"] == 1


def test_the_same_request_many_times_at_once(client: Client, server):
    client.create("crowd", schema=SCHEMA)
    start = threading.Barrier(8)

    def post(_: int) -> Answer:
        with Client(server.http) as own:
            start.wait()
            return own.post("crowd", lines(*range(100)), idempotency_key="k")

    with ThreadPoolExecutor(8) as pool:
        answers = [answer.json() for answer in pool.map(post, range(8))]
    assert sorted(answer["duplicate"] for answer in answers) == [False] + [True] * 7
    assert {str(answer["offsets"]) for answer in answers} == {str(answers[0]["offsets"])}
    assert client.get("/streams/crowd").json()["records"] == 100


@pytest.mark.slow("a server is killed and started again, several times")
def test_killed_in_the_middle_of_requests_nothing_is_lost_or_there_twice(own_server):
    rounds, count = 4, 12
    with Client(own_server.http) as client:
        client.create("killed", schema=SCHEMA, key="id", shards=3)
    for round_ in range(rounds):
        begins = range(round_ * count * 100, (round_ + 1) * count * 100, 100)

        def post(begin: int) -> dict:
            for _ in range(1_000):
                try:
                    with Client(own_server.http, timeout=10) as client:
                        answer = client.post("killed", lines(*range(begin, begin + 100)), idempotency_key=f"k{begin}")
                        if answer.status == 200:
                            return answer.json()
                except (OSError, http.client.HTTPException):
                    pass
                threading.Event().wait(0.1)
            raise AssertionError("never answered")

        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(post, begin) for begin in begins]
            answers[round_].result()
            own_server.kill()
            own_server.start()
            written = [answer.result() for answer in answers]
        assert all(answer["records"] == 100 for answer in written)
    with Client(own_server.http) as client:
        found = [row["id"] for row in client.get("/streams/killed/records?columns=id").rows()]
    assert sorted(found) == list(range(rounds * count * 100))
