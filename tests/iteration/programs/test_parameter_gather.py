"""Buckets of the distributed optimizer, reduced and gathered during passes."""

import math
from typing import Any

import pytest

from simtrain.durations.collectives import total_wire_bytes
from simtrain.iteration.plan import PassVariant, Plan
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.workload.chunk import unit_parameters
from tests.helpers.toys import NARROW, a100, changed, machine_of, plan_of, run, small, zero

BUCKETS = ["layer", "megatron", 100_000_000]
BESIDE = {"data_parallel": True, "parameter_gather": True}


def pipeline(stages: int, interleave: int = 1, **overlap: Any) -> Scenario:
    """Return small stages of several nodes with two replicas each."""
    grid = {"tensor": 8, "pipeline": stages, "data": 2, "interleave": interleave}
    overlaps = BESIDE | {"pipeline": interleave > 1} | overlap
    return small(grid, memory={"zero_stage": 1}, overlap=overlaps)


def intervals(result: Result, stage: int, kind: str) -> list[tuple[float, float]]:
    """Return starts and ends of a stage's data-parallel collectives, in order."""
    return [
        (span.start_s, span.end_s)
        for span in result.timeline.spans()
        if span.stream == f"data {stage}" and span.name.startswith(kind)
    ]


def ends_of(result: Result, stage: int, action: str) -> tuple[float, float]:
    """Return the start and end of an action of a stage."""
    spans = [span for span in result.timeline.spans() if span.stream == f"stage {stage}"]
    found = [(span.start_s, span.end_s) for span in spans if span.name == action]
    return found[0][0], found[-1][1]


def bucket_bytes(plan: Plan, *, gathers: bool) -> float:
    """Return the bytes that a rank of a single stage sends for all buckets."""
    buckets = range(len(plan.buckets[0].parameters))
    held = plan.stage_parameters[0]
    return math.fsum(
        total_wire_bytes(
            plan.bucket_ops(0, one, held if one == buckets[-1] else None, gathers=gathers)
        )
        for one in buckets
    )


@pytest.mark.parametrize("rule", BUCKETS)
@pytest.mark.parametrize("tied", [False, True])
def test_buckets_send_the_bytes_of_an_all_reduce(rule: Any, tied: bool) -> None:
    """A reduce-scatter and an all-gather around a ring: 2Ψ(d - 1)/d elements."""
    overlap = BESIDE | {"gradient_buckets": rule}
    model = {"tied_embeddings": tied}
    plan = plan_of(zero(1, precision=NARROW, overlap=overlap, model=model))
    whole = plan_of(zero(1, precision=NARROW, model=model, memory={"zero_stage": 0}))
    (reduction,) = whole.steps[0]["data_reduction"]
    sent = bucket_bytes(plan, gathers=False) + bucket_bytes(plan, gathers=True)
    assert sent == pytest.approx(total_wire_bytes([reduction]), rel=1e-15)
    assert "parameter_gather" not in plan.steps[0]
    assert "data_reduction" not in plan.steps[0]


@pytest.mark.parametrize("interleave", [1, 2])
@pytest.mark.parametrize("rule", BUCKETS[1:])
def test_each_parameter_is_in_one_bucket(rule: Any, interleave: int) -> None:
    """Only the first chunk of the first stage has several buckets, as in Megatron-LM."""
    plan = plan_of(pipeline(4, interleave, gradient_buckets=rule))
    numbers = [len(buckets.parameters) for buckets in plan.buckets]
    assert numbers[1:] == [1] * (len(numbers) - 1)
    for stage, held in enumerate(plan.stage_parameters):
        chunks = plan.model_chunks.numbers[stage :: plan.mesh.pp]
        assert sum(sum(plan.buckets[chunk].parameters) for chunk in chunks) == held.total


@pytest.mark.parametrize(("size", "layers"), [(1, 1), (1.01, 2), (2, 2), (3, 3), (9, 8)])
def test_a_bucket_ends_with_the_layer_that_fills_it(size: float, layers: int) -> None:
    plan = plan_of(zero(1, overlap=BESIDE))
    units = unit_parameters(plan.chunks[0], plan.microbatch)
    held = {unit: held.total for unit, held in units.items()}
    rule = int(size * held[0])
    plan = plan_of(zero(1, overlap=BESIDE | {"gradient_buckets": rule}))
    (buckets,) = plan.buckets
    # The last layer's gradients come first, together with those of the final norm.
    assert buckets.num_layers[0] == (1 if size == 1.01 and held[-1] < 0.01 * held[0] else layers)
    assert all(number >= rule for number in buckets.parameters[:-1])
    assert sum(buckets.num_layers) == 8


