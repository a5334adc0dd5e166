"""`simtrain compare`: its page, its JSON, and its errors."""

import json
import math
from pathlib import Path

import pytest

from tests.helpers.command_line import call

FULL, PRESENT = "table4_full", "table4_selective_sequence"


def test_causes_in_json_add_up_to_the_difference() -> None:
    data = json.loads(call("compare", FULL, PRESENT, "--format=json").stdout)
    (difference,), (base, other) = data["differences"], data["scenarios"]
    assert (difference["base"], difference["other"]) == (FULL, PRESENT)
    assert difference["difference_s"] == other["iteration_time_s"] - base["iteration_time_s"]
    assert math.isclose(
        math.fsum(difference["causes_s"].values()), difference["difference_s"], rel_tol=1e-12
    )
    assert difference["changed_fields"]["recompute.strategy"] == ["full", "selective"]
    for one in data["scenarios"]:
        path_s = math.fsum(one["critical_path_s"].values())
        assert math.isclose(path_s, one["iteration_time_s"], rel_tol=1e-12)
        assert one["with_more"]["factor"] == 1.1
    assert [one["profile"] for one in data["made_with"]] == ["a100_sxm4_80gb"]


def test_change_adds_a_changed_copy_of_the_first_scenario() -> None:
    words = f"{PRESENT} --change recompute=full --format json".split()
    data = call("compare", *words)
    (difference,) = json.loads(data.stdout)["differences"]
    assert difference["other"] == f"{PRESENT} recompute=full"
    assert difference["changed_fields"] == {"recompute.strategy": ["selective", "full"]}


def test_the_page_names_equal_scenarios_and_other_models() -> None:
    command = f"compare {PRESENT} {PRESENT} gpt2_1_5b --set cluster=h100_sxm"
    page = call(*command.split()).stdout
    assert "B and A are the same scenario." in page
    assert "C and A train different models." in page
    assert "An iteration of C has " in page


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code"),
    [
        (f"{PRESENT} nowhere", 2, "E101"),
        (f"{PRESENT} --change parallelism.tensr=2", 2, "E201"),
        (f"{PRESENT} --change batch.micro=3", 2, "E306"),
    ],
)
def test_errors_of_a_change_name_its_option(arguments: str, exit_code: int, code: str) -> None:
    outcome = call("compare", *arguments.split())
    assert (outcome.exit_code, outcome.stdout) == (exit_code, "")
    assert f"{code} " in outcome.stderr and "--set" not in outcome.stderr


def test_a_scenario_that_does_not_fit_is_refused_unless_allowed() -> None:
    small = "hardware.gpu.memory_capacity=5 GiB"
    arguments = ("compare", FULL, PRESENT, "--set", small)
    outcome = call(*arguments)
    assert outcome.exit_code == 3 and "E601 " in outcome.stderr
    assert "\nB: " in call(*arguments, "--allow-oom").stdout


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
