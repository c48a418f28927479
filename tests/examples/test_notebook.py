"""The notebook runs from its first cell to its last, and holds no outputs."""

import json
from pathlib import Path

import pytest

from patience import PATIENCE

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_hour.ipynb"


def test_no_outputs_are_stored():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's packages
def test_the_notebook_runs(tmp_path):
    pytest.importorskip("ipykernel", reason="needs ipykernel and nbclient (extra examples)")
    nbclient = pytest.importorskip("nbclient", reason="needs ipykernel and nbclient (extra examples)")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert [output for output in outputs if output.get("name") == "stderr"] == []
    texts = "\n".join(output.get("text", "") for output in outputs)
    for words in ("accuracy 0.9", "moves the decision by", "phishing.c"):
        assert words in texts
    assert any("image/png" in output.get("data", {}) for output in outputs)
