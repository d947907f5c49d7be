"""Manifests: what a kill leaves is finished or given up, and two runs do not write at once."""

from pathlib import Path

import msgspec
import pytest

from mainstem.core.errors import TableUnusable
from mainstem.spark.jobs.manifest import Beginning, Manifest, Manifests
from mainstem.spark.jobs.part_files import WrittenFile


def _plan(number):
    return Manifest(
        job="warehouse", stream="s", number=number, attempt="", state="planned", start="a", end="b", planned_us=1
    )


def _file(folder, attempt, name):
    path = folder / "_date=2026-01-31" / f"{attempt}-{name}.parquet"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    return path


def test_a_load_goes_its_way(tmp_path):
    manifests = Manifests(tmp_path, "warehouse-1")
    with manifests.locked():
        begun = manifests.begin(_plan(1))
        assert begun.attempt
        assert manifests.marker(begun.attempt).exists()
        left = _file(tmp_path, begun.attempt, "00001-b")
        manifests.advance(msgspec.structs.replace(begun, state="done"))
        assert not manifests.marker(begun.attempt).exists()
        assert not left.exists()
    assert [one.state for one in manifests.all()] == ["done"]
    assert manifests.get(2) is None


def test_a_load_that_the_table_has_is_finished(tmp_path):
    manifests = Manifests(tmp_path, "j")
    manifests.folder.mkdir(parents=True)
    begun = manifests.begin(_plan(1))
    kept, left = _file(tmp_path, begun.attempt, "00000-a"), _file(tmp_path, begun.attempt, "00001-b")
    file = WrittenFile(kept.relative_to(tmp_path).as_posix(), 1, 1, 1, {}, "{}")
    manifests.advance(msgspec.structs.replace(begun, state="written", files=(file,)))
    manifests.settle(1, now_us=5)
    (done,) = manifests.all()
    assert (done.state, done.done_us) == ("done", 5)
    assert kept.exists()
    assert not left.exists()


def test_what_is_said_to_be_done_has_left_nothing(tmp_path, monkeypatch):
    """A kill while it is tidied up: the next run does that again."""
    manifests = Manifests(tmp_path, "j")
    manifests.folder.mkdir(parents=True)
    begun = manifests.begin(_plan(1))
    left = _file(tmp_path, begun.attempt, "00001-b")
    manifests.advance(msgspec.structs.replace(begun, state="written"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rglob", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            manifests.advance(msgspec.structs.replace(begun, state="done"))
    assert left.exists()
    manifests.settle(1, now_us=5)
    assert not left.exists()
    assert [one.state for one in manifests.all()] == ["done"]


def _interrupted(*arguments):
    raise KeyboardInterrupt


@pytest.mark.parametrize("state", ["planned", "written"])
def test_a_load_that_the_table_has_not_is_given_up(tmp_path, state):
    manifests = Manifests(tmp_path, "j")
    manifests.folder.mkdir(parents=True)
    done = manifests.begin(_plan(1))
    manifests.advance(msgspec.structs.replace(done, state="done"))
    kept = _file(tmp_path, done.attempt, "00000-a")
    begun = manifests.begin(_plan(2))
    left = _file(tmp_path, begun.attempt, "00000-a")
    manifests.advance(msgspec.structs.replace(begun, state=state))
    manifests.settle(1, now_us=5)
    assert manifests.get(2) is None
    assert not left.exists()
    assert not manifests.marker(begun.attempt).exists()
    assert kept.exists()


def test_two_runs_do_not_write_at_once(tmp_path):
    with (
        Manifests(tmp_path, "j").locked(),
        pytest.raises(TableUnusable, match="another run of this job writes"),
        Manifests(tmp_path, "j").locked(),
    ):
        pass
    with Manifests(tmp_path, "j").locked(), Manifests(tmp_path, "other").locked():
        pass


def test_what_is_no_manifest_is_named(tmp_path):
    manifests = Manifests(tmp_path, "j")
    manifests.folder.mkdir(parents=True)
    (manifests.folder / "000001.json").write_text("{")
    (manifests.folder / "start.json").write_text("{")
    with pytest.raises(TableUnusable, match=r"000001\.json is no manifest"):
        manifests.get(1)
    with pytest.raises(TableUnusable, match=r"start\.json is no manifest .* begins at the start that it is given"):
        manifests.beginning()


def test_where_the_first_run_began_is_kept(tmp_path):
    """Durably, beside the manifests, of which it is none."""
    manifests = Manifests(tmp_path, "j")
    with manifests.locked():
        assert manifests.beginning() is None
        for begun in (Beginning("latest", "ms1:a"), Beginning("earliest", "ms1:b")):
            (manifests.folder / "start.part").write_text("of a run that was killed")
            manifests.begin_at(begun)
            assert Manifests(tmp_path, "j").beginning() == begun
    assert list(manifests.all()) == []
    assert manifests.last() is None
    assert sorted(path.name for path in manifests.folder.iterdir()) == ["lock", "start.json"]
