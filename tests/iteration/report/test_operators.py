"""Operators of an iteration: seconds as in the breakdown, FLOPs as in MFU and HFU."""

import functools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.engine import Program, Task, exposed_seconds, find_idle_seconds
from simtrain.engine import simulate as run_program
from simtrain.errors import InputError
from simtrain.hardware.entries import entry_of
from simtrain.iteration.report.breakdown import breakdown_by_name
from simtrain.iteration.report.operators import HOST_ISSUE, StageOperators, source_of
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from tests.helpers.expert_models import moe
from tests.helpers.toys import run, small, zero

FULLY_SHARD = {"stack": "megatron_2022", "fully_shard": True}
CONTEXT: dict[str, Any] = {"context": 2, "context_communication": "p2p", "data": 2}
SCENARIOS: dict[str, Scenario] = {
    "dense": small({"sequence_parallel": True}, recompute="selective"),
    "one rank": small({"tensor": 1, "pipeline": 1, "data": 1}, recompute="full"),
    "interleaved": small({"interleave": 2}, schedule="interleaved", overlap={"pipeline": True}),
    "buckets": small(
        {"data": 8},
        overlap={"data_parallel": True, "parameter_gather": True},
        memory={"zero_stage": 1},
    ),
    "blocking": small({"data": 4, "scatter_gather": True}),
    "experts": moe(),
    "experts, overlapped": moe({"shared_ffn_hidden_size": 64}, overlap={"shared_expert": True}),
    "context": small(CONTEXT, attention_backend="fused"),
    "zero 3": zero(3, overlap={"data_parallel": True}),
    "fully_shard in a pipeline": small(
        {"tensor": 1, "pipeline": 2, "data": 4},
        model={"tied_embeddings": False},
        memory={"zero_stage": 3, "reduce_every_microbatch": False},
        overlap={"data_parallel": True},
        software=FULLY_SHARD,
    ),
    "post-validation": small(
        schedule="zb_h2",
        model={"tied_embeddings": False},
        overlap={"optimizer_post_validation": True},
    ),
    "offload": zero(1, memory={"offload_optimizer": True}),
}


@functools.cache
def result_of(name: str) -> Result:
    return run(SCENARIOS[name])


@functools.cache
def tables_of(name: str) -> list[StageOperators]:
    """Return the operators of each stage."""
    return [result_of(name).operators(stage) for stage in range(len(result_of(name).stages))]


@pytest.mark.parametrize("name", SCENARIOS)
def test_seconds_of_rows_add_up_to_the_breakdown_of_each_stage(name: str) -> None:
    result = result_of(name)
    for breakdown, table in zip(result.stages, tables_of(name), strict=True):
        seconds = breakdown_by_name(breakdown)
        for cause in seconds.keys() - {"launch", "bubble"}:
            rows_s = math.fsum(row.exposed_s for row in table.of_cause(cause))
            assert rows_s == pytest.approx(seconds[cause], abs=1e-9 * result.iteration_time_s)
        idle_s = breakdown.launch_s + breakdown.bubble_s
        rows_s = math.fsum(row.exposed_s for row in table.rows)
        assert rows_s + idle_s == pytest.approx(result.iteration_time_s, rel=1e-9)


@pytest.mark.parametrize("name", SCENARIOS)
def test_flops_of_rows_are_those_of_mfu_and_hfu(name: str) -> None:
    result = result_of(name)
    rows = [row for table in tables_of(name) for row in table.rows]
    replicas = result.plan.mesh.size("tp", "cp", "dp")
    assert replicas * sum(row.model_flops for row in rows) == result.model_flops
    assert replicas * sum(row.flops for row in rows) == result.hardware_flops


