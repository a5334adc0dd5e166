"""States that a part of the replicas shards, and FSDP's resharding, prefetching and gradient
accumulation.
"""

import itertools
import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.base.mesh import AXES, Group, Mesh
from simtrain.durations.collectives import wire_bytes
from simtrain.engine import simulate
from simtrain.iteration.programs.pass_tasks import pass_program
from simtrain.scenario import Scenario
from simtrain.schedules import Action
from simtrain.studies.simulation import simulate_memory
from simtrain.workload.ops import Op
from simtrain.workload.passes import record_pass
from simtrain.workload.work import Collective
from tests.helpers.toys import (
    NARROW,
    a100,
    layer_parameters,
    machine_of,
    num_parameters,
    ops_of,
    pass_of,
    plan_of,
    run,
    zero,
)

BESIDE = {"data_parallel": True}


def sharded(stage: int, replicas: int, data: int = 8, **sections: Any) -> Scenario:
    memory = {"shard_over": replicas} | sections.pop("memory", {})
    return zero(stage, {"data": data}, memory=memory, **sections)


def sent_bytes(ops: Iterable[Op], name: str) -> float:
    """Return the bytes that a rank sends in collectives with a name."""
    works = (op.work for op in ops if op.name == name)
    return math.fsum(wire_bytes(work) for work in works if isinstance(work, Collective))


def pass_ops(scenario: Scenario, kind: Any) -> tuple[Op, ...]:
    return ops_of(pass_of(plan_of(scenario), Action(0, kind, 0)))


def test_groups_by_hand() -> None:
    """Two tensor-parallel ranks times 8 replicas are on two nodes of 8 GPUs."""
    mesh = Mesh(tp=2, dp=8, gpus_per_node=8)
    axes = mesh.data_group.axes
    assert mesh.shard_group(4) == Group(axes, 4, 4)
    assert mesh.replicate_group(4) == Group(axes, 2, 1, joins_shards=True)
    assert mesh.instance_group(4) == Group(AXES, 8, 8)
    assert mesh.shard_group(2) == Group(axes, 2, 2)
    assert mesh.replicate_group(2) == Group(axes, 4, 2, joins_shards=True)
    assert mesh.shard_group(8) == mesh.data_group
    assert mesh.instance_group(8) == mesh.group(*AXES)
    # Context-parallel ranks are adjacent, and shard states too.
    mesh = Mesh(cp=2, dp=8, gpus_per_node=4)
    assert mesh.shard_group(4) == Group(mesh.data_group.axes, 4, 4)
    assert mesh.replicate_group(4).num_ranks == 4
    assert mesh.replicate_group(4).ranks_per_node == 1


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_one_shard_group_of_all_replicas_is_plain(stage: int, overlap: bool) -> None:
    overlaps = {"data_parallel": overlap}
    parts, whole = (
        run(sharded(stage, 8, overlap=overlaps)),
        run(zero(stage, {"data": 8}, overlap=overlaps)),
    )
    assert parts.iteration_time_s == whole.iteration_time_s
    assert parts.breakdown == whole.breakdown
    assert parts.memory == whole.memory


