"""Chimera and Hanayo: their orders by hand, bubbles and peaks of their papers."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.engine import simulate
from simtrain.schedules import Action, Schedule, build, most_outstanding, time_slots
from tests.helpers.pipelines import PipelineSeconds, pipeline_program


def makespan_s(schedule: Schedule, forward_s: int, backward_s: int) -> int:
    """Return the time of a schedule whose passes take these seconds, without messages."""
    durations = PipelineSeconds(
        lambda action: forward_s if action.kind == "F" else backward_s, lambda *_: 0
    )
    return int(simulate(pipeline_program(schedule, durations, overlap=True)[0]).makespan_s)


def test_chimera_of_four_stages_by_hand() -> None:
    """Figure 3 of Li and Hoefler 2021: microbatches 0 and 1 go down, 2 and 3 up."""
    assert build("chimera", 4, 1, 4).to_csv().splitlines() == [
        "0F0,0F1,7F2,7B2,7F3,7B3,0B0,0B1",
        "1F0,6F2,1F1,6F3,6B2,1B0,6B3,1B1",
        "5F2,2F0,5F3,2F1,2B0,5B2,2B1,5B3",
        "4F2,4F3,3F0,3B0,3F1,3B1,4B2,4B3",
    ]


def test_the_slots_of_chimera_by_hand() -> None:
    """Each rank is idle in two of ten slots, p - 2; passes run as early as their order allows."""
    slots = time_slots(build("chimera", 4, 1, 4)).reshape(4, 8).tolist()
    ends, middle = [0, 1, 3, 4, 5, 6, 7, 9], [*range(1, 9)]
    assert slots == [ends, middle, middle, ends]


def test_two_waves_of_two_stages_by_hand() -> None:
    assert build("hanayo", 2, 4, 2).to_csv().splitlines() == [
        "0F0,0F1,3F0,4F0,3F1,4F1,7F0,7B0,7F1,7B1,4B0,3B0,4B1,3B1,0B0,0B1",
        "1F0,2F0,1F1,2F1,5F0,6F0,5F1,6F1,6B0,5B0,6B1,5B1,2B0,1B0,2B1,1B1",
    ]


@given(st.integers(1, 5), st.integers(1, 3), *(st.integers(1, 5) for _ in range(2)))
@settings(max_examples=25)
def test_the_bubble_of_chimera(half: int, units: int, forward_s: int, backward_s: int) -> None:
    """p - 2 passes if all take as long (Table 2 of Li and Hoefler 2021): (p - 2)/(2m + p - 2).

    One unit with backward passes of 2F has (p - 2)/(3m/2 + p - 2); further units have bubbles
    between them (Section 3.5).
    """
    p = 2 * half
    schedule = build("chimera", p, 1, units * p)
    bubble_s = makespan_s(schedule, forward_s, backward_s) - units * p * (forward_s + backward_s)
    longer_s, difference_s = max(forward_s, backward_s), abs(forward_s - backward_s)
    assert bubble_s == (p - 2) * (longer_s + (units - 1) * difference_s)


def test_forward_doubling_of_two_stages_by_hand() -> None:
    """Two microbatches per slot and direction, forward together and then backward together."""
    assert build("chimera_double", 2, 1, 4).to_csv().splitlines() == [
        "0F0,0F1,3F2,3F3,3B2,3B3,0B0,0B1",
        "2F2,2F3,1F0,1F1,1B0,1B1,2B2,2B3",
    ]


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(0, 12))
@settings(max_examples=40)
def test_the_bubble_of_forward_doubling(half: int, units: int, forward_s: int, more_s: int) -> None:
    """With B up to 2F, the bubbles between units are gone (Li and Hoefler 2021, Section 3.5)."""
    p, backward_s = 2 * half, forward_s + more_s
    schedule = build("chimera_double", p, 1, 2 * units * p)
    busy_s = 2 * units * p * (forward_s + backward_s)
    bubble_s = makespan_s(schedule, forward_s, backward_s) - busy_s
    first = max(forward_s + backward_s, 2 * (backward_s - forward_s))
    assert 2 * bubble_s == (p - 2) * (first + 2 * (units - 1) * max(0, backward_s - 2 * forward_s))


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))
@settings(max_examples=20)
def test_one_pass_of_both_has_the_published_bubble(half: int, units: int, forward_s: int) -> None:
    """A pass of two microbatches takes as long as a backward pass: p - 2 of these are the bubble.

    The first microbatch of a pair then has the time of both, and is sent with the second.
    """
    p = 2 * half
    schedule = build("chimera_double", p, 1, 2 * units * p)
    of_pair = {0: 2 * forward_s, 1: 0}
    durations = PipelineSeconds(
        lambda action: of_pair[action.microbatch % 2] if action.kind == "F" else 2 * forward_s,
        lambda *_: 0,
    )
    time_s = simulate(pipeline_program(schedule, durations, overlap=True)[0]).makespan_s
    assert time_s - 2 * units * p * 3 * forward_s == (p - 2) * 2 * forward_s


@given(st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=10)
def test_forward_doubling_keeps_twice_as_many_microbatches(half: int, units: int) -> None:
    p = 2 * half
    once = most_outstanding(build("chimera", p, 1, units * p))
    doubled = most_outstanding(build("chimera_double", p, 1, 2 * units * p))
    assert doubled.tolist() == (2 * once).tolist()


@pytest.mark.parametrize("p", [4, 6, 8])
def test_the_bubble_ratio_of_chimera_with_backward_passes_of_twice_the_time(p: int) -> None:
    time_s = makespan_s(build("chimera", p, 1, p), 1, 2)
    assert (time_s - 3 * p) / time_s == pytest.approx((p - 2) / (3 * p / 2 + p - 2))


@given(*(st.integers(1, 4) for _ in range(3)), *(st.integers(1, 5) for _ in range(2)))
@settings(max_examples=25)
def test_the_bubble_of_hanayo(
    p: int, waves: int, units: int, forward_s: int, backward_s: int
) -> None:
    """In passes of a chunk, of which a stage has 2w: that of 1F1B's backward passes over w."""
    schedule = build("hanayo", p, 2 * waves, units * p)
    busy_s = 2 * waves * units * p * (forward_s + backward_s)
    longer_s, difference_s = max(forward_s, backward_s), abs(forward_s - backward_s)
    bubble_s = makespan_s(schedule, forward_s, backward_s) - busy_s
    assert bubble_s == 2 * (p - 1) * (longer_s + (units - 1) * difference_s)


