"""The page about Spark: its programs run as they stand, one after the other, and it names every option."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mainstem.spark.options import READ_OPTIONS
from mainstem.spark.write_options import WRITE_OPTIONS
from tests.docs.test_guide import ROOT, environment

pytestmark = pytest.mark.xdist_group("spark")

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS_MAX = 300
PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")


@pytest.mark.slow("starts a session of its own")
@pytest.mark.timeout(SECONDS_MAX + 20)
def test_the_page_runs(tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text("\n".join(BLOCK.findall(PAGE)), encoding="utf-8")
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=work,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_the_page_names_every_option() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert {*READ_OPTIONS, *WRITE_OPTIONS} - {"path"} <= named
