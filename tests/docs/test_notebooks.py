"""The notebooks run from the first cell to the last, and show what they promise."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
pytestmark = pytest.mark.slow("starts a kernel, which loads pandas and polars")


def run(path: Path, folder: Path | None = None) -> list[Any]:
    """The cells of code, with what came out of them."""
    notebook = nbformat.read(path, as_version=4)
    resources = {} if folder is None else {"metadata": {"path": str(folder)}}
    with warnings.catch_warnings():
        # The kernel's own libraries warn of each other.
        warnings.simplefilter("ignore")
        NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cells: list[Any], begin: str, kind: str) -> str:
    """What the cell that begins so shows in this form."""
    cell = next(cell for cell in cells if cell.source.startswith(begin))
    outputs = [output for output in cell.outputs if output.output_type in ("execute_result", "stream")]
    return "".join(output.data[kind] if output.output_type == "execute_result" else output.text for output in outputs)


def test_typed_rows():
    [path] = [path for path in NOTEBOOKS if path.name == "typed-rows.ipynb"]
    cells = run(path)
    assert "id, customer, country, amount, at" in shown(cells, "orders = ", "text/html")
    assert shown(cells, "noon = ", "").startswith("amount - ")
    assert shown(cells, "import pandas", "text/plain") == "100000"
    assert "<table" in shown(cells, "with hub.consumer(\n", "text/html")
    html = shown(cells, "found = ", "text/html")
    assert "1 record, " in html
    assert "customer-321" in html
    assert shown(cells, "info = ", "text/plain") == "[{'id': 54321, 'channel': 'web'}]"
    assert "'id'" in shown(cells, "try:\n    hub.streams", "")


@pytest.mark.timeout(900)
@pytest.mark.xdist_group("spark")
def test_pipeline(tmp_path):
    """The page is the notebook, so this runs both: a Spark of its own, as in a notebook."""
    [path] = [path for path in NOTEBOOKS if path.name == "pipeline.ipynb"]
    cells = run(path, tmp_path)
    page = (path.parents[1] / "pipeline.md").read_text(encoding="utf-8")
    assert [cell.source for cell in cells] == [block.strip("\n") for block in BLOCK.findall(page)]
    assert shown(cells, "import duckdb", "").splitlines() == ["2 398.00 398.00", "1 75.50 None"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_kept_without_output(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in content["cells"])
