"""Bounds of memory and kernel time are never above the simulated values."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simtrain
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.search.bounds import Bounds
from simtrain.search.legality import legal_points
from simtrain.search.space import Point, Space
from tests.helpers.search_spaces import BASES, EVALUATOR, base, space


@functools.cache
def bounds_and_points(name: str, gpus: int) -> tuple[Space, Bounds, tuple[Point, ...]]:
    searched = space(name, gpus)
    return searched, bounds_of(searched.base), legal_points(searched).points


def bounds_of(scenario: Scenario) -> Bounds:
    return Bounds(scenario, EVALUATOR.machine_of(scenario))


def check(bounds: Bounds, scenario: Scenario) -> tuple[float, float, float]:
    """Check the bounds; return those of peak, kernels and iteration as shares of the simulated."""
    evaluation = EVALUATOR.evaluate(scenario)
    assert evaluation.run is not None
    time_s = evaluation.run.iteration_time_s
    assert 0 < bounds.peak_bytes(scenario) <= evaluation.peak_bytes
    kernels_s, iteration_s = bounds.kernels_s(scenario), bounds.iteration_s(scenario)
    assert 0 < kernels_s <= iteration_s <= time_s
    peak = bounds.peak_bytes(scenario) / evaluation.peak_bytes
    return peak, kernels_s / time_s, iteration_s / time_s


@settings(max_examples=60)
@given(st.sampled_from(sorted(BASES)), st.sampled_from([4, 8]), st.integers(0, 10_000))
def test_no_configuration_is_below_its_bounds(name: str, gpus: int, place: int) -> None:
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
def test_no_configuration_with_other_recompute_is_below_its_bounds(policy: RecomputePolicy) -> None:
    scenario = base(parallelism={"tensor": 2, "pipeline": 2}).model_copy(
        update={"recompute": policy}
    )
    check(bounds_of(scenario), scenario)


def test_the_kernel_bound_is_the_pipeline_of_kernels() -> None:
    """Worked by hand: 8 layers on 4 stages, in chunks of 1 or of 2 layers."""
    few, many = (
        base(
            model={"num_layers": 8},
            parallelism={"pipeline": 4, "interleave": 2},
            batch={"micro": 1, "global": number},
        )
        for number in (8, 16)
    )
    one = base(model={"num_layers": 8}, parallelism={"pipeline": 4, "interleave": 1})
    bounds = bounds_of(few)
    slope_s = (bounds.kernels_s(many) - bounds.kernels_s(few)) / 8
    layer_s, head_s = bounds._passes_s(*bounds._layer_of(few), few.recompute)
    assert slope_s == pytest.approx(2 * layer_s + head_s)
    # With chunks of 2 layers instead of 1, the way to the last stage and back has 3 more layers.
    four = few.model_copy(update={"batch": one.batch})
    assert bounds.kernels_s(one) - bounds.kernels_s(four) == pytest.approx(3 * layer_s)


def test_the_bounds_of_a_real_model_are_close() -> None:
    """Kernels take most of the time, and states much of the memory."""
    scenario = simtrain.load_scenario("table5_22b_present")
    peak, kernels, iteration = check(bounds_of(scenario), scenario)
    assert peak > 0.5 and kernels > 0.75 and iteration > 0.995
