"""Fusion of recorded kernels: bytes of chains worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from simtrain.guests.recording.program import RecordedProgram, expanded
from simtrain.guests.recording.torch_step import TorchStep
from simtrain.scenario.software import PAPER_KERNELS
from simtrain.workload.ops import Op
from simtrain.workload.work import Elementwise, KernelFamily
from tests.helpers.recorded_programs import SIZE, W, X, linear_layers, run


def kernels(*ops: dict[str, Any], fuses: bool = True) -> list[Op]:
    stack = replace(PAPER_KERNELS, partitions_recompute=fuses)
    step = TorchStep(linear_layers(forward=[run(*ops)]), 8, stack)
    return [*step.forward.ops]


def pointwise(name: str, inputs: int = 1, frees: int = 0) -> dict[str, Any]:
    op = {"op": f"aten.{name}", "reads": [X] * inputs, "writes": [X]}
    return op | {"makes_bytes": SIZE, "frees_bytes": frees}


GELU, ADD = pointwise("gelu"), pointwise("add", inputs=2)


def test_without_a_compiler_nothing_is_fused() -> None:
    assert len(kernels(GELU, ADD, fuses=False)) == 2


def test_a_result_that_stays_is_written_and_not_read_again() -> None:
    (kernel,) = kernels(GELU, ADD)
    assert kernel.work == Elementwise(2 * SIZE, 2 * SIZE)


def test_a_result_that_is_freed_is_not_even_written() -> None:
    (kernel,) = kernels(GELU, pointwise("add", inputs=2, frees=SIZE))
    assert kernel.work == Elementwise(2 * SIZE, SIZE)


def test_a_chain_moves_its_ends_alone() -> None:
    inner = [pointwise("mul", frees=SIZE)] * 5
    (kernel,) = kernels(GELU, *inner)
    assert kernel.work == Elementwise(SIZE, SIZE)


def test_a_norm_ends_a_chain() -> None:
    norm = {"op": "aten.native_layer_norm", "reads": [X], "writes": [X]}
    first, second = kernels(GELU, norm, GELU)
    assert isinstance(first.work, Elementwise) and first.work.family is KernelFamily.LAYER_NORM
    assert second.work == Elementwise(SIZE, SIZE)


@pytest.mark.parametrize(
    "between",
    [
        {"op": "aten.mm", "reads": [X, W], "writes": [X]},
        pointwise("add") | {"again": True},
        pointwise("add") | {"reads": ["f32[3]"]},
        pointwise("add") | {"waits": [1]},
    ],
)
def test_what_is_no_chain_stays_apart(between: dict[str, Any]) -> None:
    assert len(kernels(GELU, between)) == 2


def test_a_compiler_moves_at_most_as_many_bytes() -> None:
    program: RecordedProgram = linear_layers()
    stacks = [replace(PAPER_KERNELS, partitions_recompute=fuses) for fuses in (False, True)]
    steps = [TorchStep(program, 8, stack) for stack in stacks]
    for name in ("forward", "backward"):
        moved = [
            sum(
                op.work.moved_bytes
                for op in getattr(step, name).ops
                if hasattr(op.work, "moved_bytes")
            )
            for step in steps
        ]
        assert moved[1] <= moved[0]
    assert len([*expanded(program.forward)]) == len([*steps[0].forward.ops])
