"""Files beside a log: what they hold, and that nothing of them stays."""

import os
import shutil
import time

import pytest

from mainstem.core.errors import TransactionAborted
from mainstem.log import staging
from mainstem.log.staging import STAGED_SECONDS_MAX, StagingFile
from tests.unit.log.parts import make_batch


def staged(folder, job: str = "job", number: int = 3):
    file = StagingFile(folder, job, number)
    file.add([make_batch([b"a", b"b"]), make_batch([b"c"], shard=1)])
    file.add([make_batch([b"d"])])
    return file.finish()


def test_batches_come_back_as_they_were(tmp_path):
    made = staged(tmp_path)
    assert made.batches == 3
    assert made.bytes == (tmp_path / made.name).stat().st_size
    found = list(staging.read(tmp_path, made))
    assert [(batch.header, bytes(batch.payload)) for batch in found] == [
        (batch.header, bytes(batch.payload))
        for batch in (make_batch([b"a", b"b"]), make_batch([b"c"], shard=1), make_batch([b"d"]))
    ]


@pytest.mark.parametrize("damage", ["cut", "flipped", "longer", "gone"])
def test_what_is_not_as_it_was_written_is_refused(tmp_path, damage):
    made = staged(tmp_path)
    path = tmp_path / made.name
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[:-1])
    elif damage == "flipped":
        content[-1] ^= 1
        path.write_bytes(content)
    elif damage == "longer":
        path.write_bytes(content + b"x")
    else:
        path.unlink()
    with pytest.raises(TransactionAborted, match="Run the job again"):
        list(staging.read(tmp_path, made))


def test_nothing_is_left_of_what_is_discarded(tmp_path):
    made = staged(tmp_path)
    staging.discard(tmp_path, made)
    staging.discard(tmp_path, made)
    file = StagingFile(tmp_path, "job", 3)
    file.abandon()
    assert list((tmp_path / "staging/job/3").iterdir()) == []
    staging.discard_up_to(tmp_path, "job", 3)
    assert list((tmp_path / "staging").iterdir()) == []


def test_what_comes_after_the_end_of_a_delivery_that_was_opened_is_late(tmp_path):
    staging.open_delivery(tmp_path, "job", 0)
    StagingFile(tmp_path, "job", 0, is_opened=True).abandon()
    still = StagingFile(tmp_path, "job", 0, is_opened=True)
    still.add([make_batch([b"a"])])
    staging.discard_up_to(tmp_path, "job", 0)
    with pytest.raises(TransactionAborted, match="delivery 0 of 'job' was aborted, or has ended"):
        StagingFile(tmp_path, "job", 0, is_opened=True)
    still.finish()
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_file_that_comes_while_its_delivery_is_discarded_goes_too(tmp_path, monkeypatch):
    staged(tmp_path, number=0)
    remove = shutil.rmtree

    def remove_and_be_too_late(path, **options):
        monkeypatch.setattr(shutil, "rmtree", remove)
        staged(tmp_path, number=0)
        for at in sorted(path.iterdir())[:1]:
            at.unlink()

    monkeypatch.setattr(shutil, "rmtree", remove_and_be_too_late)
    staging.discard_up_to(tmp_path, "job", 0)
    assert list((tmp_path / "staging").iterdir()) == []


def test_what_lost_tasks_left_goes_with_the_delivery(tmp_path):
    staged(tmp_path, number=2), staged(tmp_path, number=3)
    later = staged(tmp_path, number=4)
    staging.discard_up_to(tmp_path, "job", 3)
    assert [path.name for path in (tmp_path / "staging" / "job").iterdir()] == ["4"]
    assert len(list(staging.read(tmp_path, later))) == 3


def test_what_is_old_is_collected(tmp_path):
    old, young = staged(tmp_path, "old"), staged(tmp_path, "young")
    now = time.time()
    for path in ((tmp_path / old.name), (tmp_path / old.name).parent):
        os.utime(path, (now - STAGED_SECONDS_MAX - 60, now - STAGED_SECONDS_MAX - 60))
    staging.collect(tmp_path, round(now * 1_000_000))
    assert [path.name for path in (tmp_path / "staging").iterdir()] == ["young"]
    assert (tmp_path / young.name).exists()


def test_a_job_may_have_any_name(tmp_path):
    made = staged(tmp_path, "../../etc/passwd, or so")
    assert (tmp_path / made.name).resolve().is_relative_to(tmp_path.resolve() / "staging")