@settings(max_examples=15, deadline=None)
@given(
    stage=st.integers(1, 3),
    replicas=st.sampled_from([2, 4, 8]),
    narrow=st.booleans(),
    overlap=st.booleans(),
)
def test_bytes_of_groups_that_hold_equal_shards(
    stage: int, replicas: int, narrow: bool, overlap: bool
) -> None:
    """Gradients are reduce-scattered over s ranks, and shards are all-reduced over r ranks."""
    scenario = sharded(
        stage, replicas, precision=NARROW if narrow else {}, overlap={"data_parallel": overlap}
    )
    plan, number = plan_of(scenario), num_parameters(scenario)
    g, s, r = 2 if narrow else 4, replicas, 8 // replicas
    if stage == 1:
        step = [*itertools.chain(*plan.steps[0].values())]
        if overlap:
            held = plan.stage_parameters[0]
            for bucket in range(8):
                step += plan.bucket_ops(0, bucket, held if bucket == 7 else None)
        names = "gradient reduce-scatter", "gradient shard all-reduce", "parameter all-gather"
    else:
        step = [*pass_ops(scenario, "F"), *pass_ops(scenario, "B")]
        names = "gradient reduction", "gradient shard all-reduce", "parameter gather"
    reduced, joined, gathered = (sent_bytes(step, name) for name in names)
    assert reduced == pytest.approx(g * number * (s - 1) / s)
    # A shard of each unit is rounded up to whole parameters.
    assert joined == pytest.approx(2 * (r - 1) / r * g * number / s, rel=1e-6)
    times = {1: 1, 2: 0, 3: 2}[stage]
    assert gathered == pytest.approx(times * 2 * number * (s - 1) / s)


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_states_by_hand(replicas: int) -> None:
    """2Ψ + 4Ψ + 12Ψ/s in stage 1 and 18Ψ/s in stage 3, with the s ranks of the shard group."""
    for stage in (1, 2, 3):
        scenario = sharded(stage, replicas)
        number = num_parameters(scenario)
        states = simulate_memory(scenario).stages[0].states
        shard = -(-number // replicas)
        assert states.parameters_bytes == 2 * (shard if stage == 3 else number)
        assert states.gradients_bytes == 4 * (shard if stage >= 2 else number)
        assert states.optimizer_bytes == 12 * shard


@pytest.mark.parametrize("stage", [2, 3])
def test_equal_shards_are_summed_on_a_stream_of_their_own(stage: int) -> None:
    """The all-reduce overlaps the next unit's gather or reduction, and follows its own unit's."""

    plan = plan_of(sharded(stage, 4, overlap=BESIDE))
    record = record_pass(pass_of(plan, Action(0, "B", 0)))
    program = pass_program(record, machine_of(a100()).pass_machine())
    timeline = simulate(program)
    reduced, joined = (
        [2 * place + 1 for place, op in enumerate(record.ops) if op.name == name]
        for name in ("gradient reduction", "gradient shard all-reduce")
    )
    assert len(reduced) == len(joined) == 9
    for one, other in zip(reduced, joined, strict=True):
        assert program.graph.stream(other) == "equal shards"
        assert timeline.start_s[other] >= timeline.end_s[one]


@pytest.mark.parametrize("prefetch", [1, 2, 3, 20])
def test_prefetched_layers_are_held(prefetch: int) -> None:
    scenario = zero(3, overlap=BESIDE | {"prefetch": prefetch})
    layer = layer_parameters(scenario)
    root = num_parameters(scenario) - 8 * layer
    buffers = simulate_memory(scenario).stages[0].buffers_bytes
    assert buffers["gathered parameters"] == 2 * (root + min(1 + prefetch, 8) * layer)


def test_parameters_that_stay_unsharded_are_gathered_once() -> None:
    """2Ψ are sent instead of 3Ψ. All parameters are unsharded at the end of the forward pass."""
    scenario = zero(3, overlap=BESIDE, memory={"reshard_after_forward": False})
    again = zero(3, overlap=BESIDE)
    number = num_parameters(scenario)
    assert sent_bytes(pass_ops(scenario, "B"), "parameter gather") == 0
    assert pass_ops(scenario, "F") == pass_ops(again, "F")
    buffers = simulate_memory(scenario).stages[0].buffers_bytes
    assert buffers["gathered parameters"] == 2 * number
    assert run(scenario).iteration_time_s < run(again).iteration_time_s


@pytest.mark.parametrize("stage", [2, 3])
def test_only_the_last_microbatch_reduces(stage: int) -> None:
    """One reduction instead of eight needs 4Ψ for unsharded gradients."""
    deferred = zero(stage, overlap=BESIDE, memory={"reduce_every_microbatch": False})
    each = zero(stage, overlap=BESIDE)
    plan, number = plan_of(deferred), num_parameters(deferred)
    (earlier,) = (one for variant, one in plan.variants.items() if variant.skips_sync)
    assert sent_bytes(ops_of(earlier), "gradient reduction") == 0
    last = pass_ops(deferred, "B")
    assert sent_bytes(last, "gradient reduction") == pytest.approx(4 * number * 3 / 4)
    assert not any(op.name == "gradient accumulate" for op in last)
    stages = [simulate_memory(one).stages[0] for one in (deferred, each)]
    assert [one.states.gradients_bytes for one in stages] == [4 * number, number]
    assert "gradient bucket" not in stages[0].buffers_bytes
    results = [run(one) for one in (deferred, each)]
    assert results[0].iteration_time_s < results[1].iteration_time_s
    durations_s = [
        span.duration_s for span in results[0].timeline.spans() if span.name.startswith("0B")
    ]
    assert max(durations_s[:7]) - min(durations_s[:7]) < 1e-9
    assert durations_s[7] > durations_s[0]


@pytest.mark.parametrize("stage", [2, 3])
def test_a_single_microbatch_is_the_last(stage: int) -> None:
    """Its backward pass reduces with either setting, and no unsharded gradients are kept."""
    each = zero(stage, overlap=BESIDE).replace({"batch.global": 4})
    deferred = each.replace({"memory.reduce_every_microbatch": False})
    assert not any(variant.skips_sync for variant in plan_of(deferred).variants)
    assert run(deferred).iteration_time_s == run(each).iteration_time_s
    memory = [simulate_memory(one).stages[0].peak_bytes for one in (deferred, each)]
    assert memory[0] == memory[1]
