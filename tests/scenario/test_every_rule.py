"""Laws of every rule: its example breaks it alone, and what its error says to write is legal."""

import random

import pytest

from docs.update.explanations import example_of, rules_text
from simtrain.errors import InputError
from simtrain.render.explanations import RULES_FILE
from simtrain.scenario import Scenario, check_scenario
from simtrain.scenario.check import EVERY_RULE
from simtrain.scenario.remedies import (
    broken_codes,
    changed,
    fields_of,
    neighbours,
    problem_of,
    suggest,
    suggest_together,
)
from simtrain.scenario.rule import Rule, default_of, is_set, requires
from simtrain.scenario.rules import RULES
from tests.helpers.scenario_values import FIELD_VALUES, nested, random_values

BY_EXAMPLE = [rule for rule in EVERY_RULE if not rule.example.endswith(".")]


def among(rule: Rule) -> list[Rule]:
    return [*RULES] if rule in RULES else [*RULES, rule]


def remedies(scenario: Scenario, rule: Rule, message: str) -> list[Scenario]:
    """Return the scenario with each of the changes that the error of a rule names."""
    suggested = suggest(scenario, rule, message, among(rule)).items()
    ways = [{field: value} for field, values in suggested for value in values]
    ways = ways or [suggest_together(scenario, rule, among(rule)) or {}]
    return [one for way in ways if way and (one := changed(scenario, way))]


def test_codes_are_unique_and_every_rule_has_a_reason() -> None:
    codes = [rule.code for rule in RULES]
    assert codes == sorted(codes)
    assert len({rule.code for rule in EVERY_RULE}) == len(EVERY_RULE)
    assert all(rule.why and not rule.why.endswith(".") for rule in EVERY_RULE)
    assert all(rule.hint for rule in EVERY_RULE if rule not in BY_EXAMPLE)


@pytest.mark.parametrize("rule", BY_EXAMPLE, ids=lambda rule: rule.code)
def test_an_example_breaks_its_rule_alone_and_has_a_legal_remedy(rule: Rule) -> None:
    scenario = example_of(rule)
    assert broken_codes(scenario, among(rule)) == {rule.code}
    with pytest.raises(InputError) as caught:
        check_scenario(scenario, among(rule))
    (problem,) = caught.value.problems
    assert (problem.code, problem.reason) == (rule.code, rule.why)
    assert problem.location and problem.location.line and problem.fix
    legal = remedies(scenario, rule, problem.message)
    # The rule about the products of a cluster without any, as in this example, has none.
    assert legal or rule.code == "E391"
    assert not any(broken_codes(one, among(rule)) for one in legal)


def test_what_rules_say_of_themselves_is_current() -> None:
    """`python -m docs.update` writes it."""
    assert RULES_FILE.read_text("utf-8") == rules_text()


def test_nearly_every_rule_has_a_remedy_of_a_single_field() -> None:
    num_single = sum(
        bool(suggest(scenario, rule, rule.check(scenario) or "", among(rule)))
        for rule in BY_EXAMPLE
        for scenario in [example_of(rule)]
    )
    assert num_single >= 0.95 * len(BY_EXAMPLE)


def violations(scenario: Scenario) -> list[tuple[Rule, str]]:
    checked = [(rule, rule.check(scenario)) for rule in EVERY_RULE]
    return [(rule, message) for rule, message in checked if message]


def scenarios(number: int, seed: int) -> list[Scenario]:
    rng = random.Random(seed)
    return [Scenario.model_validate(nested(random_values(rng))) for _ in range(number)]


def test_every_rule_answers_for_any_valid_values() -> None:
    for scenario in scenarios(600, seed=0):
        violations(scenario)
    assert all(len(values) > 1 for values in FIELD_VALUES.values())


