"""`simtrain compare --schedules`: its page, its pictures, and its refusals."""

import json
from pathlib import Path

import pytest

from simtrain.schedules import NAMED
from tests.helpers.command_line import call

COMPARE = "compare", "llama3_70b", "--schedules", "--set", "batch.global=16"


def test_the_page_has_every_schedule_its_order_and_the_command_of_a_search() -> None:
    page = call(*COMPARE).stdout
    assert all(name in page for name in NAMED)
    assert "E455" in page and "schedule seq1f1b runs slices" in page
    trials = json.loads(call(*COMPARE, "--format=json").stdout)["trials"]
    assert page.count("per stage\n\nstage ") == 3 < len(trials)
    assert "simtrain search llama3_70b --gpus N --vary schedule=" in page


@pytest.mark.ci
@pytest.mark.parametrize("suffix", [".html", ".png"])
def test_pictures_name_all_schedules_and_passes(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"schedules{suffix}"
    page = call(*COMPARE, "-o", str(file)).stdout
    assert "stage   0" not in page
    if suffix == ".html":
        text = file.read_text()
        assert all(name in text for name in ("zbv", "dualpipe", "input gradients (I)"))


def test_a_file_of_no_format_is_refused_before_simulating() -> None:
    refusal = call(*COMPARE, "-o", "schedules.txt")
    assert refusal.exit_code == 2 and "E117" in refusal.stderr
    assert ".html, .htm, .png, .svg or .pdf" in refusal.stderr
