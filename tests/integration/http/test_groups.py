"""Groups of readers over HTTP: those of members, and those that are read with nothing but HTTP."""

from typing import Any

import pytest

import mainstem
from mainstem.testing.server import ServerProcess
from tests.integration.http.client import Client, Events

ROWS = b"".join(b'{"id": %d}\n' % number for number in range(10))


def test_a_group_is_read_with_nothing_but_http(client: Client):
    """A script that is called again and again gets every record once, and keeps nothing itself."""
    client.create("orders", schema={"id": "int64"}, shards=3, key="id")
    assert client.post("orders", ROWS).status == 200
    seen: list[int] = []
    for _ in range(4):
        page = client.get("/streams/orders/records?group=billing&limit=3")
        seen += [row["id"] for row in page.rows()]
        done = client.ask(
            "POST", "/groups/billing/commit", {"stream": "orders", "cursor": page.headers["mainstem-cursor"]}
        )
        assert (done.status, done.body) == (204, b"")
    assert sorted(seen) == list(range(10))
    assert client.get("/streams/orders/records?group=billing").body == b""
    # Another group has its own place, and `from` is where it begins.
    assert len(client.get("/streams/orders/records?group=other").rows()) == 10
    assert client.get("/streams/orders/records?group=other&from=latest").body == b""
    client.post("orders", b'{"id": 10}\n')
    with Events(f"{client.address[0]}:{client.address[1]}", "/streams/orders/records?group=billing") as events:
        (event,) = events.take(1)
    assert event.data == {"id": 10}


def test_a_tail_of_a_group_that_connects_again_goes_on_where_it_was(client: Client):
    """Not where the group stands, which may have committed less by then, or more."""
    client.create("tailed", schema={"id": "int64"})
    client.post("tailed", ROWS)
    cursors = [client.get(f"/streams/tailed/records?limit={count}").headers["mainstem-cursor"] for count in (1, 2, 5)]
    assert client.ask("POST", "/groups/tail/commit", {"stream": "tailed", "cursor": cursors[1]}).status == 204
    address, path = f"{client.address[0]}:{client.address[1]}", "/streams/tailed/records?group=tail&limit=1"
    with Events(address, path) as events:
        assert events.take(1)[0].data == {"id": 2}
    for cursor, first in zip(cursors, (1, 2, 5), strict=True):
        with Events(address, path, last_event_id=cursor) as events:
            assert events.take(1)[0].data == {"id": first}


def test_a_commit_does_not_undo_a_reset_that_came_after_its_read(client: Client):
    client.create("again", schema={"id": "int64"})
    client.post("again", ROWS)
    path = "/streams/again/records?group=repeat&limit=4"

    def commit(page: Any, **more: Any) -> Any:
        body = {"stream": "again", "cursor": page.headers["mainstem-cursor"], **more}
        return client.ask("POST", "/groups/repeat/commit", body)

    def generation(page: Any) -> int:
        return int(page.headers["mainstem-group-generation"])

    first = client.get(path)
    assert commit(first, generation=generation(first)).status == 204
    assert client.get("/groups/repeat").json()["generation"] == generation(first)
    second = client.get(path)
    reset = client.ask("POST", "/groups/repeat/reset", {"to": "earliest", "dry_run": False})
    assert reset.status == 200
    refused = commit(second, generation=generation(second))
    assert (refused.status, refused.json()["title"]) == (409, "Fenced")
    assert "the group was reset" in refused.json()["detail"]
    again = client.get(path)
    assert again.rows()[0] == {"id": 0}
    assert commit(again, generation=generation(again)).status == 204
    with Events(f"{client.address[0]}:{client.address[1]}", "/streams/again/records?group=repeat&limit=1") as events:
        assert int(events.headers["mainstem-group-generation"]) == generation(again)
    # Who says nothing of it is believed.
    assert commit(second).status == 204
    assert client.get(path).rows()[0] == {"id": 8}
    for wrong in ("1", -1, 1.5, True, [1]):
        assert commit(second, generation=wrong).status == 400
    assert "mainstem-group-generation" not in client.get("/streams/again/records?limit=1").headers


def test_the_next_page_goes_on_where_the_first_ended_whatever_the_group_did(client: Client):
    client.create("paged", schema={"id": "int64"})
    client.post("paged", ROWS)
    page = client.get("/streams/paged/records?group=pager&limit=4")
    following = client.get(page.headers["link"].partition(">")[0][1:])
    assert [row["id"] for row in following.rows()] == [4, 5, 6, 7]


