"""A data folder of every format there ever was is read and written; one of a newer format is refused."""

import json
import struct

import pytest

import mainstem
from mainstem.core.checksum import crc32c
from mainstem.core.cursor import Cursor
from mainstem.core.delivery import Delivery, Fingerprint
from mainstem.core.errors import DeliveryRefused, FolderUnusable, UnknownTransaction
from mainstem.log.flush import Appended, Rejected, TransactionCommitted
from mainstem.log.folder import FORMAT, _identity_check
from mainstem.log.log import Log, Waiter
from tests.formats import golden


@pytest.fixture(params=golden.formats())
def number(request):
    return request.param


@pytest.fixture
def folder(number, tmp_path):
    return golden.unpack(number, tmp_path / "data")


def opened(folder, number):
    return Log(folder, golden.OPTIONS, clock=golden.clock(number))


def test_there_is_a_golden_folder_of_every_format():
    assert golden.formats() == list(range(1, FORMAT + 1))


def test_everything_is_read(folder, number):
    log = opened(folder, number)
    assert log.uuid == golden.expected(number)["log"]
    assert golden.content(log) == golden.streams(number)
    log.close()
    again = opened(folder, number)
    assert golden.content(again) == golden.streams(number)
    again.close()


def test_producers_go_on_and_what_they_repeat_is_recognised(folder, number):
    log = opened(folder, number)
    assert golden.misremembered(log, number) == []
    stream, shard, producer, sequence, _, _ = golden.expected(number)["recent"][-1]
    end = log.ledger.load_shard(stream, shard).next
    assert golden.append(log, golden.numbered(stream, shard, producer, sequence + 1, 3)) == Appended(end)
    after = golden.content(log)
    log.close()
    again = opened(folder, number)
    assert golden.content(again) == after
    again.close()


def test_who_may_do_what_is_as_it_was(folder, number):
    log = opened(folder, number)
    assert golden.access(log) == golden.expected(number).get("access", [])
    log.close()


def test_groups_are_where_they_were(folder, number):
    log = opened(folder, number)
    assert golden.groups(log) == golden.expected(number).get("groups", [])
    log.close()


def test_a_transaction_that_was_committed_is_recognised_and_any_other_is_over(folder, number):
    log = opened(folder, number)
    for transaction, batches, offsets in golden.expected(number).get("transactions", []):
        waiter = Waiter()
        log.commit_transaction(transaction, batches, (), waiter.set)
        (outcome,) = waiter.wait(log.batcher)
        if offsets is None:
            assert isinstance(outcome, Rejected)
            assert isinstance(outcome.error, UnknownTransaction)
        else:
            assert outcome == TransactionCommitted(tuple(map(tuple, offsets)), duplicate=True)
    assert golden.content(log) == golden.streams(number)
    log.close()


def test_a_delivery_that_was_made_is_recognised_and_others_under_its_number_are_refused(folder, number):
    log = opened(folder, number)
    for delivered, exact, total, magnitude in golden.expected(number).get("deliveries", []):
        for rows in (6, 7):
            waiter = Waiter()
            fingerprint = Fingerprint(rows, bytes.fromhex(exact), total, magnitude)
            delivery = Delivery(log.ledger.stream_named("plain").id, "nightly", delivered, fingerprint)
            log.commit_parts(1_000 + 10 * delivered + rows, [(99, 1)], waiter.set, delivery=delivery)
            (outcome,) = waiter.wait(log.batcher)
            if rows == 6:
                assert outcome == TransactionCommitted((), duplicate=True)
            else:
                assert isinstance(outcome, Rejected)
                assert isinstance(outcome.error, DeliveryRefused)
    assert golden.content(log) == golden.streams(number)
    log.close()


def test_cursors_point_where_they_did(folder, number):
    Log(folder, golden.OPTIONS, clock=golden.clock(number)).close()
    with mainstem.open(folder, read_only=True) as hub:
        for stream in golden.expected(number)["streams"]:
            with hub.consumer(stream["name"], start=Cursor.parse(stream["cursor"]), follow=False) as consumer:
                assert list(consumer) == []


