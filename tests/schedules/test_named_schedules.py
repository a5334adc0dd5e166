"""Schedules with split backward passes and of two directions: orders, bubbles and peaks."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.engine import simulate
from simtrain.errors import InputError
from simtrain.scenario.check import load_scenario, load_unchecked
from simtrain.schedules import (
    NAMED,
    Action,
    MergedActions,
    OrderOptions,
    Schedule,
    build,
    most_outstanding,
    time_slots,
)
from simtrain.schedules.stage_placement import two_directions
from tests.helpers.pipelines import PipelineSeconds, pipeline_program
from tests.helpers.toys import plan_of, small


def seconds(schedule: Schedule, forward: int, inputs: int, weights: int) -> tuple[int, int]:
    """Return the time of a schedule, and the longest time from a rank's first to its last pass."""
    took = {"F": forward, "I": inputs, "W": weights, "B": inputs + weights}
    durations = PipelineSeconds(lambda action: took[action.kind], lambda message, sends: 0)
    program, tasks = pipeline_program(schedule, durations, overlap=True)
    timeline, starts = simulate(program), schedule.rank_starts
    begins_s, ends_s = timeline.start_s[tasks.first], timeline.end_s[tasks.last]
    spans = ends_s[starts[1:] - 1] - begins_s[starts[:-1]]
    return int(timeline.makespan_s), int(spans.max())


@st.composite
def durations(draw: st.DrawFn) -> tuple[int, int, int]:
    """Draw seconds of F, I and W with W <= F and W <= I, as in transformers."""
    weights = draw(st.integers(1, 3))
    return draw(st.integers(weights, 5)), draw(st.integers(weights, 5)), weights


@given(durations(), st.integers(2, 6), st.integers(0, 9))
@settings(max_examples=6)
def test_bubbles_of_one_chunk(took: tuple[int, int, int], p: int, more: int) -> None:
    """Qi et al. 2023, Table 2, with B for both halves: (p - 1)(F + B - 2W) and (F + B - 3W)."""
    forward, inputs, weights = took
    n = 2 * p - 1 + more
    for name in ("zb_h1", "zb1p"):
        schedule = build(name, p, 1, n)
        assert seconds(schedule, *took)[0] == n * sum(took) + (p - 1) * (forward + inputs - weights)
        assert most_outstanding(schedule).tolist() == [p] * p
    schedule = build("zb_h2", p, 1, n)
    bubble_s = (p - 1) * (forward + inputs - 2 * weights)
    assert seconds(schedule, *took)[1] == n * sum(took) + bubble_s
    assert most_outstanding(schedule).tolist() == [2 * p - 1] * p


@given(durations(), st.integers(2, 5), st.integers(2, 3), st.integers(1, 3))
@settings(max_examples=6)
def test_bubbles_of_several_chunks(took: tuple[int, int, int], p: int, m: int, groups: int) -> None:
    """PyTorch's interleaved zero bubble has the bubble of ZB-H1 in passes of a chunk."""
    forward, inputs, weights = took
    n = p * (groups + 1)
    schedule = build("zb1p", p, m, n)
    expected_s = m * n * sum(took) + (p - 1) * (forward + inputs - weights)
    assert seconds(schedule, *took)[0] == expected_s


@pytest.mark.parametrize("p", [2, 3, 4, 5, 8])
def test_zbv_with_equal_passes(p: int) -> None:
    """No bubble: stages start one after the other. The peak is that of 1F1B (Qi et al. 2024)."""
    n = 4 * p
    schedule = build("zbv", p, 2, n)
    assert seconds(schedule, 1, 1, 1) == (6 * n + p - 1, 6 * n)
    assert most_outstanding(schedule).max() == 2 * p


