"""A stream cut into slices: all of it once, balanced, read where it lies or through the server."""

import os
import pickle
import shutil
from dataclasses import replace

import pytest

import mainstem
from mainstem.core.errors import DataLoss, FolderUnusable, InvalidCursor
from mainstem.core.limits import KIB
from mainstem.hub.embedded import FolderPort
from mainstem.hub.remote import RemotePort
from mainstem.spark import origin, slices
from mainstem.spark.origin import Access, Origin
from mainstem.spark.slices import Slice, balance, joined, read, slices_of
from mainstem.testing.server import ServerProcess
from mainstem.transport.port import GetStreamCall, RunsCall
from tests.spark.parts import append, fill, make_half_spoilt, rows

ONE_DAY = "day >= TIMESTAMP '2026-01-10 00:00:00Z' AND day < TIMESTAMP '2026-01-11 00:00:00Z'"
pytestmark = pytest.mark.xdist_group("spark")


def ids(pieces, **how) -> list[int]:
    return [
        number for piece in pieces for batch in read(piece, ["id"], **how) for number in batch.column(0).to_pylist()
    ]


def list_slices(access: Access, stream: str, **how) -> list[Slice]:
    port = origin.opened(access)
    return slices_of(port, access, port.call(GetStreamCall(stream)).streams[0], **how)


@pytest.fixture
def folder(tmp_path):
    with mainstem.open(tmp_path / "log") as hub:
        yield hub, Access.to(str(tmp_path / "log"))


def test_slices_have_every_record_once(folder):
    hub, access = folder
    fill(hub, count=10_000)
    plan = list_slices(access, "orders", parts=8)
    assert sum(piece.rows for piece in plan) == 10_000
    for parts in (1, 3, 8, 50):
        balanced = pickle.loads(pickle.dumps(balance(plan, parts)))
        assert 0 < len(balanced) <= min(parts, len(plan))
        assert sorted(number for part in balanced for number in ids(part)) == list(range(10_000))


def test_parts_are_as_many_as_were_asked_for(folder):
    _, access = folder
    fill(folder[0], count=20_000)
    for parts in (1, 4, 7):
        assert len(balance(list_slices(access, "orders", parts=parts), parts)) == parts
        some = list_slices(access, "orders", first=[500, 500], end=[6_000, 6_000], parts=parts)
        assert len(balance(some, parts)) == parts


def test_slices_begin_and_end_where_they_are_told(folder):
    hub, access = folder
    fill(hub, count=1_000, shards=1, batch=100)
    plan = list_slices(access, "orders", first=[250], end=[777])
    assert ids(joined(plan)) == list(range(250, 777))
    assert sum(piece.rows for piece in plan) == 527


def test_balanced_parts_are_even():
    def piece(number: int, size: int) -> Slice:
        return Slice(Origin(Access.to("/x")), "s", "0" * 32, 1, 0, number, 0, 10, 10, size)

    parts = balance([piece(number, 1 + number % 7) for number in range(100)], 4)
    loads = [sum(each.bytes for each in part) for part in parts]
    assert len(parts) == 4
    assert max(loads) - min(loads) <= 2 * 7
    # Neighbours become one, whatever order they came in.
    whole = [Slice(Origin(Access.to("/x")), "s", "0" * 32, 1, 0, 0, at, at + 10, 10, 5) for at in (20, 0, 10)]
    (one,) = joined(whole)
    assert (one.first, one.end, one.rows, one.bytes) == (0, 30, 30, 15)


def test_what_cannot_match_is_not_in_the_plan(folder):
    hub, access = folder
    fill(hub, count=60_000, shards=1, batch=1_500)
    everything = list_slices(access, "orders")
    one_day = list_slices(access, "orders", where=ONE_DAY)
    assert sum(piece.bytes for piece in one_day) * 10 <= sum(piece.bytes for piece in everything)
    assert ids(one_day, where=ONE_DAY) == list(range(18_000, 20_000))


def test_metadata_and_columns(folder):
    hub, access = folder
    fill(hub, count=100, shards=1, batch=10)
    (piece,) = joined(list_slices(access, "orders"))
    (batch,) = read(piece, ["x", "_offset"])
    assert batch.schema.names == ["x", "_offset"]
    assert batch.column("_offset").to_pylist() == list(range(100))
    everything = ["id", "x", "v", "day", "_shard", "_offset", "_timestamp", "_key", "_headers"]
    (batch,) = read(piece, everything)
    assert batch.schema.names == everything


