"""A whole iteration: its breakdown, and the effects of other hardware."""

import itertools
from typing import Any

import pytest

from simtrain.iteration.report.breakdown import Breakdown
from simtrain.iteration.report.result import Result
from simtrain.scenario import load_scenario
from simtrain.studies.simulation import simulate
from simtrain.workload.work import Collective, CollectiveKind
from tests.helpers.toys import (
    INSTANT_RINGS,
    SMALL_MODEL,
    a100,
    gradient_reduction_s,
    machine_of,
    plan_of,
    run,
    scenario_with,
    small,
)


def test_one_gpu_and_one_microbatch_is_the_sum_of_its_parts() -> None:
    """Forward, backward, average, norm and update run one after another."""
    scenario = scenario_with(SMALL_MODEL)
    plan, machine = plan_of(scenario), machine_of(a100())
    (whole,), (step,) = plan.chunks, plan.steps
    forward, backward = (
        machine.time(plan.chunk_pass(whole, kind, saves_all=True)) for kind in ("F", "B")
    )
    assert set(step) == {"average", "norm", "update"}
    step_s = machine.op_seconds(itertools.chain(*step.values()))
    result = run(scenario)
    expected_s = forward.duration_s + backward.duration_s + step_s
    assert result.iteration_time_s == pytest.approx(expected_s)
    assert result.breakdown.optimizer_s == pytest.approx(step_s)
    assert result.breakdown.compute_s == pytest.approx(forward.compute_s + backward.compute_s)
    assert result.breakdown.bubble_s == pytest.approx(0, abs=1e-9)
    assert result.breakdown.tensor_communication_s == 0


def test_a_what_if_in_the_scenario_equals_a_changed_profile() -> None:
    """Doubling the NVLink bandwidth in `hardware:` equals changing the entry of the profile."""
    name, setting = "table4_baseline", "hardware.intra_node.bandwidth=600 GB/s"
    plain, overridden = simulate(load_scenario(name)), simulate(load_scenario(name, [setting]))
    set_in_profile = run(load_scenario(name), intra_node__bandwidth=600e9)
    assert overridden.iteration_time_s == set_in_profile.iteration_time_s
    assert overridden.iteration_time_s < plain.iteration_time_s
    assert overridden.profile.intra_node.bandwidth.source == "set in the scenario"


@pytest.mark.parametrize("zero_stage", [0, 1])
@pytest.mark.parametrize(
    "own",
    [
        {},
        {"first_stage_layers": 3},
        {"layout": "E|t*8L"},
        {"layout": "E|t|tt|t|t|tt|t|L", "interleave": 2, "pipeline": 4},
    ],
    ids=lambda own: own.get("layout", str(own.get("first_stage_layers"))),
)
def test_buckets_reduce_every_gradient_once(own: dict[str, Any], zero_stage: int) -> None:
    """Without latencies, splitting the reduction by layers does not change its time."""
    grid, memory = {"tensor": 8, "pipeline": 2, "data": 2, **own}, {"zero_stage": zero_stage}
    free = INSTANT_RINGS | {"memory_bound__kernel_latency": 0.0}
    exposed, hidden = (
        run(small(grid, memory=memory, overlap={"data_parallel": overlap}), **free)
        for overlap in (False, True)
    )
    for stage in range(exposed.scenario.parallelism.pipeline):
        at_once_s = gradient_reduction_s(exposed, stage)
        buckets_s = [x.duration_s for x in hidden.timeline.spans() if x.stream == f"data {stage}"]
        assert sum(buckets_s) == pytest.approx(at_once_s)
    assert hidden.iteration_time_s < exposed.iteration_time_s


def test_no_stage_updates_before_the_norm_is_reduced() -> None:
    """The norm of the whole model's gradients is a barrier for all stages."""
    spans = list(run(small()).timeline.spans())
    norms = [span.end_s for span in spans if span.name == "gradient norm"]
    steps = [span.start_s for span in spans if span.name == "Adam"]
    assert len(norms) == len(steps) == 4
    assert len(set(norms)) > 1
    assert min(steps) > max(norms)


def test_tied_embeddings_are_reduced_between_the_ends() -> None:
    tied, untied = (run(small(model={"tied_embeddings": tied})) for tied in (True, False))

    def reductions(result: Result) -> list[str]:
        return [span.name for span in result.timeline.spans() if span.stream == "embedding"]

    assert reductions(tied) == ["embedding gradient all-reduce"]
    assert reductions(untied) == []
    assert tied.iteration_time_s > untied.iteration_time_s


def test_precision_changes_the_bytes_moved() -> None:
    """fp16 unscales gradients; 16-bit gradients take half as long to reduce."""

    def parts(compute: str, gradients: str) -> Breakdown:
        precision = {"compute": compute, "gradients": gradients}
        grid = {"tensor": 8, "pipeline": 1, "data": 2}
        return run(small(grid, precision=precision), **INSTANT_RINGS).breakdown

    bf16, fp16, narrow = parts("bf16", "fp32"), parts("fp16", "fp32"), parts("bf16", "bf16")
    assert fp16.optimizer_s > bf16.optimizer_s
    assert fp16.compute_s == bf16.compute_s
    assert narrow.data_communication_s == pytest.approx(bf16.data_communication_s / 2)
    assert narrow.compute_s < bf16.compute_s


TRANSFER = {"pipeline": 2, "tensor": 8}
SBH2 = 2 * 2048 * 4096


def durations(result: Result, kind: str) -> set[float]:
    return {round(span.duration_s, 12) for span in result.timeline.spans() if span.kind == kind}


@pytest.mark.parametrize(
    ("grid", "num_bytes", "gathers"),
    [
        ({}, SBH2 / 8, True),
        ({"scatter_gather": False}, SBH2, False),
        ({"sequence_parallel": True}, SBH2 / 8, False),
    ],
)
def test_bytes_that_a_stage_sends(grid: dict[str, Any], num_bytes: float, gathers: bool) -> None:
    """A rank sends 2sbh/t that is gathered on receive, all of 2sbh, or its part of the sequence."""
    result = run(small(TRANSFER | grid))
    link = a100().inter_node.point_to_point
    send_s = link.latency.value + num_bytes / (25e9 * link.efficiency.value)
    gather = Collective(CollectiveKind.ALL_GATHER, SBH2, result.plan.mesh.group("tp"))
    gather_s = machine_of(a100()).model.seconds(gather)
    (transfer_s,) = durations(result, "transfer")
    assert transfer_s == pytest.approx(send_s)
    assert durations(result, "receive gather") == ({round(gather_s, 12)} if gathers else set())


def test_the_host_posts_each_message_of_an_exchange() -> None:
    """An exchange has one message at the ends of 1F1B, and a send and a receive in between."""
    result = run(small(TRANSFER), host__issue=1e-3)
    assert durations(result, "synchronize") == {1e-3, 2e-3}
