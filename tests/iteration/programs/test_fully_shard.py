"""Memory, copies and communication of PyTorch's fully_shard, by hand."""

from typing import Any

import pytest

from simtrain.engine import simulate
from simtrain.iteration.memory.working import makes_gradients, memory_with_exchanges, pass_memory
from simtrain.iteration.programs.pass_tasks import pass_program
from simtrain.scenario import Scenario
from simtrain.schedules import Action
from simtrain.studies.simulation import simulate_memory
from simtrain.workload.ops import Op
from simtrain.workload.passes import record_pass
from simtrain.workload.work import Elementwise
from tests.helpers.toys import (
    NARROW,
    a100,
    exchange_peaks,
    layer_parameters,
    machine_of,
    num_parameters,
    ops_of,
    pass_of,
    plan_of,
    zero,
)

BESIDE = {"data_parallel": True}
TITAN = {"stack": "megatron_2022", "fully_shard": True}


def titan(split: dict[str, Any] | None = None, **sections: Any) -> Scenario:
    """Return `toys.zero` with parameters sharded by fully_shard."""
    return zero(3, split or {"data": 4}, software=TITAN, **({"overlap": BESIDE} | sections))


def pass_ops(scenario: Scenario, kind: Any) -> tuple[Op, ...]:
    return ops_of(pass_of(plan_of(scenario), Action(0, kind, 0)))


def bytes_of(ops: tuple[Op, ...], name: str) -> tuple[int, int]:
    """Return the bytes that kernels with a name read and write."""
    works = [op.work for op in ops if op.name == name and isinstance(op.work, Elementwise)]
    return sum(work.read_bytes for work in works), sum(work.write_bytes for work in works)


def test_a_shard_of_parameters_is_its_master_weights() -> None:
    """4Ψ/s, 4Ψ/s and 8Ψ/s: two bytes fewer than with a 16-bit copy of the master weights."""
    for precision in ({}, NARROW):
        one = titan(precision=precision)
        shard = num_parameters(one) // 4
        states = simulate_memory(one).stages[0].states
        assert states.parameters_bytes == 4 * shard
        assert states.gradients_bytes == 4 * shard
        assert states.optimizer_bytes == 8 * shard
        plain = one.replace({"software": "megatron_2022"})
        gradients = 2 if precision else 4
        total = simulate_memory(plain).stages[0].states.total_bytes
        assert total == (2 + gradients + 12) * shard


def test_a_step_reads_and_writes_fp32_shards_alone() -> None:
    step = plan_of(titan(precision=NARROW)).steps[0]
    assert [op.name for op in step["update"]] == ["gradient clip", "Adam"]
    assert [op.name for op in step["norm"]] == ["gradient norm"]


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_copies_by_hand(narrow: bool, overlap: bool) -> None:
    """In each pass a shard is cast to bf16 into the buffer, and all parameters are copied out of
    it.

    Gradients are read in bf16 and written in the type of the reduction. Their shards are added in
    fp32.
    """
    precision = NARROW if narrow else {}
    one = titan(precision=precision, overlap={"data_parallel": overlap})
    number, shard, g = num_parameters(one), num_parameters(one) // 4, 2 if narrow else 4
    for kind in "FB":
        ops = pass_ops(one, kind)
        assert bytes_of(ops, "parameter copy in") == ((4 + 2) * shard, (2 + 2) * shard)
        assert bytes_of(ops, "parameter copy out") == (2 * number, 2 * number)
    assert bytes_of(ops, "gradient copy in") == (2 * number, g * number)
    assert bytes_of(ops, "gradient accumulate") == ((g + 4) * shard, 4 * shard)
    assert not any(op.name == "gradient average" for op in ops)
    assert not any("weight gradient sum" in op.name for op in ops)


def test_a_single_reduction_copies_the_sum() -> None:
    one = titan(memory={"reduce_every_microbatch": False})
    number, ops = num_parameters(one), pass_ops(one, "B")
    assert bytes_of(ops, "gradient copy in") == (4 * number, 4 * number)
    assert bytes_of(ops, "gradient accumulate") == (0, 0)
    buffers = simulate_memory(one).stages[0].buffers_bytes
    rest = number - 8 * layer_parameters(one)
    assert buffers["gradient bucket"] == 4 * max(layer_parameters(one), rest)


