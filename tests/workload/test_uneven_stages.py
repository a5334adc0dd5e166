"""Stages with their own number of layers: parameters, FLOPs, memory, time and errors."""

import math
from fractions import Fraction
from typing import Any

import pytest

from simtrain.iteration.memory.report import memory_report
from simtrain.iteration.plan import Plan
from simtrain.workload.ops import total_flops
from tests.helpers.toys import (
    a100,
    layer_parameters,
    ops_of,
    plan_of,
    run,
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


def test_the_first_stage_saves_an_added_layer_for_all_its_microbatches() -> None:
    """The layer has 18 bytes per parameter, and 2sbh bytes of input for each of four outstanding
    microbatches.
    """
    even, moved = (
        memory_report(
            small_plan({"first_stage_layers": first}, recompute="full", model=model), a100()
        )
        for first, model in ((2, {}), (3, {"num_layers": 9}))
    )
    before, after = even.stages[0], moved.stages[0]
    assert after.states.total_bytes - before.states.total_bytes == 18 * layer_parameters(small())
    assert after.activations_bytes - before.activations_bytes == 4 * 2 * 2048 * 4096
    for stage in (1, 2, 3):
        assert moved.stages[stage].components_bytes == even.stages[stage].components_bytes


@pytest.mark.parametrize("own", [{"first_stage_layers": 2}, {"last_stage_layers": 2}])
@pytest.mark.parametrize("interleave", [1, 2])
def test_an_explicit_even_share_equals_the_default(own: dict[str, int], interleave: int) -> None:
    even, written = (
        run(small(grid | {"interleave": interleave, "data": 2}, overlap={"data_parallel": True}))
        for grid in ({}, own)
    )
    assert written.to_dict() | {"scenario": None} == even.to_dict() | {"scenario": None}


def test_fewer_layers_on_the_stage_of_the_head_balance_the_pipeline() -> None:
    """With v = 51200 and h = 1024, the head has the FLOPs of v / 12h = 4.2 layers."""
    model = {"num_layers": 32, "hidden_size": 1024, "num_attention_heads": 16}
    even, balanced, beyond = (
        run(small({"tensor": 1, **own}, model=model))
        for own in ({}, {"last_stage_layers": 5}, {"last_stage_layers": 2})
    )
    assert balanced.iteration_time_s < even.iteration_time_s
    assert balanced.iteration_time_s < beyond.iteration_time_s
    assert balanced.breakdown.bubble_s < even.breakdown.bubble_s
    assert math.isclose(balanced.breakdown.compute_s, even.breakdown.compute_s, rel_tol=1e-9)


def test_no_more_than_five_kinds_of_chunk_are_simulated() -> None:
    """A middle stage has one kind. The first stage has two, with and without embedding, and the
    last has two, with and without head.
    """
    grid = {"pipeline": 8, "interleave": 3, "first_stage_layers": 9, "last_stage_layers": 3}
    model = {"num_layers": 6 * 6 + 12}
    plan = small_plan(grid, model=model)
    assert len(plan.chunks) == plan.schedule.num_virtual_stages == 24
    assert len(set(plan.chunks)) == 5
    assert len({one for one, _ in plan.different_passes()}) == 2 * 5
