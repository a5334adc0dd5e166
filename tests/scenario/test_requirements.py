"""Rules that are rows: a setting needs values of other fields; all their words follow."""

import random

import pytest

from simtrain.errors import InputError
from simtrain.scenario import Scenario
from simtrain.scenario.allowed_values import SET, AllowedValues, any_but, at_least, one_of
from simtrain.scenario.check import EVERY_RULE, check_scenario
from simtrain.scenario.explanations import explain
from simtrain.scenario.remedies import broken_codes, changed, suggest, suggest_together
from simtrain.scenario.requirement import Given, Requires, default_of, value_getter
from simtrain.scenario.rules import RULES
from tests.helpers.rule_rows import example_of
from tests.helpers.scenario_values import FIELD_VALUES, nested, random_values

ROWS = [rule for rule in EVERY_RULE if isinstance(rule, Requires)]
EACH_ROW = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.code)


@EACH_ROW
def test_a_scenario_that_breaks_a_row_is_refused_with_its_code_alone(row: Requires) -> None:
    rules = RULES if row in RULES else [*RULES, row]
    with pytest.raises(InputError) as caught:
        check_scenario(example_of(row), rules)
    (problem,) = caught.value.problems
    assert (problem.code, problem.reason) == (row.code, row.why)
    setting, _, rest = problem.message.partition(" is ")
    assert setting in row.settings
    assert any(f"{field} " in rest.partition(" while ")[2] for field in row.needs)


@EACH_ROW
def test_the_suggested_values_make_it_legal(row: Requires) -> None:
    scenario, rules = example_of(row), RULES if row in RULES else [*RULES, row]
    violation = row.check(scenario)
    assert violation is not None
    suggested = suggest(scenario, row, violation, rules)
    ways = [{field: value} for field, values in suggested.items() for value in values]
    for way in ways or [suggest_together(scenario, row, rules) or {}]:
        legal = changed(scenario, way)
        assert way and legal is not None and not broken_codes(legal, rules), way


@EACH_ROW
def test_the_explanation_names_every_field(row: Requires) -> None:
    page = explain(row.code)
    for field in (*row.settings, *row.needs):
        assert field in page.what and field in page.fix, field


def satisfied(row: Requires) -> Scenario | None:
    """The example with the needed values; None if a need has no nearest value."""
    scenario = example_of(row)
    violation = row.check(scenario)
    assert violation is not None
    near = {field: [*violation.values[field]] for field in row.needs}
    if not all(near.values()):
        return None
    return changed(scenario, {field: values[0] for field, values in near.items()})


def test_each_need_that_is_not_there_breaks_its_row_alone() -> None:
    """All values of every needed field are tried while the others are as the row needs them."""
    num_tried = 0
    for row in ROWS:
        legal = satisfied(row)
        if legal is None:
            continue
        assert row.check(legal) is None
        for field, allowed in row.allowed.items():
            for value in FIELD_VALUES.get(field, ()):
                broken = changed(legal, {field: value})
                if value is None or broken is None:
                    continue  # the default of the software stack, or an invalid scenario
                violation = row.check(broken)
                assert (violation is None) == (value in allowed), (row.code, field, value)
                num_tried += 1
                if violation is not None:
                    needs = violation.message.partition(" while ")[2]
                    assert needs == f"{field} {allowed.broken_by(value_getter(field)(broken))}"
    assert num_tried > 2 * len(ROWS)


def test_a_row_holds_as_soon_as_its_settings_are_off_or_its_needs_are_there() -> None:
    """For random scenarios, which may break many other rules."""
    rng = random.Random(3)
    num_broken = dict.fromkeys((row.code for row in ROWS), 0)
    for _ in range(1500):
        scenario = Scenario.model_validate(nested(random_values(rng)))
        for row in ROWS:
            if (violation := row.check(scenario)) is None:
                continue
            num_broken[row.code] += 1
            near = {field: [*values] for field, values in violation.values.items()}
            on = near.keys() & row.settings.keys()
            for fields in (on, row.needs.keys()):
                if all(near[field] for field in fields):
                    satisfied = changed(scenario, {field: near[field][0] for field in fields})
                    assert satisfied is None or row.check(satisfied) is None, (row.code, fields)
    assert sum(number > 0 for number in num_broken.values()) > 0.8 * len(ROWS)


@pytest.mark.parametrize(
    ("values", "inside", "outside", "broken", "remedy"),
    [
        (one_of("fp8", "fp4"), "fp4", "bf16", "is not fp8 or fp4", "to fp8 or fp4"),
        (one_of(True), True, False, "is false", "to true"),
        (one_of(None), None, 3, "is set", "to null"),
        (any_but("fp32", near=("bf16",)), "bf16", "fp32", "is fp32", "to bf16"),
        (SET, 3, None, "is not set", ""),
        (at_least(2, near=()), 2, 1, "is below 2", "to 2 or more"),
        (at_least(2, near=()), 3, None, "is below 2", "to 2 or more"),
    ],
)
def test_allowed_values_say_what_breaks_them_and_how_to_keep_them(
    values: AllowedValues, inside: object, outside: object, broken: str, remedy: str
) -> None:
    assert inside in values and outside not in values
    assert (values.broken, values.remedy) == (broken, remedy)


def test_all_words_follow_from_the_row() -> None:
    row = Requires(
        "E300",
        ("overlap.prefetch", "memory.shard_over"),
        needs={"memory.zero_stage": (2, 3), "overlap.data_parallel": True},
        given=Given("one stage", lambda scenario: scenario.parallelism.pipeline == 1),
        why="a test",
        example="",
    )
    assert row.what == (
        "With one stage, overlap.prefetch is not 1 or memory.shard_over is set while "
        "memory.zero_stage is not 2 or 3 or overlap.data_parallel is false."
    )
    assert row.fix == (
        "Set overlap.prefetch to 1, and remove memory.shard_over; or set memory.zero_stage to "
        "2 or 3 and overlap.data_parallel to true."
    )
    broken = Scenario.model_validate(nested({"memory.shard_over": 2, "memory.zero_stage": 3}))
    violation = row.check(broken)
    assert violation is not None
    assert violation.message == "memory.shard_over is 2 while overlap.data_parallel is false"
    fields = ("memory.shard_over", "memory.zero_stage", "overlap.data_parallel")
    assert violation.fields == fields and tuple(violation.values) == fields
    assert row.check(broken.replace({"parallelism.pipeline": 2})) is None
    assert row.check(broken.replace({"overlap.data_parallel": True})) is None


def test_a_setting_of_a_section_that_is_left_out_needs_nothing() -> None:
    scenario = Scenario.model_validate(nested({}))
    field = "model.experts.capacity_factor"
    assert default_of(field) is None and default_of("batch.packed_lengths") is None
    needing = Requires("E300", field, needs={"memory.zero_stage": 3}, why="", example="", off=2.0)
    assert scenario.model.experts is None and needing.check(scenario) is None
    needed = Requires("E300", "memory.zero_stage", {field: SET}, why="", example="", off=3)
    violation = needed.check(scenario)
    assert violation is not None
    assert violation.message == f"memory.zero_stage is 0 while {field} is not set"


def test_a_default_of_the_software_stack_is_resolved() -> None:
    scenario = Scenario.model_validate(nested({}))
    assert scenario.overlap.tensor_parallel is None
    value = value_getter("overlap.tensor_parallel")(scenario)
    assert value is scenario.overlaps_tensor_parallel