def test_how_far_groups_are(client: Client, server: ServerProcess):
    client.create("clicks", schema={"id": "int64"}, shards=2)
    client.post("clicks", ROWS)
    with mainstem.connect(server.url) as hub, hub.consumer("clicks", group="readers", start="earliest") as consumer:
        assert len([consumer.poll(20) for _ in range(10)]) == 10
        consumer.commit()
        found = client.get("/groups/readers").json()
        assert (found["streams"], found["member_count"], found["records"]) == (["clicks"], 1, 0)
        (member,) = found["members"]
        assert {shard["member"] for shard in found["shards"]} == {member["id"]}
        assert sum(shard["end"] for shard in found["shards"]) == 10
        assert (found["hold_seconds"], found["held_records"]) == (0, 0)
        hub.groups.hold("readers", "2d")
        assert client.get("/groups/readers").json()["hold_seconds"] == 172_800
        # What a member has is the member's.
        cursor = client.get("/streams/clicks/records").headers["mainstem-cursor"]
        fenced = client.ask("POST", "/groups/readers/commit", {"stream": "clicks", "cursor": cursor})
        assert (fenced.status, fenced.json()["title"]) == (409, "Fenced")
        busy = client.ask("POST", "/groups/readers/reset", {"to": "earliest", "dry_run": False})
        assert (busy.status, busy.json()["title"]) == (409, "GroupBusy")
    assert "readers" in [group["name"] for group in client.get("/groups").json()["groups"]]
    assert "readers" not in [group["name"] for group in client.get("/groups?after=readers").json()["groups"]]


def test_a_group_is_set_elsewhere_and_forgotten(client: Client):
    client.create("old", schema={"id": "int64"})
    client.post("old", ROWS)
    cursor = client.get("/streams/old/records").headers["mainstem-cursor"]
    assert client.ask("POST", "/groups/movers/commit", {"stream": "old", "cursor": cursor}).status == 204
    dry = client.ask("POST", "/groups/movers/reset", {"to": "earliest"}).json()
    assert dry == {"dry_run": True, "shards": [{"stream": "old", "shard": 0, "before": 10, "after": 0}]}
    assert client.get("/groups/movers").json()["records"] == 0
    offsets = [{"stream": "old", "shard": 0, "offset": 7}]
    assert client.ask("POST", "/groups/movers/reset", {"offsets": offsets, "dry_run": False}).status == 200
    assert client.get("/groups/movers").json()["records"] == 3
    assert client.ask("DELETE", "/groups/movers").status == 204
    missing = client.get("/groups/movers")
    assert (missing.status, missing.json()["title"]) == (404, "UnknownGroup")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/groups/g/commit", {}, 400),
        ("POST", "/groups/g/commit", {"stream": "nowhere", "cursor": "ms1:x"}, 422),
        ("POST", "/groups/g/reset", {}, 400),
        ("POST", "/groups/g/reset", {"to": 7}, 400),
        ("POST", "/groups/g/reset", {"to": "latest", "offsets": []}, 400),
        ("POST", "/groups/g/reset", {"offsets": [{"stream": "s"}]}, 400),
        ("POST", "/groups/g/reset", {"offsets": [{"stream": "s", "shard": 0, "offset": 1 << 63}]}, 400),
        ("POST", "/groups/g/reset", {"offsets": [{"stream": "s", "shard": True, "offset": 1}]}, 400),
        ("POST", "/groups/nobody/reset", {"offsets": [{"stream": "s", "shard": 0.0, "offset": 1.0}]}, 404),
        ("POST", "/groups/g/reset", {"to": "latest", "dry_run": 1}, 400),
        ("POST", "/groups/nobody/reset", {"to": "latest"}, 404),
        ("DELETE", "/groups/nobody", None, 404),
        ("DELETE", "/groups/%20", None, 400),
        ("GET", "/streams/s/records?group=%2F", None, 400),
    ],
)
def test_what_cannot_be_done(client: Client, method, path, body, status):
    answer = client.ask(method, path, body)
    assert (answer.status, answer.json()["status"]) == (status, status), answer


def test_a_cursor_of_another_stream_moves_nobody(client: Client):
    client.create("one")
    client.create("two")
    cursor = client.get("/streams/one/records").headers["mainstem-cursor"]
    answer = client.ask("POST", "/groups/lost/commit", {"stream": "two", "cursor": cursor})
    assert (answer.status, "'two'" in answer.json()["detail"]) == (422, True)
    assert client.get("/groups/lost").status == 404


def test_heads_are_answers_without_a_body(client: Client):
    client.create("headed", schema={"id": "int64"})
    client.post("headed", ROWS)
    for path in ("/livez", "/openapi.json", "/streams/headed", "/streams/headed/records?limit=3"):
        head, whole = client.ask("HEAD", path), client.get(path)
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == whole.headers["content-length"]
    for accept in ("application/x-ndjson", "text/event-stream"):
        head = client.ask("HEAD", "/streams/headed/records", accept=accept)
        assert (head.status, head.body, head.headers["content-type"]) == (200, b"", accept)
    assert client.ask("HEAD", "/streams/nowhere").status == 404
    refused = client.ask("POST", "/livez")
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
