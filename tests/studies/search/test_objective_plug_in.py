"""An objective is added with a value in a file of any installed package, nothing else."""

import json

import pytest

from tests.helpers.outsider import Outsider

pytestmark = pytest.mark.slow

NEW_FILE = """
from simtrain.studies.objectives import Objective


def hours(scenario, time_s, peak_bytes):
    num_tokens = scenario.batch.global_ * scenario.model.seq_length
    return scenario.num_gpus * time_s / 3600 * 1e6 / num_tokens


GPU_HOURS = Objective(
    name="gpu_hours",
    text="GPU-hours of a million tokens",
    field="gpu_hours_per_1e6_tokens",
    better="leaner",
    value=hours,
    words=lambda value: f"{value:.3g} GPU-hours",
)
"""
SEARCH = ("search", "gpt2_1_5b", "--gpus", "1,2", "--set", "batch.global=8")


@pytest.fixture(scope="module")
def outsider(tmp_path_factory: pytest.TempPathFactory) -> Outsider:
    """An installed package with one more objective."""
    parts = {"objectives": {"gpu_hours": "gpu_hours:GPU_HOURS"}}
    return Outsider.install(tmp_path_factory.mktemp("outsider"), {"gpu_hours.py": NEW_FILE}, parts)


def test_help_and_errors_list_a_new_objective(outsider: Outsider) -> None:
    help_text = " ".join(outsider.call("search", "--help", "--all").replace("│", " ").split())
    assert "gpu_hours (GPU-hours of a million tokens)" in help_text
    error = outsider.refused(*SEARCH, "--objective", "gpu_hour")
    assert "did you mean gpu_hours?" in error and "'tokens_per_s', 'gpu_hours'" in error


@pytest.mark.ci
def test_a_search_ranks_by_a_new_objective(outsider: Outsider) -> None:
    named, cost = (
        json.loads(outsider.call(*SEARCH, "--objective", name, "--format=json"))
        for name in ("gpu_hours", "cost")
    )
    # The batch is the same, so both objectives are proportional to GPU-seconds.
    assert [row["configuration"] for row in named["ranked"]] == [
        row["configuration"] for row in cost["ranked"]
    ]
    assert named["objective"] == "gpu_hours" and "lower_bound_gpu_hours_per_1e6_tokens" in named
    assert "by gpu_hours, within" in outsider.call(*SEARCH, "--objective", "gpu_hours")
