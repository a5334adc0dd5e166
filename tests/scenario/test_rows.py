"""Rules that are rows of the kinds "excludes", "divides" and "at most": words and remedies."""

import pytest

from simtrain.scenario.at_most import AtMost
from simtrain.scenario.check import EVERY_RULE
from simtrain.scenario.divisibility import Divides
from simtrain.scenario.exclusion import Excludes
from simtrain.scenario.explanations import explain
from simtrain.scenario.remedies import broken_codes, changed, suggest, suggest_together
from simtrain.scenario.rules import RULES
from tests.helpers.rule_rows import example_of

Row = Excludes | Divides | AtMost
ROWS = [rule for rule in EVERY_RULE if isinstance(rule, (Excludes, Divides, AtMost))]
EACH_ROW = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.code)


def fields_of(row: Row) -> tuple[str, ...]:
    """The fields that a row limits."""
    if isinstance(row, Excludes):
        return tuple(row.settings)
    return row.fields[:1] if isinstance(row, Divides) else row.numbers


@EACH_ROW
def test_an_example_breaks_its_row_alone_and_names_the_field(row: Row) -> None:
    scenario = example_of(row)
    assert broken_codes(scenario, RULES) == {row.code}
    violation = row.check(scenario)
    assert violation is not None
    blamed, *_ = violation.fields or violation.values
    assert blamed in fields_of(row) and violation.message.startswith(f"{blamed} is ")


@EACH_ROW
def test_the_suggested_values_make_it_legal(row: Row) -> None:
    scenario = example_of(row)
    violation = row.check(scenario)
    assert violation is not None
    suggested = suggest(scenario, row, violation, RULES)
    ways = [{field: value} for field, values in suggested.items() for value in values]
    for way in ways or [suggest_together(scenario, row, RULES) or {}]:
        legal = changed(scenario, way)
        assert way and legal is not None and not broken_codes(legal, RULES), way


@EACH_ROW
def test_the_explanation_names_every_field(row: Row) -> None:
    page = explain(row.code)
    for field in fields_of(row):
        assert field in page.what and field in page.fix, field