def megatron_groups(rank: int, p: int, m: int, n: int, group: int) -> str:
    """Return a rank's line from `get_schedule_table` and `get_pp_rank_microbatches` of Megatron."""
    table = [
        (chunk, microbatch)
        for start in range(0, n, group)
        for chunk in range(m)
        for microbatch in range(start, min(start + group, n))
    ]
    forwards = [f"{chunk * p + rank}F{number}" for chunk, number in table]
    backwards = [f"{(m - 1 - chunk) * p + rank}B{number}" for chunk, number in table]
    warmup = min(2 * (p - rank - 1) + (m - 1) * group, m * n)
    cells = forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        cells += [forward, backward]
    return ",".join(cells + backwards[m * n - warmup :])


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 20), st.data())
@settings(max_examples=25)
def test_interleaved_groups_equal_megatrons_table(
    p: int, m: int, n: int, data: st.DataObject
) -> None:
    """Legal are groups with p microbatches or more, also the last one (`schedules.py`)."""
    group = data.draw(st.integers(1, n + 1))
    if not (p <= group <= n and (n % group == 0 or n % group >= p)):
        with pytest.raises(InputError, match="E413"):
            build("interleaved", p, m, n, OrderOptions(group))
        return
    lines = build("interleaved", p, m, n, OrderOptions(group)).to_csv().splitlines()
    assert lines == [megatron_groups(rank, p, m, n, group) for rank in range(p)]