@pytest.mark.parametrize("is_seen", [True, False])
def test_columns_that_are_not_asked_for_are_not_read(tmp_path, is_seen):
    """One of them cannot be read: neither where the folder is seen, nor by the server for who does not see it."""
    make_half_spoilt(tmp_path / "log")
    with ServerProcess(tmp_path / "log") as server:
        access = Access.to(server.url)
        (piece,) = joined(list_slices(access, "wide"))
        piece = piece if is_seen else replace(piece, origin=Origin(access))
        assert isinstance(origin.opened_near(piece.origin), FolderPort if is_seen else RemotePort)
        for columns in (["n"], ["n", "_offset"]):
            (batch,) = read(piece, columns)
            assert batch.to_pydict() == {name: [*range(30)] for name in columns}
        # Control.
        for everything in (None, ["n", "blob"]):
            with pytest.raises(DataLoss, match="damaged"):
                list(read(piece, everything))


def test_older_rows_come_in_the_newest_schema(folder):
    hub, access = folder
    hub.streams.create("s", schema={"id": "int32"})
    with hub.producer() as producer:
        producer.send("s", {"id": 1}).result(10)
        hub.streams.set_schema("s", {"id": "int64", "note": "string"})
        producer.send("s", {"id": 1 << 40, "note": "new"}).result(10)
    (piece,) = joined(list_slices(access, "s"))
    (batch,) = read(piece)
    assert batch.to_pylist() == [{"id": 1, "note": None}, {"id": 1 << 40, "note": "new"}]


def test_what_was_trimmed_is_told_by_its_range(folder):
    hub, access = folder
    fill(hub, count=1_000, shards=1, batch=100)
    plan = joined(list_slices(access, "orders"))
    hub.streams.trim("orders", offset=300)
    # By who plans, and by who had planned before.
    with pytest.raises(DataLoss, match="records 0 to 299 are gone"):
        list_slices(access, "orders", first=[0])
    told: list[DataLoss] = []
    later = list_slices(access, "orders", first=[0], on_loss=told.append)
    assert [(loss.first, loss.last) for loss in told] == [(0, 299)]
    assert ids(later) == list(range(300, 1_000))
    with pytest.raises(DataLoss) as lost:
        ids(plan)
    assert (lost.value.first, lost.value.last) == (0, 299)
    told.clear()
    assert ids(plan, on_loss=told.append) == list(range(300, 1_000))
    assert [(loss.first, loss.last) for loss in told] == [(0, 299)]


def test_what_was_trimmed_on_both_sides_of_a_change_of_shards_is_one_loss(folder):
    hub, access = folder
    fill(hub, count=400, shards=1, batch=100)
    hub.streams.alter("orders", shards=2)
    with hub.producer() as producer:
        producer.send_batch("orders", rows(400, 600), shard=0)
        producer.send_batch("orders", rows(1_000, 10), shard=1)
    hub.streams.trim("orders", shard=0, offset=900)
    with pytest.raises(DataLoss) as lost:
        list_slices(access, "orders", first=[0])
    assert (lost.value.stream, lost.value.shard, lost.value.first, lost.value.last) == ("orders", 0, 0, 899)
    told: list[DataLoss] = []
    plan = list_slices(access, "orders", first=[0], on_loss=told.append)
    assert sorted(ids(plan)) == list(range(900, 1_010))
    # No more than what is read.
    for end in (899, 400, 300):
        assert list_slices(access, "orders", first=[100], end=[end], on_loss=told.append) == []
    ranges = [(loss.shard, loss.first, loss.last) for loss in told]
    assert ranges == [(0, 0, 899), (0, 100, 898), (0, 100, 399), (0, 100, 299)]


def test_another_stream_of_the_name_is_not_read(folder):
    hub, access = folder
    fill(hub, count=100)
    plan = list_slices(access, "orders")
    hub.streams.delete("orders")
    fill(hub, count=100)
    with pytest.raises(InvalidCursor, match="deleted and created again"):
        ids(plan)


