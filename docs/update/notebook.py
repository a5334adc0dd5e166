"""Run the example notebook, and compare or rewrite its outputs (needs the extra `docs`)."""

from typing import Any

from docs.update.documents import ROOT

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
_TIMEOUT_S = 300


def run_notebook() -> None:
    """Run the notebook and rewrite its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell of the notebook fails.
    """
    import nbformat

    nbformat.write(_executed(), NOTEBOOK)
    print(f"ran {NOTEBOOK.relative_to(ROOT)}")


def stale_cells() -> list[str]:
    """Run the notebook; list each cell with text outputs that differ from the stored ones.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell of the notebook fails.
    """
    old, new = _read(), _executed()
    pairs = zip(old.cells, new.cells, strict=True)
    return [
        f"docs/notebook.ipynb: cell {before.id} prints something else"
        for before, after in pairs
        if _texts(before) != _texts(after)
    ]


def _read() -> Any:
    import nbformat

    return nbformat.read(NOTEBOOK, as_version=4)


def _executed() -> Any:
    """Return the notebook with new outputs, without the times at which cells ran."""
    from nbclient import NotebookClient

    notebook = _read()
    client = NotebookClient(
        notebook,
        timeout=_TIMEOUT_S,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(ROOT / "docs")}},
    )
    client.execute()
    notebook.metadata = {
        "kernelspec": notebook.metadata["kernelspec"],
        "language_info": {"name": "python"},
    }
    return notebook


def _texts(cell: Any) -> list[object]:
    """Return the text outputs of a cell, without pictures, which depend on matplotlib."""
    return [
        output.get("text") or [output["data"].get(kind) for kind in ("text/plain", "text/html")]
        for output in cell.get("outputs", ())
    ]
