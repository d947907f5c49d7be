"""`mainstem demo` with its Spark job: revenue to the cent, and a fault that is found."""

import os
import re
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.slow("a server, three producers and a Spark of its own"),
]


def run(folder, *arguments):
    environment = os.environ | {"TMPDIR": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "mainstem", "demo", "--seconds", "6", "--rate", "1000", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.timeout(400)
def test_the_table_agrees_with_the_producers_to_the_cent(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Spark is starting; it joins when it is up" in done.stdout
    # The view moves from the beginning.
    assert re.search(r"[23]\.\d s .* acknowledged.*\n *Spark: ", done.stdout)
    told = re.search(
        r"wrote (\d+) windows? of revenue to a Delta table, and (\d+) to the stream demo.revenue", done.stdout
    )
    assert told is not None
    assert told[1] == told[2]
    agreed = re.search(
        r"agrees with the producers to the cent: ([\d,]+) orders, [\d,.]+ in (\d+) windows?", done.stdout
    )
    assert agreed is not None
    assert agreed[2] == told[1]
    assert int(agreed[1].replace(",", "")) > 100
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(400)
def test_an_order_that_is_left_out_is_found(tmp_path):
    done = run(tmp_path, "--break")
    assert done.returncode == 1
    assert "mainstem: 1 record is missing" in done.stderr
    (took, told) = re.findall(
        r"revenue from [\d:]+ on: the producers took ([\d,]+) orders, .*, the table says ([\d,]+)", done.stderr
    )[0]
    assert int(took.replace(",", "")) - int(told.replace(",", "")) == 1
    assert "--break: Spark left one order out" in done.stdout
