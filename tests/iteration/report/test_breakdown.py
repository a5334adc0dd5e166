"""The report on an iteration: parts of the breakdown, utilization and extrapolated ops."""

import re
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.iteration.programs.iteration_tasks import label_of
from simtrain.iteration.programs.parts import (
    BucketPart,
    HostUpdatePart,
    OffloadPart,
    OptimizerPart,
    PassPart,
    ReceiveGatherPart,
    SynchronizationPart,
    TransferPart,
)
from simtrain.iteration.report.breakdown import KIND_LABELS, Breakdown
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from simtrain.workload.optimizer import STEP_FIELDS
from simtrain.workload.passes import PassKind
from tests.helpers.toys import a100, paper_scenario, run, small


def scenarios() -> st.SearchStrategy[Scenario]:
    """Draw scenarios with any recompute and schedule, with and without overlap, on
    up to 64 GPUs.
    """

    @st.composite
    def draw_one(draw: st.DrawFn) -> Scenario:
        schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved"]))
        interleaved = schedule == "interleaved"
        tensor = draw(st.sampled_from([1, 2, 8]))
        return small(
            {
                "tensor": tensor,
                "sequence_parallel": tensor > 1 and draw(st.booleans()),
                "pipeline": 4 if interleaved else draw(st.sampled_from([1, 2, 4])),
                "interleave": 2 if interleaved else 1,
                "data": draw(st.sampled_from([1, 2])),
            },
            schedule=schedule,
            recompute=draw(st.sampled_from(["none", "selective", "full"])),
            overlap={
                "tensor_parallel": draw(st.booleans()),
                "pipeline": interleaved and draw(st.booleans()),
                "data_parallel": draw(st.booleans()),
            },
        )

    return draw_one()


def covered_s(result: Result, streams: set[str]) -> float:
    """Return the seconds in which at least one of these streams runs a task."""
    spans = sorted(
        (span.start_s, span.end_s) for span in result.timeline.spans() if span.stream in streams
    )
    total_s = until_s = 0.0
    for start_s, end_s in spans:
        total_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return total_s


def streams_of(result: Result, stage: int) -> set[str]:
    """Return the streams of all tasks that a stage runs or takes part in."""
    ends = (0, result.scenario.parallelism.pipeline - 1)
    return {f"stage {stage}", f"data {stage}", "model"} | {
        stream
        for stream in result.timeline.busy_s()
        if re.fullmatch(rf"(link|wrap) ({stage}->\d+|\d+->{stage})", stream)
        or (stream == "embedding" and stage in ends)
    }


@settings(max_examples=40)
@given(scenarios())
def test_parts_of_every_stage_add_up(scenario: Scenario) -> None:
    """The bubble is the time in which no stream of the stage runs a task."""
    result = run(scenario)
    assert len(result.stages) == scenario.parallelism.pipeline
    assert result.breakdown.total_s == pytest.approx(result.iteration_time_s)
    for number, stage in enumerate(result.stages):
        assert stage.total_s == pytest.approx(result.iteration_time_s)
        assert min(getattr(stage, name) for name in Breakdown.__slots__) >= 0
        idle_s = result.iteration_time_s - covered_s(result, streams_of(result, number))
        assert stage.bubble_s == pytest.approx(idle_s, abs=1e-9)


def test_utilization_follows_from_its_definition() -> None:
    """Section 6.3: FLOPs divided by iteration time, number of GPUs and 312 TFLOP/s."""
    scenario = small({"data": 2}, recompute="full")
    result = run(scenario)
    s, h, v, num_layers = 2048, 4096, 51200, 8
    assert result.model_flops == pytest.approx(
        72 * 16 * num_layers * s * h**2 * (1 + s / (6 * h) + v / (12 * h * num_layers))
    )
    available = 312e12 * 32 * result.iteration_time_s
    assert result.mfu == pytest.approx(result.model_flops / available)
    assert result.hfu == pytest.approx(result.hardware_flops / available)
    assert result.tokens_per_s == pytest.approx(16 * 2048 / result.iteration_time_s)
    assert result.num_simulated_ranks == 4


def test_recompute_trades_time_for_memory() -> None:
    """Full recompute runs the layers' forward pass again, selective recompute only the attention
    core.
    """
    none, selective, full = (run(small(recompute=name)) for name in ("none", "selective", "full"))
    assert none.breakdown.recompute_s == 0
    assert 0 < selective.breakdown.recompute_s < full.breakdown.recompute_s
    assert none.iteration_time_s < selective.iteration_time_s < full.iteration_time_s
    assert none.model_flops == selective.model_flops == full.model_flops
    assert none.hfu == none.mfu


@pytest.mark.parametrize("model", ["175B"])
def test_extrapolated_ops_are_named(model: str) -> None:
    result = simulate(paper_scenario(model, sequence=True, recompute="selective"), a100())
    assert "logits" not in result.extrapolated
    assert "gradient norm all-reduce" in result.extrapolated


def test_every_kind_of_task_has_a_label() -> None:
    parts = [
        *(PassPart(0, kind, saves_all=False) for kind in get_args(PassKind)),
        PassPart(0, "F", saves_all=False, beside=PassPart(0, "B", saves_all=False)),
        *(BucketPart(0, 0, 0, is_last=True, gathers=gathers) for gathers in (False, True)),
        *(TransferPart(1, 0), ReceiveGatherPart(), SynchronizationPart(1)),
        *(OffloadPart(0, False, 0, to_host=to_host) for to_host in (False, True)),
        *map(OptimizerPart, STEP_FIELDS),
        HostUpdatePart("adam", 0, 1),
    ]
    assert {label_of(part)[1] for part in parts} == set(KIND_LABELS)
