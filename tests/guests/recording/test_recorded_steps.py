"""What is recorded of programs in torch, beside our blocks, torch's counters and real processes."""

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import torchtitan_program
from simtrain.guests.recording.child import step as recorder
from simtrain.guests.recording.child.data_parallel import buckets_of
from simtrain.guests.recording.child.recording import program_of
from simtrain.guests.recording.program import ProgramOp, RecordedProgram, expanded, parse_tensor
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from simtrain.workload.work import Collective, FusedAttention, Gemm
from tests.helpers import torch_programs as programs
from tests.helpers.real_processes import real_collectives, recorded_collectives, run_processes
from tests.helpers.recorded_programs import scenario_of, works

pytestmark = [
    pytest.mark.slow,
    # torch warns of the view that its own flatten returns.
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),
]
HIDDEN, HEADS, INNER, LAYERS = 64, 4, 256, 2


@functools.cache
def recorded(name: str, gpus: int = 1, **arguments: Any) -> RecordedProgram:
    step = recorder.record(getattr(programs, name), arguments, gpus)
    text = program_of(step, {"command": f"simtrain import --record x.py:{name}", "gpus": gpus})
    return RecordedProgram.model_validate_json(text)


def ops_of(program: RecordedProgram) -> list[ProgramOp]:
    return [op for runs in program.passes.values() for op in expanded(runs)]


def by_hand(**changes: Any) -> Scenario:
    """Return the scenario that somebody would write for `programs.llama`."""
    model = programs.model_by_hand(LAYERS, HIDDEN, HEADS, INNER)
    data = {"model": model, "batch": {"micro": 2, "global": 2}, "cluster": "h100_sxm"}
    return Scenario.model_validate(data | {"software": {"stack": "torchtitan"}}).replace(changes)


def test_products_and_attention_are_those_of_our_blocks(tmp_path: Path) -> None:
    """Shapes, layouts and types, with their numbers in the forward and the backward pass."""
    results = [simulate(each) for each in (scenario_of(recorded("llama"), tmp_path), by_hand())]
    ours, theirs = (works(result, Gemm, FusedAttention) for result in results)
    assert ours == theirs
    assert results[0].hardware_flops == results[1].hardware_flops
    assert results[0].num_parameters == results[1].num_parameters


def test_a_checkpoint_recomputes_all_but_the_last_product(tmp_path: Path) -> None:
    """torch stops early: it has every saved tensor before the last product of a layer."""
    program = recorded("llama", checkpoints=True)
    again = Counter(op.op for op in expanded(program.backward) if op.again)
    assert again["aten.mm"] == LAYERS * 6
    assert again["simtrain.attention"] == LAYERS
    result = simulate(scenario_of(program, tmp_path))
    assert result.breakdown.recompute_s > 0
    assert result.model_flops == simulate(scenario_of(recorded("llama"), tmp_path)).model_flops


