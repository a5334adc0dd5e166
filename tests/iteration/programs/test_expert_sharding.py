"""Experts under ZeRO stages 2 and 3 with replicas of their own: collectives, shards, buffers."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from simtrain.durations.collectives import wire_bytes
from simtrain.iteration.memory.buffers import rank_states
from simtrain.iteration.plan import PassVariant
from simtrain.scenario import Scenario
from simtrain.schedules import Action
from simtrain.studies.simulation import simulate_memory
from simtrain.workload.ops import Op
from simtrain.workload.passes import record_pass
from simtrain.workload.work import Collective, CollectiveKind, Elementwise
from tests.helpers.expert_models import EXPERTS, FFN, HIDDEN, SEQ, moe
from tests.helpers.toys import exchange_peaks, ops_of, pass_of, plan_of

GATHER, REDUCE = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
JOIN = CollectiveKind.ALL_REDUCE
LAYERS, DATA = 2, 8
ALL_EXPERTS = EXPERTS * 3 * HIDDEN * FFN
# Query, key, value and output projection; the router; weight and bias of two norms.
REST = 4 * HIDDEN**2 + EXPERTS * HIDDEN + 2 * 2 * HIDDEN
# Token and position embeddings; weight and bias of the final norm.
ROOT = (1024 + SEQ) * HIDDEN + 2 * HIDDEN
TITAN = {"software": {"stack": "megatron_2022", "fully_shard": True}}
PLAIN: dict[str, Any] = {}


def sharded(stage: int = 3, expert: int = 2, **sections: Any) -> Scenario:
    """Return two layers on eight ranks with one microbatch."""
    memory = {"zero_stage": stage} | sections.pop("memory", {})
    grid = {"data": DATA, "expert": expert} | sections.pop("grid", {})
    overlap = {"data_parallel": True} | sections.pop("overlap", {})
    model = {"num_layers": LAYERS} | sections.pop("model", {})
    return moe(grid=grid, memory=memory, overlap=overlap, model=model, **sections)


def pass_ops(scenario: Scenario, kind: Any) -> tuple[Op, ...]:
    return ops_of(pass_of(plan_of(scenario), Action(0, kind, 0)))


def sent(ops: Iterable[Op]) -> Counter[tuple[CollectiveKind, int, int]]:
    """Return the collectives over replicas: kind, bytes and ranks."""
    works = [op.work for op in ops if isinstance(op.work, Collective)]
    return Counter(
        (work.kind, work.array_bytes, work.group.num_ranks)
        for work in works
        if isinstance(work, Collective) and "dp" in work.group.axes
    )


@pytest.mark.parametrize("stack", [PLAIN, TITAN])
@pytest.mark.parametrize("expert", [2, 4])
def test_collectives_by_hand(expert: int, stack: dict[str, Any]) -> None:
    """Parameters have 2 bytes, gradients 4. Expert parameters are gathered over 8 / expert ranks,
    all others over 8.
    """
    one, own = sharded(expert=expert, **stack), ALL_EXPERTS // expert
    gathers = {
        (GATHER, 2 * REST, 8): 2,
        (GATHER, 2 * own, 8 // expert): 2,
        (GATHER, 2 * ROOT, 8): 1,
    }
    reductions = {
        (REDUCE, 4 * REST, 8): 2,
        (REDUCE, 4 * own, 8 // expert): 2,
        (REDUCE, 4 * ROOT, 8): 1,
    }
    assert sent(pass_ops(one, "F")) == gathers
    assert sent(pass_ops(one, "B")) == gathers | reductions
    if not stack:
        assert sent(pass_ops(sharded(2, expert), "F")) == {}
        assert sent(pass_ops(sharded(2, expert), "B")) == reductions


def test_equal_shards_are_summed_for_each_kind() -> None:
    """Four replicas share states: 4 ranks shard dense parameters and 2 shard experts. Each shard is
    on two ranks.
    """
    one, own = sharded(memory={"shard_over": 4}), ALL_EXPERTS // 2
    found = sent(pass_ops(one, "B"))
    assert found[JOIN, 4 * REST // 4, 2] == found[JOIN, 4 * own // 2, 2] == 2
    assert found[REDUCE, 4 * REST, 4] == found[REDUCE, 4 * own, 2] == 2


def test_weights_of_experts_are_gathered_in_fp8() -> None:
    """Weights of products have one byte; the router and the norms have two."""
    one = sharded(
        software="megatron_core",
        attention_backend="fused",
        cluster="h100_sxm",
        precision={"compute": "fp8", "fp8_parameters": True},
    )
    found, products = sent(pass_ops(one, "F")), 4 * HIDDEN**2
    assert found[GATHER, ALL_EXPERTS // 2, 4] == LAYERS
    assert found[GATHER, products + 2 * (REST - products), 8] == LAYERS


def test_a_pipeline_reduces_each_kind_once() -> None:
    """Each stage has one layer. It reduces after all passes, and its parameters stay unsharded."""
    one = sharded(
        grid={"pipeline": 2},
        model={"tied_embeddings": False},
        memory={"reduce_every_microbatch": False, "reshard_after_forward": False},
        **TITAN,
    )
    plan, own = plan_of(one), ALL_EXPERTS // 2
    for stage, root in enumerate((ROOT - 2 * HIDDEN, 1024 * HIDDEN + 2 * HIDDEN)):
        assert sent(ops_of(plan.variants[PassVariant(stage, "R")])) == {
            (REDUCE, 4 * root, 8): 1,
            (REDUCE, 4 * REST, 8): 1,
            (REDUCE, 4 * own, 4): 1,
        }
        buffers = simulate_memory(one).stages[stage].buffers_bytes
        assert buffers["gathered parameters"] >= 2 * (root + REST + own)


@pytest.mark.parametrize("expert", [2, 4, 8])
def test_states_by_hand(expert: int) -> None:
    """Stage 3 shards 2Ψ + 4Ψ + 12Ψ, each kind over its own replicas, so each rank
    holds an eighth.
    """
    shard = (ROOT + LAYERS * REST) // 8 + LAYERS * (ALL_EXPERTS // expert) // (8 // expert)
    for stage in (2, 3):
        states = simulate_memory(sharded(stage, expert)).stages[0].states
        held = plan_of(sharded(stage, expert)).stage_parameters[0]
        assert states.parameters_bytes == 2 * (shard if stage == 3 else held.total)
        assert (states.gradients_bytes, states.optimizer_bytes) == (4 * shard, 12 * shard)
    plan = plan_of(sharded(3, expert, **TITAN))
    states = rank_states(plan.step_options, plan.stage_parameters[0])
    assert (states.parameters_bytes, states.total_bytes) == (4 * shard, 16 * shard)


def test_buffers_by_hand() -> None:
    """Unsharded parameters: the root unit, two layers and, in the forward pass, the buffer that the
    last experts are copied from.

    Gradients: the root unit and the layers. With fully_shard a layer's gradients are in the buffers
    that are reduced.
    """
    own = ALL_EXPERTS // 2
    layer = REST + own
    plain, titan = (exchange_peaks(sharded(**stack)) for stack in (PLAIN, TITAN))
    assert plain == (2 * (ROOT + LAYERS * layer), 4 * (ROOT + LAYERS * layer))
    assert titan == (2 * (ROOT + LAYERS * layer + own), 2 * (ROOT + layer) + 4 * layer)


def test_a_layer_and_its_experts_are_prefetched_together() -> None:
    """torchtitan prefetches the next block and its experts before the first kernel of a block."""
    record = record_pass(pass_of(plan_of(sharded(**TITAN)), Action(0, "F", 0)))
    ops = [*record.ops]
    gathers = [place for place, op in enumerate(ops) if op.name == "parameter gather"]
    sizes = [op.work.array_bytes for op in ops if op.name == "parameter gather"]  # type: ignore[union-attr]
    own = ALL_EXPERTS // 2
    assert sizes == [2 * one for one in (ROOT, REST, own, REST, own)]
    end_of_first = record.starts[record.layer_ends[0]]
    copies = [place for place, op in enumerate(ops) if op.name == "parameter copy out"]
    assert copies[2] < gathers[3] < gathers[4] < end_of_first <= copies[3]
    assert {op.name for op in ops[copies[2] + 1 : gathers[4]]} == {
        "parameter copy in",
        "parameter gather",
    }


@pytest.mark.parametrize("stage", [2, 3])
def test_experts_of_one_replica_are_neither_gathered_nor_reduced(stage: int) -> None:
    one = sharded(stage, DATA)
    assert {ranks for _, _, ranks in sent((*pass_ops(one, "F"), *pass_ops(one, "B")))} == {DATA}
    buffers = simulate_memory(one).stages[0].buffers_bytes
    assert buffers.get("gathered parameters", 0) == (2 * (ROOT + 2 * REST) if stage == 3 else 0)


def test_fully_shard_casts_and_copies_experts_of_one_replica() -> None:
    """A cast from fp32 to bf16 and a copy read 6 bytes and write 4. Gradients are copied twice."""
    one, own = sharded(expert=DATA, **TITAN), ALL_EXPERTS // DATA
    for kind in "FB":
        copies = [op for op in pass_ops(one, kind) if op.name == "parameter copy in"]
        whole = [op for op in copies if op.stream_group is None]
        assert [moved(op) for op in whole] == [(6 * own, 4 * own)] * LAYERS
    backward = pass_ops(one, "B")
    assert [moved(op) for op in backward if op.name == "gradient copy"] == [(4 * own,) * 2] * LAYERS
    assert {ranks for _, _, ranks in sent(backward)} == {DATA}
    stays: dict[str, Any] = {"memory": {"reshard_after_forward": False}}
    stays["model"] = {"num_layers": 4}
    buffers = simulate_memory(sharded(expert=DATA, **TITAN, **stays)).stages[0].buffers_bytes
    assert buffers["gathered parameters"] == 2 * (ROOT + 4 * (REST + own))


def moved(op: Op) -> tuple[int, int]:
    assert isinstance(op.work, Elementwise)
    return op.work.read_bytes, op.work.write_bytes


@pytest.mark.parametrize("stack", [PLAIN, TITAN])
def test_equal_numbers_of_replicas_share_collectives(stack: dict[str, Any]) -> None:
    """Experts are on all ranks, or on tensor-parallel ranks. Separate collectives send the same
    bytes.
    """
    over_tensor = {"tensor": 2, "expert": 2, "expert_tensor": 1, "data": 4}
    for one in (sharded(expert=1, **stack), sharded(grid=over_tensor, **stack)):
        plan = plan_of(one)
        sharding = plan.options.sharding
        assert sharding is not None
        assert sharding.expert_groups is None
        apart = replace(plan.options, sharding=replace(sharding, expert_groups=sharding.groups))
        for kind in "FB":
            together = pass_of(plan, Action(0, kind, 0))  # type: ignore[arg-type]
            totals = [
                math.fsum(
                    wire_bytes(op.work)
                    for op in ops_of(each)
                    if isinstance(op.work, Collective) and "dp" in op.work.group.axes
                )
                for each in (together, replace(together, options=apart))
            ]
            assert totals[0] == pytest.approx(totals[1], rel=1e-12)
