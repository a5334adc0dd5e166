"""The example notebook has outputs, and its cells still print them."""

import json
import re
from typing import Any

import pytest

from tests.helpers.command_line import ROOT

NOTEBOOK = ROOT / "docs/notebook.ipynb"


def test_the_notebook_has_outputs_and_its_links_have_targets() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(cell["outputs"] for cell in cells if cell["cell_type"] == "code")
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    links = re.findall(r"\]\(([^)]+)\)", "\n".join(texts))
    assert links
    for link in links:
        assert (NOTEBOOK.parent / link).is_file(), link


def texts_of(cell: Any) -> list[object]:
    """Return the text outputs of a cell, without pictures, which depend on matplotlib."""
    outputs = cell.get("outputs", ())
    streams = "".join(output["text"] for output in outputs if "text" in output)
    shown = [output["data"] for output in outputs if "data" in output]
    return [streams, *([data.get("text/plain"), data.get("text/html")] for data in shown)]


@pytest.mark.slow
@pytest.mark.ci
def test_the_outputs_of_the_notebook_are_current() -> None:
    """`jupyter execute --inplace docs/notebook.ipynb` rewrites it; it needs the extra `docs`."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    before = [texts_of(cell) for cell in notebook.cells]
    folder = {"metadata": {"path": str(NOTEBOOK.parent)}}
    nbclient.NotebookClient(notebook, coalesce_streams=True, resources=folder).execute()
    assert [texts_of(cell) for cell in notebook.cells] == before