def test_megatrons_default_is_40_million_parameters() -> None:
    """A bucket has at least a million parameters per replica. A layer here has 201 million, fewer
    than 256 replicas need.
    """
    for data, layers in ((4, 1), (256, 2)):
        overlap = BESIDE | {"gradient_buckets": "megatron"}
        (buckets,) = plan_of(zero(1, {"data": data}, overlap=overlap)).buckets
        assert buckets.num_layers == (layers,) * (8 // layers)


@pytest.mark.parametrize("rule", BUCKETS)
@pytest.mark.parametrize("adapter_bytes_per_s", [25e9, 5e8])
def test_a_bucket_is_gathered_while_the_previous_one_is_used(
    rule: Any, adapter_bytes_per_s: float
) -> None:
    """The first gather is exposed. The next starts when it has ended and the layers before it have
    run.
    """
    scenario = zero(1, {"tensor": 8}, overlap=BESIDE | {"gradient_buckets": rule})
    result = run(scenario, inter_node__adapter_bandwidth=adapter_bytes_per_s)
    plan = result.plan
    machine = machine_of(changed(a100(), inter_node__adapter_bandwidth=adapter_bytes_per_s))
    layer_ends_s = machine.time(plan.passes[PassVariant(0, "F")]).layer_ends_s
    pass_s = machine.time(plan.passes[PassVariant(0, "F")]).duration_s
    num_layers = plan.buckets[0].num_layers[::-1]
    cuts_s = [0.0, *(layer_ends_s[sum(num_layers[: i + 1]) - 1] for i in range(len(num_layers)))]
    cuts_s[-1] = pass_s
    held = plan.stage_parameters[0]
    gathered_s = ran_s = started_s = 0.0
    for place in range(len(num_layers)):
        bucket = len(num_layers) - 1 - place
        last = held if place == 0 else None
        ops = plan.bucket_ops(0, bucket, last, gathers=True)
        gathered_s = max(gathered_s, started_s) + machine.op_seconds(ops)
        started_s = ran_s
        ran_s = max(ran_s, gathered_s) + cuts_s[place + 1] - cuts_s[place]
    assert ends_of(result, 0, "0F0")[1] == pytest.approx(ran_s, rel=1e-12)


def test_stages_gather_one_after_another_while_the_pipeline_fills() -> None:
    """A stage starts its only gather when its first input arrives, so nothing hides it."""
    result = run(pipeline(4, gradient_buckets="megatron"))
    for stage in range(1, 4):
        ((start_s, end_s),) = intervals(result, stage, "parameters")
        (before_s,) = [
            span.end_s
            for span in result.timeline.spans()
            if span.stream == f"stage {stage}" and span.end_s <= start_s
        ][-1:]
        assert start_s == before_s
        assert start_s >= ends_of(result, stage - 1, f"{stage - 1}F0")[1]
        assert ends_of(result, stage, f"{stage}F0")[0] == end_s
    at_once = run(pipeline(4, gradient_buckets="megatron", parameter_gather=False))
    assert result.iteration_time_s > at_once.iteration_time_s


def test_aligned_stages_gather_ahead() -> None:
    """Chunks 0 and 1 are gathered at once, chunk 2 when the first stage reaches its
    second chunk.
    """
    later, ahead = (
        run(pipeline(2, 4, gradient_buckets="megatron", align_parameter_gather=aligned))
        for aligned in (False, True)
    )
    assert ahead.iteration_time_s < later.iteration_time_s
    for stage in range(2):
        gathers = intervals(ahead, stage, "parameters")
        chunk = plan_of(ahead.scenario).buckets[ahead.plan.model_chunks.numbers[0]]
        others = gathers[len(chunk.parameters) if stage == 0 else 1 :]
        assert gathers[0][0] == 0
        assert others[0][0] == gathers[-len(others) - 1][1]
        # Passes of chunk 1 start after two passes of chunk 0, or after one on stage 1.
        before_s = ends_of(ahead, stage, ("2F0", "1F1")[stage])[0]
        assert others[1][0] == max(others[0][1], before_s)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_aligned_stages_reduce_after_all_their_passes(schedule: str) -> None:
    scenario = pipeline(4, align_gradient_reduction=True).replace({"schedule": schedule})
    result, freely = (
        run(scenario),
        run(scenario.replace({"overlap.align_gradient_reduction": False})),
    )
    assert intervals(result, 0, "gradients") != []
    for stage in range(1, 4):
        last = ends_of(result, stage, f"{stage}B7")[1]
        assert intervals(result, stage, "gradients")[0][0] >= last
        assert intervals(freely, stage, "gradients")[0][0] < last


def test_aligned_chunks_are_reduced_as_many_passes_later_as_their_stage() -> None:
    result = run(pipeline(4, 2, align_gradient_reduction=True))
    order = result.plan.schedule.ranks
    for stage in range(4):
        backwards = [str(action) for action in order[stage] if action.kind == "B"]
        reduced = intervals(result, stage, "gradients")
        place = backwards.index(f"{stage + 4}B7") + stage
        assert reduced[0][0] == ends_of(result, stage, backwards[place])[1]
        assert reduced[1][0] >= ends_of(result, stage, backwards[-1])[1]