@pytest.mark.parametrize("number", [2, pytest.param(400, marks=[pytest.mark.ci, pytest.mark.slow])])
def test_every_remedy_of_any_valid_values_breaks_no_further_rule(number: int) -> None:
    for scenario in scenarios(number, seed=1):
        before = broken_codes(scenario, EVERY_RULE)
        for rule, message in violations(scenario):
            problem = problem_of(scenario, rule, message, EVERY_RULE)
            assert problem.code == rule.code and problem.fix
            suggested = suggest(scenario, rule, message, EVERY_RULE)
            for field, values in suggested.items():
                for value in values:
                    state = changed(scenario, {field: value})
                    assert state and broken_codes(state, EVERY_RULE) <= before - {rule.code}


# ----------------------------------------------------------------------------- how rules are made


def test_a_row_names_the_settings_that_are_on_and_the_needs_that_are_not_there() -> None:
    row = requires(
        "E300",
        ("overlap.prefetch", "memory.shard_over"),
        needs={"memory.zero_stage": (2, 3), "overlap.data_parallel": True},
        where=lambda scenario: scenario.parallelism.pipeline == 1,
        why="a test",
        example="",
    )
    broken = Scenario.model_validate(nested({"memory.shard_over": 2, "memory.zero_stage": 3}))
    message = row.check(broken)
    assert message == "memory.shard_over is 2 while overlap.data_parallel is false"
    assert fields_of(row, message, broken)[:2] == ["memory.shard_over", "overlap.data_parallel"]
    assert row.check(broken.replace({"parallelism.pipeline": 2})) is None
    assert row.check(broken.replace({"overlap.data_parallel": True})) is None


def test_a_setting_of_a_section_that_is_left_out_needs_nothing() -> None:
    scenario = Scenario.model_validate(nested({}))
    field = "model.experts.capacity_factor"
    assert default_of(field) is None and default_of("batch.packed_lengths") is None
    needing = requires("E300", field, {"memory.zero_stage": 3}, why="", example="", off=2.0)
    assert scenario.model.experts is None and needing.check(scenario) is None
    needed = requires("E300", "memory.zero_stage", {field: is_set}, why="", example="", off=3)
    assert needed.check(scenario) == f"memory.zero_stage is 0 while {field} is not set"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        # One less and one more; 7 and 12 of the message, their multiples, and divisors of 4 and 12.
        ("parallelism.pipeline", 4, [3, 5, 2, 6, 1, 7, 8, 12, 14, 16, 21, 24]),
        ("recompute.keep_microbatches", 1, [0, 2, 3, 4, 7, 12, "auto"]),
    ],
)
def test_the_nearest_numbers_are_tried_first(
    field: str, value: int, expected: list[object]
) -> None:
    scenario = Scenario.model_validate(nested({field: value}))
    assert [*neighbours(scenario, field, "it is 7, or 12", [field])] == expected


def test_the_layers_of_both_ends_are_added_in_words() -> None:
    ends = {"parallelism.first_stage_layers": 3, "parallelism.last_stage_layers": 10}
    split = {"model.num_layers": 24, "parallelism.pipeline": 4, "parallelism.interleave": 2}
    (rule,) = (rule for rule in RULES if rule.code == "E305")
    assert rule.check(Scenario.model_validate(nested(split | ends))) == (
        "parallelism.first_stage_layers + parallelism.last_stage_layers (3 + 10 = 13) of "
        "model.num_layers (24) leaves 11 for 2 stages, not a positive multiple of these stages x "
        "parallelism.interleave (2 x 2 = 4)"
    )


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ({"memory.shard_over": 1, "parallelism.data": 2}, {"E365"}),
        ({"memory.shard_over": 1, "parallelism.context": 2}, set()),
        # The order of this schedule cannot be built, so no kept microbatches are too many.
        (
            {"parallelism.pipeline": 4, "parallelism.interleave": 3, "batch.global": 6}
            | {"recompute.strategy": "full", "recompute.keep_microbatches": 90},
            {"E305", "E311"},
        ),
    ],
)
def test_rules_that_depend_on_others(values: dict[str, object], codes: set[str]) -> None:
    fused = {"attention_backend": "fused", "memory.zero_stage": int("memory.shard_over" in values)}
    assert broken_codes(Scenario.model_validate(nested(fused | values)), RULES) == codes
