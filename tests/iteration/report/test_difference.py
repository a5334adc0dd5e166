"""Causes of a difference add up to it, and are zero if nothing of their kind differs."""

import math
from typing import Any

import pytest
from hypothesis import given, settings

import simtrain
from simtrain.errors import InputError
from simtrain.iteration.report.difference import Difference
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from tests.helpers.toys import run, small, zero
from tests.iteration.report.test_breakdown import scenarios


def difference(base: Scenario, other: Scenario, **of_other: Any) -> Difference:
    """Compare `other`, with changed entries of its profile, with `base`."""
    (found,) = simtrain.compare(run(base), run(other, **of_other))
    return found


@given(base=scenarios(), other=scenarios())
@settings(max_examples=10, deadline=None)
def test_causes_add_up_to_the_difference(base: Scenario, other: Scenario) -> None:
    there, back = difference(base, other), difference(other, base)
    tolerance = {"rel": 1e-12, "abs": 1e-12 * there.base.iteration_time_s}
    assert math.fsum(there.causes_s.values()) == pytest.approx(there.difference_s, **tolerance)
    assert back.causes_s == {name: -seconds for name, seconds in there.causes_s.items()}
    if base == other:
        assert not any(there.causes_s.values()) and not there.changed_fields


@given(scenario=scenarios())
@settings(max_examples=10, deadline=None)
def test_the_critical_path_takes_the_iteration_time(scenario: Scenario) -> None:
    result = simulate(scenario)
    path_s = math.fsum(result.critical_path_s.values())
    assert path_s == pytest.approx(result.iteration_time_s, rel=1e-12)


def causes(found: Difference) -> set[str]:
    """Return the causes that are not rounding errors."""
    least_s = 1e-12 * found.base.iteration_time_s
    return {name for name, seconds in found.causes_s.items() if abs(seconds) > least_s}


ONE_STAGE = small({"tensor": 8, "pipeline": 1})
IN_TURN = small({"tensor": 8, "pipeline": 1}, overlap={"tensor_parallel": False})


@pytest.mark.parametrize(
    ("base", "other", "entries", "expected"),
    [
        # Recompute runs kernels and collectives of the layers again.
        (ONE_STAGE, small(ONE_STAGE.parallelism.model_dump(), recompute="full"), {},
         {"recompute", "tensor_communication"}),
        # Collectives that overlap with kernels would slow them. Optimizers reduce the norm.
        (IN_TURN, IN_TURN, {"intra_node__bandwidth": 150e9},
         {"tensor_communication", "launch", "optimizer"}),
        (ONE_STAGE, ONE_STAGE, {"inter_node__adapter_bandwidth": 1e9}, set()),
        (zero(1), zero(2), {}, {"data_communication", "compute", "optimizer"}),
        (zero(1), zero(1), {"intra_node__bandwidth": 150e9},
         {"data_communication", "optimizer"}),
    ],
)  # fmt: skip
def test_a_cause_is_zero_if_nothing_of_its_kind_differs(
    base: Scenario, other: Scenario, entries: dict[str, float], expected: set[str]
) -> None:
    assert causes(difference(base, other, **entries)) <= expected


def test_more_interleaving_reduces_the_bubble() -> None:
    grid = {"tensor": 1, "pipeline": 4}
    found = difference(small(grid), small(grid | {"interleave": 2}, schedule="interleaved"))
    assert found.causes_s["bubble"] < 0.9 * found.difference_s < 0
    assert found.causes.split(" % ")[1].startswith("less bubble")
    assert found.changed_fields["parallelism.interleave"] == (1, 2)


def test_texts_give_percentages_of_the_base() -> None:
    found = difference(ONE_STAGE, small(ONE_STAGE.parallelism.model_dump(), recompute="full"))
    percent = 100 * found.causes_s["recompute"] / found.base.iteration_time_s
    assert found.causes.startswith(f"{percent:.0f} % more recompute")
    assert found.time == f"{100 * found.difference_s / found.base.iteration_time_s:.0f} % more time"
    assert found.has_same_model and found.tokens_ratio == 1


def test_other_models_and_numbers_of_tokens_are_reported() -> None:
    other = small(model={"num_layers": 16})
    assert not difference(small(), other).has_same_model
    assert difference(small(), small({"data": 2})).tokens_ratio == 2


@pytest.mark.parametrize("results", [[], [run(ONE_STAGE)]])
def test_fewer_than_two_results_are_refused(results: list[Result]) -> None:
    with pytest.raises(InputError, match="E843"):
        simtrain.compare(*results)


@pytest.mark.parametrize("results", [(1, 2), ({},), ("llama3_8b", "llama3_70b")])
def test_a_comparison_of_anything_but_results_is_an_error(results: Any) -> None:
    with pytest.raises(InputError, match=r"E114 .* not a Result\n  fix: simulate first: "):
        simtrain.compare(*results)
