"""Causes of a difference add up to it, and are zero if nothing of their kind differs."""

import math
from typing import Any

import pytest
from hypothesis import given, settings

from simtrain.iteration.report.difference import Difference, compare
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from tests.helpers.toys import run, small, zero
from tests.iteration.report.test_breakdown import scenarios


def difference(base: Scenario, other: Scenario, **of_other: Any) -> Difference:
    """Compare `other`, with changed entries of its profile, with `base`."""
    (found,) = compare(run(base), run(other, **of_other))
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
