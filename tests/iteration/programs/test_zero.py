"""Communication and time of ZeRO, by hand and as laws."""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.base.mesh import AXES, Axis, Group, Mesh
from simtrain.durations.collectives import wire_bytes
from simtrain.engine import simulate as run_program
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.pass_tasks import pass_program
from simtrain.scenario import Scenario
from simtrain.schedules import Action
from simtrain.studies.simulation import simulate
from simtrain.workload.chunk import unit_parameters
from simtrain.workload.ops import Op
from simtrain.workload.optimizer import data_reduction
from simtrain.workload.passes import record_pass
from simtrain.workload.work import Collective, Elementwise
from tests.helpers.toys import (
    NARROW,
    a100,
    changed,
    layer_parameters,
    machine_of,
    num_parameters,
    ops_of,
    pass_of,
    plan_of,
    ring_start_s,
    run,
    small,
    waits_of,
    with_microbatches,
    zero,
)


def passes(scenario: Scenario) -> list[tuple[Op, ...]]:
    """Return the ops of a forward and of a backward pass."""
    plan = plan_of(scenario)
    return [ops_of(pass_of(plan, Action(0, kind, 0))) for kind in ("F", "B")]


def to_replicas(ops: Iterable[Op]) -> Iterator[Collective]:
    """Return the data-parallel collectives."""
    for op in ops:
        if isinstance(op.work, Collective) and op.work.group.axes == ("cp", "dp"):
            yield op.work


def after_passes(plan: Plan) -> Iterator[Op]:
    """Return the ops of the first stage's optimizer step and of its gradient buckets."""
    step = plan.steps[0]
    yield from itertools.chain(*step.values())
    if plan.has_buckets:
        for unit in unit_parameters(plan.chunks[0], plan.microbatch).values():
            yield from data_reduction(plan.step_options, unit.total)


def data_bytes(scenario: Scenario) -> float:
    """Return the bytes that a rank of the only stage sends to other replicas per iteration."""
    within, after = itertools.chain(*passes(scenario)), after_passes(plan_of(scenario))
    within_bytes = math.fsum(map(wire_bytes, to_replicas(within)))
    after_bytes = math.fsum(map(wire_bytes, to_replicas(after)))
    return scenario.num_microbatches * within_bytes + after_bytes


# ---------------------------------------------------------------------------------- volumes

