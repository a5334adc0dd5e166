"""`auto` chooses the fastest recompute that fits; brute force finds the same."""

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.durations.model import DurationModel
from simtrain.engine import simulate as run_program
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.report import memory_report
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.iteration_builder import tasks_of
from simtrain.iteration.programs.seconds import IterationSeconds, Machine
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.schedules import most_outstanding
from simtrain.studies.on_machine import PolicyChoice, choose, most_that_fit
from tests.helpers.toys import a100, changed, machine_of, plan_of, scenario_with


@dataclass(frozen=True)
class Run:
    iteration_time_s: float


def profile_with(capacity: int) -> HardwareProfile:
    """Return the shipped profile with `capacity` bytes of GPU memory, all of it for tensors."""
    sizes = {"gpu__memory_capacity": capacity, "memory__allocator_reserve": 0}
    return changed(a100(), **sizes, memory__fragmentation=0.0)


def time_of(plan: Plan) -> Run:
    seconds = IterationSeconds.of(plan, machine_of(a100()))
    program = tasks_of(seconds.structure).program(seconds)
    return Run(run_program(program).makespan_s)


def peaks(scenario: Scenario, kept: tuple[int, ...] | None = None) -> tuple[int, ...]:
    return memory_report(plan_of(scenario, kept), profile_with(1)).peaks_bytes


def part_of_activations(grid: dict[str, Any], share: float) -> int:
    """Return a capacity at which this share of all activations fits."""
    whole, least = (max(peaks(scenario_of(grid, strategy=name))) for name in ("none", "full"))
    return int(least + share * (whole - least))


def chosen(scenario: Scenario, capacity: int) -> PolicyChoice:
    return choose(scenario, Machine(DurationModel(profile_with(capacity))))


def policies_of(choice: PolicyChoice) -> list[RecomputePolicy]:
    """Return the policies that were tried, in order."""
    return [trial.plan.scenario.recompute for trial in choice.trials]


def scenario_of(grid: dict[str, Any], **recompute: Any) -> Scenario:
    return scenario_with(
        {"num_layers": 16, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 2048},
        parallelism={"tensor": 2, **grid},
        batch={"micro": 1, "global": 8},
        recompute=recompute,
    )


ONE_STAGE, FOUR_STAGES = {"pipeline": 1}, {"pipeline": 4}
# 7, 3, 3 and 3 layers.
UNEVEN_STAGES = {"pipeline": 4, "first_stage_layers": 7}


@pytest.mark.parametrize("grid", [ONE_STAGE, FOUR_STAGES, {"pipeline": 4, "interleave": 2}])
def test_with_enough_memory_nothing_is_recomputed(grid: dict[str, int]) -> None:
    most = max(peaks(scenario_of(grid)))
    choice = chosen(scenario_of(grid, strategy="auto"), most)
    assert choice.words == "none"
    assert len(choice.trials) == 1
    assert chosen(scenario_of(grid, strategy="auto"), most - 1).words != "none"


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.95, 0.6, 0.3, 0.05])
@pytest.mark.parametrize("grid", [ONE_STAGE, FOUR_STAGES, UNEVEN_STAGES])
def test_the_choice_fits_and_nothing_that_fits_is_faster(
    grid: dict[str, int], share: float
) -> None:
    capacity = part_of_activations(grid, share)
    choice = chosen(scenario_of(grid, strategy="auto"), capacity)
    assert choice.chosen.fits
    lengths = range(1, min(8, max(scenario_of(grid).chunk_sizes) + 1))
    pure: list[dict[str, Any]] = [
        {"strategy": "none"},
        {"strategy": "selective"},
        *({"strategy": "full", "num_layers": number} for number in lengths),
        *({"strategy": "full", "method": "block", "num_layers": number} for number in lengths),
    ]
    kept = [
        {"strategy": strategy, "keep_microbatches": number}
        for strategy, number in itertools.product(("selective", "full"), range(1, 5))
        if grid["pipeline"] == 4
    ]
    for policy in pure + kept:
        plan = plan_of(scenario_of(grid, **policy))
        if memory_report(plan, profile_with(capacity)).fits:
            slower_s = (1 + 1e-9) * time_of(plan).iteration_time_s
            assert choice.chosen.iteration_time_s <= slower_s


def test_each_stage_keeps_as_many_as_fit_there() -> None:
    """One more would not fit on the stage, or the stage has no more."""
    grid = {"pipeline": 4}
    scenario = scenario_of(grid, strategy="full", keep_microbatches="auto")
    capacity = part_of_activations(grid, 0.5)
    plan = chosen(scenario, capacity).chosen.plan
    kept = plan.num_saved_per_stage
    assert kept is not None
    windows = most_outstanding(plan.schedule).tolist()
    assert 0 < kept[0] < windows[0]
    assert kept[-1] == windows[-1]
    for stage, (number, window) in enumerate(zip(kept, windows, strict=True)):
        assert peaks(scenario, kept)[stage] <= capacity
        if number < window:
            one_more = (*kept[:stage], number + 1, *kept[stage + 1 :])
            assert peaks(scenario, one_more)[stage] > capacity


@pytest.mark.parametrize("length", range(1, 7))
def test_as_few_layers_are_recomputed_as_fit_in_the_longest_chunk(length: int) -> None:
    """The first stage, the fullest, has seven layers, the others three each."""
    block = {"strategy": "full", "method": "block", "num_layers": length}
    capacity = max(peaks(scenario_of(UNEVEN_STAGES, **block)))
    choice = chosen(scenario_of(UNEVEN_STAGES, strategy="auto"), capacity)
    tried = [policy.num_layers for policy in policies_of(choice)]
    assert tried[2:-1] == [length]


def test_if_nothing_fits_the_choice_needs_the_least_memory() -> None:
    choice = chosen(scenario_of(FOUR_STAGES, strategy="auto"), capacity=1)
    assert not choice.chosen.fits
    peaks_bytes = [trial.fit.peak_bytes for trial in choice.trials]
    assert choice.chosen.fit.peak_bytes == min(peaks_bytes)
    assert "(nothing fits, this needs the least of " in choice.why


@st.composite
def stages(draw: st.DrawFn) -> list[list[int]]:
    """Draw, for each stage, its peaks with 0, 1, 2, ... kept passes; they never fall."""
    steps = st.lists(st.integers(0, 50), min_size=1, max_size=40)
    return [list(itertools.accumulate(one)) for one in draw(st.lists(steps, min_size=1))]


@given(stages(), st.integers(0, 1000))
def test_the_largest_number_that_fits_is_found(peak_of: list[list[int]], capacity: int) -> None:
    def peaks_of(kept: tuple[int, ...]) -> list[int]:
        return [one[number] for one, number in zip(peak_of, kept, strict=True)]

    found = most_that_fit([len(one) - 1 for one in peak_of], peaks_of, capacity)
    for one, number in zip(peak_of, found, strict=True):
        assert number == max(i for i, peak in enumerate(one) if i == 0 or peak <= capacity)
