"""Recorded programs in the engine: closed forms worked out by hand, and laws of drawn ones."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from simtrain.durations.model import DurationModel
from simtrain.guests.recording.program import ProgramOp, RecordedProgram, expanded
from simtrain.guests.recording.works import RecordedKernel, kernel_work
from simtrain.hardware.load import load_profile
from simtrain.iteration.memory.report import allocator_bytes
from simtrain.iteration.report.remarks import RunReport
from simtrain.iteration.report.result import Result
from simtrain.studies.simulation import simulate, simulate_memory
from simtrain.workload.work import Elementwise, Gemm, GroupedGemm, KernelFamily
from tests.helpers.recorded_programs import (
    HIDDEN,
    LAYERS,
    SIZE,
    TOKENS,
    WEIGHT,
    X,
    linear_layers,
    programs,
    run,
    scenario_of,
)

H100 = load_profile("h100_sxm")


def result_of(program: RecordedProgram, folder: Path, **changes: Any) -> Result:
    changes.setdefault("software", {"stack": "torchtitan", "host_issue": "0 s", "host_call": "0 s"})
    return simulate(scenario_of(program, folder, **changes))


def seconds(work: Any) -> float:
    return DurationModel(H100).seconds(work)


def test_the_time_is_the_sum_of_the_kernels(tmp_path: Path) -> None:
    forward = seconds(Gemm(TOKENS, HIDDEN, HIDDEN, layout="TN"))
    weight = seconds(Gemm(HIDDEN, HIDDEN, TOKENS, layout="NT"))
    inputs = seconds(Gemm(TOKENS, HIDDEN, HIDDEN, layout="NN"))
    ones = seconds(Elementwise(0, SIZE, KernelFamily.STREAM))
    total = seconds(Elementwise(SIZE, 2, is_backward=True))
    adam = seconds(Elementwise(4 * LAYERS * WEIGHT, 3 * LAYERS * WEIGHT, KernelFamily.STREAM))
    result = result_of(linear_layers(), tmp_path)
    expected = math.fsum([LAYERS * (forward + weight + inputs), ones, total, adam])
    assert result.iteration_time_s == pytest.approx(expected, rel=1e-12)
    assert result.breakdown.optimizer_s == pytest.approx(adam)


def test_flops_are_those_of_the_products_of_all_ranks(tmp_path: Path) -> None:
    program = linear_layers(gpus=8)
    result = result_of(program, tmp_path)
    assert result.hardware_flops == 8 * LAYERS * 3 * 2 * TOKENS * HIDDEN**2
    assert result.model_flops == result.hardware_flops
    assert result.tokens_per_s == pytest.approx(8 * TOKENS / result.iteration_time_s)
    assert result.num_parameters == LAYERS * HIDDEN**2
    assert RunReport(result).to_dict()["hardware_flops"] == result.hardware_flops


def test_recomputed_products_are_no_work_of_the_model(tmp_path: Path) -> None:
    product = {"op": "aten.mm", "reads": [X, f"bf16[{HIDDEN},{HIDDEN}]"], "writes": [X]}
    backward = [run(product | {"again": True}, product)]
    result = result_of(linear_layers(backward=backward), tmp_path)
    assert result.hardware_flops - result.model_flops == 2 * TOKENS * HIDDEN**2
    assert result.breakdown.recompute_s == seconds(Gemm(TOKENS, HIDDEN, HIDDEN, layout="NN"))


def test_the_peak_is_at_the_first_input_gradient(tmp_path: Path) -> None:
    """States, four saved inputs, the gradient of the output, and what one product makes."""
    memory = simulate_memory(scenario_of(linear_layers(), tmp_path))
    (stage,) = memory.stages
    assert stage.states.parameters_bytes == LAYERS * WEIGHT
    assert stage.states.optimizer_bytes == 2 * LAYERS * WEIGHT
    assert stage.states.gradients_bytes == WEIGHT
    assert stage.activations_bytes == LAYERS * SIZE + 2 * SIZE
    assert (stage.peak_name, stage.peak_op) == ("0B0", "layers.*: aten.mm")
    tensors = stage.peak_bytes - stage.allocator_bytes
    assert stage.allocator_bytes == allocator_bytes(H100, tensors)


def spelled_out(program: RecordedProgram) -> RecordedProgram:
    """Return a recording with every run written out."""
    runs = {
        name: [run(*(op.model_dump() for op in expanded(of_pass)))] if of_pass else []
        for name, of_pass in program.passes.items()
    }
    return RecordedProgram.model_validate(program.model_dump() | runs)


@given(program=programs)
def test_repeats_are_a_way_to_write(
    program: RecordedProgram, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    results = [result_of(each, folder) for each in (program, spelled_out(program))]
    assert len({result.iteration_time_s for result in results}) == 1
    assert len({result.hardware_flops for result in results}) == 1
    assert len({result.memory.fullest.peak_bytes for result in results}) == 1


@given(program=programs)
def test_the_peak_is_the_most_that_is_held(
    program: RecordedProgram, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A loop over all ops finds the same peak."""
    memory = simulate_memory(scenario_of(program, tmp_path_factory.mktemp("drawn")))
    held, most = 0, []
    for of_pass in program.passes.values():
        for op in expanded(of_pass):
            held += op.makes_bytes
            most.append(held)
            held -= op.frees_bytes
    (stage,) = memory.stages
    states = program.states.parameters_bytes + program.states.optimizer_bytes
    tensors = stage.peak_bytes - stage.allocator_bytes
    tensors -= stage.buffers_bytes.get("workspaces of products", 0)
    assert tensors == states + program.states.other_bytes + max(most)


PRODUCTS = {
    "aten.mm": ("bf16[2,3] bf16[3,5]", "bf16[2,5]", 60),
    "aten.addmm": ("bf16[5] bf16[2,3] bf16[3,5]", "bf16[2,5]", 60),
    "aten.bmm": ("bf16[7,2,3] bf16[7,3,5]", "bf16[7,2,5]", 420),
    "aten.baddbmm": ("bf16[7,2,5] bf16[7,2,3] bf16[7,3,5]", "bf16[7,2,5]", 420),
    "aten._grouped_mm": ("bf16[8,3] bf16[2,3,5] i32[2]", "bf16[8,5]", 240),
    "aten.convolution": ("bf16[2,4,6,6] bf16[8,4,3,3]", "bf16[2,8,4,4]", 18432),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_has_the_flops_of_its_shapes(name: str) -> None:
    """Two for each element of the result and each element that is summed over."""
    reads, writes, flops = PRODUCTS[name]
    op = ProgramOp.model_validate({"op": name, "reads": reads.split(), "writes": [writes]})
    work = kernel_work(RecordedKernel(op, False))
    assert isinstance(work, Gemm | GroupedGemm) and work.flops == flops
