"""Bounds of memory and kernel time are never above the simulated values."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simtrain
from simtrain.iteration.plan import Plan
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.studies.search.bounds import Bounds
from simtrain.studies.search.legality import legal_points
from simtrain.studies.search.pass_bound import PassBounds
from simtrain.studies.search.space import Point, Space
from simtrain.workload.chunk import chunk_of
from simtrain.workload.passes import Pass
from tests.helpers.search_spaces import BASES, EVALUATOR, base, space


@functools.cache
def bounds_and_points(name: str, gpus: int) -> tuple[Space, Bounds, tuple[Point, ...]]:
    searched = space(name, gpus)
    return searched, bounds_of(searched.base), legal_points(searched).points


def bounds_of(scenario: Scenario) -> Bounds:
    return Bounds(scenario, EVALUATOR.machine_of(scenario))


def check(bounds: Bounds, scenario: Scenario) -> tuple[float, float, float]:
    """Assert the bounds of a scenario; return those of peak, ops and iteration over simulated
    values.
    """
    evaluation = EVALUATOR.evaluate(scenario)
    assert evaluation.run is not None
    time_s = evaluation.run.iteration_time_s
    assert 0 < bounds.peak_bytes(scenario) <= evaluation.peak_bytes
    ops_s, iteration_s = bounds.ops_s(scenario), bounds.iteration_s(scenario)
    assert 0 < ops_s <= iteration_s <= time_s
    peak = bounds.peak_bytes(scenario) / evaluation.peak_bytes
    return peak, ops_s / time_s, iteration_s / time_s


@settings(max_examples=60)
@given(st.sampled_from(sorted(BASES)), st.sampled_from([4, 8]), st.integers(0, 10_000))
def test_no_layout_is_below_its_bounds(name: str, gpus: int, place: int) -> None:
    searched, bounds, points = bounds_and_points(name, gpus)
    check(bounds, searched.scenario(points[place % len(points)]))


@pytest.mark.parametrize(
    "policy",
    [
        RecomputePolicy(strategy="full", num_layers=2),
        RecomputePolicy(strategy="full", method="block", num_layers=1),
        RecomputePolicy(strategy="full", keep_microbatches=2),
        RecomputePolicy(strategy="selective", keep_microbatches=1),
        RecomputePolicy(strategy="full", distribute=True),
        RecomputePolicy(strategy="auto"),
    ],
    ids=str,
)
def test_no_layout_with_other_recompute_is_below_its_bounds(policy: RecomputePolicy) -> None:
    scenario = base(parallelism={"tensor": 2, "pipeline": 2}).model_copy(
        update={"recompute": policy}
    )
    check(bounds_of(scenario), scenario)


def test_the_bound_of_ops_is_the_pipeline_of_passes() -> None:
    """8 layers are on 4 stages with two chunks each. Forward and backward, one microbatch passes
    through the first chunk and two middle chunks, and 8 microbatches through both chunks of the
    last stage, of which one has the head. The optimizer step follows.
    """
    scenario = base(
        model={"num_layers": 8},
        parallelism={"pipeline": 4, "interleave": 2},
        batch={"micro": 1, "global": 8},
    )
    machine, plan = EVALUATOR.machine_of(scenario), Plan.of(scenario, 8)
    passes = PassBounds(machine)
    chunks_s = [
        passes.both_s(chunk, plan.scenario.recompute, plan.options) for chunk in plan.chunks
    ]
    first_s, middle_s, *_, last_s = chunks_s
    assert chunks_s == [first_s, *[middle_s] * 6, last_s]
    step = machine.step_seconds(plan.step_options, plan.stage_parameters[0])
    expected_s = first_s + 2 * middle_s + 8 * (middle_s + last_s) + sum(step.values())
    assert bounds_of(scenario).ops_s(scenario) == pytest.approx(expected_s)


@pytest.mark.parametrize("strategy", ["none", "selective", "full"])
@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_passes_without_overlap_or_launches_take_their_bound(
    strategy: str, zero_stage: int
) -> None:
    """Their ops run one after another. ZeRO's collectives outside the layers are not counted."""
    scenario = base(
        parallelism={"tensor": 2, "data": 2, "sequence_parallel": True},
        recompute={"strategy": strategy},
        overlap={"tensor_parallel": False},
        memory={"zero_stage": zero_stage},
        hardware={"host": {"issue": "0 s"}},
    )
    machine, plan = EVALUATOR.machine_of(scenario), Plan.of(scenario, 8)
    layers = chunk_of(block for block in plan.model.blocks if block.is_unit)
    for kind in ("F", "B"):
        one = Pass(layers, kind, scenario.recompute, plan.options)
        bound_s = PassBounds(machine).duration_s(layers, kind, scenario.recompute, plan.options)
        assert bound_s == pytest.approx(machine.time(one).duration_s, rel=1e-12)


def test_bounds_of_a_real_model_are_close() -> None:
    """Nearly all of its time is in passes, and much of its memory is states."""
    scenario = simtrain.load_scenario("table5_22b_present")
    peak, ops, iteration = check(bounds_of(scenario), scenario)
    assert peak > 0.5 and ops > 0.95 and iteration > 0.995
