"""Points of a sweep: their scenarios, evaluation and comparison."""

import functools
import gc
import json
import math
import pathlib
import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import MonkeyPatch

from simtrain.base.resources import find_scenario
from simtrain.base.strict_yaml import apply_overrides, load_document, validate
from simtrain.errors import InputError
from simtrain.scenario import Scenario
from simtrain.scenario.words import spell_out_words
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.sweep.part import run_part
from simtrain.studies.sweep.plan import SweepPlan
from simtrain.studies.sweep.points import Points
from tests.helpers.command_line import call
from tests.helpers.sweep_files import BASE, SMALL, plan_of, rows_of, run, with_axes

# Values of fields, or of whole sections.
VALUES: dict[str, list[Any]] = {
    "base": ["table5_22b_present", "table5_175b_full", "gpt2_1_5b"],
    "model.hidden_size": [6144, 12288],
    "parallelism.sequence_parallel": [True, False],
    "parallelism.interleave": [1, 3],
    "parallelism.last_stage_layers": [None, 5],
    "recompute": ["none", {"strategy": "full", "num_layers": 2}],
    "memory.zero_stage": [0, 1],
    "overlap": [{"pipeline": True}, {"data_parallel": True, "pipeline": False}],
    "hardware.inter_node.step_latency": ["5 us", "6 us"],
    "hardware.intra_node": [{"bandwidth": "300 GB/s"}, {"bandwidth": "150 GB/s"}],
    "cluster": ["a100_sxm4_80gb", "h100_sxm"],
}
LABELS = {
    "plain": {"schedule": "gpipe"},
    "wide": {"parallelism.tensor": 4, "model.seq_length": 1024},
}


@functools.cache
def wide_plan() -> SweepPlan:
    return _plan_with(VALUES)


@functools.cache
def labelled_points() -> Points:
    """Return points of axes that set the base, and of an axis whose values set different fields."""
    return Points(_plan_with(VALUES | {"way": LABELS}))


def _plan_with(axes: dict[str, Any]) -> SweepPlan:
    with tempfile.TemporaryDirectory() as folder:
        lines = "".join(f"  {name}: {json.dumps(values)}\n" for name, values in axes.items())
        return plan_of(pathlib.Path(folder), f"axes:\n{lines}")


@given(st.integers(0, math.prod(map(len, VALUES.values())) - 1))
def test_a_point_equals_the_scenario_of_a_file_with_its_values(index: int) -> None:
    """Defaults derived from other fields are equal too: the MLP's width, the schedule,
    scatter_gather.
    """
    scenario = wide_plan().scenario(index)
    cells = wide_plan().cells(index)
    base = load_document(find_scenario(str(cells.pop("base"))))
    values = [f"{name}={cell if cell is not None else ''}" for name, cell in cells.items()]
    document = apply_overrides(spell_out_words(base), values)
    fresh = validate(Scenario, document.data, document.positions)
    assert scenario.model_dump(exclude={"name"}) == fresh.model_dump(exclude={"name"})
    assert scenario.model_fields_set == fresh.model_fields_set | {"name"}


@given(st.integers(0, math.prod(map(len, [*VALUES.values(), LABELS])) - 1))
def test_points_that_share_sections_equal_the_scenarios_of_the_plan(index: int) -> None:
    """The points computed before have no effect."""
    points = labelled_points()
    scenario, alone = points.scenario(index), points.plan.scenario(index)
    assert scenario == alone
    assert scenario.model_fields_set == alone.model_fields_set
    assert scenario.model_dump() == alone.model_dump()


def test_a_section_that_a_base_leaves_empty_can_be_set(tmp_path: pathlib.Path) -> None:
    text = BASE.replace("base:\n", "base:\n  overlap:\n") + "axes: {overlap.pipeline: [true]}\n"
    assert plan_of(tmp_path, text).scenario(0).overlap.pipeline


def test_a_part_restores_the_state_of_garbage_collection(tmp_path: pathlib.Path) -> None:
    """This holds also after an error: the constraint divides by zero at the last point."""
    axis = with_axes("model.seq_length: {range: [64, 80, 1]}")
    plan = plan_of(
        tmp_path, f"{axis}constraints: [seq_length // (80 - seq_length) > 0]\n", part_size=1
    )
    try:
        for switch in (gc.enable, gc.disable):
            switch()
            was_enabled = gc.isenabled()
            run_part(plan, 0)
            assert gc.isenabled() == was_enabled
            with pytest.raises(InputError):
                run_part(plan, plan.num_parts - 1)
            assert gc.isenabled() == was_enabled
    finally:
        gc.enable()


def test_similar_points_are_evaluated_together(
    tmp_path: pathlib.Path, monkeypatch: MonkeyPatch
) -> None:
    """Rows stay in the order of the grid, and equal those of points evaluated alone."""

    def noted(evaluator: Evaluator, scenario: Any) -> Any:
        evaluated.append(scenario.parallelism.pipeline)
        return evaluate(evaluator, scenario)

    evaluated: list[int] = []
    evaluate = Evaluator.evaluate
    monkeypatch.setattr(Evaluator, "evaluate", noted)
    plan = plan_of(tmp_path, with_axes("batch.micro: [1, 2]", "parallelism.pipeline: [4, 1, 2]"))
    run(plan, tmp_path / "out")
    assert evaluated == [1, 1, 2, 2, 4, 4]
    for index, row in enumerate(rows_of(tmp_path / "out")):
        alone = evaluate(Evaluator(), plan.scenario(index)).run
        assert alone is not None
        assert (row["index"], row["iteration_time_s"]) == (index, alone.iteration_time_s)


@pytest.mark.parametrize(
    ("objective", "choose", "excerpt"),
    [
        ("tokens_per_s", max, "best tokens_per_s: "),
        ("mfu", max, "best mfu: "),
        ("iteration_time_s", min, "best iteration_time_s: "),
        ("peak_bytes", min, "GiB, at "),
        ("breakdown_bubble_s", min, "best breakdown_bubble_s: 0 s, at "),
        ("num_gpus", min, "best num_gpus: 1, at "),
    ],
)
def test_the_best_point_follows_the_objective(
    tmp_path: pathlib.Path, objective: str, choose: Any, excerpt: str
) -> None:
    """Of equally good points, the first of the grid is the best. The objective need not be a
    reported column.
    """
    run(plan_of(tmp_path), tmp_path / "whole")
    plan_of(tmp_path, f"{SMALL}report: [iteration_time_s]\nobjective: {objective}\n")
    command = ("sweep", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out"))
    assert excerpt in call(*command, "--workers", "1", "--part-size", "5").stdout
    best = json.loads(call(*command, "--json").stdout)["best"]
    values = {
        row["index"]: row[objective] for row in rows_of(tmp_path / "whole") if row["status"] == "ok"
    }
    expected = choose(values, key=values.__getitem__)
    assert (best["objective"], best["index"]) == (objective, expected)
    assert best["value"] == values[expected]
