"""Models that FullyShardedDataParallel shards, in flat parameters."""

from pathlib import Path
from typing import Any

import pytest

from simtrain.recording.child import step as recorder
from simtrain.recording.child.recording import program_of
from simtrain.recording.program import Program, expanded
from tests.helpers import torch_programs as programs
from tests.helpers.real_processes import real_collectives, recorded_collectives

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*FSDP.*"),
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor"),
]


def recorded(function: Any = programs.flat, gpus: int = 8, **arguments: Any) -> Program:
    step = recorder.record(function, arguments, gpus)
    text = program_of(step, {"command": "simtrain import --record x.py:flat", "gpus": gpus})
    return Program.model_validate_json(text)


@pytest.mark.ci
@pytest.mark.parametrize(
    "arguments", [{}, {"keeps_names": False}, {"strategy": "SHARD_GRAD_OP"}], ids=str
)
def test_collectives_are_those_of_real_processes(arguments: Any, tmp_path: Path) -> None:
    real = real_collectives(programs.flat, arguments, 2, tmp_path)
    assert recorded_collectives(programs.flat, arguments, 2) == real


@pytest.mark.parametrize("keeps_names", [True, False])
def test_parameters_are_those_of_the_whole_model(keeps_names: bool) -> None:
    program, whole = recorded(keeps_names=keeps_names), recorded(programs.llama, 1)
    assert program.num_parameters == program.num_trained == whole.num_parameters
    # In fp32, an eighth of them on each rank.
    assert program.states.parameters_bytes == 4 * whole.num_parameters // 8


def test_all_memory_of_a_step_is_free_at_its_end() -> None:
    """Old gradients are dropped before the first op of a step."""
    program = recorded()
    ops = [op for runs in program.passes.values() for op in expanded(runs)]
    assert sum(op.makes_bytes - op.frees_bytes for op in ops) == 0


def test_modules_have_the_names_of_the_model() -> None:
    products = {op.module for op in expanded(recorded().forward) if op.op == "aten.mm"}
    names = ("q", "k", "v", "out", "gate", "up", "down")
    assert products == {*(f"layers.*.{name}" for name in names), "head"}
