"""Laws of changes: each is another scenario, and its trial says what `simulate` says of it."""

import shlex
from itertools import combinations
from typing import get_args

import pytest
from hypothesis import given, settings

from simtrain.errors import InputError
from simtrain.scenario import Scenario, load_scenario
from simtrain.scenario.section import Strategy
from simtrain.studies import advice
from simtrain.studies.changes import ZERO_STAGES, Change, all_values, changes_of, value_at
from simtrain.studies.on_machine import first_layers, last_resorts, policy_words
from simtrain.studies.simulation import simulate
from tests.helpers.toys import small
from tests.iteration.report.test_breakdown import scenarios

AXES = {
    "parallelism.tensor": [1, 2, 4, 16],
    "parallelism.sequence_parallel": [True, False],
    "parallelism.pipeline": [1, 2, 3],
    "batch.micro": [1, 2, 3],
    "batch.global": [8, 12],
    "memory.zero_stage": range(5),
    "overlap.data_parallel": [True, False],
    "recompute": ["none", "selective", "full", "auto"],
    "model.attention_dropout": [0, 0.1, 2],
}
"""Values of fields; some are illegal for every scenario."""


@given(scenarios())
@settings(max_examples=20, deadline=None)
def test_no_change_is_the_scenario_itself_and_no_two_are_the_same(base: Scenario) -> None:
    enumerations = (changes_of(base, AXES), advice._changes(base))
    for changes in enumerations:
        made = [base]
        for change in changes:
            try:
                made.append(change.applied_to(base))
            except InputError:
                continue
        assert not any(one == other for one, other in combinations(made, 2))


@pytest.mark.parametrize(
    ("field", "value"),
    [("batch.global", 1), ("parallelism.tensor", 4), ("attention_backend", "unfused")],
)
def test_the_value_of_a_field_has_its_name_in_files(field: str, value: object) -> None:
    base = small({"tensor": 4}, batch={"micro": 1, "global": 1})
    assert value_at(base, field) == value
    assert not [*changes_of(base, {field: [value]})]


def test_all_values_of_a_flag_or_a_choice_are_legal_values_of_its_field() -> None:
    base = small()
    assert all_values("recompute.strategy") == get_args(Strategy)
    assert all_values("overlap.pipeline") == (False, True)  # with a default that follows
    assert all_values("batch.micro") == all_values("memory.shard_over") == ()
    for field in ("overlap.data_parallel", "overlap.gradient_buckets", "precision.compute"):
        changed = [Change({field: value}).applied_to(base) for value in all_values(field)]
        assert [value_at(scenario, field) for scenario in changed] == [*all_values(field)]
    for stage in ZERO_STAGES:
        Change({"memory.zero_stage": stage}).applied_to(base)
    with pytest.raises(InputError):
        Change({"memory.zero_stage": len(ZERO_STAGES)}).applied_to(base)


BOTH_WAYS = (
    *("parallelism.tensor", "parallelism.pipeline", "parallelism.data", "parallelism.context"),
    *("parallelism.sequence_parallel", "batch.micro", "memory.zero_stage"),
    "memory.offload_optimizer",
)


@given(scenarios())
@settings(max_examples=20, deadline=None)
def test_a_change_can_be_taken_back_by_one_that_is_advised_too(base: Scenario) -> None:
    for change in advice._changes(base):
        if {*change.values} <= {*BOTH_WAYS}:
            now = {field: value_at(base, field) for field in change.values}
            back = [each.values for each in advice._changes(change.applied_to(base))]
            assert now in back or any(value % 2 for value in now.values())


def test_the_last_resorts_are_the_shortest_units_by_their_number() -> None:
    """Of 8 layers: one unit of 8, two of 4, three of 3 (3, 3, 2), four of 2."""
    alone = small({"tensor": 1, "pipeline": 1}, model={"num_layers": 8})
    assert [policy.num_layers for policy in last_resorts(alone)] == [8, 4, 3, 2]
    words = [policy_words(policy) for policy in (first_layers(1), first_layers(2))]
    assert words == [f"full, the first {text} of each chunk" for text in ("1 layer", "2 layers")]


CASES = ("table5_22b_full", "gpt2_1_5b", "mixtral_8x7b")


@pytest.mark.parametrize("name", CASES)
def test_options_give_the_time_and_memory_that_were_advised(name: str) -> None:
    best = advice.advise(load_scenario(name), top=3)
    now = simulate(load_scenario(name))
    assert (best.iteration_time_s, best.fits) == (now.iteration_time_s, now.memory.fits)
    assert best.advised and len(best.advised) <= 3
    for change in best.advised:
        overrides = [word for word in shlex.split(change.options) if word != "--set"]
        result = simulate(load_scenario(name, overrides))
        assert result.iteration_time_s == change.iteration_time_s
        assert result.memory.fullest.peak_bytes == change.peak_bytes
        assert change.more_bytes == change.peak_bytes - best.peak_bytes
        assert change.saved == 1 - change.iteration_time_s / best.iteration_time_s
        assert result.memory.fits


def test_the_best_changes_come_first_and_more_of_them_are_the_same_ones() -> None:
    few, many = (advice.advise(load_scenario("table5_22b_full"), top).advised for top in (2, 100))
    assert many[:2] == few
    times = [change.iteration_time_s for change in many]
    assert (
        times == sorted(times)
        and times[-1] < simulate(load_scenario("table5_22b_full")).iteration_time_s
    )


def test_chunks_are_advised_with_the_schedule_that_has_them() -> None:
    """A pipeline with many bubbles: two chunks help, and the options alone simulate them."""
    deep = ["batch.global=128", "parallelism.pipeline=8", "parallelism.tensor=4"]
    deep += ["cluster=h200_sxm"]
    now = load_scenario("llama3_70b", deep)
    advised = {change.options: change for change in advice.advise(now, top=100).advised}
    change = advised["--set parallelism.interleave=2 --set schedule=interleaved"]
    overrides = [*deep, "parallelism.interleave=2", "schedule=interleaved"]
    again = simulate(load_scenario("llama3_70b", overrides))
    assert again.iteration_time_s == change.iteration_time_s


def test_a_scenario_that_does_not_fit_is_advised_what_fits() -> None:
    tight = load_scenario(
        "table5_22b_full", ["recompute=none", "batch.micro=16", "batch.global=64"]
    )
    best = advice.advise(tight)
    assert not best.fits
    assert any("recompute" in change.options for change in best.advised)
    assert best.num_tried + best.num_illegal > best.num_too_large > 0
