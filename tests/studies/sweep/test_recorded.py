"""Scenarios of a sweep's points, rebuilt from the folder of its results."""

import json
import pathlib

import pytest

from simtrain.studies.simulation import simulate
from simtrain.studies.sweep.load import load_plan
from simtrain.studies.sweep.plan import SweepPlan
from simtrain.studies.sweep.recorded import RecordedSweep
from tests.helpers.made_results import write_plan

pytestmark = pytest.mark.slow

SWEEP = """
name: all kinds of axes
base: {model: {num_layers: 2, hidden_size: 512, num_attention_heads: 8, seq_length: 512},
       batch: {micro: 1, global: 8}}
axes:
  batch.micro: {range: [2, 4, 2]}
  cluster: [a100_sxm4_80gb, h100_sxm]
  recompute: [none, full, auto]
  split: {one: {parallelism.tensor: 1}, two: {parallelism.tensor: 2, parallelism.data: 1}}
"""


@pytest.fixture
def plan(tmp_path: pathlib.Path) -> SweepPlan:
    (tmp_path / "sweep.yaml").write_text(SWEEP, "utf-8")
    found = load_plan(tmp_path / "sweep.yaml")
    write_plan(tmp_path, found)
    return found


def test_each_point_has_the_scenario_of_the_plan(tmp_path: pathlib.Path, plan: SweepPlan) -> None:
    recorded = RecordedSweep.of(tmp_path)
    assert recorded and plan.num_points == 24
    assert recorded.plan.digest == plan.digest
    for index in range(plan.num_points):
        assert recorded.plan.scenario(index) == plan.scenario(index)
    for index in (0, 5, 9):
        expected = simulate(plan.scenario(index)).extrapolated_compute
        assert recorded.extrapolated_compute(index) == expected


def test_points_of_a_changed_profile_have_no_extrapolation(
    tmp_path: pathlib.Path, plan: SweepPlan
) -> None:
    plan_data = json.loads((tmp_path / "sweep.json").read_text("utf-8"))
    plan_data["profiles"]["h100_sxm"] = "0" * 64
    (tmp_path / "sweep.json").write_text(json.dumps(plan_data), "utf-8")
    recorded = RecordedSweep.of(tmp_path)
    assert recorded
    for index in range(0, plan.num_points, 6):
        is_changed = plan.scenario(index).cluster == "h100_sxm"
        assert (recorded.extrapolated_compute(index) is None) == is_changed


def test_a_folder_without_a_plan_has_no_scenarios(tmp_path: pathlib.Path) -> None:
    assert RecordedSweep.of(tmp_path) is None
    (tmp_path / "sweep.json").write_text("{", "utf-8")
    assert RecordedSweep.of(tmp_path) is None
