"""DualPipe and DualPipeV: their references' orders, closed forms of bubbles and peaks."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.engine import simulate
from simtrain.schedules import Action, MergedActions, Schedule, build, most_outstanding, time_slots
from simtrain.schedules.stage_placement import two_directions
from tests.helpers.pipelines import PipelineSeconds, pipeline_program
from tests.schedules.test_schedules import GOLDEN


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


@pytest.mark.parametrize(
    ("name", "sizes", "file"),
    [
        ("dualpipev", (4, 2, 10), "dualpipev_p4_n10.csv"),
        ("dualpipe", (4, 1, 12), "dualpipe_p4_n12.csv"),
    ],
)
def test_orders_equal_the_golden_files(name: str, sizes: tuple[int, int, int], file: str) -> None:
    """That of DualPipeV was written by PyTorch 2.13's `ScheduleDualPipeV`."""
    text, schedule = (GOLDEN / file).read_text(), build(name, *sizes)
    assert schedule.to_csv() == text
    assert Schedule.from_csv(text, name) == schedule
    assert Schedule.from_csv(text, name).placement == schedule.placement


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
