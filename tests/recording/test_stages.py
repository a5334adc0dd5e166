"""Stages of pipelines in torch: what is recorded of each, and how they make up the whole model."""

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from simtrain.base.pipeline_program import PipelineProgram, write_recording
from simtrain.base.program import ProgramOp, ProgramRun, expanded
from simtrain.recording.child import step as recorder
from simtrain.recording.child.pipeline import pipeline_program
from simtrain.recording.child.problems import WrongStage
from simtrain.recording.child.recording import runs_of
from simtrain.recording.child.stages import record_stages
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from tests.helpers import torch_programs as programs
from tests.helpers.command_line import call, refused

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),
]
PROGRAMS = str(Path(programs.__file__))


@functools.cache
def recorded(
    name: str = "stage", pp: int = 4, chunks: int = 1, **arguments: Any
) -> PipelineProgram:
    gpus = 8 * pp if arguments.get("sharding", "none") != "none" else pp
    request = {"command": "simtrain import torch", "gpus": gpus, "pp": pp}
    sizes = gpus, pp, chunks, 2 * pp
    return pipeline_program(
        record_stages(lambda: getattr(programs, name), arguments, *sizes), request
    )


def ops(runs: list[ProgramRun]) -> list[ProgramOp]:
    return [*expanded(runs)]


def growth(runs: list[ProgramRun]) -> int:
    """Bytes that are left when a pass ends."""
    return sum(op.makes_bytes - op.frees_bytes for op in expanded(runs))


def collectives(runs: list[ProgramRun]) -> list[str]:
    return [op.op for op in expanded(runs) if op.group is not None]


def test_a_pipeline_of_one_stage_is_the_program_itself() -> None:
    """Also its memory, of the second microbatch, which adds its gradients to others."""
    (alone,) = record_stages(lambda: programs.stage, {}, 1, 1, 1, 2)
    whole = recorder.record(programs.stage, {"stage": 0, "num_stages": 1}, 1, microbatches=2)
    for name in ("forward", "backward"):
        parts = [runs_of(each.ops, name, {}) for each in (alone.step, whole)]
        assert ops(parts[0]) == ops(parts[1])
    assert alone.step.num_parameters == whole.num_parameters
    assert alone.step.optimizer_bytes == whole.optimizer_bytes


def test_stages_are_parts_of_the_model() -> None:
    """Products, attention and parameters of all stages together are those of one rank."""
    whole = recorder.record(programs.stage, {"stage": 0, "num_stages": 1}, 1)
    chunks = recorded().chunks_in_order
    assert sum(chunk.num_parameters for chunk in chunks) == whole.num_parameters
    for name in ("forward", "backward"):
        kernels = Counter(
            (op.op, *op.reads)
            for chunk in chunks
            for op in ops(chunk.first_backward if name == "backward" else chunk.forward)
            if op.op in ("aten.mm", "simtrain.attention", "simtrain.attention_backward")
        )
        assert kernels == Counter(
            (op.op, *op.reads)
            for op in whole.ops
            if op.phase == name
            and op.op in ("aten.mm", "simtrain.attention", "simtrain.attention_backward")
        )


def test_equal_stages_are_written_once() -> None:
    program = recorded()
    assert program.chunk_numbers == [0, 1, 1, 2]
    sent = ["bf16[2,64,64]"]
    assert [chunk.sends for chunk in program.chunks] == [sent, sent, []]
    assert [chunk.receives for chunk in program.chunks] == [[], sent, sent]
    assert [chunk.returns for chunk in program.chunks] == [[], sent, sent]
    assert recorded(pp=2, chunks=2).chunk_numbers == [0, 1, 1, 2]


@pytest.mark.parametrize("sharding", ["none", "kept", "again", "tensor", "replicated"])
def test_memory_returns_to_what_it_was(sharding: str) -> None:
    """After the first passes, a microbatch leaves nothing; the optimizer ends what they left."""
    for chunk in recorded(sharding=sharding).chunks:
        assert growth(chunk.turn(("forward", "forward_after_backward"), 1)) == -growth(
            chunk.backward
        )
        first = growth(chunk.first_forward or chunk.forward) + growth(chunk.first_backward)
        assert first + growth(chunk.reduction) + growth(chunk.optimizer) == 0


def test_fully_shard_gathers_first_and_reduces_last() -> None:
    """As torch's pipelining runs it: no pass in between communicates."""
    for chunk in recorded(sharding="kept").chunks:
        gathers = collectives(chunk.first_forward)
        assert {*gathers} == {"c10d._allgather_base_"}
        assert collectives(chunk.reduction) == ["c10d._reduce_scatter_base_"] * len(gathers)
        for runs in (chunk.forward, chunk.first_backward, chunk.backward):
            assert collectives(runs) == []
        assert chunk.groups == [[*range(8)]]
        (gradients,) = {sum(op.gradient_bytes for op in ops(chunk.first_backward))}
        assert gradients == 4 * chunk.num_trained, "gradients of all ranks add up in fp32"


def test_freed_parameters_are_gathered_unless_a_backward_pass_kept_them() -> None:
    for chunk in recorded(sharding="again").chunks:
        gathers = collectives(chunk.forward)
        assert gathers
        assert len(collectives(chunk.backward)) == len(gathers)
        assert collectives(chunk.forward_after_backward) == []
        assert collectives(chunk.backward_after_backward) == []


