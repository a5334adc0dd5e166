"""The example notebook has outputs, and its cells still print them."""

import json
import re

import pytest

from docs.update.notebook import NOTEBOOK
from tests.helpers.command_line import spawn


def test_the_notebook_has_outputs_and_its_links_have_targets() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(cell["outputs"] for cell in cells if cell["cell_type"] == "code")
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    links = re.findall(r"\]\(([^)]+)\)", "\n".join(texts))
    assert links
    for link in links:
        assert (NOTEBOOK.parent / link).is_file(), link


@pytest.mark.slow
@pytest.mark.ci
def test_the_outputs_of_the_notebook_are_current() -> None:
    """`python -m docs.update --notebook` rewrites it; it needs the extra `docs`."""
    outcome = spawn("-m", "docs.update", "--notebook", "--check")
    assert outcome.exit_code == 0, outcome.stderr
