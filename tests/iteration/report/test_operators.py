"""Operators of an iteration: seconds as in the breakdown, FLOPs as in MFU and HFU."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.engine import Program, Task, exposed_seconds, find_idle_seconds
from simtrain.engine import simulate as run_program
from simtrain.errors import InputError
from simtrain.iteration.report.operators import HOST_ISSUE, source_of
from tests.helpers.toys import run, small

DENSE = run(small({"sequence_parallel": True}, recompute="selective"))


def test_a_product_is_counted_for_each_layer_and_microbatch() -> None:
    rows = DENSE.operators(1).rows
    (forward,) = [row for row in rows if (row.name, row.phase) == ("QKV", "forward")]
    model = DENSE.scenario.model
    assert forward.count == 2 * 8
    tokens, hidden = model.seq_length, model.hidden_size
    width = hidden + 2 * model.kv_channels * model.num_query_groups
    assert forward.flops == 16 * 2 * tokens * hidden * width // 4
    assert forward.total_s == pytest.approx(forward.flops / forward.flops_per_s)


def test_the_slowest_stage_is_the_default() -> None:
    table = DENSE.operators()
    assert table.is_slowest
    assert table.breakdown.bubble_s == min(stage.bubble_s for stage in DENSE.stages)


def test_the_hosts_time_comes_from_the_scenario_the_stack_or_the_profile() -> None:
    plain, own = run(small()), run(small(software={"host_issue": "25 us"}))
    assert source_of(HOST_ISSUE, plain.seconds).source == plain.profile.host.issue.source
    assert source_of(HOST_ISSUE, own.seconds).value == 25e-6
    assert "scenario" in source_of(HOST_ISSUE, own.seconds).source
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
        DENSE.operators(stage)
    assert "0 to 3" in str(caught.value)
