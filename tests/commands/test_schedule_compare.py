"""`simtrain compare --schedules`: its page, and its refusals."""

from pathlib import Path

import pytest

from tests.helpers.command_line import call

COMPARE = "compare", "llama3_70b", "--schedules", "--set", "batch.global=16"


@pytest.mark.ci
def test_a_page_names_all_schedules_and_passes(tmp_path: Path) -> None:
    file = tmp_path / "schedules.html"
    assert "stage   0" not in call(*COMPARE, "-o", str(file)).stdout
    assert all(name in file.read_text() for name in ("zbv", "dualpipe", "input gradients (I)"))


def test_a_file_of_no_format_is_refused_before_simulating() -> None:
    refusal = call(*COMPARE, "-o", "schedules.txt")
    assert refusal.exit_code == 2 and "E117" in refusal.stderr
    assert "end it with .html" in refusal.stderr