@pytest.mark.parametrize("name", SCENARIOS)
def test_ops_are_hidden_only_while_they_run_and_nothing_runs_faster_than_alone(name: str) -> None:
    for row in tables_of(name)[0].rows:
        assert 0 <= row.exposed_s <= row.total_s * (1 + 1e-12)
        assert row.alone_s <= row.total_s * (1 + 1e-9)
        if row.cause in ("compute", "recompute", "optimizer"):
            assert row.hidden_s == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_row_has_a_limit_and_an_entry_with_a_source(name: str) -> None:
    result, table = result_of(name), tables_of(name)[-1]
    for row in table.rows:
        assert row.bottleneck, row.name
        assert {row.bottleneck.entry, *row.bottleneck.shares} <= table.sources.keys()
    for entry, source in table.sources.items():
        assert source.source == entry_of(result.profile, entry).source


def test_a_product_is_counted_for_each_layer_and_microbatch() -> None:
    rows = tables_of("dense")[1].rows
    (forward,) = [row for row in rows if (row.name, row.phase) == ("QKV", "forward")]
    model = SCENARIOS["dense"].model
    assert forward.count == 2 * 8
    tokens, hidden = model.seq_length, model.hidden_size
    width = hidden + 2 * model.kv_channels * model.num_query_groups
    assert forward.flops == 16 * 2 * tokens * hidden * width // 4
    assert forward.total_s == pytest.approx(forward.flops / forward.flops_per_s)


def test_the_slowest_stage_is_the_default() -> None:
    result = result_of("dense")
    table = result.operators()
    assert table.is_slowest
    assert table.breakdown.bubble_s == min(stage.bubble_s for stage in result.stages)


def test_the_hosts_time_comes_from_the_scenario_the_stack_or_the_profile() -> None:
    plain, own = run(small()), run(small(software={"host_issue": "25 us"}))
    assert source_of(HOST_ISSUE, plain).source == plain.profile.host.issue.source
    assert source_of(HOST_ISSUE, own).value == 25e-6
    assert "scenario" in source_of(HOST_ISSUE, own).source
    assert HOST_ISSUE in own.operators().sources


def test_extrapolated_compute_is_the_share_of_kernels_outside_the_fitted_range() -> None:
    """On one rank kernels run alone, so the operators have the same seconds."""
    result = run(small({"tensor": 1, "pipeline": 1, "data": 1}, model={"hidden_size": 6144}))
    table = result.operators()
    kernels = table.of_cause("compute") + table.of_cause("recompute")
    outside_s = math.fsum(row.exposed_s for row in kernels if row.basis == "extrapolated")
    whole_s = math.fsum(row.exposed_s for row in kernels)
    assert 0 < result.extrapolated_compute < 1
    assert result.extrapolated_compute == pytest.approx(outside_s / whole_s)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5), st.lists(st.integers(0, 20), max_size=2)),
        min_size=1,
        max_size=20,
    )
)
def test_exposed_seconds_of_tasks_add_up_to_the_idle_seconds_of_streams(
    tasks: list[tuple[int, int, list[int]]],
) -> None:
    program = Program.of(
        Task(
            f"task {place}",
            f"stream {stream}",
            float(duration),
            tuple(one % place for one in waits if place),
        )
        for place, (stream, duration, waits) in enumerate(tasks)
    )
    timeline = run_program(program)
    count = len(program.graph.streams)
    exposed_s = exposed_seconds(timeline, range(count))
    by_stream = np.bincount(program.graph.stream_of, exposed_s, count)
    own, others = np.zeros(1, np.int32), np.arange(1, count, dtype=np.int32)[np.newaxis]
    if count > 1:
        idle_s = find_idle_seconds(timeline, own, others, others - 1, "auto")[0]
        assert by_stream[1:] == pytest.approx(idle_s)
    assert exposed_s.sum() <= timeline.makespan_s * (1 + 1e-12)


@pytest.mark.parametrize("stage", [-1, 4])
def test_a_stage_outside_the_pipeline_is_refused(stage: int) -> None:
    with pytest.raises(InputError, match="E506") as caught:
        result_of("dense").operators(stage)
    assert "0 to 3" in str(caught.value)
