"""An objective is added with a class in a file of any installed package, nothing else."""

import json
import pathlib

import pytest

from tests.helpers.outsider import Outsider

pytestmark = pytest.mark.slow

NEW_FILE = '''
"""The GPU-hours per million tokens."""

from simtrain.studies.objectives.objective import Objective


class GpuHours(Objective):
    """GPU-hours per million tokens, which grow with the time of an iteration."""

    name = "gpu_hours"
    text = "GPU-hours of a million tokens"
    field = "gpu_hours_per_1e6_tokens"
    better = "leaner"

    def value(self, scenario, time_s, peak_bytes):
        """Return the GPU-hours of a million tokens."""
        num_tokens = scenario.batch.global_ * scenario.model.seq_length
        return scenario.num_gpus * time_s / 3600 * 1e6 / num_tokens

    def words(self, value):
        """Write the hours."""
        return f"{value:.3g} GPU-hours"

    def column(self, layout, result):
        """Return the hours."""
        return {"GPU-\\nhours": f"{self.key(layout.evaluation)[0]:.3g}"}
'''
SWEEP = """\
name: small
base: gpt2_1_5b
axes: {parallelism.data: [1, 2]}
report: [iteration_time_s, num_gpus]
objective: gpu_hours_per_1e6_tokens
"""
SEARCH = ("search", "gpt2_1_5b", "--gpus", "1,2", "--set", "batch.global=8")


@pytest.fixture(scope="module")
def outsider(tmp_path_factory: pytest.TempPathFactory) -> Outsider:
    """An installed package with one more objective."""
    parts = {"objectives": {"gpu_hours": "gpu_hours:GpuHours"}}
    return Outsider.install(tmp_path_factory.mktemp("outsider"), {"gpu_hours.py": NEW_FILE}, parts)


def test_help_and_errors_list_a_new_objective(outsider: Outsider) -> None:
    help_text = " ".join(outsider.call("search", "--help").replace("│", " ").split())
    assert "gpu_hours (GPU-hours of a million tokens)" in help_text
    error = outsider.refused(*SEARCH, "--objective", "gpu_hour")
    assert "did you mean gpu_hours?" in error and "'p95', 'gpu_hours'" in error


@pytest.mark.ci
def test_a_search_ranks_by_a_new_objective(outsider: Outsider) -> None:
    named, cost = (
        json.loads(outsider.call(*SEARCH, "--objective", name, "--json"))
        for name in ("gpu_hours", "cost")
    )
    # The batch is the same, so both objectives are proportional to GPU-seconds.
    assert [row["configuration"] for row in named["ranked"]] == [
        row["configuration"] for row in cost["ranked"]
    ]
    assert named["objective"] == "gpu_hours" and "lower_bound_gpu_hours_per_1e6_tokens" in named
    text = outsider.call(*SEARCH, "--objective", "gpu_hours")
    assert "by gpu_hours, within" in text and "hours" in text


def test_a_sweep_compares_by_a_new_objective(outsider: Outsider, tmp_path: pathlib.Path) -> None:
    file, out = tmp_path / "small.yaml", tmp_path / "out"
    file.write_text(SWEEP, "utf-8")
    command = ("sweep", str(file), "--workers", "1", "--out", str(out))
    assert "GPU-hours, at" in outsider.call(*command)
    best = json.loads(outsider.call(*command, "--json"))["best"]
    assert best["objective"] == "gpu_hours_per_1e6_tokens" and best["value"] > 0


def test_documents_list_a_new_objective(outsider: Outsider) -> None:
    assert '"gpu_hours"' in outsider.call("docs", "reference/json")
