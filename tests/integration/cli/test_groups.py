"""`mainstem groups`: list, show, reset and delete, for people and for programs."""

import json

import pytest

import mainstem

pytestmark = pytest.mark.slow("starts several processes, each of which loads pyarrow")


def read(folder, count):
    with (
        mainstem.open(folder) as hub,
        hub.consumer("orders", group="billing", start="earliest", follow=False) as consumer,
    ):
        for _, _ in zip(range(count), consumer, strict=False):
            pass


def test_a_group_from_its_first_member_to_its_end(local):
    local.run("stream", "create", "orders")
    local.run("write", "orders", stdin=b"a\nb\nc\n")
    assert json.loads(local.out("groups", "list", "--json")) == []
    read(local.folder / "data", 3)
    (listed,) = json.loads(local.out("groups", "list", "--json"))
    assert (listed["group"], listed["streams"], listed["members"]) == ("billing", ["orders"], 0)
    assert (listed["lag_records"], listed["lag_seconds"]) == (0, 0.0)
    assert local.out("groups", "list").split()[:5] == ["group", "streams", "members", "behind", "for"]
    assert (listed["hold_seconds"], listed["held_records"]) == (0.0, 0)
    assert b"kept up to 3d longer, none now" in local.run("groups", "hold", "billing", "--for", "3d").stderr
    assert local.out("groups", "list").split()[-1] == "3d"
    assert "holds retention: unread records are kept up to 3d longer" in local.out("groups", "show", "billing")
    assert json.loads(local.out("groups", "show", "billing", "--json"))["hold_seconds"] == 3 * 86_400
    assert "up to 30 days" in local.error("groups", "hold", "billing", "--for", "31d", code=2)
    assert b"nothing is kept" in local.run("groups", "hold", "billing", "--off").stderr
    assert "holds retention" not in local.out("groups", "show", "billing")
    shown = json.loads(local.out("groups", "show", "billing", "--json"))
    assert [(shard["shard"], shard["offset"], shard["end"]) for shard in shown["shards"]] == [(0, 3, 3)]
    assert "behind by 0 records" in local.out("groups", "show", "billing")

    preview = local.run("groups", "reset", "billing", "--to", "earliest")
    assert b"3 records would be read again" in preview.stderr
    assert b"nothing was changed" in preview.stderr
    done = json.loads(local.out("groups", "reset", "billing", "--to", "orders:0=1", "--yes", "--json"))
    assert done["shards"] == [{"stream": "orders", "shard": 0, "before": 3, "after": 1}]
    assert json.loads(local.out("groups", "show", "billing", "--json"))["lag_records"] == 2

    with mainstem.open(local.folder / "data") as hub, hub.consumer("orders", start="latest") as consumer:
        cursor = str(consumer.cursor)
    local.run("groups", "reset", "billing", "--to", cursor, "--yes")
    assert json.loads(local.out("groups", "show", "billing", "--json"))["lag_records"] == 0
    assert "not a cursor" in local.error("groups", "reset", "billing", "--to", cursor[:-1], code=2)

    local.run("groups", "delete", "billing", "--yes")
    assert json.loads(local.out("groups", "list", "--json")) == []


def test_what_cannot_be(local):
    local.run("stream", "create", "orders")
    assert "no group 'nobody'" in local.error("groups", "show", "nobody", code=3)
    assert "groups list shows" in local.error("groups", "show", "nobody", code=3)
    assert "STREAM:SHARD=OFFSET" in local.error("groups", "reset", "g", "--to", "orders=5", code=2)
    twice = local.error("groups", "reset", "g", "--to", "orders:1=3,orders:1=4", code=2)
    assert "shard 1 of orders has an offset already" in twice
    assert "2026-01-31T00:00:00Z is UTC" in local.error("groups", "reset", "g", "--to", "2026-01-31", code=2)
    local.run("write", "orders", stdin=b"a\n")
    read(local.folder / "data", 1)
    wrong = local.error("groups", "reset", "billing", "--to", "orders:9=1", code=2)
    assert "no such shard (0 to 0)" in wrong
    assert "cursor file" not in wrong
    assert "--yes" in local.error("groups", "delete", "nobody", code=2)


def test_ages():
    from mainstem.cli.groups import _seconds

    ages = (0, 2.94, 59.9, 60, 303, 7_830, 86_400 * 3 + 3_600 * 4 + 5)
    assert [_seconds(age) for age in ages] == ["0s", "2.9s", "59.9s", "1m", "5m 3s", "2h 10m", "3d 4h"]