def test_a_hub_reads_it(folder, number):
    with mainstem.open(folder) as hub:
        for stream in golden.expected(number)["streams"]:
            with hub.consumer(stream["name"], start="earliest", follow=False) as consumer:
                assert sum(1 for _ in consumer) == sum(shard["records"] for shard in stream["shards"])


def test_who_only_reads_is_told_how_an_older_folder_is_upgraded(tmp_path):
    folder = golden.unpack(1, tmp_path / "data")
    before = sorted(folder.rglob("*"))
    with pytest.raises(FolderUnusable, match=rf"format 1, .* format {FORMAT}, .*mainstem serve --data {folder}"):
        mainstem.open(folder, read_only=True)
    assert sorted(folder.rglob("*")) == before


def test_who_only_reads_is_told_of_a_ledger_that_waits_for_its_upgrade(tmp_path):
    """As a stop in the middle of an upgrade leaves it."""
    folder = golden.unpack(1, tmp_path / "data")
    say_format(folder, FORMAT)
    with pytest.raises(FolderUnusable, match=rf"ledger format 1, .* format {FORMAT}; open the folder once for writing"):
        mainstem.open(folder, read_only=True)


# ------------------------------------------------------------------------------------------------------ newer ones


@pytest.fixture
def newest(tmp_path):
    return golden.unpack(FORMAT, tmp_path / "data")


def say_format(folder, number):
    identity = json.loads((folder / "mainstem.json").read_text())
    identity |= {"format": number, "check": _identity_check(number, identity["uuid"])}
    (folder / "mainstem.json").write_text(json.dumps(identity))


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_folder_is_refused_naming_both_formats(newest, read_only):
    say_format(newest, FORMAT + 1)
    with pytest.raises(FolderUnusable, match=f"format {FORMAT + 1}, this program reads up to format {FORMAT}"):
        mainstem.open(newest, read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_ledger_is_refused_naming_both_formats(newest, read_only):
    log = opened(newest, FORMAT)
    log._ledger._db.execute("UPDATE meta SET v = 9 WHERE k = 'format'")
    log.close()
    with pytest.raises(FolderUnusable, match=rf"ledger format 9, this program reads (up to )?format {FORMAT}"):
        mainstem.open(newest, read_only=read_only)


def test_a_newer_snapshot_is_refused(newest):
    log = opened(newest, FORMAT)
    log._ledger.checkpoint()
    log._ledger._db.execute("UPDATE meta SET v = 9 WHERE k = 'format'")
    log._ledger.checkpoint()
    log._folder.snapshots.take(newest / "ledger.db")
    log.close()
    (newest / "ledger.db").unlink()
    with pytest.raises(FolderUnusable, match=f"ledger format 9, this program reads up to format {FORMAT}"):
        opened(newest, FORMAT)


def test_a_newer_block_is_refused_even_if_nothing_else_says_so(newest):
    block = max((newest / "blocks").iterdir())
    content = bytearray(block.read_bytes())
    content[12:16] = struct.pack("<I", 7)
    content[8:12] = struct.pack("<I", crc32c(content[12:64]))
    block.write_bytes(content)
    (newest / "ledger.db").unlink()
    with pytest.raises(FolderUnusable, match=r"block at byte 0 of block \d+ has version 7, .* up to version 1"):
        opened(newest, FORMAT)


def test_a_newer_frame_at_the_end_is_not_taken_for_a_torn_one(newest):
    """What is torn at the end of the newest block is dropped."""
    log = opened(newest, FORMAT)
    stream = golden.expected(FORMAT)["streams"][0]["id"]
    golden.append(log, golden.numbered(stream, 0, 99, 0, 1))
    block = newest / "blocks" / f"{log.ledger.applied().block:016d}.block"
    log.close()
    content = bytearray(block.read_bytes())
    (length,) = struct.unpack_from("<I", content, 64 + 12)
    content[64 + 8] = 2
    content[64 + 4 : 64 + 8] = struct.pack("<I", crc32c(content[64 + 8 : 64 + length]))
    block.write_bytes(content)
    (newest / "ledger.db").unlink()
    with pytest.raises(FolderUnusable, match=r"frame at byte 64 of block \d+ has version 2, .* up to version 1"):
        opened(newest, FORMAT)