@pytest.mark.parametrize(("p", "waves"), [(2, 1), (4, 1), (4, 2), (8, 2)])
def test_the_bubble_ratio_of_hanayo_counts_its_bubble_once(p: int, waves: int) -> None:
    """With B = 2F and m = p: (2p - 2)/(3pw + 2p - 2), a share of busy and idle time together.

    The printed ratio has 3pw + p - 1 below, so busy time and bubble would not add up to the
    iteration. One wave is one half of Chimera on 2p ranks, whose printed ratio is ours.
    """
    time_s = makespan_s(build("hanayo", p, 2 * waves, p), 1, 2)
    ratio = (time_s - 2 * waves * p * 3) / time_s
    assert ratio == pytest.approx((2 * p - 2) / (3 * p * waves + 2 * p - 2))
    assert ratio < (2 * p - 2) / (3 * p * waves + p - 1)
    if waves == 1:
        assert ratio == pytest.approx((2 * p - 2) / (3 * p + 2 * p - 2))


@given(st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=10)
def test_the_peaks_of_chimera(half: int, units: int) -> None:
    """From p/2 + 1 microbatches at both ends to p in the middle (Table 2)."""
    p = 2 * half
    schedule = build("chimera", p, 1, units * p)
    peaks = [half + 1 + min(rank, p - 1 - rank) for rank in range(p)]
    assert most_outstanding(schedule).tolist() == peaks


@given(*(st.integers(1, 4) for _ in range(3)))
@settings(max_examples=10)
def test_the_peaks_of_hanayo(p: int, waves: int, units: int) -> None:
    """In microbatches of a chunk; the last rank keeps those of p whole stages, as 1F1B."""
    schedule = build("hanayo", p, 2 * waves, units * p)
    peaks = [(2 * waves - 1) * p + 1 + rank for rank in range(p)]
    assert most_outstanding(schedule).tolist() == peaks
    assert peaks[-1] == 2 * waves * p


@given(st.integers(1, 5), st.integers(1, 12))
@settings(max_examples=15)
def test_a_wave_is_one_half_of_chimera_on_twice_the_ranks(p: int, n: int) -> None:
    """Liu et al. 2023: a wave needs no second copy of the model."""
    whole, wave = build("chimera", 2 * p, 1, 2 * n), build("hanayo", p, 2, n)
    for rank in range(p):
        for action, other in zip(whole.ranks[rank], wave.ranks[rank], strict=True):
            _, second = whole.placement.virtual_stages[rank]
            is_second = action.virtual_stage == second
            stage = action.virtual_stage - 2 * p * is_second
            microbatch = action.microbatch - n * is_second
            assert other == Action(stage, action.kind, microbatch)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 20))
@settings(max_examples=25)
def test_no_two_passes_share_a_slot(p: int, waves: int, n: int) -> None:
    """Each rank runs all passes, also in a last unit with fewer microbatches, and none waits."""
    build("chimera_double", 2 * p, 1, 2 * n).validate()
    for schedule in (build("hanayo", p, 2 * waves, n), build("chimera", 2 * p, 1, 2 * n)):
        schedule.validate()
        slots = time_slots(schedule)
        assert (slots >= 0).all()
        num_units = math.ceil(n / p)
        assert slots.max() < 2 * schedule.placement.stages_per_copy * num_units + 2 * p