def torch_ranks(kind: str, p: int, m: int, n: int) -> list[list[str]]:
    """Return the order of a class of torch.distributed.pipelining.schedules, without its runtime.

    The classes compute a rank's operations from a few attributes.
    """
    from torch.distributed.pipelining import schedules as torch_schedules

    schedule: Any = object.__new__(getattr(torch_schedules, kind))
    rounds = max(1, n // p)
    assert n % rounds == 0
    vars(schedule).update(
        pp_group_size=p,
        n_local_stages=m,
        num_stages=p * m,
        microbatches_per_round=n // rounds,
        _n_microbatches=n,
        _stages=[None] * m,
    )
    lines = [schedule._calculate_single_rank_operations(rank) for rank in range(p)]
    return [[str(action) for action in line if action is not None] for line in lines]


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize(
    ("kind", "name", "chunks"),
    [
        ("ScheduleInterleavedZeroBubble", "zb1p", range(1, 5)),
        ("ScheduleZBVZeroBubble", "zbv", [2]),
        ("ScheduleLoopedBFS", "looped_bfs", range(1, 5)),
        ("ScheduleInterleaved1F1B", "interleaved", range(1, 5)),
    ],
)
def test_orders_equal_those_of_torch(kind: str, name: str, chunks: list[int]) -> None:
    num_compared = 0
    for p, m in ((p, m) for p in range(1, 7) for m in chunks):
        for n in range(1, 4 * p + 3):
            rounds = max(1, n // p)
            group = n // rounds if NAMED[name].chooses_groups else None
            if n % rounds or (group and group < p):
                continue
            ranks = build(name, p, m, n, OrderOptions(group)).ranks
            assert [[*map(str, line)] for line in ranks] == torch_ranks(kind, p, m, n)
            num_compared += 1
    assert num_compared > 50


@pytest.mark.parametrize("name", NAMED)
def test_the_default_number_of_chunks_is_the_only_one_that_the_schedule_has(name: str) -> None:
    base = load_scenario("llama3_70b")
    number = NAMED[name].num_chunks or 1
    changed = base.replace({"schedule": name})
    assert changed.parallelism.interleave == number
    assert changed.replace({"parallelism.data": 4}).parallelism.interleave == number
    assert changed.replace({"schedule": "1f1b"}).parallelism == base.parallelism
    assert load_unchecked("gpt3_175b", [f"schedule={name}"]).parallelism.interleave == 3


def test_a_schedule_of_two_chunks_runs_without_their_number_and_refuses_another() -> None:
    assert load_scenario("llama3_70b", ["schedule=zbv"]).num_chunks == 2
    with pytest.raises(InputError, match=r"E312 schedule is zbv .*interleave is 1"):
        load_scenario("llama3_70b", ["schedule=zbv", "parallelism.interleave=1"])


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("p", range(1, 8))
def test_dualpipev_equals_pytorchs_order(p: int) -> None:
    from torch.distributed.pipelining.schedules import ScheduleDualPipeV

    for n in range(2 * p, 2 * p + 9):
        theirs = SimpleNamespace(pp_group_size=p, _n_microbatches=n)
        order = ScheduleDualPipeV._calculate_single_rank_operations
        lines = [",".join(map(str, order(theirs, rank))) + "\n" for rank in range(p)]
        assert build("dualpipev", p, 2, n).to_csv() == "".join(lines)


@given(half=st.integers(1, 3), more=st.integers(0, 4))
@settings(max_examples=10)
def test_dualpipe_is_two_dualpipevs_that_meet(half: int, more: int) -> None:
    """Ranks of one half run the order of DualPipeV's ranks on half of the microbatches.

    The ranks of the other half run the same, mirrored, on the other copy of the model.
    """
    p, n = 2 * half, 2 * (2 * half + more)
    whole, part = build("dualpipe", p, 1, n), build("dualpipev", half, 2, n // 2)
    for rank in range(p):
        mirrored = min(rank, p - 1 - rank)
        near, _ = part.placement.virtual_stages[mirrored]
        first_copy = rank < half
        for action, other in zip(whole.ranks[rank], part.ranks[mirrored], strict=True):
            is_first = (other.virtual_stage == near) is first_copy
            stage = rank if is_first else 2 * p - 1 - rank
            microbatch = other.microbatch + (0 if is_first else n // 2)
            assert action == Action(stage, other.kind, microbatch)


@st.composite
def lanes(draw: st.DrawFn) -> tuple[Schedule, int]:
    """Draw a schedule, and the number of ranks until its lanes turn or meet."""
    half, more = draw(st.integers(1, 4)), draw(st.integers(0, 6))
    if draw(st.booleans()):
        return build("dualpipev", half, 2, 2 * half + more), half
    return build("dualpipe", 2 * half, 1, 2 * (2 * half + more)), half


@given(lanes(), st.integers(1, 4), st.integers(1, 4), st.integers(0, 4))
@settings(max_examples=15)
def test_the_bubble_of_equal_stages(
    drawn: tuple[Schedule, int], forward_s: int, weight_s: int, hidden_s: int
) -> None:
    """(p/2 - 1)(F&B + B - 3W) (DeepSeek-V3's Table 2), if F = I >= W."""
    (schedule, half), weight_s = drawn, min(weight_s, forward_s)
    backward_s = forward_s + weight_s
    merged_s = forward_s + backward_s - min(hidden_s, forward_s)
    passes_s = {"F": forward_s, "B": backward_s, "I": forward_s, "W": weight_s}
    seconds = PipelineSeconds(
        lambda action: passes_s[action.kind], lambda message, sends: 0.0, merged_s=merged_s
    )
    program, tasks = pipeline_program(schedule, seconds, True)
    cells = ~schedule.follows_merged
    busy_s = np.bincount(schedule.rank[cells], program.duration_s[tasks.first[cells]])
    bubble_s = simulate(program).makespan_s - busy_s.min()
    assert bubble_s == (half - 1) * (merged_s + backward_s - 3 * weight_s)


@given(lanes())
@settings(max_examples=10)
def test_each_rank_keeps_one_microbatch_more_than_lanes_have_stages(
    drawn: tuple[Schedule, int],
) -> None:
    """p + 1 for DualPipe on p stages (DeepSeek-V3's Table 2)."""
    schedule, half = drawn
    assert most_outstanding(schedule).tolist() == [2 * half + 1] * schedule.num_stages
    schedule.validate()
    assert (time_slots(schedule) >= 0).all() and not schedule.merges_ends
    first = schedule.cells[0]
    assert any(isinstance(cell, MergedActions) for cell in first) or schedule.num_stages == 2


def test_a_placement_of_two_directions() -> None:
    placement = two_directions(4, 1)
    assert placement.ranks == (0, 1, 2, 3, 3, 2, 1, 0)
    assert placement.virtual_stages[1] == (1, 6)
    assert (placement.stages_per_copy, placement.num_chunks, placement.interleave) == (4, 2, 1)
    assert [*placement.microbatches(3, 8)] == [0, 1, 2, 3]
    assert [*placement.microbatches(4, 8)] == [4, 5, 6, 7]


def test_the_first_rank_of_a_v_has_both_ends_of_the_model() -> None:
    """It needs no all-reduce of a tied embedding, and the other ranks hold equally much."""
    overlap, split = {"pipeline": True}, {"interleave": 2}
    of_v, of_loop = (
        plan_of(small(split, schedule=name, overlap=overlap)) for name in ("zbv", "interleaved")
    )
    assert not any("embedding" in step for step in of_v.steps)
    assert any("embedding" in step for step in of_loop.steps)
    first, *others = (stage.total for stage in of_v.stage_parameters)
    one_end, *middle, _ = (stage.total for stage in of_loop.stage_parameters)
    assert len({*others, *middle}) == 1 and first > one_end > others[0]