POLICIES: list[Any] = [
    "none",
    "selective",
    "full",
    {"strategy": "full", "num_layers": 3},
    {"strategy": "full", "method": "block", "num_layers": 5},
]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("stage", "volume"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_the_volumes_of_the_zero_paper(stage: int, volume: int, tied: bool, overlap: bool) -> None:
    """2Ψ elements up to stage 2 and 3Ψ in stage 3, over a ring of d (ZeRO, Section 7)."""
    scenario = with_microbatches(
        zero(
            stage,
            precision=NARROW,
            model={"tied_embeddings": tied},
            overlap={"data_parallel": overlap},
        ),
        1,
    )
    elements = data_bytes(scenario) / 2 / (3 / 4)
    assert elements == pytest.approx(volume * num_parameters(scenario), rel=1e-15)


@pytest.mark.parametrize("recompute", POLICIES)
def test_one_gather_serves_recompute_and_backward(recompute: Any) -> None:
    scenario = with_microbatches(zero(3, precision=NARROW, recompute=recompute), 1)
    assert data_bytes(scenario) == pytest.approx(3 * 2 * 3 / 4 * num_parameters(scenario))


@given(
    stage=st.integers(0, 3),
    data=st.integers(2, 8),
    microbatches=st.integers(1, 5),
    narrow=st.booleans(),
)
@settings(max_examples=40)
def test_bytes_to_other_replicas(stage: int, data: int, microbatches: int, narrow: bool) -> None:
    """Gradients have g bytes. Stages 0 and 1 reduce their sum, stages 2 and 3 reduce each
    microbatch's.

    With fp32 gradients stage 1 sends less than stage 0: 4 + 2 bytes per parameter instead of 8.
    """
    precision = NARROW if narrow else {}
    scenario = with_microbatches(zero(stage, {"data": data}, precision=precision), microbatches)
    g, m = 2 if narrow else 4, microbatches
    a_parameter = {0: 2 * g, 1: g + 2, 2: m * g + 2, 3: m * (g + 2 + 2)}[stage]
    expected = a_parameter * num_parameters(scenario) * (data - 1) / data
    assert data_bytes(scenario) == pytest.approx(expected, rel=1e-14)


def test_every_unit_is_reduced_and_gathered_once_a_pass() -> None:
    scenario = zero(3)
    layer = layer_parameters(scenario)
    others = num_parameters(scenario) - 8 * layer

    def sizes(ops: tuple[Op, ...], name: str) -> list[int]:
        found = [op.work for op in ops if op.name == name]
        return [work.array_bytes for work in found if isinstance(work, Collective)]

    forward, backward = passes(scenario)
    for ops in (forward, backward):
        assert sizes(ops, "parameter gather") == [2 * others] + 8 * [2 * layer]
    assert sizes(forward, "gradient reduction") == []
    assert sizes(backward, "gradient reduction") == 8 * [4 * layer] + [4 * others]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_reduced_shard_is_added_after_its_reduction(overlap: bool) -> None:
    """4 bytes of each gradient are read and written; of a quarter, 8 are read and 4 written."""
    scenario = zero(2, overlap={"data_parallel": overlap})
    record = record_pass(pass_of(plan_of(scenario), Action(0, "B", 0)))
    ops, waits = list(record.ops), waits_of(record)
    where = {
        name: [place for place, op in enumerate(ops) if op.name == f"gradient {name}"]
        for name in ("average", "reduction", "accumulate")
    }
    works = {name: [ops[place].work for place in places] for name, places in where.items()}
    moved = {
        name: sum(work.moved_bytes for work in works[name] if isinstance(work, Elementwise))
        for name in ("average", "accumulate")
    }
    whole = num_parameters(scenario)
    assert moved == {"average": 8 * whole, "accumulate": 3 * whole}
    units = list(zip(*where.values(), strict=True))
    assert len(units) == 9
    for average, reduction, accumulate in units:
        assert average in waits[reduction]
        assert reduction in waits[accumulate]
    assert all(later[0] > earlier[2] for earlier, later in itertools.pairwise(units))


# -------------------------------------------------------------------------- stage 1, by hand


def test_reduce_scatter_and_gather_by_hand() -> None:
    """Two nodes have one rank each: half of the bytes cross one adapter at its concurrent
    efficiency.
    """
    scenario = zero(1, {"tensor": 8, "data": 2})
    network = a100().inter_node
    bandwidth = 25e9 * network.concurrent_efficiency.value
    latency_s = ring_start_s() + network.step_latency.value
    expected_s = {
        "gradient reduction": latency_s + num_parameters(scenario) * 4 / 2 / bandwidth,
        "parameter all-gather": latency_s + num_parameters(scenario) * 2 / 2 / bandwidth,
    }
    result = run(scenario)
    spans = {span.name: span for span in result.timeline.spans()}
    for name, seconds in expected_s.items():
        assert spans[name].duration_s == pytest.approx(seconds)
    assert result.breakdown.data_communication_s == pytest.approx(sum(expected_s.values()))
    assert spans["parameter all-gather"].start_s == spans["Adam"].end_s
    assert spans["parameter all-gather"].end_s == result.iteration_time_s


@pytest.mark.parametrize("data", [2, 4, 8])
def test_a_replica_updates_its_shard(data: int) -> None:
    """Norm, clip, Adam and cast pass over 1/d of the parameters, average and zero over all."""
    free = {"memory_bound__kernel_latency": 0.0, "inter_node__step_latency": 0.0}
    scenario, bandwidth = zero(1, {"data": data}), a100().memory_bound.stream_bandwidth.value
    number = num_parameters(scenario)
    spans = {span.name: span for span in run(scenario, **free).timeline.spans()}
    assert spans["gradient average"].duration_s == pytest.approx(8 * number / bandwidth)
    assert spans["gradient norm"].duration_s == pytest.approx(4 * number / data / bandwidth)
    part = (8 + 28 + 4 + 2) * number / data
    assert spans["Adam"].duration_s == pytest.approx((part + 4 * number) / bandwidth)


def test_every_rank_has_a_part_of_the_norm() -> None:
    """Four stages of four ranks and two replicas: 16 ranks hold all parts without
    ZeRO, 32 with it.
    """

    def summed_over(stage: int) -> tuple[int, tuple[Axis, ...]]:
        plan = plan_of(small({"data": 2}, memory={"zero_stage": stage}))
        (reduction,) = plan.steps[0]["norm_reduction"]
        assert isinstance(reduction.work, Collective)
        return reduction.work.group.num_ranks, reduction.work.group.axes

    assert summed_over(0) == (16, ("tp", "pp"))
    assert summed_over(1) == (32, AXES)
    assert Mesh(tp=4, dp=2, pp=4, gpus_per_node=8).group(*AXES) == Group(AXES, 32, 8)
    assert Mesh(tp=2, dp=3, pp=2, gpus_per_node=8).group(*AXES) == Group(AXES, 12, 8)


# ------------------------------------------------------------------------- stages 2 and 3


@pytest.mark.parametrize("recompute", POLICIES)
@pytest.mark.parametrize("hide_tensor", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_layer_has_its_parameters_before_it_runs(
    recompute: Any, hide_tensor: bool, overlap: bool
) -> None:
    """With overlap, only the parameters of the next unit are prefetched."""
    hidden = {"data_parallel": overlap, "tensor_parallel": hide_tensor}
    scenario = zero(3, {"tensor": 2}, recompute=recompute, overlap=hidden)
    plan = plan_of(scenario)
    machine = machine_of(changed(a100(), inter_node__adapter_bandwidth=1e9))
    blocks = [*plan.chunks[0].blocks]
    for kind in ("F", "B"):
        record = record_pass(pass_of(plan, Action(0, kind, 0)))
        program = pass_program(record, machine.pass_machine())
        timeline = run_program(program)
        tasks = range(1, program.num_tasks, 2)
        ops = list(zip(record.ops, tasks, strict=True))
        _, *gathers = (task for op, task in ops if op.name == "parameter gather")
        first: dict[int, int] = {}
        for owner, start in zip(record.owners, record.starts[:-1], strict=True):
            if owner >= 0 and blocks[owner].is_unit:
                first.setdefault(owner, tasks[start])
        needed = sorted(first, key=lambda layer: first[layer])
        assert len(needed) == len(gathers) == 8
        for place, (layer, gather) in enumerate(zip(needed, gathers, strict=True)):
            assert timeline.end_s[gather] <= timeline.start_s[first[layer]]
            if place + 1 < len(gathers):
                issued_ahead = gathers[place + 1] < first[layer]
                assert issued_ahead == overlap
            if place + 2 < len(gathers):
                later = timeline.start_s[gathers[place + 2]]
                assert later >= timeline.start_s[first[layer]]


@pytest.mark.parametrize(
    ("stage", "overlap", "recompute", "gathered", "undivided"),
    [
        (1, False, "none", None, None),
        (2, False, "full", None, 1),
        (2, True, "full", None, 2),
        (3, False, "full", 1, 1),
        (3, True, "selective", 2, 2),
        (3, True, {"strategy": "full", "num_layers": 3}, 4, 2),
        (3, True, {"strategy": "full", "method": "block", "num_layers": 3}, 2, 2),
    ],
)
def test_layers_that_are_whole_at_a_time(
    stage: int, overlap: bool, recompute: Any, gathered: int | None, undivided: int | None
) -> None:
    """A recomputed unit stays unsharded until its backward pass. With overlap, so
    is the next unit.
    """
    scenario = zero(stage, recompute=recompute, overlap={"data_parallel": overlap})
    layer = layer_parameters(scenario)
    others = num_parameters(scenario) - 8 * layer
    buffers = simulate(scenario).memory.stages[0].buffers_bytes
    for name, num_layers, size in (
        ("gathered parameters", gathered, 2),
        ("gradient bucket", undivided, 4),
    ):
        expected = None if num_layers is None else size * (num_layers * layer + others)
        assert buffers.get(name) == expected
