"""Laws of changes: each is another scenario, and its trial says what `simulate` says of it."""

from itertools import combinations
from typing import get_args

import pytest
from hypothesis import given, settings

from simtrain.errors import InputError
from simtrain.scenario import Scenario
from simtrain.scenario.section import Strategy
from simtrain.studies import advice
from simtrain.studies.changes import (
    ZERO_STAGES,
    Change,
    all_values,
    changes_of,
    value_at,
)
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
    enumerations = (
        changes_of(base, AXES),
        advice._changes(base),
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
