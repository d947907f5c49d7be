"""The page about HTTP runs as it stands, and says the limits that there are."""

import shutil
from pathlib import Path

import pytest

from mainstem.core import limits
from mainstem.produce.posting import READERS
from mainstem.server.http.renderings import RENDERINGS
from mainstem.server.http.routes import ROUTES
from tests.docs.test_guide import ROOT, blocks, run


@pytest.mark.slow("a server and some twenty commands")
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl; enable: apt install curl")
def test_the_page_runs(tmp_path: Path):
    paths = []
    for number, (language, text) in enumerate(blocks(ROOT / "docs" / "http.md"), 1):
        assert language == "bash"
        path = tmp_path / f"{number:02d}.sh"
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    assert len(paths) > 6
    done = run(tmp_path, *paths)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"duplicate":true' in done.stdout
    assert '"dead":1' in done.stdout
    assert '{"id":2,"_offset":1}\n{"id":3,"_offset":2}\n' in done.stdout
    assert 'data: {"id":1,"name":"apple"}' in done.stdout


def test_the_page_says_what_there_is():
    text = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    for kind in (*READERS, *(kind for kind in RENDERINGS if kind != "application/x-ndjson")):
        assert f"`{kind}`" in text
    (reading,) = (row for row in ROUTES if row.handler == "read_records")
    for parameter in reading.parameters:
        assert f"`{parameter.name}" in text
    for row in ROUTES:
        last = row.path.rpartition("/")[2]
        assert last.strip("{}") in text
    assert f"{limits.HTTP_BODY_BYTES_MAX >> 20} MiB" in text
    assert f"{limits.HTTP_HEAD_BYTES_MAX >> 10} KiB, within {limits.HTTP_HEAD_SECONDS_MAX} s" in text
    assert f"at most {limits.HTTP_HEAD_LINES_MAX} lines" in text
    assert f"over {limits.HTTP_HEAD_SHARE_BYTES >> 10} KiB is answered" in text
    assert f"{limits.HTTP_PAGE_BYTES_MAX >> 20} MiB; it then" in text
    assert f"{limits.HTTP_TAIL_SHARDS_MAX:,} shards" in text
    assert limits.PRODUCER_IDLE_US_MAX == 7 * 24 * 3600 * 1_000_000