def test_a_reader_that_sees_the_folder_of_the_server_reads_it(server, monkeypatch):
    with mainstem.connect(server.url) as hub:
        fill(hub, count=2_000)
        plan = list_slices(Access.to(server.url), "orders")
        assert plan[0].origin.folder == str(server.folder)
        near = origin.opened_near(plan[0].origin)
        assert isinstance(near, FolderPort)
        assert sorted(ids(plan)) == list(range(2_000))
        # The control: with another word the folder is not taken for the server's.
        strange = Origin(plan[0].origin.access, plan[0].origin.folder, "another", plan[0].origin.flush)
        assert isinstance(origin.opened_near(strange), RemotePort)


@pytest.mark.slow("waits until what was read is paid for")
def test_a_quota_that_keeps_a_share_slows_slices_down(tmp_path):
    """To whom Spark shows what it has read, nobody could say that some of it was left out."""
    size, count = 64 * KIB, 384
    with mainstem.open(tmp_path / "log") as hub:
        hub.access.create_token("root", admin=True)
        secret = hub.access.create_token("pipeline", allow=["read:bytes"]).secret
        hub.access.set_quota("pipeline", "read_bytes", count * size // 3, mode="sample")
        hub.streams.create("bytes")
        with hub.producer(compression=None) as producer:
            for _ in range(count):
                producer.send("bytes", os.urandom(size))
    with ServerProcess(tmp_path / "log") as server:
        access = Access.to(server.url, token=secret)
        # Of those who do not see the folder.
        plan = [replace(piece, origin=Origin(access)) for piece in list_slices(access, "bytes")]
        assert sum(batch.num_rows for piece in plan for batch in read(piece)) == count
        with (
            mainstem.connect(server.url, token=secret) as hub,
            hub.consumer("bytes", start="earliest", follow=False) as part,
        ):
            assert sum(1 for _ in part) < count
            assert part.left_out


def test_the_folder_of_the_server_is_not_read_over_a_network_file_system(server, monkeypatch):
    with mainstem.connect(server.url) as hub:
        fill(hub, count=100)
        (place,) = {piece.origin for piece in list_slices(Access.to(server.url), "orders")}
        monkeypatch.setattr("mainstem.log.surroundings._file_system", lambda folder: "nfs4")
        assert isinstance(origin.opened_near(place), RemotePort)
        monkeypatch.setattr("mainstem.log.surroundings._file_system", lambda folder: "ext4")
        assert isinstance(origin.opened_near(place), FolderPort)


def test_a_copy_of_the_folder_is_not_taken_for_it(server, tmp_path):
    with mainstem.connect(server.url) as hub:
        fill(hub, count=1_000)
        copy = tmp_path / "copy"
        shutil.copytree(server.folder, copy)
        append(hub, "orders", 1_000, 1_000)
        plan = list_slices(Access.to(server.url), "orders")
        moved = [
            Slice(
                **{
                    **{name: getattr(piece, name) for name in Slice.__slots__},
                    "origin": Origin(piece.origin.access, str(copy), piece.origin.word, piece.origin.flush),
                }
            )
            for piece in plan
        ]
        # The word is in the copy too, but it ends earlier: the server is asked.
        assert isinstance(origin.opened_near(moved[0].origin), RemotePort)
        assert sorted(ids(moved)) == list(range(2_000))
        # A folder that was named as such is refused instead.
        stale = Origin(Access.to(str(copy)), flush=plan[0].origin.flush)
        with pytest.raises(FolderUnusable, match="it is a copy"):
            origin.opened_near(stale)


def test_small_batches_are_put_together(folder):
    hub, access = folder
    fill(hub, count=5_000, shards=1, batch=50)
    (piece,) = joined(list_slices(access, "orders"))
    sizes = [batch.num_rows for batch in read(piece)]
    assert sum(sizes) == 5_000
    assert len(sizes) <= 2


def test_pages_of_runs_go_on_where_they_ended(folder, monkeypatch):
    hub, _ = folder
    monkeypatch.setattr("mainstem.consume.runs._ENTRIES_MAX", 3)
    fill(hub, count=1_000, shards=1, batch=100)
    answer = hub._port.call(RunsCall("orders", 0, 0, 1_000, 1))
    assert answer.more
    assert answer.offsets == (answer.runs[-1].end,)
    runs = [run for run, _ in slices.runs_of(hub._port, RunsCall("orders", 0, 0, 1_000, 1))]
    assert [run.first for run in runs] == [0, *(run.end for run in runs[:-1])]
    assert runs[-1].end == 1_000
    assert sum(run.records for run in runs) == 1_000
