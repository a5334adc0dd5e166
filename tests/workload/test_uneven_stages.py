"""Stages with their own number of layers: parameters, FLOPs, memory, time and errors."""

from fractions import Fraction
from typing import Any

import pytest

from simtrain.iteration.plan import Plan
from simtrain.workload.ops import total_flops
from tests.helpers.toys import (
    layer_parameters,
    ops_of,
    plan_of,
    small,
)


def small_plan(grid: dict[str, Any], **sections: Any) -> Plan:
    return plan_of(small(grid, **sections))


def stage_flops(plan: Plan) -> list[int]:
    """Return the FLOPs per iteration of one rank of each stage."""
    return [
        sum(total_flops(ops_of(plan.pass_of(action))) for action in actions)
        for actions in plan.schedule.ranks
    ]


def parameters(plan: Plan) -> list[int]:
    """Return the parameters of one rank of each stage."""
    return [stage.total for stage in plan.stage_parameters]


def differences(one: list[int], other: list[int]) -> list[int]:
    return [b - a for a, b in zip(one, other, strict=True)]


def test_layers_of_stages_and_chunks_by_hand() -> None:
    """Four stages of three chunks have 24 layers. Chunk c of stage r is the model's
    chunk 4c + r.
    """
    grid = {"interleave": 3, "first_stage_layers": 3, "last_stage_layers": 9}
    scenario = small(grid, model={"num_layers": 24})
    assert [scenario.layers_of_stage(stage) for stage in range(4)] == [3, 6, 6, 9]
    assert scenario.chunks_layers == (1, 2, 2, 3) * 3
    assert (scenario.stage_sizes, scenario.chunk_sizes) == ((3, 6, 9), (1, 2, 3))


@pytest.mark.parametrize("interleave", [1, 2])
def test_a_moved_layer_moves_its_parameters_and_flops(interleave: int) -> None:
    """A layer per chunk moves from the first stage to the last. It has 12h² + 13h parameters, of
    which 6h are on every rank, and 72bsh²(1 + s/6h) FLOPs per microbatch (Appendix A).
    """
    grid = {"tensor": 4, "interleave": interleave}
    model = {"num_layers": 16}
    even = small_plan(grid, model=model)
    ends = {"first_stage_layers": 4 - interleave, "last_stage_layers": 4 + interleave}
    moved = small_plan(grid | ends, model=model)
    layer = layer_parameters(even.scenario)
    assert differences(parameters(even), parameters(moved)) == [
        -interleave * layer,
        0,
        0,
        interleave * layer,
    ]
    s, h, t, microbatches = 2048, 4096, 4, 8
    assert t * layer == 12 * h**2 + 7 * h + 6 * h * t
    flops = microbatches * interleave * Fraction(72 * s * h**2, t) * (1 + Fraction(s, 6 * h))
    assert differences(stage_flops(even), stage_flops(moved)) == [-flops, 0, 0, flops]
