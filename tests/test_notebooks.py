"""The notebooks of examples/: they run from top to bottom in a kernel of their own, and hold no outputs."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
RUN_S = 300.0  # for a cell

pytestmark = pytest.mark.skipif(not NOTEBOOKS, reason="the examples are not beside the tests")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="make docs installs what runs notebooks")
    nbclient = pytest.importorskip("nbclient", reason="make docs installs what runs notebooks")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=RUN_S, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert [output for output in shown if output.get("name") == "stderr"] == []
    assert sum("text/html" in output.get("data", {}) for output in shown) >= 4