def test_a_selective_checkpoint_keeps_what_its_policy_names() -> None:
    """torchtitan's keeps attention and every second product: it recomputes three of seven."""
    sizes = {"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "groups": 2, "inner": INNER}
    arguments = {**sizes, "vocab": 512, "length": programs.LENGTH}
    step = recorder.record(torchtitan_program.train, arguments, 8)
    again = Counter(op.op for op in step.ops if op.again)
    assert "simtrain.attention" not in again
    assert again["aten.mm"] == 3 * LAYERS


def test_equal_layers_are_written_once() -> None:
    program = recorded("llama", layers=6)
    num_written = sum(len(run.ops) for runs in program.passes.values() for run in runs)
    assert num_written == sum(
        len(run.ops) for runs in recorded("llama").passes.values() for run in runs
    )
    assert len([*expanded(program.forward)]) > num_written


def test_gathers_and_reductions_are_those_of_our_sharding(tmp_path: Path) -> None:
    """By default fully_shard keeps the root's parameters from the forward to the backward pass."""
    program = recorded("sharded", gpus=8)
    hand = by_hand(**{"parallelism.data": 8, "batch.global": 16, "memory.zero_stage": 3})
    ours, theirs = (
        works(simulate(each), Collective) for each in (scenario_of(program, tmp_path), hand)
    )

    def sizes(counts: Counter[Any]) -> Counter[Any]:
        return Counter(
            {
                (kind, work.kind, work.array_bytes, work.group.num_ranks): number
                for (kind, work), number in counts.items()
            }
        )

    more = sizes(theirs) - sizes(ours)
    assert not sizes(ours) - sizes(theirs)
    assert [(kind, collective) for (kind, collective, *_) in more.elements()] == [
        ("B", "all_gather")
    ]


def test_copies_and_gathers_run_beside_the_kernels() -> None:
    program = recorded("sharded", gpus=8)
    streams = {op.stream for op in expanded(program.forward)}
    assert len(streams) == 3
    gathers = [op for op in expanded(program.forward) if op.group is not None]
    assert len(gathers) == LAYERS + 1 and all(op.stream and op.waits for op in gathers)
    assert program.groups == [[*range(8)]]


def test_tensor_parallel_collectives_have_their_ranks(tmp_path: Path) -> None:
    program = recorded("sharded", gpus=8, tensor=2)
    assert sorted(program.groups) == [[0, 1], [0, 2, 4, 6]]
    assert (program.tensor, program.data) == (2, 4)
    kinds = Counter(op.op for op in expanded(program.forward) if len(group_of(program, op)) == 2)
    # Queries, keys, values, gate and up, and the logits twice: gathered, and their shards joined.
    assert kinds["_c10d_functional.all_gather_into_tensor"] == 5 * LAYERS + 2
    # The embedding, and two sums of each layer.
    assert kinds["_c10d_functional.reduce_scatter_tensor"] == 2 * LAYERS + 1
    result = simulate(scenario_of(program, tmp_path))
    assert result.breakdown.tensor_communication_s > 0
    assert result.breakdown.data_communication_s > 0


def group_of(program: RecordedProgram, op: ProgramOp) -> list[int]:
    return [] if op.group is None else program.groups[op.group]


def test_modules_have_the_names_of_the_model_forward_and_backward() -> None:
    program = recorded("llama")
    for runs in (program.forward, program.backward):
        products = {op.module for op in expanded(runs) if op.op == "aten.mm"}
        layer = {f"layers.*.{name}" for name in ("q", "k", "v", "out", "gate", "up", "down")}
        assert products == layer | {"head"}


def test_later_microbatches_add_their_gradients(tmp_path: Path) -> None:
    """The last microbatch finds the gradients of the others, and adds to them."""
    step, single = recorder.record(programs.sharded, {}, 8, 4), recorded("sharded", gpus=8)
    several = RecordedProgram.model_validate_json(program_of(step, {"command": "x", "gpus": 8}))
    assert several.states.gradients_bytes == several.states.parameters_bytes
    assert single.states.gradients_bytes == 0
    assert several.states.other_bytes == single.states.other_bytes
    results = [simulate(scenario_of(program, tmp_path)) for program in (single, several)]
    assert results[1].scenario.num_microbatches == 4
    assert results[1].hardware_flops == 4 * results[0].hardware_flops
    peaks = [result.memory.fullest for result in results]
    assert peaks[1].peak_bytes >= peaks[0].peak_bytes
    assert peaks[1].peak_name == "0B3"
    assert len(results[1].memory_curve(0).times_s) > len(several.forward)


@pytest.mark.ci
@pytest.mark.parametrize(("gpus", "tensor"), [(2, 1), (4, 2)])
def test_collectives_are_those_of_real_processes(gpus: int, tensor: int, tmp_path: Path) -> None:
    """Names, types, shapes, ranks and order on gloo."""
    arguments = programs.sharded, {"tensor": tensor}, gpus
    assert recorded_collectives(*arguments) == real_collectives(*arguments, tmp_path)


_SAMPLED = 12
"""Steps after which DistributedDataParallel has written its sizes down."""


def real_replica(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    model, batch, loss, optimizer = programs.replicated()
    for _ in range(_SAMPLED):
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        sizes = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]  # type: ignore[operator]
        Path(folder, "sizes").write_text(sizes, "utf-8")
    torch.distributed.destroy_process_group()


@pytest.mark.ci
def test_buckets_are_those_of_distributed_data_parallel(tmp_path: Path) -> None:
    """Of two real processes, after the first step has told the order of gradients."""
    run_processes(real_replica, (str(tmp_path),), 2)
    sizes = [*map(int, Path(tmp_path, "sizes").read_text("utf-8").split(", "))]
    for views in (False, True):
        step = recorder.record(programs.replicated, {"views": views}, 2)
        ours = [parse_tensor(op.reads[0]).num_bytes for op in step.ops if op.group]
        assert ours == sizes
        copies = sum(op.op == "aten.copy_" for op in step.ops if op.phase == "backward")
        assert (copies == 0) == views


def test_a_bucket_ends_with_the_parameter_that_fills_it() -> None:
    """The first has at least 8 bytes, others 16; another type has buckets of its own."""
    wide = [torch.nn.Parameter(torch.zeros(number)) for number in (2, 3, 1, 5)]
    parameters = [*wide, torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))]
    buckets = buckets_of(parameters, 8, 16)
    assert [[each.numel() for each in bucket] for bucket in buckets] == [[2], [3, 1], [5], [2]]


def test_buckets_hide_behind_the_backward_pass(tmp_path: Path) -> None:
    program = recorded("replicated", gpus=8)
    reductions = [op for op in expanded(program.backward) if op.group is not None]
    assert len(reductions) > 2 and {op.stream for op in reductions} == {*program.group_streams}
    result = simulate(scenario_of(program, tmp_path, cluster="a100_sxm4_80gb"))
    reduced_s = sum(
        row.total_s for row in result.operators().rows if row.cause == "data_communication"
    )
    assert 0 < result.breakdown.data_communication_s < reduced_s


def test_collectives_by_hand_wait_where_the_program_waits(tmp_path: Path) -> None:
    at_once, at_the_end = (
        simulate(scenario_of(recorded("reduced_by_hand", gpus=8, waits_at_once=each), tmp_path))
        for each in (True, False)
    )
    assert works(at_once, Collective) == works(at_the_end, Collective)
    assert at_the_end.breakdown.data_communication_s < at_once.breakdown.data_communication_s
