"""Chimera and Hanayo: orders by hand, bubbles and peaks of their papers."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.engine import simulate
from simtrain.iteration.report.result import Result
from simtrain.scenario.check import load_scenario
from simtrain.schedules import Action, Schedule, build, most_outstanding, time_slots
from simtrain.studies.simulation import simulate as simulate_scenario
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
    for schedule in (build("hanayo", p, 2 * waves, n), build("chimera", 2 * p, 1, 2 * n)):
        schedule.validate()
        slots = time_slots(schedule)
        assert (slots >= 0).all()
        num_units = math.ceil(n / p)
        assert slots.max() < 2 * schedule.placement.stages_per_copy * num_units + 2 * p


# Whole iterations: both engines, weights, activations and reductions.

CASES = {"1f1b": 1, "chimera": 1, "hanayo": 2, "two waves": 4}
P = 4


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """Four microbatches of the paper's 22B model on four stages of 12 layers."""
    changes = {"parallelism.pipeline": P, "batch.global": 16, "model.tied_embeddings": False}
    base = load_scenario("table5_22b_present").replace(changes)
    names = {"two waves": "hanayo"}
    return {
        case: simulate_scenario(
            base.replace({"schedule": names.get(case, case), "parallelism.interleave": chunks})
        )
        for case, chunks in CASES.items()
    }


def parts(result: Result, name: str) -> list[int]:
    return [stage.components_bytes[name] for stage in result.memory.stages]


def test_chimera_keeps_weights_twice_and_hanayo_once(results: dict[str, Result]) -> None:
    """Table 2 of Li and Hoefler 2021; each rank has the stages r and p - 1 - r."""
    once = parts(results["1f1b"], "parameters")
    both = [near + far for near, far in zip(once, reversed(once), strict=True)]
    assert parts(results["chimera"], "parameters") == both
    for case in ("hanayo", "two waves"):
        assert sum(parts(results[case], "parameters")) == sum(once)
        # The first rank has both the embedding and the loss.
        assert parts(results[case], "parameters")[1:3] == once[1:3]
    assert {result.plan.num_parameters for result in results.values()} == {
        results["1f1b"].plan.num_parameters
    }


def test_both_directions_reduce_their_gradients_together(results: dict[str, Result]) -> None:
    """Rank r and rank p - 1 - r have the same stages, so an all-reduce of two adds them up."""
    one, two = results["1f1b"].plan.step_options, results["chimera"].plan.step_options
    assert (one.data.num_ranks, two.data.num_ranks) == (1, 2)
    assert results["1f1b"].breakdown.data_communication_s == 0
    assert results["chimera"].breakdown.data_communication_s > 0


def test_peaks_of_activations_in_bytes(results: dict[str, Result]) -> None:
    """Ranks without an end of the model keep the closed forms' microbatches of their layers."""
    one = parts(results["1f1b"], "activations")
    microbatch = one[1] // (P - 1)
    assert one[1:3] == [(P - 1) * microbatch, (P - 2) * microbatch]
    assert parts(results["chimera"], "activations")[1:3] == [P * microbatch] * 2
    for case, waves in (("hanayo", 1), ("two waves", 2)):
        kept = [((2 * waves - 1) * P + 1 + rank) * microbatch for rank in (1, 2, 3)]
        assert parts(results[case], "activations")[1:] == [chunks // (2 * waves) for chunks in kept]


def test_all_run_the_same_work(results: dict[str, Result]) -> None:
    assert len({result.model_flops for result in results.values()}) == 1
    assert len({result.hardware_flops for result in results.values()}) == 1
    times_s = {case: result.iteration_time_s for case, result in results.items()}
    assert times_s["two waves"] < times_s["hanayo"] < times_s["1f1b"]