def test_groups_are_those_of_the_stage_with_tensor_parallelism() -> None:
    """Four pairs of ranks on each stage, whose first ranks are 0, 8, 16 and 24."""
    program = recorded(sharding="tensor")
    assert program.chunk_numbers == [0, 1, 1, 2]
    assert (program.tensor, program.data) == (2, 4)
    for chunk in program.chunks:
        assert sorted(chunk.groups) == [[0, 1], [0, 2, 4, 6]]
        assert collectives(chunk.forward) == ["_c10d_functional.all_reduce"] * 2


def test_replicas_reduce_in_the_last_backward_pass() -> None:
    for chunk in recorded(sharding="replicated").chunks:
        assert collectives(chunk.last_backward)
        assert collectives(chunk.backward) == collectives(chunk.reduction) == []


@pytest.mark.ci
def test_every_order_of_whole_passes_runs_without_another_recording(tmp_path: Path) -> None:
    program = recorded(sharding="kept", pp=2, chunks=2)
    file = tmp_path / "a.program.json.gz"
    write_recording(program, file)
    data = {"program": str(file), "cluster": "h100_sxm", "software": {"stack": "torchtitan"}}
    scenario = Scenario.model_validate(data | {"overlap": {"pipeline": True}})
    flops = {
        simulate(scenario.replace({"schedule": name})).hardware_flops
        for name in ("interleaved", "looped_bfs", "hanayo")
    }
    assert len(flops) == 1
    twice = simulate(scenario.replace({"batch.global": 2 * scenario.batch.global_}))
    assert {twice.hardware_flops} == {2 * each for each in flops}


HIDDEN, HEADS, INNER, LAYERS = 1024, 16, 2816, 8


def test_a_sharded_pipeline_takes_the_time_of_the_scenario_by_hand(tmp_path: Path) -> None:
    """The same model on the same software: torch 2.13 has one kernel for RMS norms.

    Messages and collectives take equal time. Kernels differ as those of one stage do.
    """
    sizes = HIDDEN, HEADS, INNER
    program = recorded(sharding="kept", layers=LAYERS, sizes=sizes)
    file = tmp_path / "a.program.json.gz"
    write_recording(program, file)
    software = {"stack": "torchtitan", "host_issue": "0 s", "host_call": "0 s"}
    shared = {"cluster": "h100_sxm", "software": software}
    ours = Scenario.model_validate(shared | {"program": str(file)})
    model = programs.model_by_hand(LAYERS, HIDDEN, HEADS, INNER)
    theirs = Scenario.model_validate(
        shared
        | {
            "software": software | {"fused_rms_norm": True},
            "model": model,
            "batch": {"micro": 2, "global": 128},
            "parallelism": {"pipeline": 4, "data": 8},
            "memory": {
                "zero_stage": 3,
                "reshard_after_forward": False,
                "reduce_every_microbatch": False,
            },
        }
    )
    a, b = simulate(ours), simulate(theirs)
    assert a.num_parameters == b.num_parameters
    assert a.hardware_flops == b.hardware_flops
    exposed = [each.breakdown for each in (a, b)]
    assert exposed[0].pipeline_communication_s == pytest.approx(exposed[1].pipeline_communication_s)
    assert a.iteration_time_s == pytest.approx(b.iteration_time_s, rel=0.05)
    for mine, other in zip(a.memory.stages, b.memory.stages, strict=True):
        assert mine.states.parameters_bytes == pytest.approx(
            other.states.parameters_bytes, rel=1e-3
        )
        assert mine.peak_bytes == pytest.approx(other.peak_bytes, rel=0.06)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama", "takes no stage"),
        ("stage_without_gradient", "returns no tensor with a gradient"),
        ("stage_that_ignores_the_model", "does not call the model"),
        ("stage_across_stages", "has ranks of other stages"),
    ],
)
def test_functions_that_build_no_stages_are_refused(name: str, message: str) -> None:
    with pytest.raises(WrongStage, match=message):
        recorded(name, pp=2)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--gpus", "6", "--pp", "4"], "E954"),
        (["--gpus", "6", "--chunks", "2"], "E908"),
    ],
)
def test_numbers_of_stages_are_checked_first(words: list[str], code: str) -> None:
    assert code in refused("import", "torch", "missing.py:stage", *words)


@pytest.mark.ci
def test_the_command_names_the_order_and_the_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "--gpus", "16", "--pp", "4", "--arg", "sharding=kept", "--out", "my.yaml"
    outcome = call("import", "torch", f"{PROGRAMS}:stage", *words)
    assert outcome.exit_code == 0, outcome.stderr
    text = Path("my.yaml").read_text("utf-8")
    for line in ("pipeline: 4", "global: 64", "schedule: 1f1b"):
        assert line in text
    assert "E955" in refused("import", "torch", f"{PROGRAMS}:llama", "--gpus", "8", "--pp", "2")
    for command in (["run"], ["memory"], ["compare", "--change", "schedule=gpipe"]):
        outcome = call(command[0], "my.yaml", *command[1:])
        assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert "E953" in refused("run", "my.yaml", "--set", "schedule=zb_h1")
    assert "--pp" in refused("run", "my.yaml", "--set", "parallelism.pipeline=8")
