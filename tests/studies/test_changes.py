"""Laws of changes: each is another scenario, and its trial says what `simulate` says of it."""

from itertools import chain, combinations
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.errors import InputError
from simtrain.scenario import Scenario
from simtrain.scenario.section import Strategy
from simtrain.studies import advice, remedy
from simtrain.studies.changes import (
    ZERO_STAGES,
    Change,
    TrialVerdict,
    all_values,
    changes_of,
    ranked,
    try_change,
    try_each,
    value_at,
)
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.simulation import simulate, simulate_memory
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


@given(scenarios(), st.data())
@settings(max_examples=20, deadline=None)
def test_a_trial_says_what_simulate_says_of_the_changed_scenario(
    base: Scenario, data: st.DataObject
) -> None:
    capacity_gib = data.draw(st.floats(0.5, 8))
    base = base.replace({"hardware.gpu.memory_capacity": f"{capacity_gib} GiB"})
    single = [*changes_of(base, AXES)]
    changes = data.draw(st.lists(st.sampled_from(single), min_size=1, max_size=4))
    evaluator = Evaluator(allow_oom=data.draw(st.booleans()))
    evaluate = evaluator.changing(base)
    for trial in try_each([*changes, changes[0] | changes[-1]], evaluate):
        try:
            changed = trial.change.applied_to(base)
            result, memory = simulate(changed), simulate_memory(changed)
        except InputError as error:
            assert trial.verdict is TrialVerdict.ILLEGAL and str(trial.outcome) == str(error)
            continue
        assert trial.verdict is (TrialVerdict.FITS if memory.fits else TrialVerdict.TOO_LARGE)
        assert trial.evaluation.peak_bytes == memory.fullest.peak_bytes
        if memory.fits or evaluator.allow_oom:
            assert trial.evaluation.iteration_time_s == result.iteration_time_s
        else:
            assert trial.evaluation.run is None


@given(scenarios())
@settings(max_examples=20, deadline=None)
def test_no_change_is_the_scenario_itself_and_no_two_are_the_same(base: Scenario) -> None:
    enumerations = (
        changes_of(base, AXES),
        advice._changes(base),
        remedy._without_more_gpus(base),
        chain(*remedy._with_more_gpus(base)),
    )
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


def test_trials_that_fit_are_ranked_and_ties_keep_their_order() -> None:
    base = small({"tensor": 4, "data": 2})
    changes = [Change({"parallelism.tensor": 3}), *changes_of(base, {"batch.micro": [2, 1]})]
    evaluate = Evaluator().changing(base)
    trials = [*try_each([*changes, *changes], evaluate)]
    assert trials[0].verdict is TrialVerdict.ILLEGAL
    best = ranked(trials, lambda trial: 0)
    assert best == [trial for trial in trials if trial.fits] and best
    assert try_change(changes[1], evaluate) == trials[1]
    with pytest.raises(InputError):
        _ = trials[0].evaluation
