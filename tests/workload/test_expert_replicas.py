"""Replicas of experts: reductions, shards and memory, counted by hand."""

from dataclasses import replace

import pytest

from simtrain.base.mesh import Group
from simtrain.iteration.memory.buffers import model_states
from simtrain.workload.chunk import Chunk, parameters
from simtrain.workload.ops import Op, Tensor
from simtrain.workload.optimizer import (
    StepOptions,
    bucket_ops,
    buckets_of,
    data_reduction,
    step_ops,
)
from simtrain.workload.tape import Parameter, Tape
from simtrain.workload.work import Collective, CollectiveKind
from tests.helpers.toys import plan_of, small

DATA, EXPERT_DATA = Group(("dp",), 8, 8), Group(("dp",), 2, 2)
DENSE, EXPERTS = 1000, 603


class Layer:
    """Layer with one dense weight and one weight of experts."""

    is_unit = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        both = Parameter(DENSE), Parameter(EXPERTS, is_expert=True)
        tape.record("weights", (x,), (x,), (), (), parameters=both)
        return x


class Prediction:
    """A block outside the layers with experts, as multi-token prediction has; all in fp8."""

    is_unit = False

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        both = Parameter(100, in_fp8=True), Parameter(41, is_expert=True, in_fp8=True)
        tape.record("weights", (x,), (x,), (), (), parameters=both)
        return x


def options(zero_stage: int) -> StepOptions:
    everyone = Group(("tp", "cp", "ep", "dp", "pp"), 8, 8)
    groups = {"data": DATA, "everyone": everyone, "model": Group(("tp", "pp"), 1, 1)}
    experts = {"expert_data": EXPERT_DATA, "expert_model": Group(("tp", "ep", "pp"), 4, 4)}
    return replace(plan_of(small()).step_options, zero_stage=zero_stage, **groups, **experts)


def sent(ops: tuple[Op, ...]) -> list[tuple[CollectiveKind, int, int]]:
    works = [op.work for op in ops]
    collectives = [work for work in works if isinstance(work, Collective)]
    return [(one.kind, one.array_bytes, one.group.num_ranks) for one in collectives]


@pytest.mark.parametrize("rule", ["layer", "megatron", 1500])
def test_experts_of_token_prediction_are_reduced_over_replicas_of_experts(rule: str | int) -> None:
    """`expert_parallel_params` of Megatron-LM's DDP: all parameters without `allreduce`."""
    chunk, batch = Chunk(((Layer(), 3), (Prediction(), 1))), plan_of(small()).microbatch
    (buckets,), held = buckets_of((chunk,), batch, rule, 1), parameters((chunk,), batch)
    last = len(buckets.num_layers) - 1
    reduced = {DATA.num_ranks: 0, EXPERT_DATA.num_ranks: 0}
    for number in range(last + 1):
        ops = bucket_ops(
            options(1), buckets, number, held if number == last else None, gathers=False
        )
        for _, num_bytes, ranks in sent(ops):
            reduced[ranks] += num_bytes // 4
    assert reduced == {8: 3 * 1000 + 100, 2: 3 * 603 + 41}
    assert sum(buckets.in_fp8) + (0 if buckets.holds_root else held.root_in_fp8) == 141


def test_each_kind_is_reduced_over_its_own_replicas() -> None:
    whole, sharded = CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER
    assert sent(data_reduction(options(0), 1603, 603)) == [(whole, 4000, 8), (whole, 2412, 2)]
    assert sent(data_reduction(options(1), 1603, 603)) == [(sharded, 4000, 8), (sharded, 2412, 2)]


def test_the_optimizer_shards_each_kind_over_its_own_replicas() -> None:
    """The fullest rank has 1000 / 8 = 125 dense and ceil(603 / 2) = 302 expert parameters."""
    one = options(1)
    states = model_states(one, 1603, 603)
    assert states.optimizer_bytes == 12 * (125 + 302)
    assert states.parameters_bytes == 2 * 1603
    held = parameters((Chunk(((Layer(), 1),)),), plan_of(small()).microbatch)
    step = step_ops(one, held)
    adam = next(op for op in step["update"] if op.name == "Adam")
    assert adam.work.moved_bytes == (4 + 3) * 4 * 427  # type: ignore[union-attr]
    gathers = [(CollectiveKind.ALL_GATHER, 2000, 8), (CollectiveKind.ALL_GATHER, 1206, 2)]
    assert sent(step["parameter_gather"]) == gathers


def test_experts_have_a_separate_gradient_norm() -> None:
    """Without ZeRO, 4 ranks with different experts sum the norm of experts, and each rank has all
    dense gradients. With ZeRO, all 8 ranks sum both norms.
    """
    held = parameters((Chunk(((Layer(), 1),)),), plan_of(small()).microbatch)
    norms = {stage: step_ops(options(stage), held)["norm_reduction"] for stage in (0, 1)}
    assert sent(norms[0]) == [(CollectiveKind.ALL_REDUCE, 4, 4)]
    assert sent(norms[1]) == [(CollectiveKind.ALL_REDUCE, 4, 8)] * 2
