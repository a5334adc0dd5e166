"""Every rule, and every suggestion of an error, answers for any valid single values."""

import random

import pytest

from simtrain.scenario import Scenario
from simtrain.scenario.check import EVERY_RULE
from simtrain.scenario.remedies import problem_of
from simtrain.scenario.violation import Rule, Violation
from simtrain.schedules import NAMED
from tests.helpers.scenario_values import FIELD_VALUES, nested, random_values


def violations(scenario: Scenario) -> list[tuple[Rule, Violation]]:
    checked = [(rule, rule.check(scenario)) for rule in EVERY_RULE]
    return [(rule, violation) for rule, violation in checked if violation]


def scenarios(number: int, seed: int) -> list[Scenario]:
    rng = random.Random(seed)
    return [Scenario.model_validate(nested(random_values(rng))) for _ in range(number)]


def test_the_first_values_are_legal_for_the_framework() -> None:
    scenario = Scenario.model_validate(nested({}))
    of_cluster = {"E331", "E391"}  # of a cluster without fused attention, and without products
    assert {rule.code for rule, _ in violations(scenario)} <= of_cluster


def test_every_rule_answers() -> None:
    for scenario in scenarios(1500, seed=0):
        violations(scenario)


def test_every_suggestion_answers() -> None:
    for scenario in scenarios(40, seed=1):
        for rule, violation in violations(scenario):
            problem = problem_of(scenario, rule, violation, EVERY_RULE)
            assert problem.code == rule.code and problem.fix


@pytest.mark.ci
def test_every_suggestion_answers_for_many_scenarios() -> None:
    for scenario in scenarios(1500, seed=2):
        for rule, violation in violations(scenario):
            assert problem_of(scenario, rule, violation, EVERY_RULE).fix


@pytest.mark.parametrize("schedule", NAMED)
def test_kept_microbatches_of_sizes_that_no_schedule_has(schedule: str) -> None:
    """The rule about outstanding microbatches leaves these sizes to other rules."""
    sizes = {"pipeline": (2, 3, 4), "interleave": (1, 2, 3), "sequence_slices": (1, 3)}
    for stages in sizes["pipeline"]:
        for chunks in sizes["interleave"]:
            for slices in sizes["sequence_slices"]:
                values = {
                    "schedule": schedule,
                    "parallelism.pipeline": stages,
                    "parallelism.interleave": chunks,
                    "parallelism.sequence_slices": slices,
                    "recompute.strategy": "full",
                    "recompute.keep_microbatches": 1,
                }
                violations(Scenario.model_validate(nested(values)))


def test_an_optional_number_of_mamba_heads_has_its_default_in_errors() -> None:
    values = {
        "model.hidden_size": 96,
        "model.mamba.num_heads": None,
        "precision.compute": "fp4",
        "model.ffn_hidden_size": 512,
    }
    scenario = Scenario.model_validate(nested(values))
    errors = [str(problem_of(scenario, *each, EVERY_RULE)) for each in violations(scenario)]
    (error,) = [error for error in errors if "E390" in error]
    assert "model.mamba.num_heads is 3" in error


def test_the_values_cover_every_field() -> None:
    assert all(len(values) > 1 for values in FIELD_VALUES.values())