def test_buffers_exist_in_addition_to_copied_parameters() -> None:
    """Forward: a layer, its buffer and the next layer's buffer. Backward: bf16 gradients and fp32
    buffers.
    """
    one = titan()
    layer = layer_parameters(one)
    root = num_parameters(one) - 8 * layer
    gathered, bucket = exchange_peaks(one)
    assert gathered == 2 * (root + 3 * layer)
    # The root's gradients wait for all layers. A layer's buffer is reduced during the next layer.
    layers = 2 * (root + layer) + 4 * layer
    assert bucket == max(layers, 2 * root + 4 * root)


def test_copies_into_buffers_run_on_the_streams_of_collectives() -> None:
    record = record_pass(pass_of(plan_of(titan()), Action(0, "B", 0)))
    program = pass_program(record, machine_of(a100()).pass_machine())
    timeline, ops = simulate(program), list(record.ops)

    def tasks(name: str) -> list[int]:
        return [2 * place + 1 for place, op in enumerate(ops) if op.name == name]

    streams = {"parameter copy in": "data", "gradient accumulate": "data"}
    streams |= {"parameter copy out": "compute", "gradient copy in": "compute"}
    for name, stream in streams.items():
        assert len(tasks(name)) == 9
        assert {program.graph.stream(task) for task in tasks(name)} == {stream}
    copies = zip(*map(tasks, ("parameter gather", "parameter copy out")), strict=True)
    assert all(timeline.end_s[one] <= timeline.start_s[other] for one, other in copies)
    hsdp = titan({"data": 8}, memory={"shard_over": 4})
    last = record_pass(pass_of(plan_of(hsdp), Action(0, "B", 0)))
    program = pass_program(last, machine_of(a100()).pass_machine())
    added = [2 * i + 1 for i, op in enumerate(last.ops) if op.name == "gradient accumulate"]
    assert {program.graph.stream(task) for task in added} == {"equal shards"}


def test_gradients_exist_for_passes_only_if_microbatches_add_to_them() -> None:
    """One microbatch makes them; the next ones find them."""
    one = titan(overlap={"data_parallel": True})
    single, several = (
        plan_of(one.replace({"batch.global": number * 4 * one.batch.micro})) for number in (1, 3)
    )
    assert makes_gradients(single) and not makes_gradients(several)
    passes = [pass_of(plan, Action(0, "B", 0)) for plan in (single, several)]
    memories = [*map(memory_with_exchanges, passes)]
    for pass_, memory in zip(passes, memories, strict=True):
        rest_bytes = pass_memory(pass_).saved_bytes + pass_memory(pass_).extra_bytes
        peak_bytes = memory.saved_bytes + memory.extra_bytes
        exchanged_bytes = memory.gathered_bytes + memory.bucket_bytes + memory.gradients_bytes
        assert rest_bytes < peak_bytes <= rest_bytes + exchanged_bytes
    assert memories[1].gradients_bytes == 0
    # At the end, with the root's gradients and their buffer, all layers are reduced.
    shard = 4 * (8 * layer_parameters(one) // 4)
    assert memories[0].gradients_bytes <= shard + 4 * 8


def test_the_loss_is_computed_without_the_roots_parameters() -> None:
    """A pass whose peak is the loss has neither gathered parameters nor gradients there."""
    vocabulary = {"model.vocab_size": 102_400, "batch.micro": 8, "batch.global": 32}
    one = titan(overlap={"data_parallel": True}).replace(vocabulary)
    for kind in "FB":
        pass_ = pass_of(plan_of(one), Action(0, kind, 0))
        memory = memory_with_exchanges(pass_)
        assert memory.extra_bytes == pass_memory(pass_).extra_bytes
        assert "logits" in memory.op or "cross entropy" in memory.op
        assert (memory.gathered_bytes, memory.bucket_bytes, memory.gradients_bytes) == (0, 0, 0)
